/* SPDX-License-Identifier: MIT */
/* Opens a model: the keys that all families share, then the family's own, its tensors and its
 * state. Metadata is untrusted; every number is held against limits here before anything is
 * computed from it. */
#include "model.h"

#include "log.h"
#include "mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Above any model known; products of two of them fit 32 bits, of any three 64. */
enum {
    MAX_LAYERS = 1024,
    MAX_HEADS = 4096,
    MAX_HEAD_ELEMS = 4096,
    MAX_EXPERTS = 1024,
    MAX_EMBD = 1 << 20,
    MAX_FF = 1 << 24,
    MAX_VOCAB = 1 << 24,
    DEFAULT_CONTEXT = 4096,
    KEY_BYTES = 128
};

/* ---- keys ---- */

enum bl_status bl_model_fail(const struct bl_model *m, enum bl_status code, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return bl_fail(code, "%s: %s", bl_path_tail(bl_gguf_path(m->gguf)), text);
}

static const char *full_key(const struct bl_model *m, const char *suffix, char out[KEY_BYTES])
{
    snprintf(out, KEY_BYTES, "%s.%s", m->family->arch, suffix);
    return out;
}

enum bl_status bl_hp_u32(const struct bl_model *m, const char *suffix, bool required,
                         uint32_t least, uint32_t most, uint32_t *out)
{
    char key[KEY_BYTES];
    uint32_t v = 0;
    BL_TRY(bl_gguf_u32(m->gguf, full_key(m, suffix, key), required, &v));
    if (!bl_gguf_find(m->gguf, key))
        return BL_OK;
    if (v < least || v > most)
        return bl_model_fail(m, BL_EFORMAT, "%s is %u; must be %u to %u", key, v, least, most);
    *out = v;
    return BL_OK;
}

enum bl_status bl_hp_f32(const struct bl_model *m, const char *suffix, bool required, float least,
                         float most, float *out)
{
    char key[KEY_BYTES];
    float v = 0;
    BL_TRY(bl_gguf_f32(m->gguf, full_key(m, suffix, key), required, &v));
    if (!bl_gguf_find(m->gguf, key))
        return BL_OK;
    if (!(v >= least && v <= most)) /* NaN too */
        return bl_model_fail(m, BL_EFORMAT, "%s is %g; must be %g to %g", key, (double)v,
                             (double)least, (double)most);
    *out = v;
    return BL_OK;
}

enum bl_status bl_hp_bool(const struct bl_model *m, const char *suffix, bool required, bool *out)
{
    char key[KEY_BYTES];
    return bl_gguf_bool(m->gguf, full_key(m, suffix, key), required, out);
}

enum bl_status bl_hp_u32_per_layer(const struct bl_model *m, const char *suffix, bool required,
                                   uint32_t least, uint32_t most, uint32_t *out, bool *found)
{
    char key[KEY_BYTES], where[32] = "";
    uint32_t v[MAX_LAYERS], n = m->hp.n_layer;
    bool present;
    full_key(m, suffix, key);
    BL_TRY(bl_gguf_u32_per_layer(m->gguf, key, required, n, v, &present));
    if (found)
        *found = present;
    if (!present)
        return BL_OK;
    for (uint32_t i = 0; i < n; i++) {
        if (v[i] >= least && v[i] <= most)
            continue;
        if (bl_gguf_find(m->gguf, key)->type == BL_VAL_ARRAY)
            snprintf(where, sizeof where, " of layer %u", i);
        return bl_model_fail(m, BL_EFORMAT, "%s%s is %u; must be %u to %u", key, where, v[i], least,
                             most);
    }
    memcpy(out, v, n * sizeof *out);
    return BL_OK;
}

