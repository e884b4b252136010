/* SPDX-License-Identifier: MIT */
/* Families with experts: what their keys and tensors become, routing, biases split and fused, and
 * rope by options in the place of keys. */
#include "model_recipe.h"

#include "engine_rig.h"
#include "log.h"

#include <unistd.h>

static const struct bl_route_attr *route_of(const struct bl_graph *g)
{
    return bl_node_attr(g, rc_nth(g, BL_OP_ROUTE, 0));
}

/* ---- routing ---- */

static void families_route_as_they_should(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        uint32_t gating, normalise;
        bool bias; /* of the selection */
    } row[] = {
        {"gpt-oss", BL_GATE_SOFTMAX_CHOSEN, 0, false},
        {"glm4moe", BL_GATE_SIGMOID, 0, true},
        {"ernie4_5-moe", BL_GATE_SOFTMAX, 1, true},
        {"minimax-m2", BL_GATE_SIGMOID, 1, true},
    };
    for (unsigned i = 0; i < BL_COUNT(row); i++) {
        struct rc r;
        rc_make(&r, row[i].family);
        struct rc_model o = rc_open(&r, NULL);
        struct bl_graph g = rc_build(o.m, 3, 1);
        assert_int_equal(route_of(&g)->n_used, RC_USED);
        assert_int_equal(route_of(&g)->gating, row[i].gating);
        assert_int_equal(route_of(&g)->normalise, row[i].normalise);
        assert_true(route_of(&g)->scale == 0);
        assert_int_equal(bl_node_src(&g, rc_nth(&g, BL_OP_ROUTE, 0), 1) != 0, row[i].bias);
        bl_graph_finish(&g);
        rc_close(&o);
    }
}

static void keys_of_routing(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "glm4moe");
    rc_number(&r, "expert_gating_func", BL_GATE_SQRT_SOFTPLUS);
    rc_number(&r, "expert_weights_norm", 1);
    rc_real(&r, "expert_weights_scale", 2.5f);
    rc_number(&r, "expert_group_count", 2);
    rc_number(&r, "expert_group_used_count", 1);
    struct rc_model o = rc_open(&r, NULL);
    struct bl_graph g = rc_build(o.m, 3, 1);
    assert_int_equal(route_of(&g)->gating, BL_GATE_SQRT_SOFTPLUS);
    assert_int_equal(route_of(&g)->normalise, 1);
    assert_true(route_of(&g)->scale == 2.5f);
    assert_int_equal(route_of(&g)->n_group, 2);
    assert_int_equal(route_of(&g)->n_group_used, 1);
    assert_string_equal(rc_source(o.m, &g, rc_nth(&g, BL_OP_ROUTE, 0), 1),
                        "blk.1.exp_probs_b.bias");
    bl_graph_finish(&g);
    rc_close(&o);
}

/* ---- which layers ---- */

static void layers_that_have_experts(void **state)
{
    (void)state;
    static const struct {
        uint32_t leading, step;
        const char *moe; /* a letter a layer */
    } row[] = {{0, 1, "111111"}, {1, 1, "011111"}, {0, 2, "010101"},
               {3, 2, "000101"}, {0, 3, "001001"}, {6, 1, "000000"}};
    for (unsigned i = 0; i < BL_COUNT(row); i++) {
        struct rc from, r;
        rc_make(&from, "ernie4_5-moe");
        r = from;
        rc_number(&r, "block_count", 6);
        rc_number(&r, "leading_dense_block_count", row[i].leading);
        rc_number(&r, "interleave_moe_layer_step", row[i].step);
        for (unsigned l = 0; l < 6; l++)
            for (unsigned t = 0; t < from.n_tensors; t++) {
                const struct rc_tensor *like = &from.tensor[t];
                if (!strncmp(like->name, row[i].moe[l] == '1' ? "blk.1." : "blk.0.", 6))
                    rc_layer(&r, (int)l, like->name + 6, (uint32_t)like->ne[0],
                             (uint32_t)like->ne[1], (uint32_t)like->ne[2]);
            }
        struct rc_model o = rc_open(&r, NULL);
        for (unsigned l = 0; l < 6; l++)
            assert_int_equal(o.m->layer[l].moe, row[i].moe[l] == '1');
        rc_close(&o);
    }
}

