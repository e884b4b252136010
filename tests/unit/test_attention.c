/* SPDX-License-Identifier: MIT */
/* ATTENTION against a softmax in doubles: heads, windows, rings, sinks, sequences, cache types, on
 * one to four threads. */
#include "cpu_rig.h"

#include "attention_rig.h"

struct attention_case {
    const char *name;
    struct bl_attention_attr at;
    uint32_t type_k, type_v, rows; /* of the state */
    uint32_t n_tok, bound;
    uint32_t first; /* position of the batch's first token, in every sequence */
    uint32_t n_seq; /* sequences, tokens dealt to them in turn or in runs */
    bool sinks, runs;
};

static bl_val source(const struct rig *r, unsigned i)
{
    return bl_node_src(&r->g, &r->g.nodes[r->first], i);
}

/* Where the batch's tokens stand: sequence s owns slot n_seq - 1 - s and is s tokens ahead of the
 * first. */
static void place_tokens(struct rig *r, const struct attention_case *c)
{
    struct rig_step *s = &r->step;
    *s = (struct rig_step){.n_tok = c->n_tok, .n_seq = c->n_seq};
    for (uint32_t i = 0; i < c->n_seq; i++)
        s->table[i] = (struct bl_seq_params){c->first + i, c->n_seq - 1 - i};
    for (uint32_t t = 0; t < c->n_tok; t++) {
        s->seq[t] = c->runs ? t * c->n_seq / c->n_tok : t % c->n_seq;
        s->pos[t] = s->table[s->seq[t]].n_kv++;
    }
}

/* Every row of the state a token may look at gets random values; a row holds the last position that
 * maps onto it. */
static void fill_state(struct rig *r, bl_val v)
{
    const struct bl_value *s = &r->g.vals[v];
    const size_t row_bytes = (size_t)bl_dtype_row_bytes(s->type, s->ne[0]);
    float *x = malloc(s->ne[0] * sizeof *x);
    for (uint32_t row = 0; row < s->ne[1] * s->ne[2]; row++) {
        for (uint32_t i = 0; i < s->ne[0]; i++)
            x[i] = rig_random(r);
        bl_dtype_encode(s->type, s->ne[0], (uint8_t *)r->data[v] + row * row_bytes, x);
    }
    free(x);
}

static void make_attention(struct rig *r, const void *arg)
{
    const struct attention_case *c = arg;
    const uint32_t n_kv = c->at.n_head_kv;
    const bl_val q = rig_input(r, 0, c->at.n_head * c->at.dk, c->bound);
    const bl_val k = bl_graph_state(&r->g, 0, c->type_k, n_kv * c->at.dk, c->rows, c->n_seq);
    const bl_val v = bl_graph_state(&r->g, 1, c->type_v, n_kv * c->at.dv, c->rows, c->n_seq);
    const bl_val sinks =
        c->sinks ? bl_graph_weight(&r->g, 0, BL_F32, (uint32_t[]){c->at.n_head, 1, 1}) : 0;
    r->out[0] = bl_graph_attention(&r->g, q, k, v, sinks, &c->at);
    rig_alloc(r);
    rig_fill(r, q, 2);
    fill_state(r, k);
    fill_state(r, v);
    if (sinks)
        rig_fill(r, sinks, 3);
    place_tokens(r, c);
}

/* Head of a K or V row as doubles. */
static void head_of(const struct rig *r, bl_val v, uint32_t slot, uint32_t pos, uint32_t kv,
                    uint32_t n, double *out)
{
    float *x = rig_row(r, v, bl_kv_row(r->g.vals[v].ne[1], slot, pos));
    for (uint32_t i = 0; i < n; i++)
        out[i] = x[kv * n + i];
    free(x);
}

