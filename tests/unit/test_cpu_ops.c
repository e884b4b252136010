/* SPDX-License-Identifier: MIT */
/* Every op but ATTENTION (test_attention.c) against plain double loops, on one to four threads. */
#include "cpu_rig.h"

#define N(a) (sizeof(a) / sizeof *(a))

static const uint32_t token_counts[] = {1, 3, 17};

/* ---- EMBED, GATHER_ROWS ---- */

struct embed_case {
    uint32_t type, n, n_tok;
    float scale;
};

static void make_embed(struct rig *r, const void *arg)
{
    const struct embed_case *c = arg;
    const bl_val table = bl_graph_weight(&r->g, 0, c->type, (uint32_t[]){c->n, 11, 1});
    const bl_val tokens = bl_graph_param(&r->g, BL_PARAM_TOKENS, c->n_tok + 2);
    r->out[0] = bl_graph_embed(&r->g, table, tokens, c->scale);
    rig_alloc(r);
    rig_fill_weight(r, table, 1);
    rig_tokens(r, c->n_tok, 0);
    for (uint32_t t = 0; t < c->n_tok; t++)
        r->step.token[t] = (int32_t)(t * 7 % 11);
}

static void check_embed(const struct rig *r, const void *arg)
{
    const struct embed_case *c = arg;
    for (uint32_t t = 0; t < c->n_tok; t++) {
        float *want = rig_row(r, 1, (uint32_t)r->step.token[t]);
        for (uint32_t i = 0; i < c->n; i++)
            rig_near(((float *)r->data[r->out[0]])[t * c->n + i], (double)want[i] * c->scale, 1e-6,
                     "embed", i);
        free(want);
    }
    rig_untouched(r, r->out[0], c->n_tok);
}

static void embed(void **state)
{
    (void)state;
    const struct embed_case cases[] = {
        {BL_F32, 7, 1, 1}, {BL_F16, 33, 3, 2.5f}, {BL_Q8_0, 64, 17, 1}, {BL_Q4_K, 256, 3, 0.5f}};
    for (size_t i = 0; i < N(cases); i++)
        rig_cases(make_embed, check_embed, &cases[i]);
}

static void make_gather(struct rig *r, const void *arg)
{
    const uint32_t n_tok = *(const uint32_t *)arg;
    const bl_val x = rig_input(r, 0, 13, n_tok);
    r->out[0] = bl_graph_gather_rows(&r->g, x, bl_graph_param(&r->g, BL_PARAM_OUT_ROWS, n_tok + 1));
    rig_alloc(r);
    rig_fill(r, x, 1);
    rig_tokens(r, n_tok, 0);
    r->step.n_out = (n_tok + 1) / 2;
    for (uint32_t i = 0; i < r->step.n_out; i++)
        r->step.out[i] = n_tok - 1 - 2 * i;
}

static void check_gather(const struct rig *r, const void *arg)
{
    (void)arg;
    const float *x = r->data[bl_node_src(&r->g, &r->g.nodes[1], 0)], *y = r->data[r->out[0]];
    for (uint32_t i = 0; i < r->step.n_out; i++)
        assert_memory_equal(y + 13 * i, x + 13 * r->step.out[i], 13 * sizeof *x);
    rig_untouched(r, r->out[0], r->step.n_out);
}

static void gather_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(token_counts); i++)
        rig_cases(make_gather, check_gather, &token_counts[i]);
}

/* ---- RMS_NORM ---- */

struct norm_case {
    uint32_t n, run, n_tok;
};

static void make_norm(struct rig *r, const void *arg)
{
    const struct norm_case *c = arg;
    const bl_val x = rig_input(r, 0, c->n, c->n_tok + 1);
    const bl_val w = bl_graph_weight(&r->g, 0, BL_F32, (uint32_t[]){c->run, 1, 1});
    r->out[0] = bl_graph_rms_norm(&r->g, x, w, 1e-3f);
    rig_alloc(r);
    rig_fill(r, x, 3);
    rig_fill(r, w, 2);
    rig_tokens(r, c->n_tok, 0);
}

static void check_norm(const struct rig *r, const void *arg)
{
    const struct norm_case *c = arg;
    const struct bl_node *n = &r->g.nodes[r->first];
    const float *x = r->data[bl_node_src(&r->g, n, 0)], *w = r->data[bl_node_src(&r->g, n, 1)];
    const float *y = r->data[r->out[0]];
    for (uint32_t at = 0; at < c->n_tok * c->n; at += c->run) {
        double sum = 0;
        for (uint32_t i = 0; i < c->run; i++)
            sum += (double)x[at + i] * x[at + i];
        for (uint32_t i = 0; i < c->run; i++)
            rig_near(y[at + i], x[at + i] / sqrt(sum / c->run + 1e-3) * w[i], 1e-5, "norm", at + i);
    }
    rig_untouched(r, r->out[0], c->n_tok);
}