enum bl_status bl_hp_f32_per_layer(const struct bl_model *m, const char *suffix, bool required,
                                   float least, float most, float *out)
{
    char key[KEY_BYTES];
    float v = 0;
    const struct bl_kv *kv = bl_gguf_find(m->gguf, full_key(m, suffix, key));
    if (!kv || kv->type != BL_VAL_ARRAY) {
        BL_TRY(bl_hp_f32(m, suffix, required, least, most, &v));
        for (uint32_t i = 0; kv && i < m->hp.n_layer; i++)
            out[i] = v;
        return BL_OK;
    }
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        BL_TRY(bl_gguf_f32_array(m->gguf, key, i, &v));
        if (!(v >= least && v <= most))
            return bl_model_fail(m, BL_EFORMAT, "%s of layer %u is %g; must be %g to %g", key, i,
                                 (double)v, (double)least, (double)most);
        out[i] = v;
    }
    return BL_OK;
}

/* ---- shared keys ---- */

static enum bl_status read_sizes(struct bl_model *m)
{
    struct bl_hparams *hp = &m->hp;
    uint32_t blocks = 0;
    BL_TRY(bl_hp_u32(m, "block_count", true, 1, MAX_LAYERS, &blocks));
    BL_TRY(bl_hp_u32(m, "nextn_predict_layers", false, 0, blocks - 1, &hp->n_layer_nextn));
    hp->n_layer = blocks - hp->n_layer_nextn;
    BL_TRY(bl_hp_u32(m, "context_length", true, 1, BL_MAX_CONTEXT, &hp->n_ctx_train));
    BL_TRY(bl_hp_u32(m, "embedding_length", true, 1, MAX_EMBD, &hp->n_embd));
    return bl_hp_f32(m, "attention.layer_norm_rms_epsilon", true, 1e-12f, 1, &hp->eps);
}

static enum bl_status allocate_layers(struct bl_model *m)
{
    m->layer = bl_calloc(m->hp.n_layer, sizeof *m->layer);
    if (!m->layer)
        return bl_model_fail(m, BL_ENOMEM, "out of memory for %u layers", m->hp.n_layer);
    for (uint32_t i = 0; i < m->hp.n_layer; i++) {
        struct bl_layer *l = &m->layer[i];
        l->state_k = l->state_v = -1;
        for (unsigned r = 0; r < BL_N_ROLES; r++)
            l->role[r] = (struct bl_linear){-1, -1, -1};
    }
    return BL_OK;
}

static enum bl_status read_layers(struct bl_model *m)
{
    uint32_t v[MAX_LAYERS], n = m->hp.n_layer;
    BL_TRY(bl_hp_u32_per_layer(m, "attention.head_count", true, 1, MAX_HEADS, v, NULL));
    for (uint32_t i = 0; i < n; i++)
        m->layer[i].n_head = v[i];
    BL_TRY(bl_hp_u32_per_layer(m, "attention.head_count_kv", false, 1, MAX_HEADS, v, NULL));
    for (uint32_t i = 0; i < n; i++) {
        m->layer[i].n_head_kv = v[i]; /* as many as queries when the key is absent */
        if (m->layer[i].n_head % v[i])
            return bl_model_fail(m, BL_EFORMAT,
                                 "%s.attention.head_count_kv of layer %u is %u; must divide "
                                 "attention.head_count, %u",
                                 m->family->arch, i, v[i], m->layer[i].n_head);
    }
    memset(v, 0, sizeof v);
    BL_TRY(bl_hp_u32_per_layer(m, "feed_forward_length", false, 0, MAX_FF, v, NULL));
    for (uint32_t i = 0; i < n; i++)
        m->layer[i].n_ff = v[i];
    return BL_OK;
}

static enum bl_status read_head_size(struct bl_model *m, const char *suffix, uint32_t *out)
{
    uint32_t embd = m->hp.n_embd, heads = m->layer[0].n_head;
    *out = 0;
    BL_TRY(bl_hp_u32(m, suffix, false, 1, MAX_HEAD_ELEMS, out));
    if (*out)
        return BL_OK;
    *out = embd / heads;
    if (embd % heads || *out > MAX_HEAD_ELEMS)
        return bl_model_fail(m, BL_EFORMAT,
                             "%s.%s is missing, and embedding_length / attention.head_count, %u / "
                             "%u, gives no head size of 1 to %d",
                             m->family->arch, suffix, embd, heads, MAX_HEAD_ELEMS);
    return BL_OK;
}

