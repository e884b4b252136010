/* SPDX-License-Identifier: MIT */
/* What reads and writes the state of sequences. */
#include "ops_rig.h"

static const enum bl_dtype kv_types[] = {BL_F16, BL_F32, BL_BF16, BL_Q8_0, BL_Q4_0};

static bool whole(enum bl_dtype t, uint32_t elems)
{
    return elems % bl_dtypes[t].block_elems == 0;
}

/* ---- KV_STORE ---- */

struct store_case {
    uint32_t elems, rows, group, n_tok, n_seq;
    uint32_t from[3];
};

/* Subnormal halves, halves between two neighbours, blocks of nothing. */
static void hard_to_store(struct rig *r, bl_val v)
{
    float *x = r->data[v];
    const uint32_t n = r->g.vals[v].ne[0], rows = r->g.vals[v].ne[1];
    for (uint32_t t = 0; t < rows; t++)
        for (uint32_t i = 0; i < n; i++) {
            float *e = &x[t * n + i];
            if (t % 4 == 1)
                *e = ldexpf(*e, (int)rig_pick(r, 40) - 28);
            else if (t % 4 == 2)
                *e = floorf(*e * 4096) / 4096;
            else if (t % 8 == 7)
                *e = ldexpf(floorf(*e * 64), -25);
            else if (t % 8 == 3)
                *e = i / 32 % 2 ? -0.0f : *e;
        }
}

static void store(enum bl_dtype t, const struct store_case *c)
{
    struct rig r;
    ops_open(&r);
    const bl_val x = ops_input(&r, c->elems, c->n_tok + 1),
                 s = ops_state(&r, t, c->elems, c->rows, c->n_seq + 1);
    bl_graph_kv_store_groups(&r.g, x, s, c->group);
    ops_deal(&r, c->n_tok, c->n_seq, c->from);
    ops_fill(&r);
    hard_to_store(&r, x);
    ops_check(&r, "store of %u as %s, %u rows, groups of %u, %u tokens of %u sequences", c->elems,
              ops_name(t), c->rows, c->group, c->n_tok, c->n_seq);
}

void ops_kv_store(void **state)
{
    static const struct store_case cases[] = {
        {32, 9, 1, 1, 1, {8}},       {96, 64, 1, 40, 2, {0, 17}},
        {1024, 40, 1, 33, 1, {70}},  {128, 20, 4, 50, 3, {0, 3, 40}},
        {64, 3, 128, 130, 1, {100}}, {576, 300, 1, 7, 3, {299, 300, 100000}},
        {1, 5, 1, 5, 1, {3}},        {33, 90, 3, 60, 2, {1, 2}},
        {1100, 12, 1, 10, 1, {0}},
    };
    (void)state;
    for (uint32_t t = 0; t < OPS_N(kv_types); t++)
        for (uint32_t c = 0; c < OPS_N(cases); c++)
            if (whole(kv_types[t], cases[c].elems))
                store(kv_types[t], &cases[c]);
}

/* ---- ATTENTION ---- */

struct attention_case {
    enum bl_dtype k, v;
    uint32_t heads, heads_kv, dk, dv, rows, window, n_tok, n_seq;
    uint32_t from[4];
    bool sinks, one_state, stores; /* stores: the step's own rows are written first */
    float reach;                   /* queries are so large and their scale so small; 0: 1 */
};

/* Halves and the order of sums: much nearer than what bytes in place of floats cost. */
static const double attention_bound = 2e-6;

static void magnify(struct rig *r, bl_val v, float by)
{
    for (uint32_t i = 0; i < r->g.vals[v].ne[0] * r->g.vals[v].ne[1]; i++)
        ((float *)r->data[v])[i] *= by;
}

