/* SPDX-License-Identifier: MIT */
/* Opening models and building their graphs: small files are written from a recipe that a test then
 * spoils. */
#include "support.h"

#include "alloc_fail.h"
#include "log.h"
#include "model.h"

#include <dirent.h>
#include <math.h>
#include <unistd.h>

/* ---- recipes ---- */

enum {
    EMBD = 32,
    HEADS = 4,
    HEADS_KV = 2,
    HEAD = 8,
    FF = 48,
    VOCAB = 16,
    LAYERS = 2,
    EXPERTS = 4,
    USED = 2
};
enum { Q_ROWS = HEADS * HEAD, KV_ROWS = HEADS_KV * HEAD };

enum kind { NUMBER, REAL, TEXT, NUMBERS, FLAGS, TOKENS };
struct key {
    char name[64];
    enum kind kind;
    uint32_t number; /* or the length of a list */
    float real;
    const char *text;
    uint32_t list[8];
};
struct tensor {
    char name[64];
    enum bl_dtype type;
    uint64_t ne[3];
};
struct recipe {
    const char *arch;
    struct key key[48];
    struct tensor tensor[128];
    unsigned n_keys, n_tensors;
};

static struct key *key_at(struct recipe *r, const char *name)
{
    for (unsigned i = 0; i < r->n_keys; i++)
        if (!strcmp(r->key[i].name, name))
            return &r->key[i];
    assert_true(r->n_keys < BL_COUNT(r->key));
    struct key *k = &r->key[r->n_keys++];
    *k = (struct key){.name = ""};
    snprintf(k->name, sizeof k->name, "%s", name);
    return k;
}

/* "x" stands for "<arch>.x" in names without a known first part. */
static const char *full(const struct recipe *r, const char *name, char out[64])
{
    bool whole = !strncmp(name, "general.", 8) || !strncmp(name, "tokenizer.", 10);
    snprintf(out, 64, "%s%s%s", whole ? "" : r->arch, whole ? "" : ".", name);
    return out;
}

static void set_number(struct recipe *r, const char *name, uint32_t v)
{
    char key[64];
    struct key *k = key_at(r, full(r, name, key));
    k->kind = NUMBER;
    k->number = v;
}

static void set_real(struct recipe *r, const char *name, float v)
{
    char key[64];
    struct key *k = key_at(r, full(r, name, key));
    k->kind = REAL;
    k->real = v;
}

static void set_text(struct recipe *r, const char *name, const char *v)
{
    char key[64];
    struct key *k = key_at(r, full(r, name, key));
    k->kind = TEXT;
    k->text = v;
}

static void set_list(struct recipe *r, const char *name, enum kind kind, uint32_t n,
                     const uint32_t *v)
{
    char key[64];
    struct key *k = key_at(r, full(r, name, key));
    k->kind = kind;
    k->number = n;
    memcpy(k->list, v, n * sizeof *v);
}

static void drop_key(struct recipe *r, const char *name)
{
    char key[64];
    struct key *k = key_at(r, full(r, name, key));
    *k = r->key[--r->n_keys];
}

static struct tensor *find(struct recipe *r, const char *name)
{
    for (unsigned i = 0; i < r->n_tensors; i++)
        if (!strcmp(r->tensor[i].name, name))
            return &r->tensor[i];
    return NULL;
}

/* b, c: 0 counts as 1 */
static void set_tensor(struct recipe *r, const char *name, enum bl_dtype type, uint32_t a,
                       uint32_t b, uint32_t c)
{
    struct tensor *t = find(r, name);
    if (!t) {
        assert_true(r->n_tensors < BL_COUNT(r->tensor));
        t = &r->tensor[r->n_tensors++];
    }
    *t = (struct tensor){.type = type, .ne = {a, b ? b : 1, c ? c : 1}};
    snprintf(t->name, sizeof t->name, "%s", name);
}

static void drop_tensor(struct recipe *r, const char *name)
{
    struct tensor *t = find(r, name);
    assert_non_null(t);
    *t = r->tensor[--r->n_tensors];
}

static void layer_tensor(struct recipe *r, int layer, const char *stem, uint32_t a, uint32_t b,
                         uint32_t c)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", layer, stem);
    set_tensor(r, name, BL_F32, a, b, c);
}

static void base_keys(struct recipe *r, const char *arch)
{
    *r = (struct recipe){.arch = arch};
    set_text(r, "general.architecture", arch);
    set_text(r, "general.type", "model");
    set_number(r, "context_length", 2048);
    set_number(r, "embedding_length", EMBD);
    set_number(r, "block_count", LAYERS);
    set_number(r, "feed_forward_length", FF);
    set_number(r, "attention.head_count", HEADS);
    set_number(r, "attention.head_count_kv", HEADS_KV);
    set_real(r, "attention.layer_norm_rms_epsilon", 1e-6f);
    set_real(r, "rope.freq_base", 1e6f);
    set_number(r, "vocab_size", VOCAB);
    key_at(r, "tokenizer.ggml.tokens")->kind = TOKENS;
    key_at(r, "tokenizer.ggml.tokens")->number = VOCAB;
}

