/* SPDX-License-Identifier: MIT */
/* Groups of tokens: their rows made token by token and in chunks, stored, chosen among and attended
 * to; experts by token id. Against plain double loops and brute force, on one to four threads. */
#include "cpu_rig.h"

#include "attention_rig.h"

#define N(a) (sizeof(a) / sizeof *(a))

static const struct rig_config machines[] = {
    {1, 0, true}, {3, 0, true}, {1, 0, false}, {2, UINT32_MAX, false}, {4, UINT32_MAX, false}};

static void *source(const struct rig *r, unsigned i)
{
    return r->data[bl_node_src(&r->g, &r->g.nodes[r->first], i)];
}

static float noise(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)((double)(*seed >> 8) / (1 << 23) - 1);
}

static float *noises(uint32_t n, uint32_t seed)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (uint32_t i = 0; i < n; i++)
        x[i] = noise(&seed);
    return x;
}

/* ---- COMPRESS ---- */

struct compress_case {
    uint32_t group, overlap, n, slack, ape_type, n_tok;
};
static const struct compress_case compress_cases[] = {
    {4, 1, 5, 0, BL_F32, 42},      {4, 1, 70, 3, BL_F16, 29},  {128, 0, 6, 0, BL_F32, 290},
    {128, 0, 33, 5, BL_BF16, 259}, {3, 0, 130, 0, BL_F32, 20}, {1, 0, 4, 0, BL_F32, 9},
    {4, 1, 64, 1, BL_Q8_0, 33},
};

/* A sequence fed in chunks: what came out, and where it stands in the batch. */
struct flow {
    const struct compress_case *c;
    const float *x, *gate; /* [n_tok] */
    float *y;              /* [n_tok] */
    float *ape;            /* as decoded, once open */
    struct rig r;
    bl_val in[2], ape_val;
};

static uint32_t width(const struct compress_case *c)
{
    return (1 + c->overlap) * c->n;
}

static void flow_open(struct flow *f, const struct rig_config *config, uint32_t bound,
                      uint32_t n_seq)
{
    const struct compress_case *c = f->c;
    const uint32_t w = width(c), span = (1 + c->overlap) * c->group;
    rig_open(&f->r, config);
    f->in[0] = rig_input(&f->r, 0, w, bound);
    f->in[1] = rig_input(&f->r, 1, w, bound);
    f->ape_val = bl_graph_weight(&f->r.g, 0, c->ape_type, (uint32_t[]){w, c->group, 1});
    const bl_val state = bl_graph_state(&f->r.g, 0, BL_F32, 2 * w, span + c->slack, n_seq);
    const struct bl_compress_attr at = {c->group, c->overlap};
    f->r.out[0] = bl_graph_compress(&f->r.g, f->in[0], f->in[1], f->ape_val, state, &at);
    rig_alloc(&f->r);
    memset(f->r.data[state], 0xff, (size_t)bl_value_bytes(&f->r.g.vals[state]));
    f->r.random = 7;
    rig_fill_weight(&f->r, f->ape_val, 1);
}

/* Token t of the step becomes token `pos` of the flow's sequence. */
static void flow_put(struct flow *f, uint32_t t, uint32_t pos)
{
    const size_t w = width(f->c);
    memcpy((float *)f->r.data[f->in[0]] + t * w, f->x + pos * w, w * sizeof *f->x);
    memcpy((float *)f->r.data[f->in[1]] + t * w, f->gate + pos * w, w * sizeof *f->x);
}

static void flow_get(struct flow *f, uint32_t t, uint32_t pos)
{
    memcpy(f->y + (size_t)pos * f->c->n, (float *)f->r.data[f->r.out[0]] + (size_t)t * f->c->n,
           f->c->n * sizeof *f->y);
}

static void flow_run(struct flow *f, const struct rig_config *config, const uint32_t *chunks)
{
    flow_open(f, config, 90, 1);
    for (uint32_t pos = 0, len; pos < f->c->n_tok; pos += len) {
        len = *chunks < f->c->n_tok - pos ? *chunks : f->c->n_tok - pos;
        rig_tokens(&f->r, len, pos);
        for (uint32_t t = 0; t < len; t++)
            flow_put(f, t, pos + t);
        rig_ok(rig_run(&f->r));
        for (uint32_t t = 0; t < len; t++)
            flow_get(f, t, pos + t);
        chunks += chunks[1] != 0;
    }
}

static void check_row(const struct flow *f, uint32_t pos, const float *y)
{
    const struct compress_case *c = f->c;
    const uint32_t w = width(c), first = pos + 1 - c->group;
    const uint32_t from = c->overlap && first ? first - c->group : first;
    for (uint32_t i = 0; i < c->n; i++) {
        double sum = 0, want = 0;
        for (uint32_t p = from; p <= pos; p++) {
            const uint32_t at = i + (c->overlap && p >= first ? c->n : 0);
            float *ape = rig_row(&f->r, f->ape_val, p % c->group);
            const double e = exp((double)f->gate[p * w + at] + ape[at]);
            sum += e;
            want += e * f->x[p * w + at];
            free(ape);
        }
        rig_near(y[i], want / sum, 3e-6, "row", pos * c->n + i);
    }
}