static void shared_experts_are_added(void **state)
{
    (void)state;
    static const char *const family[] = {"glm4moe", "ernie4_5-moe"};
    for (unsigned i = 0; i < 2; i++) {
        struct rc r;
        rc_make(&r, family[i]);
        struct rc_model o = rc_open(&r, NULL);
        struct bl_graph g = rc_build(o.m, 3, 1);
        assert_int_equal(o.m->hp.n_ff_shared, 2 * RC_EXP_FF);
        assert_int_equal(rc_count(&g, BL_OP_GLU), 2); /* layer 0's and the shared experts' */
        assert_int_equal(rc_count(&g, BL_OP_ADD), 2 * RC_LAYERS + 1);
        const struct bl_node *sum = rc_nth(&g, BL_OP_ADD, 3);
        assert_int_equal(bl_node_src(&g, sum, 0), rc_nth(&g, BL_OP_EXPERTS, 0)->dst[0]);
        bl_graph_finish(&g);
        rc_close(&o);
    }
    struct rc r; /* 0 is none */
    rc_make(&r, "ernie4_5-moe");
    rc_number(&r, "expert_shared_feed_forward_length", 0);
    rc_drop_tensor(&r, "blk.1.ffn_gate_shexp.weight");
    rc_drop_tensor(&r, "blk.1.ffn_up_shexp.weight");
    rc_drop_tensor(&r, "blk.1.ffn_down_shexp.weight");
    struct rc_model o = rc_open(&r, NULL);
    struct bl_graph g = rc_build(o.m, 3, 1);
    assert_int_equal(rc_count(&g, BL_OP_GLU), 1);
    bl_graph_finish(&g);
    rc_close(&o);
}

/* ---- attention ---- */

static void gpt_oss_slides_and_sinks(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "gpt-oss");
    rc_text(&r, "rope.scaling.type", "yarn");
    rc_real(&r, "rope.scaling.factor", 32);
    struct rc_model o = rc_open(&r, NULL);
    struct bl_graph g = rc_build(o.m, 3, 1);
    for (unsigned l = 0; l < RC_LAYERS; l++) {
        const struct bl_node *n = rc_nth(&g, BL_OP_ATTENTION, l);
        const struct bl_attention_attr *at = bl_node_attr(&g, n);
        assert_int_equal(at->window, l % 2 ? 0 : 16);
        assert_int_equal(o.m->state[o.m->layer[l].state_k].law, l % 2 ? BL_PER_TOKEN : BL_WINDOW);
        assert_string_equal(rc_source(o.m, &g, n, 3),
                            l ? "blk.1.attn_sinks.weight" : "blk.0.attn_sinks.weight");
    }
    assert_int_equal(rc_count(&g, BL_OP_ROPE_ANGLES), 1); /* windows are stretched too */
    const struct bl_angles_attr *angles = bl_node_attr(&g, rc_nth(&g, BL_OP_ROPE_ANGLES, 0));
    assert_int_equal(angles->yarn, 1);
    const struct bl_experts_attr *experts = bl_node_attr(&g, rc_nth(&g, BL_OP_EXPERTS, 0));
    assert_int_equal(experts->glu.kind, BL_GLU_SWIGLU_OAI);
    assert_true(experts->glu.alpha == 1.702f && experts->glu.limit == 7);
    bl_graph_finish(&g);
    rc_close(&o);
    rc_real(&r, "rope.freq_base_swa", 500);
    o = rc_open(&r, NULL);
    g = rc_build(o.m, 3, 1);
    assert_int_equal(rc_count(&g, BL_OP_ROPE_ANGLES), 2);
    angles = bl_node_attr(&g, rc_nth(&g, BL_OP_ROPE_ANGLES, 1));
    assert_true(angles->base == 500 && angles->yarn);
    assert_int_equal(bl_node_src(&g, rc_nth(&g, BL_OP_ROPE, 0), 1),
                     rc_nth(&g, BL_OP_ROPE_ANGLES, 1)->dst[0]);
    assert_int_equal(bl_node_src(&g, rc_nth(&g, BL_OP_ROPE, 2), 1),
                     rc_nth(&g, BL_OP_ROPE_ANGLES, 0)->dst[0]);
    bl_graph_finish(&g);
    rc_close(&o);
}

