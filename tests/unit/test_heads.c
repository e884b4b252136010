/* SPDX-License-Identifier: MIT */
/* What latent attention needs of heads: a matrix for each, as it lies and transposed, concatenated
 * parts, rope on a part, norms without weights, tempered queries, values at the front of keys; and
 * the clamped SiLU. Against plain double loops, on one to four threads. */
#include "cpu_rig.h"

#include "attention_rig.h"

#define N(a) (sizeof(a) / sizeof *(a))

static const uint32_t token_counts[] = {1, 3, 17};

static const struct bl_node *node_of(const struct rig *r)
{
    return &r->g.nodes[r->first];
}

static void *source(const struct rig *r, unsigned i)
{
    return r->data[bl_node_src(&r->g, node_of(r), i)];
}

/* ---- MATMUL_HEADS ---- */

struct heads_case {
    uint32_t type, in, out, heads, n_tok; /* in: elements of a row of w */
    uint32_t gap;                         /* rows of others between two heads' */
    bool transposed;
    uint32_t scales; /* 0, 1 or heads */
};

static void make_heads(struct rig *r, const void *arg)
{
    const struct heads_case *c = arg;
    const uint32_t k = c->transposed ? c->out : c->in;
    const bl_val x = rig_input(r, 0, c->heads * k, c->n_tok + 1);
    const bl_val w = bl_graph_weight(&r->g, 0, c->type, (uint32_t[]){c->in, c->out, c->heads});
    const bl_val scale =
        c->scales ? bl_graph_weight(&r->g, 1, BL_F32, (uint32_t[]){c->scales, 1, 1}) : 0;
    const struct bl_heads_attr at = {c->out + c->gap, c->transposed};
    r->out[0] = bl_graph_matmul_heads(&r->g, w, x, scale, &at);
    rig_alloc(r);
    rig_fill(r, x, 1);
    rig_fill_weight(r, w, 1);
    if (scale)
        rig_fill(r, scale, 1);
    if (c->gap) { /* the same rows, further apart */
        const size_t row = (size_t)bl_dtype_row_bytes(c->type, c->in), head = c->out * row;
        uint8_t *wide = malloc(c->heads * (head + c->gap * row));
        memset(wide, 0xff, c->heads * (head + c->gap * row));
        for (uint32_t h = 0; h < c->heads; h++)
            memcpy(wide + h * (head + c->gap * row), (uint8_t *)r->data[w] + h * head, head);
        free(r->data[w]);
        r->data[w] = wide;
    }
    rig_tokens(r, c->n_tok, 0);
}

static double want_heads(const struct rig *r, const struct heads_case *c, uint32_t t, uint32_t head,
                         uint32_t i, double *sum_abs)
{
    const uint32_t k = c->transposed ? c->out : c->in;
    const float *x = (float *)source(r, 0 + 1) + ((size_t)t * c->heads + head) * k;
    const float *scale = source(r, 2);
    double sum = 0;
    *sum_abs = 0;
    for (uint32_t j = 0; j < k; j++) {
        const uint32_t row = c->transposed ? j : i, col = c->transposed ? i : j;
        float *w =
            rig_row(r, bl_node_src(&r->g, node_of(r), 0), (uint64_t)head * (c->out + c->gap) + row);
        sum += (double)w[col] * x[j];
        *sum_abs += fabs((double)w[col]);
        free(w);
    }
    return sum * (scale ? (double)scale[c->scales > 1 ? head : 0] : 1);
}

static void check_heads(const struct rig *r, const void *arg)
{
    const struct heads_case *c = arg;
    const uint32_t n = c->transposed ? c->in : c->out;
    const bool is_float = r->dev->caps.exact || bl_dtypes[c->type].act == BL_ACT_F32;
    for (uint32_t t = 0; t < c->n_tok; t++)
        for (uint32_t head = 0; head < c->heads; head++)
            for (uint32_t i = 0; i < n; i++) {
                double sum_abs;
                const double want = want_heads(r, c, t, head, i, &sum_abs);
                const size_t at = ((size_t)t * c->heads + head) * n + i;
                rig_near(((float *)r->data[r->out[0]])[at], want,
                         sum_abs * (is_float || c->transposed ? 1e-6 : 1.0 / 250) + 1e-6,
                         bl_dtypes[c->type].name, at);
            }
    rig_untouched(r, r->out[0], c->n_tok);
}