static void compress(void **state)
{
    (void)state;
    static const uint32_t whole[] = {90, 0}, single[] = {1, 0},
                          odd[] = {1, 3, 4, 5, 7, 63, 2, 90, 0};
    static const uint32_t *const chunkings[] = {whole, single, odd};
    for (size_t i = 0; i < N(compress_cases); i++) {
        const struct compress_case *c = &compress_cases[i];
        const uint32_t n = c->n_tok * c->n;
        float *first = calloc(n, sizeof *first);
        struct flow f = {
            .c = c, .x = noises(c->n_tok * width(c), 3), .y = calloc(n, sizeof(float))};
        f.gate = noises(c->n_tok * width(c), 5);
        for (size_t m = 0; m < N(machines); m++)
            for (size_t k = 0; k < N(chunkings); k++) {
                flow_run(&f, &machines[m], chunkings[k]);
                for (uint32_t p = 0; p < c->n_tok && !k; p++)
                    if ((p + 1) % c->group == 0)
                        check_row(&f, p, f.y + p * c->n);
                    else
                        for (uint32_t j = 0; j < c->n; j++)
                            assert_true(f.y[p * c->n + j] == 0);
                if (m && machines[m].mask == machines[m - 1].mask)
                    assert_memory_equal(first, f.y, n * sizeof *first);
                if (k)
                    assert_memory_equal(first, f.y, n * sizeof *first);
                memcpy(first, f.y, n * sizeof *first);
                rig_close(&f.r);
            }
        free(first);
        free(f.y);
        free((void *)(uintptr_t)f.x);
        free((void *)(uintptr_t)f.gate);
    }
}

/* Two sequences at different phases, their tokens dealt in turn over one batch after another: what
 * each gives alone. */
static void compress_mixed(void **state)
{
    (void)state;
    static const uint32_t whole[] = {90, 0};
    const struct compress_case c = {4, 1, 12, 0, BL_F32, 40};
    struct flow alone = {.c = &c, .x = noises(40 * 24, 3), .gate = noises(40 * 24, 5)};
    float *want = alone.y = calloc(40 * 12, sizeof *want);
    flow_run(&alone, &machines[3], whole);
    rig_close(&alone.r);
    struct flow f = alone;
    float *got[2] = {calloc(40 * 12, sizeof *want), calloc(40 * 12, sizeof *want)};
    uint32_t pos[2] = {0, 0};
    flow_open(&f, &machines[3], 32, 2);
    for (uint32_t step = 0; pos[1] < 40; step++) {
        struct rig_step *s = &f.r.step;
        *s = (struct rig_step){.n_seq = 2};
        uint32_t at[RIG_TOKENS];
        for (uint32_t t = 0; t < 10 + step % 3; t++) {
            const uint32_t seq = (t + step) % 3 != 0; /* the second is ahead */
            if (pos[seq] == 40)
                continue;
            flow_put(&f, s->n_tok, pos[seq]);
            at[s->n_tok] = pos[seq];
            s->seq[s->n_tok] = seq;
            s->pos[s->n_tok++] = pos[seq]++;
        }
        for (uint32_t seq = 0; seq < 2; seq++)
            s->table[seq] = (struct bl_seq_params){pos[seq], 1 - seq};
        rig_ok(rig_run(&f.r));
        for (uint32_t t = 0; t < s->n_tok; t++) {
            f.y = got[s->seq[t]];
            flow_get(&f, t, at[t]);
        }
    }
    assert_memory_equal(got[0], want, pos[0] * 12 * sizeof *want);
    assert_memory_equal(got[1], want, 40 * 12 * sizeof *want);
    assert_true(pos[0] > 10);
    rig_close(&f.r);
    free(got[0]);
    free(got[1]);
    free(want);
    free((void *)(uintptr_t)f.x);
    free((void *)(uintptr_t)f.gate);
}

/* ---- KV_STORE of groups ---- */

struct store_case {
    uint32_t type, group, first, n_tok;
};

static void make_store(struct rig *r, const void *arg)
{
    const struct store_case *c = arg;
    const bl_val x = rig_input(r, 0, 32, c->n_tok + 1);
    const bl_val state = bl_graph_state(&r->g, 0, c->type, 32, 40, 2);
    bl_graph_kv_store_groups(&r->g, x, state, c->group);
    rig_alloc(r);
    rig_fill(r, x, 1);
    rig_tokens(r, c->n_tok, c->first);
    r->step.table[0].slot = 1;
}

static void check_store(const struct rig *r, const void *arg)
{
    const struct store_case *c = arg;
    const size_t bytes = (size_t)bl_dtype_row_bytes(c->type, 32);
    uint8_t *want = calloc(80, bytes);
    for (uint32_t t = 0; t < c->n_tok; t++) {
        const uint32_t pos = c->first + t;
        if (pos % c->group == c->group - 1)
            bl_dtype_encode(c->type, 32, want + (40 + pos / c->group) * bytes,
                            (float *)source(r, 0) + t * 32);
    }
    assert_memory_equal(source(r, 1), want, 80 * bytes);
    free(want);
}

static void store_groups(void **state)
{
    (void)state;
    const struct store_case cases[] = {{BL_F32, 4, 0, 3},  {BL_F16, 4, 3, 1},
                                       {BL_F16, 4, 2, 17}, {BL_Q8_0, 128, 120, 20},
                                       {BL_F32, 1, 5, 9},  {BL_F32, 3, 1, 40}};
    for (size_t i = 0; i < N(cases); i++)
        rig_cases(make_store, check_store, &cases[i]);
}

/* ---- CHOOSE ---- */

