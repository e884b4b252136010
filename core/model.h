/* SPDX-License-Identifier: MIT */
/* model.h — a model: hyper-parameters, which tensor plays which role, which state it keeps.
 *
 * Purpose   turns a checked GGUF file into the description that planner and engine work with; family files fill it.
 * Ownership the model borrows the bl_gguf, which must outlive it; it owns everything else.
 * Units     elements, tokens; _bytes where bytes.
 * Errors    BL_EFORMAT: metadata or shapes contradict each other (names the key or tensor, both values);
 *           BL_EUNSUPPORTED: an architecture or feature by name, with what is supported.
 * Threads   read-only after open.
 */
#ifndef BL_MODEL_H
#define BL_MODEL_H

#include "gguf.h"
#include "graph.h"

/* Roles of tensors. The table in model.c gives each its GGUF name stem, part and kind. Biases and per-tensor scales are
 * not roles: they belong to their weight. */
enum bl_role {
    BL_W_TOKEN_EMBD, BL_W_OUTPUT_NORM, BL_W_OUTPUT, BL_W_ROPE_FREQS, BL_W_ROPE_LONG, BL_W_ROPE_SHORT, /* per model */
    BL_W_ATTN_NORM, BL_W_ATTN_Q, BL_W_ATTN_K, BL_W_ATTN_V, BL_W_ATTN_OUT,                             /* per layer */
    BL_W_ATTN_Q_NORM, BL_W_ATTN_K_NORM, BL_W_ATTN_POST_NORM,
    BL_W_FFN_NORM, BL_W_FFN_GATE, BL_W_FFN_UP, BL_W_FFN_DOWN, BL_W_FFN_POST_NORM,
    BL_W_ROUTER, BL_W_ROUTER_BIAS /* selection only */, BL_W_EXP_GATE, BL_W_EXP_UP, BL_W_EXP_DOWN,
    BL_W_SHEXP_GATE, BL_W_SHEXP_UP, BL_W_SHEXP_DOWN,         /* the experts that every token has */
    BL_W_ATTN_SINKS,
    BL_W_ATTN_Q_A, BL_W_ATTN_Q_A_NORM, BL_W_ATTN_Q_B,        /* queries through a low rank */
    BL_W_ATTN_KV_A, BL_W_ATTN_KV_ROPE, BL_W_ATTN_KV_A_NORM,  /* latent of keys and values, the shared rope key */
    BL_W_ATTN_K_B, BL_W_ATTN_V_B,                            /* from latent to heads: {in, out, heads} */
    BL_W_SHEXP_ROUTER,                                       /* how much of the shared experts a token takes */
    BL_W_SSM_IN, BL_W_SSM_QKV, BL_W_SSM_GATE, BL_W_SSM_BA, BL_W_SSM_BETA, BL_W_SSM_ALPHA, /* recurrent layers */
    BL_W_SSM_CONV, BL_W_SSM_DT, BL_W_SSM_A, BL_W_SSM_NORM, BL_W_SSM_OUT,
    BL_W_ROUTER_IDS,                                         /* experts by token id */
    BL_W_ATTN_OUT_A, BL_W_ATTN_OUT_B,                        /* output through a low rank, by groups of heads */
    BL_W_COMP_KV, BL_W_COMP_GATE, BL_W_COMP_APE, BL_W_COMP_NORM,                /* rows of groups of tokens */
    BL_W_INDEX_Q, BL_W_INDEX_PROJ,                                              /* and which of them to attend to */
    BL_W_INDEX_COMP_KV, BL_W_INDEX_COMP_GATE, BL_W_INDEX_COMP_APE, BL_W_INDEX_COMP_NORM,
    BL_W_HC_ATTN_FN, BL_W_HC_ATTN_BASE, BL_W_HC_ATTN_SCALE,  /* weights of residual streams: around attention, */
    BL_W_HC_FFN_FN, BL_W_HC_FFN_BASE, BL_W_HC_FFN_SCALE,     /* around the FFN, */
    BL_W_HC_OUT_FN, BL_W_HC_OUT_BASE, BL_W_HC_OUT_SCALE,     /* before the head (per model) */
    BL_N_ROLES
};

