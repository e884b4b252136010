/* SPDX-License-Identifier: MIT */
#include "model_recipe.h"

#include <math.h>
#include <unistd.h>

const char *const rc_families[] = {"llama",    "llama-moe",    "qwen2",      "qwen3",
                                   "qwen3moe", "phi3",         "gemma3",     "qwen3next",
                                   "qwen35",   "qwen35moe",    "gpt-oss",    "glm4moe",
                                   "ernie4_5", "ernie4_5-moe", "minimax-m2", NULL};

static struct rc_key *key_at(struct rc *r, const char *name)
{
    for (unsigned i = 0; i < r->n_keys; i++)
        if (!strcmp(r->key[i].name, name))
            return &r->key[i];
    assert_true(r->n_keys < BL_COUNT(r->key));
    struct rc_key *k = &r->key[r->n_keys++];
    *k = (struct rc_key){.name = ""};
    snprintf(k->name, sizeof k->name, "%s", name);
    return k;
}

/* "x" stands for "<arch>.x" in names without a known first part. */
static const char *full(const struct rc *r, const char *name, char out[64])
{
    bool whole = !strncmp(name, "general.", 8) || !strncmp(name, "tokenizer.", 10);
    snprintf(out, 64, "%s%s%s", whole ? "" : r->arch, whole ? "" : ".", name);
    return out;
}

void rc_number(struct rc *r, const char *name, uint32_t v)
{
    char key[64];
    struct rc_key *k = key_at(r, full(r, name, key));
    k->kind = RC_NUMBER;
    k->number = v;
}

void rc_real(struct rc *r, const char *name, float v)
{
    char key[64];
    struct rc_key *k = key_at(r, full(r, name, key));
    k->kind = RC_REAL;
    k->real = v;
}

void rc_text(struct rc *r, const char *name, const char *v)
{
    char key[64];
    struct rc_key *k = key_at(r, full(r, name, key));
    k->kind = RC_TEXT;
    k->text = v;
}

void rc_list(struct rc *r, const char *name, enum rc_kind kind, uint32_t n, const uint32_t *v)
{
    char key[64];
    struct rc_key *k = key_at(r, full(r, name, key));
    k->kind = kind;
    k->number = n;
    memcpy(k->list, v, n * sizeof *v);
}

void rc_drop_key(struct rc *r, const char *name)
{
    char key[64];
    struct rc_key *k = key_at(r, full(r, name, key));
    *k = r->key[--r->n_keys];
}

struct rc_tensor *rc_find(struct rc *r, const char *name)
{
    for (unsigned i = 0; i < r->n_tensors; i++)
        if (!strcmp(r->tensor[i].name, name))
            return &r->tensor[i];
    return NULL;
}

/* b, c: 0 counts as 1 */
void rc_tensor(struct rc *r, const char *name, enum bl_dtype type, uint32_t a, uint32_t b,
               uint32_t c)
{
    struct rc_tensor *t = rc_find(r, name);
    if (!t) {
        assert_true(r->n_tensors < BL_COUNT(r->tensor));
        t = &r->tensor[r->n_tensors++];
    }
    *t = (struct rc_tensor){.type = type, .ne = {a, b ? b : 1, c ? c : 1}};
    snprintf(t->name, sizeof t->name, "%s", name);
}

void rc_drop_tensor(struct rc *r, const char *name)
{
    struct rc_tensor *t = rc_find(r, name);
    assert_non_null(t);
    *t = r->tensor[--r->n_tensors];
}

void rc_layer(struct rc *r, int layer, const char *stem, uint32_t a, uint32_t b, uint32_t c)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", layer, stem);
    rc_tensor(r, name, BL_F32, a, b, c);
}

static void base_keys(struct rc *r, const char *arch)
{
    *r = (struct rc){.arch = arch};
    rc_text(r, "general.architecture", arch);
    rc_text(r, "general.type", "model");
    rc_number(r, "context_length", 2048);
    rc_number(r, "embedding_length", RC_EMBD);
    rc_number(r, "block_count", RC_LAYERS);
    rc_number(r, "feed_forward_length", RC_FF);
    rc_number(r, "attention.head_count", RC_HEADS);
    rc_number(r, "attention.head_count_kv", RC_HEADS_KV);
    rc_real(r, "attention.layer_norm_rms_epsilon", 1e-6f);
    rc_real(r, "rope.freq_base", 1e6f);
    rc_number(r, "vocab_size", RC_VOCAB);
    key_at(r, "tokenizer.ggml.tokens")->kind = RC_TOKENS;
    key_at(r, "tokenizer.ggml.tokens")->number = RC_VOCAB;
}

