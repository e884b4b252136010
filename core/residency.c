/* SPDX-License-Identifier: MIT */
#include "residency.h"

#include "blame.h"

#include "mem.h"
#include "take.h"
#include "thread.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_COPIES = 48 }; /* on their way to a device: its stream takes so many without waiting */

/* ---- parts of a layer's experts ---- */

struct parts {
    const struct bl_expert_part *at, *end;
};

static struct parts parts_of(const struct bl_residency *r, uint32_t layer)
{
    return (struct parts){r->part + r->first_part[layer], r->part + r->first_part[layer + 1]};
}

static const struct bl_weight *weight_of(const struct bl_residency *r,
                                         const struct bl_expert_part *p)
{
    return &r->model->weight[p->weight];
}

static void put(const struct bl_residency *r, uint16_t device, const struct bl_expert_part *p,
                uint32_t expert, uint64_t addr)
{
    bl_weights_table(r->weights, r->model, device, p->weight)[expert] = addr;
}

/* The host computes it again. */
static void send_home(const struct bl_residency *r, const struct bl_expert_set *s, uint32_t expert)
{
    for (struct parts p = parts_of(r, s->layer); p.at < p.end; p.at++) {
        put(r, s->device, p.at, expert, 0);
        put(r, 0, p.at, expert, p.at->home[expert]);
    }
}

static uint64_t slot_off(const struct bl_slot_block *b, const struct bl_weight *w, uint32_t slot)
{
    return bl_unit_at(b->off[w->tensor], bl_weight_expert_stride(w), slot, b->mem.window);
}

/* From now on the device computes it, and the host does not. */
static void settle(struct bl_residency *r, const struct bl_expert_move *mv)
{
    const struct bl_expert_set *s = &r->experts.set[mv->set];
    const struct bl_slot_block *b = &r->block[s->device];

    for (struct parts p = parts_of(r, s->layer); p.at < p.end; p.at++) {
        const struct bl_weight *w = weight_of(r, p.at);
        put(r, s->device, p.at, mv->in,
            bl_blocks_addr(&b->mem, slot_off(b, w, mv->slot)) + bl_weight_offset(w));
        put(r, 0, p.at, mv->in, 0);
    }
    bl_experts_arrived(&r->experts, mv);
}

/* ---- copies ---- */

static enum bl_status copy_part(const struct bl_residency *r, struct bl_slot_block *b,
                                const struct bl_expert_part *p, const struct bl_expert_move *mv)
{
    const struct bl_weight *w = weight_of(r, p);
    const struct bl_mem *from = bl_weights_home(r->weights, r->model, w->tensor);
    const uint64_t each = bl_weight_expert_stride(w);

    uint64_t inside;
    const struct bl_mem *to = bl_blocks_at(&b->mem, slot_off(b, w, mv->slot), &inside);

    b->n_copies++;
    b->moving_bytes += each;
    return b->dev->ops->copy(b->stream, to, inside, from,
                             p->home[mv->in] - bl_weight_offset(w) - from->addr, each);
}

static enum bl_status name_slots(enum bl_status st, const struct bl_device *dev)
{
    return bl_blame_at(st, dev->name, "experts on their way to its slots");
}

static enum bl_status start(struct bl_residency *r, const struct bl_expert_move *mv)
{
    const struct bl_expert_set *s = &r->experts.set[mv->set];
    struct bl_slot_block *b = &r->block[s->device];

    if (mv->out != BL_NO_EXPERT)
        send_home(r, s, mv->out); /* before its slot is written */
    b->moving[b->n_moving++] = *mv;
    for (struct parts p = parts_of(r, s->layer); p.at < p.end; p.at++)
        if (p.at->leads)
            BL_TRY(copy_part(r, b, p.at, mv));
    return BL_OK;
}

static void hold(struct bl_residency *r, uint16_t device, bool held)
{
    for (uint32_t i = 0; i < r->experts.n_sets; i++)
        if (r->experts.set[i].device == device)
            r->experts.set[i].held = held;
}

