/* SPDX-License-Identifier: MIT */
/* What a session keeps, told from a header alone: DeepSeek-V4-Flash as it was released, whose sizes
 * are worked out here from its numbers, and held against what the planner sets aside. */
#include "support.h"

#include "gguf_bytes.h"
#include "mem.h"
#include "planner.h"

#include <unistd.h>

static char folder[] = "/tmp/ballast-header-XXXXXX";
static char path[sizeof folder + 16];

static int enter_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/flash.gguf", folder);
    return 0;
}

static int leave_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

#define GOOD(expr)                                                                                 \
    do {                                                                                           \
        if (expr)                                                                                  \
            fail_msg("%s: %s", #expr, bl_error());                                                 \
    } while (0)

/* ---- the header of the released model ---- */

enum { LAYERS = 43, EMBD = 4096, VOCAB = 129280, HEADS = 64, HEAD = 512, EXPERTS = 256, FF = 2048 };
enum {
    HASHED = 3,
    INDEX_HEAD = 128,
    LISTED = 44 /* ratios: one more, of the block for drafting */
};
enum { F16 = 1, Q8_0 = 8, MXFP4 = 39 }; /* tensor types of the format */

static uint32_t ratio_of(uint32_t layer)
{
    return layer < 2 || layer >= LAYERS ? 0 : layer % 2 ? 128 : 4;
}

struct header {
    struct gb keys, tensors;
    uint64_t n_keys, n_tensors, data_bytes;
};

static void put_number(struct header *h, const char *suffix, uint32_t x)
{
    char key[96];
    snprintf(key, sizeof key, "deepseek4.%s", suffix);
    gb_kv_int(&h->keys, key, GB_U32, x);
    h->n_keys++;
}

static void put_real(struct header *h, const char *suffix, float x)
{
    char key[96];
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    snprintf(key, sizeof key, "deepseek4.%s", suffix);
    gb_key(&h->keys, key, GB_F32);
    gb_int(&h->keys, 4, bits);
    h->n_keys++;
}

static void put_keys(struct header *h)
{
    static const struct {
        const char *key;
        uint32_t x;
    } number[] = {{"context_length", 1048576},
                  {"embedding_length", EMBD},
                  {"block_count", LAYERS},
                  {"vocab_size", VOCAB},
                  {"attention.head_count", HEADS},
                  {"attention.head_count_kv", 1},
                  {"attention.key_length", HEAD},
                  {"attention.value_length", HEAD},
                  {"attention.q_lora_rank", 1024},
                  {"attention.sliding_window", 128},
                  {"attention.output_group_count", 8},
                  {"attention.output_lora_rank", 1024},
                  {"attention.indexer.head_count", 64},
                  {"attention.indexer.key_length", INDEX_HEAD},
                  {"attention.indexer.top_k", 512},
                  {"rope.dimension_count", 64},
                  {"rope.scaling.original_context_length", 65536},
                  {"expert_count", EXPERTS},
                  {"expert_used_count", 6},
                  {"expert_shared_count", 1},
                  {"expert_feed_forward_length", FF},
                  {"expert_gating_func", 4},
                  {"hash_layer_count", HASHED},
                  {"hyper_connection.count", 4},
                  {"hyper_connection.sinkhorn_iterations", 20}};
    static const struct {
        const char *key;
        float x;
    } real[] = {{"attention.layer_norm_rms_epsilon", 1e-6f},
                {"attention.compress_rope_freq_base", 160000},
                {"rope.freq_base", 10000},
                {"rope.scaling.factor", 16},
                {"expert_weights_scale", 1.5f},
                {"swiglu_clamp_exp", 10},
                {"hyper_connection.epsilon", 1e-6f}};
    gb_kv_str(&h->keys, "general.architecture", "deepseek4");
    gb_kv_str(&h->keys, "deepseek4.rope.scaling.type", "yarn");
    gb_kv_int(&h->keys, "deepseek4.expert_weights_norm", GB_BOOL, 1);
    gb_array(&h->keys, "deepseek4.attention.compress_ratios", GB_I32, LISTED);
    for (uint32_t i = 0; i < LISTED; i++)
        gb_int(&h->keys, 4, ratio_of(i));
    h->n_keys += 4;
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++)
        put_number(h, number[i].key, number[i].x);
    for (size_t i = 0; i < sizeof real / sizeof real[0]; i++)
        put_real(h, real[i].key, real[i].x);
}

