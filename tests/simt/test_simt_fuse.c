/* SPDX-License-Identifier: MIT */
/* Nodes that go together in one launch give the bits that they give one by one, and take as many
 * launches as they should; where values lie so tightly that they may not go together, the bits stay
 * all the same.
 *
 *     test_simt_fuse LIBRARY [--one-of N]     one case of N */
#include "cpu_rig.h"

#include "backends.h"
#include "emu.h"

#include <dlfcn.h>

enum { MEM_BYTES = 8 << 20, INPUT_SCALE = 1 };
static const uint64_t deadline_ns = 60000000000u;
static struct bl_device *dev;
static struct bl_stream *stream;
static struct bl_mem mem, host; /* of the card; what comes and goes */

static emu_read_fn *read_counts;
static uint32_t one_of = 1, n_met;

static uint32_t n_launches(void)
{
    struct emu_counts c;

    read_counts(&c);
    return c.launches;
}

struct image {
    struct rig r;
    uint64_t off[RIG_VALUES], scratch, params, end;
};

static uint64_t add_bytes(struct image *m, uint64_t bytes)
{
    const uint64_t off = m->end;

    m->end = bl_align_up(off + bytes, 64);
    assert_true(m->end <= MEM_BYTES);
    return off;
}

static void place_values(struct image *m)
{
    const struct rig *r = &m->r;
    uint64_t arena = UINT64_MAX;

    for (bl_val v = 1; v < r->g.n_vals; v++) {
        if (!r->data[v])
            continue;
        if (rig_packed(r, v)) {
            arena = arena == UINT64_MAX ? add_bytes(m, 1 << 20) : arena;
            m->off[v] = arena + (uint64_t)((uint8_t *)r->data[v] - r->arena);
            continue;
        }
        for (bl_val u = 1; u < v && !m->off[v]; u++)
            if (r->data[u] == r->data[v])
                m->off[v] = m->off[u];
        if (!m->off[v])
            m->off[v] = add_bytes(m, bl_value_bytes(&r->g.vals[v]));
    }
    m->scratch = add_bytes(m, 1 << 20);
    m->params = add_bytes(m, sizeof(struct bl_params) + sizeof(struct rig_step));
}

/* Activations that are given, weights, states and what EXPERTS finds its weights by. */
static void upload(struct image *m)
{
    const struct rig *r = &m->r;
    uint8_t *to = host.host;

    memset(to, 0xff, MEM_BYTES);
    for (bl_val v = 1; v < r->g.n_vals; v++)
        if (r->data[v] &&
            (!rig_packed(r, v) || v <= r->g.nodes[r->first ? r->first - 1 : 0].dst[0]))
            memcpy(to + m->off[v], r->data[v], (size_t)bl_value_bytes(&r->g.vals[v]));
    memcpy(to + m->params, r->mem_params.host, sizeof(struct bl_params) + sizeof(struct rig_step));
}

static uint64_t table_of(struct image *m, bl_val v, uint32_t n)
{
    const uint64_t off = add_bytes(m, n * sizeof(uint64_t));
    uint64_t *t = (uint64_t *)(void *)((uint8_t *)host.host + off);

    for (uint32_t e = 0; e < n; e++)
        t[e] = mem.addr + m->off[v] + e * (bl_value_bytes(&m->r.g.vals[v]) / n);
    return mem.addr + off;
}

static void bind(struct image *m)
{
    struct rig *r = &m->r;

    rig_bind(r);
    for (uint32_t i = 0; i < r->g.n_nodes - r->first; i++) {
        const struct bl_node *n = r->bound[i].node;
        uint64_t *src = r->addr + 16 * i, *dst = src + 14;
        for (unsigned s = 0; s < n->n_src; s++) {
            const bl_val v = bl_node_src(&r->g, n, s);
            const bool table = v && n->op == BL_OP_EXPERTS && s >= 3;
            src[s] = table             ? table_of(m, v, r->g.vals[v].ne[2])
                     : v && r->data[v] ? mem.addr + m->off[v]
                                       : 0;
        }
        for (unsigned d = 0; d < n->n_dst; d++)
            dst[d] = mem.addr + m->off[n->dst[d]];
    }
}