struct choose_case {
    uint32_t type, heads, dk, n, group, rows;
    uint32_t first, n_tok, n_seq;
    bool ties;             /* small whole numbers: sums are exact, most of them equal to others */
    uint32_t not_a_number; /* every so many-th row; 0: none */
};

static void make_choose(struct rig *r, const void *arg)
{
    const struct choose_case *c = arg;
    const struct bl_choose_attr at = {c->heads, c->dk, c->n, c->group};
    const bl_val q = rig_input(r, 0, c->heads * c->dk, c->n_tok + 1);
    const bl_val w = rig_input(r, 1, c->heads, c->n_tok + 1);
    const bl_val rows = bl_graph_state(&r->g, 0, c->type, c->dk, c->rows, c->n_seq);
    r->out[0] = bl_graph_choose(&r->g, q, w, rows, &at);
    rig_alloc(r);
    const bl_val in[] = {q, w, rows};
    for (unsigned v = 0; v < 3; v++) {
        const uint32_t n = r->g.vals[in[v]].ne[0], n_rows = v < 2 ? c->n_tok : c->rows * c->n_seq;
        float *x = malloc(n * sizeof *x);
        for (uint32_t row = 0; row < n_rows; row++) {
            for (uint32_t i = 0; i < n; i++)
                x[i] = c->ties ? (float)rig_pick(r, 3) - 1 : rig_random(r);
            if (v == 2 && c->not_a_number && row % c->not_a_number == 1)
                x[0] = NAN;
            const uint32_t type = r->g.vals[in[v]].type;
            bl_dtype_encode(type, n, (uint8_t *)r->data[in[v]] + row * bl_dtype_row_bytes(type, n),
                            x);
        }
        free(x);
    }
    struct rig_step *s = &r->step;
    *s = (struct rig_step){.n_tok = c->n_tok, .n_seq = c->n_seq};
    for (uint32_t i = 0; i < c->n_seq; i++)
        s->table[i] = (struct bl_seq_params){c->first + i, c->n_seq - 1 - i};
    for (uint32_t t = 0; t < c->n_tok; t++) {
        s->seq[t] = t % c->n_seq;
        s->pos[t] = s->table[s->seq[t]].n_kv++;
    }
}

static double score_of(const struct rig *r, const struct choose_case *c, uint32_t t, uint32_t slot,
                       uint32_t row)
{
    const float *q = (float *)source(r, 0) + t * c->heads * c->dk;
    const float *w = (float *)source(r, 1) + t * c->heads;
    float *x = rig_row(r, bl_node_src(&r->g, &r->g.nodes[r->first], 2), slot * c->rows + row);
    double sum = 0;
    for (uint32_t h = 0; h < c->heads; h++, q += c->dk) {
        double s = 0;
        for (uint32_t i = 0; i < c->dk; i++)
            s += (double)q[i] * x[i];
        sum += w[h] * (isnan(s) ? NAN : fmax(s, 0));
    }
    free(x);
    return isnan(sum) ? -INFINITY : sum;
}

