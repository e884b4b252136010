/* SPDX-License-Identifier: MIT */
#include "engine.h"

#include "log.h"
#include "mem.h"
#include "take.h"
#include "vocab.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- memory ---- */

static enum bl_status take(struct bl_engine *e, uint16_t d, enum bl_purpose purpose, uint64_t bytes,
                           struct bl_mem *out)
{
    return bl_take(&e->parts.plan.ledger, d, e->parts.device[d], purpose, bytes, d == 0, out);
}

/* One block holds both; they are told apart. */
static enum bl_status split_slack(struct bl_engine *e, uint16_t d, int64_t slack)
{
    BL_TRY(bl_ledger_count(&e->parts.plan.ledger, d, BL_MEM_STATE, -slack));
    return bl_ledger_count(&e->parts.plan.ledger, d, BL_MEM_SLACK, slack);
}

static enum bl_status take_state(struct bl_engine *e, uint16_t d)
{
    const struct bl_model *m = e->parts.model;
    const struct bl_block_bytes *b = &e->blocks[d];
    struct bl_layout at = {.window = b->window};
    uint64_t *off = bl_calloc(m->n_states + 1, sizeof *off);
    enum bl_status st;

    if (!off)
        return bl_fail(BL_ENOMEM, "out of memory for the addresses of %u states", m->n_states);
    bl_plan_state_offsets(&e->parts.plan, m, d, &at, off);
    st = bl_blocks_take(&e->state_mem[d], &e->parts.plan.ledger, d, e->parts.device[d],
                        BL_MEM_STATE, b->state, b->window, d == 0);
    if (!st && b->slack)
        st = split_slack(e, d, (int64_t)b->slack);
    for (uint32_t i = 0; !st && i < m->n_states; i++)
        if (off[i] != BL_NO_HOME) {
            e->state_off[i] = off[i];
            e->state_addr[i] = bl_blocks_addr(&e->state_mem[d], off[i]);
        }
    free(off);
    return st;
}

static enum bl_status settle_device(struct bl_engine *e, uint16_t d)
{
    struct bl_place *p = &e->place[d];
    const struct bl_block_bytes *b = &e->blocks[d];

    p->dev = e->parts.device[d];
    p->dev->stop = &e->stop;
    BL_TRY(p->dev->ops->stream_open(p->dev, &p->stream));
    BL_TRY(take(e, d, BL_MEM_COMPUTE, b->compute - b->scratch, &p->arena));
    BL_TRY(take(e, d, BL_MEM_COMPUTE, b->scratch, &p->scratch));
    BL_TRY(take(e, d, BL_MEM_PARAMS, b->params, &p->params));
    return take_state(e, d);
}

static enum bl_status take_host(struct bl_engine *e)
{
    const struct bl_plan *p = &e->parts.plan;

    BL_TRY(take(e, 0, BL_MEM_PARAMS, bl_params_bytes(p), &e->params));
    BL_TRY(take(e, 0, BL_MEM_OUTPUT, bl_output_bytes(p, e->parts.model), &e->output));
    uint64_t host = bl_gguf_heap_bytes(e->parts.gguf);
    if (e->parts.vocab)
        host += bl_vocab_heap_bytes(e->parts.vocab);
    return bl_ledger_count(&e->parts.plan.ledger, 0, BL_MEM_HOST, (int64_t)host);
}

static enum bl_status allocate(struct bl_engine *e)
{
    uint32_t n = e->parts.machine.n_devices;

    e->blocks = bl_calloc(n, sizeof *e->blocks);
    e->place = bl_calloc(n, sizeof *e->place);
    e->state_mem = bl_calloc(n, sizeof *e->state_mem);
    e->state_off = bl_calloc(e->parts.model->n_states + 1, sizeof *e->state_off);
    e->state_addr = bl_calloc(e->parts.model->n_states + 1, sizeof *e->state_addr);
    e->session = bl_calloc(e->parts.plan.max_sessions, sizeof *e->session);
    e->out_row = bl_calloc(e->parts.plan.batch_tokens, sizeof *e->out_row);
    if (!e->blocks || !e->place || !e->state_mem || !e->state_off || !e->state_addr ||
        !e->session || !e->out_row)
        return bl_fail(BL_ENOMEM, "out of memory for an engine of %u sessions",
                       e->parts.plan.max_sessions);
    return BL_OK;
}

static void free_mem(struct bl_mem *m)
{
    if (m->dev)
        m->dev->ops->mem_free(m);
}

void bl_engine_parts_finish(struct bl_engine_parts *p)
{
    for (uint32_t d = 0; p->device && d < p->machine.n_devices; d++)
        if (p->device[d])
            p->device[d]->ops->close(p->device[d]);
    free(p->device);
    bl_plan_finish(&p->plan);
    bl_expert_stats_finish(&p->experts);
    bl_machine_finish(&p->machine);
    bl_vocab_close(p->vocab);
    bl_model_close(p->model);
    bl_gguf_close(p->gguf);
    *p = (struct bl_engine_parts){0};
}