static void run_nodes(struct image *m, uint32_t first, uint32_t n)
{
    const struct bl_mem scratch = {.dev = dev, .addr = mem.addr + m->scratch, .bytes = 1 << 20},
                        params = {.dev = dev, .addr = mem.addr + m->params, .bytes = 1 << 16};
    struct bl_segment *segment;
    struct bl_point p;

    rig_ok(
        dev->ops->segment_build(dev, &m->r.g, m->r.bound + first, n, &scratch, &params, &segment));
    rig_ok(dev->ops->segment_run(stream, segment));
    rig_ok(dev->ops->signal(stream, &p));
    rig_ok(dev->ops->join(p, deadline_ns));
    dev->ops->segment_free(segment);
}

/* What is in the card's memory afterwards; the caller frees it. Returns the launches. */
static uint32_t run(struct image *m, bool together, uint8_t **out)
{
    const uint32_t n = m->r.g.n_nodes - m->r.first, before = n_launches();
    const uint64_t end = m->end;
    struct bl_point p;

    upload(m);
    bind(m);
    rig_ok(dev->ops->copy(stream, &mem, 0, &host, 0, m->end));
    for (uint32_t i = 0; i < n; i += together ? n : 1)
        run_nodes(m, i, together ? n : 1);
    rig_ok(dev->ops->copy(stream, &host, 0, &mem, 0, m->end));
    rig_ok(dev->ops->signal(stream, &p));
    rig_ok(dev->ops->join(p, deadline_ns));
    *out = malloc(m->end);
    assert_non_null(*out);
    memcpy(*out, host.host, m->end);
    m->end = end;
    return n_launches() - before;
}

static bool is_read(const struct bl_graph *g, bl_val v)
{
    for (uint32_t i = 0; i < g->n_srcs; i++)
        if (g->srcs[i] == v)
            return true;
    return false;
}

/* Of a value that is kept to the end. */
static void compare(const struct image *m, bl_val v, const uint8_t *a, const uint8_t *b,
                    const char *what)
{
    const struct rig *r = &m->r;
    const struct bl_value *w = &r->g.vals[v];
    const uint64_t bytes = bl_value_bytes(w);

    if (w->origin != BL_STATE_ROWS && v != r->out[0] && v != r->out[1] &&
        (r->arena || is_read(&r->g, v)))
        return;
    if (memcmp(a + m->off[v], b + m->off[v], bytes))
        fail_msg("%s: value %u differs", what, v);
    for (uint64_t i = 0; w->origin == BL_ACTIVATION && i < bytes; i += 4)
        if (!memcmp(a + m->off[v] + i, "\xff\xff\xff\xff", 4))
            fail_msg("%s: word %llu of value %u was not written", what, (unsigned long long)(i / 4),
                     v);
}

typedef void make_fn(struct rig *, uint32_t n_tok, enum bl_dtype);

static void fill(struct rig *r, uint32_t n_tok)
{
    rig_alloc(r);
    for (bl_val v = 1; v < r->g.n_vals; v++)
        if (r->g.vals[v].origin == BL_WEIGHT && r->data[v])
            rig_fill_weight(r, v, 0.3f);
    for (uint32_t i = 0; i < r->first; i++)
        if (r->g.nodes[i].op == BL_OP_EMBED)
            rig_fill(r, r->g.nodes[i].dst[0], INPUT_SCALE);
    rig_tokens(r, n_tok, 11);
}

static void check(make_fn *make, const char *what, uint32_t n_tok, enum bl_dtype type,
                  uint32_t launches)
{
    if (n_met++ % one_of)
        return;
    for (int packed = 0; packed < 2; packed++) {
        struct image m = {.end = 64};
        uint8_t *one, *each;
        rig_open(&m.r, &(struct rig_config){.threads = 1});
        make(&m.r, n_tok, type);
        fill(&m.r, n_tok);
        if (packed) {
            rig_pack(&m.r);
            for (uint32_t i = 0; i < m.r.first; i++)
                if (m.r.g.nodes[i].op == BL_OP_EMBED)
                    rig_fill(&m.r, m.r.g.nodes[i].dst[0], INPUT_SCALE);
        }
        rig_params(&m.r);
        place_values(&m);
        const uint32_t n = run(&m, true, &one), all = run(&m, false, &each);
        for (uint32_t i = m.r.first; i < m.r.g.n_nodes; i++)
            compare(&m, m.r.g.nodes[i].dst[0], one, each, what);
        if (!packed && n != launches)
            fail_msg("%s of %u tokens, %s: %u launches, not %u", what, n_tok, bl_dtypes[type].name,
                     n, launches);
        assert_true(n <= all);
        free(one);
        free(each);
        rig_close(&m.r);
    }
}