static void rms_norm(void **state)
{
    (void)state;
    const struct norm_case cases[] = {{5, 5, 1}, {64, 64, 3}, {96, 16, 17}, {117, 39, 3}};
    for (size_t i = 0; i < N(cases); i++)
        rig_cases(make_norm, check_norm, &cases[i]);
}

/* ---- MATMUL ---- */

struct matmul_case {
    uint32_t type, k, n, n_tok;
    bool bias, scale;
};

static void make_matmul(struct rig *r, const void *arg)
{
    const struct matmul_case *c = arg;
    const bl_val x = rig_input(r, 0, c->k, c->n_tok + 1);
    const bl_val w = bl_graph_weight(&r->g, 0, c->type, (uint32_t[]){c->k, c->n, 1});
    const bl_val bias = c->bias ? bl_graph_weight(&r->g, 1, BL_F32, (uint32_t[]){c->n, 1, 1}) : 0;
    const bl_val scale = c->scale ? bl_graph_weight(&r->g, 2, BL_F32, (uint32_t[]){1, 1, 1}) : 0;
    r->out[0] = bl_graph_matmul(&r->g, w, x, bias, scale);
    rig_alloc(r);
    rig_fill(r, x, 1);
    rig_fill_weight(r, w, 1);
    if (bias)
        rig_fill(r, bias, 1);
    if (scale)
        rig_fill(r, scale, 1);
    rig_tokens(r, c->n_tok, 0);
}

/* Eight-bit activations are off by up to half a step each, 1/254 of the largest of their block. */
static double dot_tolerance(const struct rig *r, double sum_abs)
{
    return sum_abs * (r->dev->caps.exact ? 1e-6 : 1.0 / 250) + 1e-6;
}

static void check_matmul(const struct rig *r, const void *arg)
{
    const struct matmul_case *c = arg;
    const struct bl_node *n = &r->g.nodes[r->first];
    const float *x = r->data[bl_node_src(&r->g, n, 1)], *bias = r->data[bl_node_src(&r->g, n, 2)];
    const float *scale = r->data[bl_node_src(&r->g, n, 3)], *y = r->data[r->out[0]];
    for (uint32_t row = 0; row < c->n; row++) {
        float *w = rig_row(r, bl_node_src(&r->g, n, 0), row);
        for (uint32_t t = 0; t < c->n_tok; t++) {
            double sum = 0, sum_abs = 0;
            for (uint32_t i = 0; i < c->k; i++) {
                sum += (double)w[i] * x[t * c->k + i];
                sum_abs += fabs((double)w[i]);
            }
            sum = sum * (scale ? scale[0] : 1) + (bias ? bias[row] : 0);
            rig_near(y[t * c->n + row], sum, dot_tolerance(r, sum_abs), bl_dtypes[c->type].name,
                     t * c->n + row);
        }
        free(w);
    }
    rig_untouched(r, r->out[0], c->n_tok);
}

static void matmul(void **state)
{
    (void)state;
    const uint32_t types[] = {BL_F32, BL_F16, BL_BF16, BL_Q8_0, BL_Q4_0, BL_Q4_1, BL_Q4_K, BL_Q6_K};
    const uint32_t rows[] = {1, 6, 131};
    for (size_t i = 0; i < N(types); i++)
        for (size_t j = 0; j < N(token_counts); j++)
            for (size_t k = 0; k < N(rows); k++) {
                const uint32_t block = bl_dtypes[types[i]].block_elems;
                const struct matmul_case c = {.type = types[i],
                                              .k = block == 256  ? 512
                                                   : block == 32 ? 352
                                                                 : 37,
                                              .n = rows[k],
                                              .n_tok = token_counts[j],
                                              .bias = j != 1,
                                              .scale = k == 1};
                rig_cases(make_matmul, check_matmul, &c);
            }
}

/* Rows long enough for several chunks, panels and blocks of tokens. */
static void matmul_in_chunks(void **state)
{
    (void)state;
    const struct matmul_case c = {BL_Q4_0, 4096, 203, 70, false, false};
    rig_case(make_matmul, check_matmul, &c, false, UINT32_MAX);
    rig_case(make_matmul, check_matmul, &c, false, 0);
}

/* ---- ROPE ---- */

struct rope_case {
    struct bl_angles_attr at;
    bool factors;
    uint32_t mode, head, n_heads, n_tok, first_pos;
};