static int falling(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Row heap[top] goes to the lowest place, on the way down past the worse children, above which no
 * row is better; those on the way move up. */
static void place(const double *score, uint32_t *heap, uint32_t n, uint32_t top)
{
    uint32_t way[32] = {top}, depth = 0;
    const uint32_t row = heap[top];
    for (uint32_t left; left = 2 * way[depth] + 1, left < n;) {
        const bool alone = left + 1 == n;
        way[++depth] = alone || score[heap[left + 1]] > score[heap[left]] ? left : left + 1;
    }
    while (depth && score[heap[way[depth]]] > score[row])
        depth--;
    for (uint32_t i = 0; i < depth; i++)
        heap[way[i]] = heap[way[i + 1]];
    heap[way[depth]] = row;
}

/* The law of CHOOSE, among n rows: which k stay. */
static void mark_kept(const double *score, uint32_t n, uint32_t k, bool *in)
{
    uint32_t *heap = malloc(k * sizeof *heap);
    for (uint32_t i = 0; i < k; i++)
        heap[i] = i;
    for (uint32_t top = k; top-- > 0;)
        place(score, heap, k, top);
    for (uint32_t i = k; i < n; i++)
        if (score[i] > score[heap[0]]) {
            heap[0] = i;
            place(score, heap, k, 0);
        }
    for (uint32_t i = 0; i < k; i++)
        in[heap[i]] = true;
    free(heap);
}

/* Ascending rows, whose scores are, within rounding, the largest that there are; where scores are
 * exact, the very rows. */
static void check_set(const struct choose_case *c, const int32_t *y, uint32_t n,
                      const double *score)
{
    double *all = malloc(n * sizeof *all), *own = malloc(c->n * sizeof *own);
    bool *in = calloc(n, sizeof *in);
    for (uint32_t i = 0; i < c->n; i++) {
        assert_true(y[i] >= 0 && (uint32_t)y[i] < n);
        assert_true(!i || y[i] > y[i - 1]);
        own[i] = score[y[i]];
    }
    memcpy(all, score, n * sizeof *all);
    qsort(all, n, sizeof *all, falling);
    qsort(own, c->n, sizeof *own, falling);
    for (uint32_t i = 0; i < c->n; i++)
        if (own[i] < all[i] - (c->ties ? 0 : 1e-5))
            fail_msg("the best but %u of %u rows has %.9g, of those chosen %.9g", i, n, all[i],
                     own[i]);
    mark_kept(score, n, c->n, in);
    for (uint32_t i = 0; c->ties && i < c->n; i++)
        if (!in[y[i]])
            fail_msg("row %d of %u was chosen, one that is as good should have been", y[i], n);
    free(in);
    free(own);
    free(all);
}

static void check_choose(const struct rig *r, const void *arg)
{
    const struct choose_case *c = arg;
    double *score = malloc(c->rows * sizeof *score);
    for (uint32_t t = 0; t < c->n_tok; t++) {
        const uint32_t n = (r->step.pos[t] + 1) / c->group;
        const uint32_t slot = r->step.table[r->step.seq[t]].slot;
        const int32_t *y = (int32_t *)r->data[r->out[0]] + t * c->n;
        for (uint32_t i = 0; i < c->n && n <= c->n; i++)
            assert_int_equal(y[i], i < n ? i : 0);
        for (uint32_t i = 0; i < n && n > c->n; i++)
            score[i] = score_of(r, c, t, slot, i);
        if (n > c->n)
            check_set(c, y, n, score);
    }
    free(score);
    rig_untouched(r, r->out[0], c->n_tok);
}

static const struct choose_case choose_cases[] = {
    {BL_F32, 2, 8, 4, 4, 40, 0, 17, 1, false, 0},  /* from no rows at all */
    {BL_F32, 3, 8, 16, 4, 64, 60, 1, 1, false, 0}, /* 15 rows */
    {BL_F32, 3, 8, 16, 4, 64, 63, 1, 1, false, 0}, /* 16: all */
    {BL_F32, 3, 8, 16, 4, 64, 67, 1, 1, false, 0}, /* 17: all but one */
    {BL_F32, 3, 8, 16, 4, 64, 60, 17, 1, true, 0}, /* across */
    {BL_F32, 1, 4, 1, 4, 300, 1000, 3, 1, true, 0},
    {BL_F16, 4, 32, 512, 4, 1300, 4096, 2, 1, false, 0},
    {BL_F16, 4, 32, 512, 4, 1300, 2044, 9, 1, false, 0}, /* 511 to 513 rows */
    {BL_F32, 2, 5, 40, 1, 5000, 4900, 1, 1, true, 0},
    {BL_F32, 2, 5, 40, 1, 5000, 4900, 17, 1, true, 7},
    {BL_F32, 2, 5, 8, 1, 300, 200, 4, 1, true, 1}, /* every other number is none */
    {BL_F16, 16, 64, 8, 4, 200, 500, 33, 3, false, 0},
    {BL_F16, 16, 64, 8, 4, 200, 500, 3, 3, true, 0},
    {BL_Q8_0, 4, 32, 8, 4, 200, 500, 3, 1, false, 0},
};

static void choose(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(choose_cases); i++)
        rig_cases(make_choose, check_choose, &choose_cases[i]);
}

/* What the C++ library's partial sort of GNU, with which the reference implementation chooses,
 * keeps of (7 i^2 + 3 i) mod 11 mod `kinds`. */
struct kept_case {
    uint32_t n, k, kinds;
    int32_t want[30];
};
static const struct kept_case kept_cases[] = {
    {40, 8, 3, {1, 2, 7, 8, 10, 12, 13, 18}},
    {41, 7, 4, {4, 5, 15, 16, 26, 27, 37}},
    {64, 16, 2, {2, 4, 5, 7, 13, 15, 16, 18, 24, 26, 27, 29, 35, 37, 38, 40}},
    {100, 13, 5, {10, 15, 16, 21, 32, 37, 38, 43, 54, 65, 76, 87, 98}},
    {33, 1, 3, {1}},
    {30, 29, 2, {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 15,
                 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29}},
};

static void equal_rows_are_kept_as_recorded(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(kept_cases); i++)
        for (uint32_t n_tok = 1; n_tok <= 9; n_tok += 8) { /* the last sees all rows */
            const struct kept_case *k = &kept_cases[i];
            const struct choose_case c = {BL_F32,       1,     1, k->k, 1, k->n,
                                          k->n - n_tok, n_tok, 1, true, 0};
            struct rig r;
            rig_open(&r, &machines[3]);
            make_choose(&r, &c);
            for (uint32_t t = 0; t < n_tok; t++)
                *((float *)source(&r, 0) + t) = *((float *)source(&r, 1) + t) = 1;
            for (uint32_t row = 0; row < k->n; row++)
                *((float *)source(&r, 2) + row) =
                    (float)((7 * row * row + 3 * row) % 11 % k->kinds);
            rig_ok(rig_run(&r));
            assert_memory_equal((int32_t *)r.data[r.out[0]] + (n_tok - 1) * k->k, k->want,
                                k->k * sizeof k->want[0]);
            rig_close(&r);
        }
}

/* A workspace that is used again and again leaves nothing behind. */
static void choose_again_and_again(void **state)
{
    (void)state;
    for (uint32_t n_tok = 1; n_tok <= 7; n_tok += 6) {
        struct choose_case c = {BL_F32, 2, 4, 8, 1, 120, 0, n_tok, 1, true, 5};
        struct rig r;
        rig_open(&r, &machines[3]);
        make_choose(&r, &c);
        for (uint32_t i = 0; i < 300; i++) {
            const uint32_t first = i * 37 % (120 - n_tok);
            rig_tokens(&r, n_tok, first);
            rig_ok(rig_run(&r));
            check_choose(&r, &c);
        }
        rig_close(&r);
    }
}

