/* SPDX-License-Identifier: MIT */
/* Binding gives a lowered program its addresses and segments; verifying replays it without any. */
#include "program_impl.h"

#include "mem.h"

#include <stdlib.h>

/* ---- bind ---- */

static uint64_t address(const struct bl_program *p, const struct bl_binding *b, bl_val v,
                        uint16_t d)
{
    const struct bl_value *val = &p->graph.vals[v];

    if (!v)
        return 0;
    switch (val->origin) {
    case BL_WEIGHT:
        return b->weight[(size_t)d * b->n_weights + (uint32_t)val->index];
    case BL_STATE_ROWS:
        return b->state[val->index];
    case BL_PARAM:
        return 0;
    default:
        return b->place[d].arena.addr + p->home[(size_t)v * p->n_devices + d];
    }
}

/* Experts that are sent are found through the tables that come with them. */
static uint64_t sent_address(const struct bl_program *p, const struct bl_binding *b, bl_val v,
                             const struct bl_chunk *c)
{
    const struct bl_place *card = &b->place[p->sending[c->sending].cut.card];

    return card->ring + c->seq % BL_RING_PARTS * card->ring_part +
           b->sent_table[p->graph.vals[v].index];
}

static void bind_nodes(struct bl_program *p, const struct bl_binding *b)
{
    uint64_t *at = p->addr;

    for (uint32_t i = 0; i < p->graph.n_nodes; i++) {
        const struct bl_node *n = &p->graph.nodes[i];
        uint64_t *src = at, *dst = at + n->n_src;

        const struct bl_chunk *c = n->op == BL_OP_EXPERTS ? bl_stream_chunk(p, n) : NULL;

        for (unsigned s = 0; s < n->n_src; s++) {
            const bl_val v = bl_node_src(&p->graph, n, s);
            src[s] = c && v && p->graph.vals[v].origin == BL_WEIGHT
                         ? sent_address(p, b, v, c)
                         : address(p, b, v, p->node_device[i]);
        }
        for (unsigned k = 0; k < n->n_dst; k++)
            dst[k] = address(p, b, n->dst[k], p->node_device[i]);
        p->bound[i] = (struct bl_bound){n, src, dst};
        at = dst + n->n_dst;
    }
}

enum bl_status bl_program_bind(struct bl_program *p, const struct bl_binding *b)
{
    p->bound = bl_calloc(p->graph.n_nodes + 1, sizeof *p->bound);
    p->addr = bl_calloc(p->graph.n_srcs + 2 * (size_t)p->graph.n_nodes + 1, sizeof *p->addr);
    p->ops = bl_calloc(p->n_devices, sizeof *p->ops);
    if (!p->bound || !p->addr || !p->ops)
        return bl_fail(BL_ENOMEM, "out of memory while binding a program");
    bind_nodes(p, b);
    for (uint32_t d = 0; d < p->n_devices; d++)
        if (p->used[d])
            p->ops[d] = b->place[d].dev->ops;
    for (uint32_t r = 0; r < p->n_ranges; r++) {
        struct bl_range *range = &p->range[r];
        const struct bl_place *place = &b->place[range->device];
        BL_TRY(place->dev->ops->segment_build(place->dev, &p->graph, &p->bound[range->first],
                                              range->n, &place->scratch, &place->params,
                                              &range->segment));
    }
    return BL_OK;
}

/* ---- verify ----
 *
 * Every read sees what was written there last and comes after it; nothing is written over that
 * another stream may still be reading or writing. */

struct replay {
    const struct bl_program *p;
    bool *valid;      /* [n_vals * n_devices] the arena holds this value now */
    uint16_t *writer; /* [n_vals * n_devices] stream that put it there */
    uint32_t *made;   /* [n_vals * n_devices] signals that existed then, plus one; 0: not yet */
    uint32_t *read;   /* [n_vals * n_devices * n_devices] last read by each stream, likewise */
    uint32_t
        *known;     /* [n_devices * n_devices] signals of b that a comes after, the last plus one */
    uint32_t *told; /* [n_signals * n_devices] row of known of who signals */
    uint32_t n_signals; /* so far */
};