static void make_rope(struct rig *r, const void *arg)
{
    const struct rope_case *c = arg;
    const uint32_t bound = c->n_tok + 1;
    const bl_val x = rig_input(r, 0, c->head * c->n_heads, bound);
    const bl_val f =
        c->factors ? bl_graph_weight(&r->g, 0, BL_F32, (uint32_t[]){c->at.n_dims / 2, 1, 1}) : 0;
    const bl_val pos = bl_graph_param(&r->g, BL_PARAM_POSITIONS, bound);
    r->out[1] = bl_graph_rope_angles(&r->g, pos, f, &c->at);
    r->out[0] = bl_graph_rope(&r->g, x, r->out[1], c->mode, c->head);
    rig_alloc(r);
    rig_fill(r, x, 1);
    for (uint32_t i = 0; f && i < c->at.n_dims / 2; i++)
        ((float *)r->data[f])[i] = 1 + (float)i;
    rig_tokens(r, c->n_tok, c->first_pos);
}

static double angle(const struct rope_case *c, uint32_t pos, uint32_t i)
{
    double phi =
        pos * pow((double)c->at.base, -2.0 * i / c->at.n_dims) / (c->factors ? 1.0 + i : 1);
    double keep = (double)c->at.freq_scale;
    if (c->at.yarn) {
        double ramp = (i - (double)c->at.lo) / fmax(0.001, (double)c->at.hi - c->at.lo);
        ramp = 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
        keep = keep * (1 - ramp) + ramp;
    }
    return phi * keep;
}

static void check_rope(const struct rig *r, const void *arg)
{
    const struct rope_case *c = arg;
    const float *x = r->data[bl_node_src(&r->g, &r->g.nodes[r->first + 1], 0)];
    const float *y = r->data[r->out[0]];
    const uint32_t half = c->at.n_dims / 2;
    for (uint32_t h = 0; h < c->n_tok * c->n_heads; h++) {
        const uint32_t pos = c->first_pos + h / c->n_heads, at = h * c->head;
        for (uint32_t i = 0; i < half; i++) {
            const uint32_t a = at + (c->mode == BL_ROPE_NEOX ? i : 2 * i);
            const uint32_t b = a + (c->mode == BL_ROPE_NEOX ? half : 1);
            const double phi = angle(c, pos, i), m = (double)c->at.magnitude;
            rig_near(y[a], m * (x[a] * cos(phi) - x[b] * sin(phi)), 2e-6, "rope", a);
            rig_near(y[b], m * (x[a] * sin(phi) + x[b] * cos(phi)), 2e-6, "rope", b);
        }
        assert_memory_equal(y + at + c->at.n_dims, x + at + c->at.n_dims,
                            (c->head - c->at.n_dims) * sizeof *x);
    }
    rig_untouched(r, r->out[0], c->n_tok);
    rig_untouched(r, r->out[1], c->n_tok);
}

static void rope(void **state)
{
    (void)state;
    const struct bl_angles_attr plain = {
        .n_dims = 16, .base = 10000, .freq_scale = 1, .magnitude = 1};
    const struct bl_angles_attr part = {
        .n_dims = 10, .base = 5e5f, .freq_scale = 0.25f, .magnitude = 1.5f};
    const struct bl_angles_attr yarn = {.n_dims = 12,
                                        .yarn = 1,
                                        .base = 150000,
                                        .freq_scale = 1 / 32.f,
                                        .magnitude = 1.34657f,
                                        .lo = 1,
                                        .hi = 4.5f};
    const struct rope_case cases[] = {
        {plain, false, BL_ROPE_NORM, 16, 3, 1, 7},
        {plain, false, BL_ROPE_NEOX, 16, 1, 17, 100000},
        {part, true, BL_ROPE_NEOX, 14, 5, 3, 0},
        {part, false, BL_ROPE_NORM, 13, 2, 3, 1000},
        {yarn, false, BL_ROPE_NEOX, 12, 4, 17, 4000},
    };
    for (size_t i = 0; i < N(cases); i++)
        rig_cases(make_rope, check_rope, &cases[i]);
}

/* ---- KV_STORE ---- */

struct store_case {
    uint32_t type, n, rows;
};

/* Two sequences in slots 2 and 0, interleaved; the second wraps around its ring. */
static void two_sequences(struct rig *r, uint32_t rows)
{
    struct rig_step *s = &r->step;
    *s = (struct rig_step){.n_tok = 5, .n_seq = 2};
    const uint32_t pos[5] = {0, rows - 1, 1, rows, 2}, seq[5] = {0, 1, 0, 1, 0};
    memcpy(s->pos, pos, sizeof pos);
    memcpy(s->seq, seq, sizeof seq);
    s->table[0] = (struct bl_seq_params){3, 2};
    s->table[1] = (struct bl_seq_params){rows + 1, 0};
}

