/* SPDX-License-Identifier: MIT */
/* Opening models and building their graphs: every family, fused and split tensors, keys and what
 * becomes of them. */
#include "model_recipe.h"

#include "alloc_fail.h"
#include "log.h"

#include <dirent.h>
#include <math.h>

/* ---- every family ---- */

static void check_part(const struct bl_graph *g, const struct bl_node *n)
{
    bool once = n->part == BL_PART_EMBED || n->part == BL_PART_HEAD;
    assert_int_equal(once, n->layer == -1);
    switch (n->op) {
    case BL_OP_EMBED:
    case BL_OP_ROPE_ANGLES:
        assert_int_equal(n->part, BL_PART_EMBED);
        break;
    case BL_OP_GATHER_ROWS:
    case BL_OP_SOFTCAP:
        assert_int_equal(n->part, BL_PART_HEAD);
        break;
    case BL_OP_ROPE:
        assert_int_equal(n->part, BL_PART_ATTN);
        break;
    case BL_OP_KV_STORE:
    case BL_OP_ATTENTION:
    case BL_OP_SHORT_CONV:
    case BL_OP_DELTA_RULE:
        assert_int_equal(n->part, BL_PART_STATE);
        break;
    case BL_OP_GLU: /* of gated attention too */
        assert_true(n->part == BL_PART_FFN || n->part == BL_PART_ATTN);
        break;
    case BL_OP_ADD:
    case BL_OP_ROUTE:
        assert_int_equal(n->part, BL_PART_FFN);
        break;
    case BL_OP_EXPERTS:
        assert_int_equal(n->part, BL_PART_EXPERTS);
        break;
    default:
        assert_int_equal(n->attr % 8, 0);
    }
    assert_true(n->dst[0] < g->n_vals);
}

static void check_head(const struct bl_model *m, const struct bl_graph *g, uint32_t n_out)
{
    assert_int_equal(rc_count(g, BL_OP_GATHER_ROWS), n_out != 0);
    if (!n_out) {
        assert_int_equal(g->result, 0);
        return;
    }
    const struct bl_value *logits = &g->vals[g->result];
    assert_int_equal(logits->ne[0], m->hp.n_vocab);
    assert_int_equal(logits->ne[1], n_out);
    bl_val rows = rc_nth(g, BL_OP_GATHER_ROWS, 0)->dst[0];
    const struct bl_node *norm = rc_nth(g, BL_OP_RMS_NORM, rc_count(g, BL_OP_RMS_NORM) - 1);
    if (!rc_count(g, BL_OP_STREAM_READ)) /* otherwise what the streams come to */
        assert_int_equal(bl_node_src(g, norm, 0), rows);
    assert_string_equal(rc_source(m, g, norm, 1), "output_norm.weight");
}

/* Whatever its law, a step writes every state once. */
static void check_states(const struct bl_model *m, const struct bl_graph *g)
{
    for (uint32_t s = 0; s < m->n_states; s++) {
        unsigned n = 0;
        for (uint32_t i = 0; i < g->n_nodes; i++)
            for (unsigned d = 0; d < g->nodes[i].n_dst; d++) {
                const struct bl_value *v = &g->vals[g->nodes[i].dst[d]];
                n += v->origin == BL_STATE_ROWS && v->index == (int32_t)s;
            }
        assert_int_equal(n, 1);
    }
}

static void check_steps(const struct bl_model *m)
{
    static const uint32_t n_tok[] = {1, 7, 512};
    for (unsigned t = 0; t < BL_COUNT(n_tok); t++)
        for (uint32_t n_out = 0; n_out < 2; n_out++) {
            struct bl_graph g = rc_build(m, n_tok[t], n_out);
            for (uint32_t i = 0; i < g.n_nodes; i++)
                check_part(&g, &g.nodes[i]);
            check_head(m, &g, n_out);
            check_states(m, &g);
            assert_int_equal(rc_count(&g, BL_OP_ATTENTION) + rc_count(&g, BL_OP_ATTENTION_GROUPS) +
                                 rc_count(&g, BL_OP_DELTA_RULE),
                             m->hp.n_layer);
            assert_int_equal(g.vals[g.nodes[0].dst[0]].ne[1], n_tok[t]);
            bl_graph_finish(&g);
        }
}

