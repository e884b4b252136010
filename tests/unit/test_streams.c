/* SPDX-License-Identifier: MIT */
/* A residual of several streams: against plain double loops, on one to four threads, and against
 * numbers worked out elsewhere. */
#include "cpu_rig.h"

#define N(a) (sizeof(a) / sizeof *(a))

struct streams_case {
    uint32_t streams, n, n_tok, rounds;
    bool head; /* weights of reading alone */
};

static const struct streams_case cases[] = {
    {4, 24, 1, 20, false}, {4, 130, 3, 20, false}, {2, 65, 17, 1, false},
    {1, 7, 3, 2, false},   {4, 33, 3, 20, true},   {16, 5, 2, 3, false},
};

static uint32_t n_weights(const struct streams_case *c)
{
    return c->head ? c->streams : 2 * c->streams + c->streams * c->streams;
}

static void *source(const struct rig *r, uint32_t node, unsigned i)
{
    return r->data[bl_node_src(&r->g, &r->g.nodes[r->first + node], i)];
}

/* ---- REPEAT ---- */

static void make_repeat(struct rig *r, const void *arg)
{
    const struct streams_case *c = arg;
    const bl_val x = rig_input(r, 0, c->n, c->n_tok + 1);
    r->out[0] = bl_graph_repeat(&r->g, x, c->streams);
    rig_alloc(r);
    rig_fill(r, x, 1);
    rig_tokens(r, c->n_tok, 0);
}

static void check_repeat(const struct rig *r, const void *arg)
{
    const struct streams_case *c = arg;
    const float *x = source(r, 0, 0), *y = r->data[r->out[0]];
    for (uint32_t t = 0; t < c->n_tok; t++)
        for (uint32_t s = 0; s < c->streams; s++, y += c->n)
            assert_memory_equal(y, x + t * c->n, c->n * sizeof *y);
    rig_untouched(r, r->out[0], c->n_tok);
}

/* ---- STREAM_WEIGHTS ---- */

static const float NORM_EPS = 1e-6f, EPS = 1e-3f;

static struct bl_streams_attr attr_of(const struct streams_case *c)
{
    return (struct bl_streams_attr){c->streams, c->rounds, NORM_EPS, EPS};
}