/* A weight is a range of rows of one file tensor: fused tensors (attn_qkv, ffn_up of phi3, ffn_gate_up_exps) give
 * several weights, nothing is copied. ne = {in, out, experts}. */
struct bl_weight {
    uint32_t tensor;      /* index in the GGUF */
    uint32_t ne[3];
    uint32_t row0;        /* first row inside each expert's matrix of the tensor; first element of a vector */
    uint32_t tensor_rows; /* rows of one matrix of the tensor: expert stride = tensor_rows * row bytes; 0: a vector */
    uint32_t below;       /* I32: every value must be; checked at load */
    uint32_t expert_elems; /* of a vector per expert: elements from one to the next, more than its own where fused */
    uint8_t type, part;   /* enum bl_dtype, enum bl_part */
    int16_t layer;        /* -1: per model */
};
/* A linear map with what may accompany it; -1 = absent. Indices into model.weights. */
struct bl_linear { int32_t w, bias, scale; };

struct bl_layer {
    struct bl_linear role[BL_N_ROLES]; /* per-layer roles; .w = -1 where the layer has none */
    uint32_t n_head, n_head_kv, n_ff;
    uint32_t window;                   /* sliding window, 0 = full attention */
    bool moe;
    bool recurrent;                    /* a delta net in the place of attention */
    int32_t state_k, state_v;          /* indices into model.states; of a recurrent layer, its tail and its matrices */
};

enum { BL_MAX_CONTEXT = 1 << 30 };

enum bl_law { BL_PER_TOKEN,  /* one row per token */
              BL_WINDOW,     /* the last `window` tokens */
              BL_PER_GROUP,  /* one row per `group` tokens: compressed attention, indexer keys */
              BL_FIXED };    /* one row, which every token replaces: recurrent state */
struct bl_state_desc {
    char name[32];           /* "blk.3.k" */
    int16_t layer;
    uint8_t law, type;       /* enum bl_law, enum bl_dtype */
    uint32_t window;         /* BL_WINDOW: tokens kept */
    uint32_t group;          /* BL_PER_GROUP: tokens of a row; of another law: rows are needed from whole groups on */
    uint32_t row_elems;
    uint32_t slack_rows;     /* BL_FIXED and BL_WINDOW: kept beyond those, for a rewind */
    bool tail;               /* BL_WINDOW that is read before a step's rows are written: need not hold a step */
};

struct bl_delta_hparams {                       /* of recurrent layers */
    uint32_t taps, n_head_k, n_head_v, dk, dv;
    bool tiled;                                 /* struct bl_delta_attr */
};
struct bl_hparams {
    uint32_t n_ctx_train, n_embd, n_layer, n_vocab;
    uint32_t n_layer_nextn;                     /* blocks of the file after those, for drafting: not built */
    uint32_t dk, dv;                            /* head sizes of K and V */
    float eps;
    uint32_t rope_dims;                         /* R */
    float rope_base;                            /* theta */
    float rope_freq_scale, rope_magnitude;      /* 1/s, m */
    bool rope_yarn, rope_long;                  /* rope_long: needs factor tensors */
    float yarn_fast, yarn_slow;                 /* turns within the original context: kept as they are, stretched whole */
    uint32_t rope_ctx_orig;
    uint32_t rope_sections[4];
    struct bl_angles_attr rope_window;          /* of sliding-window layers: the file's, whatever the options say */
    uint32_t n_expert, n_expert_used, n_ff_expert;
    uint32_t n_ff_shared;                       /* of the experts that every token has, 0 = none */
    struct bl_route_attr route;
    struct bl_glu_attr glu;                     /* zeroed: SwiGLU */
    float final_softcap;                        /* 0 = none */
    float attn_scale;                           /* kappa */
    bool attn_gated;                            /* attn_q gives every head's query, then its gate */
    struct bl_delta_hparams delta;
};

