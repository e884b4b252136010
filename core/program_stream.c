/* SPDX-License-Identifier: MIT */
/* Experts of the host that are sent to cards, a chunk at a time: their steps.
 *
 * A card has two streams: it computes in one while experts arrive in the other. For every chunk
 *
 *     beside   SEND after the part of the ring is free, then a signal
 *     own      WAIT for it, RUN what multiplies with it and adds it up, SIGNAL that the part is
 * free
 *
 * Who was chosen in a layer is known once its ids are on the host: the submitting thread waits for
 * them in PICK. It would leave the link idle from the last chunk of a layer until then, so the
 * first chunks of the next layer, as many as the ring has parts, have a SEND before the PICK as
 * well, for experts that are sure to be chosen. */
#include "program_impl.h"

#include "mem.h"

#include <stdlib.h>

/* ---- before the graph is built ---- */

static void add_chunks(struct bl_program *p, uint32_t sending, uint32_t *seq)
{
    const struct bl_sending *s = &p->sending[sending];

    for (uint32_t k = 0; k < s->cut.n_chunks; k++)
        p->chunk[p->n_chunks++] = (struct bl_chunk){.sending = sending,
                                                    .nth = k,
                                                    .node = UINT32_MAX,
                                                    .seq = seq[s->cut.card]++,
                                                    .before = BL_NO_CHUNK,
                                                    .staged = BL_NO_SIGNAL,
                                                    .sent = BL_NO_SIGNAL,
                                                    .freed = BL_NO_SIGNAL};
}

/* The last chunk that was in the same part of the same ring. */
static void find_before(struct bl_program *p, uint32_t *in_part)
{
    for (uint32_t c = 0; c < p->n_chunks; c++) {
        struct bl_chunk *k = &p->chunk[c];
        uint32_t *at = &in_part[(size_t)p->sending[k->sending].cut.card * BL_RING_PARTS +
                                k->seq % BL_RING_PARTS];
        k->before = *at ? *at - 1 : BL_NO_CHUNK;
        *at = c + 1;
    }
}

static enum bl_status number_chunks(struct bl_program *p, uint32_t n_devices)
{
    uint32_t *seq = bl_calloc(n_devices, (1 + BL_RING_PARTS) * sizeof *seq), n = 0;

    for (uint32_t s = 0; s < p->n_sendings; s++)
        n += p->sending[s].cut.n_chunks;
    p->chunk = bl_calloc((size_t)n + 1, sizeof *p->chunk);
    if (!seq || !p->chunk) {
        free(seq);
        return bl_fail(BL_ENOMEM, "out of memory for %u chunks of experts", n);
    }
    for (uint32_t s = 0; s < p->n_sendings; s++) {
        p->sending[s].first = p->n_chunks;
        add_chunks(p, s, seq);
    }
    find_before(p, seq + n_devices);
    free(seq);
    return BL_OK;
}

enum bl_status bl_stream_plan(struct bl_program *p, const struct bl_model *m,
                              const struct bl_plan *plan, const struct bl_machine *machine)
{
    if (!bl_plan_streams(plan, p->shape.n_tok))
        return BL_OK;
    p->sending = bl_calloc((size_t)plan->n_layers + 1, sizeof *p->sending);
    if (!p->sending)
        return bl_fail(BL_ENOMEM, "out of memory for the experts of %u layers", plan->n_layers);
    for (uint32_t l = 0; l < plan->n_layers; l++) {
        struct bl_chunking c;
        bl_plan_chunks(plan, m, l, &c);
        if (c.card != BL_NO_DEVICE)
            p->sending[p->n_sendings++] =
                (struct bl_sending){.cut = c,
                                    .layer = l,
                                    .signal = BL_NO_SIGNAL,
                                    .staged = bl_plan_stages(plan, machine, c.card)};
    }
    return number_chunks(p, machine->n_devices);
}

const struct bl_sending *bl_program_sending(const struct bl_program *p, int layer)
{
    uint32_t low = 0, high = p->n_sendings;

    while (low < high) {
        const uint32_t mid = (low + high) / 2;
        if ((int)p->sending[mid].layer < layer)
            low = mid + 1;
        else
            high = mid;
    }
    return low < p->n_sendings && (int)p->sending[low].layer == layer ? &p->sending[low] : NULL;
}