static void attention_tensors(struct rc *r, int i, bool fused, bool biased, bool qk_norm)
{
    rc_layer(r, i, "attn_norm.weight", RC_EMBD, 0, 0);
    if (fused)
        rc_layer(r, i, "attn_qkv.weight", RC_EMBD, RC_Q_ROWS + 2 * RC_KV_ROWS, 0);
    else {
        rc_layer(r, i, "attn_q.weight", RC_EMBD, RC_Q_ROWS, 0);
        rc_layer(r, i, "attn_k.weight", RC_EMBD, RC_KV_ROWS, 0);
        rc_layer(r, i, "attn_v.weight", RC_EMBD, RC_KV_ROWS, 0);
    }
    if (biased) {
        rc_layer(r, i, "attn_q.bias", RC_Q_ROWS, 0, 0);
        rc_layer(r, i, "attn_k.bias", RC_KV_ROWS, 0, 0);
        rc_layer(r, i, "attn_v.bias", RC_KV_ROWS, 0, 0);
    }
    if (qk_norm) {
        rc_layer(r, i, "attn_q_norm.weight", RC_HEAD, 0, 0);
        rc_layer(r, i, "attn_k_norm.weight", RC_HEAD, 0, 0);
    }
    rc_layer(r, i, "attn_output.weight", RC_Q_ROWS, RC_EMBD, 0);
}

static void dense_tensors(struct rc *r, int i, bool fused)
{
    if (!fused)
        rc_layer(r, i, "ffn_gate.weight", RC_EMBD, RC_FF, 0);
    rc_layer(r, i, "ffn_up.weight", RC_EMBD, fused ? 2 * RC_FF : RC_FF, 0);
    rc_layer(r, i, "ffn_down.weight", RC_FF, RC_EMBD, 0);
}

static void expert_tensors(struct rc *r, int i, uint32_t n_ff)
{
    rc_layer(r, i, "ffn_gate_inp.weight", RC_EMBD, RC_EXPERTS, 0);
    rc_layer(r, i, "ffn_gate_exps.weight", RC_EMBD, n_ff, RC_EXPERTS);
    rc_layer(r, i, "ffn_up_exps.weight", RC_EMBD, n_ff, RC_EXPERTS);
    rc_layer(r, i, "ffn_down_exps.weight", n_ff, RC_EMBD, RC_EXPERTS);
}

/* list: names with a space on either side */
static bool among(const char *name, const char *list)
{
    char word[40];
    snprintf(word, sizeof word, " %s ", name);
    return strstr(list, word);
}

static bool is_hybrid(const char *arch)
{
    return among(arch, " qwen3next qwen35 qwen35moe ");
}

static void hybrid_keys(struct rc *r)
{
    static const uint32_t sections[] = {2, 1, 1, 0};
    rc_number(r, "full_attention_interval", 2);
    rc_number(r, "ssm.conv_kernel", RC_TAPS);
    rc_number(r, "ssm.state_size", RC_SSM_HEAD);
    rc_number(r, "ssm.group_count", RC_SSM_K);
    rc_number(r, "ssm.time_step_rank", RC_SSM_V);
    rc_number(r, "ssm.inner_size", RC_INNER);
    if (!strncmp(r->arch, "qwen35", 6))
        rc_list(r, "rope.dimension_sections", RC_NUMBERS, 4, sections);
}