struct bl_rope_options {             /* in place of what the file says; NULL and 0: the file */
    const char *scaling;             /* "none", "linear" or "yarn" */
    float freq_base, freq_scale;     /* theta, 1/s */
    uint32_t ctx_orig;
};
struct bl_model_options {
    uint64_t ctx_tokens;
    uint8_t type_k, type_v;          /* enum bl_dtype */
    struct bl_rope_options rope;
    bool round_kv, round_index;      /* kept rows, and those of an index, are rounded as in training: bl_family.rounds */
    uint32_t slack_tokens;           /* that can be taken back whatever the law: of recurrent state, a copy each */
};
/* A model made up from its keys: the tensors that its family asks for are added to a header in memory, weights as F16. Of
 * those that a family can do without, these: "attn_qkv.weight", in every layer that could have it. */
struct bl_outline {
    struct bl_gguf *gguf;
    const char *const *also;
    uint32_t n_also;
};
struct bl_family;
struct bl_model {
    const struct bl_family *family;
    const struct bl_gguf *gguf;
    const struct bl_outline *outline;           /* NULL: the tensors are those of the file */
    struct bl_model_options opt;
    struct bl_hparams hp;
    struct bl_linear role[BL_N_ROLES];          /* per-model roles */
    struct bl_layer *layer;                     /* [n_layer] */
    struct bl_weight *weight;
    struct bl_state_desc *state;
    uint32_t n_weights, n_states;
    uint32_t cap_weights, cap_states;
    bool tied_output;                           /* output is the embedding matrix: one tensor, there for both */
    void *extra;                                /* a family's own hyper-parameters, freed by close */
};

/* Size of a step. n_tok and n_out are upper bounds (buckets); the real numbers are in the params block. */
struct bl_shape {
    uint32_t n_tok, n_out;      /* n_out 0: no logits */
    uint32_t max_sequences;
    uint32_t ubatch_tokens;     /* largest n_tok of any step: sizes window rings */
    uint64_t ctx_tokens;
};

struct bl_family {
    const char *arch;                                                          /* general.architecture */
    bool rounds;                                                               /* knows what round_kv, round_index mean */
    enum bl_status (*hparams)(struct bl_model *);                              /* after the shared keys were read; may be NULL */
    enum bl_status (*tensors)(struct bl_model *);                              /* names, shapes, roles */
    enum bl_status (*state)(struct bl_model *);                                /* list of bl_state_desc */
    enum bl_status (*build)(const struct bl_model *, const struct bl_shape *, struct bl_graph *);
};
extern const struct bl_family *const bl_families[];                            /* NULL-terminated, families.def */
#define X(family) extern const struct bl_family family;
#include "families.def"
#undef X

/* opt->ctx_tokens 0: trained context, at most 4096; BL_CTX_MAX: all of it. opt NULL: that, and f16 K and V. */
enum bl_status bl_model_open(struct bl_model **out, const struct bl_gguf *, const struct bl_model_options *opt);
void bl_model_close(struct bl_model *);
enum bl_status bl_model_outline(const struct bl_outline *);
enum bl_status bl_model_build(const struct bl_model *, const struct bl_shape *, struct bl_graph *); /* + check */
/* Rows per sequence that a state needs: context for PER_TOKEN, window - 1 and the more of ubatch and slack (at most the
 * context) for WINDOW, window - 1 + slack for the tail of one, context / group, rounded up, for PER_GROUP, 1 + slack
 * for FIXED. */
uint32_t bl_state_rows(const struct bl_state_desc *, const struct bl_shape *);
/* Of them, those that the size of a step and taking tokens back cost: beyond the window itself, or one row. */
uint32_t bl_state_slack_rows(const struct bl_state_desc *, const struct bl_shape *);
uint64_t bl_state_bytes(const struct bl_state_desc *, const struct bl_shape *); /* all sequences */
uint64_t bl_state_slack_bytes(const struct bl_state_desc *, const struct bl_shape *);
/* Byte offset of a weight's first row inside its tensor. */
uint64_t bl_weight_offset(const struct bl_weight *);
/* Of a weight of BL_PART_EXPERTS, each expert has a matrix, a bias or a scale: how many there are, and the bytes from one
 * to the next. Of others: 0 experts. */
uint32_t bl_weight_n_experts(const struct bl_weight *);
uint64_t bl_weight_expert_stride(const struct bl_weight *);

/* ---- for family files ---- */
enum { BL_WANT_OPTIONAL = 1, BL_WANT_BIAS = 2 /* must have a bias */, BL_WANT_F32 = 4 /* a matrix, but of floats */,
       BL_WANT_EXPERT_IDS = 8 /* a matrix of I32 */ };