static void families_open_and_build(void **state)
{
    (void)state;
    for (unsigned i = 0; rc_families[i]; i++) {
        struct rc r;
        rc_make(&r, rc_families[i]);
        struct rc_model o = rc_open(&r, NULL);
        const struct bl_hparams *hp = &o.m->hp;
        assert_string_equal(o.m->family->arch, r.arch);
        assert_int_equal(hp->n_layer, RC_LAYERS);
        assert_int_equal(hp->dk, RC_HEAD);
        assert_int_equal(hp->dv, RC_HEAD);
        assert_int_equal(hp->rope_dims, RC_HEAD);
        assert_true(hp->attn_scale == 1 / sqrtf(RC_HEAD));
        assert_int_equal(o.m->n_states, 2 * RC_LAYERS);
        assert_int_equal(o.m->opt.ctx_tokens, 2048);
        assert_int_equal(o.m->opt.type_k, BL_F16);
        check_steps(o.m);
        rc_close(&o);
    }
}

static void rope_pairs_and_activation(void **state)
{
    (void)state;
    for (unsigned i = 0; rc_families[i]; i++) {
        struct rc r;
        rc_make(&r, rc_families[i]);
        struct rc_model o = rc_open(&r, NULL);
        struct bl_graph g = rc_build(o.m, 3, 1);
        const struct bl_rope_attr *rope = bl_node_attr(&g, rc_nth(&g, BL_OP_ROPE, 0));
        bool norm = !strcmp(r.arch, "llama") || !strncmp(r.arch, "ernie4_5", 8);
        assert_int_equal(rope->mode, norm ? BL_ROPE_NORM : BL_ROPE_NEOX);
        assert_int_equal(rope->head_elems, RC_HEAD);
        if (rc_count(&g, BL_OP_GLU)) {
            const struct bl_glu_attr *glu = bl_node_attr(&g, rc_nth(&g, BL_OP_GLU, 0));
            assert_int_equal(glu->kind, strcmp(r.arch, "gemma3") ? BL_GLU_SILU : BL_GLU_GELU_TANH);
        }
        assert_int_equal(rc_count(&g, BL_OP_ROPE_ANGLES), strcmp(r.arch, "gemma3") ? 1 : 2);
        bl_graph_finish(&g);
        rc_close(&o);
    }
}

/* ---- what the numbers become ---- */

static void experts_are_routed(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct rc r;
        rc_make(&r, i ? "qwen3moe" : "llama-moe");
        struct rc_model o = rc_open(&r, NULL);
        struct bl_graph g = rc_build(o.m, 3, 1);
        const struct bl_node *n = rc_nth(&g, BL_OP_ROUTE, 0);
        const struct bl_route_attr *route = bl_node_attr(&g, n);
        assert_int_equal(route->n_used, RC_USED);
        assert_int_equal(route->gating, BL_GATE_SOFTMAX);
        assert_int_equal(route->normalise, 1);
        assert_true(route->scale == 0);
        assert_int_equal(rc_count(&g, BL_OP_EXPERTS), RC_LAYERS);
        assert_int_equal(rc_count(&g, BL_OP_GLU), 0);
        n = rc_nth(&g, BL_OP_EXPERTS, 1);
        assert_string_equal(rc_source(o.m, &g, n, 3), "blk.1.ffn_gate_exps.weight");
        assert_string_equal(rc_source(o.m, &g, n, 4), "blk.1.ffn_up_exps.weight");
        assert_string_equal(rc_source(o.m, &g, n, 5), "blk.1.ffn_down_exps.weight");
        assert_int_equal(bl_node_src(&g, n, 6), 0);
        assert_int_equal(o.m->weight[o.m->layer[1].role[BL_W_EXP_UP].w].part, BL_PART_EXPERTS);
        assert_int_equal(o.m->weight[o.m->layer[1].role[BL_W_ROUTER].w].part, BL_PART_FFN);
        bl_graph_finish(&g);
        rc_close(&o);
    }
}