/* b, c: 0 where there are fewer dimensions. */
static void put_tensor(struct header *h, int layer, const char *stem, uint32_t type, uint64_t a,
                       uint64_t b, uint64_t c)
{
    const uint64_t ne[] = {a, b, c};
    uint64_t n = a * (b ? b : 1) * (c ? c : 1);
    char name[64] = "";
    if (layer >= 0)
        snprintf(name, sizeof name, "blk.%d.", layer);
    snprintf(name + strlen(name), sizeof name - strlen(name), "%s%s", stem,
             strstr(stem, ".bias") ? "" : ".weight");
    gb_tensor(&h->tensors, name, c ? 3 : b ? 2 : 1, ne, type, h->data_bytes);
    uint64_t bytes = type == F16     ? 2 * n
                     : type == Q8_0  ? n / 32 * 34
                     : type == MXFP4 ? n / 32 * 17
                                     : 4 * n;
    h->data_bytes += (bytes + 31) / 32 * 32;
    h->n_tensors++;
}

static void put_mixing(struct header *h, int layer, const char *which, uint32_t out, uint32_t n)
{
    char stem[32];
    snprintf(stem, sizeof stem, "%s_fn", which);
    put_tensor(h, layer, stem, GB_TENSOR_F32, 4 * EMBD, out, 0);
    snprintf(stem, sizeof stem, "%s_base", which);
    put_tensor(h, layer, stem, GB_TENSOR_F32, out, 0, 0);
    snprintf(stem, sizeof stem, "%s_scale", which);
    put_tensor(h, layer, stem, GB_TENSOR_F32, n, 0, 0);
}

static void put_compressor(struct header *h, int layer, const char *which, uint32_t n)
{
    const uint32_t ratio = ratio_of((uint32_t)layer), out = ratio == 4 ? 2 * n : n;
    char stem[48];
    snprintf(stem, sizeof stem, "%s_kv", which);
    put_tensor(h, layer, stem, F16, EMBD, out, 0);
    snprintf(stem, sizeof stem, "%s_gate", which);
    put_tensor(h, layer, stem, F16, EMBD, out, 0);
    snprintf(stem, sizeof stem, "%s_ape", which);
    put_tensor(h, layer, stem, GB_TENSOR_F32, out, ratio, 0);
    snprintf(stem, sizeof stem, "%s_norm", which);
    put_tensor(h, layer, stem, GB_TENSOR_F32, n, 0, 0);
}

static void put_attention(struct header *h, int i)
{
    put_mixing(h, i, "hc_attn", 24, 3);
    put_tensor(h, i, "attn_norm", GB_TENSOR_F32, EMBD, 0, 0);
    put_tensor(h, i, "attn_q_a", Q8_0, EMBD, 1024, 0);
    put_tensor(h, i, "attn_q_a_norm", GB_TENSOR_F32, 1024, 0, 0);
    put_tensor(h, i, "attn_q_b", Q8_0, 1024, HEADS * HEAD, 0);
    put_tensor(h, i, "attn_kv", Q8_0, EMBD, HEAD, 0);
    put_tensor(h, i, "attn_kv_a_norm", GB_TENSOR_F32, HEAD, 0, 0);
    put_tensor(h, i, "attn_sinks", GB_TENSOR_F32, HEADS, 0, 0);
    put_tensor(h, i, "attn_output_a", Q8_0, EMBD, 8192, 0);
    put_tensor(h, i, "attn_output_b", Q8_0, 8192, EMBD, 0);
    if (ratio_of((uint32_t)i))
        put_compressor(h, i, "attn_compressor", HEAD);
    if (ratio_of((uint32_t)i) != 4)
        return;
    put_compressor(h, i, "indexer_compressor", INDEX_HEAD);
    put_tensor(h, i, "indexer.attn_q_b", Q8_0, 1024, 8192, 0);
    put_tensor(h, i, "indexer.proj", F16, EMBD, 64, 0);
}