/* Sets "file: text" as the message and returns the code. */
enum bl_status bl_model_fail(const struct bl_model *, enum bl_status, const char *fmt, ...) BL_PRINTF(3, 4);
/* "<arch>.<suffix>" keys; as the bl_gguf accessors, and a value outside least..most is refused with key and limits. */
enum bl_status bl_hp_u32(const struct bl_model *, const char *suffix, bool required, uint32_t least, uint32_t most,
                         uint32_t *out);
enum bl_status bl_hp_f32(const struct bl_model *, const char *suffix, bool required, float least, float most,
                         float *out);
enum bl_status bl_hp_bool(const struct bl_model *, const char *suffix, bool required, bool *out);
/* out: [n_layer]; a scalar counts for every layer. */
enum bl_status bl_hp_u32_per_layer(const struct bl_model *, const char *suffix, bool required, uint32_t least,
                                   uint32_t most, uint32_t *out, bool *found);
enum bl_status bl_hp_f32_per_layer(const struct bl_model *, const char *suffix, bool required, float least, float most,
                                   float *out);
/* Every layer gets experts: softmax over all, the chosen ones renormalised. Refuses a file without any. */
enum bl_status bl_hp_softmax_experts(struct bl_model *);
/* Experts in every interleave_moe_layer_step-th layer from leading_dense_block_count on, shared ones beside them, and
 * how they are chosen; `gating` where expert_gating_func is absent or 0. Refuses a file without any. */
enum bl_status bl_hp_routed_experts(struct bl_model *, enum bl_gating gating);
/* layer.window from attention.sliding_window and its pattern: period P (layer b slides where b mod P < P - 1) or one
 * flag per layer. */
enum bl_status bl_hp_sliding_window(struct bl_model *, uint32_t default_period);

/* Layers with a gated delta net, and gated attention in the others: which, by attention.recurrent_layers or
 * full_attention_interval; the ssm.* keys. tiled: how value heads find their key head, see struct bl_delta_attr. */
enum bl_status bl_hp_hybrid(struct bl_model *, bool tiled);
/* Softmax experts in every layer, and shared ones as wide as expert_shared_feed_forward_length or the others. */
enum bl_status bl_hp_softmax_shared_experts(struct bl_model *);

/* rope.dimension_sections: interleaved axes of positions. */
enum bl_status bl_hp_rope_sections(struct bl_model *);
/* The rope keys and rope options; before a family's own keys. */
enum bl_status bl_model_read_rope(struct bl_model *);

/* Declares a tensor for a role and checks its shape exactly; picks up .bias {out} and .scale when present.
 * layer -1 = per model. n_experts 0 = a matrix (or a vector: n_out 0). Vectors are F32, matrices any type of weight. */
enum bl_status bl_model_want(struct bl_model *, enum bl_role, int layer, uint32_t n_in, uint32_t n_out,
                             uint32_t n_experts, unsigned flags);
bool bl_model_has(const struct bl_model *, int layer, const char *name); /* of the layer's tensor: "attn_q_a.weight" */
/* A part of the rows of a tensor: its rows are n_blocks blocks of one size, the part is rows [first, first + n) of each.
 * Gives a weight {n_in, n, n_blocks}; nothing is copied. */