static void fused_tensors_become_rows(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "phi3");
    rc_layer(&r, 0, "attn_qkv.bias", RC_Q_ROWS + 2 * RC_KV_ROWS, 0, 0);
    struct rc_model o = rc_open(&r, NULL);
    const struct bl_layer *l = &o.m->layer[0];
    const struct bl_weight *q = &o.m->weight[l->role[BL_W_ATTN_Q].w],
                           *k = &o.m->weight[l->role[BL_W_ATTN_K].w],
                           *v = &o.m->weight[l->role[BL_W_ATTN_V].w],
                           *up = &o.m->weight[l->role[BL_W_FFN_UP].w],
                           *bias = &o.m->weight[l->role[BL_W_ATTN_V].bias];
    assert_int_equal(q->tensor, v->tensor);
    assert_int_equal(bl_weight_offset(q), 0);
    assert_int_equal(bl_weight_offset(k), RC_Q_ROWS * RC_EMBD * 4);
    assert_int_equal(bl_weight_offset(v), (RC_Q_ROWS + RC_KV_ROWS) * RC_EMBD * 4);
    assert_int_equal(v->ne[0], RC_EMBD);
    assert_int_equal(v->ne[1], RC_KV_ROWS);
    assert_int_equal(bl_weight_offset(up), RC_FF * RC_EMBD * 4);
    assert_int_equal(up->ne[1], RC_FF);
    assert_int_equal(bias->ne[0], RC_KV_ROWS);
    assert_int_equal(bl_weight_offset(bias), (RC_Q_ROWS + RC_KV_ROWS) * 4);
    struct bl_graph g = rc_build(o.m, 3, 1);
    assert_int_equal(g.vals[bl_node_src(&g, rc_nth(&g, BL_OP_MATMUL, 2), 2)].index,
                     l->role[BL_W_ATTN_V].bias);
    bl_graph_finish(&g);
    rc_close(&o);
}

/* The fused forms are accepted by every family, not only by the one that always has them. */
static void fused_experts(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "qwen3moe");
    rc_drop_tensor(&r, "blk.1.ffn_gate_exps.weight");
    rc_drop_tensor(&r, "blk.1.ffn_up_exps.weight");
    rc_layer(&r, 1, "ffn_gate_up_exps.weight", RC_EMBD, RC_FF, RC_EXPERTS);
    rc_layer(&r, 1, "ffn_gate_up_exps.scale", RC_EXPERTS, 0, 0);
    struct rc_model o = rc_open(&r, NULL);
    const struct bl_linear *gate = &o.m->layer[1].role[BL_W_EXP_GATE],
                           *up = &o.m->layer[1].role[BL_W_EXP_UP];
    const struct bl_weight *w = &o.m->weight[up->w];
    assert_int_equal(w->ne[1], RC_FF / RC_USED);
    assert_int_equal(w->ne[2], RC_EXPERTS);
    assert_int_equal(bl_weight_offset(w), RC_FF / RC_USED * RC_EMBD * 4);
    assert_int_equal(bl_weight_expert_stride(w), RC_FF * RC_EMBD * 4);
    assert_int_equal(bl_weight_offset(&o.m->weight[gate->w]), 0);
    assert_true(gate->scale >= 0);
    assert_int_equal(gate->scale, up->scale);
    struct bl_graph g = rc_build(o.m, 3, 1);
    assert_int_equal(g.vals[bl_node_src(&g, rc_nth(&g, BL_OP_EXPERTS, 1), 10)].index, up->scale);
    bl_graph_finish(&g);
    rc_close(&o);
}

static void companions_follow_their_weight(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "llama");
    rc_tensor(&r, "blk.0.attn_q.weight", BL_Q4_0, RC_EMBD, RC_Q_ROWS, 0);
    rc_layer(&r, 0, "attn_q.scale", 1, 0, 0);
    rc_layer(&r, 0, "attn_output.bias", RC_EMBD, 0, 0);
    rc_tensor(&r, "output.bias", BL_F32, RC_VOCAB, 0, 0);
    struct rc_model o = rc_open(&r, NULL);
    struct bl_graph g = rc_build(o.m, 3, 1);
    const struct bl_node *q = rc_nth(&g, BL_OP_MATMUL, 0), *out = rc_nth(&g, BL_OP_MATMUL, 3);
    assert_string_equal(rc_source(o.m, &g, q, 3), "blk.0.attn_q.scale");
    assert_int_equal(bl_node_src(&g, q, 2), 0);
    assert_string_equal(rc_source(o.m, &g, out, 2), "blk.0.attn_output.bias");
    const struct bl_node *head = rc_nth(&g, BL_OP_MATMUL, rc_count(&g, BL_OP_MATMUL) - 1);
    assert_string_equal(rc_source(o.m, &g, head, 2), "output.bias");
    bl_graph_finish(&g);
    rc_close(&o);
}

