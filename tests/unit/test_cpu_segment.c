/* SPDX-License-Identifier: MIT */
/* Segments of many nodes (barriers, shared activations, reused memory, batches) and the CPU device
 * itself. */
#include "alloc_fail.h"
#include "cpu_rig.h"

#define N(a) (sizeof(a) / sizeof *(a))

/* ---- a layer: barriers, shared activations, one token against many ---- */

struct layer {
    uint32_t q, k, v, rest; /* types of the matrices */
    uint32_t n_tok, first, bound;
    bool moe;
};
enum { E = 256, HEADS = 4, KV_HEADS = 2, D = 64, FF = 512, ROWS = 64, EXPERTS_N = 8, USED = 2 };

static bl_val weight_at(struct rig *r, int32_t *index, uint32_t type, uint32_t in, uint32_t out)
{
    return bl_graph_weight(&r->g, (*index)++, type, (uint32_t[]){in, out, 1});
}

static bl_val attend(struct rig *r, const struct layer *c, int32_t *i, bl_val h, bl_val angles)
{
    struct bl_graph *g = &r->g;
    bl_val q = bl_graph_matmul(g, weight_at(r, i, c->q, E, HEADS * D), h, 0, 0);
    bl_val k = bl_graph_matmul(g, weight_at(r, i, c->k, E, KV_HEADS * D), h, 0, 0);
    bl_val v = bl_graph_matmul(g, weight_at(r, i, c->v, E, KV_HEADS * D), h, 0, 0);
    q = bl_graph_rope(g, q, angles, BL_ROPE_NORM, D);
    k = bl_graph_rope(g, k, angles, BL_ROPE_NORM, D);
    const bl_val ks =
        bl_graph_kv_store(g, k, bl_graph_state(g, (*i)++, BL_F16, KV_HEADS * D, ROWS, 1));
    const bl_val vs =
        bl_graph_kv_store(g, v, bl_graph_state(g, (*i)++, BL_F16, KV_HEADS * D, ROWS, 1));
    const struct bl_attention_attr at = {HEADS, KV_HEADS, D, D, 0, 0.125f};
    const bl_val o = bl_graph_attention(g, q, ks, vs, 0, &at);
    return bl_graph_matmul(g, weight_at(r, i, c->rest, HEADS * D, E), o, 0, 0);
}

static bl_val feed(struct rig *r, const struct layer *c, int32_t *i, bl_val h)
{
    struct bl_graph *g = &r->g;
    const struct bl_glu_attr glu = {.kind = BL_GLU_SILU};
    if (!c->moe) {
        const bl_val gate = bl_graph_matmul(g, weight_at(r, i, c->rest, E, FF), h, 0, 0);
        const bl_val up = bl_graph_matmul(g, weight_at(r, i, c->rest, E, FF), h, 0, 0);
        const bl_val act = bl_graph_glu(g, gate, up, &glu);
        return bl_graph_matmul(g, weight_at(r, i, c->rest, FF, E), act, 0, 0);
    }
    bl_val ids, weights;
    const bl_val z = bl_graph_matmul(g, weight_at(r, i, BL_F32, E, EXPERTS_N), h, 0, 0);
    bl_graph_route(
        g, z, 0, &(struct bl_route_attr){.n_used = USED, .gating = BL_GATE_SOFTMAX, .normalise = 1},
        &ids, &weights);
    const struct bl_expert_vals e = {
        .gate = bl_graph_weight(g, (*i)++, c->rest, (uint32_t[]){E, FF, EXPERTS_N}),
        .up = bl_graph_weight(g, (*i)++, c->rest, (uint32_t[]){E, FF, EXPERTS_N}),
        .down = bl_graph_weight(g, (*i)++, c->rest, (uint32_t[]){FF, E, EXPERTS_N})};
    return bl_graph_experts(g, h, ids, weights, &e,
                            &(struct bl_experts_attr){.n_used = USED, .glu = glu});
}