static void put_experts(struct header *h, int i)
{
    put_mixing(h, i, "hc_ffn", 24, 3);
    put_tensor(h, i, "ffn_norm", GB_TENSOR_F32, EMBD, 0, 0);
    put_tensor(h, i, "ffn_gate_inp", GB_TENSOR_F32, EMBD, EXPERTS, 0);
    if (i < HASHED)
        put_tensor(h, i, "ffn_gate_tid2eid", GB_TENSOR_I32, 6, VOCAB, 0);
    else
        put_tensor(h, i, "exp_probs_b.bias", GB_TENSOR_F32, EXPERTS, 0, 0);
    put_tensor(h, i, "ffn_gate_exps", MXFP4, EMBD, FF, EXPERTS);
    put_tensor(h, i, "ffn_up_exps", MXFP4, EMBD, FF, EXPERTS);
    put_tensor(h, i, "ffn_down_exps", MXFP4, FF, EMBD, EXPERTS);
    put_tensor(h, i, "ffn_gate_shexp", Q8_0, EMBD, FF, 0);
    put_tensor(h, i, "ffn_up_shexp", Q8_0, EMBD, FF, 0);
    put_tensor(h, i, "ffn_down_shexp", Q8_0, FF, EMBD, 0);
}

/* Returns how many bytes are not there. */
static uint64_t save_flash(void)
{
    struct header h = {0};
    struct gb all = {0};
    put_keys(&h);
    put_tensor(&h, -1, "token_embd", Q8_0, EMBD, VOCAB, 0);
    put_tensor(&h, -1, "output_norm", GB_TENSOR_F32, EMBD, 0, 0);
    put_tensor(&h, -1, "output", Q8_0, EMBD, VOCAB, 0);
    put_mixing(&h, -1, "output_hc", 4, 1);
    for (int i = 0; i < LAYERS; i++) {
        put_attention(&h, i);
        put_experts(&h, i);
    }
    gb_header(&all, h.n_tensors, h.n_keys);
    gb_bytes(&all, h.keys.p, h.keys.n);
    gb_bytes(&all, h.tensors.p, h.tensors.n);
    gb_pad(&all, 32);
    gb_save(&all, path);
    gb_finish(&h.keys);
    gb_finish(&h.tensors);
    gb_finish(&all);
    return h.data_bytes;
}

/* ---- the sizes, worked out ---- */

enum { CSA = 21, HCA = 20 }; /* layers of ratio 4 and 128 */

struct sizes {
    uint64_t raw, growing, parts, slack;
};

/* Keys and values are one vector, of blocks of `n` elements in `bytes`; of the groups in hand, f32
 * values and scores. `back` tokens can be taken back. */
static struct sizes sizes_with(uint64_t ctx, uint64_t ubatch, uint64_t back, uint64_t n,
                               uint64_t bytes)
{
    const uint64_t row = HEAD / n * bytes, index_row = INDEX_HEAD / n * bytes;
    const uint64_t part_4 = 4 * (2 * 2 * HEAD + 2 * 2 * INDEX_HEAD), part_128 = 4 * (2 * HEAD);
    return (struct sizes){
        .raw = LAYERS * 128 * row,
        .growing = CSA * (ctx / 4) * (row + index_row) + HCA * (ctx / 128) * row,
        .parts = CSA * 8 * part_4 + HCA * 128 * part_128,
        .slack = LAYERS * ((ubatch > back ? ubatch : back) - 1) * row +
                 back * (CSA * part_4 + HCA * part_128),
    };
}

static struct sizes flash_sizes(uint64_t ctx, uint64_t ubatch)
{
    return sizes_with(ctx, ubatch, 0, 1, 2);
}

static uint64_t sum(struct sizes s)
{
    return s.raw + s.growing + s.parts;
}

/* The formulas above against the numbers of the model's description. */
static void arithmetic_is_the_published(void **state)
{
    (void)state;
    assert_int_equal(flash_sizes(1048576, 512).growing, 7214202880);
    assert_int_equal(flash_sizes(131072, 512).growing, 6880 * 131072);
    assert_int_equal(flash_sizes(4096, 512).raw, 5636096);
    assert_int_equal(flash_sizes(4096, 512).parts, 1376256 + 344064 + 10485760);
}

static const uint64_t contexts[] = {4096, 131072, 1048576};

static struct bl_gguf *open_flash(void)
{
    struct bl_gguf *g = NULL;
    uint64_t missing = save_flash();
    GOOD(bl_gguf_open_header(&g, path));
    assert_int_equal(bl_gguf_missing_bytes(g), missing);
    return g;
}

