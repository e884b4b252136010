/* SPDX-License-Identifier: MIT */
/* Model files that contradict themselves: one thing of a valid file is spoiled, and the line that
 * refuses it is read. */
#include "model_recipe.h"

#include <math.h>

enum spoil { SET_NUMBER, SET_REAL, SET_TEXT, SET_LIST, DROP_KEY, RESHAPE, RETYPE, DROP };
struct refusal {
    const char *family;
    enum spoil how;
    const char *name;
    struct {
        uint32_t number, list[3], n; /* RESHAPE: list. RETYPE: number */
        float real;
        const char *text;
    } to;
    enum bl_status status;
    const char *message;
};

#define F BL_EFORMAT
#define U BL_EUNSUPPORTED
#define NUM(v)                                                                                     \
    {                                                                                              \
        .number = (v)                                                                              \
    }
#define REAL(v)                                                                                    \
    {                                                                                              \
        .real = (v)                                                                                \
    }
#define STR(v)                                                                                     \
    {                                                                                              \
        .text = (v)                                                                                \
    }
#define SHAPE(...)                                                                                 \
    {                                                                                              \
        .list = { __VA_ARGS__ }                                                                    \
    }
static const struct refusal refusals[] = {
    {"llama", SET_TEXT, "general.architecture", STR("mamba\x1b[31m"), U,
     "architecture 'mamba?[31m' is not supported; these are: llama, qwen2,"},
    {"llama", DROP_KEY, "general.architecture", NUM(0), F, "'general.architecture' is missing"},
    {"llama", SET_NUMBER, "general.architecture", NUM(3), F, "general.architecture"},
    {"llama", SET_TEXT, "general.type", STR("adapter"), U, "general.type is 'adapter'"},
    {"llama", SET_NUMBER, "block_count", NUM(0), F, "llama.block_count is 0; must be 1 to 1024"},
    {"llama", SET_NUMBER, "block_count", NUM(5000), F, "llama.block_count is 5000; must be 1 to"},
    {"llama", SET_NUMBER, "block_count", NUM(3), F, "'blk.2.attn_norm.weight' is missing"},
    {"llama", SET_REAL, "block_count", REAL(2), F, "'llama.block_count' is f32"},
    {"llama", DROP_KEY, "block_count", NUM(0), F, "'llama.block_count' is missing"},
    {"llama", SET_NUMBER, "nextn_predict_layers", NUM(2), F,
     "nextn_predict_layers is 2; must be 0 to 1"},
    {"llama", SET_NUMBER, "context_length", NUM(0), F, "context_length is 0; must be 1 to"},
    {"llama", SET_NUMBER, "embedding_length", NUM(0), F, "embedding_length is 0; must be 1 to"},
    {"llama", SET_NUMBER, "embedding_length", NUM(1u << 31), F, "embedding_length is 2147483648"},
    {"llama", SET_NUMBER, "embedding_length", NUM(33), F, "33 / 4, gives no head size"},
    {"llama", SET_NUMBER, "attention.head_count", NUM(0), F,
     "llama.attention.head_count is 0; must be 1 to 4096"},
    {"llama", SET_NUMBER, "attention.head_count_kv", NUM(0), F, "head_count_kv is 0; must be 1 to"},
    {"llama", SET_NUMBER, "attention.head_count_kv", NUM(3), F,
     "is 3; must divide attention.head_count, 4"},
    {"llama",
     SET_LIST,
     "attention.head_count",
     {.list = {4}, .n = 1},
     F,
     "'llama.attention.head_count' has 1 elements; 2 are needed"},
    {"llama",
     SET_LIST,
     "attention.head_count",
     {.list = {4, 0}, .n = 2},
     F,
     "llama.attention.head_count of layer 1 is 0; must be"},
    {"llama", SET_LIST, "block_count", {.list = {2, 2}, .n = 2}, F, "'llama.block_count' is u32[]"},
    {"llama", SET_NUMBER, "attention.key_length", NUM(0), F, "key_length is 0; must be 1 to 4096"},
    {"llama", SET_NUMBER, "attention.key_length", NUM(1u << 30), F, "key_length is 1073741824"},
    {"llama", SET_NUMBER, "attention.value_length", NUM(16), F, "are 8, 16 and 8; must be equal"},
    {"llama", SET_NUMBER, "rope.dimension_count", NUM(7), F,
     "dimension_count is 7; must be even, 2 to"},
    {"llama", SET_NUMBER, "rope.dimension_count", NUM(0), F, "dimension_count is 0; must be even"},
    {"llama", SET_NUMBER, "rope.dimension_count", NUM(10), F,
     "must be even, 2 to the key length, 8"},
    {"llama", SET_NUMBER, "rope.dimension_count", NUM(4), F, "are 8, 8 and 4; must be equal"},
    {"llama", SET_REAL, "rope.freq_base", REAL(0), F, "rope.freq_base is 0; must be"},
    {"llama", SET_REAL, "rope.freq_base", REAL(INFINITY), F, "rope.freq_base is inf; must be"},
    {"llama", SET_TEXT, "rope.scaling.type", STR("ntk"), U, "type is 'ntk'; must be none, linear,"},
    {"llama", SET_TEXT, "rope.scaling.type", STR("longrope"), F,
     "'rope_factors_long.weight' is missing"},
    {"llama", SET_REAL, "rope.scaling.factor", REAL(-1), F, "rope.scaling.factor is -1; must be"},
    {"llama", SET_REAL, "rope.scaling.factor", REAL(1e-30f), F,
     "rope.scaling.factor is 1e-30; must be"},
    {"llama", SET_REAL, "rope.scaling.attn_factor", REAL(NAN), F, "attn_factor is nan; must be"},
    {"llama", SET_REAL, "attention.layer_norm_rms_epsilon", REAL(NAN), F,
     "epsilon is nan; must be"},
    {"llama", SET_REAL, "attention.layer_norm_rms_epsilon", REAL(0), F, "epsilon is 0; must be"},
    {"llama", DROP_KEY, "attention.layer_norm_rms_epsilon", NUM(0), F, "epsilon' is missing"},
    {"llama", SET_NUMBER, "vocab_size", NUM(17), F,
     "must be the length of tokenizer.ggml.tokens, 16"},
    {"llama", SET_NUMBER, "tokenizer.ggml.tokens", NUM(1), F,
     "tokenizer.ggml.tokens is not an array"},
    {"llama", DROP_KEY, "feed_forward_length", NUM(0), F, "feed_forward_length is missing or 0"},
    {"llama-moe", SET_NUMBER, "expert_count", NUM(1025), F,
     "expert_count is 1025; must be 0 to 1024"},
    {"llama-moe", SET_NUMBER, "expert_used_count", NUM(5), F,
     "expert_used_count is 5; must be 1 to 4"},
    {"llama-moe", SET_NUMBER, "expert_used_count", NUM(0), F,
     "expert_used_count is 0; must be 1 to 4"},
    {"llama-moe", DROP_KEY, "expert_used_count", NUM(0), F, "'llama.expert_used_count' is missing"},
    {"llama-moe", SET_NUMBER, "expert_count", NUM(3), F,
     "'blk.0.ffn_gate_inp.weight' is {32, 4}; must be {32, 3}"},
    {"qwen3moe", SET_NUMBER, "expert_count", NUM(0), F, "expert_used_count is 2; must be 0 to 0"},
    {"qwen3moe", SET_NUMBER, "expert_feed_forward_length", NUM(25), F,
     "'blk.0.ffn_gate_exps.weight' is {32, 24, 4}; must be {32, 25, 4}"},
    {"qwen3moe", DROP_KEY, "feed_forward_length", NUM(0), F,
     "qwen3moe.expert_feed_forward_length is missing or 0"},
    {"llama", DROP, "output_norm.weight", NUM(0), F, "tensor 'output_norm.weight' is missing"},
    {"llama", DROP, "blk.1.attn_q.weight", NUM(0), F, "tensor 'blk.1.attn_q.weight' is missing"},
    {"llama", DROP, "blk.1.ffn_gate.weight", NUM(0), F, "'blk.1.ffn_gate.weight' is missing"},
    {"llama", RESHAPE, "blk.1.attn_q.weight", SHAPE(32, 31), F,
     "tensor 'blk.1.attn_q.weight' is {32, 31}; must be {32, 32}"},
    {"llama", RESHAPE, "blk.1.attn_q.weight", SHAPE(32, 32, 2), F,
     "is {32, 32, 2}; must be {32, 32}"},
    {"llama", RESHAPE, "blk.0.attn_norm.weight", SHAPE(31), F, "is {31}; must be {32}"},
    {"llama", RESHAPE, "token_embd.weight", SHAPE(32, 15), F, "is {32, 15}; must be {32, 16}"},
    {"llama", RESHAPE, "rope_freqs.weight", SHAPE(8), F, "'rope_freqs.weight' is {8}; must be {4}"},
    {"llama", RESHAPE, "blk.0.attn_q.bias", SHAPE(31), F,
     "'blk.0.attn_q.bias' is {31}; must be {32}"},
    {"llama", RESHAPE, "blk.0.attn_q.scale", SHAPE(2), F,
     "'blk.0.attn_q.scale' is {2}; must be {1}"},
    {"llama", RESHAPE, "rope_factors_short.weight", SHAPE(4), F,
     "'rope_factors_long.weight' is missing"},
    {"llama-moe", RESHAPE, "blk.0.ffn_down_exps.weight", SHAPE(48, 32, 3), F,
     "must be {48, 32, 4}"},
    {"llama-moe", RESHAPE, "blk.0.ffn_up_exps.bias", SHAPE(48, 3), F, "must be {48, 4}"},
    {"phi3", RESHAPE, "blk.0.attn_qkv.weight", SHAPE(32, 63), F, "is {32, 63}; must be {32, 64}"},
    {"phi3", RESHAPE, "blk.0.ffn_up.weight", SHAPE(32, 95), F, "is {32, 95}; must be {32, 96}"},
    {"phi3", RESHAPE, "blk.0.ffn_up.weight", SHAPE(32, 48), F,
     "'blk.0.ffn_gate.weight' is missing"},
    {"qwen2", DROP, "blk.1.attn_v.bias", NUM(0), F, "tensor 'blk.1.attn_v.bias' is missing"},
    {"qwen3", DROP, "blk.1.attn_q_norm.weight", NUM(0), F, "'blk.1.attn_q_norm.weight' is missing"},
    {"gemma3", DROP, "blk.0.post_ffw_norm.weight", NUM(0), F,
     "'blk.0.post_ffw_norm.weight' is missing"},
    {"gemma3", SET_NUMBER, "attention.sliding_window_pattern", NUM(0), F,
     "pattern is 0; must be 1 to"},
    {"gemma3",
     SET_LIST,
     "attention.sliding_window_pattern",
     {.list = {1}, .n = 1},
     F,
     "has 1 elements; 2 are needed"},
    {"gemma3", SET_REAL, "rope.freq_base_swa", REAL(NAN), F, "freq_base_swa is nan; must be"},
    {"qwen3next", DROP_KEY, "ssm.conv_kernel", NUM(0), F, "'qwen3next.ssm.conv_kernel' is missing"},
    {"qwen3next", SET_NUMBER, "ssm.conv_kernel", NUM(17), F, "conv_kernel is 17; must be 2 to 16"},
    {"qwen3next", SET_NUMBER, "ssm.state_size", NUM(2048), F, "state_size is 2048; must be 1 to"},
    {"qwen3next", SET_NUMBER, "ssm.group_count", NUM(3), F,
     "are 32, 4 and 3; each must be a multiple of the next"},
    {"qwen3next", SET_NUMBER, "ssm.inner_size", NUM(30), F,
     "are 30, 4 and 2; each must be a multiple of the next"},
    {"qwen3next", SET_NUMBER, "full_attention_interval", NUM(0), F, "interval is 0; must be 1 to"},
    {"qwen3next", SET_NUMBER, "full_attention_interval", NUM(1), F,
     "'blk.0.attn_qkv.weight' is {32, 64}; must be {32, 96}"},
    {"qwen3next", SET_NUMBER, "attention.value_length", NUM(16), F,
     "are 8 and 16; must be equal where queries have gates"},
    {"qwen3next",
     SET_LIST,
     "attention.recurrent_layers",
     {.list = {1}, .n = 1},
     F,
     "has 1 elements; 2 are needed"},
    {"qwen3next", RESHAPE, "blk.0.ssm_conv1d.weight", SHAPE(3, 64), F,
     "is {3, 64}; must be {4, 64}"},
    {"qwen3next", RETYPE, "blk.0.ssm_conv1d.weight", NUM(BL_F16), U,
     "conv1d.weight' is f16; norms"},
    {"qwen3next", RESHAPE, "blk.0.ssm_ba.weight", SHAPE(32, 7), F, "is {32, 7}; must be {32, 8}"},
    {"qwen3next", DROP, "blk.0.ssm_ba.weight", NUM(0), F, "'blk.0.ssm_beta.weight' is missing"},
    {"qwen3next", DROP, "blk.0.ssm_a", NUM(0), F, "tensor 'blk.0.ssm_a' is missing"},
    {"qwen3next", DROP, "blk.0.ssm_dt.bias", NUM(0), F, "tensor 'blk.0.ssm_dt.bias' is missing"},
    {"qwen3next", DROP, "blk.0.attn_qkv.weight", NUM(0), F, "'blk.0.attn_qkv.weight' is missing"},
    {"qwen3next", DROP, "blk.1.ffn_gate_inp_shexp.weight", NUM(0), F,
     "inp_shexp.weight' is missing"},
    {"qwen3next", RESHAPE, "blk.1.attn_q.weight", SHAPE(32, 32), F,
     "is {32, 32}; must be {32, 64}"},
    {"qwen35moe", SET_NUMBER, "expert_shared_feed_forward_length", NUM(0), F,
     "shared_feed_forward_length is 0; must be 1 to"},
    {"qwen35", DROP, "blk.0.ssm_alpha.weight", NUM(0), F, "'blk.0.ssm_alpha.weight' is missing"},
    {"qwen35", DROP_KEY, "rope.dimension_sections", NUM(0), F, "dimension_sections' is missing"},
    {"qwen35",
     SET_LIST,
     "rope.dimension_sections",
     {.list = {2, 1, 1}, .n = 3},
     F,
     "has 3 elements; element 3 is needed"},
    {"llama", RETYPE, "blk.0.attn_q.weight", NUM(BL_I32), U,
     "is i32, which is not a type of weight"},
    {"llama", RETYPE, "blk.0.attn_norm.weight", NUM(BL_F16), U,
     "'blk.0.attn_norm.weight' is f16; norms,"},
};
#undef F
#undef U