/* Three layers of a small llama. */
static void make_layers(struct rig *r, const void *arg)
{
    const struct layer *c = arg;
    struct bl_graph *g = &r->g;
    int32_t i = 0;
    bl_val x = bl_graph_embed(g, weight_at(r, &i, BL_F32, E, 32),
                              bl_graph_param(g, BL_PARAM_TOKENS, c->bound), 1);
    const struct bl_angles_attr at = {.n_dims = D, .base = 10000, .freq_scale = 1, .magnitude = 1};
    const bl_val angles =
        bl_graph_rope_angles(g, bl_graph_param(g, BL_PARAM_POSITIONS, c->bound), 0, &at);
    for (int l = 0; l < 3; l++) {
        const bl_val h = bl_graph_rms_norm(g, x, weight_at(r, &i, BL_F32, E, 1), 1e-5f);
        x = bl_graph_add(g, x, attend(r, c, &i, h, angles));
        const bl_val n = bl_graph_rms_norm(g, x, weight_at(r, &i, BL_F32, E, 1), 1e-5f);
        x = bl_graph_add(g, x, feed(r, c, &i, n));
    }
    r->out[0] = x;
    r->first = 0;
    rig_alloc(r);
    for (bl_val v = 1; v < g->n_vals; v++)
        if (g->vals[v].origin == BL_WEIGHT)
            rig_fill_weight(r, v, g->vals[v].ne[1] == 1 ? 1 : 0.2f);
    rig_tokens(r, c->n_tok, c->first);
    for (uint32_t t = 0; t < c->n_tok; t++)
        r->step.token[t] = (int32_t)((c->first + t) * 5 % 32);
}

static const struct layer layers[] = {
    {BL_Q4_K, BL_Q4_K, BL_Q6_K, BL_Q4_K, 1, 0, 1, false},
    {BL_Q4_K, BL_Q4_K, BL_Q8_0, BL_Q4_K, 1, 0, 1, false},
    {BL_Q8_0, BL_Q8_0, BL_Q8_0, BL_Q8_0, 17, 0, 20, false},
    {BL_Q4_0, BL_Q4_0, BL_Q4_0, BL_Q4_0, 33, 0, 33, true},
    {BL_F16, BL_F32, BL_F16, BL_F16, 3, 0, 3, false},
    {BL_Q4_K, BL_Q4_K, BL_Q4_K, BL_Q4_K, 1, 0, 1, true},
};

static void layers_are_the_same_on_any_threads(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(layers); i++)
        rig_cases(make_layers, NULL, &layers[i]);
}

/* Values that take turns in memory, as a program places them, change nothing. */
static void packed_values_are_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(layers); i++) {
        struct rig apart, packed;
        rig_open(&apart, &(struct rig_config){1, UINT32_MAX, false});
        make_layers(&apart, &layers[i]);
        rig_ok(rig_run(&apart));
        for (uint32_t threads = 1; threads <= 4; threads++) {
            rig_open(&packed, &(struct rig_config){threads, UINT32_MAX, false});
            make_layers(&packed, &layers[i]);
            rig_pack(&packed);
            rig_ok(rig_run(&packed));
            assert_memory_equal(packed.data[packed.out[0]], apart.data[apart.out[0]],
                                layers[i].n_tok * E * sizeof(float));
            rig_close(&packed);
        }
        rig_close(&apart);
    }
}

/* Matrices of both laws over x, another product that needs all the scratch, and x again: the bits
 * that each gives alone. */