static void make_weights(struct rig *r, const void *arg)
{
    const struct streams_case *c = arg;
    const struct bl_streams_attr at = attr_of(c);
    const uint32_t m = n_weights(c);
    const bl_val h = rig_input(r, 0, c->streams * c->n, c->n_tok + 1);
    const bl_val z = rig_input(r, 1, m, c->n_tok + 1);
    const bl_val base = bl_graph_weight(&r->g, 0, BL_F32, (uint32_t[]){m, 1, 1});
    const bl_val scale = bl_graph_weight(&r->g, 1, BL_F32, (uint32_t[]){c->head ? 1 : 3, 1, 1});
    r->out[0] = bl_graph_stream_weights(&r->g, h, z, base, scale, &at);
    rig_alloc(r);
    rig_fill(r, h, 2);
    rig_fill(r, z, 5);
    rig_fill(r, base, 1);
    rig_fill(r, scale, 1);
    rig_tokens(r, c->n_tok, 0);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void balance(uint32_t s, uint32_t rounds, double c[16][16])
{
    for (uint32_t j = 0; j < s; j++) {
        double sum = 0;
        for (uint32_t k = 0; k < s; k++)
            sum += c[j][k] = exp(c[j][k]);
        for (uint32_t k = 0; k < s; k++)
            c[j][k] = c[j][k] / sum + (double)EPS;
    }
    for (uint32_t i = 0; i < 2 * rounds - 1; i++) /* columns, rows, columns, ... */
        for (uint32_t a = 0; a < s; a++) {
            double sum = (double)EPS;
            for (uint32_t b = 0; b < s; b++)
                sum += i % 2 ? c[a][b] : c[b][a];
            for (uint32_t b = 0; b < s; b++)
                *(i % 2 ? &c[a][b] : &c[b][a]) /= sum;
        }
}

static void check_weights(const struct rig *r, const void *arg)
{
    const struct streams_case *c = arg;
    const uint32_t m = n_weights(c), s = c->streams;
    const float *h = source(r, 0, 0), *z = source(r, 0, 1), *base = source(r, 0, 2),
                *scale = source(r, 0, 3), *y = r->data[r->out[0]];
    for (uint32_t t = 0; t < c->n_tok; t++, h += s * c->n, z += m, y += m) {
        double sum = 0, mix[16][16];
        for (uint32_t i = 0; i < s * c->n; i++)
            sum += (double)h[i] * h[i];
        const double norm = 1 / sqrt(sum / (s * c->n) + (double)NORM_EPS);
        for (uint32_t i = 0; i < m; i++) {
            const double v = norm * z[i] * scale[i < s ? 0 : i < 2 * s ? 1 : 2] + base[i];
            if (i >= 2 * s)
                mix[(i - 2 * s) / s][(i - 2 * s) % s] = v;
            else
                rig_near(y[i], i < s ? sigmoid(v) + (double)EPS : 2 * sigmoid(v), 2e-6, "weight",
                         i);
        }
        balance(c->head ? 0 : s, c->rounds, mix);
        for (uint32_t i = 2 * s; i < m; i++)
            rig_near(y[i], mix[(i - 2 * s) / s][(i - 2 * s) % s], 2e-6, "mix", i);
    }
    rig_untouched(r, r->out[0], c->n_tok);
}

/* ---- STREAM_READ, STREAM_WRITE ---- */

static void make_mix(struct rig *r, const void *arg)
{
    const struct streams_case *c = arg;
    const bl_val h = rig_input(r, 0, c->streams * c->n, c->n_tok + 1);
    const bl_val w = rig_input(r, 1, n_weights(c), c->n_tok + 1);
    const bl_val y = rig_input(r, 2, c->n, c->n_tok + 1);
    r->out[0] = bl_graph_stream_read(&r->g, h, w, c->streams);
    if (!c->head)
        r->out[1] = bl_graph_stream_write(&r->g, h, y, w);
    rig_alloc(r);
    rig_fill(r, h, 1);
    rig_fill(r, w, 1);
    rig_fill(r, y, 1);
    rig_tokens(r, c->n_tok, 0);
}

static void check_mix(const struct rig *r, const void *arg)
{
    const struct streams_case *c = arg;
    const uint32_t s = c->streams, m = n_weights(c);
    const float *h = source(r, 0, 0), *w = source(r, 0, 1), *x = r->data[r->out[0]];
    const float *y = c->head ? NULL : source(r, 1, 1), *out = r->data[r->out[1]];
    for (uint32_t t = 0; t < c->n_tok; t++, h += s * c->n, w += m)
        for (uint32_t i = 0; i < c->n; i++) {
            double want = 0;
            for (uint32_t j = 0; j < s; j++)
                want += (double)w[j] * h[j * c->n + i];
            rig_near(x[t * c->n + i], want, 2e-6, "read", i);
            for (uint32_t k = 0; y && k < s; k++) {
                want = (double)w[s + k] * y[t * c->n + i];
                for (uint32_t j = 0; j < s; j++)
                    want += (double)w[2 * s + j * s + k] * h[j * c->n + i];
                rig_near(out[(t * s + k) * c->n + i], want, 5e-6, "write", i);
            }
        }
    rig_untouched(r, r->out[0], c->n_tok);
}

static void streams(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(cases); i++) {
        rig_cases(make_repeat, check_repeat, &cases[i]);
        rig_cases(make_weights, check_weights, &cases[i]);
        rig_cases(make_mix, check_mix, &cases[i]);
    }
}

/* ---- numbers worked out elsewhere ---- */