static void spoil(struct rc *r, const struct refusal *s)
{
    switch (s->how) {
    case SET_NUMBER:
        rc_number(r, s->name, s->to.number);
        break;
    case SET_REAL:
        rc_real(r, s->name, s->to.real);
        break;
    case SET_TEXT:
        rc_text(r, s->name, s->to.text);
        break;
    case SET_LIST:
        rc_list(r, s->name, RC_NUMBERS, s->to.n, s->to.list);
        break;
    case DROP_KEY:
        rc_drop_key(r, s->name);
        break;
    case RESHAPE:
        rc_tensor(r, s->name, BL_F32, s->to.list[0], s->to.list[1], s->to.list[2]);
        break;
    case RETYPE:
        rc_find(r, s->name)->type = s->to.number;
        break;
    case DROP:
        rc_drop_tensor(r, s->name);
        break;
    }
}

static void check_refused(const struct rc *r, enum bl_status status, const char *message)
{
    struct rc_model o = {NULL, NULL};
    rc_save(r);
    RC_GOOD(bl_gguf_open(&o.g, rc_path));
    enum bl_status st = bl_model_open(&o.m, o.g, NULL);
    if (st != status || !strstr(bl_error(), message) ||
        strncmp(bl_error(), rc_path, strlen(rc_path)) || strchr(bl_error(), '\n'))
        fail_msg("\"%s\" wanted; %s: %s", message, bl_status_name(st),
                 st ? bl_error() : "accepted");
    assert_null(o.m);
    rc_close(&o);
}

