/* SPDX-License-Identifier: MIT */
/* SHORT_CONV and DELTA_RULE against plain double loops: sequences mixed in one batch, cut anyhow,
 * begun anew in a slot that another has left, taken back; on one to four threads. SLICE, CONCAT and
 * gates beside them. */
#include "cpu_rig.h"

#define N(a) (sizeof(a) / sizeof *(a))

enum { SEQS = 3, MOST = 160 /* tokens of a sequence */, BOUND = 112 /* of a step */ };

/* ---- what is fed ---- */

/* Sequences by what every position of them holds: a number that the inputs are made from. */
struct story {
    uint32_t n[SEQS], held[SEQS][MOST], life[SEQS];
};

/* "aB": a token of sequence 0 and one that begins sequence 1 anew. */
static uint32_t tell(struct story *s, char c)
{
    const bool fresh = c >= 'A' && c <= 'Z';
    const uint32_t seq = (uint32_t)(c - (fresh ? 'A' : 'a'));
    assert_true(seq < SEQS);
    if (fresh) {
        s->n[seq] = 0;
        s->life[seq]++;
    }
    assert_true(s->n[seq] < MOST);
    s->held[seq][s->n[seq]] = s->life[seq];
    s->n[seq]++;
    return seq;
}

static float input(const struct story *s, uint32_t seq, uint32_t pos, uint32_t i)
{
    uint32_t h = seq * 2654435761u + pos * 40503u + s->held[seq][pos] * 97u + i * 2246822519u;
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    return (float)((double)(h >> 8) / (1 << 23) - 1);
}

/* ---- a run of steps on one device ---- */

struct shape {
    uint32_t taps, n; /* SHORT_CONV; taps 0: DELTA_RULE */
    uint32_t heads_k, heads_v, dk, dv, tiled;
    uint32_t slack; /* rows of state beyond the necessary */
};
struct run {
    struct rig r;
    struct shape s;
    struct story story;
    bl_val in[3], state, y; /* x, beta, alpha */
    uint32_t n_in[3], n_out;
    float *all; /* [SEQS][MOST][n_out] last result for a position */
};

static bl_val floats(struct run *u, int32_t index, uint32_t a, uint32_t b)
{
    return bl_graph_weight(&u->r.g, index, BL_F32, (uint32_t[]){a, b, 1});
}

static void make_conv(struct run *u)
{
    const struct shape *s = &u->s;
    u->n_in[0] = u->n_out = s->n;
    u->in[0] = rig_input(&u->r, 0, s->n, BOUND);
    u->state = bl_graph_state(&u->r.g, 0, BL_F32, s->n, s->taps - 1 + s->slack, SEQS);
    u->y = bl_graph_short_conv(&u->r.g, u->in[0], floats(u, 0, s->taps, s->n), u->state, s->tiled);
}

static void make_delta(struct run *u)
{
    const struct shape *s = &u->s;
    const uint32_t n[3] = {2 * s->heads_k * s->dk + s->heads_v * s->dv, s->heads_v, s->heads_v};
    const struct bl_delta_attr at = {s->heads_k, s->heads_v, s->dk, s->dv, s->tiled, 1e-6f, 0.3f};
    for (int32_t i = 0; i < 3; i++)
        u->in[i] = rig_input(&u->r, i, u->n_in[i] = n[i], BOUND);
    u->n_out = s->heads_v * s->dv;
    u->state = bl_graph_state(&u->r.g, 0, BL_F32, u->n_out * s->dk, 1 + s->slack, SEQS);
    u->y = bl_graph_delta_rule(&u->r.g,
                               &(struct bl_delta_vals){u->in[0], u->in[1], u->in[2],
                                                       floats(u, 0, s->heads_v, 1),
                                                       floats(u, 1, s->heads_v, 1), u->state},
                               &at);
}

