/* SPDX-License-Identifier: MIT */
#include "upload.h"

#include "blame.h"
#include "log.h"

#include <stdio.h>

enum { ALIGN = 64 };

static size_t half_bytes(const struct bl_upload *u)
{
    return u->room->bytes / 2 & ~(size_t)(ALIGN - 1);
}

/* After that nothing is waited for. */
static enum bl_status give_up(struct bl_upload *u, uint32_t half, uint64_t waited_ns)
{
    uint32_t enqueued = 0, done = 0;

    if (u->dev->ops->progress)
        u->dev->ops->progress(u->stream, &enqueued, &done);
    bl_log(BL_LOG_ERROR, "%s, weights: %u of %u commands done, copy of %s", u->dev->name, done,
           enqueued, u->what[half]);
    if (u->dev->ops->cancel)
        u->dev->ops->cancel(u->stream);
    u->given_up = true;
    return bl_fail(BL_ETIMEDOUT,
                   "%s has finished nothing for %.1f s while weights were loaded; it is stuck in a "
                   "copy of %s" BL_STUCK_ADVICE,
                   u->dev->name, (double)waited_ns * 1e-9, u->what[half]);
}

static enum bl_status join(struct bl_upload *u, uint32_t half)
{
    const uint64_t patience_ns = u->patience_ns ? u->patience_ns : BL_UPLOAD_NS;
    const struct bl_point p = u->sent[half];

    if (!p.stream || u->given_up)
        return BL_OK;
    const enum bl_status st = u->dev->ops->join(p, patience_ns);
    if (st == BL_ETIMEDOUT)
        return give_up(u, half, patience_ns);
    if (!st)
        return BL_OK;
    char at[128];
    snprintf(at, sizeof at, "loading %s", u->what[half]);
    return bl_blame_at(st, u->dev->name, at);
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
    return join(u, u->turn);
}

enum bl_status bl_upload_send(struct bl_upload *u, const char *what, const struct bl_mem *block,
                              size_t off, size_t bytes)
{
    const size_t from = u->turn * half_bytes(u);

    u->what[u->turn] = what;
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
            st = join(u, i);
    u->dev->ops->stream_close(u->stream);
    *u = (struct bl_upload){0};
    return st;
}