static void make_store(struct rig *r, const void *arg)
{
    const struct store_case *c = arg;
    const bl_val x = rig_input(r, 0, c->n, 6);
    const bl_val kv = bl_graph_state(&r->g, 0, c->type, c->n, c->rows, 3);
    r->out[0] = bl_graph_kv_store(&r->g, x, kv);
    rig_alloc(r);
    rig_fill(r, x, 1);
    two_sequences(r, c->rows);
}

static void check_store(const struct rig *r, const void *arg)
{
    const struct store_case *c = arg;
    const float *x = r->data[bl_node_src(&r->g, &r->g.nodes[1], 0)];
    const size_t row_bytes = (size_t)bl_dtype_row_bytes(c->type, c->n);
    uint8_t *want = calloc(3 * c->rows, row_bytes);
    for (uint32_t t = 0; t < 5; t++) {
        const uint32_t slot = r->step.table[r->step.seq[t]].slot;
        bl_dtype_encode(c->type, c->n,
                        want + (slot * c->rows + r->step.pos[t] % c->rows) * row_bytes,
                        x + t * c->n);
    }
    assert_memory_equal(r->data[r->out[0]], want, 3 * c->rows * row_bytes);
    free(want);
}

static void kv_store(void **state)
{
    (void)state;
    const struct store_case cases[] = {
        {BL_F32, 7, 9}, {BL_F16, 24, 4}, {BL_BF16, 31, 6}, {BL_Q8_0, 64, 5}, {BL_Q4_0, 96, 12}};
    for (size_t i = 0; i < N(cases); i++)
        rig_cases(make_store, check_store, &cases[i]);
}

/* ---- GLU, ADD, SOFTCAP ---- */

struct pair_case {
    int kind; /* enum bl_glu_kind, or -1: ADD, -2: SOFTCAP */
    uint32_t n, n_tok;
};

static void make_pair(struct rig *r, const void *arg)
{
    const struct pair_case *c = arg;
    const bl_val a = rig_input(r, 0, c->n, c->n_tok + 1), b = rig_input(r, 1, c->n, c->n_tok + 1);
    const struct bl_glu_attr at = {.kind = (uint32_t)c->kind, .alpha = 1.702f, .limit = 2};
    r->out[0] = c->kind == -1   ? bl_graph_add(&r->g, a, b)
                : c->kind == -2 ? bl_graph_softcap(&r->g, a, 1.5f)
                                : bl_graph_glu(&r->g, a, b, &at);
    rig_alloc(r);
    rig_fill(r, a, 4);
    rig_fill(r, b, 4);
    rig_tokens(r, c->n_tok, 0);
}

static double clamp(double x, double limit)
{
    return x > limit ? limit : x;
}

static double glu_of(int kind, double g, double u)
{
    if (kind == BL_GLU_SILU)
        return g / (1 + exp(-g)) * u;
    if (kind == BL_GLU_GELU_TANH)
        return 0.5 * g * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g))) *
               u;
    if (kind == BL_GLU_SIGMOID)
        return u / (1 + exp(-g));
    g = clamp(g, 2);
    u = fmax(-2, clamp(u, 2));
    if (kind == BL_GLU_SILU_CLAMPED)
        return g / (1 + exp(-g)) * u;
    return g / (1 + exp(-(double)1.702f * g)) * (u + 1);
}

static void check_pair(const struct rig *r, const void *arg)
{
    const struct pair_case *c = arg;
    const struct bl_node *n = &r->g.nodes[r->first];
    const float *a = r->data[bl_node_src(&r->g, n, 0)], *b = r->data[bl_node_src(&r->g, n, 1)];
    for (uint32_t i = 0; i < c->n * c->n_tok; i++) {
        const double want = c->kind == -1   ? (double)a[i] + b[i]
                            : c->kind == -2 ? 1.5 * tanh(a[i] / 1.5)
                                            : glu_of(c->kind, a[i], b[i]);
        rig_near(((float *)r->data[r->out[0]])[i], want, 1e-5, "element", i);
    }
    rig_untouched(r, r->out[0], c->n_tok);
}

static void elements(void **state)
{
    (void)state;
    for (int kind = -2; kind <= BL_GLU_SIGMOID; kind++)
        for (size_t i = 0; i < N(token_counts); i++)
            rig_cases(make_pair, check_pair,
                      &(struct pair_case){kind, 31 + 9 * (uint32_t)i, token_counts[i]});
}