static void attention_tensors(struct recipe *r, int i, bool fused, bool biased, bool qk_norm)
{
    layer_tensor(r, i, "attn_norm.weight", EMBD, 0, 0);
    if (fused)
        layer_tensor(r, i, "attn_qkv.weight", EMBD, Q_ROWS + 2 * KV_ROWS, 0);
    else {
        layer_tensor(r, i, "attn_q.weight", EMBD, Q_ROWS, 0);
        layer_tensor(r, i, "attn_k.weight", EMBD, KV_ROWS, 0);
        layer_tensor(r, i, "attn_v.weight", EMBD, KV_ROWS, 0);
    }
    if (biased) {
        layer_tensor(r, i, "attn_q.bias", Q_ROWS, 0, 0);
        layer_tensor(r, i, "attn_k.bias", KV_ROWS, 0, 0);
        layer_tensor(r, i, "attn_v.bias", KV_ROWS, 0, 0);
    }
    if (qk_norm) {
        layer_tensor(r, i, "attn_q_norm.weight", HEAD, 0, 0);
        layer_tensor(r, i, "attn_k_norm.weight", HEAD, 0, 0);
    }
    layer_tensor(r, i, "attn_output.weight", Q_ROWS, EMBD, 0);
}

static void dense_tensors(struct recipe *r, int i, bool fused)
{
    if (!fused)
        layer_tensor(r, i, "ffn_gate.weight", EMBD, FF, 0);
    layer_tensor(r, i, "ffn_up.weight", EMBD, fused ? 2 * FF : FF, 0);
    layer_tensor(r, i, "ffn_down.weight", FF, EMBD, 0);
}

static void expert_tensors(struct recipe *r, int i, uint32_t n_ff)
{
    layer_tensor(r, i, "ffn_gate_inp.weight", EMBD, EXPERTS, 0);
    layer_tensor(r, i, "ffn_gate_exps.weight", EMBD, n_ff, EXPERTS);
    layer_tensor(r, i, "ffn_up_exps.weight", EMBD, n_ff, EXPERTS);
    layer_tensor(r, i, "ffn_down_exps.weight", n_ff, EMBD, EXPERTS);
}

/* A valid file of the family; name "llama-moe" is llama with experts. */
static void make(struct recipe *r, const char *name)
{
    bool moe = !strcmp(name, "qwen3moe") || !strcmp(name, "llama-moe");
    const char *arch = !strcmp(name, "llama-moe") ? "llama" : name;
    bool phi = !strcmp(arch, "phi3"), gemma = !strcmp(arch, "gemma3");
    base_keys(r, arch);
    if (moe) {
        set_number(r, "expert_count", EXPERTS);
        set_number(r, "expert_used_count", USED);
    }
    if (gemma)
        set_number(r, "attention.sliding_window", 16);
    set_tensor(r, "token_embd.weight", BL_F32, EMBD, VOCAB, 0);
    set_tensor(r, "output_norm.weight", BL_F32, EMBD, 0, 0);
    if (!gemma)
        set_tensor(r, "output.weight", BL_F32, EMBD, VOCAB, 0);
    for (int i = 0; i < LAYERS; i++) {
        attention_tensors(r, i, phi, !strcmp(arch, "qwen2"), gemma || !strncmp(arch, "qwen3", 5));
        layer_tensor(r, i, "ffn_norm.weight", EMBD, 0, 0);
        if (moe)
            expert_tensors(r, i, !strcmp(arch, "llama") ? FF : FF / USED);
        else
            dense_tensors(r, i, phi);
        if (gemma) {
            layer_tensor(r, i, "post_attention_norm.weight", EMBD, 0, 0);
            layer_tensor(r, i, "post_ffw_norm.weight", EMBD, 0, 0);
        }
    }
}

/* ---- files ---- */

static char folder[] = "/tmp/ballast-model-XXXXXX";
static char path[sizeof folder + 16];

static int enter_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/tiny.gguf", folder);
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

/* Tokens are all the letter "a"; numbers u32; flags one byte. */
static void put_list(struct bl_gguf_writer *w, const struct key *k)
{
    unsigned char data[VOCAB * 2 * 9];
    uint64_t len = 1, n = 0;
    for (uint32_t i = 0; i < k->number; i++)
        if (k->kind == TOKENS) {
            memcpy(data + n, &len, 8);
            data[n + 8] = 'a';
            n += 9;
        } else if (k->kind == FLAGS)
            data[n++] = (unsigned char)k->list[i];
        else {
            memcpy(data + n, &k->list[i], 4);
            n += 4;
        }
    GOOD(bl_gguf_put_kv(w, &(struct bl_kv){.key = k->name,
                                           .type = BL_VAL_ARRAY,
                                           .item = k->kind == TOKENS  ? BL_VAL_STRING
                                                   : k->kind == FLAGS ? BL_VAL_BOOL
                                                                      : BL_VAL_U32,
                                           .n = k->number,
                                           .data = data,
                                           .data_bytes = n}));
}

static void put_key(struct bl_gguf_writer *w, const struct key *k)
{
    switch (k->kind) {
    case NUMBER:
        GOOD(bl_gguf_put_u32(w, k->name, k->number));
        break;
    case REAL:
        GOOD(bl_gguf_put_f32(w, k->name, k->real));
        break;
    case TEXT:
        GOOD(bl_gguf_put_str(w, k->name, k->text, strlen(k->text)));
        break;
    default:
        put_list(w, k);
    }
}