static void reference(const struct rig *r, const struct attention_case *c, uint32_t t,
                      uint32_t head, double *y)
{
    const uint32_t pos = r->step.pos[t], slot = r->step.table[r->step.seq[t]].slot;
    const uint32_t lo = c->at.window && pos + 1 > c->at.window ? pos + 1 - c->at.window : 0;
    const uint32_t kv = head / (c->at.n_head / c->at.n_head_kv);
    const float *q = (float *)r->data[source(r, 0)] + (t * c->at.n_head + head) * c->at.dk;
    double *score = malloc((pos + 1) * sizeof *score), row[512], max = -INFINITY, sum = 0;
    for (uint32_t j = lo; j <= pos; j++) {
        head_of(r, source(r, 1), slot, j, kv, c->at.dk, row);
        score[j] = 0;
        for (uint32_t i = 0; i < c->at.dk; i++)
            score[j] += q[i] * row[i];
        score[j] *= (double)c->at.scale;
        max = fmax(max, score[j]);
    }
    const float *sinks = r->data[source(r, 3)];
    if (c->sinks) {
        max = fmax(max, (double)sinks[head]);
        sum = exp(sinks[head] - max);
    }
    for (uint32_t j = lo; j <= pos; j++)
        sum += exp(score[j] - max);
    memset(y, 0, c->at.dv * sizeof *y);
    for (uint32_t j = lo; j <= pos; j++) {
        head_of(r, source(r, 2), slot, j, kv, c->at.dv, row);
        for (uint32_t i = 0; i < c->at.dv; i++)
            y[i] += exp(score[j] - max) / sum * row[i];
    }
    free(score);
}

static void check_attention(const struct rig *r, const void *arg)
{
    const struct attention_case *c = arg;
    const double error = rig_attention_error(r, c->bound, c->at.n_head / c->at.n_head_kv,
                                             3e-6 * fmax(1, (double)c->at.scale));
    double want[512];
    for (uint32_t t = 0; t < c->n_tok; t++)
        for (uint32_t head = 0; head < c->at.n_head; head++) {
            reference(r, c, t, head, want);
            for (uint32_t i = 0; i < c->at.dv; i++) {
                const uint32_t at = (t * c->at.n_head + head) * c->at.dv + i;
                rig_near(((float *)r->data[r->out[0]])[at], want[i], error, c->name, at);
            }
        }
    rig_untouched(r, r->out[0], c->n_tok);
}

/* Fields: name, {heads, kv heads, dk, dv, window, scale}, types, rows, tokens, bound, first,
 * sequences, sinks, runs */