/* ---- ROUTE ---- */

struct route_case {
    struct bl_route_attr at;
    uint32_t n_experts;
    bool bias, ties;
};

static void make_route(struct rig *r, const void *arg)
{
    const struct route_case *c = arg;
    const bl_val z = rig_input(r, 0, c->n_experts, 18);
    const bl_val bias =
        c->bias ? bl_graph_weight(&r->g, 0, BL_F32, (uint32_t[]){c->n_experts, 1, 1}) : 0;
    bl_graph_route(&r->g, z, bias, &c->at, &r->out[0], &r->out[1]);
    rig_alloc(r);
    rig_fill(r, z, 5);
    if (bias)
        rig_fill(r, bias, 1);
    for (uint32_t i = 0; c->ties && i < 18 * c->n_experts; i++)
        ((float *)r->data[z])[i] = (float)(i % 3);
    rig_tokens(r, 17, 0);
}

static void gate_doubles(const struct route_case *c, const float *z, double *p)
{
    double sum = 0;
    for (uint32_t i = 0; i < c->n_experts; i++)
        sum += exp((double)z[i]);
    for (uint32_t i = 0; i < c->n_experts; i++)
        p[i] = c->at.gating == BL_GATE_SOFTMAX         ? exp((double)z[i]) / sum
               : c->at.gating == BL_GATE_SIGMOID       ? 1 / (1 + exp(-(double)z[i]))
               : c->at.gating == BL_GATE_SQRT_SOFTPLUS ? sqrt(log1p(exp((double)z[i])))
                                                       : (double)z[i];
}

static int descending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Score of the group expert i is in, by sorting. */
static double group_score(const struct route_case *c, const double *s, uint32_t i)
{
    double sorted[64];
    const uint32_t n = c->n_experts / c->at.n_group;
    memcpy(sorted, s + i / n * n, n * sizeof *s);
    qsort(sorted, n, sizeof *sorted, descending);
    return c->at.group_by_max ? sorted[0] : sorted[0] + sorted[1];
}

static bool group_is_used(const struct route_case *c, const double *s, uint32_t i)
{
    const uint32_t n = c->n_experts / c->at.n_group;
    uint32_t better = 0;
    for (uint32_t g = 0; g < c->at.n_group; g++)
        better += group_score(c, s, g * n) > group_score(c, s, i);
    return better < c->at.n_group_used;
}

static void check_route_token(const struct route_case *c, const float *z, const float *bias,
                              const int32_t *id, const float *w)
{
    double p[64], s[64], want[64], sum = 0;
    gate_doubles(c, z, p);
    for (uint32_t i = 0; i < c->n_experts; i++)
        s[i] = p[i] + (bias ? (double)bias[i] : 0);
    for (uint32_t u = 0; u < c->at.n_used; u++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < c->n_experts; i++) {
            bool taken = c->at.n_group > 1 && !group_is_used(c, s, i);
            for (uint32_t v = 0; v < u; v++)
                taken |= id[v] == (int32_t)i;
            if (!taken && (best == UINT32_MAX || s[i] > s[best]))
                best = i;
        }
        assert_int_equal(id[u], best);
        want[u] = c->at.gating == BL_GATE_SOFTMAX_CHOSEN ? exp(p[best]) : p[best];
        sum += want[u];
    }
    const double scale = c->at.scale != 0 ? (double)c->at.scale : 1;
    for (uint32_t u = 0; u < c->at.n_used; u++) {
        if (c->at.normalise || c->at.gating == BL_GATE_SOFTMAX_CHOSEN)
            want[u] /= fmax(sum, 6.103515625e-5);
        rig_near(w[u], want[u] * scale, 1e-5 * fabs(want[u] * scale) + 1e-9, "weight", u);
    }
}

static void check_route(const struct rig *r, const void *arg)
{
    const struct route_case *c = arg;
    const struct bl_node *n = &r->g.nodes[r->first];
    const float *z = r->data[bl_node_src(&r->g, n, 0)], *bias = r->data[bl_node_src(&r->g, n, 1)];
    for (uint32_t t = 0; t < 17; t++)
        check_route_token(c, z + t * c->n_experts, bias,
                          (int32_t *)r->data[r->out[0]] + t * c->at.n_used,
                          (float *)r->data[r->out[1]] + t * c->at.n_used);
    rig_untouched(r, r->out[0], 17);
    rig_untouched(r, r->out[1], 17);
}