struct bl_chunk *bl_stream_chunk(const struct bl_program *p, const struct bl_node *n)
{
    const struct bl_experts_attr *at = bl_node_attr(&p->graph, n);
    const struct bl_sending *s = bl_program_sending(p, n->layer);

    return s && at->chunks ? &p->chunk[s->first + at->chunk] : NULL;
}

/* ---- steps ---- */

static enum bl_status send(struct bl_program *p, uint32_t c)
{
    const struct bl_sending *s = &p->sending[p->chunk[c].sending];

    if (s->staged)
        BL_TRY(bl_walk_step(p, BL_STEP_STAGE, 0, c));
    return bl_walk_step(p, BL_STEP_SEND, s->cut.card, c);
}

static enum bl_status send_ahead(struct bl_program *p, const struct bl_sending *s)
{
    for (uint32_t k = 0; k < s->cut.n_chunks && k < BL_RING_PARTS; k++)
        BL_TRY(send(p, s->first + k));
    return BL_OK;
}

/* The next layer of the card from `from` on. */
static const struct bl_sending *next_on(const struct bl_program *p, uint16_t card, uint32_t from)
{
    for (uint32_t s = from; s < p->n_sendings; s++)
        if (p->sending[s].cut.card == card)
            return &p->sending[s];
    return NULL;
}

enum bl_status bl_stream_begin(struct bl_program *p)
{
    for (uint32_t s = 0; s < p->n_sendings; s++)
        if (next_on(p, p->sending[s].cut.card, 0) == &p->sending[s])
            BL_TRY(send_ahead(p, &p->sending[s]));
    return BL_OK;
}

/* Once what the chunk is for has been enqueued. */
static enum bl_status free_part(struct bl_program *p, struct bl_walk *w, uint16_t d)
{
    struct bl_chunk *c = &p->chunk[w->pending[d] - 1];
    const struct bl_sending *s = &p->sending[c->sending], *next;

    w->pending[d] = 0;
    BL_TRY(bl_walk_signal(p, w, d));
    c->freed = w->signal[d] - 1;
    if (c->nth + 1 < s->cut.n_chunks || !(next = next_on(p, d, c->sending + 1)))
        return BL_OK;
    return send_ahead(p, next);
}

static enum bl_status pick(struct bl_program *p, struct bl_walk *w, struct bl_sending *s,
                           const struct bl_node *n)
{
    const uint16_t d = s->cut.card;

    s->ids = bl_node_src(&p->graph, n, 1);
    BL_TRY(bl_walk_bring(p, w, s->ids, 0));
    BL_TRY(bl_walk_signal(p, w, d));
    s->signal = w->signal[d] - 1;
    return bl_walk_step(p, BL_STEP_PICK, d, (uint32_t)(s - p->sending));
}

static enum bl_status receive(struct bl_program *p, struct bl_walk *w, uint32_t node)
{
    const struct bl_node *n = &p->graph.nodes[node];
    struct bl_chunk *c = bl_stream_chunk(p, n);
    struct bl_sending *s = &p->sending[c->sending];

    c->node = node;
    if (!c->nth)
        BL_TRY(pick(p, w, s, n));
    if (s->staged)
        BL_TRY(bl_walk_number(p, 0, &c->staged));
    BL_TRY(bl_walk_number(p, s->cut.card, &c->sent));
    BL_TRY(send(p, (uint32_t)(c - p->chunk)));
    w->open[s->cut.card] = UINT32_MAX;
    return bl_walk_step(p, BL_STEP_WAIT, s->cut.card, c->sent);
}

/* What adds a chunk's result up comes right behind it. */
enum bl_status bl_stream_before(struct bl_program *p, struct bl_walk *w, uint32_t node)
{
    const struct bl_node *n = &p->graph.nodes[node];
    const uint16_t d = p->node_device[node];

    const bool adds =
        n->op == BL_OP_ADD && w->pending[d] && p->chunk[w->pending[d] - 1].node + 1 == node;
    if (w->pending[d] && !adds)
        BL_TRY(free_part(p, w, d));
    return n->op == BL_OP_EXPERTS && bl_stream_chunk(p, n) ? receive(p, w, node) : BL_OK;
}