static void matmul_heads(void **state)
{
    (void)state;
    const struct heads_case cases[] = {
        {BL_F32, 7, 5, 3, 1, 0, false, 0},      {BL_F32, 7, 5, 3, 1, 0, true, 0},
        {BL_F16, 24, 33, 5, 3, 4, false, 1},    {BL_F16, 24, 33, 5, 17, 4, true, 5},
        {BL_BF16, 19, 3, 1, 3, 0, true, 1},     {BL_Q8_0, 96, 10, 4, 17, 3, false, 4},
        {BL_Q8_0, 288, 9, 3, 17, 6, true, 0},   {BL_Q4_0, 64, 130, 2, 1, 0, false, 0},
        {BL_Q4_K, 512, 12, 2, 3, 1, false, 0},  {BL_Q4_K, 512, 12, 2, 9, 1, true, 2},
        {BL_Q6_K, 256, 4, 3, 17, 0, false, 0},  {BL_Q8_0, 288, 40, 1, 70, 0, true, 1},
        {BL_Q4_0, 544, 40, 1, 70, 1, false, 0},
    };
    for (size_t i = 0; i < N(cases); i++)
        rig_cases(make_heads, check_heads, &cases[i]);
}

/* ---- CONCAT of runs ---- */

static void make_concat(struct rig *r, const void *arg)
{
    const uint32_t n_tok = *(const uint32_t *)arg;
    const bl_val a = rig_input(r, 0, 3 * 4, n_tok + 1), b = rig_input(r, 1, 3 * 2, n_tok + 1);
    r->out[0] = bl_graph_concat_runs(&r->g, a, b, 0, 3);
    rig_alloc(r);
    rig_fill(r, a, 1);
    rig_fill(r, b, 1);
    rig_tokens(r, n_tok, 0);
}

static void check_concat(const struct rig *r, const void *arg)
{
    const uint32_t n_tok = *(const uint32_t *)arg;
    const float *a = source(r, 0), *b = source(r, 1), *y = r->data[r->out[0]];
    for (uint32_t run = 0; run < 3 * n_tok; run++) {
        assert_memory_equal(y + 6 * run, a + 4 * run, 4 * sizeof *y);
        assert_memory_equal(y + 6 * run + 4, b + 2 * run, 2 * sizeof *y);
    }
    rig_untouched(r, r->out[0], n_tok);
}

static void concat_runs(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(token_counts); i++)
        rig_cases(make_concat, check_concat, &token_counts[i]);
}

/* ---- ROPE of a tail, and back ---- */

struct rope_case {
    uint32_t n_tok, first_pos, group, inverse, mode;
};
enum { HEAD = 11, FIRST = 3, DIMS = 6, HEADS = 2 };

static void make_rope(struct rig *r, const void *arg)
{
    const struct rope_case *c = arg;
    const struct bl_angles_attr at = {.n_dims = DIMS,
                                      .base = 100,
                                      .freq_scale = 0.5f,
                                      .magnitude = 2,
                                      .group = c->group,
                                      .inverse = c->inverse};
    const bl_val x = rig_input(r, 0, HEADS * HEAD, c->n_tok + 1);
    const bl_val positions = bl_graph_param(&r->g, BL_PARAM_POSITIONS, c->n_tok + 1);
    const bl_val angles = bl_graph_rope_angles(&r->g, positions, 0, &at);
    r->out[0] = bl_graph_rope_at(&r->g, x, angles, c->mode, HEAD, FIRST);
    rig_alloc(r);
    rig_fill(r, x, 1);
    rig_tokens(r, c->n_tok, c->first_pos);
}

static void check_rope(const struct rig *r, const void *arg)
{
    const struct rope_case *c = arg;
    const struct bl_node *n = &r->g.nodes[r->first + 1];
    const float *x = r->data[bl_node_src(&r->g, n, 0)], *y = r->data[r->out[0]];
    for (uint32_t t = 0; t < c->n_tok; t++)
        for (uint32_t head = 0; head < HEADS; head++) {
            const size_t at = (t * HEADS + head) * HEAD;
            const uint32_t p = c->first_pos + t, start = c->group ? p / c->group * c->group : p;
            double want[HEAD];
            for (uint32_t i = 0; i < HEAD; i++)
                want[i] = x[at + i];
            for (uint32_t i = 0; i < DIMS / 2; i++) {
                const uint32_t a = FIRST + (c->mode == BL_ROPE_NORM ? 2 * i : i);
                const uint32_t b = c->mode == BL_ROPE_NORM ? a + 1 : a + DIMS / 2;
                const double phi = (c->inverse ? -0.5 : 0.5) * start * pow(100, -2.0 * i / DIMS);
                want[a] = 2 * (x[at + a] * cos(phi) - x[at + b] * sin(phi));
                want[b] = 2 * (x[at + a] * sin(phi) + x[at + b] * cos(phi));
            }
            for (uint32_t i = 0; i < HEAD; i++)
                rig_near(y[at + i], want[i], 1e-6, "rope", at + i);
        }
    rig_untouched(r, r->out[0], c->n_tok);
}