/* Weights of single values and in blocks, one token and several. */
static void check_types(make_fn *make, const char *what, uint32_t launches)
{
    static const enum bl_dtype types[] = {BL_F32, BL_BF16, BL_Q8_0, BL_Q4_K};

    for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
        check(make, what, 1, types[i], launches);
        check(make, what, 5, types[i], launches);
    }
}

static bl_val weight(struct rig *r, enum bl_dtype type, uint32_t in, uint32_t out, uint32_t n)
{
    return bl_graph_weight(&r->g, (int32_t)r->g.n_vals, type, (uint32_t[]){in, out, n});
}

static bl_val product(struct rig *r, enum bl_dtype type, bl_val x, uint32_t out, bool more)
{
    const bl_val bias = more ? weight(r, BL_F32, out, 1, 1) : 0,
                 scale = more ? weight(r, BL_F32, 1, 1, 1) : 0,
                 w = weight(r, type, r->g.vals[x].ne[0], out, 1);
    return bl_graph_matmul(&r->g, w, x, bias, scale);
}

/* ---- the cases ---- */

static void make_products(struct rig *r, uint32_t n_tok, enum bl_dtype type)
{
    const bl_val x = rig_input(r, 1, 512, n_tok);

    r->out[0] = product(r, type, x, 96, true);
    r->out[1] = product(r, type, x, 37, false);
    product(r, type, x, 300, true);
    product(r, BL_F16, x, 16, false);
}

static void products_of_one_x(void **state)
{
    (void)state;
    check_types(make_products, "products", 2);
}

static void make_gated(struct rig *r, uint32_t n_tok, enum bl_dtype type)
{
    const struct bl_glu_attr at = {.kind = BL_GLU_SWIGLU_OAI, .alpha = 1.7f, .limit = 7};
    const bl_val x = rig_input(r, 1, 256, n_tok);

    product(r, type, x, 40, false);
    product(r, type, x, 50, false);
    const bl_val gate = product(r, type, x, 75, true), up = product(r, type, x, 75, true);
    r->out[0] = bl_graph_glu(&r->g, gate, up, &at);
    r->out[1] = r->out[0];
}

static void gate_and_up(void **state)
{
    (void)state;
    check_types(make_gated, "gate and up", 2);
}

/* A result that is read twice is written. */
static void make_sums(struct rig *r, uint32_t n_tok, enum bl_dtype type)
{
    const bl_val x = rig_input(r, 1, 256, n_tok), y = rig_input(r, 2, 80, n_tok);
    const bl_val a = bl_graph_add(&r->g, product(r, type, x, 80, true), y);
    const bl_val b = product(r, type, x, 80, false), c = bl_graph_add(&r->g, a, b);

    r->out[0] = bl_graph_add(&r->g, product(r, type, x, 80, false), c);
    r->out[1] = bl_graph_add(&r->g, b, b);
}

static void sums(void **state)
{
    (void)state;
    check_types(make_sums, "sums", 5);
}

enum { STREAMS = 4, ELEMS = 80, MIXES = 2 * STREAMS + STREAMS * STREAMS };

static bl_val mixing(struct rig *r, bl_val streams, uint32_t n)
{
    const struct bl_streams_attr at = {
        .n = STREAMS, .iterations = 3, .norm_eps = 1e-6f, .eps = 1e-5f};
    const bl_val z = product(r, BL_F32, streams, n, false);

    return bl_graph_stream_weights(&r->g, streams, z, weight(r, BL_F32, n, 1, 1),
                                   weight(r, BL_F32, n > STREAMS ? 3 : 1, 1, 1), &at);
}

