/* SPDX-License-Identifier: MIT */
/* slots_rig.h — what must hold of engines whose experts come to slots and go, on devices of any kind.
 *
 *     slotted_open (slots.h); each_is_computed_once, slots_hold_what_they_say; same_as
 *
 * Purpose   each expert is computed by exactly one device, slots hold what they say, logits are those of one device.
 * Ownership none.
 * Units     none.
 * Errors    the test fails.
 * Threads   one.
 */
#ifndef BL_TEST_SLOTS_RIG_H
#define BL_TEST_SLOTS_RIG_H

#include "engine_rig.h"

#include "slots.h"

static const char *const models[] = {"mixtral-f32",  "gpt-oss-mxfp4",    "deepseek4-f32",
                                     "qwen3moe-iq3", "ernie4_5-moe-f32", "qwen3next-f32"};

static inline const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, MODELS "%s.gguf", name);
    return path;
}

/* Whether a device computes an expert: with all its weights or with none. */
static inline bool has(const struct bl_engine *e, uint16_t d, uint32_t layer, uint32_t expert)
{
    const struct bl_model *m = e->parts.model;
    uint32_t with = 0, without = 0;

    for (uint32_t i = 0; i < m->n_weights; i++) {
        if (m->weight[i].part != BL_PART_EXPERTS || m->weight[i].layer != (int)layer)
            continue;
        const uint64_t *table = bl_weights_table(&e->weights, m, d, i);
        if (table && table[expert])
            with++;
        else
            without++;
    }
    assert_true(!with || !without);
    return with > 0;
}

static inline void each_is_computed_once(const struct bl_engine *e)
{
    const struct bl_model *m = e->parts.model;

    for (uint32_t l = 0; l < m->hp.n_layer; l++)
        for (uint32_t x = 0; m->layer[l].moe && x < m->hp.n_expert; x++) {
            uint32_t n = 0;
            for (uint16_t d = 0; d < e->parts.machine.n_devices; d++)
                n += has(e, d, l, x);
            assert_int_equal(n, 1);
        }
}

/* A device's slots, one block behind the other, as its own stream reads them; the caller frees them. */
static inline struct bl_mem slots_read(const struct bl_engine *e, uint16_t d)
{
    const struct bl_blocks *b = &e->residency.block[d].mem;
    const struct bl_device_ops *ops = e->parts.device[d]->ops;
    struct bl_stream *s = NULL;
    struct bl_point end;
    struct bl_mem m;

    uint64_t sum = 0;
    for (uint32_t i = 0; i < b->n; i++)
        sum += b->mem[i].bytes;
    bool bad = e->parts.device[0]->ops->mem_alloc(e->parts.device[0], sum, true, &m) ||
               ops->stream_open(e->parts.device[d], &s);
    for (uint32_t i = 0; !bad && i < b->n; i++)
        bad = ops->copy(s, &m, i * b->window, &b->mem[i], 0, b->mem[i].bytes);
    if (bad || ops->signal(s, &end) || ops->join(end, UINT64_MAX))
        fail_msg("%s: %s", e->parts.device[d]->name, bl_error());
    ops->stream_close(s);
    return m;
}

/* Where what lies at an address of the slots is among what was read. */
static inline uint64_t slot_read_at(const struct bl_blocks *b, uint64_t addr)
{
    for (uint32_t i = 0; i < b->n; i++)
        if (addr >= b->mem[i].addr && addr < b->mem[i].addr + b->mem[i].bytes)
            return i * b->window + (addr - b->mem[i].addr);
    fail_msg("an address is in none of the blocks of slots");
    return 0;
}

static inline void set_holds_what_it_says(const struct bl_residency *r, const struct bl_expert_set *set,
                                          const struct bl_mem *slots)
{
    const struct bl_blocks *b = &r->block[set->device].mem;

    for (uint32_t i = r->first_part[set->layer]; i < r->first_part[set->layer + 1]; i++) {
        const struct bl_weight *w = &r->model->weight[r->part[i].weight];
        const uint64_t *table = bl_weights_table(r->weights, r->model, set->device, r->part[i].weight);
        /* of halves of a tensor the rows of one */
        const uint64_t bytes =
            w->tensor_rows ? w->ne[1] * bl_dtype_row_bytes(w->type, w->ne[0]) : bl_weight_expert_stride(w);
        for (uint32_t k = 0; k < set->n; k++)
            if (!set->coming[k] && set->expert[k] != BL_NO_EXPERT)
                assert_memory_equal((char *)slots->host + slot_read_at(b, table[set->expert[k]]),
                                    (void *)(uintptr_t)r->part[i].home[set->expert[k]], bytes);
    }
}

/* In slots lies what the file has. */
static inline void slots_hold_what_they_say(const struct bl_engine *e)
{
    const struct bl_residency *r = &e->residency;

    for (uint16_t d = 0; r->block && d < r->n_devices; d++) {
        if (!r->block[d].mem.n)
            continue;
        struct bl_mem slots = slots_read(e, d);
        for (uint32_t s = 0; s < r->experts.n_sets; s++)
            if (r->experts.set[s].device == d)
                set_holds_what_it_says(r, &r->experts.set[s], &slots);
        slots.dev->ops->mem_free(&slots);
    }
}

static inline uint64_t bytes_for_slots(const struct bl_engine *e)
{
    struct bl_memory_line line;
    uint64_t sum = 0;

    for (uint32_t k = 0; k < bl_engine_memory(e, k, &line); k++)
        sum += strcmp(line.purpose, "slots") ? 0 : line.planned_bytes;
    return sum;
}

static inline void wait_for_all(struct bl_engine *e)
{
    if (bl_residency_arrive(&e->residency, NULL, true))
        fail_msg("%s", bl_error());
}

/* Tokens one by one and several at a time; by the seed, steps begin before or after experts came. */
static inline void same_as(struct bl_engine *one, struct bl_engine *e, const char *name, uint64_t *seed)
{
    struct bl_session *want, *got;
    const uint64_t from = *seed;

    assert_int_equal(bl_session_create(&want, one), BL_OK);
    assert_int_equal(bl_session_create(&got, e), BL_OK);
    for (uint32_t round = 0; round < 4; round++)
        for (uint32_t i = 0, n; i < N_PROMPT; i += n) {
            n = divide_pick(seed, 3) ? 1 : 1 + divide_pick(seed, N_PROMPT - i);
            if (feed(one, want, &prompt[i], n) || feed(e, got, &prompt[i], n))
                fail_msg("%s, seed %llu, token %u: %s", name, (unsigned long long)from,
                         round * N_PROMPT + i, bl_error());
            const double err =
                nmse(bl_logits(e, n - 1), bl_logits(one, n - 1), bl_engine_n_vocab(e));
            if (!(err < 1e-9))
                fail_msg("%s, seed %llu, token %u: NMSE %.2e", name, (unsigned long long)from,
                         round * N_PROMPT + i, err);
            if (divide_pick(seed, 2))
                wait_for_all(e);
            each_is_computed_once(e);
        }
    wait_for_all(e);
    slots_hold_what_they_say(e);
    bl_session_destroy(want);
    bl_session_destroy(got);
}

#endif
