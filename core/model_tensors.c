/* SPDX-License-Identifier: MIT */
/* Finds the tensors of a model and gives them their roles. A tensor's data is never looked at
 * before its shape equals the one that the hyper-parameters ask for. */
#include "model.h"

#include "log.h"
#include "mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { NAME_BYTES = 64 };

static const struct {
    const char *stem;
    uint8_t part;
} roles[BL_N_ROLES] = {
    [BL_W_TOKEN_EMBD] = {"token_embd", BL_PART_EMBED},
    [BL_W_OUTPUT_NORM] = {"output_norm", BL_PART_HEAD},
    [BL_W_OUTPUT] = {"output", BL_PART_HEAD},
    [BL_W_ROPE_FREQS] = {"rope_freqs", BL_PART_EMBED},
    [BL_W_ROPE_LONG] = {"rope_factors_long", BL_PART_EMBED},
    [BL_W_ROPE_SHORT] = {"rope_factors_short", BL_PART_EMBED},
    [BL_W_ATTN_NORM] = {"attn_norm", BL_PART_ATTN},
    [BL_W_ATTN_Q] = {"attn_q", BL_PART_ATTN},
    [BL_W_ATTN_K] = {"attn_k", BL_PART_ATTN},
    [BL_W_ATTN_V] = {"attn_v", BL_PART_ATTN},
    [BL_W_ATTN_OUT] = {"attn_output", BL_PART_ATTN},
    [BL_W_ATTN_Q_NORM] = {"attn_q_norm", BL_PART_ATTN},
    [BL_W_ATTN_K_NORM] = {"attn_k_norm", BL_PART_ATTN},
    [BL_W_ATTN_POST_NORM] = {"post_attention_norm", BL_PART_ATTN},
    [BL_W_FFN_NORM] = {"ffn_norm", BL_PART_FFN},
    [BL_W_FFN_GATE] = {"ffn_gate", BL_PART_FFN},
    [BL_W_FFN_UP] = {"ffn_up", BL_PART_FFN},
    [BL_W_FFN_DOWN] = {"ffn_down", BL_PART_FFN},
    [BL_W_FFN_POST_NORM] = {"post_ffw_norm", BL_PART_FFN},
    [BL_W_ROUTER] = {"ffn_gate_inp", BL_PART_FFN},
    [BL_W_ROUTER_BIAS] = {"exp_probs_b", BL_PART_FFN},
    [BL_W_EXP_GATE] = {"ffn_gate_exps", BL_PART_EXPERTS},
    [BL_W_EXP_UP] = {"ffn_up_exps", BL_PART_EXPERTS},
    [BL_W_EXP_DOWN] = {"ffn_down_exps", BL_PART_EXPERTS},
    [BL_W_SHEXP_GATE] = {"ffn_gate_shexp", BL_PART_FFN},
    [BL_W_SHEXP_UP] = {"ffn_up_shexp", BL_PART_FFN},
    [BL_W_SHEXP_DOWN] = {"ffn_down_shexp", BL_PART_FFN},
    [BL_W_ATTN_SINKS] = {"attn_sinks", BL_PART_STATE},
    [BL_W_ATTN_Q_A] = {"attn_q_a", BL_PART_ATTN},
    [BL_W_ATTN_Q_A_NORM] = {"attn_q_a_norm", BL_PART_ATTN},
    [BL_W_ATTN_Q_B] = {"attn_q_b", BL_PART_ATTN},
    [BL_W_ATTN_KV_A] = {"attn_kv", BL_PART_ATTN},
    [BL_W_ATTN_KV_ROPE] = {"attn_kv_a_mqa", BL_PART_ATTN},
    [BL_W_ATTN_KV_A_NORM] = {"attn_kv_a_norm", BL_PART_ATTN},
    [BL_W_ATTN_K_B] = {"attn_k_b", BL_PART_ATTN},
    [BL_W_ATTN_V_B] = {"attn_v_b", BL_PART_ATTN},
    [BL_W_SHEXP_ROUTER] = {"ffn_gate_inp_shexp", BL_PART_FFN},
    [BL_W_SSM_IN] = {"ssm_in", BL_PART_ATTN},
    [BL_W_SSM_QKV] = {"attn_qkv", BL_PART_ATTN},
    [BL_W_SSM_GATE] = {"attn_gate", BL_PART_ATTN},
    [BL_W_SSM_BA] = {"ssm_ba", BL_PART_ATTN},
    [BL_W_SSM_BETA] = {"ssm_beta", BL_PART_ATTN},
    [BL_W_SSM_ALPHA] = {"ssm_alpha", BL_PART_ATTN},
    [BL_W_SSM_CONV] = {"ssm_conv1d", BL_PART_STATE},
    [BL_W_SSM_DT] = {"ssm_dt", BL_PART_STATE},
    [BL_W_SSM_A] = {"ssm_a", BL_PART_STATE},
    [BL_W_SSM_NORM] = {"ssm_norm", BL_PART_ATTN},
    [BL_W_SSM_OUT] = {"ssm_out", BL_PART_ATTN},
    [BL_W_ROUTER_IDS] = {"ffn_gate_tid2eid", BL_PART_FFN},
    [BL_W_ATTN_OUT_A] = {"attn_output_a", BL_PART_ATTN},
    [BL_W_ATTN_OUT_B] = {"attn_output_b", BL_PART_ATTN},
    [BL_W_COMP_KV] = {"attn_compressor_kv", BL_PART_ATTN},
    [BL_W_COMP_GATE] = {"attn_compressor_gate", BL_PART_ATTN},
    [BL_W_COMP_APE] = {"attn_compressor_ape", BL_PART_STATE},
    [BL_W_COMP_NORM] = {"attn_compressor_norm", BL_PART_ATTN},
    [BL_W_INDEX_Q] = {"indexer.attn_q_b", BL_PART_ATTN},
    [BL_W_INDEX_PROJ] = {"indexer.proj", BL_PART_ATTN},
    [BL_W_INDEX_COMP_KV] = {"indexer_compressor_kv", BL_PART_ATTN},
    [BL_W_INDEX_COMP_GATE] = {"indexer_compressor_gate", BL_PART_ATTN},
    [BL_W_INDEX_COMP_APE] = {"indexer_compressor_ape", BL_PART_STATE},
    [BL_W_INDEX_COMP_NORM] = {"indexer_compressor_norm", BL_PART_ATTN},
    [BL_W_HC_ATTN_FN] = {"hc_attn_fn", BL_PART_ATTN},
    [BL_W_HC_ATTN_BASE] = {"hc_attn_base", BL_PART_ATTN},
    [BL_W_HC_ATTN_SCALE] = {"hc_attn_scale", BL_PART_ATTN},
    [BL_W_HC_FFN_FN] = {"hc_ffn_fn", BL_PART_FFN},
    [BL_W_HC_FFN_BASE] = {"hc_ffn_base", BL_PART_FFN},
    [BL_W_HC_FFN_SCALE] = {"hc_ffn_scale", BL_PART_FFN},
    [BL_W_HC_OUT_FN] = {"output_hc_fn", BL_PART_HEAD},
    [BL_W_HC_OUT_BASE] = {"output_hc_base", BL_PART_HEAD},
    [BL_W_HC_OUT_SCALE] = {"output_hc_scale", BL_PART_HEAD},
};
/* Where the last part of the name is not "weight". */
static const char *const role_suffix[BL_N_ROLES] = {
    [BL_W_ROUTER_BIAS] = "bias",
    [BL_W_SSM_DT] = "bias",
    [BL_W_SSM_A] = "",
};
/* Other names that writers have given to a role. */
static const struct {
    uint8_t role;
    const char *stem, *suffix;
} aliases[] = {
    {BL_W_ROUTER_BIAS, "exp_probs_b", NULL},
    {BL_W_ATTN_KV_A, "attn_kv_a_mqa", NULL},
    {BL_W_ATTN_KV_A, "attn_kv_latent", NULL},
    {BL_W_COMP_KV, "attn_compress_kv", NULL},
    {BL_W_COMP_GATE, "attn_compress_gate", NULL},
    {BL_W_COMP_APE, "attn_compress_ape", NULL},
    {BL_W_COMP_NORM, "attn_compress_norm", NULL},
    {BL_W_INDEX_COMP_KV, "indexer.compress_kv", NULL},
    {BL_W_INDEX_COMP_GATE, "indexer.compress_gate", NULL},
    {BL_W_INDEX_COMP_APE, "indexer.compress_ape", NULL},
    {BL_W_INDEX_COMP_NORM, "indexer.compress_norm", NULL},
    {BL_W_HC_OUT_FN, "hc_head_fn", NULL},
    {BL_W_HC_OUT_BASE, "hc_head_base", NULL},
    {BL_W_HC_OUT_SCALE, "hc_head_scale", NULL},
};

