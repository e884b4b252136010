/* SPDX-License-Identifier: MIT */
/* search_rig.h — a model, a machine and a search of them; the score of any plan, and the best of all there are.
 *
 * Purpose   shared by the tests of the planner.
 * Ownership close_rig frees all of it.
 * Units     as search.h.
 * Errors    the test fails.
 * Threads   one.
 */
#ifndef BL_TEST_SEARCH_RIG_H
#define BL_TEST_SEARCH_RIG_H

#include "support.h"

#include "machine_file.h"
#include "search.h"
#include "timeline.h"

#include <math.h>

#ifndef BL_TEST_MACHINES
#define BL_TEST_MACHINES "configs/machines"
#endif

struct rig {
    struct bl_synth *synth;
    struct bl_model *model;
    struct bl_machine machine;
    struct bl_options opt;
    struct bl_search_options so;
    struct bl_choice c;
};

static inline void open_model(struct rig *r, const char *shape, uint32_t layers, uint64_t ctx)
{
    const struct bl_synth_options so = {.shape = shape, .layers = layers, .no_data = true};
    const struct bl_model_options mo = {.ctx_tokens = ctx, .type_k = BL_F16, .type_v = BL_F16};

    memset(r, 0, sizeof *r);
    if (bl_synth_open(&r->synth, &so) || bl_model_open(&r->model, bl_synth_gguf(r->synth), &mo))
        fail_msg("%s", bl_error());
    r->opt.ctx_tokens = ctx;
    r->so.prefill_weight = 0.3;
}

static inline void open_rig(struct rig *r, const char *shape, uint32_t layers, uint64_t ctx,
                            const char *machine)
{
    char path[512];

    open_model(r, shape, layers, ctx);
    snprintf(path, sizeof path, BL_TEST_MACHINES "/%s.json", machine);
    if (bl_machine_load(&r->machine, path))
        fail_msg("%s", bl_error());
}

static inline void close_rig(struct rig *r)
{
    bl_choice_finish(&r->c);
    bl_machine_finish(&r->machine);
    bl_model_close(r->model);
    bl_synth_close(r->synth);
}

static inline void parse_machine(struct rig *r, const char *text)
{
    if (bl_machine_parse(&r->machine, "typed", text, strlen(text)))
        fail_msg("%s", bl_error());
}

static inline double score_of(struct rig *r, struct bl_plan *p)
{
    double ns[2] = {0};
    for (unsigned phase = 0; phase < 2; phase++)
        for (uint32_t sent = 0; sent < 1 + phase; sent++) {
            const struct bl_timeline_options to = {.depth_tokens = r->so.depth_tokens,
                                                   .stream_from_tok = sent};
            const uint32_t tok = phase ? p->ubatch_tokens : 1;
            struct bl_timeline t = {0};
            assert_int_equal(bl_timeline_predict(&t, r->model, p, &r->machine, tok, &to), BL_OK);
            if (!sent || t.ns / tok < ns[phase])
                ns[phase] = t.ns / tok;
            bl_timeline_finish(&t);
        }
    return bl_plan_score(ns[0], ns[1], r->so.prefill_weight);
}

static inline bool fits(struct rig *r, struct bl_plan *p)
{
    struct bl_block_bytes blocks[BL_MAX_DEVICES];
    assert_int_equal(bl_plan_memory(p, r->model, &r->machine, blocks), BL_OK);
    for (uint16_t d = 0; d < r->machine.n_devices; d++)
        if (bl_ledger_planned(&p->ledger, d) > bl_device_budget(&r->machine.device[d], 0))
            return false;
    return true;
}

struct best { /* of all plans that fit */
    struct bl_plan plan;
    double score; /* INFINITY: none does */
};

/* Numbers for the places of all groups; layers without experts have one group. */
static inline uint32_t n_groups(const struct rig *r)
{
    uint32_t n = 0;
    for (uint32_t l = 0; l < r->model->hp.n_layer; l++)
        n += r->model->layer[l].moe ? 2 : 1;
    return n;
}

static inline void place(const struct rig *r, struct bl_plan *p, uint32_t code)
{
    const uint32_t n = r->machine.n_devices;
    for (uint32_t l = 0; l < p->n_layers; l++) {
        const uint16_t rest = (uint16_t)(code % n);
        code /= n;
        for (unsigned part = 0; part < BL_N_PARTS; part++)
            p->slot[l * BL_N_PARTS + part] = rest;
        if (!r->model->layer[l].moe)
            continue;
        p->slot[l * BL_N_PARTS + BL_PART_EXPERTS] = (uint16_t)(code % n);
        code /= n;
    }
    p->slot[p->n_layers * BL_N_PARTS + BL_PART_HEAD] =
        bl_plan_device(p, (int)p->n_layers - 1, BL_PART_ATTN);
}

/* The caller finishes the plan. */
static inline void exhaustive(struct rig *r, struct best *best)
{
    const uint32_t groups = n_groups(r);
    uint32_t all = 1, at = 0;

    *best = (struct best){.score = INFINITY};
    assert_int_equal(bl_plan_init(&best->plan, r->model), BL_OK);
    assert_int_equal(bl_plan_size_steps(&best->plan, r->model, &r->opt), BL_OK);
    if (r->c.plan.ubatch_tokens)
        best->plan.ubatch_tokens = r->c.plan.ubatch_tokens;
    best->plan.mmap = false;
    for (uint32_t g = 0; g < groups; g++)
        all *= r->machine.n_devices;
    for (uint32_t code = 0; code < all; code++) {
        place(r, &best->plan, code);
        const double score = score_of(r, &best->plan);
        if (score >= best->score || !fits(r, &best->plan))
            continue;
        best->score = score;
        at = code;
    }
    place(r, &best->plan, at);
}

#endif