/* z is such that the norm is 1: one element per stream, 1, 2, 3, 4 of mean square 7.5. */
static void make_golden(struct rig *r, const void *arg)
{
    static const float a[24] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8,
                                9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4},
                       b[24] = {2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5,
                                9, 0, 4, 5, 2, 3, 5, 3, 6, 0, 2, 8},
                       scales[3] = {0.5f, 1.5f, 2};
    (void)arg;
    const struct bl_streams_attr at = {4, 20, 1e-6f, 1e-6f};
    const bl_val h = rig_input(r, 0, 4, 1), z = rig_input(r, 1, 24, 1), y = rig_input(r, 2, 1, 1);
    const bl_val base = bl_graph_weight(&r->g, 0, BL_F32, (uint32_t[]){24, 1, 1});
    const bl_val scale = bl_graph_weight(&r->g, 1, BL_F32, (uint32_t[]){3, 1, 1});
    const bl_val w = bl_graph_stream_weights(&r->g, h, z, base, scale, &at);
    r->out[0] = bl_graph_stream_read(&r->g, h, w, 4);
    r->out[1] = bl_graph_stream_write(&r->g, h, y, w);
    rig_alloc(r);
    for (uint32_t i = 0; i < 24; i++) {
        ((float *)r->data[z])[i] = (a[i] - 4.5f) / 3 * sqrtf(7.5f);
        ((float *)r->data[base])[i] = (b[i] - 4.5f) / 20;
    }
    memcpy(r->data[scale], scales, sizeof scales);
    for (uint32_t i = 0; i < 4; i++)
        ((float *)r->data[h])[i] = 1.0f + (float)i;
    ((float *)r->data[y])[0] = 10;
    rig_tokens(r, 1, 0);
}

static void check_golden(const struct rig *r, const void *arg)
{
    static const double want[24] = {.407334, .387382,  .435774, .399313, 1.062419, 1.837428,
                                    .387758, 1.432120, .073174, .158954, .037970,  .729901,
                                    .415077, .425909,  .151780, .007233, .020870,  .260874,
                                    .621549, .096706,  .490878, .154262, .188700,  .166159},
                        out[4] = {13.553637, 20.784721, 6.838556, 16.020317};
    (void)arg;
    const float *w = source(r, 1, 1), *y = r->data[r->out[1]];
    for (uint32_t i = 0; i < 24; i++)
        rig_near(w[i], want[i], 2e-6, "weight", i);
    rig_near(((float *)r->data[r->out[0]])[0], 4.086674, 1e-5, "read", 0);
    for (uint32_t i = 0; i < 4; i++)
        rig_near(y[i], out[i], 2e-5, "write", i);
}

static void golden_numbers(void **state)
{
    (void)state;
    rig_cases(make_golden, check_golden, NULL);
}

/* ---- shapes ---- */

static void wrong_shapes_are_refused(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 10; i++) {
        struct bl_streams_attr at = {2, 20, 1e-6f, 1e-6f};
        struct bl_graph g;
        bl_graph_init(&g);
        const bl_val ids = bl_graph_param(&g, BL_PARAM_TOKENS, 3);
        bl_val row[5];
        for (uint32_t n = 0; n < N(row); n++)
            row[n] = bl_graph_embed(
                &g,
                bl_graph_weight(&g, 10 + (int32_t)n, BL_F32,
                                (uint32_t[]){(uint32_t[]){14, 8, 7, 13, 1}[n], 4, 1}),
                ids, 1);
        const bl_val base = bl_graph_weight(&g, 0, BL_F32, (uint32_t[]){i == 2 ? 7 : 8, 1, 1});
        const bl_val scale = bl_graph_weight(&g, 1, BL_F32, (uint32_t[]){i == 3 ? 1 : 3, 1, 1});
        at.n = i == 4 ? 0 : i == 5 ? 17 : 2;
        at.iterations = i != 6;
        if (i < 7)
            bl_graph_stream_weights(&g, row[i == 1 ? 3 : 0], row[1], base, scale, &at);
        else if (i == 7)
            bl_graph_stream_read(&g, row[3], row[1], 2);
        else if (i == 8)
            bl_graph_stream_read(&g, row[0], row[4], 2);
        else
            bl_graph_stream_write(&g, row[0], row[2], row[2]);
        assert_int_equal(bl_graph_check(&g), i ? BL_EINVAL : BL_OK);
        bl_graph_finish(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams),
        cmocka_unit_test(golden_numbers),
        cmocka_unit_test(wrong_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