static void save(const struct recipe *r)
{
    static const unsigned char zeros[4096];
    struct bl_gguf_writer *w = NULL;
    unlink(path);
    GOOD(bl_gguf_writer_create(&w, path, 32));
    for (unsigned i = 0; i < r->n_keys; i++)
        put_key(w, &r->key[i]);
    for (unsigned i = 0; i < r->n_tensors; i++)
        GOOD(bl_gguf_put_tensor(w, r->tensor[i].name, r->tensor[i].type, 3, r->tensor[i].ne));
    for (unsigned i = 0; i < r->n_tensors; i++) {
        const uint64_t *ne = r->tensor[i].ne;
        uint64_t n = bl_dtype_row_bytes(r->tensor[i].type, ne[0]) * ne[1] * ne[2];
        for (uint64_t part; n; n -= part) {
            part = n < sizeof zeros ? n : sizeof zeros;
            GOOD(bl_gguf_write_data(w, zeros, part));
        }
    }
    GOOD(bl_gguf_writer_finish(w));
}

struct opened {
    struct bl_gguf *g;
    struct bl_model *m;
};

static void shut(struct opened *o)
{
    bl_model_close(o->m);
    bl_gguf_close(o->g);
}

static struct opened open_recipe(const struct recipe *r, const struct bl_model_options *opt)
{
    struct opened o = {NULL, NULL};
    save(r);
    GOOD(bl_gguf_open(&o.g, path));
    GOOD(bl_model_open(&o.m, o.g, opt));
    return o;
}

static struct bl_graph build(const struct bl_model *m, uint32_t n_tok, uint32_t n_out)
{
    struct bl_graph g;
    const struct bl_shape s = {n_tok, n_out, 3, 512, m->opt.ctx_tokens};
    bl_graph_init(&g);
    GOOD(bl_model_build(m, &s, &g));
    return g;
}

static unsigned count(const struct bl_graph *g, enum bl_op op)
{
    unsigned n = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        n += g->nodes[i].op == op;
    return n;
}

static const struct bl_node *nth(const struct bl_graph *g, enum bl_op op, unsigned n)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == op && !n--)
            return &g->nodes[i];
    fail_msg("no such node");
    return NULL;
}

/* The tensor behind a node's source. */
static const char *source_name(const struct bl_model *m, const struct bl_graph *g,
                               const struct bl_node *n, unsigned src)
{
    const struct bl_value *v = &g->vals[bl_node_src(g, n, src)];
    assert_int_equal(v->origin, BL_WEIGHT);
    return bl_gguf_tensor(m->gguf, m->weight[v->index].tensor)->name;
}

/* ---- every family ---- */

static const char *const families[] = {"llama",    "llama-moe", "qwen2", "qwen3",
                                       "qwen3moe", "phi3",      "gemma3"};

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
    case BL_OP_KV_STORE:
    case BL_OP_ATTENTION:
        assert_int_equal(n->part, BL_PART_ATTN);
        break;
    case BL_OP_ADD:
    case BL_OP_GLU:
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
    assert_int_equal(count(g, BL_OP_GATHER_ROWS), n_out != 0);
    if (!n_out) {
        assert_int_equal(g->result, 0);
        return;
    }
    const struct bl_value *logits = &g->vals[g->result];
    assert_int_equal(logits->ne[0], m->hp.n_vocab);
    assert_int_equal(logits->ne[1], n_out);
    bl_val rows = nth(g, BL_OP_GATHER_ROWS, 0)->dst[0];
    const struct bl_node *norm = nth(g, BL_OP_RMS_NORM, count(g, BL_OP_RMS_NORM) - 1);
    assert_int_equal(bl_node_src(g, norm, 0), rows);
    assert_string_equal(source_name(m, g, norm, 1), "output_norm.weight");
}

static void check_steps(const struct bl_model *m)
{
    static const uint32_t n_tok[] = {1, 7, 512};
    for (unsigned t = 0; t < BL_COUNT(n_tok); t++)
        for (uint32_t n_out = 0; n_out < 2; n_out++) {
            struct bl_graph g = build(m, n_tok[t], n_out);
            for (uint32_t i = 0; i < g.n_nodes; i++)
                check_part(&g, &g.nodes[i]);
            check_head(m, &g, n_out);
            assert_int_equal(count(&g, BL_OP_KV_STORE), 2 * m->hp.n_layer);
            assert_int_equal(count(&g, BL_OP_ATTENTION), m->hp.n_layer);
            assert_int_equal(g.vals[g.nodes[0].dst[0]].ne[1], n_tok[t]);
            bl_graph_finish(&g);
        }
}