void bl_stream_after(struct bl_program *p, struct bl_walk *w, uint32_t node)
{
    const struct bl_node *n = &p->graph.nodes[node];
    const struct bl_chunk *c = n->op == BL_OP_EXPERTS ? bl_stream_chunk(p, n) : NULL;

    if (c)
        w->pending[p->node_device[node]] = (uint32_t)(c - p->chunk) + 1;
}

/* ---- verify ---- */

struct order {
    const struct bl_program *p;
    uint32_t *computed;           /* [n_chunks] step of the run, plus one; 0: not yet */
    bool *staged, *sent, *waited; /* [n_chunks] */
    uint32_t *signalled;          /* [n_signals] step, plus one */
    bool *picked;                 /* [n_sendings] */
};

static enum bl_status check_send(struct order *o, uint32_t c)
{
    const struct bl_chunk *k = &o->p->chunk[c];
    const struct bl_chunk *b = k->before == BL_NO_CHUNK ? NULL : &o->p->chunk[k->before];

    if (b && (b->freed == BL_NO_SIGNAL || !o->computed[k->before] ||
              o->signalled[b->freed] <= o->computed[k->before]))
        return bl_fail(BL_EINVAL, "chunk %u is sent over chunk %u, which is in use", c, k->before);
    if (o->p->sending[k->sending].staged && !o->staged[c])
        return bl_fail(BL_EINVAL, "chunk %u is sent before it is in the host's ring", c);
    o->sent[c] = o->picked[k->sending];
    return BL_OK;
}

static enum bl_status check_run(struct order *o, const struct bl_range *r, uint32_t step)
{
    const struct bl_graph *g = &o->p->graph;

    for (uint32_t i = r->first; i < r->first + r->n; i++) {
        const struct bl_node *n = &g->nodes[i];
        const struct bl_chunk *k = n->op == BL_OP_EXPERTS ? bl_stream_chunk(o->p, n) : NULL;
        if (!k)
            continue;
        const uint32_t c = (uint32_t)(k - o->p->chunk);
        if (!o->waited[c] || o->p->sending[k->sending].cut.card != r->device)
            return bl_fail(BL_EINVAL, "chunk %u is computed before it is there", c);
        o->computed[c] = step + 1;
    }
    return BL_OK;
}

static enum bl_status check_step(struct order *o, uint32_t i)
{
    const struct bl_step *s = &o->p->step[i];

    switch (s->kind) {
    case BL_STEP_PICK:
        o->picked[s->index] = true;
        return BL_OK;
    case BL_STEP_STAGE:
        o->staged[s->index] = true;
        return BL_OK;
    case BL_STEP_SEND:
        return check_send(o, s->index);
    case BL_STEP_SIGNAL:
        o->signalled[s->index] = i + 1;
        return BL_OK;
    case BL_STEP_WAIT:
        for (uint32_t c = 0; c < o->p->n_chunks; c++)
            o->waited[c] |= o->p->chunk[c].sent == s->index && o->sent[c];
        return BL_OK;
    case BL_STEP_RUN:
        return check_run(o, &o->p->range[s->index], i);
    default:
        return BL_OK;
    }
}

enum bl_status bl_stream_verify(const struct bl_program *p)
{
    struct order o = {
        .p = p,
        .computed = bl_calloc((size_t)p->n_chunks + 1, sizeof *o.computed),
        .staged = bl_calloc((size_t)p->n_chunks + 1, 3 * sizeof *o.staged),
        .signalled = bl_calloc((size_t)p->n_signals + 1, sizeof *o.signalled),
        .picked = bl_calloc((size_t)p->n_sendings + 1, sizeof *o.picked),
    };
    enum bl_status st = BL_OK;

    if (!o.computed || !o.staged || !o.signalled || !o.picked)
        st = bl_fail(BL_ENOMEM, "out of memory while verifying a program");
    else {
        o.sent = o.staged + p->n_chunks + 1;
        o.waited = o.sent + p->n_chunks + 1;
    }
    for (uint32_t i = 0; !st && p->n_sendings && i < p->n_steps; i++)
        if ((st = check_step(&o, i)))
            bl_fail_in(st, "step %u", i);
    for (uint32_t c = 0; !st && c < p->n_chunks; c++)
        if (!o.computed[c])
            st = bl_fail(BL_EINVAL, "chunk %u is never computed", c);
    free(o.computed);
    free(o.staged);
    free(o.signalled);
    free(o.picked);
    return st;
}