static void attention(const struct attention_case *c)
{
    struct rig r;
    const float reach = c->reach != 0 ? c->reach : 1;
    const struct bl_attention_attr at = {c->heads, c->heads_kv, c->dk,
                                         c->dv,    c->window,   2 / sqrtf((float)c->dk) / reach};
    const uint32_t n_k = c->heads_kv * c->dk, n_v = c->heads_kv * c->dv;
    ops_open(&r);
    ops.within = fmin(ops.bound, attention_bound);
    const bl_val q = ops_input(&r, c->heads * c->dk, c->n_tok + 1);
    const bl_val new_k = ops_input(&r, n_k, c->n_tok + 1), new_v = ops_input(&r, n_v, c->n_tok + 1);
    bl_val k = ops_state(&r, c->k, n_k, c->rows, c->n_seq), v = k;
    if (!c->one_state)
        v = ops_state(&r, c->v, n_v, c->rows, c->n_seq);
    if (c->stores) {
        k = bl_graph_kv_store(&r.g, new_k, k);
        v = c->one_state ? k : bl_graph_kv_store(&r.g, new_v, v);
    }
    const bl_val sinks = c->sinks ? ops_weight(&r, BL_F32, c->heads, 1, 1) : 0;
    bl_graph_attention(&r.g, q, k, v, sinks, &at);
    ops_deal(&r, c->n_tok, c->n_seq, c->from);
    ops_fill(&r);
    magnify(&r, q, reach);
    ops_check(&r,
              "attention of %u/%u heads of %u/%u in %s/%s, %u rows, window %u, %u tokens of %u "
              "sequences from %u%s%s",
              c->heads, c->heads_kv, c->dk, c->dv, ops_name(c->k), ops_name(c->v), c->rows,
              c->window, c->n_tok, c->n_seq, c->from[0], c->sinks ? ", sinks" : "",
              c->one_state ? ", one state" : "");
}

void ops_attention(void **state)
{
    static const struct attention_case cases[] = {
        {.heads = 4, .heads_kv = 4, .dk = 64, .dv = 64, .rows = 100, .n_tok = 1, .n_seq = 1},
        {.heads = 8,
         .heads_kv = 2,
         .dk = 128,
         .dv = 96,
         .rows = 150,
         .n_tok = 70,
         .n_seq = 2,
         .from = {0, 60},
         .stores = true},
        {.heads = 6,
         .heads_kv = 1,
         .dk = 96,
         .dv = 32,
         .rows = 64,
         .window = 20,
         .n_tok = 33,
         .n_seq = 3,
         .from = {0, 19, 1000},
         .sinks = true,
         .stores = true},
        {.heads = 5,
         .heads_kv = 5,
         .dk = 32,
         .dv = 160,
         .rows = 300,
         .n_tok = 3,
         .n_seq = 4,
         .from = {0, 127, 128, 290},
         .sinks = true},
    };
    (void)state;
    for (uint32_t k = 0; k < OPS_N(kv_types); k++)
        for (uint32_t v = 0; v < OPS_N(kv_types); v++)
            for (uint32_t i = 0; i < OPS_N(cases); i++) {
                struct attention_case c = cases[i];
                c.k = kv_types[k];
                c.v = kv_types[v];
                if (ops.all || k == v || (k + v + i) % 3 == 0)
                    attention(&c);
            }
    for (uint32_t k = 0; k < OPS_N(kv_types); k++)
        for (uint32_t n_tok = 1; n_tok < 20; n_tok += 11)
            attention(&(struct attention_case){.k = kv_types[k],
                                               .v = kv_types[k],
                                               .heads = 16,
                                               .heads_kv = 1,
                                               .dk = 576,
                                               .dv = 512,
                                               .rows = 200,
                                               .n_tok = n_tok,
                                               .n_seq = 2,
                                               .from = {5, 180},
                                               .sinks = n_tok > 1,
                                               .one_state = true,
                                               .stores = true});
    attention(&(struct attention_case){.k = BL_F32,
                                       .v = BL_F16,
                                       .heads = 3,
                                       .heads_kv = 3,
                                       .dk = 7,
                                       .dv = 33,
                                       .rows = 40,
                                       .n_tok = 30,
                                       .n_seq = 1});
    attention(&(struct attention_case){.k = BL_BF16,
                                       .v = BL_F32,
                                       .heads = 2,
                                       .heads_kv = 1,
                                       .dk = 1,
                                       .dv = 1024,
                                       .rows = 9,
                                       .n_tok = 9,
                                       .n_seq = 1});
}

