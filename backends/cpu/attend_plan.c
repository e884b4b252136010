/* SPDX-License-Identifier: MIT */
/* Attention by tiles: what a thread needs, and how a batch is cut into units. */
#include "attend_block.h"

enum {
    MOST_ROWS = 512,      /* queries of a unit: they pay for decoding keys and values */
    QUERY_BYTES = 640000, /* of queries and sums: they stay in a second-level cache of 1 MiB */
    UNITS = 4,            /* for each thread at least, so that their ends do not show */
    TAKES = 16,           /* the same, of units taken together */
    MOST_TOGETHER = 8
};

/* ---- a thread's tools ---- */

/* Sizes of the pieces, in the order of struct bl_attend_work. */
struct layout {
    uint64_t off, q, acc, panel, values, score, unit, key_unit, tile, span, ahead;
};

static struct layout layout_of(const struct bl_attention_attr *at, uint32_t rows)
{
    const uint64_t width = bl_tile_padded(at->dv);
    return (struct layout){
        .off = 4 * BL_TILE_KEYS * sizeof(uint64_t),
        .q = bl_cpu_round((uint64_t)rows * at->dk * sizeof(float)),
        .acc = bl_cpu_round(rows * width * sizeof(float)),
        .panel = bl_cpu_round((uint64_t)at->dk * BL_TILE_KEYS * sizeof(float)),
        .values = BL_TILE_KEYS * width * sizeof(float),
        .score = BL_ATTEND_TILES * BL_TILE_ROWS * BL_TILE_KEYS * sizeof(float),
        .unit = bl_cpu_round(rows * sizeof(float)),
        .key_unit = BL_TILE_KEYS * sizeof(float),
        .tile = bl_cpu_round(rows / BL_TILE_ROWS * sizeof(struct bl_tile)),
        .span = bl_cpu_round(rows * sizeof(struct bl_attend_span)),
        .ahead = bl_cpu_round((at->dk > 2 * width ? at->dk : 2 * width) * sizeof(void *)),
    };
}

uint32_t bl_cpu_tile_rows(const struct bl_attention_attr *at, uint32_t n_tok)
{
    const uint64_t bytes = ((uint64_t)at->dk + bl_tile_padded(at->dv)) * sizeof(float);
    const uint64_t all = (uint64_t)n_tok * (at->n_head / at->n_head_kv);
    uint64_t rows = QUERY_BYTES / bytes < MOST_ROWS ? QUERY_BYTES / bytes : MOST_ROWS;
    rows = rows < all ? rows : all;
    return (uint32_t)bl_align_up(rows ? rows : 1, BL_TILE_ROWS);
}

uint64_t bl_cpu_tile_work_bytes(const struct bl_attention_attr *at, uint32_t rows)
{
    const struct layout l = layout_of(at, rows);
    return l.off + l.q + l.acc + l.panel + l.values + l.score + l.unit + l.key_unit + l.tile +
           l.span + l.ahead;
}

struct bl_attend_work bl_attend_work_of(const struct bl_cpu_attention_args *a, uint32_t ith)
{
    const struct layout l = layout_of(&a->at, a->tile_rows);
    uint8_t *p = a->work + ith * a->work_bytes;
    struct bl_attend_work w = {0};
    for (unsigned i = 0; i < 2; i++) {
        w.keys[i].k_off = (uint64_t *)p + 2 * i * BL_TILE_KEYS;
        w.keys[i].v_off = w.keys[i].k_off + BL_TILE_KEYS;
    }
    w.q = (float *)(p += l.off);
    w.acc = (float *)(p += l.q);
    w.panel = (float *)(p += l.acc);
    w.values = (float *)(p += l.panel);
    w.score = (float *)(p += l.values);
    w.unit = (float *)(p += l.score);
    w.key_unit = (float *)(p += l.unit);
    w.tile = (struct bl_tile *)(p += l.key_unit);
    w.span = (struct bl_attend_span *)(p += l.tile);
    w.ahead = (const void **)(p + l.span);
    w.pair_q = (int16_t *)w.q;
    w.pair_panel = (int16_t *)w.panel;
    w.pair_values = (uint16_t *)w.values;
    return w;
}

/* ---- units ---- */

/* Of few tokens those of a unit are cut at the same places. */
static bool goes_together(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                          bool few, uint32_t t)
{
    const uint32_t *seq = BL_PARAMS_ARRAY(const uint32_t, p, p->seq_off);
    return seq[t - 1] == seq[t] &&
           (!few || bl_attend_view_of(a, p, t - 1).split == bl_attend_view_of(a, p, t).split);
}