static const struct attention_case cases[] = {
    {"first token", {1, 1, 8, 8, 0, 1}, BL_F32, BL_F32, 4, 1, 1, 0, 1, false, false},
    {"odd heads", {3, 3, 7, 5, 0, 0.4f}, BL_F32, BL_F32, 40, 1, 1, 30, 1, false, false},
    {"grouped", {9, 3, 64, 64, 0, 0.125f}, BL_F16, BL_F16, 300, 1, 1, 290, 1, false, false},
    {"one kv head", {8, 1, 16, 16, 0, 0.25f}, BL_F32, BL_F16, 200, 3, 4, 150, 1, false, false},
    {"split ends", {2, 2, 8, 8, 0, 0.3f}, BL_F32, BL_F32, 256, 1, 1, 127, 1, false, false},
    {"next split", {2, 2, 8, 8, 0, 0.3f}, BL_F32, BL_F32, 256, 1, 1, 128, 1, false, false},
    {"long context", {2, 1, 8, 16, 0, 0.3f}, BL_F16, BL_F16, 9000, 2, 2, 8500, 1, false, false},
    {"longer splits", {4, 2, 8, 16, 0, 0.3f}, BL_F16, BL_F16, 6200, 4, 4, 6142, 1, true, false},
    {"window", {4, 2, 32, 32, 50, 0.2f}, BL_F16, BL_F16, 60, 1, 1, 133, 1, false, false},
    {"window of one", {2, 2, 8, 8, 1, 0.2f}, BL_F32, BL_F32, 17, 17, 17, 300, 1, false, false},
    {"window, first", {2, 1, 8, 8, 20, 0.2f}, BL_F32, BL_F32, 60, 17, 20, 0, 1, false, false},
    {"window, batch", {4, 2, 32, 32, 140, 0.2f}, BL_F16, BL_F16, 180, 40, 40, 260, 1, true, false},
    {"sinks", {6, 2, 16, 16, 0, 0.25f}, BL_F32, BL_F32, 64, 1, 1, 40, 1, true, false},
    {"sinks, batch", {6, 2, 16, 16, 0, 0.25f}, BL_F32, BL_F32, 64, 17, 18, 20, 1, true, false},
    {"prefill", {4, 2, 16, 24, 0, 0.25f}, BL_F16, BL_F16, 320, 70, 80, 200, 1, false, false},
    {"prefill from zero", {4, 4, 13, 11, 0, 0.25f}, BL_F32, BL_F32, 64, 33, 33, 0, 1, false, false},
    {"steep", {4, 2, 32, 32, 0, 8}, BL_F16, BL_F16, 320, 70, 80, 200, 1, false, false},
    {"sequences", {4, 2, 16, 16, 0, 0.25f}, BL_F16, BL_F16, 200, 3, 3, 130, 3, false, false},
    {"sequences, batch",
     {4, 2, 16, 16, 0, 0.25f},
     BL_F16,
     BL_F16,
     200,
     40,
     40,
     120,
     3,
     false,
     false},
    {"sequences, runs", {4, 2, 16, 16, 30, 0.25f}, BL_F16, BL_F16, 80, 40, 40, 120, 2, false, true},
    {"bf16", {2, 1, 48, 48, 0, 0.2f}, BL_BF16, BL_BF16, 150, 5, 5, 140, 1, false, false},
    {"q8_0", {4, 2, 64, 32, 0, 0.2f}, BL_Q8_0, BL_Q8_0, 150, 1, 1, 140, 1, false, false},
    {"q8_0, q4_0", {4, 2, 64, 96, 0, 0.2f}, BL_Q8_0, BL_Q4_0, 150, 7, 7, 140, 1, false, false},
    {"wide heads", {2, 1, 256, 256, 0, 0.06f}, BL_F16, BL_F16, 64, 5, 5, 50, 1, false, false},
};

static void attention(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        rig_attention_cases(make_attention, check_attention, &cases[i]);
}

/* 40 tokens in pieces of n, each of which sees the whole cache. */
static void in_pieces(bool exact, uint32_t mask, uint32_t first, uint32_t n, float *out)
{
    const struct attention_case all = {
        "all", {6, 2, 32, 32, 0, 0.3f}, BL_F16, BL_F16, first + 290, 40, 40, first, 1, true, false};
    struct rig many, one;
    rig_open(&many, &(struct rig_config){3, mask, exact});
    make_attention(&many, &all);
    for (uint32_t t = 0; t < 40; t += n) {
        struct attention_case part = all;
        part.n_tok = part.bound = n;
        part.first = first + t;
        rig_open(&one, &(struct rig_config){1 + t % 3, mask, exact});
        make_attention(&one, &part);
        for (unsigned i = 1; i < 4; i++)
            memcpy(one.data[source(&one, i)], many.data[source(&many, i)],
                   (size_t)bl_value_bytes(&one.g.vals[source(&one, i)]));
        memcpy(one.data[source(&one, 0)], (float *)many.data[source(&many, 0)] + t * 6 * 32,
               n * 6 * 32 * 4);
        rig_ok(rig_run(&one));
        memcpy(out + t * 6 * 32, one.data[one.out[0]], n * 6 * 32 * 4);
        rig_close(&one);
    }
    rig_close(&many);
}

/* A token of a batch gives the bits that it gives in a batch cut elsewhere; few tokens, for which
 * other kernels are best, the same but for rounding, and the same bits among them. */
static void check_pieces(bool exact, uint32_t mask, uint32_t first, double error)
{
    static float whole[40 * 6 * 32], part[40 * 6 * 32], few[40 * 6 * 32];
    in_pieces(exact, mask, first, 40, whole);
    in_pieces(exact, mask, first, 8, part);
    assert_memory_equal(part, whole, sizeof whole);
    in_pieces(exact, mask, first, 4, few);
    in_pieces(exact, mask, first, 1, part);
    assert_memory_equal(part, few, sizeof few);
    for (uint32_t i = 0; i < 40 * 6 * 32; i++)
        rig_near(few[i], (double)whole[i], error, "few", i);
}