static void shared_activations_are_the_same(void **state)
{
    (void)state;
    const uint32_t type[] = {BL_Q4_K, BL_Q8_0, BL_Q4_K, BL_Q8_0, BL_Q4_K};
    for (uint32_t n_tok = 1; n_tok <= 5; n_tok += 4) {
        struct rig r;
        bl_val y[N(type)];
        float *want[N(type)];
        rig_open(&r, &(struct rig_config){2, UINT32_MAX, false});
        const bl_val x = rig_input(&r, 0, E, n_tok), z = rig_input(&r, 1, FF, n_tok);
        for (uint32_t i = 0; i < N(type); i++) {
            const uint32_t in = i == 2 ? FF : E;
            const bl_val w = bl_graph_weight(&r.g, (int32_t)i, type[i], (uint32_t[]){in, 12, 1});
            y[i] = bl_graph_matmul(&r.g, w, i == 2 ? z : x, 0, 0);
        }
        rig_alloc(&r);
        for (bl_val v = 1; v < r.g.n_vals; v++)
            if (r.g.vals[v].origin == BL_WEIGHT)
                rig_fill_weight(&r, v, 1);
        rig_fill(&r, x, 1);
        rig_fill(&r, z, 1);
        rig_tokens(&r, n_tok, 0);
        const uint32_t first = r.first, n_nodes = r.g.n_nodes;
        for (uint32_t i = 0; i < N(type); i++) {
            r.first = first + i;
            r.g.n_nodes = r.first + 1;
            rig_ok(rig_run(&r));
            want[i] = malloc(12 * n_tok * sizeof(float));
            memcpy(want[i], r.data[y[i]], 12 * n_tok * sizeof(float));
        }
        r.first = first;
        r.g.n_nodes = n_nodes;
        rig_ok(rig_run(&r));
        for (uint32_t i = 0; i < N(type); i++) {
            assert_memory_equal(want[i], r.data[y[i]], 12 * n_tok * sizeof(float));
            free(want[i]);
        }
        rig_close(&r);
    }
}

static uint64_t barriers_of(const struct layer *c, uint32_t threads, uint32_t mask)
{
    struct rig r;
    rig_open(&r, &(struct rig_config){threads, mask, false});
    make_layers(&r, c);
    const uint64_t before = bl_cpu_barriers(r.dev);
    rig_ok(rig_run(&r));
    const uint64_t n = bl_cpu_barriers(r.dev) - before;
    rig_close(&r);
    return n;
}

/* Waiting is, with what the last one does in brackets: (norm, quantise) q k v (rope, store)
 * attention (merge, quantise) o (add, norm, quantise) gate up (glu, quantise) down (add). The end
 * is none. */
static void a_dense_layer_takes_five_meetings(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 3; threads++) {
        assert_int_equal(barriers_of(&layers[0], threads, UINT32_MAX), 3 * 5);
        /* both laws over one x */
        assert_int_equal(barriers_of(&layers[1], threads, UINT32_MAX), 3 * 5);
    }
}

/* For many tokens quantising arranges tiles as well and is a step of its own; no pieces of
 * attention are merged. */
static void a_dense_layer_in_panels_takes_thirteen_barriers(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 3; threads++)
        assert_int_equal(barriers_of(&layers[2], threads, 0), 3 * 13);
}

/* After the attention: (norm, quantise) router (route, sort) gate up | quantise | down (sum, add).
 */
static void a_layer_of_experts_takes_seven_meetings(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 3; threads++)
        assert_int_equal(barriers_of(&layers[5], threads, UINT32_MAX), 3 * 7);
}

/* After the attention: norm | arrange for the router | router | route, quantise | sort | gather |
 * gate up | arrange | down | sum, add. */
static void a_layer_of_experts_in_panels_takes_sixteen_barriers(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 3; threads++)
        assert_int_equal(barriers_of(&layers[3], threads, 0), 3 * 16);
}

/* Barriers of a segment whose second result is written `shift` bytes into its first source. */
static uint64_t barriers_when_shifted(uint32_t n_first, uint32_t n_tok, size_t shift)
{
    struct rig r;
    rig_open(&r, &(struct rig_config){2, 0, false});
    const bl_val x = rig_input(&r, 0, n_first, n_tok), z = rig_input(&r, 1, 16, n_tok);
    bl_graph_add(&r.g, x, x);
    const bl_val y = bl_graph_add(&r.g, z, z);
    rig_alloc(&r);
    rig_fill(&r, x, 1);
    rig_fill(&r, z, 1);
    rig_tokens(&r, n_tok, 0);
    void *own = r.data[y], *both = realloc(r.data[x], 4096);
    r.data[x] = both;
    r.data[y] = (char *)both + shift;
    const uint64_t before = bl_cpu_barriers(r.dev);
    rig_ok(rig_run(&r));
    const uint64_t n = bl_cpu_barriers(r.dev) - before;
    r.data[y] = own;
    rig_close(&r);
    return n;
}