/* A linear map of the file, whole: n_out 0 is a vector, n_experts 0 one matrix. */
struct map {
    const char *stem;
    int layer;
    uint32_t n_in, n_out, n_experts;
    const char *suffix; /* NULL: weight */
};
/* The rows of each of its matrices that one role gets. */
struct rows {
    uint32_t first, n;
};

static struct bl_linear *slot(struct bl_model *m, enum bl_role role, int layer)
{
    return layer < 0 ? &m->role[role] : &m->layer[layer].role[role];
}

/* ---- finding and checking ---- */

static const char *tensor_name(char out[NAME_BYTES], const struct map *map, const char *suffix)
{
    const char *dot = suffix[0] ? "." : "";
    if (map->layer < 0)
        snprintf(out, NAME_BYTES, "%s%s%s", map->stem, dot, suffix);
    else
        snprintf(out, NAME_BYTES, "blk.%d.%s%s%s", map->layer, map->stem, dot, suffix);
    return out;
}

static const struct bl_tensor_info *find(const struct bl_model *m, const struct map *map,
                                         const char *suffix, uint32_t *index)
{
    char name[NAME_BYTES];
    return bl_gguf_find_tensor(m->gguf, tensor_name(name, map, suffix), index);
}

static enum bl_status missing(const struct bl_model *m, const struct map *map, const char *suffix)
{
    char name[NAME_BYTES];
    return bl_model_fail(m, BL_EFORMAT, "tensor '%s' is missing", tensor_name(name, map, suffix));
}

