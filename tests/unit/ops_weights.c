/* SPDX-License-Identifier: MIT */
/* What multiplies weights, for every type of them. */
#include "ops_rig.h"

/* Rows of one block and of several, a share of them whole for subgroups and tiles and a share not.
 */
static uint32_t lengths_of(enum bl_dtype t, uint32_t out[4])
{
    const uint32_t block = bl_dtypes[t].block_elems;
    if (block == 1) {
        memcpy(out, (uint32_t[4]){1, 7, 33, 100}, 4 * sizeof *out);
        return 4;
    }
    out[0] = block;
    out[1] = 3 * block;
    out[2] = 512 / block * block + block;
    return 3;
}

/* Calls fn for every type and length; i counts the calls. */
static void each(void (*fn)(enum bl_dtype, uint32_t k, uint32_t i))
{
    uint32_t k[4], i = 0;
    for (enum bl_dtype t = 0; t < BL_N_DTYPES; t++) {
        if (!ops_is_weight(t))
            continue;
        const uint32_t n = lengths_of(t, k);
        for (uint32_t l = 0; l < n; l++)
            fn(t, k[l], i++);
    }
}

/* ---- EMBED ---- */

static void embed(enum bl_dtype t, uint32_t k, uint32_t i)
{
    enum { ROWS = 9, ROOM = 6 };
    struct rig r;
    ops_open(&r);
    const bl_val w = ops_weight(&r, t, k, ROWS, 1);
    bl_graph_embed(&r.g, w, bl_graph_param(&r.g, BL_PARAM_TOKENS, ROOM), i % 2 ? 1 : 7.25f);
    ops_deal(&r, ROOM - i % 2, 1, (uint32_t[]){0});
    ops_fill(&r);
    for (uint32_t n = 0; n < ROOM; n++)
        r.step.token[n] = (int32_t)rig_pick(&r, ROWS);
    r.step.token[0] = ROWS - 1;
    ops_check(&r, "embed of %s, %u", ops_name(t), k);
}

void ops_embed(void **state)
{
    (void)state;
    each(embed);
}

/* ---- MATMUL ---- */

static void product(enum bl_dtype t, uint32_t k, uint32_t n_tok, uint32_t out, uint32_t extras)
{
    struct rig r;
    ops_open(&r);
    const bl_val x = ops_input(&r, k, n_tok), w = ops_weight(&r, t, k, out, 1);
    const bl_val bias = extras & 1 ? ops_weight(&r, BL_F32, out, 1, 1) : 0;
    const bl_val scale = extras & 2 ? ops_weight(&r, BL_F32, 1, 1, 1) : 0;
    bl_graph_matmul(&r.g, w, x, bias, scale);
    ops_deal(&r, n_tok, 1, (uint32_t[]){0});
    ops_fill(&r);
    ops_check(&r, "matmul of %s {%u, %u}, %u tokens%s%s", ops_name(t), k, out, n_tok,
              bias ? ", bias" : "", scale ? ", scale" : "");
}

static const uint32_t tokens[] = {1, 2, 3, 5, 8, 9, 16, 63, 64, 65, 70};
static const uint32_t outs[] = {1, 3, 31, 64, 65, 100};

static void few_products(enum bl_dtype t, uint32_t k, uint32_t i)
{
    product(t, k, 1, outs[i % OPS_N(outs)], i);
    product(t, k, 9 + 56 * (i % 2), outs[(i + 2) % OPS_N(outs)], i + 1);
    product(t, k, 5, outs[(i + 3) % OPS_N(outs)], i + 2);
}

static void all_products(enum bl_dtype t, uint32_t k, uint32_t i)
{
    for (uint32_t n = 0; n < OPS_N(tokens); n++)
        for (uint32_t o = 0; o < OPS_N(outs); o++)
            product(t, k, tokens[n], outs[o], i + n + o);
}

void ops_matmul(void **state)
{
    (void)state;
    each(ops.all ? all_products : few_products);
}

void ops_matmul_many_shapes(void **state)
{
    (void)state;
    all_products(BL_F16, 100, 0);
    all_products(BL_Q8_0, 96, 1);
}

/* What a device makes of x for one matrix may serve the next, but not those behind another x. */
void ops_matmul_in_turn(void **state)
{
    (void)state;
    for (uint32_t n_tok = 1; n_tok <= 10; n_tok += 9) {
        struct rig r;
        ops_open(&r);
        const bl_val x = ops_input(&r, 96, n_tok), y = ops_input(&r, 96, n_tok);
        bl_val z = 0;
        for (uint32_t i = 0; i < 6; i++) {
            const bl_val w = ops_weight(&r, BL_Q8_0, 96, 96, 1);
            z = bl_graph_matmul(&r.g, w, i == 3 ? y : i == 5 ? z : x, 0, 0);
        }
        ops_deal(&r, n_tok, 1, (uint32_t[]){0});
        ops_fill(&r);
        ops_check(&r, "six matrices, %u tokens", n_tok);
    }
}

/* ---- MATMUL_HEADS ---- */

struct heads_case {
    uint32_t out, heads, gap, n_tok, scales;
    bool transposed;
};