static void tied_output_is_one_tensor(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "llama");
    struct rc_model o = rc_open(&r, NULL);
    uint32_t apart = o.m->n_weights;
    assert_false(o.m->tied_output);
    rc_close(&o);
    rc_drop_tensor(&r, "output.weight");
    o = rc_open(&r, NULL);
    assert_true(o.m->tied_output);
    assert_int_equal(o.m->n_weights, apart);
    const struct bl_weight *head_w = &o.m->weight[o.m->role[BL_W_OUTPUT].w],
                           *embed_w = &o.m->weight[o.m->role[BL_W_TOKEN_EMBD].w];
    assert_int_equal(head_w->tensor, embed_w->tensor);
    assert_int_equal(head_w->part, BL_PART_HEAD);
    assert_int_equal(embed_w->part, BL_PART_EMBED);
    struct bl_graph g = rc_build(o.m, 3, 1);
    const struct bl_node *head = rc_nth(&g, BL_OP_MATMUL, rc_count(&g, BL_OP_MATMUL) - 1);
    assert_string_equal(rc_source(o.m, &g, head, 0), "token_embd.weight");
    bl_graph_finish(&g);
    rc_close(&o);
}

/* ---- hybrids ---- */

static void states_of_hybrids(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "qwen35");
    struct rc_model o = rc_open(
        &r, &(struct bl_model_options){.type_k = BL_F16, .type_v = BL_F16, .slack_tokens = 2});
    const struct bl_layer *l = o.m->layer;
    const struct bl_state_desc *tail = &o.m->state[l[0].state_k], *ssm = &o.m->state[l[0].state_v];
    const struct bl_shape s = {7, 1, 3, 32, 2048};
    assert_true(l[0].recurrent && !l[1].recurrent);
    assert_string_equal(tail->name, "blk.0.conv");
    assert_string_equal(ssm->name, "blk.0.ssm");
    assert_int_equal(tail->law, BL_WINDOW);
    assert_int_equal(ssm->law, BL_FIXED);
    assert_int_equal(tail->type, BL_F32);
    assert_int_equal(ssm->type, BL_F32);
    assert_int_equal(bl_state_rows(tail, &s), RC_TAPS - 1 + 2);
    assert_int_equal(bl_state_rows(ssm, &s), 1 + 2);
    assert_int_equal(bl_state_bytes(tail, &s), 3 * (RC_TAPS - 1 + 2) * RC_CHANNELS * 4);
    assert_int_equal(bl_state_bytes(ssm, &s), 3 * 3 * RC_INNER * RC_SSM_HEAD * 4);
    assert_int_equal(o.m->state[l[1].state_k].law, BL_PER_TOKEN);
    rc_close(&o);
}

static void layers_of_hybrids(void **state)
{
    (void)state;
    static const uint32_t swapped[] = {0, 1};
    struct rc r;
    rc_make(&r, "qwen3next");
    rc_list(&r, "attention.recurrent_layers", RC_FLAGS, 2, swapped);
    for (unsigned i = 0; i < r.n_tensors; i++) /* the layers change places */
        if (!strncmp(r.tensor[i].name, "blk.", 4))
            r.tensor[i].name[4] ^= 1;
    struct rc_model o = rc_open(&r, NULL);
    assert_true(!o.m->layer[0].recurrent && o.m->layer[1].recurrent);
    check_steps(o.m);
    rc_close(&o);
}

static void hybrids_differ_in_the_order_of_heads(void **state)
{
    (void)state;
    static const char *const family[] = {"qwen3next", "qwen35", "qwen35moe"};
    for (unsigned i = 0; i < 3; i++) {
        struct rc r;
        rc_make(&r, family[i]);
        struct rc_model o = rc_open(&r, NULL);
        struct bl_graph g = rc_build(o.m, 3, 1);
        const struct bl_delta_attr *at = bl_node_attr(&g, rc_nth(&g, BL_OP_DELTA_RULE, 0));
        const struct bl_angles_attr *angles = bl_node_attr(&g, rc_nth(&g, BL_OP_ROPE_ANGLES, 0));
        assert_int_equal(at->n_head_k, RC_SSM_K);
        assert_int_equal(at->n_head_v, RC_SSM_V);
        assert_int_equal(at->tiled, i > 0);
        assert_int_equal(angles->sections[0], i > 0 ? 2 : 0);
        assert_true(at->scale == 1 / sqrtf(RC_SSM_HEAD));
        assert_int_equal(rc_count(&g, BL_OP_SLICE), i ? 2 : 4); /* of gated q; of ssm_ba */
        bl_graph_finish(&g);
        rc_close(&o);
    }
}