/* A thread meets its own rows only if both values have them in the same places. */
static void reused_memory_may_need_a_barrier(void **state)
{
    (void)state;
    assert_int_equal(barriers_when_shifted(16, 8, 0), 0);
    assert_int_equal(barriers_when_shifted(16, 8, 16 * sizeof(float)), 1);
    assert_int_equal(barriers_when_shifted(8, 8, 0), 1);
    assert_int_equal(barriers_when_shifted(8, 8, 8 * 8 * sizeof(float)), 0);
    assert_int_equal(barriers_when_shifted(8, 1, 0), 0); /* one token: all on one thread */
}

/* The same bits, or near: the float reference itself is 0.12 away from eight-bit activations, what
 * is unrelated 1.4. */
static void assert_same(const float *got, const float *want, uint32_t n, bool bits)
{
    double error = 0, all = 0;
    if (bits)
        assert_memory_equal(got, want, n * sizeof *got);
    for (uint32_t i = 0; i < n; i++) {
        error += pow((double)got[i] - (double)want[i], 2);
        all += pow((double)want[i], 2);
    }
    rig_near(sqrt(error / all), 0, 0.2, "distance to one batch of", n);
}

static const uint32_t cuts[][10] = {{9}, {4, 5}, {1, 1, 1, 1, 1, 1, 1, 1, 1}};

static void run_in_batches(const uint32_t *n, bool moe, bool exact, float *y)
{
    void *kv[RIG_VALUES] = {0};
    for (uint32_t at = 0; *n; at += *n++) {
        struct rig r;
        const struct layer l = {BL_Q4_K, BL_Q8_0, BL_Q6_K, BL_Q4_0, *n, at, *n, moe};
        rig_open(&r, &(struct rig_config){2, UINT32_MAX, exact});
        make_layers(&r, &l);
        for (bl_val v = 1; v < r.g.n_vals; v++) /* the state of the batches before */
            if (kv[v] && r.g.vals[v].origin == BL_STATE_ROWS)
                memcpy(r.data[v], kv[v], (size_t)bl_value_bytes(&r.g.vals[v]));
        rig_ok(rig_run(&r));
        for (bl_val v = 1; v < r.g.n_vals; v++)
            if (r.g.vals[v].origin == BL_STATE_ROWS) {
                kv[v] = realloc(kv[v], (size_t)bl_value_bytes(&r.g.vals[v]));
                memcpy(kv[v], r.data[v], (size_t)bl_value_bytes(&r.g.vals[v]));
            }
        memcpy(y + at * E, r.data[r.out[0]], *n * E * sizeof *y);
        rig_close(&r);
    }
    for (unsigned v = 0; v < RIG_VALUES; v++)
        free(kv[v]);
}

/* Tokens in one batch, in two, and one by one: the same bits in the float reference, the same but
 * for rounding where many tokens take panels. */
static void batches_do_not_matter(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        const bool moe = i % 2, exact = i / 2;
        float want[9 * E], got[9 * E];
        run_in_batches(cuts[0], moe, exact, want);
        for (unsigned c = 1; c < N(cuts); c++) {
            run_in_batches(cuts[c], moe, exact, got);
            assert_same(got, want, 9 * E, exact);
        }
    }
}

/* ---- the device ---- */

static void unsupported_nodes_are_refused(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, &(struct rig_config){1, 0, false});
    const bl_val x = rig_input(&r, 0, 256, 2);
    const bl_val kv = bl_graph_state(&r.g, 0, BL_Q4_K, 256, 8, 1); /* has no encoder */
    bl_graph_kv_store(&r.g, x, kv);
    const struct bl_node *n = &r.g.nodes[r.first];
    assert_false(bl_cpu_backend.supports(&r.dev->caps, &r.g, n));
    rig_alloc(&r);
    rig_tokens(&r, 1, 0);
    assert_int_equal(rig_run(&r), BL_EUNSUPPORTED);
    assert_non_null(strstr(bl_error(), "kv_store"));
    rig_close(&r);
}