static void families_open_and_build(void **state)
{
    (void)state;
    for (unsigned i = 0; i < BL_COUNT(families); i++) {
        struct recipe r;
        make(&r, families[i]);
        struct opened o = open_recipe(&r, NULL);
        const struct bl_hparams *hp = &o.m->hp;
        assert_string_equal(o.m->family->arch, r.arch);
        assert_int_equal(hp->n_layer, LAYERS);
        assert_int_equal(hp->dk, HEAD);
        assert_int_equal(hp->dv, HEAD);
        assert_int_equal(hp->rope_dims, HEAD);
        assert_true(hp->attn_scale == 1 / sqrtf(HEAD));
        assert_int_equal(o.m->n_states, 2 * LAYERS);
        assert_int_equal(o.m->opt.ctx_tokens, 2048);
        assert_int_equal(o.m->opt.type_k, BL_F16);
        check_steps(o.m);
        shut(&o);
    }
}

static void rope_pairs_and_activation(void **state)
{
    (void)state;
    for (unsigned i = 0; i < BL_COUNT(families); i++) {
        struct recipe r;
        make(&r, families[i]);
        struct opened o = open_recipe(&r, NULL);
        struct bl_graph g = build(o.m, 3, 1);
        const struct bl_rope_attr *rope = bl_node_attr(&g, nth(&g, BL_OP_ROPE, 0));
        assert_int_equal(rope->mode, strcmp(r.arch, "llama") ? BL_ROPE_NEOX : BL_ROPE_NORM);
        assert_int_equal(rope->head_elems, HEAD);
        if (count(&g, BL_OP_GLU)) {
            const struct bl_glu_attr *glu = bl_node_attr(&g, nth(&g, BL_OP_GLU, 0));
            assert_int_equal(glu->kind, strcmp(r.arch, "gemma3") ? BL_GLU_SILU : BL_GLU_GELU_TANH);
        }
        assert_int_equal(count(&g, BL_OP_ROPE_ANGLES), strcmp(r.arch, "gemma3") ? 1 : 2);
        bl_graph_finish(&g);
        shut(&o);
    }
}

/* ---- what the numbers become ---- */

static void experts_are_routed(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct recipe r;
        make(&r, i ? "qwen3moe" : "llama-moe");
        struct opened o = open_recipe(&r, NULL);
        struct bl_graph g = build(o.m, 3, 1);
        const struct bl_node *n = nth(&g, BL_OP_ROUTE, 0);
        const struct bl_route_attr *route = bl_node_attr(&g, n);
        assert_int_equal(route->n_used, USED);
        assert_int_equal(route->gating, BL_GATE_SOFTMAX);
        assert_int_equal(route->normalise, 1);
        assert_true(route->scale == 0);
        assert_int_equal(count(&g, BL_OP_EXPERTS), LAYERS);
        assert_int_equal(count(&g, BL_OP_GLU), 0);
        n = nth(&g, BL_OP_EXPERTS, 1);
        assert_string_equal(source_name(o.m, &g, n, 3), "blk.1.ffn_gate_exps.weight");
        assert_string_equal(source_name(o.m, &g, n, 4), "blk.1.ffn_up_exps.weight");
        assert_string_equal(source_name(o.m, &g, n, 5), "blk.1.ffn_down_exps.weight");
        assert_int_equal(bl_node_src(&g, n, 6), 0);
        assert_int_equal(o.m->weight[o.m->layer[1].role[BL_W_EXP_UP].w].part, BL_PART_EXPERTS);
        assert_int_equal(o.m->weight[o.m->layer[1].role[BL_W_ROUTER].w].part, BL_PART_FFN);
        bl_graph_finish(&g);
        shut(&o);
    }
}

static void fused_tensors_become_rows(void **state)
{
    (void)state;
    struct recipe r;
    make(&r, "phi3");
    layer_tensor(&r, 0, "attn_qkv.bias", Q_ROWS + 2 * KV_ROWS, 0, 0);
    struct opened o = open_recipe(&r, NULL);
    const struct bl_layer *l = &o.m->layer[0];
    const struct bl_weight *q = &o.m->weight[l->role[BL_W_ATTN_Q].w],
                           *k = &o.m->weight[l->role[BL_W_ATTN_K].w],
                           *v = &o.m->weight[l->role[BL_W_ATTN_V].w],
                           *up = &o.m->weight[l->role[BL_W_FFN_UP].w],
                           *bias = &o.m->weight[l->role[BL_W_ATTN_V].bias];
    assert_int_equal(q->tensor, v->tensor);
    assert_int_equal(bl_weight_offset(q), 0);
    assert_int_equal(bl_weight_offset(k), Q_ROWS * EMBD * 4);
    assert_int_equal(bl_weight_offset(v), (Q_ROWS + KV_ROWS) * EMBD * 4);
    assert_int_equal(v->ne[0], EMBD);
    assert_int_equal(v->ne[1], KV_ROWS);
    assert_int_equal(bl_weight_offset(up), FF * EMBD * 4);
    assert_int_equal(up->ne[1], FF);
    assert_int_equal(bias->ne[0], KV_ROWS);
    assert_int_equal(bl_weight_offset(bias), (Q_ROWS + KV_ROWS) * 4);
    struct bl_graph g = build(o.m, 3, 1);
    assert_int_equal(g.vals[bl_node_src(&g, nth(&g, BL_OP_MATMUL, 2), 2)].index,
                     l->role[BL_W_ATTN_V].bias);
    bl_graph_finish(&g);
    shut(&o);
}