/* Few tokens of long contexts, which are divided, and more than drivers on the CPU do at a time. */
void ops_attention_long(void **state)
{
    static const struct attention_case cases[] = {
        {BL_F16, BL_F16, 4, 2, 64, 64, 513, 0, 1, 1, {512}, false, false, true, 0},
        {BL_F16, BL_Q8_0, 4, 2, 64, 64, 600, 0, 8, 4, {0, 255, 511, 590}, true, false, true, 0},
        {BL_Q8_0, BL_Q4_0, 8, 1, 128, 128, 2100, 0, 4, 3, {1, 1200, 2090}, true, false, false, 0},
        {BL_F32, BL_F32, 16, 1, 576, 512, 1030, 0, 5, 2, {300, 1020}, false, true, true, 0},
        {BL_F16, BL_F16, 2, 1, 32, 32, 9000, 0, 3, 2, {8000, 20}, true, false, false, 0},
        {BL_F16, BL_F16, 4, 4, 64, 64, 700, 600, 6, 3, {0, 650, 100000}, true, false, true, 0},
        {BL_F16, BL_F16, 2, 2, 64, 64, 2000, 0, 64, 2, {1900, 700}, true, false, true, 0},
        {BL_F16, BL_F16, 4, 2, 64, 64, 700, 0, 9, 1, {690}, true, false, true, 0},
        {BL_F16, BL_F16, 1, 1, 32, 32, 17400, 0, 9, 1, {17380}, true, false, true, 0},
        {BL_F16, BL_F16, 1, 1, 576, 512, 5800, 0, 9, 1, {5700}, false, true, true, 0},
        {BL_F16, BL_F16, 1, 1, 32, 32, 40000, 0, 9, 1, {39000}, true, false, true, 0},
        {BL_F16, BL_F16, 1, 1, 576, 512, 7000, 0, 9, 1, {6900}, false, true, true, 0},
        {BL_F16, BL_F16, 3, 1, 32, 32, 20000, 0, 12, 3, {19000, 5, 700}, true, false, true, 0},
    };
    (void)state;
    for (uint32_t i = 0; i < OPS_N(cases); i++)
        attention(&cases[i]);
}

/* Blocks of many rows: heads that fill them, heads and tokens that do not, ends of rows and of
 * lists within them. */
void ops_attention_many(void **state)
{
    static const struct attention_case cases[] = {
        {BL_F16, BL_F16, 16, 2, 64, 64, 200, 0, 70, 1, {120}, false, false, true, 0},
        {BL_F16, BL_F16, 8, 1, 128, 128, 300, 0, 70, 2, {190, 0}, true, false, true, 0x1p40f},
        {BL_F16, BL_F16, 4, 4, 80, 80, 129, 0, 66, 1, {63}, false, false, true, 0x1p-40f},
        {BL_Q8_0, BL_Q8_0, 6, 3, 192, 128, 150, 0, 20, 1, {129}, false, false, true, 0},
        {BL_F16, BL_F16, 6, 3, 192, 128, 150, 33, 40, 1, {60}, true, false, true, 0},
        {BL_F16, BL_F16, 8, 2, 256, 256, 110, 70, 34, 3, {0, 63, 1000}, true, false, true, 0},
        {BL_Q4_0, BL_Q8_0, 8, 1, 256, 256, 200, 0, 30, 2, {64, 127}, false, false, true, 0},
        {BL_F16, BL_F16, 20, 1, 576, 512, 140, 0, 12, 2, {60, 100}, true, true, true, 0},
        {BL_F16, BL_F16, 70, 1, 32, 48, 90, 0, 17, 2, {0, 66}, true, false, true, 0},
        {BL_F16, BL_F16, 3, 3, 33, 20, 100, 5, 60, 2, {0, 30}, true, false, true, 0},
        {BL_F16, BL_F16, 2, 2, 7, 1, 80, 0, 70, 1, {0}, false, false, true, 0},
        {BL_F16, BL_F16, 9, 3, 100, 130, 300, 0, 9, 1, {255}, false, false, true, 0},
    };
    (void)state;
    for (uint32_t i = 0; i < OPS_N(cases); i++)
        attention(&cases[i]);
}

/* ---- ATTENTION_GROUPS ---- */

struct groups_case {
    enum bl_dtype type;
    uint32_t heads, heads_kv, dk, dv, window, rows, group, group_rows, n_chosen, n_tok, n_seq;
    uint32_t from[3];
    bool sinks;
};

/* Rows in ascending order out of those complete; all where there are not more. */
static void fill_chosen(struct rig *r, bl_val v, uint32_t group)
{
    const uint32_t n = r->g.vals[v].ne[0];
    for (uint32_t t = 0; t < r->step.n_tok; t++) {
        int32_t *at = (int32_t *)r->data[v] + t * n;
        const uint32_t whole_groups = (r->step.pos[t] + 1) / group;
        for (uint32_t i = 0, left = n, row = 0; row < whole_groups && left > 0; row++)
            if (rig_pick(r, whole_groups - row) < left) {
                at[i++] = (int32_t)row;
                left--;
            }
        for (uint32_t i = whole_groups; i < n; i++)
            at[i] = 0;
    }
}

