/* SPDX-License-Identifier: MIT */
#include "upload.h"

enum { ALIGN = 64 };

static size_t half_bytes(const struct bl_upload *u)
{
    return u->room->bytes / 2 & ~(size_t)(ALIGN - 1);
}

static enum bl_status join(const struct bl_upload *u, struct bl_point p)
{
    return p.stream ? u->dev->ops->join(p, u->patience_ns ? u->patience_ns : BL_UPLOAD_NS) : BL_OK;
}

enum bl_status bl_upload_open(struct bl_upload *u, struct bl_device *dev, const struct bl_mem *room)
{
    *u = (struct bl_upload){.dev = dev, .room = room};
    if (!room->host || !half_bytes(u))
        return bl_fail(BL_EUNSUPPORTED, "%s: there is no block of the host to load weights through",
                       dev->name);
    return dev->ops->stream_open(dev, &u->stream);
}

enum bl_status bl_upload_next(struct bl_upload *u, void **at, size_t *bytes)
{
    *bytes = half_bytes(u);
    *at = (char *)u->room->host + u->turn * *bytes;
    return join(u, u->sent[u->turn]);
}

enum bl_status bl_upload_send(struct bl_upload *u, const struct bl_mem *block, size_t off,
                              size_t bytes)
{
    const size_t from = u->turn * half_bytes(u);

    BL_TRY(u->dev->ops->copy(u->stream, block, off, u->room, from, bytes));
    BL_TRY(u->dev->ops->signal(u->stream, &u->sent[u->turn]));
    u->turn = !u->turn;
    return BL_OK;
}

enum bl_status bl_upload_close(struct bl_upload *u)
{
    enum bl_status st = BL_OK;

    if (!u->stream)
        return BL_OK;
    for (uint32_t i = 0; i < 2; i++)
        if (!st)
            st = join(u, u->sent[i]);
    if (st == BL_ETIMEDOUT && u->dev->ops->cancel)
        u->dev->ops->cancel(u->stream);
    u->dev->ops->stream_close(u->stream);
    *u = (struct bl_upload){0};
    return st;
}