static void contradictions_are_refused(void **state)
{
    (void)state;
    for (unsigned i = 0; i < BL_COUNT(refusals); i++) {
        struct rc r;
        rc_make(&r, refusals[i].family);
        spoil(&r, &refusals[i]);
        check_refused(&r, refusals[i].status, refusals[i].message);
    }
}

static void contradictions_of_two_fields(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "llama");
    rc_drop_key(&r, "vocab_size");
    rc_drop_key(&r, "tokenizer.ggml.tokens");
    check_refused(&r, BL_EFORMAT, "'llama.vocab_size' is missing");
    rc_make(&r, "qwen3moe");
    rc_drop_key(&r, "expert_count");
    rc_drop_key(&r, "expert_used_count");
    check_refused(&r, BL_EFORMAT, "qwen3moe.expert_count is 0; must be 1 to 1024");
    rc_make(&r, "qwen3moe");
    rc_drop_tensor(&r, "blk.0.ffn_gate_exps.weight");
    rc_drop_tensor(&r, "blk.0.ffn_up_exps.weight");
    rc_layer(&r, 0, "ffn_gate_up_exps.weight", RC_EMBD, RC_FF, RC_EXPERTS);
    rc_layer(&r, 0, "ffn_gate_up_exps.bias", RC_FF, RC_EXPERTS, 0);
    check_refused(&r, BL_EUNSUPPORTED, "'blk.0.ffn_gate_up_exps.bias': fused biases of experts");
    static const uint32_t none[] = {0, 0, 0, 0}, wide[] = {2, 5, 1, 0};
    rc_make(&r, "qwen35");
    rc_list(&r, "rope.dimension_sections", RC_NUMBERS, 4, none);
    check_refused(&r, BL_EFORMAT, "qwen35.rope.dimension_sections is all 0");
    rc_list(&r, "rope.dimension_sections", RC_NUMBERS, 4, wide);
    check_refused(&r, BL_EFORMAT, "element 1 of qwen35.rope.dimension_sections is 5; must be 0 to");
    rc_make(&r, "qwen2");
    rc_text(&r, "rope.scaling.type", "longrope");
    rc_tensor(&r, "rope_factors_long.weight", BL_F32, RC_HEAD / 2, 0, 0);
    check_refused(&r, BL_EFORMAT, "not used by this architecture");
}