/* minimax-m2 normalises all heads at once, the largest glm4moe each one. */
static void runs_of_norms(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "minimax-m2");
    struct rc_model o = rc_open(&r, NULL);
    struct bl_graph g = rc_build(o.m, 3, 1);
    assert_string_equal(rc_source(o.m, &g, rc_nth(&g, BL_OP_RMS_NORM, 1), 1),
                        "blk.0.attn_q_norm.weight");
    assert_int_equal(g.vals[bl_node_src(&g, rc_nth(&g, BL_OP_RMS_NORM, 1), 1)].ne[0], RC_Q_ROWS);
    bl_graph_finish(&g);
    rc_close(&o);
    rc_make(&r, "glm4moe");
    for (int i = 0; i < RC_LAYERS; i++) {
        rc_layer(&r, i, "attn_q_norm.weight", RC_HEAD, 0, 0);
        rc_layer(&r, i, "attn_k_norm.weight", RC_HEAD, 0, 0);
    }
    o = rc_open(&r, NULL);
    g = rc_build(o.m, 3, 1);
    assert_int_equal(g.vals[bl_node_src(&g, rc_nth(&g, BL_OP_RMS_NORM, 2), 1)].ne[0], RC_HEAD);
    assert_int_equal(rc_count(&g, BL_OP_RMS_NORM), 4 * RC_LAYERS + 1);
    bl_graph_finish(&g);
    rc_close(&o);
}

/* ---- what is left out ---- */

static void count_lines(void *n, enum bl_log_level level, const char *line)
{
    (void)level;
    (void)line;
    ++*(unsigned *)n;
}

static void drafting_blocks_are_known_and_not_loaded(void **state)
{
    (void)state;
    struct rc r;
    unsigned n_warned = 0;
    rc_make(&r, "glm4moe");
    rc_number(&r, "block_count", RC_LAYERS + 1);
    rc_number(&r, "nextn_predict_layers", 1);
    rc_layer(&r, RC_LAYERS, "attn_norm.weight", RC_EMBD, 0, 0);
    rc_layer(&r, RC_LAYERS, "nextn.eh_proj.weight", 2 * RC_EMBD, RC_EMBD, 0);
    rc_layer(&r, RC_LAYERS, "nextn.enorm.weight", RC_EMBD, 0, 0);
    bl_log_set(count_lines, &n_warned, BL_LOG_WARN);
    struct rc_model o = rc_open(&r, NULL);
    bl_log_set(NULL, NULL, BL_LOG_WARN);
    assert_int_equal(n_warned, 0);
    assert_int_equal(o.m->hp.n_layer, RC_LAYERS);
    assert_int_equal(o.m->hp.n_layer_nextn, 1);
    for (uint32_t i = 0; i < o.m->n_weights; i++)
        assert_true(o.m->weight[i].layer < RC_LAYERS);
    rc_close(&o);
}

static void glm_without_biases_opens(void **state)
{
    (void)state;
    static const char *const stem[] = {"attn_q.bias", "attn_k.bias", "attn_v.bias"};
    struct rc r;
    rc_make(&r, "glm4moe");
    for (int i = 0; i < RC_LAYERS; i++)
        for (unsigned k = 0; k < 3; k++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s", i, stem[k]);
            rc_drop_tensor(&r, name);
        }
    struct rc_model o = rc_open(&r, NULL);
    assert_int_equal(o.m->layer[1].role[BL_W_ATTN_Q].bias, -1);
    rc_close(&o);
}