/* The first files of the grouped kind hold q, k, v and z of a key head together. */
static void fused_inputs_of_delta_nets(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "qwen3next");
    rc_drop_tensor(&r, "blk.0.attn_qkv.weight");
    rc_drop_tensor(&r, "blk.0.attn_gate.weight");
    rc_layer(&r, 0, "ssm_in.weight", RC_EMBD, RC_CHANNELS + RC_INNER, 0);
    rc_drop_tensor(&r, "blk.0.ssm_ba.weight");
    rc_layer(&r, 0, "ssm_beta.weight", RC_EMBD, RC_SSM_V, 0);
    rc_layer(&r, 0, "ssm_alpha.weight", RC_EMBD, RC_SSM_V, 0);
    struct rc_model o = rc_open(&r, NULL);
    struct bl_graph g = rc_build(o.m, 3, 1);
    const struct bl_node *join = rc_nth(&g, BL_OP_CONCAT, 0), *q = rc_nth(&g, BL_OP_SLICE, 0);
    const struct bl_slice_attr *at = bl_node_attr(&g, q);
    assert_int_equal(rc_count(&g, BL_OP_SLICE), 6);
    assert_int_equal(at->run, (RC_CHANNELS + RC_INNER) / RC_SSM_K);
    assert_int_equal(g.vals[join->dst[0]].ne[0], RC_CHANNELS);
    assert_int_equal(bl_node_src(&g, join, 0), q->dst[0]);
    assert_int_equal(bl_node_src(&g, rc_nth(&g, BL_OP_SHORT_CONV, 0), 0), join->dst[0]);
    bl_graph_finish(&g);
    rc_close(&o);
}

static void shared_experts_default_to_the_others_width(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "qwen35moe");
    rc_drop_key(&r, "expert_shared_feed_forward_length");
    for (int i = 0; i < RC_LAYERS; i++) {
        rc_layer(&r, i, "ffn_gate_shexp.weight", RC_EMBD, RC_FF / RC_USED, 0);
        rc_layer(&r, i, "ffn_up_shexp.weight", RC_EMBD, RC_FF / RC_USED, 0);
        rc_layer(&r, i, "ffn_down_shexp.weight", RC_FF / RC_USED, RC_EMBD, 0);
    }
    struct rc_model o = rc_open(&r, NULL);
    assert_int_equal(o.m->hp.n_ff_shared, RC_FF / RC_USED);
    check_steps(o.m);
    rc_close(&o);
}

/* ---- windows and numbers ---- */

static void sliding_windows(void **state)
{
    (void)state;
    static const uint32_t flags[] = {0, 1};
    struct rc r;
    rc_make(&r, "gemma3");
    rc_number(&r, "attention.sliding_window_pattern", 2);
    struct rc_model o = rc_open(&r, NULL);
    const struct bl_shape s = {7, 1, 3, 32, 2048};
    assert_int_equal(o.m->layer[0].window, 16);
    assert_int_equal(o.m->layer[1].window, 0);
    const struct bl_state_desc *ring = &o.m->state[o.m->layer[0].state_k],
                               *all = &o.m->state[o.m->layer[1].state_v];
    assert_int_equal(ring->law, BL_WINDOW);
    assert_int_equal(all->law, BL_PER_TOKEN);
    assert_string_equal(all->name, "blk.1.v");
    assert_int_equal(bl_state_rows(ring, &s), 16 + 32 - 1);
    assert_int_equal(bl_state_rows(all, &s), 2048);
    assert_int_equal(bl_state_bytes(all, &s), 2048 * 3 * RC_KV_ROWS * 2);
    assert_int_equal(bl_state_rows(ring, &(struct bl_shape){7, 1, 3, 32, 20}), 20);
    rc_close(&o);
    rc_list(&r, "attention.sliding_window_pattern", RC_FLAGS, 2, flags);
    o = rc_open(&r, NULL);
    assert_int_equal(o.m->layer[0].window, 0);
    assert_int_equal(o.m->layer[1].window, 16);
    rc_close(&o);
    rc_drop_key(&r, "attention.sliding_window");
    o = rc_open(&r, NULL);
    assert_int_equal(o.m->layer[1].window, 0);
    rc_close(&o);
}