static const char *shape_text(char out[96], const uint64_t ne[4])
{
    unsigned n = 4;
    int at = 0;
    while (n > 1 && ne[n - 1] == 1)
        n--;
    for (unsigned i = 0; i < n; i++)
        at += snprintf(out + at, 96 - (size_t)at, "%s%" PRIu64, i ? ", " : "{", ne[i]);
    snprintf(out + at, 96 - (size_t)at, "}");
    return out;
}

/* What a tensor may be made of. */
enum content { FLOATS, WEIGHTS, IDS };

/* ---- made up where there is no file ---- */

static bool is_listed(const struct bl_outline *o, const char *name)
{
    for (uint32_t i = 0; o && i < o->n_also; i++)
        if (!strcmp(o->also[i], name))
            return true;
    return false;
}

/* Adds what is asked for to an outline: always when it is required, otherwise when it is listed.
 * ne: 0 counts as 1 */
static enum bl_status make_up(const struct bl_model *m, const struct map *map, const char *suffix,
                              const uint32_t ne[3], enum content content, bool required)
{
    static const enum bl_dtype type[] = {[FLOATS] = BL_F32, [WEIGHTS] = BL_F16, [IDS] = BL_I32};
    const struct map bare = {.stem = map->stem, .layer = -1};
    const uint64_t dims[] = {ne[0], ne[1] ? ne[1] : 1, ne[2] ? ne[2] : 1};
    char name[NAME_BYTES];
    if (!m->outline || find(m, map, suffix, NULL) ||
        (!required && !is_listed(m->outline, tensor_name(name, &bare, suffix))))
        return BL_OK;
    return bl_gguf_add_tensor(m->outline->gguf, tensor_name(name, map, suffix), type[content],
                              ne[2]   ? 3
                              : ne[1] ? 2
                                      : 1,
                              dims);
}