/* ---- fused biases ---- */

static void fused_biases_keep_their_distance(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "gpt-oss");
    rc_drop_tensor(&r, "blk.1.ffn_gate_exps.weight");
    rc_drop_tensor(&r, "blk.1.ffn_up_exps.weight");
    rc_drop_tensor(&r, "blk.1.ffn_gate_exps.bias");
    rc_drop_tensor(&r, "blk.1.ffn_up_exps.bias");
    rc_layer(&r, 1, "ffn_gate_up_exps.weight", RC_EMBD, 2 * RC_EXP_FF, RC_EXPERTS);
    rc_layer(&r, 1, "ffn_gate_up_exps.bias", 2 * RC_EXP_FF, RC_EXPERTS, 0);
    struct rc_model o = rc_open(&r, NULL);
    const struct bl_linear *gate = &o.m->layer[1].role[BL_W_EXP_GATE],
                           *up = &o.m->layer[1].role[BL_W_EXP_UP];
    const struct bl_weight *bias = &o.m->weight[up->bias];
    assert_int_not_equal(gate->bias, up->bias);
    assert_int_equal(bl_weight_offset(&o.m->weight[gate->bias]), 0);
    assert_int_equal(bl_weight_offset(bias), RC_EXP_FF * sizeof(float));
    assert_int_equal(bias->ne[0], RC_EXP_FF);
    assert_int_equal(bias->ne[1], RC_EXPERTS);
    const struct bl_weight *split = &o.m->weight[o.m->layer[0].role[BL_W_EXP_UP].bias];
    assert_int_equal(bl_weight_expert_stride(split), RC_EXP_FF * sizeof(float));
    assert_int_equal(bl_weight_expert_stride(bias), 2 * RC_EXP_FF * sizeof(float));
    assert_int_equal(bl_weight_n_experts(split), RC_EXPERTS);
    assert_int_equal(bl_weight_n_experts(bias), RC_EXPERTS);
    rc_close(&o);
}

/* Copies a file, gate and up of all experts made one tensor, rows of gate first. */
struct fuser {
    struct bl_gguf *from;
    struct bl_gguf_writer *to;
    unsigned char *bytes, *up; /* of the largest tensor */
};

static bool is_gate(const char *name)
{
    return strstr(name, "ffn_gate_exps");
}

static const struct bl_tensor_info *up_of(const struct bl_gguf *g, const char *gate)
{
    char name[64];
    const char *at = strstr(gate, "gate");
    snprintf(name, sizeof name, "%.*sup%s", (int)(at - gate), gate, at + 4);
    const struct bl_tensor_info *t = bl_gguf_find_tensor(g, name, NULL);
    assert_non_null(t);
    return t;
}

/* Bias {rows, experts} or matrices {in, rows, experts}: one more dimension is one expert. */
static void fuse_data(struct fuser *f, const struct bl_tensor_info *gate)
{
    const struct bl_tensor_info *up = up_of(f->from, gate->name);
    uint64_t experts = gate->ne[gate->n_dims - 1], each = gate->bytes / experts;
    RC_GOOD(bl_file_read(bl_gguf_file(f->from, 0), gate->file_off, gate->bytes, f->bytes));
    RC_GOOD(bl_file_read(bl_gguf_file(f->from, 0), up->file_off, up->bytes, f->up));
    for (uint64_t e = 0; e < experts; e++) {
        RC_GOOD(bl_gguf_write_data(f->to, f->bytes + e * each, each));
        RC_GOOD(bl_gguf_write_data(f->to, f->up + e * each, each));
    }
}

static void put_fused(struct fuser *f, const struct bl_tensor_info *gate)
{
    char name[64];
    const char *at = strstr(gate->name, "gate");
    uint64_t ne[4];
    memcpy(ne, gate->ne, sizeof ne);
    ne[gate->n_dims - 2] *= 2;
    snprintf(name, sizeof name, "%.*sgate_up%s", (int)(at - gate->name), gate->name, at + 4);
    RC_GOOD(bl_gguf_put_tensor(f->to, name, gate->type, gate->n_dims, ne));
}