static uint32_t start_of_run(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                             const struct bl_attend_plan *plan, uint32_t end)
{
    uint32_t t = end - 1;
    while (t > 0 && end - t < plan->tokens && goes_together(a, p, plan->few, t))
        t--;
    return t;
}

/* false before the first token */
static bool next_block(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                       struct bl_attend_walk *w)
{
    w->before += w->units;
    w->units = 0;
    if (!w->t0)
        return false;
    w->n_blocks++;
    w->t1 = w->t0;
    w->t0 = start_of_run(a, p, &w->plan, w->t1);
    w->all = bl_attend_view_of_all(a, p, w->t0, w->t1);
    w->parts = w->plan.few ? bl_attend_n_parts(w->all) : 1;
    w->units = (uint64_t)w->parts * a->at.n_head_kv * w->plan.subsets;
    return true;
}

/* false: there are fewer units. Indices must not go down. */
static bool locate(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                   struct bl_attend_walk *w, uint32_t index, struct bl_attend_unit *u)
{
    while (index - w->before >= w->units)
        if (!next_block(a, p, w))
            return false;
    const uint32_t i = (uint32_t)(index - w->before), subset = i % w->plan.subsets;
    const uint32_t first = subset * w->plan.heads, left = a->group - first;
    *u = (struct bl_attend_unit){.t0 = w->t0, .t1 = w->t1, .all = w->all};
    u->kv = i / w->plan.subsets % a->at.n_head_kv;
    u->part = i / w->plan.subsets / a->at.n_head_kv;
    u->key = (w->n_blocks - 1) * a->at.n_head_kv + u->kv;
    u->n_same = w->parts * w->plan.subsets;
    u->head = u->kv * a->group + first;
    u->n_heads = left < w->plan.heads ? left : w->plan.heads;
    return true;
}

static void take_heads(const struct bl_cpu_attention_args *a, struct bl_attend_plan *plan,
                       uint32_t most)
{
    const uint32_t n = (a->group + most - 1) / most, even = (a->group + n - 1) / n;
    plan->heads = n > 1 ? (uint32_t)bl_align_up(even, BL_TILE_ROWS) : a->group;
    plan->subsets = (a->group + plan->heads - 1) / plan->heads;
}

static uint64_t count_units(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                            const struct bl_attend_plan *plan)
{
    struct bl_attend_walk w = {.plan = *plan, .t0 = p->n_tok};
    while (next_block(a, p, &w))
        ;
    return w.before;
}

/* Units of one part lie side by side in the cache: one thread takes some, or what hardware brings
 * near beyond the rows of a head would be another thread's. */
static void take_together(struct bl_attend_plan *plan, uint64_t n_units, uint32_t nth)
{
    plan->together = 1;
    while (plan->few && plan->together < MOST_TOGETHER &&
           n_units >= (uint64_t)2 * plan->together * TAKES * nth)
        plan->together *= 2;
}

/* Large units decode keys for many queries; small ones keep all threads at work. */
static struct bl_attend_plan plan_of(const struct bl_cpu_attention_args *a,
                                     const struct bl_cpu_job *job, bool few)
{
    struct bl_attend_plan plan = {.few = few};
    uint64_t n;
    take_heads(a, &plan, a->tile_rows);
    plan.tokens = a->chosen ? 1 : a->tile_rows / plan.heads;
    while ((n = count_units(a, job->params, &plan)) < (uint64_t)UNITS * job->nth)
        if (plan.tokens > 1)
            plan.tokens = (plan.tokens + 1) / 2;
        else if (plan.heads > BL_TILE_ROWS)
            take_heads(a, &plan, plan.heads / 2);
        else
            break;
    take_together(&plan, n, job->nth);
    return plan;
}

struct bl_attend_walk bl_attend_walk_of(const struct bl_cpu_attention_args *a,
                                        const struct bl_cpu_job *job, bool few)
{
    return (struct bl_attend_walk){.plan = plan_of(a, job, few), .t0 = job->params->n_tok};
}

bool bl_attend_next_unit(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                         struct bl_attend_walk *w, struct bl_attend_unit *u)
{
    const uint32_t together = w->plan.together;
    if (!w->left) {
        if (!bl_cpu_claim(a->counter, UINT32_MAX / together, &w->next))
            return false;
        w->next *= together;
        w->left = together;
    }
    w->left--;
    return locate(a, p, w, w->next++, u);
}