static uint64_t end_of(const struct bl_program *p, bl_val v, uint64_t off)
{
    return off + bl_value_bytes(&p->graph.vals[v]);
}

/* Does what the stream does next come after what other had done when it had seen so many signals?
 */
static bool comes_after(const struct replay *r, uint16_t stream, uint16_t other, uint32_t seen)
{
    return !seen || stream == other || r->known[(size_t)stream * r->p->n_devices + other] >= seen;
}

static bool may_overwrite(struct replay *r, size_t at, uint16_t stream)
{
    const uint32_t n = r->p->n_devices;

    if (!comes_after(r, stream, r->writer[at], r->made[at]))
        return false;
    for (uint16_t q = 0; q < n; q++)
        if (!comes_after(r, stream, q, r->read[at * n + q]))
            return false;
    memset(&r->read[at * n], 0, n * sizeof *r->read);
    r->made[at] = 0;
    r->valid[at] = false;
    return true;
}

static enum bl_status write_value(struct replay *r, bl_val v, uint16_t d, uint16_t stream)
{
    const struct bl_program *p = r->p;
    size_t to = (size_t)v * p->n_devices + d;
    uint64_t off = p->home[to], end = end_of(p, v, off);

    for (bl_val o = 1; o < p->graph.n_vals; o++) {
        size_t at = (size_t)o * p->n_devices + d;
        if (r->made[at] && p->home[at] < end && end_of(p, o, p->home[at]) > off &&
            !may_overwrite(r, at, stream))
            return bl_fail(BL_EINVAL, "value %u is written over value %u, in use on device %u", v,
                           o, d);
    }
    r->valid[to] = true;
    r->writer[to] = stream;
    r->made[to] = r->n_signals + 1;
    return BL_OK;
}

static bool read_value(struct replay *r, bl_val v, uint16_t d, uint16_t stream)
{
    size_t at = (size_t)v * r->p->n_devices + d;
    r->read[at * r->p->n_devices + stream] = r->n_signals + 1;
    return r->valid[at] && comes_after(r, stream, r->writer[at], r->made[at]);
}

static enum bl_status replay_node(struct replay *r, uint32_t i)
{
    const struct bl_program *p = r->p;
    const struct bl_graph *g = &p->graph;
    const struct bl_node *n = &g->nodes[i];
    uint16_t d = p->node_device[i];

    for (unsigned s = 0; s < n->n_src; s++) {
        bl_val v = bl_node_src(g, n, s);
        if (v && g->vals[v].origin == BL_ACTIVATION && !read_value(r, v, d, d))
            return bl_fail(BL_EINVAL, "node %u (%s) reads value %u, which device %u does not hold",
                           i, bl_ops[n->op].name, v, d);
    }
    for (unsigned k = 0; k < n->n_dst; k++)
        if (g->vals[n->dst[k]].origin == BL_ACTIVATION)
            BL_TRY(write_value(r, n->dst[k], d, d));
    /* a destination must not have clobbered a source of the same node */
    for (unsigned s = 0; s < n->n_src; s++) {
        bl_val v = bl_node_src(g, n, s);
        if (v && g->vals[v].origin == BL_ACTIVATION && !r->valid[(size_t)v * p->n_devices + d])
            return bl_fail(BL_EINVAL, "node %u (%s) overwrites its own source %u", i,
                           bl_ops[n->op].name, v);
    }
    return BL_OK;
}

static enum bl_status replay_copy(struct replay *r, const struct bl_copy *c, uint16_t stream)
{
    if (!read_value(r, c->val, c->from, stream))
        return bl_fail(BL_EINVAL, "a copy takes value %u from device %u, which does not hold it",
                       c->val, c->from);
    return write_value(r, c->val, c->to, stream);
}

static enum bl_status replay_signal(struct replay *r, const struct bl_step *s)
{
    const struct bl_program *p = r->p;
    const size_t n = p->n_devices;