static void batches_do_not_matter(void **state)
{
    struct rig r;
    (void)state;
    /* Of the later tokens, those from 6,144 on are cut into longer splits. */
    for (uint32_t first = 110; first <= 6130; first += 6020) {
        check_pieces(true, 0, first, 0);
        check_pieces(false, UINT32_MAX & ~(uint32_t)BL_CPU_BF16, first, 1e-6);
    }
    rig_open(&r, &(struct rig_config){1, UINT32_MAX, false});
    const double error = rig_attention_error(&r, 40, 3, 1e-6);
    rig_close(&r);
    check_pieces(false, UINT32_MAX, 110, error);
    check_pieces(false, UINT32_MAX, 6130, error);
}

/* A row of K or V as it is after an overflow. */
static void spoil(const struct rig *r, unsigned src, uint32_t pos)
{
    const bl_val v = source(r, src);
    const struct bl_value *state = &r->g.vals[v];
    uint16_t *row = (uint16_t *)r->data[v] + (size_t)bl_kv_row(state->ne[1], 0, pos) * state->ne[0];
    for (uint32_t i = 0; i < state->ne[0]; i++)
        row[i] = src == 2 && i % 2 ? 0x7c00 : 0x7e00; /* infinity, not a number */
}

/* What no number is reaches the tokens that see it and no others, which may share a tile. */
static void rows_unseen_do_not_matter(void **state)
{
    (void)state;
    static const uint32_t counts[] = {2, 4, 9, 20};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (uint32_t group = 1; group <= 3; group += 2) {
            const uint32_t n = counts[i];
            struct attention_case c = {"unseen", {2 * group, 2, 32, 40, 50, 0.3f},
                                       BL_F16,   BL_F16,
                                       200,      n,
                                       n,        100,
                                       1,        false,
                                       false};
            struct rig r;
            rig_open(&r, &(struct rig_config){2, UINT32_MAX, false});
            make_attention(&r, &c);
            for (unsigned src = 1; src <= 2; src++) {
                spoil(&r, src, 100 + n - 1); /* the last token's own */
                spoil(&r, src, 51);          /* the last one in the first token's window alone */
            }
            rig_ok(rig_run(&r));
            const float *y = r.data[r.out[0]];
            const uint32_t row = c.at.n_head * c.at.dv;
            for (uint32_t t = 0; t < n; t++)
                for (uint32_t j = 0; j < row; j++)
                    assert_int_equal(!isfinite(y[t * row + j]), t == 0 || t == n - 1);
            rig_close(&r);
        }
}

/* What a head's K and V may be. */
static void cache_types_are_checked(void **state)
{
    (void)state;
    const struct {
        uint32_t k, v, d;
        bool ok;
    } types[] = {{BL_F16, BL_F32, 5, true},     {BL_Q8_0, BL_Q8_0, 64, true},
                 {BL_Q8_0, BL_Q8_0, 48, false}, {BL_F16, BL_Q4_0, 16, false},
                 {BL_Q4_K, BL_F16, 256, false}, {BL_F16, BL_Q5_0, 32, false}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct rig r;
        rig_open(&r, &(struct rig_config){1, 0, false});
        const bl_val q = rig_input(&r, 0, 2 * types[i].d, 1);
        const bl_val k = bl_graph_state(&r.g, 0, types[i].k, 2 * types[i].d, 8, 1);
        const bl_val v = bl_graph_state(&r.g, 1, types[i].v, 2 * types[i].d, 8, 1);
        bl_graph_attention(&r.g, q, k, v, 0,
                           &(struct bl_attention_attr){2, 2, types[i].d, types[i].d, 0, 1});
        rig_ok(bl_graph_check(&r.g));
        assert_int_equal(bl_cpu_backend.supports(&r.dev->caps, &r.g, &r.g.nodes[r.first]),
                         types[i].ok);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention),
        cmocka_unit_test(batches_do_not_matter),
        cmocka_unit_test(rows_unseen_do_not_matter),
        cmocka_unit_test(cache_types_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