/* One embedding node over three tokens. */
static void make_embed(struct rig *r)
{
    const bl_val table = bl_graph_weight(&r->g, 0, BL_F32, (uint32_t[]){7, 11, 1});
    r->out[0] = bl_graph_embed(&r->g, table, bl_graph_param(&r->g, BL_PARAM_TOKENS, 5), 1);
    rig_alloc(r);
    rig_fill_weight(r, table, 1);
    rig_tokens(r, 3, 0);
}

static void run_with(struct rig *r, const struct rig_step *s, const char *message)
{
    rig_open(r, &(struct rig_config){2, 0, false});
    make_embed(r);
    if (s)
        r->step = *s;
    const enum bl_status st = rig_run(r);
    assert_int_equal(st, message ? BL_EINVAL : BL_OK);
    if (message && !strstr(bl_error(), message))
        fail_msg("\"%s\" does not say \"%s\"", bl_error(), message);
}

static void a_failed_stream_stays_failed(void **state)
{
    (void)state;
    struct rig r;
    const struct rig_step bad = {.n_tok = 1, .n_seq = 1, .token = {11}, .table = {{1, 0}}};
    run_with(&r, &bad, "cpu0: token 0 has id 11, the model has 11");
    rig_tokens(&r, 1, 0); /* now good */
    assert_int_equal(rig_run(&r), BL_EINVAL);
    struct bl_point p;
    rig_ok(r.dev->ops->signal(r.stream, &p));
    assert_int_equal(r.dev->ops->join(p, UINT64_MAX), BL_EINVAL);
    assert_non_null(strstr(bl_error(), "id 11"));
    assert_true(r.dev->ops->poll(p));
    rig_close(&r);
    run_with(&r, NULL, NULL); /* another stream is not concerned */
    rig_close(&r);
}

static void bad_params_are_caught(void **state)
{
    (void)state;
    struct rig r;
    const struct {
        struct rig_step s;
        const char *message;
    } bad[] = {
        {{.n_tok = 6, .n_seq = 1, .table = {{1, 0}}}, "6 tokens"},
        {{.n_tok = 1, .n_seq = 1, .token = {-1}, .table = {{1, 0}}}, "id -1"},
        {{.n_tok = 2, .n_seq = 1, .pos = {0, 2}, .table = {{2, 0}}}, "position 2"},
        {{.n_tok = 1, .n_seq = 1, .seq = {1}, .table = {{1, 0}}}, "sequence 1"},
        {{.n_tok = 1, .n_seq = 1, .n_out = 1, .out = {1}, .table = {{1, 0}}}, "output 0"},
    };
    for (size_t i = 0; i < N(bad); i++) {
        run_with(&r, &bad[i].s, bad[i].message);
        rig_close(&r);
    }
}

/* A position or slot beyond the state is refused, except where a window lets the ring wrap. */
static void state_limits_are_kept(void **state)
{
    (void)state;
    for (uint32_t window = 0; window <= 4; window += 4)
        for (uint32_t slot = 0; slot < 2; slot++) {
            struct rig r;
            rig_open(&r, &(struct rig_config){1, 0, false});
            const bl_val q = rig_input(&r, 0, 8, 2);
            const bl_val kv = bl_graph_state(&r.g, 0, BL_F32, 8, 5, 1);
            bl_graph_attention(&r.g, q, kv, kv, 0,
                               &(struct bl_attention_attr){1, 1, 8, 8, window, 1});
            rig_alloc(&r);
            rig_fill(&r, q, 1);
            rig_tokens(&r, 1, 5);
            r.step.table[0].slot = slot;
            assert_int_equal(rig_run(&r), window && !slot ? BL_OK : BL_EINVAL);
            rig_close(&r);
        }
}