static void fuse(const char *from, const char *to)
{
    struct fuser f = {.bytes = malloc(4 << 20), .up = malloc(4 << 20)};
    RC_GOOD(bl_gguf_open(&f.from, from));
    RC_GOOD(bl_gguf_writer_create(&f.to, to, 32));
    for (uint32_t i = 0; i < bl_gguf_n_kv(f.from); i++)
        RC_GOOD(bl_gguf_put_kv(f.to, bl_gguf_kv(f.from, i)));
    for (int data = 0; data < 2; data++)
        for (uint32_t i = 0; i < bl_gguf_n_tensors(f.from); i++) {
            const struct bl_tensor_info *t = bl_gguf_tensor(f.from, i);
            assert_true(t->bytes < 4 << 20);
            if (strstr(t->name, "ffn_up_exps"))
                continue;
            if (is_gate(t->name))
                data ? fuse_data(&f, t) : put_fused(&f, t);
            else if (!data)
                RC_GOOD(bl_gguf_put_tensor(f.to, t->name, t->type, t->n_dims, t->ne));
            else {
                RC_GOOD(bl_file_read(bl_gguf_file(f.from, 0), t->file_off, t->bytes, f.bytes));
                RC_GOOD(bl_gguf_write_data(f.to, f.bytes, t->bytes));
            }
        }
    RC_GOOD(bl_gguf_writer_finish(f.to));
    bl_gguf_close(f.from);
    free(f.bytes);
    free(f.up);
}

static void fused_experts_give_the_same_numbers(void **state)
{
    (void)state;
    for (int exact = 0; exact < 2; exact++) {
        struct bl_options opt = small();
        struct bl_engine *fused;
        opt.exact = exact;
        struct bl_engine *split = opened("gpt-oss-mxfp4", &opt);
        fuse(MODELS "gpt-oss-mxfp4.gguf", rc_path);
        RC_GOOD(bl_open(&fused, rc_path, &opt));
        float *a = last_logits(split), *b = last_logits(fused);
        assert_memory_equal(a, b, bl_engine_n_vocab(split) * sizeof *a);
        free(a);
        free(b);
        bl_close(split);
        bl_close(fused);
        unlink(rc_path);
    }
}

/* ---- rope by options ---- */

static struct bl_angles_attr angles_of(const struct rc *r, const struct bl_rope_options *rope,
                                       struct bl_angles_attr *window)
{
    struct bl_model_options opt = {.type_k = BL_F16, .type_v = BL_F16};
    if (rope)
        opt.rope = *rope;
    struct rc_model o = rc_open(r, &opt);
    const struct bl_angles_attr at = bl_model_angles(o.m);
    if (window)
        *window = o.m->hp.rope_window;
    rc_close(&o);
    return at;
}

/* Options give what the same keys give. */
static void options_are_as_keys(void **state)
{
    (void)state;
    static const struct {
        const char *scaling;
        float factor, base;
        uint32_t ctx_orig;
    } row[] = {
        {"linear", 4, 0, 0}, {"yarn", 32, 150000, 512}, {"yarn", 8, 0, 0},  {"yarn", 0, 0, 512},
        {NULL, 2, 0, 0},     {NULL, 0, 5000, 0},        {"none", 4, 0, 64}, {"linear", 0.5f, 0, 0},
    };
    for (unsigned i = 0; i < BL_COUNT(row); i++) {
        struct rc plain, keys;
        const struct bl_rope_options o = {row[i].scaling, row[i].base,
                                          row[i].factor > 0 ? 1 / row[i].factor : 0,
                                          row[i].ctx_orig};
        rc_make(&plain, "qwen3");
        keys = plain;
        if (row[i].scaling)
            rc_text(&keys, "rope.scaling.type", row[i].scaling);
        if (row[i].factor > 0)
            rc_real(&keys, "rope.scaling.factor", row[i].factor);
        if (row[i].base > 0)
            rc_real(&keys, "rope.freq_base", row[i].base);
        if (row[i].ctx_orig)
            rc_number(&keys, "rope.scaling.original_context_length", row[i].ctx_orig);
        struct bl_angles_attr a = angles_of(&keys, NULL, NULL), b = angles_of(&plain, &o, NULL);
        assert_memory_equal(&a, &b, sizeof a);
    }
}