static enum bl_status read_head_sizes(struct bl_model *m)
{
    struct bl_hparams *hp = &m->hp;
    BL_TRY(read_head_size(m, "attention.key_length", &hp->dk));
    BL_TRY(read_head_size(m, "attention.value_length", &hp->dv));
    hp->attn_scale = 1 / sqrtf((float)hp->dk);
    hp->rope_dims = hp->dk;
    BL_TRY(bl_hp_u32(m, "rope.dimension_count", false, 0, UINT32_MAX, &hp->rope_dims));
    if (hp->rope_dims < 2 || hp->rope_dims % 2 || hp->rope_dims > hp->dk)
        return bl_model_fail(m, BL_EFORMAT,
                             "%s.rope.dimension_count is %u; must be even, 2 to the key length, %u",
                             m->family->arch, hp->rope_dims, hp->dk);
    return BL_OK;
}

static enum bl_status read_vocab_size(struct bl_model *m)
{
    const struct bl_kv *tokens = bl_gguf_find(m->gguf, "tokenizer.ggml.tokens");
    struct bl_hparams *hp = &m->hp;
    if (tokens && (tokens->type != BL_VAL_ARRAY || tokens->item != BL_VAL_STRING))
        return bl_model_fail(m, BL_EFORMAT, "tokenizer.ggml.tokens is not an array of strings");
    if (tokens && (!tokens->n || tokens->n > MAX_VOCAB))
        return bl_model_fail(m, BL_EFORMAT,
                             "tokenizer.ggml.tokens has %" PRIu64 " entries; must be 1 to %d",
                             tokens->n, MAX_VOCAB);
    hp->n_vocab = tokens ? (uint32_t)tokens->n : 0;
    BL_TRY(bl_hp_u32(m, "vocab_size", !tokens, 1, MAX_VOCAB, &hp->n_vocab));
    if (tokens && hp->n_vocab != tokens->n)
        return bl_model_fail(m, BL_EFORMAT,
                             "%s.vocab_size is %u; must be the length of tokenizer.ggml.tokens, "
                             "%" PRIu64,
                             m->family->arch, hp->n_vocab, tokens->n);
    return BL_OK;
}

static enum bl_status read_experts(struct bl_model *m)
{
    struct bl_hparams *hp = &m->hp;
    BL_TRY(bl_hp_u32(m, "expert_count", false, 0, MAX_EXPERTS, &hp->n_expert));
    if (!hp->n_expert) /* what a family makes of that is its own business */
        return BL_OK;
    BL_TRY(bl_hp_u32(m, "expert_used_count", true, 1, hp->n_expert, &hp->n_expert_used));
    return bl_hp_u32(m, "expert_feed_forward_length", false, 1, MAX_FF, &hp->n_ff_expert);
}

/* ---- keys that several families use ---- */

static enum bl_status need_experts(const struct bl_model *m)
{
    return m->hp.n_expert ? BL_OK
                          : bl_model_fail(m, BL_EFORMAT, "%s.expert_count is 0; must be 1 to %d",
                                          m->family->arch, MAX_EXPERTS);
}

enum bl_status bl_hp_softmax_experts(struct bl_model *m)
{
    struct bl_hparams *hp = &m->hp;
    BL_TRY(need_experts(m));
    hp->route = (struct bl_route_attr){
        .n_used = hp->n_expert_used, .gating = BL_GATE_SOFTMAX, .normalise = 1};
    for (uint32_t i = 0; i < hp->n_layer; i++)
        m->layer[i].moe = true;
    return BL_OK;
}