static bl_val chosen_input(struct rig *r, uint32_t n, uint32_t n_tok)
{
    const bl_val q = ops_input(r, 4, n_tok), w = ops_input(r, 2, n_tok),
                 rows = ops_state(r, BL_F32, 2, n, 1);
    const bl_val v = bl_graph_choose(&r->g, q, w, rows, &(struct bl_choose_attr){2, 2, n, 1});
    r->first = r->g.n_nodes;
    return v;
}

static void attention_groups(const struct groups_case *c)
{
    const struct bl_groups_attr at = {
        {c->heads, c->heads_kv, c->dk, c->dv, c->window, 2 / sqrtf((float)c->dk)}, c->group};
    const uint32_t n_k = c->heads_kv * c->dk;
    struct rig r;
    ops_open(&r);
    ops.within = fmin(ops.bound, attention_bound);
    const bl_val q = ops_input(&r, c->heads * c->dk, c->n_tok), x = ops_input(&r, n_k, c->n_tok),
                 y = ops_input(&r, n_k, c->n_tok);
    struct bl_attention_vals v = {.q = q};
    if (c->n_chosen)
        v.chosen = chosen_input(&r, c->n_chosen, c->n_tok);
    v.k = v.v = bl_graph_kv_store(&r.g, x, ops_state(&r, c->type, n_k, c->rows, c->n_seq));
    v.rows = bl_graph_kv_store_groups(&r.g, y, ops_state(&r, c->type, n_k, c->group_rows, c->n_seq),
                                      c->group);
    v.sinks = c->sinks ? ops_weight(&r, BL_F32, c->heads, 1, 1) : 0;
    bl_graph_attention_groups(&r.g, &v, &at);
    ops_deal(&r, c->n_tok, c->n_seq, c->from);
    ops_fill(&r);
    if (c->n_chosen)
        fill_chosen(&r, v.chosen, c->group);
    ops_check(&r, "groups of %u, %u rows, %u chosen, window %u, %u/%u heads in %s, %u tokens of %u",
              c->group, c->group_rows, c->n_chosen, c->window, c->heads, c->heads_kv,
              ops_name(c->type), c->n_tok, c->n_seq);
}

void ops_attention_groups(void **state)
{
    static const struct groups_case cases[] = {
        {BL_F16, 4, 1, 64, 64, 16, 60, 4, 100, 0, 40, 2, {0, 333}, true},
        {BL_F16, 4, 1, 64, 64, 16, 60, 4, 100, 8, 40, 2, {0, 333}, true},
        {BL_F16, 8, 1, 512, 512, 128, 300, 4, 300, 50, 5, 3, {0, 197, 1100}, true},
        {BL_F32, 3, 3, 33, 20, 7, 20, 128, 5, 0, 9, 1, {125}, false},
        {BL_BF16, 6, 2, 32, 32, 40, 700, 3, 400, 0, 4, 2, {1, 1100}, false},
        {BL_Q8_0, 2, 1, 96, 64, 8, 20, 1, 600, 33, 8, 2, {30, 500}, true},
        {BL_Q4_0, 2, 1, 64, 64, 8, 80, 2, 300, 1, 70, 1, {300}, false},
        {BL_F16, 20, 1, 512, 512, 70, 200, 4, 300, 90, 9, 2, {0, 900}, true},
        {BL_Q8_0, 36, 2, 64, 64, 40, 200, 2, 300, 0, 30, 2, {290, 20}, true},
    };
    (void)state;
    for (uint32_t i = 0; i < OPS_N(cases); i++)
        attention_groups(&cases[i]);
}

/* ---- CHOOSE ---- */

struct choose_case {
    enum bl_dtype type;
    uint32_t heads, dk, n, group, rows, n_tok, n_seq;
    uint32_t from[3];
};
static const struct choose_case choose_cases[] = {
    {BL_F16, 4, 128, 8, 4, 100, 30, 2, {0, 300}},
    {BL_F32, 1, 1, 1, 1, 40, 20, 2, {0, 15}},
    {BL_BF16, 64, 64, 64, 4, 700, 3, 2, {2700, 0}},
    {BL_Q8_0, 3, 96, 33, 2, 400, 9, 3, {60, 64, 700}},
    {BL_Q4_0, 2, 64, 5, 1, 30, 12, 1, {0}},
    {BL_F16, 2, 33, 512, 1, 3000, 5, 2, {2900, 509}},
};