struct bl_piece { const char *stem; uint32_t n_in, n_rows, n_blocks, first, n; };
enum bl_status bl_model_want_piece(struct bl_model *, enum bl_role, int layer, const struct bl_piece *);
/* The groups below accept the fused and the split form in every family. */
enum bl_status bl_model_want_shared(struct bl_model *);                      /* token_embd, output_norm, output or tied */
enum bl_status bl_model_want_rope_factors(struct bl_model *);                /* rope_freqs, rope_factors_*: optional */
enum bl_status bl_model_want_attention(struct bl_model *, int layer, unsigned flags); /* norm, qkv (flags), output */
enum bl_status bl_model_want_qkv(struct bl_model *, int layer, unsigned flags);
enum bl_status bl_model_want_ffn(struct bl_model *, int layer, uint32_t n_ff); /* gate+up fused in ffn_up, or apart */
enum bl_status bl_model_want_experts(struct bl_model *, int layer, uint32_t n_ff, unsigned flags); /* with their router */
enum bl_status bl_model_want_shared_experts(struct bl_model *, int layer, uint32_t n_ff);
/* By layer.moe: the dense one, or experts with their selection bias (flags) and the shared ones the model has. */
enum bl_status bl_model_want_moe_or_ffn(struct bl_model *, int layer, unsigned selection_flags);
/* A norm that this family's files call otherwise: `stem`. */
enum bl_status bl_model_want_norm(struct bl_model *, enum bl_role, const char *stem, int layer, uint32_t n);
/* Delta net or gated attention with head norms, by layer.recurrent; the FFN's norm is called post_attention_norm. */
enum bl_status bl_model_want_hybrid(struct bl_model *, int layer);
void bl_model_warn_unused(const struct bl_model *); /* one line for the tensors that got no role */
/* Adds a state, whose rows are runs of `run` elements that a type's blocks must fit. */
enum bl_status bl_model_keep(struct bl_model *, const struct bl_state_desc *, uint32_t run, int32_t *index);
/* K and V rows for a layer, PER_TOKEN or WINDOW by layer.window. */
enum bl_status bl_model_keep_kv(struct bl_model *, int layer);
enum bl_status bl_model_keep_kv_everywhere(struct bl_model *);
enum bl_status bl_model_keep_hybrid(struct bl_model *); /* the tail and matrices of recurrent layers, K and V of others */

/* Graph pieces that families share. They place their own nodes; what follows bl_build_attention belongs to its ATTN,
 * what follows the others to FFN, unless bl_graph_at says otherwise. */
bl_val bl_build_linear(const struct bl_model *, struct bl_graph *, struct bl_linear, bl_val x);
bl_val bl_build_norm(const struct bl_model *, struct bl_graph *, struct bl_linear, bl_val x);
bl_val bl_build_embed(const struct bl_model *, struct bl_graph *, const struct bl_shape *, float scale);
struct bl_angles_attr bl_model_angles(const struct bl_model *); /* as metadata and options say */
struct bl_angles_attr bl_model_angles_at(const struct bl_model *, float base); /* likewise, with another base */
/* Once per graph and base. Uses rope_freqs, or the long or short factors by the model's context size, where present. */
bl_val bl_build_angles(const struct bl_model *, struct bl_graph *, const struct bl_shape *, const struct bl_angles_attr *);
bl_val bl_build_weight(const struct bl_model *, struct bl_graph *, int32_t w);  /* 0 for -1 */
bl_val bl_build_state(const struct bl_model *, struct bl_graph *, const struct bl_shape *, int32_t state);
/* q, k, v, optional per-head norms, rope, store, attend, output projection; angles 0 = no rope. */
bl_val bl_build_attention(const struct bl_model *, struct bl_graph *, const struct bl_shape *, int layer, bl_val h,
                          bl_val angles, enum bl_rope_mode);
bl_val bl_build_ffn(const struct bl_model *, struct bl_graph *, int layer, bl_val h, const struct bl_glu_attr *);
bl_val bl_build_shared_experts(const struct bl_model *, struct bl_graph *, int layer, bl_val h, const struct bl_glu_attr *);
/* The chosen experts' sum, and the shared experts' where the layer has them. Parts of a divided layer (graph.h) are added
 * after the shared experts, which run meanwhile. */
bl_val bl_build_moe(const struct bl_model *, struct bl_graph *, int layer, bl_val h, const struct bl_glu_attr *,
                    const struct bl_glu_attr *shared);
/* Convolution, delta rule, gated norm, output projection: in the place of attention. */
bl_val bl_build_delta_net(const struct bl_model *, struct bl_graph *, const struct bl_shape *, int layer, bl_val h);
/* The decoder of most families: two norms per layer, attention, SwiGLU or experts, residuals; and the head. */
void bl_build_decoder(const struct bl_model *, struct bl_graph *, const struct bl_shape *, enum bl_rope_mode);
bl_val bl_build_head(const struct bl_model *, struct bl_graph *, const struct bl_shape *, bl_val x); /* sets g->result */

#endif