enum bl_status bl_hp_softmax_shared_experts(struct bl_model *m)
{
    struct bl_hparams *hp = &m->hp;
    BL_TRY(bl_hp_softmax_experts(m));
    hp->n_ff_shared = hp->n_ff_expert;
    return bl_hp_u32(m, "expert_shared_feed_forward_length", false, 1, MAX_FF, &hp->n_ff_shared);
}

/* Fewer groups used than there are, otherwise grouping means nothing; whole groups of experts. */
static enum bl_status read_groups(struct bl_model *m)
{
    struct bl_route_attr *r = &m->hp.route;
    BL_TRY(bl_hp_u32(m, "expert_group_count", false, 0, m->hp.n_expert, &r->n_group));
    if (r->n_group <= 1)
        return BL_OK;
    BL_TRY(bl_hp_u32(m, "expert_group_used_count", true, 1, r->n_group, &r->n_group_used));
    if (m->hp.n_expert % r->n_group == 0 &&
        r->n_group_used * (m->hp.n_expert / r->n_group) >= r->n_used)
        return BL_OK;
    return bl_model_fail(m, BL_EFORMAT,
                         "%s.expert_group_count is %u, expert_group_used_count %u; groups must "
                         "divide the %u experts, and those used must hold %u",
                         m->family->arch, r->n_group, r->n_group_used, m->hp.n_expert, r->n_used);
}

enum bl_status bl_hp_routed_experts(struct bl_model *m, enum bl_gating gating)
{
    struct bl_hparams *hp = &m->hp;
    struct bl_route_attr *r = &hp->route;
    uint32_t dense = 0, step = 1, func = 0, n_shared = 0;
    bool normalise = false;
    BL_TRY(need_experts(m));
    BL_TRY(bl_hp_u32(m, "expert_gating_func", false, 0, BL_GATE_SQRT_SOFTPLUS, &func));
    BL_TRY(bl_hp_bool(m, "expert_weights_norm", false, &normalise));
    *r = (struct bl_route_attr){.n_used = hp->n_expert_used,
                                .gating = func ? func : (uint32_t)gating,
                                .normalise = normalise};
    r->group_by_max = r->gating == BL_GATE_SOFTMAX;
    BL_TRY(bl_hp_f32(m, "expert_weights_scale", false, 0, 1e6f, &r->scale));
    BL_TRY(read_groups(m));
    BL_TRY(bl_hp_u32(m, "leading_dense_block_count", false, 0, hp->n_layer, &dense));
    BL_TRY(bl_hp_u32(m, "interleave_moe_layer_step", false, 1, MAX_LAYERS, &step));
    for (uint32_t i = dense; i < hp->n_layer; i++)
        m->layer[i].moe = (i + 1) % step == 0;
    BL_TRY(bl_hp_u32(m, "expert_shared_count", false, 0, MAX_EXPERTS, &n_shared));
    if (n_shared > MAX_FF / (hp->n_ff_expert ? hp->n_ff_expert : 1))
        return bl_model_fail(m, BL_EFORMAT, "%s.expert_shared_count is %u, of %u elements each",
                             m->family->arch, n_shared, hp->n_ff_expert);
    hp->n_ff_shared = n_shared * hp->n_ff_expert;
    return bl_hp_u32(m, "expert_shared_feed_forward_length", false, 0, MAX_FF, &hp->n_ff_shared);
}

enum bl_status bl_hp_sliding_window(struct bl_model *m, uint32_t default_period)
{
    static const char *const suffix = "attention.sliding_window_pattern";
    char key[KEY_BYTES];
    uint32_t window = 0, period = default_period, slides[MAX_LAYERS] = {0};
    BL_TRY(bl_hp_u32(m, "attention.sliding_window", false, 0, BL_MAX_CONTEXT, &window));
    const struct bl_kv *kv = bl_gguf_find(m->gguf, full_key(m, suffix, key));
    if (kv && kv->type == BL_VAL_ARRAY)
        BL_TRY(bl_hp_u32_per_layer(m, suffix, true, 0, 1, slides, NULL));
    else {
        BL_TRY(bl_hp_u32(m, suffix, false, 1, MAX_LAYERS, &period));
        for (uint32_t i = 0; i < m->hp.n_layer; i++)
            slides[i] = i % period < period - 1;
    }
    for (uint32_t i = 0; i < m->hp.n_layer; i++)
        m->layer[i].window = slides[i] ? window : 0;
    return BL_OK;
}