/* The fused forms are accepted by every family, not only by the one that always has them. */
static void fused_experts(void **state)
{
    (void)state;
    struct recipe r;
    make(&r, "qwen3moe");
    drop_tensor(&r, "blk.1.ffn_gate_exps.weight");
    drop_tensor(&r, "blk.1.ffn_up_exps.weight");
    layer_tensor(&r, 1, "ffn_gate_up_exps.weight", EMBD, FF, EXPERTS);
    layer_tensor(&r, 1, "ffn_gate_up_exps.scale", EXPERTS, 0, 0);
    struct opened o = open_recipe(&r, NULL);
    const struct bl_linear *gate = &o.m->layer[1].role[BL_W_EXP_GATE],
                           *up = &o.m->layer[1].role[BL_W_EXP_UP];
    const struct bl_weight *w = &o.m->weight[up->w];
    assert_int_equal(w->ne[1], FF / USED);
    assert_int_equal(w->ne[2], EXPERTS);
    assert_int_equal(bl_weight_offset(w), FF / USED * EMBD * 4);
    assert_int_equal(bl_weight_expert_stride(w), FF * EMBD * 4);
    assert_int_equal(bl_weight_offset(&o.m->weight[gate->w]), 0);
    assert_true(gate->scale >= 0);
    assert_int_equal(gate->scale, up->scale);
    struct bl_graph g = build(o.m, 3, 1);
    assert_int_equal(g.vals[bl_node_src(&g, nth(&g, BL_OP_EXPERTS, 1), 10)].index, up->scale);
    bl_graph_finish(&g);
    shut(&o);
}

static void companions_follow_their_weight(void **state)
{
    (void)state;
    struct recipe r;
    make(&r, "llama");
    set_tensor(&r, "blk.0.attn_q.weight", BL_Q4_0, EMBD, Q_ROWS, 0);
    layer_tensor(&r, 0, "attn_q.scale", 1, 0, 0);
    layer_tensor(&r, 0, "attn_output.bias", EMBD, 0, 0);
    set_tensor(&r, "output.bias", BL_F32, VOCAB, 0, 0);
    struct opened o = open_recipe(&r, NULL);
    struct bl_graph g = build(o.m, 3, 1);
    const struct bl_node *q = nth(&g, BL_OP_MATMUL, 0), *out = nth(&g, BL_OP_MATMUL, 3);
    assert_string_equal(source_name(o.m, &g, q, 3), "blk.0.attn_q.scale");
    assert_int_equal(bl_node_src(&g, q, 2), 0);
    assert_string_equal(source_name(o.m, &g, out, 2), "blk.0.attn_output.bias");
    const struct bl_node *head = nth(&g, BL_OP_MATMUL, count(&g, BL_OP_MATMUL) - 1);
    assert_string_equal(source_name(o.m, &g, head, 2), "output.bias");
    bl_graph_finish(&g);
    shut(&o);
}

static void tied_output_is_one_weight(void **state)
{
    (void)state;
    struct recipe r;
    make(&r, "llama");
    struct opened o = open_recipe(&r, NULL);
    uint32_t apart = o.m->n_weights;
    assert_false(o.m->tied_output);
    shut(&o);
    drop_tensor(&r, "output.weight");
    o = open_recipe(&r, NULL);
    assert_true(o.m->tied_output);
    assert_int_equal(o.m->n_weights, apart - 1);
    assert_int_equal(o.m->role[BL_W_OUTPUT].w, o.m->role[BL_W_TOKEN_EMBD].w);
    struct bl_graph g = build(o.m, 3, 1);
    const struct bl_node *head = nth(&g, BL_OP_MATMUL, count(&g, BL_OP_MATMUL) - 1);
    assert_string_equal(source_name(o.m, &g, head, 0), "token_embd.weight");
    bl_graph_finish(&g);
    shut(&o);
}

static void sliding_windows(void **state)
{
    (void)state;
    static const uint32_t flags[] = {0, 1};
    struct recipe r;
    make(&r, "gemma3");
    set_number(&r, "attention.sliding_window_pattern", 2);
    struct opened o = open_recipe(&r, NULL);
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
    assert_int_equal(bl_state_bytes(all, &s), 2048 * 3 * KV_ROWS * 2);
    assert_int_equal(bl_state_rows(ring, &(struct bl_shape){7, 1, 3, 32, 20}), 20);
    shut(&o);
    set_list(&r, "attention.sliding_window_pattern", FLAGS, 2, flags);
    o = open_recipe(&r, NULL);
    assert_int_equal(o.m->layer[0].window, 0);
    assert_int_equal(o.m->layer[1].window, 16);
    shut(&o);
    drop_key(&r, "attention.sliding_window");
    o = open_recipe(&r, NULL);
    assert_int_equal(o.m->layer[1].window, 0);
    shut(&o);
}