/* ---- ATTENTION_GROUPS ---- */

struct attention_case {
    uint32_t type, n_head, n_head_kv, dk, dv, window, ring;
    uint32_t group, rows, chosen; /* 0: all rows */
    uint32_t first, n_tok, bound, n_seq;
    bool sinks;
};

static void make_attention(struct rig *r, const void *arg)
{
    const struct attention_case *c = arg;
    const bl_val q = rig_input(r, 0, c->n_head * c->dk, c->bound);
    const uint32_t row = c->n_head_kv * c->dk;
    struct bl_attention_vals v = {.q = q};
    const struct bl_groups_attr at = {
        .at = {c->n_head, c->n_head_kv, c->dk, c->dv, c->window, 0.2f}, .group = c->group};
    /* The list of rows is the result of a node that is not run. */
    if (c->chosen) {
        bl_val weights;
        const bl_val z = rig_input(r, 1, c->chosen, c->bound);
        const struct bl_route_attr all = {.n_used = c->chosen, .gating = BL_GATE_SIGMOID};
        bl_graph_route(&r->g, z, 0, &all, &v.chosen, &weights);
        r->first = r->g.n_nodes;
    }
    v.k = v.v = bl_graph_state(&r->g, 0, c->type, row, c->ring, c->n_seq);
    v.rows = bl_graph_state(&r->g, 1, c->type, row, c->rows, c->n_seq);
    if (c->sinks)
        v.sinks = bl_graph_weight(&r->g, 0, BL_F32, (uint32_t[]){c->n_head, 1, 1});
    r->out[0] = bl_graph_attention_groups(&r->g, &v, &at);
    rig_alloc(r);
    rig_fill(r, q, 2);
    rig_fill_weight(r, v.k, 1);
    for (uint32_t s = 0; s < c->n_seq; s++) /* the rows of all sequences are filled alike */
        rig_fill_weight(r, v.rows, 1);
    if (v.sinks)
        rig_fill(r, v.sinks, 2);
    struct rig_step *s = &r->step;
    *s = (struct rig_step){.n_tok = c->n_tok, .n_seq = c->n_seq};
    for (uint32_t i = 0; i < c->n_seq; i++)
        s->table[i] = (struct bl_seq_params){c->first + i, c->n_seq - 1 - i};
    for (uint32_t t = 0; t < c->n_tok; t++) {
        s->seq[t] = t * c->n_seq / c->n_tok;
        s->pos[t] = s->table[s->seq[t]].n_kv++;
        const uint32_t n = (s->pos[t] + 1) / c->group;
        int32_t *y = v.chosen ? (int32_t *)r->data[v.chosen] + t * c->chosen : NULL;
        for (uint32_t i = 0; y && i < c->chosen; i++) /* ascending, some left out */
            y[i] = n <= c->chosen ? (int32_t)i : (int32_t)((uint64_t)i * n / c->chosen);
    }
}

struct sum {
    double max, total, y[64];
};

static void add_row(struct sum *s, double score, uint32_t dv, const float *v)
{
    const double max = fmax(s->max, score), keep = exp(s->max - max), e = exp(score - max);
    s->total = s->total * keep + e;
    for (uint32_t i = 0; i < dv && v; i++)
        s->y[i] = s->y[i] * keep + e * v[i];
    for (uint32_t i = 0; i < dv && !v; i++)
        s->y[i] *= keep;
    s->max = max;
}

static void add_state_row(const struct rig *r, const struct attention_case *c, struct sum *s,
                          const float *q, uint32_t head, unsigned src, uint64_t row)
{
    float *x = rig_row(r, bl_node_src(&r->g, &r->g.nodes[r->first], src), row);
    const float *k = x + head / (c->n_head / c->n_head_kv) * c->dk;
    double score = 0;
    for (uint32_t i = 0; i < c->dk; i++)
        score += (double)q[i] * k[i];
    add_row(s, (double)0.2f * score, c->dv, k);
    free(x);
}

static void check_attention(const struct rig *r, const void *arg)
{
    const struct attention_case *c = arg;
    const float *q = source(r, 0), *sinks = source(r, 3), *y = r->data[r->out[0]];
    const double error = rig_attention_error(r, c->bound, c->n_head / c->n_head_kv, 4e-6);
    for (uint32_t t = 0; t < c->n_tok; t++) {
        const uint32_t pos = r->step.pos[t], slot = r->step.table[r->step.seq[t]].slot;
        const uint32_t n = (pos + 1) / c->group;
        const int32_t *chosen = c->chosen ? (int32_t *)source(r, 5) + t * c->chosen : NULL;
        for (uint32_t head = 0; head < c->n_head; head++, q += c->dk, y += c->dv) {
            struct sum s = {.max = -INFINITY};
            for (uint32_t p = pos + 1 > c->window ? pos + 1 - c->window : 0; p <= pos; p++)
                add_state_row(r, c, &s, q, head, 1, slot * c->ring + p % c->ring);
            for (uint32_t j = 0; j < n && (!chosen || j < c->chosen); j++)
                add_state_row(r, c, &s, q, head, 4,
                              slot * c->rows + (chosen ? (uint32_t)chosen[j] : j));
            if (c->sinks)
                add_row(&s, (double)sinks[head], c->dv, NULL);
            for (uint32_t i = 0; i < c->dv; i++)
                rig_near(y[i], s.y[i] / s.total, error, "attention", i);
        }
    }
    rig_untouched(r, r->out[0], c->n_tok);
}