static void start(struct run *u, const struct shape *s, const struct rig_config *c)
{
    *u = (struct run){.s = *s};
    rig_open(&u->r, c);
    if (s->taps)
        make_conv(u);
    else
        make_delta(u);
    rig_alloc(&u->r);
    for (bl_val v = 1; v < u->r.g.n_vals; v++)
        if (u->r.g.vals[v].origin == BL_WEIGHT)
            rig_fill(&u->r, v, 1);
    for (uint32_t i = 0; !s->taps && i < s->heads_v; i++) { /* a is negative */
        float *a = u->r.data[bl_node_src(&u->r.g, &u->r.g.nodes[u->r.first], 3)];
        a[i] = -fabsf(a[i]);
    }
    /* whatever was in a slot before must not matter */
    memset(u->r.data[u->state], 0xff, (size_t)bl_value_bytes(&u->r.g.vals[u->state]));
    u->all = calloc((size_t)SEQS * MOST * u->n_out, sizeof *u->all);
}

static void finish(struct run *u)
{
    free(u->all);
    rig_close(&u->r);
}

static float *result(const struct run *u, uint32_t seq, uint32_t pos)
{
    return u->all + ((size_t)seq * MOST + pos) * u->n_out;
}

/* One step. Slots are not the sequences' own numbers. */
static void feed(struct run *u, const char *tokens)
{
    struct rig_step *step = &u->r.step;
    const uint32_t n = (uint32_t)strlen(tokens);
    *step = (struct rig_step){.n_tok = n, .n_seq = SEQS};
    for (uint32_t t = 0; t < n; t++) {
        const uint32_t seq = tell(&u->story, tokens[t]), pos = u->story.n[seq] - 1;
        step->seq[t] = seq;
        step->pos[t] = pos;
        for (unsigned k = 0; k < 3; k++)
            for (uint32_t i = 0; i < u->n_in[k]; i++)
                ((float *)u->r.data[u->in[k]])[t * u->n_in[k] + i] =
                    input(&u->story, seq, pos, k * 10000 + i);
    }
    for (uint32_t s = 0; s < SEQS; s++)
        step->table[s] = (struct bl_seq_params){u->story.n[s], SEQS - 1 - s};
    memset(u->r.data[u->y], 0xff, (size_t)bl_value_bytes(&u->r.g.vals[u->y]));
    rig_ok(rig_run(&u->r));
    rig_untouched(&u->r, u->y, n);
    for (uint32_t t = 0; t < n; t++)
        memcpy(result(u, step->seq[t], step->pos[t]), (float *)u->r.data[u->y] + t * u->n_out,
               u->n_out * sizeof(float));
}

/* ---- what must come out: from the beginning of the sequence, in double ---- */

static const float *weight(const struct run *u, unsigned src)
{
    return u->r.data[bl_node_src(&u->r.g, &u->r.g.nodes[u->r.first], src)];
}

static double squash(double x)
{
    return 1 / (1 + exp(-x));
}

static void want_conv(const struct run *u, uint32_t seq, uint32_t pos, double *y)
{
    const float *w = weight(u, 1);
    for (uint32_t i = 0; i < u->s.n; i++) {
        double sum = 0;
        for (uint32_t j = 0; j < u->s.taps && j <= pos; j++)
            sum += (double)w[i * u->s.taps + u->s.taps - 1 - j] *
                   (double)input(&u->story, seq, pos - j, i);
        y[i] = u->s.tiled ? sum * squash(sum) : sum;
    }
}

/* q or k of a key head at length 1. */
static void unit(const struct run *u, uint32_t seq, uint32_t pos, uint32_t first, double *x)
{
    double sum = 0;
    for (uint32_t i = 0; i < u->s.dk; i++) {
        x[i] = (double)input(&u->story, seq, pos, first + i);
        sum += x[i] * x[i];
    }
    for (uint32_t i = 0; i < u->s.dk; i++)
        x[i] /= sqrt(sum);
}