static void route(void **state)
{
    (void)state;
    const struct route_case cases[] = {
        {{.n_used = 2, .gating = BL_GATE_SOFTMAX, .normalise = 1}, 8, false, false},
        {{.n_used = 8, .gating = BL_GATE_SOFTMAX}, 33, false, true},
        {{.n_used = 3, .gating = BL_GATE_SIGMOID, .normalise = 1, .scale = 2.5f}, 16, true, false},
        {{.n_used = 4, .gating = BL_GATE_SOFTMAX_CHOSEN}, 32, false, false},
        {{.n_used = 4, .gating = BL_GATE_SQRT_SOFTPLUS, .normalise = 1}, 12, true, false},
        {{.n_used = 4, .gating = BL_GATE_SIGMOID, .n_group = 4, .n_group_used = 2},
         32,
         true,
         false},
        {{.n_used = 3,
          .gating = BL_GATE_SOFTMAX,
          .n_group = 8,
          .n_group_used = 3,
          .group_by_max = 1},
         16,
         false,
         false},
        {{.n_used = 5, .gating = BL_GATE_SIGMOID}, 5, false, false},
    };
    for (size_t i = 0; i < N(cases); i++)
        rig_cases(make_route, check_route, &cases[i]);
}

/* A sum too small to divide by is replaced by 2^-14. */
static void make_small_route(struct rig *r, const void *arg)
{
    make_route(r, arg);
    float *z = r->data[bl_node_src(&r->g, &r->g.nodes[r->first], 0)];
    for (uint32_t i = 0; i < 18 * 8; i++)
        z[i] = -30 - (float)(i % 8);
}

static void route_clamps_its_sum(void **state)
{
    (void)state;
    const struct route_case c = {
        {.n_used = 2, .gating = BL_GATE_SIGMOID, .normalise = 1}, 8, false, false};
    rig_case(make_small_route, check_route, &c, false, 0);
}

/* ---- EXPERTS ---- */

struct experts_case {
    uint32_t gate, up, down; /* types */
    uint32_t n_in, n_ff, n_experts, n_used, n_tok;
    bool bias, scale, skewed;
    uint32_t glu;
    uint32_t absent; /* experts that another device has, a bit each */
};

static bl_val small_weight(struct rig *r, int32_t index, bool wanted, uint32_t ne0, uint32_t ne1)
{
    return wanted ? bl_graph_weight(&r->g, index, BL_F32, (uint32_t[]){ne0, ne1, 1}) : 0;
}

static struct bl_expert_vals expert_weights(struct rig *r, const struct experts_case *c)
{
    const uint32_t n = c->n_experts;
    return (struct bl_expert_vals){
        .gate = bl_graph_weight(&r->g, 0, c->gate, (uint32_t[]){c->n_in, c->n_ff, n}),
        .up = bl_graph_weight(&r->g, 1, c->up, (uint32_t[]){c->n_in, c->n_ff, n}),
        .down = bl_graph_weight(&r->g, 2, c->down, (uint32_t[]){c->n_ff, c->n_in, n}),
        .gate_b = small_weight(r, 3, c->bias, c->n_ff, n),
        .up_b = small_weight(r, 4, c->bias, c->n_ff, n),
        .down_b = small_weight(r, 5, c->bias, c->n_in, n),
        .gate_s = small_weight(r, 6, c->scale, n, 1),
        .up_s = small_weight(r, 7, c->scale, n, 1),
        .down_s = small_weight(r, 8, c->scale, n, 1),
    };
}

static void fill_routing(struct rig *r, const struct experts_case *c, bl_val ids, bl_val weights)
{
    for (uint32_t t = 0; t < c->n_tok; t++)
        for (uint32_t u = 0; u < c->n_used; u++) {
            int32_t *id = (int32_t *)r->data[ids] + t * c->n_used;
            bool again = true;
            while (again) {
                again = false;
                id[u] =
                    (int32_t)rig_pick(r, c->skewed && u + 1 < c->n_used ? c->n_used : c->n_experts);
                for (uint32_t v = 0; v < u; v++)
                    again |= id[v] == id[u];
            }
        }
    rig_fill(r, weights, 1);
}