static void gemma3_numbers(void **state)
{
    (void)state;
    struct recipe r;
    make(&r, "gemma3");
    set_number(&r, "attention.sliding_window_pattern", 2);
    set_text(&r, "rope.scaling.type", "linear");
    set_real(&r, "rope.scaling.factor", 8);
    set_real(&r, "final_logit_softcapping", 30);
    struct opened o = open_recipe(&r, NULL);
    struct bl_graph g = build(o.m, 3, 1);
    const struct bl_embed_attr *embed = bl_node_attr(&g, nth(&g, BL_OP_EMBED, 0));
    assert_true(embed->scale == sqrtf(EMBD));
    const struct bl_node *full_node = nth(&g, BL_OP_ROPE_ANGLES, 0),
                         *window_node = nth(&g, BL_OP_ROPE_ANGLES, 1);
    const struct bl_angles_attr *full_at = bl_node_attr(&g, full_node),
                                *window_at = bl_node_attr(&g, window_node);
    assert_true(full_at->base == 1e6f && full_at->freq_scale == 0.125f);
    assert_true(window_at->base == 10000 && window_at->freq_scale == 1);
    assert_int_equal(bl_node_src(&g, nth(&g, BL_OP_ROPE, 0), 1), window_node->dst[0]);
    assert_int_equal(bl_node_src(&g, nth(&g, BL_OP_ROPE, 2), 1), full_node->dst[0]);
    const struct bl_attention_attr *at = bl_node_attr(&g, nth(&g, BL_OP_ATTENTION, 0));
    assert_int_equal(at->window, 16);
    assert_int_equal(nth(&g, BL_OP_SOFTCAP, 0)->dst[0], g.result);
    bl_graph_finish(&g);
    shut(&o);
}

/* Numbers of a published model (families.md 4.6): 64 dims, base 150000, 4096 tokens stretched 32
 * times. */
static void yarn_numbers(void **state)
{
    (void)state;
    struct recipe r;
    make(&r, "qwen3");
    set_number(&r, "attention.key_length", 64);
    set_real(&r, "rope.freq_base", 150000);
    set_text(&r, "rope.scaling.type", "yarn");
    set_real(&r, "rope.scaling.factor", 32);
    set_number(&r, "rope.scaling.original_context_length", 4096);
    for (int i = 0; i < LAYERS; i++) {
        layer_tensor(&r, i, "attn_q.weight", EMBD, HEADS * 64, 0);
        layer_tensor(&r, i, "attn_k.weight", EMBD, HEADS_KV * 64, 0);
        layer_tensor(&r, i, "attn_q_norm.weight", 64, 0, 0);
        layer_tensor(&r, i, "attn_k_norm.weight", 64, 0, 0);
    }
    struct opened o = open_recipe(&r, NULL);
    struct bl_graph g = build(o.m, 3, 1);
    const struct bl_angles_attr *at = bl_node_attr(&g, nth(&g, BL_OP_ROPE_ANGLES, 0));
    assert_int_equal(at->yarn, 1);
    assert_int_equal(at->n_dims, 64);
    assert_true(at->lo == 8 && at->hi == 18);
    assert_true(at->freq_scale == 1.0f / 32);
    assert_true(fabsf(at->magnitude - 1.34657f) < 1e-5f);
    bl_graph_finish(&g);
    shut(&o);
}

static void check_factors(const struct recipe *r, uint64_t ctx_tokens, const char *want)
{
    struct opened o = open_recipe(r, &(struct bl_model_options){ctx_tokens, BL_F16, BL_F16});
    struct bl_graph g = build(o.m, 3, 1);
    const struct bl_node *n = nth(&g, BL_OP_ROPE_ANGLES, 0);
    const struct bl_angles_attr *at = bl_node_attr(&g, n);
    assert_string_equal(source_name(o.m, &g, n, 1), want);
    assert_true(at->magnitude == 1.19f && at->freq_scale == 1 && !at->yarn);
    bl_graph_finish(&g);
    shut(&o);
}

static void rope_factors_by_context(void **state)
{
    (void)state;
    struct recipe r;
    make(&r, "phi3");
    set_number(&r, "rope.dimension_count", 6);
    set_text(&r, "rope.scaling.type", "longrope");
    set_real(&r, "rope.scaling.attn_factor", 1.19f);
    set_number(&r, "rope.scaling.original_context_length", 256);
    set_tensor(&r, "rope_factors_long.weight", BL_F32, 3, 0, 0);
    set_tensor(&r, "rope_factors_short.weight", BL_F32, 3, 0, 0);
    check_factors(&r, 256, "rope_factors_short.weight");
    check_factors(&r, 257, "rope_factors_long.weight");
    make(&r, "llama");
    set_real(&r, "rope.scaling.attn_factor", 1.19f);
    set_tensor(&r, "rope_freqs.weight", BL_F32, HEAD / 2, 0, 0);
    check_factors(&r, 0, "rope_freqs.weight");
}

static void keys_per_layer(void **state)
{
    (void)state;
    static const uint32_t heads[] = {4, 2}, kv[] = {2, 1}, ff[] = {48, 64};
    struct recipe r;
    make(&r, "qwen3");
    set_number(&r, "attention.key_length", HEAD);
    set_number(&r, "attention.value_length", HEAD);
    set_list(&r, "attention.head_count", NUMBERS, 2, heads);
    set_list(&r, "attention.head_count_kv", NUMBERS, 2, kv);
    set_list(&r, "feed_forward_length", NUMBERS, 2, ff);
    layer_tensor(&r, 1, "attn_q.weight", EMBD, 2 * HEAD, 0);
    layer_tensor(&r, 1, "attn_k.weight", EMBD, HEAD, 0);
    layer_tensor(&r, 1, "attn_v.weight", EMBD, HEAD, 0);
    layer_tensor(&r, 1, "attn_output.weight", 2 * HEAD, EMBD, 0);
    layer_tensor(&r, 1, "ffn_gate.weight", EMBD, 64, 0);
    layer_tensor(&r, 1, "ffn_up.weight", EMBD, 64, 0);
    layer_tensor(&r, 1, "ffn_down.weight", 64, EMBD, 0);
    struct opened o = open_recipe(&r, NULL);
    assert_int_equal(o.m->state[o.m->layer[1].state_k].row_elems, HEAD);
    check_steps(o.m);
    shut(&o);
}