static void make_streams(struct rig *r, uint32_t n_tok, enum bl_dtype type)
{
    const bl_val x = rig_input(r, 1, 256, n_tok), y = rig_input(r, 2, ELEMS, n_tok);
    bl_val s = rig_input(r, 3, STREAMS * ELEMS, n_tok);
    const bl_val w = mixing(r, s, MIXES), norm = weight(r, BL_F32, ELEMS, 1, 1);

    r->out[0] = bl_graph_rms_norm(&r->g, bl_graph_stream_read(&r->g, s, w, STREAMS), norm, 1e-5f);
    s = bl_graph_stream_write(&r->g, s, product(r, type, x, ELEMS, true), w);
    const bl_val sum = bl_graph_add(&r->g, y, product(r, type, x, ELEMS, false));
    s = bl_graph_stream_write(&r->g, s, sum, w);
    const bl_val last = mixing(r, s, STREAMS);
    r->out[1] =
        bl_graph_rms_norm_runs(&r->g, bl_graph_stream_read(&r->g, s, last, STREAMS), ELEMS, 1e-5f);
}

static void streams(void **state)
{
    (void)state;
    check_types(make_streams, "streams", 6);
}

static void make_experts(struct rig *r, uint32_t n_tok, enum bl_dtype type)
{
    const struct bl_experts_attr at = {.n_used = 3, .glu = {.kind = BL_GLU_SILU}};
    const struct bl_route_attr route = {.n_used = 3, .gating = BL_GATE_SIGMOID};
    const bl_val x = rig_input(r, 1, 256, n_tok), y = rig_input(r, 2, 256, n_tok),
                 z = rig_input(r, 3, 4, n_tok);
    const struct bl_expert_vals e = {.gate = weight(r, type, 256, 256, 4),
                                     .up = weight(r, type, 256, 256, 4),
                                     .down = weight(r, type, 256, 256, 4)};
    bl_val ids, weights;

    bl_graph_route(&r->g, z, 0, &route, &ids, &weights);
    r->out[0] = bl_graph_add(&r->g, y, bl_graph_experts(&r->g, x, ids, weights, &e, &at));
    r->out[1] = r->out[0];
}

static void experts(void **state)
{
    (void)state;
    check_types(make_experts, "experts", 4);
}

/* Queries, keys, values, a row of a group, queries of an index; the type is the state's. */
static void make_jobs(struct rig *r, uint32_t n_tok, enum bl_dtype type)
{
    struct bl_graph *g = &r->g;
    const struct bl_angles_attr at = {.n_dims = 32, .base = 10000, .freq_scale = 1, .magnitude = 1};
    const struct bl_round_attr eight = {.kind = BL_ROUND_E4M3, .run = 96, .n = 64, .group = 24},
                               four = {.kind = BL_ROUND_E2M1, .run = 64, .n = 64, .group = 32};
    const bl_val q = rig_input(r, 1, 8 * 64, n_tok), k = rig_input(r, 2, 2 * 64, n_tok),
                 v = rig_input(r, 3, 2 * 64, n_tok), c = rig_input(r, 4, 96, n_tok),
                 i = rig_input(r, 5, 3 * 64, n_tok);
    const bl_val angles =
        bl_graph_rope_angles(g, bl_graph_param(g, BL_PARAM_POSITIONS, n_tok), 0, &at);
    const bl_val state_k = bl_graph_state(g, 1, type, 2 * 64, 32, 2),
                 state_v = bl_graph_state(g, 2, type, 2 * 64, 8, 2),
                 state_c = bl_graph_state(g, 3, type, 96, 16, 2);

    r->out[0] = bl_graph_rope(g, bl_graph_rms_norm(g, q, weight(r, BL_F32, 64, 1, 1), 1e-5f),
                              angles, BL_ROPE_NEOX, 64);
    const bl_val kn = bl_graph_rms_norm_runs(g, k, 128, 1e-6f);
    bl_graph_kv_store(g, bl_graph_rope_at(g, kn, angles, BL_ROPE_NORM, 64, 32), state_k);
    bl_graph_kv_store(g, v, state_v);
    const bl_val cn = bl_graph_rms_norm(g, c, weight(r, BL_F32, 96, 1, 1), 1e-5f);
    const bl_val cr = bl_graph_rope_at(g, cn, angles, BL_ROPE_NORM, 96, 64);
    bl_graph_kv_store_groups(g, bl_graph_round(g, cr, &eight), state_c, 4);
    const bl_val ir = bl_graph_rope(g, i, angles, BL_ROPE_NORM, 64);
    r->out[1] = bl_graph_round(g, bl_graph_hadamard(g, ir, 64), &four);
}