static void delta_tensors(struct rc *r, int i)
{
    rc_layer(r, i, "attn_norm.weight", RC_EMBD, 0, 0);
    rc_layer(r, i, "attn_qkv.weight", RC_EMBD, RC_CHANNELS, 0);
    rc_layer(r, i, "attn_gate.weight", RC_EMBD, RC_INNER, 0);
    if (!strcmp(r->arch, "qwen3next"))
        rc_layer(r, i, "ssm_ba.weight", RC_EMBD, 2 * RC_SSM_V, 0);
    else {
        rc_layer(r, i, "ssm_beta.weight", RC_EMBD, RC_SSM_V, 0);
        rc_layer(r, i, "ssm_alpha.weight", RC_EMBD, RC_SSM_V, 0);
    }
    rc_layer(r, i, "ssm_conv1d.weight", RC_TAPS, RC_CHANNELS, 0);
    rc_layer(r, i, "ssm_dt.bias", RC_SSM_V, 0, 0);
    rc_layer(r, i, "ssm_a", RC_SSM_V, 0, 0);
    rc_layer(r, i, "ssm_norm.weight", RC_SSM_HEAD, 0, 0);
    rc_layer(r, i, "ssm_out.weight", RC_INNER, RC_EMBD, 0);
}

static void shared_expert_tensors(struct rc *r, int i)
{
    rc_layer(r, i, "ffn_gate_inp_shexp.weight", RC_EMBD, 0, 0);
    rc_layer(r, i, "ffn_gate_shexp.weight", RC_EMBD, RC_SHARED, 0);
    rc_layer(r, i, "ffn_up_shexp.weight", RC_EMBD, RC_SHARED, 0);
    rc_layer(r, i, "ffn_down_shexp.weight", RC_SHARED, RC_EMBD, 0);
}

/* What gpt-oss and minimax-m2 have besides. */
static void odd_attention_tensors(struct rc *r, int i)
{
    if (!strcmp(r->arch, "gpt-oss")) {
        rc_layer(r, i, "attn_output.bias", RC_EMBD, 0, 0);
        rc_layer(r, i, "attn_sinks.weight", RC_HEADS, 0, 0);
    }
    if (!strcmp(r->arch, "minimax-m2")) {
        rc_layer(r, i, "attn_q_norm.weight", RC_Q_ROWS, 0, 0);
        rc_layer(r, i, "attn_k_norm.weight", RC_KV_ROWS, 0, 0);
    }
}

/* What routed experts have besides: biases, or a bias of the selection and shared experts. */
static void odd_expert_tensors(struct rc *r, int i)
{
    bool shared = among(r->arch, " glm4moe ernie4_5-moe ");
    if (!strcmp(r->arch, "gpt-oss")) {
        rc_layer(r, i, "ffn_gate_inp.bias", RC_EXPERTS, 0, 0);
        rc_layer(r, i, "ffn_gate_exps.bias", RC_EXP_FF, RC_EXPERTS, 0);
        rc_layer(r, i, "ffn_up_exps.bias", RC_EXP_FF, RC_EXPERTS, 0);
        rc_layer(r, i, "ffn_down_exps.bias", RC_EMBD, RC_EXPERTS, 0);
    }
    if (shared || !strcmp(r->arch, "minimax-m2"))
        rc_layer(r, i, "exp_probs_b.bias", RC_EXPERTS, 0, 0);
    if (shared) {
        rc_layer(r, i, "ffn_gate_shexp.weight", RC_EMBD, 2 * RC_EXP_FF, 0);
        rc_layer(r, i, "ffn_up_shexp.weight", RC_EMBD, 2 * RC_EXP_FF, 0);
        rc_layer(r, i, "ffn_down_shexp.weight", 2 * RC_EXP_FF, RC_EMBD, 0);
    }
}

/* What is in the place of a layer's attention, and the norms that go with it. */
static void mixer_tensors(struct rc *r, int i)
{
    const char *arch = r->arch;
    bool hybrid = is_hybrid(arch);
    if (hybrid && i == 0)
        delta_tensors(r, i);
    else
        attention_tensors(r, i, among(arch, " phi3 "), among(arch, " qwen2 gpt-oss glm4moe "),
                          hybrid || among(arch, " gemma3 qwen3 qwen3moe "));
    if (hybrid && i > 0)
        rc_layer(r, i, "attn_q.weight", RC_EMBD, 2 * RC_Q_ROWS, 0);
    odd_attention_tensors(r, i);
    if (hybrid || among(arch, " gemma3 gpt-oss glm4moe "))
        rc_layer(r, i, "post_attention_norm.weight", RC_EMBD, 0, 0);
    if (!hybrid && !among(arch, " gpt-oss glm4moe "))
        rc_layer(r, i, "ffn_norm.weight", RC_EMBD, 0, 0);
}