/* ... and come before what the file says, but not in windows. */
static void options_override_the_file(void **state)
{
    (void)state;
    struct rc r;
    struct bl_angles_attr file_window, window;
    rc_make(&r, "gpt-oss");
    rc_text(&r, "rope.scaling.type", "yarn");
    rc_real(&r, "rope.scaling.factor", 32);
    rc_number(&r, "rope.scaling.original_context_length", 128);
    const struct bl_angles_attr file = angles_of(&r, NULL, &file_window);
    assert_memory_equal(&file, &file_window, sizeof file);
    struct bl_angles_attr at = angles_of(&r, &(struct bl_rope_options){.scaling = "none"}, &window);
    assert_memory_equal(&window, &file_window, sizeof window);
    assert_true(!at.yarn && at.freq_scale == 1 && at.magnitude == 1);
    at = angles_of(&r, &(struct bl_rope_options){.scaling = "linear"}, NULL);
    assert_true(!at.yarn && at.freq_scale == 1.0f / 32 && at.magnitude == 1);
    at = angles_of(&r, &(struct bl_rope_options){.freq_scale = 1, .freq_base = 777}, &window);
    assert_true(at.yarn && at.freq_scale == 1 && at.magnitude == 1 && at.base == 777);
    assert_true(window.base == file.base);
    at = angles_of(&r, &(struct bl_rope_options){.ctx_orig = 1024}, NULL);
    assert_true(at.hi > file.hi && at.freq_scale == file.freq_scale);
}

/* The context from which the long factors count can be given too. */
static void original_context_decides_about_factors(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "phi3");
    rc_text(&r, "rope.scaling.type", "longrope");
    rc_number(&r, "rope.scaling.original_context_length", 1024);
    rc_tensor(&r, "rope_factors_long.weight", BL_F32, RC_HEAD / 2, 0, 0);
    rc_tensor(&r, "rope_factors_short.weight", BL_F32, RC_HEAD / 2, 0, 0);
    for (uint32_t given = 0; given < 2; given++) {
        struct bl_model_options opt = {
            .ctx_tokens = 2048, .type_k = BL_F16, .type_v = BL_F16, .rope.ctx_orig = given * 2048};
        struct rc_model o = rc_open(&r, &opt);
        struct bl_graph g = rc_build(o.m, 3, 1);
        assert_string_equal(rc_source(o.m, &g, rc_nth(&g, BL_OP_ROPE_ANGLES, 0), 1),
                            given ? "rope_factors_short.weight" : "rope_factors_long.weight");
        bl_graph_finish(&g);
        rc_close(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_route_as_they_should),
        cmocka_unit_test(keys_of_routing),
        cmocka_unit_test(layers_that_have_experts),
        cmocka_unit_test(shared_experts_are_added),
        cmocka_unit_test(gpt_oss_slides_and_sinks),
        cmocka_unit_test(runs_of_norms),
        cmocka_unit_test(drafting_blocks_are_known_and_not_loaded),
        cmocka_unit_test(glm_without_biases_opens),
        cmocka_unit_test(fused_biases_keep_their_distance),
        cmocka_unit_test(fused_experts_give_the_same_numbers),
        cmocka_unit_test(options_are_as_keys),
        cmocka_unit_test(options_override_the_file),
        cmocka_unit_test(original_context_decides_about_factors),
    };
    return cmocka_run_group_tests_name("experts", tests, rc_enter_folder, rc_leave_folder);
}