static void norms_rotations_and_stores(void **state)
{
    static const enum bl_dtype types[] = {BL_F32, BL_F16, BL_BF16, BL_Q8_0, BL_Q4_0};
    (void)state;

    for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
        check(make_jobs, "rows", 1, types[i], 2);
        check(make_jobs, "rows", 6, types[i], 2);
    }
}

static void make_rings(struct rig *r, uint32_t n_tok, enum bl_dtype type)
{
    const struct bl_compress_attr two = {.group = 4, .overlap = 1}, one = {.group = 4};
    struct bl_graph *g = &r->g;
    const bl_val x = rig_input(r, 1, 2 * 96, n_tok), gate = rig_input(r, 2, 2 * 96, n_tok),
                 x1 = rig_input(r, 3, 32, n_tok), gate1 = rig_input(r, 4, 32, n_tok);

    r->out[0] = bl_graph_compress(g, x, gate, weight(r, type, 2 * 96, 4, 1),
                                  bl_graph_state(g, 1, BL_F32, 4 * 96, 12, 2), &two);
    r->out[1] = bl_graph_compress(g, x1, gate1, weight(r, type, 32, 4, 1),
                                  bl_graph_state(g, 2, BL_F32, 64, 12, 2), &one);
}

static void rings(void **state)
{
    (void)state;
    check(make_rings, "rings", 1, BL_F32, 1);
    check(make_rings, "rings", 6, BL_F16, 1);
}

/* More tokens than few go as they always went. */
static void many_tokens(void **state)
{
    (void)state;
    check(make_gated, "many", BL_FEW_TOKENS + 1, BL_F32, 5);
}

/* The backend over an emulated driver. */
static const struct bl_backend *over(const char *library)
{
    const bool hip = strstr(strrchr(library, '/') ? strrchr(library, '/') : library, "hip") != NULL;
    void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL),
         *symbol = lib ? dlsym(lib, "emu_read") : NULL;

    memcpy(&read_counts, &symbol, sizeof symbol);
    setenv(hip ? "BALLAST_HIP_LIBRARY" : "BALLAST_CUDA_LIBRARY", library, 1);
    setenv(hip ? "BALLAST_HIP_KERNELS" : "BALLAST_CUDA_KERNELS", BL_TEST_IMAGES, 1);
    unsetenv(hip ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES");
    return symbol ? bl_backend_find(hip ? "hip" : "cuda") : NULL;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_one_x),
        cmocka_unit_test(gate_and_up),
        cmocka_unit_test(sums),
        cmocka_unit_test(streams),
        cmocka_unit_test(experts),
        cmocka_unit_test(norms_rotations_and_stores),
        cmocka_unit_test(rings),
        cmocka_unit_test(many_tokens),
    };
    const struct bl_backend *b = argc > 1 ? over(argv[1]) : NULL;
    int failed = 0;

    if (argc > 3 && !strcmp(argv[2], "--one-of"))
        one_of = (uint32_t)strtoul(argv[3], NULL, 10);
    if (!b || !one_of) {
        fprintf(stderr, "usage: %s LIBRARY [--one-of N]\n", argv[0]);
        return 2;
    }
    for (int native = 0; native < 2; native++) {
        const struct bl_device_config c = {.threads = 1, .exact = !native, .number = 1};
        rig_ok(b->open(0, &c, &dev));
        rig_ok(dev->ops->stream_open(dev, &stream));
        rig_ok(dev->ops->mem_alloc(dev, MEM_BYTES, false, &mem));
        rig_ok(dev->ops->mem_alloc(dev, MEM_BYTES, true, &host));
        failed += cmocka_run_group_tests_name(native ? "native" : "exact", tests, NULL, NULL);
        dev->ops->stream_close(stream);
        dev->ops->mem_free(&mem);
        dev->ops->mem_free(&host);
        dev->ops->close(dev);
    }
    return failed;
}