static void ffn_tensors(struct rc *r, int i, bool moe)
{
    if (among(r->arch, " qwen3next qwen35moe "))
        shared_expert_tensors(r, i);
    if (moe && !(i == 0 && among(r->arch, " glm4moe ernie4_5-moe "))) {
        expert_tensors(r, i, strcmp(r->arch, "llama") ? RC_EXP_FF : RC_FF);
        odd_expert_tensors(r, i);
    } else
        dense_tensors(r, i, !strcmp(r->arch, "phi3"));
    if (!strcmp(r->arch, "gemma3"))
        rc_layer(r, i, "post_ffw_norm.weight", RC_EMBD, 0, 0);
}

static void expert_keys(struct rc *r)
{
    rc_number(r, "expert_count", RC_EXPERTS);
    rc_number(r, "expert_used_count", RC_USED);
    if (!among(r->arch, " llama qwen3moe "))
        rc_number(r, "expert_feed_forward_length", RC_EXP_FF);
    if (among(r->arch, " qwen3next qwen35moe "))
        rc_number(r, "expert_shared_feed_forward_length", RC_SHARED);
    if (!strcmp(r->arch, "minimax-m2"))
        rc_number(r, "feed_forward_length", RC_EXP_FF);
    if (among(r->arch, " glm4moe ernie4_5-moe ")) {
        rc_number(r, "leading_dense_block_count", 1);
        rc_number(r, "expert_shared_count", 2);
    }
}

/* A valid file of the family; name "llama-moe" is llama with experts. */
void rc_make(struct rc *r, const char *name)
{
    bool moe = among(name, " llama-moe qwen3moe qwen3next qwen35moe gpt-oss glm4moe ernie4_5-moe "
                           "minimax-m2 ");
    base_keys(r, strcmp(name, "llama-moe") ? name : "llama");
    if (moe)
        expert_keys(r);
    if (is_hybrid(name))
        hybrid_keys(r);
    if (among(name, " gemma3 gpt-oss "))
        rc_number(r, "attention.sliding_window", 16);
    rc_tensor(r, "token_embd.weight", BL_F32, RC_EMBD, RC_VOCAB, 0);
    rc_tensor(r, "output_norm.weight", BL_F32, RC_EMBD, 0, 0);
    if (strcmp(name, "gemma3"))
        rc_tensor(r, "output.weight", BL_F32, RC_EMBD, RC_VOCAB, 0);
    for (int i = 0; i < RC_LAYERS; i++) {
        mixer_tensors(r, i);
        ffn_tensors(r, i, moe);
    }
}

/* ---- graphs ---- */

struct bl_graph rc_build(const struct bl_model *m, uint32_t n_tok, uint32_t n_out)
{
    struct bl_graph g;
    const struct bl_shape s = {n_tok, n_out, 3, 512, m->opt.ctx_tokens};
    bl_graph_init(&g);
    RC_GOOD(bl_model_build(m, &s, &g));
    return g;
}

unsigned rc_count(const struct bl_graph *g, enum bl_op op)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        n += g->nodes[i].op == op;
    return n;
}

const struct bl_node *rc_nth(const struct bl_graph *g, enum bl_op op, unsigned n)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == op && !n--)
            return &g->nodes[i];
    fail_msg("no such node");
    return NULL;
}

const char *rc_source(const struct bl_model *m, const struct bl_graph *g, const struct bl_node *n,
                      unsigned src)
{
    const struct bl_value *v = &g->vals[bl_node_src(g, n, src)];
    assert_int_equal(v->origin, BL_WEIGHT);
    return bl_gguf_tensor(m->gguf, m->weight[v->index].tensor)->name;
}

/* ---- files ---- */

static char folder[] = "/tmp/ballast-model-XXXXXX";
char rc_path[RC_PATH_BYTES];

int rc_enter_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(rc_path, sizeof rc_path, "%s/tiny.gguf", folder);
    return 0;
}

int rc_leave_folder(void **state)
{
    (void)state;
    unlink(rc_path);
    return rmdir(folder);
}