/* ---- state ---- */

enum bl_status bl_model_keep(struct bl_model *m, const struct bl_state_desc *d, uint32_t run,
                             int32_t *index)
{
    const struct bl_dtype_info *type = &bl_dtypes[d->type];
    if (!bl_dtype_can_cache(d->type))
        return bl_fail(BL_EINVAL, "cache type %s: f32, f16, bf16, q8_0 or q4_0 is needed",
                       type->name);
    if (run % type->block_elems || d->row_elems % type->block_elems)
        return bl_fail(BL_EINVAL,
                       "cache type %s needs whole %u elements; rows of %s have %u, their parts %u;"
                       " use f16",
                       type->name, type->block_elems, d->name, d->row_elems, run);
    if (m->n_states == m->cap_states) {
        uint32_t cap = m->cap_states ? 2 * m->cap_states : 64;
        struct bl_state_desc *state = realloc(m->state, cap * sizeof *state);
        if (!state)
            return bl_model_fail(m, BL_ENOMEM, "out of memory for %u states", cap);
        m->state = state;
        m->cap_states = cap;
    }
    m->state[m->n_states] = *d;
    *index = (int32_t)m->n_states++;
    return BL_OK;
}

static enum bl_status keep_heads(struct bl_model *m, int layer, char what, enum bl_dtype type,
                                 uint32_t head_elems, int32_t *index)
{
    const struct bl_layer *l = &m->layer[layer];
    struct bl_state_desc d = {.layer = (int16_t)layer,
                              .law = l->window ? BL_WINDOW : BL_PER_TOKEN,
                              .type = (uint8_t)type,
                              .window = l->window,
                              .row_elems = l->n_head_kv * head_elems,
                              .slack_rows = l->window ? m->opt.slack_tokens : 0};
    if (!bl_dtype_can_cache(type))
        return bl_fail(BL_EINVAL, "%c cache type %s: f32, f16, bf16, q8_0 or q4_0 is needed", what,
                       bl_dtypes[type].name);
    if (head_elems % bl_dtypes[type].block_elems)
        return bl_fail(BL_EINVAL,
                       "%c cache type %s needs heads of whole %u elements; this model's"
                       " have %u; use f16",
                       what, bl_dtypes[type].name, bl_dtypes[type].block_elems, head_elems);
    snprintf(d.name, sizeof d.name, "blk.%d.%c", layer, what);
    return bl_model_keep(m, &d, head_elems, index);
}

enum bl_status bl_model_keep_kv(struct bl_model *m, int layer)
{
    struct bl_layer *l = &m->layer[layer];
    BL_TRY(keep_heads(m, layer, 'k', m->opt.type_k, m->hp.dk, &l->state_k));
    return keep_heads(m, layer, 'v', m->opt.type_v, m->hp.dv, &l->state_v);
}

enum bl_status bl_model_keep_kv_everywhere(struct bl_model *m)
{
    for (uint32_t i = 0; i < m->hp.n_layer; i++)
        BL_TRY(bl_model_keep_kv(m, (int)i));
    return BL_OK;
}

/* A step stores up to ubatch rows before its first token looks back over the window; as many can
 * be taken back. */