    if (s->index != r->n_signals || p->signal_device[s->index] != s->device)
        return bl_fail(BL_EINVAL, "signal %u is out of order", s->index);
    r->known[s->device * n + s->device] = ++r->n_signals;
    memcpy(&r->told[s->index * n], &r->known[s->device * n], n * sizeof *r->told);
    return BL_OK;
}

static enum bl_status replay_wait(struct replay *r, const struct bl_step *s)
{
    const size_t n = r->p->n_devices;

    if (s->index >= r->n_signals)
        return bl_fail(BL_EINVAL, "a wait for signal %u comes before it", s->index);
    for (size_t q = 0; q < n; q++)
        if (r->known[s->device * n + q] < r->told[s->index * n + q])
            r->known[s->device * n + q] = r->told[s->index * n + q];
    return BL_OK;
}

/* The submitting thread reads the ids once it has waited for the signal: what it enqueues from then
 * on comes after that, in every stream. */
static enum bl_status replay_pick(struct replay *r, const struct bl_sending *s)
{
    const size_t n = r->p->n_devices, at = (size_t)s->ids * n;

    if (s->signal >= r->n_signals)
        return bl_fail(BL_EINVAL, "a pick of layer %u comes before signal %u", s->layer, s->signal);
    if (!r->valid[at] || r->told[s->signal * n + r->writer[at]] < r->made[at])
        return bl_fail(BL_EINVAL, "a pick of layer %u reads value %u, which is not on the host",
                       s->layer, s->ids);
    for (size_t i = 0; i < n * n; i++)
        if (r->known[i] < r->told[s->signal * n + i % n])
            r->known[i] = r->told[s->signal * n + i % n];
    return BL_OK;
}

/* Signals of streams that touch no values: they are counted, and tell nobody anything. */
static void replay_implied(struct replay *r, uint32_t signal)
{
    r->n_signals += signal == r->n_signals;
}

static enum bl_status replay_step(struct replay *r, const struct bl_step *s)
{
    const struct bl_program *p = r->p;

    switch (s->kind) {
    case BL_STEP_SIGNAL:
        return replay_signal(r, s);
    case BL_STEP_WAIT:
        return replay_wait(r, s);
    case BL_STEP_COPY:
        return replay_copy(r, &p->copy[s->index], s->device);
    case BL_STEP_PICK:
        return replay_pick(r, &p->sending[s->index]);
    case BL_STEP_STAGE:
        replay_implied(r, p->chunk[s->index].staged);
        return BL_OK;
    case BL_STEP_SEND:
        replay_implied(r, p->chunk[s->index].sent);
        return BL_OK;
    default:
        break;
    }
    for (uint32_t i = 0; i < p->range[s->index].n; i++)
        BL_TRY(replay_node(r, p->range[s->index].first + i));
    return BL_OK;
}

static enum bl_status replay_init(struct replay *r, const struct bl_program *p)
{
    const size_t n_dev = p->n_devices, homes = p->graph.n_vals * n_dev;

    *r = (struct replay){
        .p = p,
        .valid = bl_calloc(homes, sizeof *r->valid),
        .writer = bl_calloc(homes, sizeof *r->writer),
        .made = bl_calloc(homes, sizeof *r->made),
        .read = bl_calloc(homes * n_dev, sizeof *r->read),
        .known = bl_calloc(n_dev * n_dev, sizeof *r->known),
        .told = bl_calloc((p->n_signals + 1) * n_dev, sizeof *r->told),
    };
    return r->valid && r->writer && r->made && r->read && r->known && r->told
               ? BL_OK
               : bl_fail(BL_ENOMEM, "out of memory while verifying a program");
}

enum bl_status bl_program_verify(const struct bl_program *p)
{
    struct replay r;
    enum bl_status st = replay_init(&r, p);

    for (uint32_t i = 0; !st && i < p->n_steps; i++)
        if ((st = replay_step(&r, &p->step[i])))
            bl_fail_in(st, "step %u", i);
    if (!st)
        st = bl_stream_verify(p);
    free(r.valid);
    free(r.writer);
    free(r.made);
    free(r.read);
    free(r.known);
    free(r.told);
    return st;
}