/* Tokens are all the letter "a"; numbers u32; flags one byte. */
static void put_list(struct bl_gguf_writer *w, const struct rc_key *k)
{
    unsigned char data[RC_VOCAB * 2 * 9];
    uint64_t len = 1, n = 0;
    for (uint32_t i = 0; i < k->number; i++)
        if (k->kind == RC_TOKENS) {
            memcpy(data + n, &len, 8);
            data[n + 8] = 'a';
            n += 9;
        } else if (k->kind == RC_FLAGS)
            data[n++] = (unsigned char)k->list[i];
        else {
            memcpy(data + n, &k->list[i], 4);
            n += 4;
        }
    RC_GOOD(bl_gguf_put_kv(w, &(struct bl_kv){.key = k->name,
                                              .type = BL_VAL_ARRAY,
                                              .item = k->kind == RC_TOKENS  ? BL_VAL_STRING
                                                      : k->kind == RC_FLAGS ? BL_VAL_BOOL
                                                                            : BL_VAL_U32,
                                              .n = k->number,
                                              .data = data,
                                              .data_bytes = n}));
}

static void put_key(struct bl_gguf_writer *w, const struct rc_key *k)
{
    switch (k->kind) {
    case RC_NUMBER:
        RC_GOOD(bl_gguf_put_u32(w, k->name, k->number));
        break;
    case RC_REAL:
        RC_GOOD(bl_gguf_put_f32(w, k->name, k->real));
        break;
    case RC_TEXT:
        RC_GOOD(bl_gguf_put_str(w, k->name, k->text, strlen(k->text)));
        break;
    default:
        put_list(w, k);
    }
}

static void put_zeros(struct bl_gguf_writer *w, const struct rc_tensor *t)
{
    static const unsigned char zeros[4096];
    uint64_t n = bl_dtype_row_bytes(t->type, t->ne[0]) * t->ne[1] * t->ne[2];
    for (uint64_t part; n; n -= part) {
        part = n < sizeof zeros ? n : sizeof zeros;
        RC_GOOD(bl_gguf_write_data(w, zeros, part));
    }
}

static double chance(uint64_t *state) /* -1 to 1 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)(z >> 11) / (double)((uint64_t)1 << 52) - 1;
}

static void put_random(struct bl_gguf_writer *w, const struct rc_tensor *t, uint64_t *state)
{
    const bool norm = strstr(t->name, "norm") != NULL, embd = strstr(t->name, "token_embd") != NULL;
    const double mean = norm ? 1 : 0, amp = norm ? 0.1 : embd ? 1 : sqrt(3 / (double)t->ne[0]);
    const uint64_t n = t->ne[0] * t->ne[1] * t->ne[2];
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (uint64_t i = 0; i < n; i++)
        x[i] = (float)(mean + amp * chance(state));
    RC_GOOD(bl_gguf_write_data(w, x, n * sizeof *x));
    free(x);
}

static void save(const struct rc *r, uint64_t *state)
{
    struct bl_gguf_writer *w = NULL;
    unlink(rc_path);
    RC_GOOD(bl_gguf_writer_create(&w, rc_path, 32));
    for (unsigned i = 0; i < r->n_keys; i++)
        put_key(w, &r->key[i]);
    for (unsigned i = 0; i < r->n_tensors; i++)
        RC_GOOD(bl_gguf_put_tensor(w, r->tensor[i].name, r->tensor[i].type, 3, r->tensor[i].ne));
    for (unsigned i = 0; i < r->n_tensors; i++)
        if (state && r->tensor[i].type == BL_F32)
            put_random(w, &r->tensor[i], state);
        else
            put_zeros(w, &r->tensor[i]);
    RC_GOOD(bl_gguf_writer_finish(w));
}

void rc_save(const struct rc *r)
{
    save(r, NULL);
}

void rc_save_random(const struct rc *r, uint64_t seed)
{
    save(r, &seed);
}

void rc_close(struct rc_model *o)
{
    bl_model_close(o->m);
    bl_gguf_close(o->g);
}

struct rc_model rc_open(const struct rc *r, const struct bl_model_options *opt)
{
    struct rc_model o = {NULL, NULL};
    rc_save(r);
    RC_GOOD(bl_gguf_open(&o.g, rc_path));
    RC_GOOD(bl_model_open(&o.m, o.g, opt));
    return o;
}