/* Whether one more such move is too many at a time. */
static bool is_full(const struct bl_slot_block *b, const struct bl_plan *plan)
{
    const uint32_t copies = b->n_copies / b->n_moving;
    const uint64_t bytes = b->moving_bytes / b->n_moving;

    return b->n_moving == BL_MOST_MOVES || b->n_copies + copies > MOST_COPIES ||
           (plan->move_bytes && b->moving_bytes + bytes > plan->move_bytes);
}

static uint32_t done_by(const struct bl_slot_block *b, uint32_t *enqueued)
{
    uint32_t done = 0;

    *enqueued = 1; /* of a backend that does not count */
    if (b->dev->ops->progress)
        b->dev->ops->progress(b->stream, enqueued, &done);
    return done;
}

/* The stream is idle. */
static enum bl_status lend_log(struct bl_slot_block *b, bool traced)
{
    void (*const trace)(struct bl_stream *, struct bl_lapse_log *) = b->dev->ops->trace;

    if (!trace || (!traced && !b->log.lapse))
        return BL_OK;
    if (traced && !b->log.lapse) {
        b->log.lapse = bl_calloc(MOST_COPIES, sizeof *b->log.lapse);
        if (!b->log.lapse)
            return bl_fail(BL_ENOMEM, "out of memory for a trace of experts");
        b->log.cap = MOST_COPIES;
    }
    atomic_store(&b->log.n, 0);
    trace(b->stream, traced ? &b->log : NULL);
    return BL_OK;
}

/* What is on its way already is left alone. */
static enum bl_status prepare(struct bl_residency *r, uint16_t d, bool traced)
{
    struct bl_slot_block *b = &r->block[d];
    uint32_t enqueued;

    hold(r, d, b->n_moving > 0);
    if (!b->stream || b->n_moving)
        return BL_OK;
    b->there.stream = NULL;
    b->before = b->done = done_by(b, &enqueued);
    b->moved_ns = bl_now_ns();
    return lend_log(b, traced);
}

/* A device gets its next experts when all that it was sent before are there. */
static enum bl_status send_for_more(struct bl_residency *r, bool traced)
{
    struct bl_expert_move mv;

    for (uint16_t d = 0; d < r->n_devices; d++)
        BL_TRY(prepare(r, d, traced));
    while (bl_experts_next(&r->experts, &mv)) {
        const uint16_t d = r->experts.set[mv.set].device;
        const enum bl_status st = start(r, &mv);
        if (st)
            return name_slots(st, r->device[d]);
        if (is_full(&r->block[d], r->plan))
            hold(r, d, true);
    }
    for (uint16_t d = 0; d < r->n_devices; d++) {
        struct bl_slot_block *b = &r->block[d];
        if (!b->n_moving || b->there.stream)
            continue;
        const enum bl_status st = b->dev->ops->signal(b->stream, &b->there);
        if (st)
            return name_slots(st, r->device[d]);
        r->moved_bytes += b->moving_bytes;
    }
    return BL_OK;
}

/* ---- arriving ---- */

static uint32_t copies_of(const struct bl_residency *r, const struct bl_expert_move *mv)
{
    uint32_t n = 0;

    for (struct parts p = parts_of(r, r->experts.set[mv->set].layer); p.at < p.end; p.at++)
        n += p.at->leads;
    return n;
}

/* Of the copies of one expert, which come one after the other. */
static enum bl_status note_move(const struct bl_residency *r, const struct bl_slot_block *b,
                                const struct bl_expert_move *mv, uint32_t first,
                                struct bl_trace *trace)
{
    const struct bl_expert_set *s = &r->experts.set[mv->set];
    const uint32_t n = copies_of(r, mv);
    struct bl_event e = {.kind = BL_EVENT_MOVE,
                         .device = s->device,
                         .to = s->device,
                         .index = mv->in,
                         .layer = (int16_t)s->layer,
                         .last_layer = (int16_t)s->layer};

