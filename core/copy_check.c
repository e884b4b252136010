/* SPDX-License-Identifier: MIT */
#include "copy_check.h"

#include "status.h"

#include <string.h>

enum { BLOCK = 64 << 10, ROUNDS = 2 };
#define USUAL_NS 10000000000u

struct check {
    struct bl_device *dev;
    struct bl_stream *stream;
    uint64_t patience_ns;
    struct bl_mem there, back; /* on the device; on the host: what was sent, what came */
};

/* No two words alike in a block, and every bit both ways over the rounds. */
static void fill(uint32_t *word, uint32_t n, uint32_t round)
{
    for (uint32_t i = 0; i < n; i++)
        word[i] = (i * 2654435761u) ^ (round ? UINT32_MAX : 0);
}

static enum bl_status there_and_back(const struct check *c, uint32_t round)
{
    const struct bl_device_ops *ops = c->dev->ops;
    unsigned char *sent = c->back.host, *came = sent + BLOCK;
    struct bl_point end;

    fill(c->back.host, BLOCK / sizeof(uint32_t), round);
    memset(came, 0, BLOCK);
    BL_TRY(ops->copy(c->stream, &c->there, 0, &c->back, 0, BLOCK));
    BL_TRY(ops->copy(c->stream, &c->back, BLOCK, &c->there, 0, BLOCK));
    BL_TRY(ops->signal(c->stream, &end));
    BL_TRY(ops->join(end, c->patience_ns));
    for (uint32_t i = 0; i < BLOCK; i++)
        if (sent[i] != came[i])
            return bl_fail(BL_EDEVICE,
                           "what is copied to %s comes back changed: byte %u is %u, not %u; its "
                           "memory or its link cannot be trusted",
                           c->dev->name, i, came[i], sent[i]);
    return BL_OK;
}

enum bl_status bl_copy_check(struct bl_device *host, struct bl_device *dev, uint64_t patience_ns)
{
    struct check c = {.dev = dev, .patience_ns = patience_ns ? patience_ns : USUAL_NS};
    enum bl_status st = host->ops->mem_alloc(host, 2 * BLOCK, true, &c.back);

    if (!st)
        st = dev->ops->mem_alloc(dev, BLOCK, false, &c.there);
    if (!st)
        st = dev->ops->stream_open(dev, &c.stream);
    for (uint32_t round = 0; !st && round < ROUNDS; round++)
        st = there_and_back(&c, round);
    if (c.stream && st == BL_ETIMEDOUT && dev->ops->cancel)
        dev->ops->cancel(c.stream);
    if (c.stream)
        dev->ops->stream_close(c.stream);
    if (c.there.dev)
        dev->ops->mem_free(&c.there);
    if (c.back.dev)
        host->ops->mem_free(&c.back);
    return st == BL_ETIMEDOUT ? bl_fail(st, "%s answers no copy within %.1f s", dev->name,
                                        (double)c.patience_ns * 1e-9)
                              : st;
}
