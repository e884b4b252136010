/* SPDX-License-Identifier: MIT */
#include "cost.h"

#include "support.h"

#include <math.h>
#include <string.h>

static struct bl_cost_table table;

static int set_up(void **state)
{
    (void)state;
    bl_cost_table_init(&table);
    return 0;
}

static void assert_near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-9 * fabs(want)))
        fail_msg("%.17g, not %.17g", got, want);
}

static void assert_between(double got, double low, double high)
{
    if (!(got >= low && got <= high))
        fail_msg("%g is not in %g..%g", got, low, high);
}

static struct bl_cost_key gpu_key(void)
{
    return (struct bl_cost_key){
        .engine = BL_COST_LLAMACPP, .backend = BL_COST_CUDA, .quant = BL_COST_NIBBLE};
}

static struct bl_cost_key cpu_key(void)
{
    return (struct bl_cost_key){
        .engine = BL_COST_IK, .backend = BL_COST_CPU, .quant = BL_COST_NIBBLE, .isa = BL_COST_VNNI};
}

static struct bl_cost_gpu card(void)
{
    return (struct bl_cost_gpu){.bps = 936e9, .macs_per_s = 71e12, .link_bps = 25e9, .share = 1};
}

static struct bl_cost_cpu socket(void)
{
    return (struct bl_cost_cpu){.domain_bps = 300e9, .clock = 1, .cores = 64};
}

/* ---- the table ---- */

static void test_rows_are_documented(void **state)
{
    (void)state;
    int decode = 0, prefill = 0;
    for (int i = 0; i < BL_N_COST_CONSTANTS; i++) {
        const struct bl_cost_constant *c = &bl_cost_constants[i];
        assert_true(c->value > 0 && c->prior > 0);
        assert_between(c->sd, 0.01, 0.6);
        assert_between(c->prior_sd, 0.01, 0.6);
        assert_true(c->sd <= c->prior_sd * 1.01); /* measurements take doubt away */
        assert_true(fabs(log(c->value / c->prior)) < 3 * c->prior_sd);
        assert_true(strlen(c->evidence) > 20);
        assert_true(bl_cost_quantity_unit[c->quantity][0]);
        decode += c->phase != BL_COST_IN_PREFILL;
        prefill += c->phase != BL_COST_IN_DECODE;
        for (int j = 0; j < i; j++)
            assert_string_not_equal(c->name, bl_cost_constants[j].name);
    }
    assert_true(decode <= 35 && prefill <= 35);
}

static void test_look_multiplies_what_matches(void **state)
{
    (void)state;
    struct bl_cost_key k = cpu_key();
    k.engine = BL_COST_LLAMACPP;
    assert_near(bl_cost_look(&table, BL_COST_LAYER, &k), table.value[BL_COST_C_LAYER_CPU]);
    k.engine = BL_COST_IK;
    assert_near(bl_cost_look(&table, BL_COST_LAYER, &k),
                table.value[BL_COST_C_LAYER_CPU] * table.value[BL_COST_C_LAYER_IK]);
    assert_near(bl_cost_look(&table, BL_COST_KIND, &k), 1);  /* a factor */
    assert_near(bl_cost_look(&table, BL_COST_INDEX, &k), 0); /* an amount of time */
    k.kind = BL_COST_V4;
    assert_near(bl_cost_look(&table, BL_COST_INDEX, &k), table.value[BL_COST_C_INDEX_CPU]);
}

static void test_soft_limits(void **state)
{
    (void)state;
    assert_near(bl_cost_soft_min(3, 3, 4), 3 * pow(2, -0.25));
    assert_near(bl_cost_soft_max(3, 3, 3), 3 * pow(2, 1 / 3.0));
    assert_between(bl_cost_soft_min(1, 100, 4), 0.999, 1);
    assert_between(bl_cost_soft_max(1, 100, 3), 100, 100.1);
    assert_near(bl_cost_soft_min(2, 5, 4), bl_cost_soft_min(5, 2, 4));
    assert_near(bl_cost_soft_max(7, 0, 3), 7);
    assert_near(bl_cost_soft_min(7, 0, 3), 0);
}

/* ---- single steps ---- */