static void gemma3_numbers(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "gemma3");
    rc_number(&r, "attention.sliding_window_pattern", 2);
    rc_text(&r, "rope.scaling.type", "linear");
    rc_real(&r, "rope.scaling.factor", 8);
    rc_real(&r, "final_logit_softcapping", 30);
    struct rc_model o = rc_open(&r, NULL);
    struct bl_graph g = rc_build(o.m, 3, 1);
    const struct bl_embed_attr *embed = bl_node_attr(&g, rc_nth(&g, BL_OP_EMBED, 0));
    assert_true(embed->scale == sqrtf(RC_EMBD));
    const struct bl_node *full_node = rc_nth(&g, BL_OP_ROPE_ANGLES, 0),
                         *window_node = rc_nth(&g, BL_OP_ROPE_ANGLES, 1);
    const struct bl_angles_attr *full_at = bl_node_attr(&g, full_node),
                                *window_at = bl_node_attr(&g, window_node);
    assert_true(full_at->base == 1e6f && full_at->freq_scale == 0.125f);
    assert_true(window_at->base == 10000 && window_at->freq_scale == 1);
    assert_int_equal(bl_node_src(&g, rc_nth(&g, BL_OP_ROPE, 0), 1), window_node->dst[0]);
    assert_int_equal(bl_node_src(&g, rc_nth(&g, BL_OP_ROPE, 2), 1), full_node->dst[0]);
    const struct bl_attention_attr *at = bl_node_attr(&g, rc_nth(&g, BL_OP_ATTENTION, 0));
    assert_int_equal(at->window, 16);
    assert_int_equal(rc_nth(&g, BL_OP_SOFTCAP, 0)->dst[0], g.result);
    bl_graph_finish(&g);
    rc_close(&o);
}

/* Numbers of a published model (families.md 4.6): 64 dims, base 150000, 4096 tokens stretched 32
 * times. */
static void yarn_numbers(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "qwen3");
    rc_number(&r, "attention.key_length", 64);
    rc_real(&r, "rope.freq_base", 150000);
    rc_text(&r, "rope.scaling.type", "yarn");
    rc_real(&r, "rope.scaling.factor", 32);
    rc_number(&r, "rope.scaling.original_context_length", 4096);
    for (int i = 0; i < RC_LAYERS; i++) {
        rc_layer(&r, i, "attn_q.weight", RC_EMBD, RC_HEADS * 64, 0);
        rc_layer(&r, i, "attn_k.weight", RC_EMBD, RC_HEADS_KV * 64, 0);
        rc_layer(&r, i, "attn_q_norm.weight", 64, 0, 0);
        rc_layer(&r, i, "attn_k_norm.weight", 64, 0, 0);
    }
    struct rc_model o = rc_open(&r, NULL);
    struct bl_graph g = rc_build(o.m, 3, 1);
    const struct bl_angles_attr *at = bl_node_attr(&g, rc_nth(&g, BL_OP_ROPE_ANGLES, 0));
    assert_int_equal(at->yarn, 1);
    assert_int_equal(at->n_dims, 64);
    assert_true(at->lo == 8 && at->hi == 18);
    assert_true(at->freq_scale == 1.0f / 32);
    assert_true(fabsf(at->magnitude - 1.34657f) < 1e-5f);
    bl_graph_finish(&g);
    rc_close(&o);
}

static void check_factors(const struct rc *r, uint64_t ctx_tokens, const char *want)
{
    struct rc_model o = rc_open(
        r,
        &(struct bl_model_options){.ctx_tokens = ctx_tokens, .type_k = BL_F16, .type_v = BL_F16});
    struct bl_graph g = rc_build(o.m, 3, 1);
    const struct bl_node *n = rc_nth(&g, BL_OP_ROPE_ANGLES, 0);
    const struct bl_angles_attr *at = bl_node_attr(&g, n);
    assert_string_equal(rc_source(o.m, &g, n, 1), want);
    assert_true(at->magnitude == 1.19f && at->freq_scale == 1 && !at->yarn);
    bl_graph_finish(&g);
    rc_close(&o);
}

static void rope_factors_by_context(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "phi3");
    rc_number(&r, "rope.dimension_count", 6);
    rc_text(&r, "rope.scaling.type", "longrope");
    rc_real(&r, "rope.scaling.attn_factor", 1.19f);
    rc_number(&r, "rope.scaling.original_context_length", 256);
    rc_tensor(&r, "rope_factors_long.weight", BL_F32, 3, 0, 0);
    rc_tensor(&r, "rope_factors_short.weight", BL_F32, 3, 0, 0);
    check_factors(&r, 256, "rope_factors_short.weight");
    check_factors(&r, 257, "rope_factors_long.weight");
    rc_make(&r, "llama");
    rc_real(&r, "rope.scaling.attn_factor", 1.19f);
    rc_tensor(&r, "rope_freqs.weight", BL_F32, RC_HEAD / 2, 0, 0);
    check_factors(&r, 0, "rope_freqs.weight");
}