static enum bl_status make_up_fused(const struct bl_model *m, const struct map *map)
{
    const uint32_t ne[3] = {map->n_in, map->n_out, map->n_experts};
    return make_up(m, map, "weight", ne, WEIGHTS, false);
}

/* ne: 0 counts as 1 */
static enum bl_status check_shape(const struct bl_model *m, const struct bl_tensor_info *t,
                                  const uint32_t ne[3])
{
    char found[96], wanted[96];
    uint64_t want[4] = {ne[0], ne[1] ? ne[1] : 1, ne[2] ? ne[2] : 1, 1};
    if (!memcmp(t->ne, want, sizeof want))
        return BL_OK;
    return bl_model_fail(m, BL_EFORMAT, "tensor '%s' is %s; must be %s", t->name,
                         shape_text(found, t->ne), shape_text(wanted, want));
}

static enum bl_status check_type(const struct bl_model *m, const struct bl_tensor_info *t,
                                 enum content content)
{
    if (content == FLOATS && t->type != BL_F32)
        return bl_model_fail(m, BL_EUNSUPPORTED,
                             "tensor '%s' is %s; norms, biases, scales, rope factors and short"
                             " convolutions must be f32",
                             t->name, t->type_name);
    if (content == WEIGHTS && bl_dtypes[t->type].act == BL_ACT_NONE)
        return bl_model_fail(m, BL_EUNSUPPORTED, "tensor '%s' is %s, which is not a type of weight",
                             t->name, t->type_name);
    if (content == IDS && t->type != BL_I32)
        return bl_model_fail(m, BL_EUNSUPPORTED, "tensor '%s' is %s; expert ids must be i32",
                             t->name, t->type_name);
    return BL_OK;
}

static enum content content_of(const struct map *map, unsigned flags)
{
    return flags & BL_WANT_EXPERT_IDS             ? IDS
           : !map->n_out || (flags & BL_WANT_F32) ? FLOATS
                                                  : WEIGHTS;
}

/* ---- weights ---- */

/* One entry per (tensor, rows, part): what plays two roles in a part is there once; in two parts it
 * may be needed on two devices. */
static enum bl_status add_weight(struct bl_model *m, const struct bl_weight *w, int32_t *index)
{
    for (uint32_t i = 0; i < m->n_weights; i++) {
        const struct bl_weight *o = &m->weight[i];
        if (o->tensor == w->tensor && o->part == w->part && o->row0 == w->row0 &&
            !memcmp(o->ne, w->ne, sizeof w->ne)) {
            *index = (int32_t)i;
            return BL_OK;
        }
    }
    if (m->n_weights == m->cap_weights) {
        uint32_t cap = m->cap_weights ? 2 * m->cap_weights : 128;
        struct bl_weight *weight = realloc(m->weight, cap * sizeof *weight);
        if (!weight)
            return bl_model_fail(m, BL_ENOMEM, "out of memory for %u weights", cap);
        m->weight = weight;
        m->cap_weights = cap;
    }
    m->weight[m->n_weights] = *w;
    *index = (int32_t)m->n_weights++;
    return BL_OK;
}

/* Vectors that go with a map: one element per output row of the map, or one in all. */
static enum bl_status claim_vector(struct bl_model *m, const struct map *map, const char *suffix,
                                   enum bl_part part, const uint32_t ne[3], struct rows r,
                                   int32_t *index)
{
    uint32_t tensor;
    BL_TRY(make_up(m, map, suffix, ne, FLOATS, false));
    const struct bl_tensor_info *t = find(m, map, suffix, &tensor);
    if (!t)
        return BL_OK;
    BL_TRY(check_shape(m, t, ne));
    BL_TRY(check_type(m, t, FLOATS));
    return add_weight(m,
                      &(struct bl_weight){.tensor = tensor,
                                          .ne = {r.n, ne[1] ? ne[1] : 1, 1},
                                          .row0 = r.first,
                                          .expert_elems = ne[1] ? ne[0] : 0,
                                          .type = BL_F32,
                                          .part = (uint8_t)part,
                                          .layer = (int16_t)map->layer},
                      index);
}