static void test_gpu_memory(void **state)
{
    (void)state;
    struct bl_cost_key k = gpu_key();
    struct bl_cost_gpu g = card(), half = card();
    half.bps /= 2;
    double ns = bl_cost_gpu_memory_ns(&table, &k, &g, 1e9);
    assert_between(ns, 1e9 / 936e9 * 1e9, 2e9 / 936e9 * 1e9);
    assert_near(bl_cost_gpu_memory_ns(&table, &k, &half, 1e9), 2 * ns);
    assert_near(bl_cost_gpu_memory_ns(&table, &k, &g, 3e9), 3 * ns);
    assert_near(bl_cost_gpu_memory_ns(&table, &k, &g, 0), 0);
    half.bps = 0;
    assert_true(isinf(bl_cost_gpu_memory_ns(&table, &k, &half, 1)));
}

static void test_ram(void **state)
{
    (void)state;
    struct bl_cost_key k = cpu_key();
    struct bl_cost_cpu c = socket(), half = socket();
    struct bl_cost_team one = {1, 1}, all = {64, 1}, more = {128, 1}, two = {64, 2};
    half.domain_bps /= 2;
    double bps = bl_cost_ram_bps(&table, &k, &c, &all);
    assert_between(bl_cost_ram_bps(&table, &k, &half, &all) / bps, 0.5, 0.51);
    assert_between(bl_cost_ram_bps(&table, &k, &half, &one) / bl_cost_ram_bps(&table, &k, &c, &one),
                   0.99, 1);
    assert_between(bl_cost_ram_bps(&table, &k, &c, &more) / bps, 0.5, 0.95); /* sharing cores */
    assert_true(bl_cost_ram_bps(&table, &k, &c, &two) < bps); /* a second socket takes away */
    c.local = true;
    assert_true(bl_cost_ram_bps(&table, &k, &c, &two) > 1.5 * bps);
    k.figure = BL_COST_RATED_MANY; /* a data sheet promises more than there is */
    c.local = false;
    assert_true(bl_cost_ram_bps(&table, &k, &c, &all) < bps);
}

static void test_unpacking_can_be_slower_than_memory(void **state)
{
    (void)state;
    struct bl_cost_key k = cpu_key();
    struct bl_cost_cpu c = socket();
    struct bl_cost_team few = {4, 1}, all = {64, 1};
    double bytes = 2e9, weights = 8e9;
    double read = bytes / bl_cost_ram_bps(&table, &k, &c, &all) * 1e9;
    k.isa = BL_COST_AVX2;
    k.quant = BL_COST_CODEBOOK;
    double unpack = bl_cost_unpack_ns(&table, &k, &c, &all, weights);
    double both = bl_cost_cpu_weights_ns(&table, &k, &c, &all, bytes, weights);
    assert_true(unpack > read && both >= unpack && both < unpack + read);
    assert_near(bl_cost_unpack_ns(&table, &k, &c, &few, weights), 16 * unpack);
    k.quant = BL_COST_NIBBLE;
    assert_true(bl_cost_unpack_ns(&table, &k, &c, &all, weights) < unpack / 2);
}

static void test_layers(void **state)
{
    (void)state;
    struct bl_cost_key g = gpu_key(), k = cpu_key();
    struct bl_cost_cpu c = socket();
    struct bl_cost_team few = {8, 1}, all = {64, 1};
    double base = bl_cost_layer_ns(&table, &g, &c, &few, 0, true);
    assert_between(base, 50e3, 250e3);
    assert_near(bl_cost_layer_ns(&table, &g, &c, &all, 0, true), base);
    assert_true(bl_cost_layer_ns(&table, &g, &c, &all, 0, false) < base);
    assert_true(bl_cost_layer_ns(&table, &k, &c, &all, 0, true) >
                bl_cost_layer_ns(&table, &k, &c, &few, 0, true));
    g.kind = BL_COST_V4;
    assert_true(bl_cost_layer_ns(&table, &g, &c, &few, 64, true) > 1.8 * base);
    g.kind = BL_COST_MLA;
    double wide = bl_cost_layer_ns(&table, &g, &c, &few, 128, true) - base;
    assert_near(bl_cost_layer_ns(&table, &g, &c, &few, 32, true) - base, wide / 4);
}