/* One token of one head: S[i][j], the spec's order. */
static void want_step(const struct run *u, uint32_t seq, uint32_t pos, uint32_t head, double *S,
                      double *y)
{
    const struct shape *s = &u->s;
    const uint32_t key = s->tiled ? head % s->heads_k : head / (s->heads_v / s->heads_k);
    double q[256], k[256];
    unit(u, seq, pos, key * s->dk, q);
    unit(u, seq, pos, (s->heads_k + key) * s->dk, k);
    const double beta = squash((double)input(&u->story, seq, pos, 10000 + head));
    const double alpha = (double)input(&u->story, seq, pos, 20000 + head);
    const double g = (double)weight(u, 3)[head] * log1p(exp(alpha + (double)weight(u, 4)[head]));
    for (uint32_t i = 0; i < s->dk * s->dv; i++)
        S[i] *= exp(g);
    for (uint32_t j = 0; j < s->dv; j++) {
        const uint32_t at = 2 * s->heads_k * s->dk + head * s->dv + j;
        double d = (double)input(&u->story, seq, pos, at);
        for (uint32_t i = 0; i < s->dk; i++)
            d -= S[i * s->dv + j] * k[i];
        y[j] = 0;
        for (uint32_t i = 0; i < s->dk; i++) {
            S[i * s->dv + j] += k[i] * beta * d;
            y[j] += S[i * s->dv + j] * q[i] * (double)0.3f;
        }
    }
}

/* S: as it stands before the token. */
static void want_delta(const struct run *u, uint32_t seq, uint32_t pos, double *S, double *y)
{
    const struct shape *s = &u->s;
    for (uint32_t head = 0; head < s->heads_v; head++)
        want_step(u, seq, pos, head, S + head * s->dk * s->dv, y + head * s->dv);
}

/* Every position that the sequences hold now. */
static void check(const struct run *u)
{
    double y[1024], *S = malloc((size_t)u->n_out * (u->s.dk + 1) * sizeof *S);
    assert_non_null(S);
    for (uint32_t seq = 0; seq < SEQS; seq++) {
        memset(S, 0, (size_t)u->n_out * u->s.dk * sizeof *S);
        for (uint32_t pos = 0; pos < u->story.n[seq]; pos++) {
            double error = 0, all = 0;
            if (u->s.taps)
                want_conv(u, seq, pos, y);
            else
                want_delta(u, seq, pos, S, y);
            for (uint32_t i = 0; i < u->n_out; i++) {
                const double d = (double)result(u, seq, pos)[i] - y[i];
                error += d * d;
                all += y[i] * y[i];
            }
            rig_near(error / all, 0, 1e-11, "token", pos);
        }
    }
    free(S);
}

/* ---- cases ---- */

static const struct rig_config configs[] = {
    {1, 0, true}, {1, 0, false}, {1, UINT32_MAX, false}}; /* float, scalar, this CPU */

static const struct shape shapes[] = {
    {.taps = 2, .n = 1},
    {.taps = 4, .n = 64, .tiled = 1},
    {.taps = 4, .n = 200, .tiled = 1, .slack = 2},
    {.taps = 7, .n = 131, .slack = 1},
    {.taps = 16, .n = 65, .tiled = 1},
    {.heads_k = 1, .heads_v = 1, .dk = 4, .dv = 3},
    {.heads_k = 2, .heads_v = 4, .dk = 32, .dv = 32},
    {.heads_k = 2, .heads_v = 4, .dk = 32, .dv = 32, .tiled = 1, .slack = 2},
    {.heads_k = 2, .heads_v = 6, .dk = 20, .dv = 17, .tiled = 1},
    {.heads_k = 3, .heads_v = 6, .dk = 7, .dv = 5, .slack = 1},
    {.heads_k = 1, .heads_v = 2, .dk = 128, .dv = 128}, /* more rows than are kept in a cache */
    {.heads_k = 1, .heads_v = 1, .dk = 200, .dv = 30},
};

static void tell_all(struct run *u, const char *const *steps)
{
    for (; *steps; steps++)
        feed(u, *steps);
}

static const char *const mixed[] = {"AAABa",    "abCab", "a",    "cccccccccccccccccc",
                                    "bAbabaac", "B",     "bbcA", NULL};

static void mixed_sequences(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(shapes); i++)
        for (size_t c = 0; c < N(configs); c++) {
            struct run u;
            start(&u, &shapes[i], &configs[c]);
            for (const char *const *step = mixed; *step; step++) {
                feed(&u, *step);
                check(&u);
            }
            finish(&u);
        }
}