uint32_t bl_state_rows(const struct bl_state_desc *d, const struct bl_shape *s)
{
    uint64_t rows = s->ctx_tokens;
    if (d->law == BL_FIXED)
        rows = 1 + (uint64_t)d->slack_rows;
    if (d->law == BL_WINDOW && d->tail)
        rows = (uint64_t)d->window - 1 + d->slack_rows;
    else if (d->law == BL_WINDOW) {
        uint32_t more = s->ubatch_tokens > d->slack_rows ? s->ubatch_tokens : d->slack_rows;
        uint64_t ring = (uint64_t)d->window + more - 1;
        rows = ring < rows ? ring : rows;
    }
    if (d->law == BL_PER_GROUP)
        rows = (rows + d->group - 1) / d->group;
    return rows < UINT32_MAX ? (uint32_t)rows : UINT32_MAX;
}

uint32_t bl_state_slack_rows(const struct bl_state_desc *d, const struct bl_shape *s)
{
    uint32_t rows = bl_state_rows(d, s), needed = rows;
    if (d->law == BL_WINDOW)
        needed = d->window;
    if (d->law == BL_FIXED)
        needed = 1;
    return rows > needed ? rows - needed : 0;
}

static uint64_t bytes_of(const struct bl_state_desc *d, const struct bl_shape *s, uint32_t rows)
{
    uint64_t bytes = bl_dtype_row_bytes(d->type, d->row_elems);
    if (!bl_size_mul(bytes, rows, &bytes) || !bl_size_mul(bytes, s->max_sequences, &bytes))
        return UINT64_MAX;
    return bytes;
}

uint64_t bl_state_bytes(const struct bl_state_desc *d, const struct bl_shape *s)
{
    return bytes_of(d, s, bl_state_rows(d, s));
}

uint64_t bl_state_slack_bytes(const struct bl_state_desc *d, const struct bl_shape *s)
{
    return bytes_of(d, s, bl_state_slack_rows(d, s));
}

/* ---- the whole ---- */

static enum bl_status refuse_arch(const struct bl_model *m, const char *arch)
{
    char list[300] = "", shown[BL_SHOWN_BYTES];
    size_t n = 0;
    for (unsigned i = 0; bl_families[i] && n < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "",
                              bl_families[i]->arch);
    return bl_model_fail(m, BL_EUNSUPPORTED, "architecture '%s' is not supported; these are: %s",
                         bl_gguf_show(shown, arch), list);
}

/* A string value as a C string, cut where it could not match anything we know. */
static enum bl_status read_word(const struct bl_model *m, const char *key, bool required,
                                char out[BL_SHOWN_BYTES])
{
    const char *s = "";
    uint64_t n = 0;
    BL_TRY(bl_gguf_str(m->gguf, key, required, &s, &n));
    if (n > BL_SHOWN_BYTES - 1)
        n = BL_SHOWN_BYTES - 1;
    memcpy(out, s, (size_t)n);
    out[n] = 0;
    return BL_OK;
}

static enum bl_status find_family(struct bl_model *m)
{
    char word[BL_SHOWN_BYTES], shown[BL_SHOWN_BYTES];
    BL_TRY(read_word(m, "general.type", false, word));
    if (word[0] && strcmp(word, "model"))
        return bl_model_fail(m, BL_EUNSUPPORTED, "general.type is '%s'; only a 'model' can be run",
                             bl_gguf_show(shown, word));
    BL_TRY(read_word(m, "general.architecture", true, word));
    for (unsigned i = 0; bl_families[i]; i++)
        if (!strcmp(bl_families[i]->arch, word)) {
            m->family = bl_families[i];
            return BL_OK;
        }
    return refuse_arch(m, word);
}

static enum bl_status read_hparams(struct bl_model *m)
{
    BL_TRY(read_sizes(m));
    BL_TRY(allocate_layers(m));
    BL_TRY(read_layers(m));
    BL_TRY(read_head_sizes(m));
    BL_TRY(read_vocab_size(m));
    BL_TRY(read_experts(m));
    BL_TRY(bl_model_read_rope(m));
    return m->family->hparams ? m->family->hparams(m) : BL_OK;
}