static void test_crossings_and_links(void **state)
{
    (void)state;
    struct bl_cost_key k = gpu_key();
    assert_between(bl_cost_cross_ns(&table, &k), 20e3, 300e3);
    assert_between(bl_cost_hop_ns(&table, &k), 20e3, 500e3);
    double ns = bl_cost_link_ns(&table, &k, 25e9, 1e9);
    assert_between(ns, 40e6, 60e6);
    assert_near(bl_cost_link_ns(&table, &k, 12.5e9, 1e9), 2 * ns);
    assert_near(bl_cost_link_ns(&table, &k, 25e9, 2e9), 2 * ns);
}

static void test_matrix_products(void **state)
{
    (void)state;
    struct bl_cost_key g = gpu_key(), k = cpu_key();
    struct bl_cost_gpu fast = card(), slow = card();
    struct bl_cost_cpu c = socket();
    struct bl_cost_team half = {32, 1}, all = {64, 1};
    slow.macs_per_s /= 2;
    double ns = bl_cost_gpu_matmul_ns(&table, &g, &fast, 1e12, 512, 0);
    assert_near(bl_cost_gpu_matmul_ns(&table, &g, &slow, 1e12, 512, 0), 2 * ns);
    assert_near(bl_cost_gpu_matmul_ns(&table, &g, &fast, 2e12, 512, 0), 2 * ns);
    assert_true(bl_cost_gpu_matmul_ns(&table, &g, &fast, 1e12, 16, 0) > 2 * ns);
    assert_true(bl_cost_gpu_matmul_ns(&table, &g, &fast, 1e12, 512, 768) > 2 * ns);
    ns = bl_cost_cpu_matmul_ns(&table, &k, &c, &all, 1e12, 64, 0);
    assert_between(bl_cost_cpu_matmul_ns(&table, &k, &c, &half, 1e12, 64, 0) / ns, 1.8, 2);
    assert_true(bl_cost_cpu_matmul_ns(&table, &k, &c, &all, 1e12, 4, 0) > 2 * ns);
    k.engine = BL_COST_LLAMACPP;
    assert_true(bl_cost_cpu_matmul_ns(&table, &k, &c, &all, 1e12, 64, 0) > 1.5 * ns);
    assert_near(bl_cost_gpu_attend_ns(&table, &g, &slow, 1e9),
                2 * bl_cost_gpu_attend_ns(&table, &g, &fast, 1e9));
    assert_true(bl_cost_cpu_attend_ns(&table, &k, &c, &all, 1e9) >
                bl_cost_gpu_attend_ns(&table, &g, &slow, 1e9));
}

/* ---- whole runs ---- */

/* gpt-oss-120b, MXFP4: everything but the experts on the card. */
static struct bl_cost_run hybrid(const struct bl_cost_gpu *g)
{
    struct bl_cost_run r = {.engine = BL_COST_LLAMACPP,
                            .backend = BL_COST_CUDA,
                            .isa = BL_COST_VNNI,
                            .dense_quant = BL_COST_BYTE,
                            .expert_quant = BL_COST_NIBBLE,
                            .cpu = socket(),
                            .gpu = g,
                            .n_gpus = 1,
                            .decode_team = {16, 1},
                            .prefill_team = {16, 1},
                            .moe_layers = 36,
                            .heads = 64,
                            .experts = 128,
                            .experts_per_token = 4,
                            .expert_ffn = 2880,
                            .cache_bytes_per_tok = 36864,
                            .cache_fixed_bytes = 4718592,
                            .attend_macs_per_tok = 18 * 64 * 128,
                            .depth = 4096,
                            .prompt = 4096,
                            .prompt_depth = 2048,
                            .ubatch = 2048};
    r.layers[BL_COST_GQA] = 36;
    r.dense[BL_COST_ON_GPU] = (struct bl_cost_load){1.8e9, 1.589e9};
    r.expert[BL_COST_IN_RAM] = (struct bl_cost_load){1.9e9, 3.583e9};
    r.held[BL_COST_IN_RAM] = (struct bl_cost_load){60.9e9, 114.7e9};
    return r;
}

static double decode_ns(const struct bl_cost_run *r)
{
    struct bl_cost_time t;
    double sum = 0;
    bl_cost_decode(&table, r, &t);
    for (int i = 0; i < BL_N_COST_TERMS; i++)
        sum += t.term[i];
    assert_near(t.ns, sum);
    return t.ns;
}