static const struct attention_case attention_cases[] = {
    {BL_F32, 1, 1, 8, 8, 4, 4, 4, 8, 0, 0, 1, 1, 1, false}, /* no group yet */
    {BL_F32, 3, 1, 8, 8, 4, 5, 4, 8, 0, 2, 2, 2, 1, true},  /* the first group ends */
    {BL_F32, 20, 1, 8, 8, 16, 24, 4, 150, 0, 500, 3, 4, 1, true},
    {BL_F16, 8, 1, 32, 32, 128, 160, 4, 400, 0, 1500, 1, 1, 1, true}, /* rows fill several splits */
    {BL_F16, 8, 1, 32, 32, 128, 160, 4, 400, 0, 1480, 33, 33, 1, true},
    {BL_F32, 4, 2, 16, 12, 30, 60, 8, 80, 0, 100, 17, 20, 2, false},
    {BL_F32, 4, 1, 16, 16, 30, 60, 4, 80, 16, 50, 30, 30, 1,
     true}, /* fewer rows than chosen, then more */
    {BL_F16, 12, 1, 16, 16, 30, 40, 4, 500, 200, 1900, 1, 1, 1, true},
    {BL_F16, 12, 1, 16, 16, 30, 64, 4, 500, 200, 1900, 21, 24, 3, true},
    {BL_F32, 2, 1, 8, 8, 1, 20, 1, 40, 0, 20, 9, 9, 1, false},      /* a window of one */
    {BL_F32, 2, 1, 8, 8, 130, 150, 128, 3, 0, 126, 5, 5, 1, false}, /* around 128 */
};

static void attention_groups(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(attention_cases); i++)
        rig_attention_cases(make_attention, check_attention, &attention_cases[i]);
}

/* A token alone gives the bits that it gives in a batch; few tokens of every day the same but for
 * rounding. */
static void one_by_one(bool exact, uint32_t mask, uint32_t chosen)
{
    const struct rig_config machine = {4, mask, exact};
    const struct attention_case c = {BL_F16, 12,     1,   32, 32, 30, 70,  4,
                                     300,    chosen, 590, 40, 40, 1,  true};
    struct rig r, one;
    rig_open(&r, &machine);
    make_attention(&r, &c);
    rig_ok(rig_run(&r));
    const size_t row = c.n_head * c.dv;
    const double error = exact ? 0 : rig_attention_error(&r, c.bound, 12, 1e-6);
    for (uint32_t t = 0; t < c.n_tok; t++) {
        rig_open(&one, &machine);
        struct attention_case single = c;
        single.bound = single.n_tok = 1;
        single.first += t;
        make_attention(&one, &single);
        for (unsigned i = 0; i < 6; i++) {
            const bl_val v = bl_node_src(&r.g, &r.g.nodes[r.first], i);
            const size_t bytes = (size_t)bl_value_bytes(&r.g.vals[v]);
            if (v && r.g.vals[v].origin == BL_ACTIVATION)
                memcpy(source(&one, i), (char *)source(&r, i) + t * (bytes / c.n_tok),
                       bytes / c.n_tok);
            else if (v)
                memcpy(source(&one, i), source(&r, i), bytes);
        }
        rig_ok(rig_run(&one));
        const float *got = one.data[one.out[0]], *want = (float *)r.data[r.out[0]] + t * row;
        for (size_t i = 0; i < row; i++)
            rig_near((double)got[i], (double)want[i], error, "alone", t * row + i);
        rig_close(&one);
    }
    rig_close(&r);
}

static void batches_do_not_matter(void **state)
{
    (void)state;
    for (uint32_t chosen = 0; chosen <= 40; chosen += 40) {
        one_by_one(true, 0, chosen);
        one_by_one(false, UINT32_MAX & ~(uint32_t)BL_CPU_BF16, chosen);
        one_by_one(false, UINT32_MAX, chosen);
    }
}

/* ---- ROUTE by token id ---- */

static void make_route(struct rig *r, const void *arg)
{
    const uint32_t n_tok = *(const uint32_t *)arg;
    const struct bl_route_attr at = {
        .n_used = 3, .gating = BL_GATE_SQRT_SOFTPLUS, .normalise = 1, .scale = 1.5f};
    const bl_val z = rig_input(r, 0, 9, n_tok + 1);
    const struct bl_route_vals v = {.logits = z,
                                    .table =
                                        bl_graph_weight(&r->g, 0, BL_I32, (uint32_t[]){3, 20, 1}),
                                    .tokens = bl_graph_param(&r->g, BL_PARAM_TOKENS, n_tok + 1)};
    bl_graph_route_by_table(&r->g, &v, &at, &r->out[0], &r->out[1]);
    rig_alloc(r);
    rig_fill(r, z, 3);
    for (int32_t i = 0; i < 60; i++)
        ((int32_t *)r->data[v.table])[i] = (i / 3 * 7 + i % 3 * 2) % 9;
    rig_tokens(r, n_tok, 0);
    for (uint32_t t = 0; t < n_tok; t++)
        r->step.token[t] = (int32_t)(t * 13 % 20);
}