    if (first + n > atomic_load(&b->log.n))
        return BL_OK;
    for (struct parts p = parts_of(r, s->layer); p.at < p.end; p.at++)
        e.bytes += p.at->leads ? (double)bl_weight_expert_stride(weight_of(r, p.at)) : 0;
    e.begin_ns = (double)b->log.lapse[first].begin_ns;
    e.end_ns = (double)b->log.lapse[first + n - 1].end_ns;
    return bl_trace_note(trace, &e);
}

static enum bl_status note_moves(const struct bl_residency *r, const struct bl_slot_block *b,
                                 struct bl_trace *trace)
{
    uint32_t first = 0;

    for (uint32_t i = 0; trace && i < b->n_moving; i++) {
        BL_TRY(note_move(r, b, &b->moving[i], first, trace));
        first += copies_of(r, &b->moving[i]);
    }
    return BL_OK;
}

static bool is_stalled(struct bl_slot_block *b, uint64_t patience_ns)
{
    const uint64_t now = bl_now_ns();
    uint32_t enqueued;
    const uint32_t done = done_by(b, &enqueued);

    if (done != b->done) {
        b->done = done;
        b->moved_ns = now;
    }
    return done != enqueued && now - b->moved_ns >= patience_ns;
}

static enum bl_status give_up(const struct bl_residency *r, struct bl_slot_block *b)
{
    const uint32_t done = b->done - b->before;
    uint32_t i = 0;

    for (uint32_t n = 0; i + 1 < b->n_moving; i++)
        if ((n += copies_of(r, &b->moving[i])) > done)
            break;
    if (b->dev->ops->cancel)
        b->dev->ops->cancel(b->stream);
    return bl_fail(BL_ETIMEDOUT,
                   "%s has finished nothing for %.1f s; it is stuck in copy %u of %u for its "
                   "slots, of expert %u of layer %u" BL_STUCK_ADVICE,
                   b->dev->name, (double)r->patience_ns * 1e-9,
                   done < b->n_copies ? done + 1 : b->n_copies, b->n_copies, b->moving[i].in,
                   r->experts.set[b->moving[i].set].layer);
}

/* wait: until it is there, in slices, rather than asking whether it is. */
static enum bl_status arrive_at(struct bl_residency *r, struct bl_slot_block *b,
                                struct bl_trace *trace, bool wait)
{
    const struct bl_device_ops *ops = b->n_moving ? b->dev->ops : NULL;

    if (!ops)
        return BL_OK;
    while (!ops->poll(b->there)) {
        if (is_stalled(b, r->patience_ns))
            return give_up(r, b);
        if (!wait)
            return BL_OK;
        const enum bl_status st = ops->join(b->there, r->patience_ns / 4 + 1);
        if (st && st != BL_ETIMEDOUT)
            return st;
    }
    BL_TRY(ops->join(b->there, 0));
    for (uint32_t i = 0; i < b->n_moving; i++)
        settle(r, &b->moving[i]);
    BL_TRY(note_moves(r, b, trace));
    b->n_moving = b->n_copies = 0;
    b->moving_bytes = 0;
    return BL_OK;
}

static enum bl_status arrive(struct bl_residency *r, struct bl_trace *trace, bool wait)
{
    for (uint16_t d = 0; d < r->n_devices; d++) {
        const enum bl_status st = arrive_at(r, &r->block[d], trace, wait);
        if (st)
            return st == BL_ETIMEDOUT ? st : name_slots(st, r->device[d]);
    }
    return BL_OK;
}

/* Experts may have left their slots for others that never came, whose slots hold neither. */
static enum bl_status keep(struct bl_residency *r, enum bl_status st)
{
    if (!st)
        return BL_OK;
    r->failed = st;
    snprintf(r->why, sizeof r->why, "%s", bl_error());
    return st;
}