static enum bl_status claim_companions(struct bl_model *m, const struct map *map, struct rows r,
                                       enum bl_part part, unsigned flags, struct bl_linear *out)
{
    uint32_t bias[3] = {map->n_out, map->n_experts, 0};
    uint32_t scale[3] = {map->n_experts ? map->n_experts : 1, 0, 0};
    BL_TRY(make_up(m, map, "bias", bias, FLOATS, flags & BL_WANT_BIAS));
    BL_TRY(claim_vector(m, map, "bias", part, bias, r, &out->bias));
    if (out->bias < 0 && (flags & BL_WANT_BIAS))
        return missing(m, map, "bias");
    return claim_vector(m, map, "scale", part, scale, (struct rows){0, scale[0]}, &out->scale);
}

static enum bl_status claim_weight(struct bl_model *m, const struct map *map, struct rows r,
                                   enum bl_part part, unsigned flags, int32_t *index)
{
    const char *suffix = map->suffix ? map->suffix : "weight";
    uint32_t tensor, ne[3] = {map->n_in, map->n_out, map->n_experts};
    BL_TRY(make_up(m, map, suffix, ne, content_of(map, flags), !(flags & BL_WANT_OPTIONAL)));
    const struct bl_tensor_info *t = find(m, map, suffix, &tensor);
    if (!t)
        return flags & BL_WANT_OPTIONAL ? BL_OK : missing(m, map, suffix);
    BL_TRY(check_shape(m, t, ne));
    BL_TRY(check_type(m, t, content_of(map, flags)));
    return add_weight(m,
                      &(struct bl_weight){.tensor = tensor,
                                          .ne = {ne[0], r.n, ne[2] ? ne[2] : 1},
                                          .row0 = r.first,
                                          .tensor_rows = map->n_out,
                                          .below = t->type == BL_I32 ? m->hp.n_expert : 0,
                                          .type = (uint8_t)t->type,
                                          .part = (uint8_t)part,
                                          .layer = (int16_t)map->layer},
                      index);
}

/* Rows of a map, with the same rows of its bias and its scale. */
static enum bl_status claim(struct bl_model *m, const struct map *map, struct rows r,
                            enum bl_part part, unsigned flags, struct bl_linear *out)
{
    BL_TRY(claim_weight(m, map, r, part, flags, &out->w));
    return out->w < 0 ? BL_OK : claim_companions(m, map, r, part, flags, out);
}

uint64_t bl_weight_offset(const struct bl_weight *w)
{
    return w->row0 * bl_dtype_row_bytes(w->type, w->tensor_rows ? w->ne[0] : 1);
}

uint32_t bl_weight_n_experts(const struct bl_weight *w)
{
    if (w->part != BL_PART_EXPERTS)
        return 0;
    return w->tensor_rows ? w->ne[2] : w->expert_elems ? w->ne[1] : w->ne[0];
}

uint64_t bl_weight_expert_stride(const struct bl_weight *w)
{
    if (w->tensor_rows)
        return w->tensor_rows * bl_dtype_row_bytes(w->type, w->ne[0]);
    return bl_dtype_row_bytes(w->type, w->expert_elems ? w->expert_elems : 1);
}

/* ---- what families ask for ---- */

/* The role's own name, unless the file has it under another. */
static void name_map(const struct bl_model *m, enum bl_role role, struct map *map)
{
    for (unsigned i = 0; i < BL_COUNT(aliases); i++) {
        map->stem = aliases[i].stem;
        map->suffix = aliases[i].suffix;
        if (aliases[i].role == role && find(m, map, map->suffix ? map->suffix : "weight", NULL))
            return;
    }
    map->stem = roles[role].stem;
    map->suffix = role_suffix[role];
}