static void small_numbers(struct rig *r, bl_val v, int reach)
{
    const struct bl_value *w = &r->g.vals[v];
    const uint64_t row = bl_dtype_row_bytes(w->type, w->ne[0]);
    float *x = malloc(w->ne[0] * sizeof *x);
    assert_non_null(x);
    for (uint64_t i = 0; i < (uint64_t)w->ne[1] * w->ne[2]; i++) {
        for (uint32_t e = 0; e < w->ne[0]; e++)
            x[e] = (float)((int)rig_pick(r, (uint32_t)(2 * reach + 1)) - reach);
        bl_dtype_encode(w->type, w->ne[0], (uint8_t *)r->data[v] + i * row, x);
    }
    free(x);
}

static void choose(const struct choose_case *c, uint32_t ties)
{
    struct rig r;
    ops_open(&r);
    const bl_val q = ops_input(&r, c->heads * c->dk, c->n_tok),
                 w = ops_input(&r, c->heads, c->n_tok),
                 rows = ops_state(&r, c->type, c->dk, c->rows, c->n_seq);
    bl_graph_choose(&r.g, q, w, rows, &(struct bl_choose_attr){c->heads, c->dk, c->n, c->group});
    ops_deal(&r, c->n_tok, c->n_seq, c->from);
    ops_fill(&r);
    if (ties) { /* exact in any order of sums */
        small_numbers(&r, q, 1);
        small_numbers(&r, w, ties == 1 ? 1 : 0);
        small_numbers(&r, rows, 1);
    }
    if (ties && c->type == BL_F32)
        for (uint32_t i = 0; i < c->rows; i += 3)
            ((float *)r.data[rows])[(size_t)i * c->dk] = NAN;
    ops_check(&r, "%u chosen of up to %u rows of %u in %s, groups of %u, %u heads, ties %u", c->n,
              c->rows, c->dk, ops_name(c->type), c->group, c->heads, ties);
}

void ops_choose(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < OPS_N(choose_cases); i++)
        choose(&choose_cases[i], 0);
}

void ops_choose_ties(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < OPS_N(choose_cases); i++)
        for (uint32_t ties = 1; ties < 3; ties++) /* 2: all are equal */
            if (bl_dtypes[choose_cases[i].type].block_elems == 1)
                choose(&choose_cases[i], ties);
}

/* ---- COMPRESS ---- */

struct compress_case {
    uint32_t group, overlap, n, slack;
    enum bl_dtype ape;
    uint32_t n_tok, n_seq;
    uint32_t from[3];
};

void ops_compress(void **state)
{
    static const struct compress_case cases[] = {
        {4, 1, 5, 0, BL_F32, 42, 1, {0}},         {4, 1, 70, 3, BL_F16, 29, 2, {3, 0}},
        {128, 0, 6, 0, BL_F32, 290, 2, {100, 0}}, {128, 1, 33, 5, BL_BF16, 259, 1, {200}},
        {3, 0, 130, 0, BL_F32, 20, 3, {1, 2, 3}}, {1, 0, 4, 0, BL_F32, 9, 1, {7}},
        {4, 1, 64, 1, BL_Q8_0, 1, 1, {7}},        {4, 1, 32, 0, BL_Q4_0, 8, 2, {999, 3}},
    };
    (void)state;
    for (uint32_t i = 0; i < OPS_N(cases); i++) {
        const struct compress_case *c = &cases[i];
        const uint32_t w = (1 + c->overlap) * c->n;
        struct rig r;
        ops_open(&r);
        const bl_val x = ops_input(&r, w, c->n_tok + 1), gate = ops_input(&r, w, c->n_tok + 1),
                     ape = ops_weight(&r, c->ape, w, c->group, 1),
                     s = ops_state(&r, BL_F32, 2 * w, (1 + c->overlap) * c->group + c->slack,
                                   c->n_seq);
        bl_graph_compress(&r.g, x, gate, ape, s, &(struct bl_compress_attr){c->group, c->overlap});
        ops_deal(&r, c->n_tok, c->n_seq, c->from);
        ops_fill(&r);
        ops_check(&r, "compress by %u, overlap %u, %u elements, ape %s, %u tokens of %u", c->group,
                  c->overlap, c->n, ops_name(c->ape), c->n_tok, c->n_seq);
    }
}