/* The host's last: streams of others may still be waiting for it. */
static void close_streams(struct bl_engine *e)
{
    for (uint32_t d = e->parts.machine.n_devices; e->place && d-- > 0;) {
        if (e->place[d].stream)
            e->place[d].dev->ops->stream_close(e->place[d].stream);
        e->place[d].stream = e->place[d].beside = NULL;
    }
    bl_stage_close_streams(&e->stage);
}

static enum bl_status open_streams(struct bl_engine *e)
{
    BL_TRY(bl_stage_open_streams(&e->stage));
    for (uint16_t d = 0; d < e->parts.machine.n_devices; d++) {
        struct bl_place *p = &e->place[d];
        bl_stage_settle(&e->stage, d, p);
        if (p->dev)
            BL_TRY(p->dev->ops->stream_open(p->dev, &p->stream));
    }
    return BL_OK;
}

enum bl_status bl_engine_whole(const struct bl_engine *e)
{
    return e->broken ? bl_fail(BL_EDEVICE,
                               "a device stood still in a step or after one; open the model anew")
                     : BL_OK;
}

/* The line of what stopped the step stays. */
void bl_engine_renew(struct bl_engine *e)
{
    char why[512];

    snprintf(why, sizeof why, "%s", bl_error());
    close_streams(e);
    if (e->sched.trace)
        e->sched.trace->lent = false;
    e->broken = open_streams(e) != BL_OK;
    (void)bl_fail(BL_ECANCELLED, "%s", why);
}

static void free_blocks(struct bl_engine *e)
{
    for (uint32_t d = 0; e->place && d < e->parts.machine.n_devices; d++) {
        free_mem(&e->place[d].arena);
        free_mem(&e->place[d].scratch);
        free_mem(&e->place[d].params);
    }
    for (uint32_t d = 0; e->state_mem && d < e->parts.machine.n_devices; d++)
        bl_blocks_free(&e->state_mem[d]);
}

/* All but the parts. Streams first: one that timed out may still be running a program. */
static void give_back(struct bl_engine *e)
{
    close_streams(e);
    for (uint32_t d = 0; e->place && d < e->parts.machine.n_devices; d++)
        if (e->place[d].dev)
            e->place[d].dev->stop = NULL;
    for (uint32_t i = 0; i < BL_PROGRAM_CAP; i++)
        if (e->kept[i].program) {
            bl_program_finish(e->kept[i].program);
            free(e->kept[i].program);
        }
    bl_sched_finish(&e->sched);
    free_mem(&e->params);
    free_mem(&e->output);
    free_blocks(e);
    bl_stage_close(&e->stage);
    bl_residency_close(&e->residency);
    bl_weights_finish(&e->weights);
    free(e->blocks);
    free(e->place);
    free(e->state_mem);
    free(e->state_off);
    free(e->state_addr);
    free(e->session);
    free(e->out_row);
}

void bl_close(struct bl_engine *e)
{
    if (!e)
        return;
    give_back(e);
    bl_engine_parts_finish(&e->parts);
    free(e);
}

static void say(void *arg, const char *text)
{
    (void)arg;
    bl_info("plan: %s", text);
}

/* A block of the host that is not in use yet, the largest. */
static const struct bl_mem *room_for_loading(const struct bl_engine *e)
{
    const struct bl_mem *arena = &e->place[0].arena;
    return arena->host && arena->bytes > e->output.bytes ? arena : &e->output;
}