enum { BIG = 200000, COPIES = 500 };
static void copies_fills_and_edges(void **state)
{
    (void)state;
    struct rig r;
    struct bl_mem a, b, c;
    rig_open(&r, &(struct rig_config){2, 0, false});
    const struct bl_device_ops *ops = r.dev->ops;
    rig_ok(ops->mem_alloc(r.dev, 4 * COPIES, true, &a));
    rig_ok(ops->mem_alloc(r.dev, BIG, false, &b));
    assert_int_equal(a.granted_bytes, bl_align_up(4 * COPIES, bl_page_bytes()));
    assert_int_equal(b.granted_bytes, bl_align_up(BIG, bl_page_bytes()));
    assert_int_equal(a.bytes, 4 * COPIES);
    rig_ok(ops->mem_import(r.dev, b.host, BIG, &c));
    assert_ptr_equal(c.host, b.host);
    assert_int_equal(c.granted_bytes, 0);
    for (uint32_t i = 0; i < COPIES; i++) { /* more, and slower, than the queue holds */
        rig_ok(ops->fill(r.stream, &b, 0, 0x1000 + i, BIG));
        rig_ok(ops->copy(r.stream, &a, 4 * i, &b, BIG - 4, 4));
    }
    rig_ok(rig_join(&r));
    for (uint32_t i = 0; i < COPIES; i++)
        assert_int_equal(((uint32_t *)a.host)[i], 0x1000 + i);
    assert_int_equal(ops->copy(r.stream, &a, 4 * COPIES - 3, &b, 0, 4), BL_EINVAL);
    assert_int_equal(ops->copy(r.stream, &a, 0, &b, SIZE_MAX, 2), BL_EINVAL);
    assert_int_equal(ops->fill(r.stream, &a, 2, 0, 4), BL_EINVAL);
    rig_ok(ops->copy(r.stream, &a, 4 * COPIES, &b, BIG, 0));
    rig_ok(rig_join(&r)); /* refused at once, so the stream has not failed */
    ops->mem_free(&a);
    ops->mem_free(&b);
    ops->mem_free(&c);
    ops->mem_free(&(struct bl_mem){0});
    rig_close(&r);
}

/* Stream 2 waits for stream 1, which waits for a point that comes late. */
static void streams_wait_for_each_other(void **state)
{
    (void)state;
    struct rig r;
    struct bl_stream *other;
    struct bl_mem a;
    struct bl_point late, p;
    rig_open(&r, &(struct rig_config){1, 0, false});
    const struct bl_device_ops *ops = r.dev->ops;
    rig_ok(ops->stream_open(r.dev, &other));
    rig_ok(ops->mem_alloc(r.dev, 64, true, &a));
    late = (struct bl_point){r.stream, 2};
    rig_ok(ops->wait(other, late));
    rig_ok(ops->fill(other, &a, 0, 2, 4));
    rig_ok(ops->signal(other, &p));
    assert_false(ops->poll(p));
    assert_int_equal(ops->join(p, 20000000), BL_ETIMEDOUT);
    assert_non_null(strstr(bl_error(), "cpu0: no answer within 0.020 s"));
    rig_ok(ops->fill(r.stream, &a, 0, 1, 4));
    rig_ok(rig_join(&r));
    assert_false(ops->poll(p));
    rig_ok(rig_join(&r)); /* the second signal */
    rig_ok(ops->join(p, UINT64_MAX));
    assert_int_equal(*(uint32_t *)a.host, 2);
    ops->stream_close(other);
    ops->mem_free(&a);
    rig_close(&r);
}

static void a_wait_hands_on_failure(void **state)
{
    (void)state;
    struct rig r;
    struct bl_stream *other;
    struct bl_point p;
    const struct rig_step bad = {.n_tok = 1, .n_seq = 1, .token = {99}, .table = {{1, 0}}};
    run_with(&r, &bad, "id 99");
    rig_ok(r.dev->ops->stream_open(r.dev, &other));
    rig_ok(r.dev->ops->signal(r.stream, &p));
    rig_ok(r.dev->ops->wait(other, p));
    rig_ok(r.dev->ops->signal(other, &p));
    assert_int_equal(r.dev->ops->join(p, UINT64_MAX), BL_EINVAL);
    assert_non_null(strstr(bl_error(), "id 99"));
    r.dev->ops->stream_close(other);
    rig_close(&r);
}