static void keys_per_layer(void **state)
{
    (void)state;
    static const uint32_t heads[] = {4, 2}, kv[] = {2, 1}, ff[] = {48, 64};
    struct rc r;
    rc_make(&r, "qwen3");
    rc_number(&r, "attention.key_length", RC_HEAD);
    rc_number(&r, "attention.value_length", RC_HEAD);
    rc_list(&r, "attention.head_count", RC_NUMBERS, 2, heads);
    rc_list(&r, "attention.head_count_kv", RC_NUMBERS, 2, kv);
    rc_list(&r, "feed_forward_length", RC_NUMBERS, 2, ff);
    rc_layer(&r, 1, "attn_q.weight", RC_EMBD, 2 * RC_HEAD, 0);
    rc_layer(&r, 1, "attn_k.weight", RC_EMBD, RC_HEAD, 0);
    rc_layer(&r, 1, "attn_v.weight", RC_EMBD, RC_HEAD, 0);
    rc_layer(&r, 1, "attn_output.weight", 2 * RC_HEAD, RC_EMBD, 0);
    rc_layer(&r, 1, "ffn_gate.weight", RC_EMBD, 64, 0);
    rc_layer(&r, 1, "ffn_up.weight", RC_EMBD, 64, 0);
    rc_layer(&r, 1, "ffn_down.weight", 64, RC_EMBD, 0);
    struct rc_model o = rc_open(&r, NULL);
    assert_int_equal(o.m->state[o.m->layer[1].state_k].row_elems, RC_HEAD);
    check_steps(o.m);
    rc_close(&o);
}

static void defaults(void **state)
{
    (void)state;
    struct rc r;
    rc_make(&r, "llama");
    rc_drop_key(&r, "vocab_size");
    rc_drop_key(&r, "rope.freq_base");
    rc_drop_key(&r, "general.type");
    rc_number(&r, "context_length", 8192);
    rc_number(&r, "attention.head_count_kv", RC_HEADS);
    for (int i = 0; i < RC_LAYERS; i++) {
        rc_layer(&r, i, "attn_k.weight", RC_EMBD, RC_Q_ROWS, 0);
        rc_layer(&r, i, "attn_v.weight", RC_EMBD, RC_Q_ROWS, 0);
    }
    rc_drop_key(&r, "attention.head_count_kv");
    struct rc_model o = rc_open(&r, NULL);
    assert_int_equal(o.m->hp.n_vocab, RC_VOCAB);
    assert_int_equal(o.m->layer[0].n_head_kv, RC_HEADS);
    assert_true(o.m->hp.rope_base == 10000);
    assert_int_equal(o.m->opt.ctx_tokens, 4096);
    rc_close(&o);
}

/* ---- warnings ---- */

struct heard {
    unsigned n;
    char last[256];
};

static void hear(void *arg, enum bl_log_level level, const char *line)
{
    struct heard *h = arg;
    assert_int_equal(level, BL_LOG_WARN);
    h->n++;
    snprintf(h->last, sizeof h->last, "%s", line);
}

static void unused_tensors_are_told(void **state)
{
    (void)state;
    struct heard h = {0};
    struct rc r;
    rc_make(&r, "llama");
    bl_log_set(hear, &h, BL_LOG_INFO);
    struct rc_model o = rc_open(&r, NULL);
    rc_close(&o);
    assert_int_equal(h.n, 0);
    rc_layer(&r, 0, "attn_q.input_scale", 1, 0, 0);
    rc_layer(&r, 1, "attn_rot.weight", 4, 0, 0);
    rc_layer(&r, 1, "attn_rot.bias", 4, 0, 0);
    o = rc_open(&r, NULL);
    rc_close(&o);
    assert_int_equal(h.n, 1);
    assert_non_null(strstr(h.last, "2 of 24 tensors"));
    assert_non_null(strstr(h.last, "blk.1.attn_rot.weight"));
    bl_log_set(NULL, NULL, BL_LOG_ERROR);
}

static void drafting_blocks_are_left_out(void **state)
{
    (void)state;
    struct heard h = {0};
    struct rc r;
    rc_make(&r, "qwen3");
    rc_number(&r, "block_count", RC_LAYERS + 1);
    rc_number(&r, "nextn_predict_layers", 1);
    rc_layer(&r, RC_LAYERS, "nextn.eh_proj.weight", 2 * RC_EMBD, RC_EMBD, 0);
    bl_log_set(hear, &h, BL_LOG_INFO);
    struct rc_model o = rc_open(&r, NULL);
    assert_int_equal(o.m->hp.n_layer, RC_LAYERS);
    assert_int_equal(h.n, 0);
    check_steps(o.m);
    rc_close(&o);
    bl_log_set(NULL, NULL, BL_LOG_ERROR);
}

/* ---- the edges ---- */