static void heads(enum bl_dtype t, uint32_t k, const struct heads_case *c)
{
    struct rig r;
    ops_open(&r);
    const bl_val x = ops_input(&r, (c->transposed ? c->out : k) * c->heads, c->n_tok);
    const bl_val w = ops_weight(&r, t, k, c->out, c->heads);
    const bl_val scale = c->scales ? ops_weight(&r, BL_F32, c->scales, 1, 1) : 0;
    bl_graph_matmul_heads(&r.g, w, x, scale,
                          &(struct bl_heads_attr){c->out + c->gap, c->transposed});
    ops_deal(&r, c->n_tok, 1, (uint32_t[]){0});
    ops_fill(&r);
    ops_check(&r, "%u heads of %s {%u, %u}%s, %u apart, %u tokens", c->heads, ops_name(t), k,
              c->out, c->transposed ? " transposed" : "", c->out + c->gap, c->n_tok);
}

static void some_heads(enum bl_dtype t, uint32_t k, uint32_t i)
{
    static const struct heads_case cases[] = {
        {5, 3, 0, 1, 0, true},   {65, 2, 7, 9, 2, true},  {9, 3, 2, 1, 1, false},
        {33, 3, 0, 9, 3, false}, {8, 4, 3, 66, 4, false}, {64, 1, 0, 70, 1, true},
    };
    for (uint32_t c = 0; c < OPS_N(cases); c++)
        if (ops.all || (c + i) % 2 == 0)
            heads(t, k, &cases[c]);
}

void ops_heads(void **state)
{
    (void)state;
    each(some_heads);
}

/* ---- EXPERTS ---- */

struct experts_case {
    enum bl_dtype gate, up, down;
    uint32_t n_embd, n_ff, n_used, n_experts, n_tok;
    uint32_t absent; /* a bit each */
    uint32_t extras; /* 1: biases, 2: scales */
    struct bl_glu_attr glu;
};

static void experts(const struct experts_case *c)
{
    struct rig r;
    bl_val w[9] = {0};
    ops_open(&r);
    const bl_val ids = ops_ids(&r, c->n_used, c->n_experts, c->n_tok);
    const bl_val x = ops_input(&r, c->n_embd, c->n_tok),
                 weights = ops_input(&r, c->n_used, c->n_tok);
    const uint32_t e = c->n_experts, out[] = {c->n_ff, c->n_ff, c->n_embd};
    const enum bl_dtype type[] = {c->gate, c->up, c->down};
    for (unsigned i = 0; i < 3; i++) {
        w[i] = ops_weight(&r, type[i], i < 2 ? c->n_embd : c->n_ff, out[i], e);
        if (c->extras & 1)
            w[3 + i] = ops_weight(&r, BL_F32, out[i], e, 1);
        if (c->extras & 2)
            w[6 + i] = ops_weight(&r, BL_F32, e, 1, 1);
    }
    const struct bl_expert_vals v = {w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8]};
    const struct bl_experts_attr at = {
        .n_used = c->n_used, .parts = c->absent ? 2 : 0, .glu = c->glu};
    bl_graph_experts(&r.g, x, ids, weights, &v, &at);
    ops_deal(&r, c->n_tok, 1, (uint32_t[]){0});
    ops_fill(&r);
    ops_fill_ids(&r, ids, e);
    r.absent = c->absent;
    ops_check(&r,
              "%u of %u experts of %s, %s, %s {%u, %u}, absent %#x, extras %u, glu %u, %u tokens",
              c->n_used, e, ops_name(c->gate), ops_name(c->up), ops_name(c->down), c->n_embd,
              c->n_ff, c->absent, c->extras, c->glu.kind, c->n_tok);
}

static void some_experts(enum bl_dtype t, uint32_t k, uint32_t i)
{
    static const uint32_t absent[] = {0, 0x12, 0xfe};
    const uint32_t block = bl_dtypes[t].block_elems, ff = block > 1 ? block : 9 + 60 * (i % 2);
    struct experts_case c = {.gate = t, .up = t, .down = t, .n_embd = k, .n_ff = ff, .n_used = 3};
    c.n_experts = 8;
    for (uint32_t many = 0; many < 2; many++) {
        c.n_tok = many ? 70 : 1;
        c.absent = absent[(i + many) % OPS_N(absent)];
        c.extras = (i + many) % 4;
        c.glu.kind = i % 2 ? BL_GLU_SILU : BL_GLU_GELU_TANH;
        experts(&c);
    }
}

void ops_experts(void **state)
{
    (void)state;
    each(some_experts);
}

void ops_experts_kinds(void **state)
{
    static const uint32_t n_tok[] = {1, 2, 8, 9, 70, 200};
    (void)state;
    for (uint32_t kind = 0; kind <= BL_GLU_SIGMOID; kind++)
        for (uint32_t n = 0; n < OPS_N(n_tok); n++) {
            const struct experts_case c = {BL_Q8_0,
                                           BL_F16,
                                           BL_Q4_0,
                                           64,
                                           96,
                                           1 + n,
                                           16,
                                           n_tok[n],
                                           n & 1 ? 0x8421 : 0,
                                           (kind + n) % 4,
                                           {kind, 1.7f, 0.5f}};
            experts(&c);
        }
    /* one expert that all go to, one that nobody has */
    experts(&(struct experts_case){BL_F32, BL_F32, BL_F32, 7, 33, 1, 1, 70, 0, 3, {0}});
    experts(&(struct experts_case){BL_F32, BL_F32, BL_F32, 7, 33, 2, 2, 70, 2, 3, {0}});
}