static enum bl_status still_good(const struct bl_residency *r)
{
    return r->failed ? bl_fail(r->failed, "%s", r->why) : BL_OK;
}

/* ---- steps ---- */

enum bl_status bl_residency_arrive(struct bl_residency *r, struct bl_trace *trace, bool wait)
{
    BL_TRY(still_good(r));
    return keep(r, arrive(r, trace, wait));
}

enum bl_status bl_residency_learn(struct bl_residency *r, const struct bl_program *p,
                                  const struct bl_mem *arena, uint32_t n_tok,
                                  struct bl_trace *trace)
{
    if (!p->route)
        return BL_OK;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        const bl_val ids = p->route[l];
        if (ids)
            bl_experts_note(&r->experts, l,
                            (const int32_t *)(const void *)((const unsigned char *)arena->host +
                                                            p->home[(size_t)ids * p->n_devices]),
                            n_tok, p->graph.vals[ids].ne[0]);
    }
    bl_experts_end_step(&r->experts, n_tok);
    BL_TRY(still_good(r));
    return keep(r, send_for_more(r, trace != NULL));
}

/* ---- the whole ---- */

static enum bl_status list_parts(struct bl_residency *r)
{
    const struct bl_model *m = r->model;
    uint32_t n = 0;

    r->part = bl_calloc((size_t)m->n_weights + 1, sizeof *r->part);
    r->first_part = bl_calloc((size_t)m->hp.n_layer + 1, sizeof *r->first_part);
    if (!r->part || !r->first_part)
        return bl_fail(BL_ENOMEM, "out of memory for the parts of experts");
    for (uint32_t l = 0; l < m->hp.n_layer; l++) {
        r->first_part[l] = n;
        for (uint32_t i = 0; i < m->n_weights; i++) {
            const struct bl_weight *w = &m->weight[i];
            if (!bl_weight_has_table(w) || w->layer != (int)l)
                continue;
            r->part[n] = (struct bl_expert_part){.weight = i, .leads = true};
            for (uint32_t k = r->first_part[l]; k < n; k++)
                if (m->weight[r->part[k].weight].tensor == w->tensor)
                    r->part[n].leads = false;
            n++;
        }
    }
    r->first_part[m->hp.n_layer] = n;
    return BL_OK;
}

/* Of layers with slots. */
static enum bl_status keep_homes(struct bl_residency *r, uint32_t layer)
{
    const uint32_t n = r->model->hp.n_expert;

    for (uint32_t i = r->first_part[layer]; i < r->first_part[layer + 1]; i++) {
        struct bl_expert_part *p = &r->part[i];
        const uint64_t *table = bl_weights_table(r->weights, r->model, 0, p->weight);
        if (p->home)
            continue;
        if (!table || !(p->home = bl_calloc(n, sizeof *p->home)))
            return bl_fail(BL_ENOMEM, "out of memory for the addresses of %u experts", n);
        memcpy(p->home, table, n * sizeof *table);
    }
    return BL_OK;
}

static enum bl_status open_block(struct bl_residency *r, uint16_t d,
                                 const struct bl_block_bytes *bytes)
{
    struct bl_slot_block *b = &r->block[d];
    struct bl_device *dev = r->device[d];
    struct bl_layout at = {.window = bytes->window};

    if (!bytes->slots)
        return BL_OK;
    b->dev = dev;
    b->off = bl_calloc((size_t)bl_gguf_n_tensors(r->model->gguf) + 1, sizeof *b->off);
    if (!b->off)
        return bl_fail(BL_ENOMEM, "out of memory for the slots of %s", dev->name);
    bl_plan_slot_offsets(r->plan, r->model, d, &at, b->off);
    BL_TRY(bl_blocks_take(&b->mem, &r->plan->ledger, d, dev, BL_MEM_SLOTS, bytes->slots,
                          bytes->window, false));
    return dev->ops->stream_open(dev, &b->stream);
}