static void make_experts(struct rig *r, const void *arg)
{
    const struct experts_case *c = arg;
    const uint32_t bound = c->n_tok == 1 ? 1 : c->n_tok + 2;
    const bl_val x = rig_input(r, 0, c->n_in, bound), z = rig_input(r, 1, c->n_experts, bound);
    const struct bl_expert_vals e = expert_weights(r, c);
    bl_val ids, weights;
    bl_graph_route(&r->g, z, 0,
                   &(struct bl_route_attr){.n_used = c->n_used, .gating = BL_GATE_SOFTMAX}, &ids,
                   &weights);
    const struct bl_experts_attr at = {.n_used = c->n_used,
                                       .parts = c->absent ? 2 : 0,
                                       .glu = {.kind = c->glu, .alpha = 1.702f, .limit = 2}};
    r->first = r->g.n_nodes;
    r->absent = c->absent;
    r->out[0] = bl_graph_experts(&r->g, x, ids, weights, &e, &at);
    rig_alloc(r);
    rig_fill(r, x, 1);
    const bl_val *v = &e.gate;
    for (unsigned i = 0; i < 9; i++)
        if (v[i])
            rig_fill_weight(r, v[i], i < 3 ? 0.2f : 1);
    fill_routing(r, c, ids, weights);
    rig_tokens(r, c->n_tok, 0);
}

struct expert_ref {
    const struct rig *r;
    const struct experts_case *c;
    const struct bl_node *n;
    uint32_t e;
};

/* y = W x * scale + bias of one matrix of an expert. */
static void expert_matrix(const struct expert_ref *f, unsigned src, const double *x, double *y)
{
    const struct bl_value *w = &f->r->g.vals[bl_node_src(&f->r->g, f->n, src)];
    const float *bias = f->r->data[bl_node_src(&f->r->g, f->n, src + 3)];
    const float *scale = f->r->data[bl_node_src(&f->r->g, f->n, src + 6)];
    for (uint32_t row = 0; row < w->ne[1]; row++) {
        float *v = rig_row(f->r, bl_node_src(&f->r->g, f->n, src), f->e * w->ne[1] + row);
        double sum = 0;
        for (uint32_t i = 0; i < w->ne[0]; i++)
            sum += v[i] * x[i];
        y[row] = sum * (scale ? scale[f->e] : 1) + (bias ? bias[f->e * w->ne[1] + row] : 0);
        free(v);
    }
}

/* Squared error against squared result: rounding x and h to eight bits costs about 1e-4. */
static void check_experts_token(const struct rig *r, const struct experts_case *c, uint32_t t)
{
    double x[1024], g[1024], u[1024], y[1024], sum[1024] = {0}, error = 0, all = 0;
    const struct bl_node *n = &r->g.nodes[r->first];
    for (uint32_t i = 0; i < c->n_in; i++)
        x[i] = ((float *)r->data[bl_node_src(&r->g, n, 0)])[t * c->n_in + i];
    for (uint32_t s = 0; s < c->n_used; s++) {
        const uint32_t at = t * c->n_used + s;
        const double weight = ((float *)r->data[bl_node_src(&r->g, n, 2)])[at];
        const struct expert_ref f = {r, c, n,
                                     (uint32_t)((int32_t *)r->data[bl_node_src(&r->g, n, 1)])[at]};
        if (c->absent >> f.e & 1)
            continue;
        expert_matrix(&f, 3, x, g);
        expert_matrix(&f, 4, x, u);
        for (uint32_t i = 0; i < c->n_ff; i++)
            g[i] = glu_of((int)c->glu, g[i], u[i]);
        expert_matrix(&f, 5, g, y);
        for (uint32_t i = 0; i < c->n_in; i++)
            sum[i] += weight * y[i];
    }
    for (uint32_t i = 0; i < c->n_in; i++) {
        const double e = ((float *)r->data[r->out[0]])[t * c->n_in + i] - sum[i];
        error += e * e;
        all += sum[i] * sum[i];
    }
    if (!(all > 0)) { /* another device has all that the token chose */
        rig_near(error, 0, 0, "experts of token", t);
        return;
    }
    /* Of few terms the sum may be small beside what rounding does to each. */
    const double most = c->absent ? 1e-2 : 4e-3;
    rig_near(error / all, 0, r->dev->caps.exact ? 1e-12 : most, "experts of token", t);
}

static void check_experts(const struct rig *r, const void *arg)
{
    const struct experts_case *c = arg;
    for (uint32_t t = 0; t < c->n_tok; t++)
        check_experts_token(r, c, t);
    rig_untouched(r, r->out[0], c->n_tok);
}