static enum bl_status settle_context(struct bl_model *m)
{
    uint64_t trained = m->hp.n_ctx_train;
    if (m->opt.ctx_tokens == BL_CTX_MAX)
        m->opt.ctx_tokens = trained < BL_MAX_CONTEXT ? trained : BL_MAX_CONTEXT;
    if (!m->opt.ctx_tokens)
        m->opt.ctx_tokens = trained < DEFAULT_CONTEXT ? trained : DEFAULT_CONTEXT;
    if (m->opt.ctx_tokens > BL_MAX_CONTEXT)
        return bl_fail(BL_EINVAL, "a context of %" PRIu64 " tokens; the most is %d",
                       m->opt.ctx_tokens, BL_MAX_CONTEXT);
    if (m->opt.ctx_tokens > trained)
        bl_warn("context of %" PRIu64 " tokens; the model was trained for %" PRIu64,
                m->opt.ctx_tokens, trained);
    return BL_OK;
}

/* Files made for drafting hold the nextn blocks and nothing before them. */
static enum bl_status refuse_drafts(const struct bl_model *m)
{
    char draft[64];
    snprintf(draft, sizeof draft, "blk.%u.attn_norm.weight", m->hp.n_layer);
    if (!m->hp.n_layer_nextn || bl_gguf_find_tensor(m->gguf, "blk.0.attn_norm.weight", NULL) ||
        !bl_gguf_find_tensor(m->gguf, draft, NULL))
        return BL_OK;
    return bl_model_fail(m, BL_EUNSUPPORTED,
                         "holds only block %u, for drafting, of a model of %u blocks; open the"
                         " model itself",
                         m->hp.n_layer, m->hp.n_layer + m->hp.n_layer_nextn);
}

static enum bl_status fill(struct bl_model *m)
{
    BL_TRY(find_family(m));
    BL_TRY(read_hparams(m));
    BL_TRY(settle_context(m));
    BL_TRY(refuse_drafts(m));
    BL_TRY(m->family->tensors(m));
    if (m->hp.rope_long && m->role[BL_W_ROPE_LONG].w < 0)
        return bl_model_fail(m, BL_EFORMAT,
                             "%s.rope.scaling.type is longrope; tensor 'rope_factors_long.weight'"
                             " is missing or not used by this architecture",
                             m->family->arch);
    bl_model_warn_unused(m);
    if ((m->opt.round_kv || m->opt.round_index) && !m->family->rounds)
        bl_warn("%s: %s was not trained with a rounded cache; nothing is rounded",
                bl_path_tail(bl_gguf_path(m->gguf)), m->family->arch);
    return m->family->state(m);
}

static enum bl_status open_model(struct bl_model **out, const struct bl_gguf *g,
                                 const struct bl_model_options *opt, const struct bl_outline *o)
{
    struct bl_model *m = bl_calloc(1, sizeof *m);
    if (!m)
        return bl_fail(BL_ENOMEM, "%s: out of memory", bl_path_tail(bl_gguf_path(g)));
    m->gguf = g;
    m->outline = o;
    m->opt = opt ? *opt : (struct bl_model_options){.type_k = BL_F16, .type_v = BL_F16};
    for (unsigned r = 0; r < BL_N_ROLES; r++)
        m->role[r] = (struct bl_linear){-1, -1, -1};
    enum bl_status st = fill(m);
    if (st) {
        bl_model_close(m);
        return st;
    }
    *out = m;
    return BL_OK;
}

enum bl_status bl_model_open(struct bl_model **out, const struct bl_gguf *g,
                             const struct bl_model_options *opt)
{
    return open_model(out, g, opt, NULL);
}

enum bl_status bl_model_outline(const struct bl_outline *o)
{
    struct bl_model *m = NULL;
    BL_TRY(open_model(&m, o->gguf, NULL, o));
    bl_model_close(m);
    return BL_OK;
}

void bl_model_close(struct bl_model *m)
{
    if (!m)
        return;
    free(m->layer);
    free(m->weight);
    free(m->state);
    free(m->extra);
    free(m);
}