/* ---- SHORT_CONV, DELTA_RULE ---- */

void ops_short_conv(void **state)
{
    static const struct {
        uint32_t n, taps, rows, n_tok, n_seq, from[4];
    } cases[] = {
        {1, 2, 1, 1, 1, {0}},
        {130, 4, 3, 1, 1, {5}},
        {130, 4, 3, 50, 3, {0, 2, 1000}},
        {64, 4, 3, 2, 2, {1, 0}},
        {300, 3, 8, 9, 4, {0, 1, 2, 3}},
        {7, 16, 15, 40, 2, {3, 14}},
        {128, 4, 300, 64, 1, {290}},
    };
    (void)state;
    for (uint32_t i = 0; i < OPS_N(cases); i++)
        for (uint32_t silu = 0; silu < 2; silu++) {
            struct rig r;
            ops_open(&r);
            const bl_val x = ops_input(&r, cases[i].n, cases[i].n_tok + 1),
                         w = ops_weight(&r, BL_F32, cases[i].taps, cases[i].n, 1),
                         s = ops_state(&r, BL_F32, cases[i].n, cases[i].rows, cases[i].n_seq);
            bl_graph_short_conv(&r.g, x, w, s, silu);
            ops_deal(&r, cases[i].n_tok, cases[i].n_seq, cases[i].from);
            ops_fill(&r);
            ops_check(&r, "convolution of %u over %u, %u rows, %u tokens of %u, silu %u",
                      cases[i].n, cases[i].taps, cases[i].rows, cases[i].n_tok, cases[i].n_seq,
                      silu);
        }
}

struct delta_case {
    uint32_t heads_k, heads_v, dk, dv, tiled, versions, n_tok, n_seq;
    uint32_t from[4];
};

static void delta_rule(const struct delta_case *c)
{
    const struct bl_delta_attr at = {
        c->heads_k, c->heads_v, c->dk, c->dv, c->tiled, 1e-6f, 1 / sqrtf((float)c->dk)};
    struct rig r;
    ops_open(&r);
    const uint32_t room = c->n_tok + 1;
    const struct bl_delta_vals v = {
        ops_input(&r, 2 * c->heads_k * c->dk + c->heads_v * c->dv, room),
        ops_input(&r, c->heads_v, room),
        ops_input(&r, c->heads_v, room),
        ops_weight(&r, BL_F32, c->heads_v, 1, 1),
        ops_weight(&r, BL_F32, c->heads_v, 1, 1),
        ops_state(&r, BL_F32, c->heads_v * c->dv * c->dk, c->versions, c->n_seq)};
    bl_graph_delta_rule(&r.g, &v, &at);
    ops_deal(&r, c->n_tok, c->n_seq, c->from);
    ops_fill(&r);
    for (uint32_t h = 0; h < c->heads_v; h++) /* from almost forgetting all to almost nothing */
        ((float *)r.data[v.a])[h] = -expf(4 * ((float *)r.data[v.a])[h] - 2);
    for (uint32_t i = 0; i < c->heads_v * room; i++)
        ((float *)r.data[v.alpha])[i] *= i % 5 ? 3 : 30;
    ops_check(&r, "delta rule, %u/%u heads of %u/%u, tiled %u, %u versions, %u tokens of %u",
              c->heads_k, c->heads_v, c->dk, c->dv, c->tiled, c->versions, c->n_tok, c->n_seq);
}

void ops_delta_rule(void **state)
{
    static const struct delta_case cases[] = {
        {1, 1, 1, 1, 0, 1, 3, 1, {0}},
        {2, 4, 32, 32, 0, 1, 1, 1, {9}},
        {2, 4, 32, 32, 1, 1, 40, 3, {0, 7, 1000}},
        {4, 4, 128, 128, 0, 3, 20, 2, {0, 5}},
        {1, 3, 33, 17, 1, 5, 30, 4, {0, 1, 2, 3}},
        {2, 2, 256, 9, 0, 2, 5, 2, {1, 0}},
        {2, 6, 64, 64, 0, 2, 150, 1, {0}},
        {1, 1, 256, 3, 0, 1, 300, 2, {0, 3}}, /* more than drivers on the CPU do at a time */
    };
    (void)state;
    for (uint32_t i = 0; i < OPS_N(cases); i++)
        delta_rule(&cases[i]);
}
