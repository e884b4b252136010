/* SPDX-License-Identifier: MIT */
/* Copies from card to card without the host. Drivers and chipsets have been seen to lose bytes on
 * that way and say nothing, so two cards are peers once a pattern has come across whole, both ways.
 */
#include "simt_stream.h"

#include "log.h"

enum { BLOCK = 64 << 10, ROUNDS = 2 };
#define PATIENCE_NS UINT64_C(10000000000)

struct trial {
    struct bl_device *dev; /* whose stream copies */
    struct bl_stream *stream;
    struct bl_mem near, far, host; /* host: what is sent, what comes */
};

static enum bl_status across(const struct trial *t, uint32_t round)
{
    uint32_t *sent = t->host.host, *came = sent + BLOCK / sizeof *sent;
    struct bl_point end;

    for (uint32_t i = 0; i < BLOCK / sizeof *sent; i++)
        sent[i] = (i * 2654435761u) ^ (round ? UINT32_MAX : 0);
    memset(came, 0, BLOCK);
    BL_TRY(bl_simt_copy(t->stream, &t->near, 0, &t->host, 0, BLOCK));
    BL_TRY(bl_simt_copy(t->stream, &t->far, 0, &t->near, 0, BLOCK));
    BL_TRY(bl_simt_fill(t->stream, &t->near, 0, 0, BLOCK));
    BL_TRY(bl_simt_copy(t->stream, &t->near, 0, &t->far, 0, BLOCK));
    BL_TRY(bl_simt_copy(t->stream, &t->host, BLOCK, &t->near, 0, BLOCK));
    BL_TRY(bl_simt_signal(t->stream, &end));
    BL_TRY(bl_simt_join(end, PATIENCE_NS));
    return memcmp(sent, came, BLOCK)
               ? bl_fail(BL_EDEVICE, "what is copied between them comes out changed")
               : BL_OK;
}

static enum bl_status try_copies(struct bl_simt_device *d, struct bl_simt_device *other)
{
    struct trial t = {.dev = &d->base};
    enum bl_status st;

    (void)((st = bl_simt_mem_alloc(&d->base, 2 * BLOCK, true, &t.host)) ||
           (st = bl_simt_mem_alloc(&d->base, BLOCK, false, &t.near)) ||
           (st = bl_simt_mem_alloc(&other->base, BLOCK, false, &t.far)) ||
           (st = bl_simt_stream_open(&d->base, &t.stream)));
    for (uint32_t round = 0; !st && round < ROUNDS; round++)
        st = across(&t, round);
    if (st == BL_ETIMEDOUT) { /* closed as it is, it would be waited for */
        bl_simt_cancel(t.stream);
        st = bl_fail(st, "what is copied between them does not arrive");
    }
    bl_simt_stream_close(t.stream);
    if (t.far.dev)
        bl_simt_mem_free(&t.far);
    if (t.near.dev)
        bl_simt_mem_free(&t.near);
    if (t.host.dev)
        bl_simt_mem_free(&t.host);
    return st;
}

static enum bl_status enable(const struct bl_simt_device *d, const struct bl_simt_device *other)
{
    int can = 0;

    BL_TRY(bl_simt_use(d));
    BL_TRY(bl_simt_try(d, d->fn->peer_can(d->driver, &can, d->card.handle, other->card.handle),
                       "peers"));
    if (!can)
        return bl_fail(BL_EUNSUPPORTED, "they do not reach each other");
    const int code = d->fn->peer_enable(d->driver, other->card.handle, other->context);
    return code == BL_SIMT_PEER_IS_ON ? BL_OK : bl_simt_try(d, code, "peers");
}

/* A place for what is found out; NULL: there are too many cards. */
static struct bl_simt_peer *place_of(struct bl_simt_device *d, const struct bl_simt_device *other)
{
    for (uint32_t i = 0; i < d->n_peers; i++)
        if (d->peer[i].handle == other->card.handle)
            return &d->peer[i];
    if (d->n_peers == BL_SIMT_PEERS)
        return NULL;
    d->peer[d->n_peers] = (struct bl_simt_peer){.handle = other->card.handle};
    return &d->peer[d->n_peers++];
}

bool bl_simt_reaches_card(struct bl_device *dev, struct bl_device *far)
{
    struct bl_simt_device *d = bl_simt_of(dev), *other = bl_simt_of(far);
    struct bl_simt_peer *p;

    if (far->ops != &bl_simt_ops || other->vendor != d->vendor ||
        other->card.handle == d->card.handle || !(p = place_of(d, other)))
        return false;
    if (p->tried)
        return p->trusted;
    enum bl_status st = enable(d, other);
    p->trusted = !st; /* so that the copies of the trial go that way */
    p->tried = true;
    if (!st)
        st = try_copies(d, other);
    p->trusted = !st;
    if (st && st != BL_EUNSUPPORTED)
        bl_warn("%s and %s copy through the host: %s", dev->name, far->name, bl_error());
    return p->trusted;
}

static bool driver_says_so(const struct bl_simt_driver *driver, uint32_t index, uint32_t other)
{
    const struct bl_simt_fns *fn = driver->fns;
    struct bl_simt_card a, b;
    int can = 0;

    return !fn->card(driver, (int)index, &a) && !fn->card(driver, (int)other, &b) &&
           !fn->peer_can(driver, &can, a.handle, b.handle) && can;
}

bool bl_simt_reach(const struct bl_simt_vendor *v, uint32_t index, uint32_t other)
{
    struct bl_simt_driver *driver;

    if (v->load(&driver))
        return false;
    const bool can = driver_says_so(driver, index, other);
    v->unload(driver);
    return can;
}