static void test_bandwidth_moves_its_terms(void **state)
{
    (void)state;
    struct bl_cost_gpu g = card(), half = card();
    struct bl_cost_run r = hybrid(&g);
    struct bl_cost_time a, b;
    half.bps /= 2;
    bl_cost_decode(&table, &r, &a);
    r.gpu = &half;
    bl_cost_decode(&table, &r, &b);
    assert_near(b.term[BL_COST_T_GPU], 2 * a.term[BL_COST_T_GPU]);
    assert_near(b.term[BL_COST_T_CONTEXT], 2 * a.term[BL_COST_T_CONTEXT]);
    assert_near(b.ns - a.ns, a.term[BL_COST_T_GPU] + a.term[BL_COST_T_CONTEXT]);
    r.gpu = &g;
    r.cpu.domain_bps /= 2;
    bl_cost_decode(&table, &r, &b);
    assert_between(b.term[BL_COST_T_RAM] / a.term[BL_COST_T_RAM], 1.5, 2);
    assert_near(b.term[BL_COST_T_GPU], a.term[BL_COST_T_GPU]);
    assert_near(a.term[BL_COST_T_CROSS], 36 * table.value[BL_COST_C_CROSS]);
}

static void test_cards_in_a_row_do_not_add_up(void **state)
{
    (void)state;
    struct bl_cost_gpu one = card(), two[2] = {card(), card()};
    struct bl_cost_run r = hybrid(&one);
    two[0].share = two[1].share = 0.5;
    double alone = decode_ns(&r);
    r.gpu = two;
    r.n_gpus = 2;
    assert_near(decode_ns(&r), alone + table.value[BL_COST_C_HOP]);
    struct bl_cost_time split, parallel;
    bl_cost_decode(&table, &r, &split);
    r.tensor_parallel = true; /* halves the reading, and they meet in every layer */
    bl_cost_decode(&table, &r, &parallel);
    assert_near(parallel.term[BL_COST_T_GPU], split.term[BL_COST_T_GPU] / 2);
    assert_near(parallel.term[BL_COST_T_HOP], 36 * table.value[BL_COST_C_HOP]);
}

static void test_streaming_pays_from_some_ubatch_on(void **state)
{
    (void)state;
    struct bl_cost_gpu g = card(), slow = card();
    struct bl_cost_run r = hybrid(&g);
    struct bl_cost_time t;
    double from = bl_cost_stream_from(&table, &r);
    assert_between(from, 16, 8192);
    r.ubatch = from;
    bl_cost_prefill(&table, &r, &t);
    assert_true(t.term[BL_COST_T_STREAM] > 0 && t.term[BL_COST_T_RAM] <= 0);
    r.ubatch = from - 1;
    bl_cost_prefill(&table, &r, &t);
    assert_true(t.term[BL_COST_T_RAM] > 0 && t.term[BL_COST_T_STREAM] <= 0);
    r.stream_from = 32; /* an engine that does so always */
    bl_cost_prefill(&table, &r, &t);
    assert_true(t.term[BL_COST_T_STREAM] > 0);
    r.stream_from = INFINITY;
    r.ubatch = 4096;
    bl_cost_prefill(&table, &r, &t);
    assert_true(t.term[BL_COST_T_STREAM] <= 0);
    slow.link_bps /= 8;
    r.gpu = &slow;
    assert_true(bl_cost_stream_from(&table, &r) > 3 * from);
    r.n_gpus = 0;
    assert_true(isinf(bl_cost_stream_from(&table, &r)));
}

static void test_prefill_by_streaming_grows_with_the_ubatch(void **state)
{
    (void)state;
    struct bl_cost_gpu g = card();
    struct bl_cost_run r = hybrid(&g);
    struct bl_cost_time small, large;
    r.stream_from = 32;
    r.ubatch = 512;
    bl_cost_prefill(&table, &r, &small);
    r.ubatch = 2048;
    bl_cost_prefill(&table, &r, &large);
    assert_between(small.ns / large.ns, 2.5, 4.1);
    r.ubatch = 1 << 20; /* no more than the prompt has */
    bl_cost_prefill(&table, &r, &small);
    r.ubatch = 4096;
    bl_cost_prefill(&table, &r, &large);
    assert_near(small.ns, large.ns);
}