enum bl_status bl_model_want(struct bl_model *m, enum bl_role role, int layer, uint32_t n_in,
                             uint32_t n_out, uint32_t n_experts, unsigned flags)
{
    struct map map = {NULL, layer, n_in, n_out, n_experts, NULL};
    name_map(m, role, &map);
    struct bl_linear *out = slot(m, role, layer);
    struct rows all = {0, n_out ? n_out : 1};
    if (!n_out) /* a vector */
        return claim_weight(m, &map, all, roles[role].part, flags, &out->w);
    return claim(m, &map, all, roles[role].part, flags, out);
}

bool bl_model_has(const struct bl_model *m, int layer, const char *name)
{
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    return is_listed(m->outline, name) || bl_gguf_find_tensor(m->gguf, full, NULL);
}

enum bl_status bl_model_want_piece(struct bl_model *m, enum bl_role role, int layer,
                                   const struct bl_piece *p)
{
    const struct map map = {.stem = p->stem, .layer = layer};
    const uint32_t whole[3] = {p->n_in, p->n_rows, 0}, one[3] = {1, 0, 0};
    struct bl_linear *out = slot(m, role, layer);
    enum bl_part part = roles[role].part;
    uint32_t tensor;
    BL_TRY(make_up(m, &map, "weight", whole, WEIGHTS, true));
    const struct bl_tensor_info *t = find(m, &map, "weight", &tensor);
    if (!t)
        return missing(m, &map, "weight");
    BL_TRY(check_shape(m, t, whole));
    BL_TRY(check_type(m, t, WEIGHTS));
    BL_TRY(add_weight(m,
                      &(struct bl_weight){.tensor = tensor,
                                          .ne = {p->n_in, p->n, p->n_blocks},
                                          .row0 = p->first,
                                          .tensor_rows = p->n_rows / p->n_blocks,
                                          .type = (uint8_t)t->type,
                                          .part = (uint8_t)part,
                                          .layer = (int16_t)layer},
                      &out->w));
    return claim_vector(m, &map, "scale", part, one, (struct rows){0, 1}, &out->scale);
}

enum bl_status bl_model_want_norm(struct bl_model *m, enum bl_role role, const char *stem,
                                  int layer, uint32_t n)
{
    const struct map map = {.stem = stem, .layer = layer, .n_in = n};
    return claim_weight(m, &map, (struct rows){0, 1}, roles[role].part, 0,
                        &slot(m, role, layer)->w);
}

/* Tied: the output matrix is the embedding, on the head's device as well, with a bias or scale of
 * its own if the file has them. */
static enum bl_status tie_output(struct bl_model *m)
{
    struct bl_linear *out = &m->role[BL_W_OUTPUT];
    const struct map map = {roles[BL_W_OUTPUT].stem, -1, m->hp.n_embd, m->hp.n_vocab, 0, NULL};
    struct bl_weight w = m->weight[m->role[BL_W_TOKEN_EMBD].w];

    m->tied_output = true;
    w.part = BL_PART_HEAD;
    BL_TRY(add_weight(m, &w, &out->w));
    return claim_companions(m, &map, (struct rows){0, m->hp.n_vocab}, BL_PART_HEAD, 0, out);
}

enum bl_status bl_model_want_shared(struct bl_model *m)
{
    uint32_t embd = m->hp.n_embd, vocab = m->hp.n_vocab;
    BL_TRY(bl_model_want(m, BL_W_TOKEN_EMBD, -1, embd, vocab, 0, 0));
    BL_TRY(bl_model_want(m, BL_W_OUTPUT_NORM, -1, embd, 0, 0, 0));
    BL_TRY(bl_model_want(m, BL_W_OUTPUT, -1, embd, vocab, 0, BL_WANT_OPTIONAL));
    return m->role[BL_W_OUTPUT].w < 0 ? tie_output(m) : BL_OK;
}

enum bl_status bl_model_want_rope_factors(struct bl_model *m)
{
    static const enum bl_role role[] = {BL_W_ROPE_FREQS, BL_W_ROPE_LONG, BL_W_ROPE_SHORT};
    for (unsigned i = 0; i < BL_COUNT(role); i++)
        BL_TRY(bl_model_want(m, role[i], -1, m->hp.rope_dims / 2, 0, 0, BL_WANT_OPTIONAL));
    if ((m->role[BL_W_ROPE_LONG].w < 0) == (m->role[BL_W_ROPE_SHORT].w < 0))
        return BL_OK;
    enum bl_role absent = m->role[BL_W_ROPE_LONG].w < 0 ? BL_W_ROPE_LONG : BL_W_ROPE_SHORT;
    return missing(m, &(struct map){.stem = roles[absent].stem, .layer = -1}, "weight");
}