static uint64_t named(const struct bl_state_info *info, const char *name, uint32_t span)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < info->n_lines; i++)
        if (!strcmp(info->line[i].name, name) && (!span || info->line[i].span_tokens == span))
            bytes += info->line[i].bytes;
    return bytes;
}

static void state_is_what_it_should_be(void **state)
{
    struct bl_gguf *g = open_flash();
    (void)state;
    for (size_t i = 0; i < sizeof contexts / sizeof contexts[0]; i++) {
        const uint64_t ctx = contexts[i];
        for (uint32_t ubatch = 1; ubatch <= 512; ubatch *= 8) {
            const struct bl_options opt = {.ctx_tokens = ctx, .ubatch_tokens = ubatch};
            const struct sizes want = flash_sizes(ctx, ubatch);
            struct bl_state_info got = {0};
            GOOD(bl_state_info_make(&got, g, &opt));
            assert_int_equal(got.ctx_tokens, ctx);
            assert_int_equal(got.ubatch_tokens, ubatch);
            assert_int_equal(named(&got, "kv", 128), want.raw);
            assert_int_equal(named(&got, "groups", 4) + named(&got, "groups", 128) +
                                 named(&got, "index", 4),
                             want.growing);
            assert_int_equal(named(&got, "groups_tail", 0) + named(&got, "index_tail", 0),
                             want.parts);
            assert_int_equal(got.bytes, sum(want));
            assert_int_equal(got.slack_bytes, want.slack);
            bl_state_info_finish(&got);
        }
    }
    bl_gguf_close(g);
}

static void defaults_are_those_of_open(void **state)
{
    struct bl_gguf *g = open_flash();
    struct bl_state_info got = {0};
    (void)state;
    GOOD(bl_state_info_make(&got, g, NULL));
    assert_int_equal(got.ctx_tokens, 4096);
    assert_int_equal(got.ubatch_tokens, 512);
    bl_state_info_finish(&got);
    GOOD(bl_state_info_make(&got, g, &(struct bl_options){.type_k = "f32", .type_v = "f32"}));
    assert_int_equal(named(&got, "kv", 0), 2 * flash_sizes(4096, 512).raw);
    bl_state_info_finish(&got);
    assert_int_equal(bl_state_info_make(&got, g, &(struct bl_options){.type_k = "q9_9"}),
                     BL_EINVAL);
    bl_gguf_close(g);
}

/* Types and tokens to take back are in the sizes. */
static void other_types_and_rewinding(void **state)
{
    static const struct {
        const char *type;
        uint64_t n, bytes;
    } types[] = {{"f32", 1, 4}, {"bf16", 1, 2}, {"q8_0", 32, 34}, {"q4_0", 32, 18}};
    struct bl_gguf *g = open_flash();
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        for (uint32_t back = 0; back <= 20; back += 5) {
            const struct bl_options opt = {.ctx_tokens = 131072,
                                           .ubatch_tokens = 16,
                                           .type_k = types[i].type,
                                           .type_v = types[i].type,
                                           .rewind_tokens = back};
            const struct sizes want = sizes_with(131072, 16, back, types[i].n, types[i].bytes);
            struct bl_state_info got = {0};
            GOOD(bl_state_info_make(&got, g, &opt));
            assert_int_equal(got.bytes, sum(want));
            assert_int_equal(got.slack_bytes, want.slack);
            bl_state_info_finish(&got);
        }
    bl_gguf_close(g);
}

static uint64_t planned(const struct bl_gguf *g, const struct bl_options *opt,
                        enum bl_purpose purpose)
{
    struct bl_model_options mo;
    struct bl_machine machine = {0};
    struct bl_model *m = NULL;
    struct bl_plan plan = {0};
    uint64_t bytes = 0;
    GOOD(bl_model_choose(&mo, opt));
    GOOD(bl_model_open(&m, g, &mo));
    GOOD(bl_machine_probe(&machine, opt));
    machine.device[0].usable_bytes = UINT64_MAX;
    GOOD(bl_plan_make(&plan, m, &machine, opt));
    for (uint32_t i = 0; i < plan.ledger.n; i++)
        if (plan.ledger.line[i].purpose == purpose)
            bytes += plan.ledger.line[i].planned_bytes;
    bl_plan_finish(&plan);
    bl_machine_finish(&machine);
    bl_model_close(m);
    return bytes;
}