static void test_intervals(void **state)
{
    (void)state;
    struct bl_cost_gpu g = card();
    struct bl_cost_run r = hybrid(&g);
    struct bl_cost_table known = table;
    memset(known.sd, 0, sizeof known.sd);
    assert_near(bl_cost_decode_sd(&known, &r), BL_COST_UNSAID_DECODE);
    assert_near(bl_cost_prefill_sd(&known, &r), BL_COST_UNSAID_PREFILL);
    assert_between(bl_cost_decode_sd(&table, &r), BL_COST_UNSAID_DECODE, 0.4);
    /* a constant that is half of the time brings half of its doubt */
    struct bl_cost_time t;
    bl_cost_decode(&known, &r, &t);
    known.sd[BL_COST_C_CROSS] = 0.5;
    double part = t.term[BL_COST_T_CROSS] / t.ns * 0.5;
    double want = sqrt(BL_COST_UNSAID_DECODE * BL_COST_UNSAID_DECODE + part * part);
    assert_between(bl_cost_decode_sd(&known, &r) / want, 0.99, 1.01);
}

/* ---- a rig that no constant was fitted to ---- */

/* DeepSeek-V4-Flash, UD-Q4_K_XL, in llama.cpp: four RTX 3060 on an i9-10920X, experts of 34 of 43
 * layers in RAM. Published: 10-10.5 tokens/s after a prompt of 20.5 k tokens, which takes 99.4
 * tokens/s with ubatches of 2048 and 63.4 with 1024. */
static void test_four_small_cards(void **state)
{
    (void)state;
    struct bl_cost_gpu g[4];
    struct bl_cost_time t;
    for (int i = 0; i < 4; i++)
        g[i] = (struct bl_cost_gpu){
            .bps = 360e9, .macs_per_s = 25.5e12, .link_bps = 12e9, .share = 0.25};
    struct bl_cost_run r = {.engine = BL_COST_LLAMACPP,
                            .backend = BL_COST_CUDA,
                            .figure = BL_COST_RATED_FEW,
                            .isa = BL_COST_WIDE,
                            .dense_quant = BL_COST_BYTE,
                            .expert_quant = BL_COST_NIBBLE,
                            .cpu = {.domain_bps = 102.4e9, .clock = 1.4, .cores = 12},
                            .gpu = g,
                            .n_gpus = 4,
                            .decode_team = {20, 1},
                            .prefill_team = {20, 1},
                            .moe_layers = 43,
                            .heads = 64,
                            .experts = 256,
                            .experts_per_token = 6,
                            .expert_ffn = 2048,
                            .attend_macs_per_tok = 53248,
                            .attend_fixed_macs = 1.0653e9,
                            .depth = 20500,
                            .prompt = 20500,
                            .prompt_depth = 10250,
                            .stream_from = 32};
    r.layers[BL_COST_V4] = 43;
    r.dense[BL_COST_ON_GPU] = (struct bl_cost_load){8.47e9, 6.775e9};
    for (int w = 0; w < BL_N_COST_PLACES; w++) {
        double share = w == BL_COST_IN_RAM ? 34.0 / 43 : 9.0 / 43;
        r.expert[w] = (struct bl_cost_load){3.44e9 * share, 6.493e9 * share};
        r.held[w] = (struct bl_cost_load){146.6e9 * share, 277e9 * share};
    }
    assert_between(1e9 / decode_ns(&r), 10.25 / 1.25, 10.25 * 1.25);
    r.ubatch = 2048;
    bl_cost_prefill(&table, &r, &t);
    assert_between(1e9 / t.ns, 99.4 / 1.25, 99.4 * 1.25);
    r.ubatch = 1024;
    bl_cost_prefill(&table, &r, &t);
    assert_between(1e9 / t.ns, 63.4 / 1.25, 63.4 * 1.25);
}

/* ---- inversions: more bandwidth and more cores that are slower ---- */