static void check_route(const struct rig *r, const void *arg)
{
    const uint32_t n_tok = *(const uint32_t *)arg;
    const float *z = source(r, 0), *w = r->data[r->out[1]];
    const int32_t *id = r->data[r->out[0]];
    for (uint32_t t = 0; t < n_tok; t++, z += 9, w += 3, id += 3) {
        double sum = 0, p[3];
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(id[i], (r->step.token[t] * 7 + (int32_t)i * 2) % 9);
            sum += p[i] = sqrt(log1p(exp((double)z[id[i]])));
        }
        for (uint32_t i = 0; i < 3; i++)
            rig_near(w[i], 1.5 * p[i] / sum, 1e-6, "weight", i);
    }
    rig_untouched(r, r->out[1], n_tok);
}

static void route_by_token(void **state)
{
    (void)state;
    const uint32_t n_tok[] = {1, 3, 17};
    for (size_t i = 0; i < N(n_tok); i++)
        rig_cases(make_route, check_route, &n_tok[i]);
}

/* ---- ROUND, HADAMARD ---- */

struct round_case {
    uint32_t kind, n;
    float x[6], want[6];
};
static const struct round_case round_cases[] = {
    {BL_ROUND_E4M3,
     6,
     {.01f, -.3f, 1, 3.3f, -7.7f, 100},
     {.009765625f, -.3125f, 1, 3.25f, -7.5f, 96}},
    {BL_ROUND_E4M3, 4, {448, 1, 17, -.9f}, {448, 1, 16, -.875f}},
    {BL_ROUND_E4M3, 2, {449, 17}, {448, 16}},
    {BL_ROUND_E4M3,
     3,
     {1e-6f, 2e-5f, -3e-5f},
     {9.5367431640625e-7f, 1.9073486328125e-5f, -3.0517578125e-5f}},
    {BL_ROUND_E2M1, 6, {.26f, -.75f, 1.3f, 2.5f, -5, .1f}, {.5f, -1, 1.5f, 2, -4, 0}},
    {BL_ROUND_E2M1, 6, {6, 5, 2.5f, 1.25f, .25f, -3.5f}, {6, 4, 2, 1, 0, -4}},
    {BL_ROUND_E2M1, 6, {6.1f, 5, 2.5f, 1.25f, .25f, -3.5f}, {6, 4, 2, 1, 0, -4}},
    {BL_ROUND_E2M1, 2, {0, 0}, {0, 0}},
};

/* Two groups of the case and a tail that stays, in runs, in every token. */
static void make_round(struct rig *r, const void *arg)
{
    const struct round_case *c = arg;
    const uint32_t run = 2 * c->n + 3;
    const struct bl_round_attr at = {c->kind, run, 2 * c->n, c->n};
    const bl_val x = rig_input(r, 0, 2 * run, 4);
    r->out[0] = bl_graph_round(&r->g, x, &at);
    rig_alloc(r);
    for (uint32_t i = 0; i < 2 * run * 4; i++)
        ((float *)r->data[x])[i] = i % run < 2 * c->n ? c->x[i % run % c->n] : 0.123456789f;
    rig_tokens(r, 3, 0);
}

static void check_round(const struct rig *r, const void *arg)
{
    const struct round_case *c = arg;
    const uint32_t run = 2 * c->n + 3;
    const float *y = r->data[r->out[0]];
    for (uint32_t i = 0; i < 2 * run * 3; i++)
        assert_true(y[i] == (i % run < 2 * c->n ? c->want[i % run % c->n] : 0.123456789f));
    rig_untouched(r, r->out[0], 3);
}

static void make_hadamard(struct rig *r, const void *arg)
{
    const uint32_t n = *(const uint32_t *)arg;
    const bl_val x = rig_input(r, 0, 2 * n, 4);
    r->out[0] = bl_graph_hadamard(&r->g, x, n);
    rig_alloc(r);
    rig_fill(r, x, 1);
    rig_tokens(r, 3, 0);
}

/* Row and column numbers that share an odd number of bits make a minus. */
static void check_hadamard(const struct rig *r, const void *arg)
{
    const uint32_t n = *(const uint32_t *)arg;
    const float *x = source(r, 0), *y = r->data[r->out[0]];
    for (uint32_t run = 0; run < 6; run++, x += n, y += n)
        for (uint32_t i = 0; i < n; i++) {
            double sum = 0;
            for (uint32_t j = 0; j < n; j++) {
                uint32_t odd = 0;
                for (uint32_t b = i & j; b; b >>= 1)
                    odd ^= b & 1;
                sum += odd ? -(double)x[j] : (double)x[j];
            }
            rig_near(y[i], sum / sqrt(n), 2e-6, "hadamard", i);
        }
    rig_untouched(r, r->out[0], 3);
}

static void rounding_as_in_training(void **state)
{
    (void)state;
    const uint32_t n[] = {1, 2, 32, 128};
    for (size_t i = 0; i < N(round_cases); i++)
        rig_cases(make_round, check_round, &round_cases[i]);
    for (size_t i = 0; i < N(n); i++)
        rig_cases(make_hadamard, check_hadamard, &n[i]);
}

/* ---- what a step must not say ---- */