/* A file for drafting has the last block alone. */
static void drafts_are_refused(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "qwen35");
    rc_number(&r, "nextn_predict_layers", 1);
    rc_drop_tensor(&r, "blk.0.attn_norm.weight");
    check_refused(&r, BL_EUNSUPPORTED, "holds only block 1, for drafting, of a model of 2 blocks");
}

static void bad_options(void **state)
{
    (void)state;
    static const struct {
        struct bl_model_options opt;
        const char *message;
    } row[] = {
        {{.ctx_tokens = 0, .type_k = BL_Q8_0, .type_v = BL_F16},
         "k cache type q8_0 needs heads of whole 32 elements"},
        {{.ctx_tokens = 0, .type_k = BL_F16, .type_v = BL_Q4_0},
         "v cache type q4_0 needs heads of whole 32 elements"},
        {{.ctx_tokens = 0, .type_k = BL_F16, .type_v = BL_I32}, "v cache type i32"},
        {{.ctx_tokens = 0, .type_k = BL_Q4_K, .type_v = BL_F16},
         "k cache type q4_k: f32, f16, bf16"},
        {{.ctx_tokens = 1ull << 40, .type_k = BL_F16, .type_v = BL_F16},
         "a context of 1099511627776 tokens"},
    };
    struct rc r;
    rc_make(&r, "llama");
    rc_save(&r);
    for (unsigned i = 0; i < BL_COUNT(row); i++) {
        struct rc_model o = {NULL, NULL};
        RC_GOOD(bl_gguf_open(&o.g, rc_path));
        assert_int_equal(bl_model_open(&o.m, o.g, &row[i].opt), BL_EINVAL);
        assert_non_null(strstr(bl_error(), row[i].message));
        rc_close(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(contradictions_of_two_fields),
        cmocka_unit_test(drafts_are_refused),
        cmocka_unit_test(bad_options),
    };
    return cmocka_run_group_tests_name("model_reject", tests, rc_enter_folder, rc_leave_folder);
}