/* DeepSeek-V4-Flash, MXFP4, on CPUs alone. */
static struct bl_cost_run v4_on_cpu(enum bl_cost_isa isa, double bps, uint32_t cores,
                                    uint32_t domains)
{
    struct bl_cost_run r = {.engine = BL_COST_IK,
                            .isa = isa,
                            .dense_quant = BL_COST_BYTE,
                            .expert_quant = BL_COST_NIBBLE,
                            .cpu = {.domain_bps = bps / domains, .clock = 1, .cores = cores},
                            .decode_team = {cores, domains},
                            .prefill_team = {cores, domains},
                            .moe_layers = 43,
                            .heads = 64,
                            .experts = 256,
                            .experts_per_token = 6,
                            .expert_ffn = 2048,
                            .depth = 2048,
                            .prompt = 2048,
                            .prompt_depth = 1024,
                            .ubatch = 512};
    r.layers[BL_COST_V4] = 43;
    r.dense[BL_COST_IN_RAM] = (struct bl_cost_load){8.5e9, 6.775e9};
    r.expert[BL_COST_IN_RAM] = (struct bl_cost_load){3.45e9, 6.493e9};
    r.held[BL_COST_IN_RAM] = (struct bl_cost_load){147e9, 277e9};
    return r;
}

static void test_two_sockets_with_twice_the_bandwidth_are_slower(void **state)
{
    (void)state;
    struct bl_cost_run turin = v4_on_cpu(BL_COST_WIDE, 406e9, 80, 1);
    double one = decode_ns(&turin);
    assert_between(1e9 / one, 22.4 / 1.5, 22.4 * 1.5);       /* measured 22.4 */
    for (uint32_t domains = 2; domains <= 6; domains += 4) { /* by sockets, by memory domains */
        struct bl_cost_run xeon = v4_on_cpu(BL_COST_AMX, 813e9, 186, domains);
        assert_true(decode_ns(&xeon) > 1.2 * one);
        xeon.engine = turin.engine = BL_COST_LLAMACPP;
        assert_true(decode_ns(&xeon) > 1.2 * decode_ns(&turin));
        turin.engine = BL_COST_IK;
    }
}

static void test_index_is_paid_on_cpus_too(void **state)
{
    (void)state;
    struct bl_cost_run r = v4_on_cpu(BL_COST_WIDE, 406e9, 80, 1);
    double near = decode_ns(&r);
    r.depth += 100000;
    assert_near(decode_ns(&r) - near, 100000 * table.value[BL_COST_C_INDEX_CPU]);
}

static void test_threads_over_two_nodes_are_slower_than_half_on_one(void **state)
{
    (void)state;
    for (int engine = BL_COST_LLAMACPP; engine <= BL_COST_IK; engine++) {
        struct bl_cost_run r = v4_on_cpu(BL_COST_NEON, 640e9, 96, 2);
        r.engine = (enum bl_cost_engine)engine; /* Qwen3-Next, Q4_K_M */
        r.layers[BL_COST_V4] = 0;
        r.layers[BL_COST_GQA] = 12;
        r.layers[BL_COST_DELTA] = 36;
        r.moe_layers = 48;
        r.dense[BL_COST_IN_RAM] = (struct bl_cost_load){1.25e9, 2.049e9};
        r.expert[BL_COST_IN_RAM] = (struct bl_cost_load){0.92e9, 1.51e9};
        double both = decode_ns(&r);
        r.decode_team = (struct bl_cost_team){48, 1};
        assert_true(decode_ns(&r) < both / 1.2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_documented),
        cmocka_unit_test(test_look_multiplies_what_matches),
        cmocka_unit_test(test_soft_limits),
        cmocka_unit_test(test_gpu_memory),
        cmocka_unit_test(test_ram),
        cmocka_unit_test(test_unpacking_can_be_slower_than_memory),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_crossings_and_links),
        cmocka_unit_test(test_matrix_products),
        cmocka_unit_test(test_bandwidth_moves_its_terms),
        cmocka_unit_test(test_cards_in_a_row_do_not_add_up),
        cmocka_unit_test(test_streaming_pays_from_some_ubatch_on),
        cmocka_unit_test(test_prefill_by_streaming_grows_with_the_ubatch),
        cmocka_unit_test(test_intervals),
        cmocka_unit_test(test_four_small_cards),
        cmocka_unit_test(test_index_is_paid_on_cpus_too),
        cmocka_unit_test(test_two_sockets_with_twice_the_bandwidth_are_slower),
        cmocka_unit_test(test_threads_over_two_nodes_are_slower_than_half_on_one),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