static enum bl_status add_set(struct bl_residency *r, const struct bl_slot_set *s)
{
    for (uint32_t i = r->first_part[s->layer]; i < r->first_part[s->layer + 1]; i++)
        if (!bl_weights_table(r->weights, r->model, s->device, r->part[i].weight))
            return bl_fail(BL_EUNSUPPORTED, "%s: its tables of experts cannot be changed",
                           r->device[s->device]->name);
    BL_TRY(keep_homes(r, s->layer));
    return bl_experts_add_set(&r->experts, s->layer, s->device, s->n);
}

static void mark_those_that_stay(struct bl_residency *r)
{
    const uint32_t n = r->model->hp.n_expert;

    for (uint32_t l = 0; l < r->model->hp.n_layer; l++)
        for (uint32_t e = 0; e < n; e++)
            r->experts.stays[(size_t)l * n + e] = bl_plan_expert_device(r->plan, l, e) != 0;
}

/* Before the first step nothing is bounded but what is on its way at a time. */
static enum bl_status fill(struct bl_residency *r)
{
    const uint64_t none = r->experts.n_moves;

    for (uint64_t before = none;; before = r->experts.n_moves) {
        BL_TRY(send_for_more(r, false));
        BL_TRY(arrive(r, NULL, true));
        if (r->experts.n_moves == before)
            break;
    }
    r->experts.n_moves = r->moved_bytes = 0;
    return BL_OK;
}

static enum bl_status open_slots(struct bl_residency *r, const struct bl_block_bytes *blocks)
{
    if (!bl_plan_has_slots(r->plan))
        return BL_OK;
    for (uint16_t d = 0; d < r->n_devices; d++)
        if (r->device[d])
            BL_TRY(open_block(r, d, &blocks[d]));
    for (uint32_t i = 0; i < r->plan->n_slot_sets; i++)
        BL_TRY(add_set(r, &r->plan->slots[i]));
    return fill(r);
}

enum bl_status bl_residency_open(struct bl_residency *r, const struct bl_model *m,
                                 struct bl_plan *plan, const struct bl_block_bytes *blocks,
                                 struct bl_weights *weights, struct bl_device *const *device,
                                 uint32_t n_devices, const struct bl_expert_stats *before,
                                 uint64_t patience_ns)
{
    if (!bl_plan_notes_experts(plan))
        return BL_OK;
    r->model = m;
    r->plan = plan;
    r->weights = weights;
    r->device = device;
    r->patience_ns = patience_ns;
    r->block = bl_calloc(n_devices, sizeof *r->block);
    if (!r->block)
        return bl_fail(BL_ENOMEM, "out of memory for the slots of %u devices", n_devices);
    r->n_devices = n_devices;
    BL_TRY(bl_experts_init(&r->experts, m->hp.n_layer, m->hp.n_expert,
                           (enum bl_expert_policy)plan->expert_policy));
    BL_TRY(list_parts(r));
    if (before)
        bl_expert_stats_add(&r->experts.stats, before);
    mark_those_that_stay(r);
    BL_TRY(bl_ledger_count(&plan->ledger, 0, BL_MEM_HOST,
                           (int64_t)bl_plan_expert_notes_bytes(plan, m)));
    return open_slots(r, blocks);
}

void bl_residency_close(struct bl_residency *r)
{
    for (uint32_t d = 0; d < r->n_devices; d++) {
        struct bl_slot_block *b = &r->block[d];
        if (b->stream)
            b->dev->ops->stream_close(b->stream);
        bl_blocks_free(&b->mem);
        free(b->log.lapse);
        free(b->off);
    }
    for (uint32_t i = 0; r->part && r->model && i < r->model->n_weights; i++)
        free(r->part[i].home);
    free(r->block);
    free(r->part);
    free(r->first_part);
    bl_experts_finish(&r->experts);
    *r = (struct bl_residency){0};
}