static void caps_follow_the_configuration(void **state)
{
    (void)state;
    struct bl_caps caps;
    struct bl_device *dev;
    uint32_t n;
    rig_ok(bl_cpu_backend.count(&n));
    assert_int_equal(n, 1);
    rig_ok(bl_cpu_backend.caps(0, &(struct bl_device_config){.threads = 3, .exact = true}, &caps));
    assert_int_equal(caps.granule_bytes, bl_page_bytes());
    assert_int_equal(caps.threads, 3);
    assert_int_equal(caps.exact, 1);
    assert_int_equal(caps.import_host, 1);
    rig_ok(bl_cpu_backend.open(0, &(struct bl_device_config){0}, &dev));
    assert_int_equal(dev->caps.threads, 1);
    assert_string_equal(dev->name, "cpu0");
    dev->ops->close(dev);
    assert_int_equal(bl_cpu_backend.open(64, &(struct bl_device_config){0}, &dev), BL_EUNAVAILABLE);
    assert_int_equal(bl_cpu_backend.open(0, &(struct bl_device_config){.threads = 5000}, &dev),
                     BL_EINVAL);
}

static void open_without_memory(uint64_t n, bool *more)
{
    const struct bl_device_config c = {.threads = 3};
    struct bl_device *dev = NULL;
    struct bl_stream *stream = NULL;
    struct bl_mem mem = {0};
    alloc_fail_at(n);
    enum bl_status st = bl_cpu_backend.open(0, &c, &dev);
    if (!st)
        st = dev->ops->stream_open(dev, &stream);
    if (!st)
        st = dev->ops->mem_alloc(dev, 10000, true, &mem);
    *more = alloc_fail_stop();
    if (*more)
        assert_int_equal(st, BL_ENOMEM);
    if (dev) {
        dev->ops->mem_free(&mem);
        dev->ops->stream_close(stream);
        dev->ops->close(dev);
    }
}

static void memory_may_run_out(void **state)
{
    (void)state;
    struct rig r;
    bool more = true;
    for (uint64_t n = 1; more; n++)
        open_without_memory(n, &more);
    rig_open(&r, &(struct rig_config){2, 0, false});
    make_layers(&r, &layers[3]);
    rig_params(&r);
    rig_bind(&r);
    more = true;
    for (uint64_t n = 1; more; n++) {
        struct bl_segment *seg = NULL;
        alloc_fail_at(n);
        const enum bl_status st = rig_build(&r, &seg);
        more = alloc_fail_stop();
        assert_int_equal(st, more ? BL_ENOMEM : BL_OK);
        r.dev->ops->segment_free(seg);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_the_same_on_any_threads),
        cmocka_unit_test(packed_values_are_the_same),
        cmocka_unit_test(shared_activations_are_the_same),
        cmocka_unit_test(a_dense_layer_takes_five_meetings),
        cmocka_unit_test(a_dense_layer_in_panels_takes_thirteen_barriers),
        cmocka_unit_test(a_layer_of_experts_takes_seven_meetings),
        cmocka_unit_test(a_layer_of_experts_in_panels_takes_sixteen_barriers),
        cmocka_unit_test(reused_memory_may_need_a_barrier),
        cmocka_unit_test(batches_do_not_matter),
        cmocka_unit_test(unsupported_nodes_are_refused),
        cmocka_unit_test(a_failed_stream_stays_failed),
        cmocka_unit_test(bad_params_are_caught),
        cmocka_unit_test(state_limits_are_kept),
        cmocka_unit_test(copies_fills_and_edges),
        cmocka_unit_test(streams_wait_for_each_other),
        cmocka_unit_test(a_wait_hands_on_failure),
        cmocka_unit_test(memory_may_run_out),
        cmocka_unit_test(caps_follow_the_configuration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