enum bl_status bl_engine_create(struct bl_engine **out, struct bl_engine_parts *parts,
                                const struct bl_options *opt)
{
    struct bl_engine *e = bl_calloc(1, sizeof *e);
    enum bl_status st;

    if (!e) {
        bl_engine_parts_finish(parts);
        return bl_fail(BL_ENOMEM, "out of memory for an engine");
    }
    e->parts = *parts;
    const uint64_t usual_s = e->parts.machine.n_devices > 1 ? 120 : 3600;
    e->stop = (struct bl_stop){opt->stop, opt->stop_arg};
    e->patience_ns = (opt->watchdog_s ? opt->watchdog_s : usual_s) * 1000000000u;
    *parts = (struct bl_engine_parts){0};
    bl_plan_print(&e->parts.plan, e->parts.model, &e->parts.machine, say, NULL);
    st = allocate(e);
    if (!st)
        st = bl_plan_memory(&e->parts.plan, e->parts.model, &e->parts.machine, e->blocks);
    if (!st)
        st = bl_plan_check_blocks(&e->parts.plan, &e->parts.machine);
    for (uint16_t d = 0; !st && d < e->parts.machine.n_devices; d++)
        if (e->parts.device[d])
            st = settle_device(e, d);
    if (!st)
        st = take_host(e);
    if (!st)
        st = bl_weights_load(&e->weights, e->parts.model, &e->parts.plan, e->blocks,
                             e->parts.device, e->parts.machine.n_devices, room_for_loading(e), opt);
    if (!st)
        st = bl_residency_open(&e->residency, e->parts.model, &e->parts.plan, e->blocks,
                               &e->weights, e->parts.device, e->parts.machine.n_devices,
                               e->parts.experts.uses ? &e->parts.experts : NULL, e->patience_ns);
    if (!st)
        st =
            bl_stage_open(&e->stage, e->parts.model, &e->parts.plan, &e->parts.machine, &e->weights,
                          e->parts.device, e->parts.experts.uses ? &e->parts.experts : NULL);
    for (uint16_t d = 0; !st && d < e->parts.machine.n_devices; d++)
        bl_stage_settle(&e->stage, d, &e->place[d]);
    if (!st) {
        *out = e;
        return BL_OK;
    }
    if (st != BL_ENOMEM || !e->parts.plan.ledger.shortage.asked_bytes) {
        bl_close(e);
        return st;
    }
    give_back(e);
    *parts = e->parts;
    free(e);
    return st;
}

/* ---- programs ---- */

static enum bl_status make_program(struct bl_engine *e, const struct bl_shape *shape,
                                   struct bl_program **out)
{
    struct bl_binding b = {e->place, e->weights.addr, e->state_addr, e->parts.model->n_weights,
                           e->stage.table};
    struct bl_program *p = bl_calloc(1, sizeof *p);
    enum bl_status st;

    if (!p)
        return bl_fail(BL_ENOMEM, "out of memory for a program");
    st = bl_program_lower(p, e->parts.model, &e->parts.plan, &e->parts.machine, shape);
#ifndef NDEBUG
    if (!st)
        st = bl_program_verify(p);
#endif
    if (!st)
        st = bl_program_bind(p, &b);
    if (st) {
        bl_program_finish(p);
        free(p);
        return st;
    }
    *out = p;
    return BL_OK;
}

static bool same_shape(const struct bl_shape *a, const struct bl_shape *b)
{
    return a->n_tok == b->n_tok && a->n_out == b->n_out;
}

enum bl_status bl_engine_program(struct bl_engine *e, const struct bl_shape *shape,
                                 const struct bl_program **out)
{
    struct bl_kept_program *slot = &e->kept[0];

    for (uint32_t i = 0; i < BL_PROGRAM_CAP; i++) {
        struct bl_kept_program *k = &e->kept[i];
        if (k->program && same_shape(&k->program->shape, shape)) {
            k->last_used = ++e->n_steps;
            *out = k->program;
            return BL_OK;
        }
        if (k->last_used < slot->last_used)
            slot = k;
    }
    struct bl_program *made = NULL;
    BL_TRY(make_program(e, shape, &made));
    int64_t bytes = (int64_t)bl_program_heap_bytes(made);
    if (slot->program) {
        bytes -= (int64_t)bl_program_heap_bytes(slot->program);
        bl_program_finish(slot->program);
        free(slot->program);
    }
    *slot = (struct bl_kept_program){made, ++e->n_steps};
    *out = made;
    return bl_ledger_count(&e->parts.plan.ledger, 0, BL_MEM_HOST, bytes);
}

/* ---- what the outside asks ---- */

const struct bl_gguf *bl_engine_gguf(const struct bl_engine *e)
{
    return e->parts.gguf;
}

const struct bl_vocab *bl_engine_vocab(const struct bl_engine *e)
{
    return e->parts.vocab;
}

uint32_t bl_engine_n_vocab(const struct bl_engine *e)
{
    return e->parts.model->hp.n_vocab;
}

uint64_t bl_engine_ctx(const struct bl_engine *e)
{
    return e->parts.plan.ctx_tokens;
}

uint64_t bl_engine_trained_ctx(const struct bl_engine *e)
{
    return e->parts.model->hp.n_ctx_train;
}

void bl_engine_types(const struct bl_engine *e, const char **type_k, const char **type_v)
{
    *type_k = bl_dtypes[e->parts.model->opt.type_k].name;
    *type_v = bl_dtypes[e->parts.model->opt.type_v].name;
}

uint32_t bl_engine_memory(const struct bl_engine *e, uint32_t i, struct bl_memory_line *out)
{
    const struct bl_ledger *l = &e->parts.plan.ledger;

    if (i < l->n)
        *out = (struct bl_memory_line){
            .device = e->parts.machine.device[l->line[i].device].id,
            .purpose = bl_purpose_name(l->line[i].purpose),
            .planned_bytes = l->line[i].planned_bytes,
            .measured_bytes = l->line[i].measured_bytes,
        };
    return l->n;
}