static void bad_shapes_of_a_step(void **state)
{
    (void)state;
    static const struct bl_shape row[] = {
        {0, 0, 1, 512, 2048}, {513, 0, 1, 512, 2048}, {1, 0, 0, 512, 2048}, {1, 0, 1, 512, 0}};
    struct rc r;
    rc_make(&r, "llama");
    struct rc_model o = rc_open(&r, NULL);
    for (unsigned i = 0; i < BL_COUNT(row); i++) {
        struct bl_graph g;
        bl_graph_init(&g);
        assert_int_equal(bl_model_build(o.m, &row[i], &g), BL_EINVAL);
        bl_graph_finish(&g);
    }
    rc_close(&o);
}

static void no_memory(void **state)
{
    (void)state;
    struct rc r;
    struct rc_model o = {NULL, NULL};
    uint64_t n = 1;
    rc_make(&r, "qwen3moe");
    rc_save(&r);
    RC_GOOD(bl_gguf_open(&o.g, rc_path));
    for (;; n++) {
        alloc_fail_at(n);
        enum bl_status st = bl_model_open(&o.m, o.g, NULL);
        bool failed = alloc_fail_stop();
        assert_true(st == BL_OK || (failed && st == BL_ENOMEM)); /* a warning may be lost */
        bl_model_close(o.m);
        o.m = NULL;
        if (!failed)
            break;
    }
    assert_true(n > 4);
    rc_close(&o);
}

static void close_takes_nothing(void **state)
{
    (void)state;
    bl_model_close(NULL);
}

/* ---- reference models ---- */

static bool is_supported(const struct bl_gguf *g)
{
    const char *s = "";
    uint64_t n = 0;
    RC_GOOD(bl_gguf_str(g, "general.architecture", true, &s, &n));
    for (unsigned i = 0; bl_families[i]; i++)
        if (n == strlen(bl_families[i]->arch) && !memcmp(s, bl_families[i]->arch, n))
            return true;
    return false;
}

static bool check_reference(const char *file)
{
    static const struct bl_model_options opt = {
        .ctx_tokens = 1024, .type_k = BL_F16, .type_v = BL_F16};
    struct rc_model o = {NULL, NULL};
    RC_GOOD(bl_gguf_open(&o.g, file));
    bool supported = is_supported(o.g);
    enum bl_status st = bl_model_open(&o.m, o.g, &opt);
    if (st != (supported ? BL_OK : BL_EUNSUPPORTED))
        fail_msg("%s", st ? bl_error() : file);
    if (supported)
        check_steps(o.m);
    rc_close(&o);
    return supported;
}

static unsigned check_folder(const char *root)
{
    char file[1024];
    unsigned n = 0;
    snprintf(file, sizeof file, "%s/models", root);
    DIR *d = opendir(file);
    if (!d)
        return 0;
    for (struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, ".gguf")) {
            snprintf(file, sizeof file, "%s/models/%s", root, e->d_name);
            n += check_reference(file);
        }
    closedir(d);
    return n;
}

static void reference_models(void **state)
{
    (void)state;
    const char *root = getenv("BALLAST_REFERENCE");
    if (!root)
        print_message("BALLAST_REFERENCE is not set: only the models in tests/data are opened\n");
    unsigned n = check_folder(root ? root : BL_TEST_DATA "/reference");
    print_message("%u reference models of supported families\n", n);
    if (root)
        assert_true(n >= 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_open_and_build),
        cmocka_unit_test(rope_pairs_and_activation),
        cmocka_unit_test(experts_are_routed),
        cmocka_unit_test(fused_tensors_become_rows),
        cmocka_unit_test(fused_experts),
        cmocka_unit_test(companions_follow_their_weight),
        cmocka_unit_test(tied_output_is_one_tensor),
        cmocka_unit_test(states_of_hybrids),
        cmocka_unit_test(layers_of_hybrids),
        cmocka_unit_test(hybrids_differ_in_the_order_of_heads),
        cmocka_unit_test(fused_inputs_of_delta_nets),
        cmocka_unit_test(shared_experts_default_to_the_others_width),
        cmocka_unit_test(sliding_windows),
        cmocka_unit_test(gemma3_numbers),
        cmocka_unit_test(yarn_numbers),
        cmocka_unit_test(rope_factors_by_context),
        cmocka_unit_test(keys_per_layer),
        cmocka_unit_test(defaults),
        cmocka_unit_test(unused_tensors_are_told),
        cmocka_unit_test(drafting_blocks_are_left_out),
        cmocka_unit_test(bad_shapes_of_a_step),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(close_takes_nothing),
        cmocka_unit_test(reference_models),
    };
    return cmocka_run_group_tests_name("model", tests, rc_enter_folder, rc_leave_folder);
}