static void experts(void **state)
{
    (void)state;
    const struct experts_case cases[] = {
        {BL_F32, BL_F32, BL_F32, 7, 13, 4, 2, 3, false, false, false, BL_GLU_SILU, 0},
        {BL_F16, BL_Q8_0, BL_Q4_0, 96, 64, 5, 2, 17, true, true, true, BL_GLU_SWIGLU_OAI, 0},
        {BL_Q4_K, BL_Q4_K, BL_Q6_K, 256, 256, 6, 3, 1, false, false, false, BL_GLU_SILU, 0},
        {BL_Q4_K, BL_Q8_0, BL_F32, 256, 96, 16, 4, 17, true, false, true, BL_GLU_SILU, 0},
        {BL_Q8_0, BL_Q8_0, BL_Q8_0, 32, 352, 3, 3, 3, false, true, false, BL_GLU_GELU_TANH, 0},
        /* more pairs of an expert than a batch takes; then several tiles, panels and steps */
        {BL_Q8_0, BL_Q4_0, BL_Q4_1, 64, 32, 2, 2, 300, true, true, false, BL_GLU_SILU, 0},
        {BL_Q4_K, BL_Q8_0, BL_Q6_K, 768, 256, 5, 3, 41, true, false, true, BL_GLU_SILU, 0},
        {BL_F32, BL_BF16, BL_F16, 70, 45, 4, 2, 60, false, false, true, BL_GLU_SILU, 0},
        /* divided: by dots, by panels; nothing here of a token, or of any */
        {BL_Q4_K, BL_Q4_K, BL_Q6_K, 256, 256, 6, 3, 1, false, false, false, BL_GLU_SILU, 0x15},
        {BL_F16, BL_Q8_0, BL_Q4_0, 96, 64, 5, 2, 17, true, true, true, BL_GLU_SWIGLU_OAI, 0xd},
        {BL_Q8_0, BL_Q4_0, BL_Q4_1, 64, 32, 4, 2, 300, true, true, false, BL_GLU_SILU, 0x9},
        {BL_Q4_K, BL_Q8_0, BL_Q6_K, 768, 256, 5, 3, 41, true, false, true, BL_GLU_SILU, 0x12},
        {BL_Q8_0, BL_Q8_0, BL_Q8_0, 32, 352, 3, 3, 1, false, true, false, BL_GLU_GELU_TANH, 0x7},
        {BL_Q8_0, BL_Q8_0, BL_Q8_0, 64, 64, 3, 3, 50, false, true, false, BL_GLU_GELU_TANH, 0x7},
    };
    for (size_t i = 0; i < N(cases); i++)
        rig_cases(make_experts, check_experts, &cases[i]);
}

/* x is quantised for a matrix, then for experts whose own scratch takes the place. */
static void make_shared_expert(struct rig *r, const void *arg)
{
    const struct experts_case *c = arg;
    const bl_val x = rig_input(r, 0, c->n_in, c->n_tok),
                 z = rig_input(r, 1, c->n_experts, c->n_tok);
    const struct bl_expert_vals e = expert_weights(r, c);
    bl_val ids, weights;
    bl_graph_route(&r->g, z, 0,
                   &(struct bl_route_attr){.n_used = c->n_used, .gating = BL_GATE_SOFTMAX}, &ids,
                   &weights);
    r->first = r->g.n_nodes;
    const bl_val w = bl_graph_weight(&r->g, 20, c->gate, (uint32_t[]){c->n_in, 40, 1});
    bl_graph_matmul(&r->g, w, x, 0, 0);
    r->out[0] =
        bl_graph_experts(&r->g, x, ids, weights, &e,
                         &(struct bl_experts_attr){.n_used = c->n_used, .glu = {.kind = c->glu}});
    rig_alloc(r);
    rig_fill(r, x, 1);
    for (bl_val v = 1; v < r->g.n_vals; v++)
        if (r->g.vals[v].origin == BL_WEIGHT)
            rig_fill_weight(r, v, 0.2f);
    fill_routing(r, c, ids, weights);
    rig_tokens(r, c->n_tok, 0);
}

static void check_shared_expert(const struct rig *r, const void *arg)
{
    struct rig experts_only = *r;
    experts_only.first++;
    check_experts(&experts_only, arg);
}

static void experts_beside_a_matrix(void **state)
{
    (void)state;
    const struct experts_case c = {BL_Q8_0, BL_Q8_0, BL_Q8_0, 64,    96,          4, 2,
                                   9,       false,   false,   false, BL_GLU_SILU, 0};
    rig_cases(make_shared_expert, check_shared_expert, &c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed),
        cmocka_unit_test(gather_rows),
        cmocka_unit_test(rms_norm),
        cmocka_unit_test(matmul),
        cmocka_unit_test(matmul_in_chunks),
        cmocka_unit_test(rope),
        cmocka_unit_test(kv_store),
        cmocka_unit_test(elements),
        cmocka_unit_test(route),
        cmocka_unit_test(route_clamps_its_sum),
        cmocka_unit_test(experts),
        cmocka_unit_test(experts_beside_a_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