static void defaults(void **state)
{
    (void)state;
    struct recipe r;
    make(&r, "llama");
    drop_key(&r, "vocab_size");
    drop_key(&r, "rope.freq_base");
    drop_key(&r, "general.type");
    set_number(&r, "context_length", 8192);
    set_number(&r, "attention.head_count_kv", HEADS);
    for (int i = 0; i < LAYERS; i++) {
        layer_tensor(&r, i, "attn_k.weight", EMBD, Q_ROWS, 0);
        layer_tensor(&r, i, "attn_v.weight", EMBD, Q_ROWS, 0);
    }
    drop_key(&r, "attention.head_count_kv");
    struct opened o = open_recipe(&r, NULL);
    assert_int_equal(o.m->hp.n_vocab, VOCAB);
    assert_int_equal(o.m->layer[0].n_head_kv, HEADS);
    assert_true(o.m->hp.rope_base == 10000);
    assert_int_equal(o.m->opt.ctx_tokens, 4096);
    shut(&o);
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
    struct recipe r;
    make(&r, "llama");
    bl_log_set(hear, &h, BL_LOG_INFO);
    struct opened o = open_recipe(&r, NULL);
    shut(&o);
    assert_int_equal(h.n, 0);
    layer_tensor(&r, 0, "attn_q.input_scale", 1, 0, 0);
    layer_tensor(&r, 1, "attn_rot.weight", 4, 0, 0);
    layer_tensor(&r, 1, "attn_rot.bias", 4, 0, 0);
    o = open_recipe(&r, NULL);
    shut(&o);
    assert_int_equal(h.n, 1);
    assert_non_null(strstr(h.last, "2 of 24 tensors"));
    assert_non_null(strstr(h.last, "blk.1.attn_rot.weight"));
    bl_log_set(NULL, NULL, BL_LOG_ERROR);
}

static void drafting_blocks_are_left_out(void **state)
{
    (void)state;
    struct heard h = {0};
    struct recipe r;
    make(&r, "qwen3");
    set_number(&r, "block_count", LAYERS + 1);
    set_number(&r, "nextn_predict_layers", 1);
    layer_tensor(&r, LAYERS, "nextn.eh_proj.weight", 2 * EMBD, EMBD, 0);
    bl_log_set(hear, &h, BL_LOG_INFO);
    struct opened o = open_recipe(&r, NULL);
    assert_int_equal(o.m->hp.n_layer, LAYERS);
    assert_int_equal(h.n, 0);
    check_steps(o.m);
    shut(&o);
    bl_log_set(NULL, NULL, BL_LOG_ERROR);
}

/* ---- refusals ---- */

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
    {"llama", RETYPE, "blk.0.attn_q.weight", NUM(BL_I32), U,
     "is i32, which is not a type of weight"},
    {"llama", RETYPE, "blk.0.attn_norm.weight", NUM(BL_F16), U,
     "'blk.0.attn_norm.weight' is f16; norms,"},
};
#undef F
#undef U

static void spoil(struct recipe *r, const struct refusal *s)
{
    switch (s->how) {
    case SET_NUMBER:
        set_number(r, s->name, s->to.number);
        break;
    case SET_REAL:
        set_real(r, s->name, s->to.real);
        break;
    case SET_TEXT:
        set_text(r, s->name, s->to.text);
        break;
    case SET_LIST:
        set_list(r, s->name, NUMBERS, s->to.n, s->to.list);
        break;
    case DROP_KEY:
        drop_key(r, s->name);
        break;
    case RESHAPE:
        set_tensor(r, s->name, BL_F32, s->to.list[0], s->to.list[1], s->to.list[2]);
        break;
    case RETYPE:
        find(r, s->name)->type = s->to.number;
        break;
    case DROP:
        drop_tensor(r, s->name);
        break;
    }
}

static void check_refused(const struct recipe *r, enum bl_status status, const char *message)
{
    struct opened o = {NULL, NULL};
    save(r);
    GOOD(bl_gguf_open(&o.g, path));
    enum bl_status st = bl_model_open(&o.m, o.g, NULL);
    if (st != status || !strstr(bl_error(), message) || strncmp(bl_error(), path, strlen(path)) ||
        strchr(bl_error(), '\n'))
        fail_msg("\"%s\" wanted; %s: %s", message, bl_status_name(st),
                 st ? bl_error() : "accepted");
    assert_null(o.m);
    shut(&o);
}