/* Results and states of a run are those of one thread, bit for bit. */
static void any_number_of_threads(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(shapes); i++)
        for (size_t c = 0; c < N(configs); c++) {
            struct run one;
            start(&one, &shapes[i], &configs[c]);
            tell_all(&one, mixed);
            for (uint32_t threads = 2; threads <= 4; threads++) {
                struct rig_config config = configs[c];
                struct run u;
                config.threads = threads;
                start(&u, &shapes[i], &config);
                tell_all(&u, mixed);
                const size_t bytes = (size_t)bl_value_bytes(&u.r.g.vals[u.state]);
                assert_memory_equal(u.all, one.all, SEQS * MOST * u.n_out * sizeof *u.all);
                assert_memory_equal(u.r.data[u.state], one.r.data[u.state], bytes);
                finish(&u);
            }
            finish(&one);
        }
}

/* Alone and whole, alone token by token, mixed: the same bits for every token. */
static void any_cut(void **state)
{
    (void)state;
    static const char *const cuts[][12] = {
        {"Aaaaaaaa", "Bbbbb", "Ccc", NULL},
        {"A", "B", "a", "aa", "bb", "C", "aaaa", "c", "bb", "c", NULL},
        {"ABabCaabbaac", "abca", NULL},
    };
    for (size_t i = 0; i < N(shapes); i++) {
        struct run u[N(cuts)];
        for (size_t k = 0; k < N(cuts); k++) {
            start(&u[k], &shapes[i], &(struct rig_config){2, UINT32_MAX, false});
            tell_all(&u[k], cuts[k]);
        }
        for (size_t k = 1; k < N(cuts); k++)
            assert_memory_equal(u[k].all, u[0].all, SEQS * MOST * u[0].n_out * sizeof *u[0].all);
        for (size_t k = 0; k < N(cuts); k++)
            finish(&u[k]);
    }
}

/* As far as rows of state are kept, and not a token further. */
static void taken_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(shapes); i++) {
        struct run u;
        start(&u, &shapes[i], &(struct rig_config){2, UINT32_MAX, false});
        feed(&u, "AAaaBaabaaa");
        for (unsigned again = 0; again < 3; again++) {
            u.story.n[0] -= shapes[i].slack;
            u.story.life[0]++;
            feed(&u, "abaaaa");
            check(&u);
        }
        finish(&u);
    }
}

/* Runs that go in chunks, of whole ones and others, after a few tokens and before more, and beside
 * other sequences; then back. */
static const char *const long_steps[] = {
    "AaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaBbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
    "bb",
    "acaC",
    "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbaccccccccccccccccccccccccccccccccaaa",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "aBab",
    NULL};

static void long_runs(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(shapes); i++)
        for (size_t c = 0; c < N(configs); c++) {
            struct run one;
            start(&one, &shapes[i], &configs[c]);
            tell_all(&one, long_steps);
            check(&one);
            for (uint32_t threads = 2; threads <= 5; threads += 3) {
                const struct rig_config config = {threads, configs[c].mask, configs[c].exact};
                struct run u;
                start(&u, &shapes[i], &config);
                tell_all(&u, long_steps);
                const size_t bytes = (size_t)bl_value_bytes(&u.r.g.vals[u.state]);
                assert_memory_equal(u.all, one.all, SEQS * MOST * u.n_out * sizeof *u.all);
                assert_memory_equal(u.r.data[u.state], one.r.data[u.state], bytes);
                finish(&u);
            }
            one.story.n[0] -= shapes[i].slack;
            one.story.life[0]++;
            feed(&one, "aaaaa");
            check(&one);
            finish(&one);
        }
}

static void foreign_slots_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(shapes); i++) {
        struct run u;
        start(&u, &shapes[i], &configs[1]);
        rig_tokens(&u.r, 1, 0);
        u.r.step.table[0].slot = SEQS;
        assert_int_equal(rig_run(&u.r), BL_EINVAL);
        assert_non_null(strstr(bl_error(), "owns slot 3, the state has 3"));
        finish(&u);
    }
}