/* What lies beyond a table or a state is refused, not read. */
static void steps_beyond_the_data_are_refused(void **state)
{
    (void)state;
    struct rig r;
    const uint32_t n_tok = 2;
    rig_open(&r, &machines[0]);
    make_route(&r, &n_tok);
    r.step.token[1] = 20;
    assert_int_equal(rig_run(&r), BL_EINVAL);
    rig_close(&r);
    for (uint32_t pos = 38; pos < 43; pos++) {
        const struct store_case store = {BL_F32, 1, pos, 1}, groups = {BL_F32, 2, 2 * pos + 1, 1};
        rig_open(&r, &machines[0]);
        make_store(&r, &store); /* a ring, as far as a store knows */
        assert_int_equal(rig_run(&r), BL_OK);
        rig_close(&r);
        rig_open(&r, &machines[0]);
        make_store(&r, &groups);
        assert_int_equal(rig_run(&r), pos < 40 ? BL_OK : BL_EINVAL);
        rig_close(&r);
    }
    for (uint32_t pos = 158; pos < 163; pos++) {
        const struct choose_case choice = {BL_F32, 2, 4, 8, 4, 40, pos, 1, 1, true, 0};
        const struct attention_case attention = {BL_F32, 2, 1,   8, 8, 4, 4,    4,
                                                 40,     0, pos, 1, 1, 1, false};
        rig_open(&r, &machines[0]);
        make_choose(&r, &choice);
        assert_int_equal(rig_run(&r), pos < 160 ? BL_OK : BL_EINVAL);
        rig_close(&r);
        rig_open(&r, &machines[0]);
        make_attention(&r, &attention);
        assert_int_equal(rig_run(&r), pos < 160 ? BL_OK : BL_EINVAL);
        rig_close(&r);
    }
}

/* ---- shapes ---- */

static bl_val rows_of(struct bl_graph *g, int32_t index, uint32_t n)
{
    return bl_graph_embed(g, bl_graph_weight(g, index, BL_F32, (uint32_t[]){n, 4, 1}),
                          bl_graph_param(g, BL_PARAM_TOKENS, 3), 1);
}

static void wrong_shapes_are_refused(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 24; i++) {
        struct bl_graph g;
        bl_graph_init(&g);
        const bl_val x = rows_of(&g, 10, 12), q = rows_of(&g, 11, 6), w = rows_of(&g, 12, 2);
        const bl_val ape = bl_graph_weight(&g, 0, BL_F32, (uint32_t[]){12, 4, 1});
        const bl_val tail = bl_graph_state(&g, 0, i == 5 ? BL_F16 : BL_F32, 24, i == 4 ? 7 : 8, 1);
        const bl_val k = bl_graph_state(&g, 1, BL_F32, 3, 9, 1);
        const bl_val other = bl_graph_state(&g, 2, i == 17 ? BL_F16 : BL_F32, 3, 9, 1);
        struct bl_compress_attr c = {4, 1};
        struct bl_choose_attr h = {2, 3, 9, 4};
        struct bl_groups_attr a = {{2, 1, 3, 3, 4, 1}, 4};
        struct bl_attention_vals v = {.q = q, .k = k, .v = k, .rows = other};
        c.group = i == 1 ? 3 : i == 2 ? 0 : 4;
        c.overlap = i == 3 ? 2 : 1;
        h.n = i == 8 ? 0 : i == 9 ? 10 : 9;
        h.group = i != 10;
        h.dk = i == 11 ? 2 : 3;
        a.group = i != 14;
        a.at.window = i != 15;
        v.v = i == 16 ? other : k;
        v.rows = i == 18 ? 0 : other;
        v.chosen = i == 19 ? w : 0;
        if (i < 6)
            bl_graph_compress(&g, x, x, ape, tail, &c);
        else if (i == 6)
            bl_graph_compress(&g, x, q, ape, tail, &c);
        else if (i < 12)
            bl_graph_choose(&g, q, w, k, &h);
        else if (i == 12)
            bl_graph_choose(&g, x, w, k, &h);
        else if (i < 20)
            bl_graph_attention_groups(&g, &v, &a);
        else if (i == 20)
            bl_graph_kv_store_groups(&g, rows_of(&g, 13, 3), k, 0);
        else {
            const struct bl_route_attr at = {.n_used = 2, .gating = BL_GATE_SIGMOID};
            bl_val ids, weights;
            const struct bl_route_vals r = {
                .logits = x,
                .bias = i == 22 ? bl_graph_weight(&g, 1, BL_F32, (uint32_t[]){12, 1, 1}) : 0,
                .table = bl_graph_weight(&g, 2, i == 21 ? BL_F32 : BL_I32, (uint32_t[]){2, 5, 1}),
                .tokens = i == 23 ? 0 : bl_graph_param(&g, BL_PARAM_TOKENS, 3)};
            bl_graph_route_by_table(&g, &r, &at, &ids, &weights);
        }
        const bool good = i == 0 || i == 7 || i == 13;
        if (bl_graph_check(&g) != (good ? BL_OK : BL_EINVAL))
            fail_msg("case %u: %s", i, good ? bl_error() : "accepted");
        bl_graph_finish(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compress),
        cmocka_unit_test(compress_mixed),
        cmocka_unit_test(store_groups),
        cmocka_unit_test(choose),
        cmocka_unit_test(equal_rows_are_kept_as_recorded),
        cmocka_unit_test(choose_again_and_again),
        cmocka_unit_test(attention_groups),
        cmocka_unit_test(batches_do_not_matter),
        cmocka_unit_test(route_by_token),
        cmocka_unit_test(rounding_as_in_training),
        cmocka_unit_test(steps_beyond_the_data_are_refused),
        cmocka_unit_test(wrong_shapes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