static void contradictions_are_refused(void **state)
{
    (void)state;
    for (unsigned i = 0; i < BL_COUNT(refusals); i++) {
        struct recipe r;
        make(&r, refusals[i].family);
        spoil(&r, &refusals[i]);
        check_refused(&r, refusals[i].status, refusals[i].message);
    }
}

static void contradictions_of_two_fields(void **state)
{
    (void)state;
    struct recipe r;
    make(&r, "llama");
    drop_key(&r, "vocab_size");
    drop_key(&r, "tokenizer.ggml.tokens");
    check_refused(&r, BL_EFORMAT, "'llama.vocab_size' is missing");
    make(&r, "qwen3moe");
    drop_key(&r, "expert_count");
    drop_key(&r, "expert_used_count");
    check_refused(&r, BL_EFORMAT, "qwen3moe.expert_count is 0; must be 1 to 1024");
    make(&r, "qwen3moe");
    drop_tensor(&r, "blk.0.ffn_gate_exps.weight");
    drop_tensor(&r, "blk.0.ffn_up_exps.weight");
    layer_tensor(&r, 0, "ffn_gate_up_exps.weight", EMBD, FF, EXPERTS);
    layer_tensor(&r, 0, "ffn_gate_up_exps.bias", FF, EXPERTS, 0);
    check_refused(&r, BL_EUNSUPPORTED, "'blk.0.ffn_gate_up_exps.bias': fused biases of experts");
    make(&r, "qwen2");
    set_text(&r, "rope.scaling.type", "longrope");
    set_tensor(&r, "rope_factors_long.weight", BL_F32, HEAD / 2, 0, 0);
    check_refused(&r, BL_EFORMAT, "not used by this architecture");
}

static void bad_options(void **state)
{
    (void)state;
    static const struct {
        struct bl_model_options opt;
        const char *message;
    } row[] = {
        {{0, BL_Q8_0, BL_F16}, "k cache type q8_0 needs heads of whole 32 elements"},
        {{0, BL_F16, BL_Q4_0}, "v cache type q4_0 needs heads of whole 32 elements"},
        {{0, BL_F16, BL_I32}, "v cache type i32"},
        {{0, BL_Q4_K, BL_F16}, "k cache type q4_k: f32, f16, bf16"},
        {{1ull << 40, BL_F16, BL_F16}, "a context of 1099511627776 tokens"},
    };
    struct recipe r;
    make(&r, "llama");
    save(&r);
    for (unsigned i = 0; i < BL_COUNT(row); i++) {
        struct opened o = {NULL, NULL};
        GOOD(bl_gguf_open(&o.g, path));
        assert_int_equal(bl_model_open(&o.m, o.g, &row[i].opt), BL_EINVAL);
        assert_non_null(strstr(bl_error(), row[i].message));
        shut(&o);
    }
}

static void bad_shapes_of_a_step(void **state)
{
    (void)state;
    static const struct bl_shape row[] = {
        {0, 0, 1, 512, 2048}, {513, 0, 1, 512, 2048}, {1, 0, 0, 512, 2048}, {1, 0, 1, 512, 0}};
    struct recipe r;
    make(&r, "llama");
    struct opened o = open_recipe(&r, NULL);
    for (unsigned i = 0; i < BL_COUNT(row); i++) {
        struct bl_graph g;
        bl_graph_init(&g);
        assert_int_equal(bl_model_build(o.m, &row[i], &g), BL_EINVAL);
        bl_graph_finish(&g);
    }
    shut(&o);
}

static void no_memory(void **state)
{
    (void)state;
    struct recipe r;
    struct opened o = {NULL, NULL};
    uint64_t n = 1;
    make(&r, "qwen3moe");
    save(&r);
    GOOD(bl_gguf_open(&o.g, path));
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
    shut(&o);
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
    GOOD(bl_gguf_str(g, "general.architecture", true, &s, &n));
    for (unsigned i = 0; bl_families[i]; i++)
        if (n == strlen(bl_families[i]->arch) && !memcmp(s, bl_families[i]->arch, n))
            return true;
    return false;
}

static bool check_reference(const char *file)
{
    static const struct bl_model_options opt = {1024, BL_F16, BL_F16};
    struct opened o = {NULL, NULL};
    GOOD(bl_gguf_open(&o.g, file));
    bool supported = is_supported(o.g);
    enum bl_status st = bl_model_open(&o.m, o.g, &opt);
    if (st != (supported ? BL_OK : BL_EUNSUPPORTED))
        fail_msg("%s", st ? bl_error() : file);
    if (supported)
        check_steps(o.m);
    shut(&o);
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
        cmocka_unit_test(tied_output_is_one_weight),
        cmocka_unit_test(sliding_windows),
        cmocka_unit_test(gemma3_numbers),
        cmocka_unit_test(yarn_numbers),
        cmocka_unit_test(rope_factors_by_context),
        cmocka_unit_test(keys_per_layer),
        cmocka_unit_test(defaults),
        cmocka_unit_test(unused_tensors_are_told),
        cmocka_unit_test(drafting_blocks_are_left_out),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(contradictions_of_two_fields),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(bad_shapes_of_a_step),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(close_takes_nothing),
        cmocka_unit_test(reference_models),
    };
    return cmocka_run_group_tests_name("model", tests, enter_folder, leave_folder);
}