static void rope_of_a_tail(void **state)
{
    (void)state;
    const struct rope_case cases[] = {{1, 0, 0, 0, BL_ROPE_NORM},     {3, 1000, 0, 0, BL_ROPE_NORM},
                                      {17, 5, 0, 1, BL_ROPE_NORM},    {17, 6, 4, 0, BL_ROPE_NORM},
                                      {3, 126, 128, 0, BL_ROPE_NEOX}, {3, 9, 1, 1, BL_ROPE_NEOX}};
    for (size_t i = 0; i < N(cases); i++)
        rig_cases(make_rope, check_rope, &cases[i]);
}

/* ---- RMS_NORM without weights ---- */

static void make_norm(struct rig *r, const void *arg)
{
    const uint32_t n_tok = *(const uint32_t *)arg;
    const bl_val x = rig_input(r, 0, 3 * 20, n_tok + 1);
    r->out[0] = bl_graph_rms_norm_runs(&r->g, x, 20, 1e-3f);
    rig_alloc(r);
    rig_fill(r, x, 3);
    rig_tokens(r, n_tok, 0);
}

static void check_norm(const struct rig *r, const void *arg)
{
    const uint32_t n_tok = *(const uint32_t *)arg;
    const float *x = source(r, 0), *y = r->data[r->out[0]];
    for (uint32_t run = 0; run < 3 * n_tok; run++, x += 20, y += 20) {
        double sum = 0;
        for (uint32_t i = 0; i < 20; i++)
            sum += (double)x[i] * x[i];
        for (uint32_t i = 0; i < 20; i++)
            rig_near(y[i], x[i] / sqrt(sum / 20 + 1e-3), 1e-5, "norm", i);
    }
    rig_untouched(r, r->out[0], n_tok);
}

static void norm_of_runs(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(token_counts); i++)
        rig_cases(make_norm, check_norm, &token_counts[i]);
}

/* ---- TEMPER ---- */

static void make_temper(struct rig *r, const void *arg)
{
    const uint32_t n_tok = *(const uint32_t *)arg;
    const bl_val x = rig_input(r, 0, 9, n_tok + 1);
    const bl_val positions = bl_graph_param(&r->g, BL_PARAM_POSITIONS, n_tok + 1);
    r->out[0] = bl_graph_temper(&r->g, x, positions, &(struct bl_temper_attr){0.1f, 8});
    rig_alloc(r);
    rig_fill(r, x, 1);
    rig_tokens(r, n_tok, 4);
}

static void check_temper(const struct rig *r, const void *arg)
{
    const uint32_t n_tok = *(const uint32_t *)arg;
    const float *x = source(r, 0), *y = r->data[r->out[0]];
    for (uint32_t i = 0; i < 9 * n_tok; i++)
        rig_near(y[i], x[i] * (1 + 0.1 * log(floor((4 + i / 9) / 8.0) + 1)), 1e-6, "temper", i);
    rig_untouched(r, r->out[0], n_tok);
}

static void temper(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(token_counts); i++)
        rig_cases(make_temper, check_temper, &token_counts[i]);
}

/* ---- GLU, clamped ---- */

static void make_clamped(struct rig *r, const void *arg)
{
    const uint32_t n = *(const uint32_t *)arg;
    const bl_val gate = rig_input(r, 0, n, 4), up = rig_input(r, 1, n, 4);
    const struct bl_glu_attr at = {.kind = BL_GLU_SILU_CLAMPED, .limit = 1.5f};
    r->out[0] = bl_graph_glu(&r->g, gate, up, &at);
    rig_alloc(r);
    rig_fill(r, gate, 4);
    rig_fill(r, up, 4);
    rig_tokens(r, 3, 0);
}

static void check_clamped(const struct rig *r, const void *arg)
{
    const uint32_t n = *(const uint32_t *)arg;
    const float *gate = source(r, 0), *up = source(r, 1), *y = r->data[r->out[0]];
    for (uint32_t i = 0; i < 3 * n; i++) {
        const double g = fmin(gate[i], 1.5), u = fmax(-1.5, fmin(up[i], 1.5));
        rig_near(y[i], g / (1 + exp(-g)) * u, 2e-6, "clamped", i);
    }
    rig_untouched(r, r->out[0], 3);
}