/* The ledger's lines are that sum, up to a whole page, and the slack. */
static void ledger_plans_the_same(void **state)
{
    struct bl_gguf *g = open_flash();
    (void)state;
    for (size_t i = 0; i < sizeof contexts / sizeof contexts[0]; i++)
        for (uint32_t ubatch = 1; ubatch <= 512; ubatch += 511) {
            const struct sizes want = sizes_with(contexts[i], ubatch, 3, 1, 2);
            const struct bl_options opt = {.ctx_tokens = contexts[i],
                                           .ubatch_tokens = ubatch,
                                           .rewind_tokens = 3,
                                           .threads = 1};
            assert_int_equal(planned(g, &opt, BL_MEM_SLACK), want.slack);
            assert_int_equal(planned(g, &opt, BL_MEM_STATE) + want.slack,
                             bl_align_up(sum(want) + want.slack, bl_page_bytes()));
        }
    bl_gguf_close(g);
}

/* ---- files without their data ---- */

static void data_is_needed_elsewhere(void **state)
{
    struct bl_gguf *g = NULL;
    struct bl_engine *e = NULL;
    (void)state;
    save_flash();
    assert_int_equal(bl_gguf_open(&g, path), BL_EFORMAT);
    assert_non_null(strstr(bl_error(), "truncated"));
    assert_int_equal(bl_open(&e, path, NULL), BL_EFORMAT);
    assert_non_null(strstr(bl_error(), "truncated"));
}

/* Wherever the file ends: behind the last record its data may be missing, before it nothing may. */
static void every_cut_is_seen(void **state)
{
    struct gb b = {0};
    struct gb_marks m;
    (void)state;
    gb_small(&b, &m);
    const size_t header = m.c_off + 8;
    for (b.n = m.end; b.n > 0; b.n--) {
        struct bl_gguf *g = NULL;
        gb_save(&b, path);
        enum bl_status st = bl_gguf_open_header(&g, path);
        if (st != (b.n < header ? BL_EFORMAT : BL_OK))
            fail_msg("cut to %zu bytes: %s", b.n, st ? bl_error() : "accepted");
        if (!st)
            assert_int_equal(bl_gguf_missing_bytes(g), m.end - b.n);
        bl_gguf_close(g);
    }
    gb_finish(&b);
}

/* What no file can hold is not merely missing. */
static void lies_are_not_missing_data(void **state)
{
    static const uint64_t offsets[] = {(uint64_t)1 << 63, UINT64_MAX - 31, UINT64_MAX - 4095};
    (void)state;
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        struct gb b = {0};
        struct gb_marks m;
        struct bl_gguf *g = NULL;
        gb_small(&b, &m);
        gb_set(&b, m.c_off, 8, offsets[i]);
        gb_save(&b, path);
        assert_int_equal(bl_gguf_open_header(&g, path), BL_EFORMAT);
        gb_finish(&b);
    }
}

/* Two shards of headers: what they lack adds up. */
static void shards_without_data(void **state)
{
    char shard[2][sizeof folder + 32];
    struct bl_gguf *g = NULL;
    (void)state;
    for (uint32_t no = 0; no < 2; no++) {
        struct gb b = {0};
        gb_shard(&b, &(struct gb_shard){no, 2, 4, 2 * no, 2});
        b.n -= 2 * 128;
        snprintf(shard[no], sizeof shard[no], "%s/x-%05u-of-00002.gguf", folder, no + 1);
        gb_save(&b, shard[no]);
        gb_finish(&b);
    }
    GOOD(bl_gguf_open_header(&g, shard[1]));
    assert_int_equal(bl_gguf_n_tensors(g), 4);
    assert_int_equal(bl_gguf_missing_bytes(g), 4 * 128);
    bl_gguf_close(g);
    g = NULL;
    assert_int_equal(bl_gguf_open(&g, shard[1]), BL_EFORMAT);
    unlink(shard[0]);
    unlink(shard[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arithmetic_is_the_published), cmocka_unit_test(state_is_what_it_should_be),
        cmocka_unit_test(defaults_are_those_of_open),  cmocka_unit_test(other_types_and_rewinding),
        cmocka_unit_test(ledger_plans_the_same),       cmocka_unit_test(data_is_needed_elsewhere),
        cmocka_unit_test(every_cut_is_seen),           cmocka_unit_test(lies_are_not_missing_data),
        cmocka_unit_test(shards_without_data),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