static void too_many_taps_are_not_supported(void **state)
{
    (void)state;
    struct run u = {.s = {.taps = 17, .n = 3}};
    struct bl_segment *seg;
    rig_open(&u.r, &configs[1]);
    make_conv(&u);
    rig_alloc(&u.r);
    rig_params(&u.r);
    rig_bind(&u.r);
    const struct bl_node *n = &u.r.g.nodes[u.r.first];
    assert_false(bl_cpu_backend.supports(&u.r.dev->caps, &u.r.g, n));
    assert_int_equal(rig_build(&u.r, &seg), BL_EUNSUPPORTED);
    rig_close(&u.r);
}

/* ---- a whole layer in one segment, values taking turns in one block ---- */

static void make_layer(struct rig *r, const void *arg)
{
    const uint32_t n_tok = *(const uint32_t *)arg, n = 2 * 2 * 16 + 4 * 16;
    const bl_val h = rig_input(r, 0, 48, n_tok);
    bl_val w[6], tail = bl_graph_state(&r->g, 0, BL_F32, n, 3, 2),
                 s = bl_graph_state(&r->g, 1, BL_F32, 4 * 16 * 16, 1, 2);
    const uint32_t ne[6][2] = {{48, n}, {48, 64}, {48, 8}, {4, n}, {4, 1}, {16, 1}};
    for (int32_t i = 0; i < 6; i++)
        w[i] = bl_graph_weight(&r->g, i, BL_F32, (uint32_t[]){ne[i][0], ne[i][1], 1});
    const bl_val qkv = bl_graph_matmul(&r->g, w[0], h, 0, 0),
                 z = bl_graph_matmul(&r->g, w[1], h, 0, 0),
                 ba = bl_graph_matmul(&r->g, w[2], h, 0, 0);
    const struct bl_delta_vals in = {bl_graph_short_conv(&r->g, qkv, w[3], tail, true),
                                     bl_graph_slice(&r->g, ba, 4, 0, 2),
                                     bl_graph_slice(&r->g, ba, 4, 2, 2),
                                     w[4],
                                     w[4],
                                     s};
    bl_val y = bl_graph_delta_rule(&r->g, &in, &(struct bl_delta_attr){2, 4, 16, 16, 0, 1e-6f, 1});
    y = bl_graph_rms_norm(&r->g, y, w[5], 1e-6f);
    r->out[0] = bl_graph_glu(&r->g, z, y, &(struct bl_glu_attr){.kind = BL_GLU_SILU});
    rig_alloc(r);
    rig_pack(r);
    rig_fill(r, h, 1);
    for (int32_t i = 0; i < 6; i++)
        rig_fill(r, w[i], 0.3f);
    rig_tokens(r, n_tok, 0);
}

static void a_layer(void **state)
{
    (void)state;
    for (uint32_t n_tok = 1; n_tok <= 21; n_tok += 4)
        rig_case(make_layer, NULL, &n_tok, false, UINT32_MAX);
}

/* ---- SLICE, CONCAT ---- */

struct slice_case {
    uint32_t n, run, first, take, n_tok;
};

static void make_slice(struct rig *r, const void *arg)
{
    const struct slice_case *c = arg;
    const bl_val x = rig_input(r, 0, c->n, c->n_tok + 2);
    r->out[0] = bl_graph_slice(&r->g, x, c->run, c->first, c->take);
    rig_alloc(r);
    rig_fill(r, x, 1);
    rig_tokens(r, c->n_tok, 0);
}

static void check_slice(const struct rig *r, const void *arg)
{
    const struct slice_case *c = arg;
    const float *x = r->data[bl_node_src(&r->g, &r->g.nodes[r->first], 0)], *y = r->data[r->out[0]];
    uint32_t at = 0;
    for (uint32_t i = 0; i < c->n_tok * c->n; i++)
        if (i % c->run >= c->first && i % c->run < c->first + c->take)
            assert_true(y[at++] == x[i]);
    assert_int_equal(at, c->n_tok * r->g.vals[r->out[0]].ne[0]);
    rig_untouched(r, r->out[0], c->n_tok);
}

static void slice(void **state)
{
    (void)state;
    static const struct slice_case cases[] = {
        {8, 8, 0, 8, 3}, {64, 16, 8, 8, 17}, {30, 10, 9, 1, 1}, {30, 10, 0, 3, 5}, {7, 1, 0, 1, 2}};
    for (size_t i = 0; i < N(cases); i++)
        rig_case(make_slice, check_slice, &cases[i], false, 0);
}