static void clamped_silu(void **state)
{
    (void)state;
    const uint32_t n[] = {1, 63, 64, 65, 200};
    for (size_t i = 0; i < N(n); i++)
        rig_cases(make_clamped, check_clamped, &n[i]);
}

/* ---- ATTENTION: values are the front of the keys ---- */

struct latent_case {
    uint32_t type, n_head, dk, dv, n_tok, first;
};

static void make_latent(struct rig *r, const void *arg)
{
    const struct latent_case *c = arg;
    const bl_val q = rig_input(r, 0, c->n_head * c->dk, c->n_tok + 1);
    const bl_val k = bl_graph_state(&r->g, 0, c->type, c->dk, c->first + c->n_tok, 1);
    const struct bl_attention_attr at = {
        .n_head = c->n_head, .n_head_kv = 1, .dk = c->dk, .dv = c->dv, .scale = 0.3f};
    r->out[0] = bl_graph_attention(&r->g, q, k, k, 0, &at);
    rig_alloc(r);
    rig_fill(r, q, 2);
    rig_fill_weight(r, k, 1);
    rig_tokens(r, c->n_tok, c->first);
}

static void check_latent(const struct rig *r, const void *arg)
{
    const struct latent_case *c = arg;
    const float *q = source(r, 0), *y = r->data[r->out[0]];
    const bl_val k = bl_node_src(&r->g, node_of(r), 1);
    for (uint32_t t = 0; t < c->n_tok; t++)
        for (uint32_t head = 0; head < c->n_head; head++, q += c->dk, y += c->dv) {
            double sum = 0, want[64] = {0};
            for (uint32_t j = 0; j <= c->first + t; j++) {
                float *row = rig_row(r, k, j);
                double score = 0;
                for (uint32_t i = 0; i < c->dk; i++)
                    score += (double)q[i] * row[i];
                const double e = exp((double)0.3f * score);
                sum += e;
                for (uint32_t i = 0; i < c->dv; i++)
                    want[i] += e * row[i];
                free(row);
            }
            for (uint32_t i = 0; i < c->dv; i++)
                rig_near(y[i], want[i] / sum, rig_attention_error(r, c->n_tok + 1, c->n_head, 3e-6),
                         "latent", i);
        }
    rig_untouched(r, r->out[0], c->n_tok);
}

static void latent_attention(void **state)
{
    (void)state;
    const struct latent_case cases[] = {
        {BL_F32, 1, 9, 5, 1, 0},      {BL_F32, 17, 12, 8, 1, 200}, {BL_F16, 24, 40, 32, 3, 130},
        {BL_F16, 9, 40, 32, 33, 120}, {BL_Q8_0, 8, 64, 32, 5, 30},
    };
    for (size_t i = 0; i < N(cases); i++)
        rig_attention_cases(make_latent, check_latent, &cases[i]);
}

/* ---- shapes ---- */

static bool refused(struct bl_graph *g)
{
    const bool no = bl_graph_check(g) == BL_EINVAL;
    bl_graph_finish(g);
    return no;
}

static void wrong_shapes_are_refused(void **state)
{
    (void)state;
    const struct bl_heads_attr wide[] = {{6, 0}, {5, 0}, {4, 0}, {5, 2}};
    for (unsigned i = 0; i < 8; i++) {
        struct bl_graph g;
        bl_graph_init(&g);
        const bl_val table = bl_graph_weight(&g, 9, BL_F32, (uint32_t[]){21, 4, 1});
        const bl_val x = bl_graph_embed(&g, table, bl_graph_param(&g, BL_PARAM_TOKENS, 2), 1);
        const bl_val w = bl_graph_weight(&g, 0, BL_F32, (uint32_t[]){7, 5, 3});
        const bl_val ids = bl_graph_weight(&g, 1, BL_I32, (uint32_t[]){7, 5, 3});
        const bl_val scale = bl_graph_weight(&g, 2, BL_F32, (uint32_t[]){2, 1, 1});
        if (i < 4)
            bl_graph_matmul_heads(&g, w, x, 0, &wide[i]);
        else if (i < 6)
            bl_graph_matmul_heads(&g, i == 4 ? ids : w, x, i == 4 ? 0 : scale, &wide[1]);
        else
            bl_graph_rms_norm_runs(&g, x, i == 6 ? 0 : 5, 1e-5f);
        assert_int_equal(refused(&g), i > 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matmul_heads),     cmocka_unit_test(concat_runs),
        cmocka_unit_test(rope_of_a_tail),   cmocka_unit_test(norm_of_runs),
        cmocka_unit_test(temper),           cmocka_unit_test(clamped_silu),
        cmocka_unit_test(latent_attention), cmocka_unit_test(wrong_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
