/* SPDX-License-Identifier: MIT */
/* Binding gives a lowered program its addresses and segments; verifying replays it without any. */
#include "program.h"

#include "mem.h"

#include <stdlib.h>

/* ---- bind ---- */

static uint64_t address(const struct bl_program *p, const struct bl_binding *b,
                        const struct bl_node *n, bl_val v, unsigned src, uint16_t d)
{
    const struct bl_value *val = &p->graph.vals[v];

    if (!v)
        return 0;
    switch (val->origin) {
    case BL_WEIGHT:
        return n->op == BL_OP_EXPERTS && src >= 3 && src <= 5 ? b->expert_table[val->index]
                                                              : b->weight[val->index];
    case BL_STATE_ROWS:
        return b->state[val->index];
    case BL_PARAM:
        return 0;
    default:
        return b->place[d].arena.addr + p->home[(size_t)v * p->n_devices + d];
    }
}

static void bind_nodes(struct bl_program *p, const struct bl_binding *b)
{
    uint64_t *at = p->addr;

    for (uint32_t i = 0; i < p->graph.n_nodes; i++) {
        const struct bl_node *n = &p->graph.nodes[i];
        uint64_t *src = at, *dst = at + n->n_src;

        for (unsigned s = 0; s < n->n_src; s++)
            src[s] = address(p, b, n, bl_node_src(&p->graph, n, s), s, p->node_device[i]);
        for (unsigned k = 0; k < n->n_dst; k++)
            dst[k] = address(p, b, n, n->dst[k], 0, p->node_device[i]);
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

/* ---- verify ---- */

struct replay {
    const struct bl_program *p;
    bool *valid;     /* [n_vals * n_devices] the arena holds this value now */
    uint32_t *known; /* [n_devices * n_devices] signals of device b that device a has waited for,
                        plus one */
    uint32_t *made;  /* [n_vals] signals of its device that existed when the value was made */
};

static uint64_t end_of(const struct bl_program *p, bl_val v, uint64_t off)
{
    return off + bl_value_bytes(&p->graph.vals[v]);
}

/* Writing a value makes every other that overlaps it unreadable. */
static void write_value(struct replay *r, bl_val v, uint16_t d)
{
    const struct bl_program *p = r->p;
    uint64_t off = p->home[(size_t)v * p->n_devices + d], end = end_of(p, v, off);

    for (bl_val o = 1; o < p->graph.n_vals; o++) {
        size_t at = (size_t)o * p->n_devices + d;
        if (r->valid[at] && p->home[at] < end && end_of(p, o, p->home[at]) > off)
            r->valid[at] = false;
    }
    r->valid[(size_t)v * p->n_devices + d] = true;
}

static enum bl_status replay_node(struct replay *r, uint32_t i)
{
    const struct bl_program *p = r->p;
    const struct bl_graph *g = &p->graph;
    const struct bl_node *n = &g->nodes[i];
    uint16_t d = p->node_device[i];

    for (unsigned s = 0; s < n->n_src; s++) {
        bl_val v = bl_node_src(g, n, s);
        if (v && g->vals[v].origin == BL_ACTIVATION && !r->valid[(size_t)v * p->n_devices + d])
            return bl_fail(BL_EINVAL, "node %u (%s) reads value %u, which device %u does not hold",
                           i, bl_ops[n->op].name, v, d);
    }
    for (unsigned k = 0; k < n->n_dst; k++)
        if (g->vals[n->dst[k]].origin == BL_ACTIVATION)
            write_value(r, n->dst[k], d);
    /* a destination must not have clobbered a source of the same node */
    for (unsigned s = 0; s < n->n_src; s++) {
        bl_val v = bl_node_src(g, n, s);
        if (v && g->vals[v].origin == BL_ACTIVATION && !r->valid[(size_t)v * p->n_devices + d])
            return bl_fail(BL_EINVAL, "node %u (%s) overwrites its own source %u", i,
                           bl_ops[n->op].name, v);
    }
    return BL_OK;
}

static enum bl_status replay_copy(struct replay *r, const struct bl_copy *c, const uint32_t *waited)
{
    const struct bl_program *p = r->p;

    if (!r->valid[(size_t)c->val * p->n_devices + c->from])
        return bl_fail(BL_EINVAL, "a copy takes value %u from device %u, which does not hold it",
                       c->val, c->from);
    if (waited[(size_t)c->to * p->n_devices + c->from] <= r->made[c->val])
        return bl_fail(BL_EINVAL, "a copy of value %u does not wait for device %u", c->val,
                       c->from);
    write_value(r, c->val, c->to);
    return BL_OK;
}

static enum bl_status replay_step(struct replay *r, const struct bl_step *s, uint32_t *n_signals)
{
    const struct bl_program *p = r->p;

    switch (s->kind) {
    case BL_STEP_SIGNAL:
        if (s->index != *n_signals || p->signal_device[s->index] != s->device)
            return bl_fail(BL_EINVAL, "signal %u is out of order", s->index);
        ++*n_signals;
        return BL_OK;
    case BL_STEP_WAIT:
        if (s->index >= *n_signals)
            return bl_fail(BL_EINVAL, "a wait for signal %u comes before it", s->index);
        r->known[(size_t)s->device * p->n_devices + p->signal_device[s->index]] = s->index + 1;
        return BL_OK;
    case BL_STEP_COPY:
        return replay_copy(r, &p->copy[s->index], r->known);
    default:
        break;
    }
    for (uint32_t i = 0; i < p->range[s->index].n; i++) {
        const struct bl_node *n = &p->graph.nodes[p->range[s->index].first + i];
        BL_TRY(replay_node(r, p->range[s->index].first + i));
        for (unsigned k = 0; k < n->n_dst; k++)
            r->made[n->dst[k]] = *n_signals;
    }
    return BL_OK;
}

enum bl_status bl_program_verify(const struct bl_program *p)
{
    struct replay r = {
        .p = p,
        .valid = bl_calloc((size_t)p->graph.n_vals * p->n_devices, sizeof *r.valid),
        .known = bl_calloc((size_t)p->n_devices * p->n_devices, sizeof *r.known),
        .made = bl_calloc(p->graph.n_vals, sizeof *r.made),
    };
    enum bl_status st = BL_OK;
    uint32_t n_signals = 0;

    if (!r.valid || !r.known || !r.made)
        st = bl_fail(BL_ENOMEM, "out of memory while verifying a program");
    for (uint32_t i = 0; !st && i < p->n_steps; i++)
        if ((st = replay_step(&r, &p->step[i], &n_signals)))
            bl_fail_in(st, "step %u", i);
    free(r.valid);
    free(r.known);
    free(r.made);
    return st;
}