struct concat_case {
    uint32_t n[3], n_tok;
};

static void make_concat(struct rig *r, const void *arg)
{
    const struct concat_case *c = arg;
    bl_val x[3] = {0};
    for (int32_t i = 0; i < 3 && c->n[i]; i++)
        x[i] = rig_input(r, i, c->n[i], c->n_tok + 2);
    r->out[0] = bl_graph_concat(&r->g, x[0], x[1], x[2]);
    rig_alloc(r);
    for (int32_t i = 0; i < 3 && c->n[i]; i++)
        rig_fill(r, x[i], 1);
    rig_tokens(r, c->n_tok, 0);
}

static void check_concat(const struct rig *r, const void *arg)
{
    const struct concat_case *c = arg;
    const float *y = r->data[r->out[0]];
    for (uint32_t t = 0; t < c->n_tok; t++)
        for (unsigned k = 0; k < 3; k++) {
            const float *x = r->data[bl_node_src(&r->g, &r->g.nodes[r->first], k)];
            for (uint32_t i = 0; i < c->n[k]; i++)
                assert_true(*y++ == x[t * c->n[k] + i]);
        }
    rig_untouched(r, r->out[0], c->n_tok);
}

static void concat(void **state)
{
    (void)state;
    static const struct concat_case cases[] = {{{3, 5, 0}, 1}, {{64, 1, 33}, 17}, {{1, 1, 1}, 3}};
    for (size_t i = 0; i < N(cases); i++)
        rig_case(make_concat, check_concat, &cases[i], false, 0);
}

/* ---- gates ---- */

struct gate_case {
    uint32_t kind, n_gate, n, n_tok;
};

static void make_gate(struct rig *r, const void *arg)
{
    const struct gate_case *c = arg;
    const bl_val gate = rig_input(r, 0, c->n_gate, c->n_tok + 2),
                 up = rig_input(r, 1, c->n, c->n_tok + 2);
    r->out[0] = bl_graph_glu(&r->g, gate, up, &(struct bl_glu_attr){.kind = c->kind});
    rig_alloc(r);
    rig_fill(r, gate, 4);
    rig_fill(r, up, 4);
    rig_tokens(r, c->n_tok, 0);
}

static void check_gate(const struct rig *r, const void *arg)
{
    const struct gate_case *c = arg;
    const struct bl_node *n = &r->g.nodes[r->first];
    const float *gate = r->data[bl_node_src(&r->g, n, 0)], *up = r->data[bl_node_src(&r->g, n, 1)];
    for (uint32_t i = 0; i < c->n_tok * c->n; i++) {
        const double g = (double)gate[c->n_gate == 1 ? i / c->n : i];
        const double tanh_of = sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g);
        const double act = c->kind == BL_GLU_SIGMOID ? squash(g)
                           : c->kind == BL_GLU_SILU  ? g * squash(g)
                                                     : 0.5 * g * (1 + tanh(tanh_of));
        rig_near((double)((float *)r->data[r->out[0]])[i], act * (double)up[i], 1e-5, "element", i);
    }
    rig_untouched(r, r->out[0], c->n_tok);
}

static void gates(void **state)
{
    (void)state;
    static const struct gate_case cases[] = {
        {BL_GLU_SIGMOID, 1, 1, 1},   {BL_GLU_SIGMOID, 1, 37, 17},  {BL_GLU_SILU, 1, 64, 3},
        {BL_GLU_SIGMOID, 67, 67, 9}, {BL_GLU_GELU_TANH, 1, 20, 2}, {BL_GLU_SIGMOID, 16, 16, 1}};
    for (size_t i = 0; i < N(cases); i++)
        rig_cases(make_gate, check_gate, &cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_sequences),
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(any_cut),
        cmocka_unit_test(taken_back),
        cmocka_unit_test(long_runs),
        cmocka_unit_test(foreign_slots_are_refused),
        cmocka_unit_test(too_many_taps_are_not_supported),
        cmocka_unit_test(a_layer),
        cmocka_unit_test(slice),
        cmocka_unit_test(concat),
        cmocka_unit_test(gates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