enum bl_status bl_model_want_qkv(struct bl_model *m, int layer, unsigned flags)
{
    const struct bl_layer *l = &m->layer[layer];
    uint32_t embd = m->hp.n_embd, at = 0;
    const uint32_t n[] = {l->n_head * m->hp.dk * (m->hp.attn_gated ? 2 : 1),
                          l->n_head_kv * m->hp.dk, l->n_head_kv * m->hp.dv};
    const struct map fused = {"attn_qkv", layer, embd, n[0] + n[1] + n[2], 0, NULL};
    BL_TRY(make_up_fused(m, &fused));
    bool split = !find(m, &fused, "weight", NULL);
    for (unsigned i = 0; i < 3; i++) {
        enum bl_role role = (enum bl_role)(BL_W_ATTN_Q + i);
        if (split)
            BL_TRY(bl_model_want(m, role, layer, embd, n[i], 0, flags));
        else
            BL_TRY(claim(m, &fused, (struct rows){at, n[i]}, BL_PART_ATTN, flags,
                         slot(m, role, layer)));
        at += n[i];
    }
    return BL_OK;
}

enum bl_status bl_model_want_attention(struct bl_model *m, int layer, unsigned flags)
{
    uint32_t embd = m->hp.n_embd;
    BL_TRY(bl_model_want(m, BL_W_ATTN_NORM, layer, embd, 0, 0, 0));
    BL_TRY(bl_model_want_qkv(m, layer, flags));
    return bl_model_want(m, BL_W_ATTN_OUT, layer, m->layer[layer].n_head * m->hp.dv, embd, 0, 0);
}

/* Gate and up in one map of 2 n rows, gate first. */
static enum bl_status claim_gate_up(struct bl_model *m, const struct map *fused, enum bl_part part,
                                    unsigned flags, enum bl_role gate, enum bl_role up)
{
    uint32_t n = fused->n_out / 2;
    BL_TRY(claim(m, fused, (struct rows){0, n}, part, flags, slot(m, gate, fused->layer)));
    return claim(m, fused, (struct rows){n, n}, part, flags, slot(m, up, fused->layer));
}

static enum bl_status need_width(const struct bl_model *m, const char *suffix, int layer,
                                 uint32_t n_ff)
{
    return n_ff
               ? BL_OK
               : bl_model_fail(m, BL_EFORMAT, "%s.%s is missing or 0 for layer %d; must be above 0",
                               m->family->arch, suffix, layer);
}

enum bl_status bl_model_want_ffn(struct bl_model *m, int layer, uint32_t n_ff)
{
    uint32_t embd = m->hp.n_embd;
    const struct map gate = {roles[BL_W_FFN_GATE].stem, layer, embd, n_ff, 0, NULL};
    const struct map fused = {roles[BL_W_FFN_UP].stem, layer, embd, 2 * n_ff, 0, NULL};
    BL_TRY(need_width(m, "feed_forward_length", layer, n_ff));
    BL_TRY(make_up_fused(m, &fused));
    const struct bl_tensor_info *up = find(m, &fused, "weight", NULL);
    if (!find(m, &gate, "weight", NULL) && up && up->ne[1] != n_ff)
        BL_TRY(claim_gate_up(m, &fused, BL_PART_FFN, 0, BL_W_FFN_GATE, BL_W_FFN_UP));
    else {
        BL_TRY(bl_model_want(m, BL_W_FFN_GATE, layer, embd, n_ff, 0, 0));
        BL_TRY(bl_model_want(m, BL_W_FFN_UP, layer, embd, n_ff, 0, 0));
    }
    return bl_model_want(m, BL_W_FFN_DOWN, layer, n_ff, embd, 0, 0);
}

enum bl_status bl_model_want_experts(struct bl_model *m, int layer, uint32_t n_ff, unsigned flags)
{
    uint32_t embd = m->hp.n_embd, n = m->hp.n_expert;
    const struct map fused = {"ffn_gate_up_exps", layer, embd, 2 * n_ff, n, NULL};
    BL_TRY(need_width(m, "expert_feed_forward_length", layer, n_ff));
    BL_TRY(bl_model_want(m, BL_W_ROUTER, layer, embd, n, 0, flags));
    BL_TRY(make_up_fused(m, &fused));
    if (find(m, &fused, "weight", NULL))
        BL_TRY(claim_gate_up(m, &fused, BL_PART_EXPERTS, flags, BL_W_EXP_GATE, BL_W_EXP_UP));
    else {
        BL_TRY(bl_model_want(m, BL_W_EXP_GATE, layer, embd, n_ff, n, flags));
        BL_TRY(bl_model_want(m, BL_W_EXP_UP, layer, embd, n_ff, n, flags));
    }
    return bl_model_want(m, BL_W_EXP_DOWN, layer, n_ff, embd, n, flags);
}

enum bl_status bl_model_want_shared_experts(struct bl_model *m, int layer, uint32_t n_ff)
{
    uint32_t embd = m->hp.n_embd;
    BL_TRY(need_width(m, "expert_shared_feed_forward_length", layer, n_ff));
    BL_TRY(bl_model_want(m, BL_W_SHEXP_GATE, layer, embd, n_ff, 0, 0));
    BL_TRY(bl_model_want(m, BL_W_SHEXP_UP, layer, embd, n_ff, 0, 0));
    return bl_model_want(m, BL_W_SHEXP_DOWN, layer, n_ff, embd, 0, 0);
}

enum bl_status bl_model_want_moe_or_ffn(struct bl_model *m, int layer, unsigned selection_flags)
{
    const struct bl_hparams *hp = &m->hp;
    if (!m->layer[layer].moe)
        return bl_model_want_ffn(m, layer, m->layer[layer].n_ff);
    BL_TRY(bl_model_want_experts(m, layer, hp->n_ff_expert, 0));
    BL_TRY(bl_model_want(m, BL_W_ROUTER_BIAS, layer, hp->n_expert, 0, 0, selection_flags));
    return hp->n_ff_shared ? bl_model_want_shared_experts(m, layer, hp->n_ff_shared) : BL_OK;
}

/* ---- what nobody asked for ---- */

/* Tensors that are known to mean nothing here: blocks for drafting, and scales of activations. */
static bool is_expected(const struct bl_model *m, const char *name)
{
    static const char suffix[] = ".input_scale";
    size_t n = strlen(name), tail = sizeof suffix - 1;
    if (n > tail && !strcmp(name + n - tail, suffix))
        return true;
    if (!strncmp(name, "mtp.", 4))
        return true;
    if (strncmp(name, "blk.", 4))
        return false;
    unsigned long layer = strtoul(name + 4, NULL, 10);
    return layer >= m->hp.n_layer && layer < m->hp.n_layer + m->hp.n_layer_nextn;
}

void bl_model_warn_unused(const struct bl_model *m)
{
    char shown[BL_SHOWN_BYTES];
    uint32_t n = bl_gguf_n_tensors(m->gguf), unused = 0, example = 0;
    bool *used = bl_calloc(n, sizeof *used);
    if (!used)
        return; /* a warning is not worth a failure */
    for (uint32_t i = 0; i < m->n_weights; i++)
        used[m->weight[i].tensor] = true;
    for (uint32_t i = 0; i < n; i++)
        if (!used[i] && !is_expected(m, bl_gguf_tensor(m->gguf, i)->name) && !unused++)
            example = i;
    if (unused)
        bl_warn("%s: %u of %u tensors are not used by architecture %s, for example '%s'",
                bl_path_tail(bl_gguf_path(m->gguf)), unused, n, m->family->arch,
                bl_gguf_show(shown, bl_gguf_tensor(m->gguf, example)->name));
    free(used);
}
