/* SPDX-License-Identifier: MIT */
/* graph.h — the one device-free graph of a step.
 *
 * Purpose   a list of nodes over values in the order they run; built by families, lowered by program.c. No memory, no
 *           devices. Values are indices, so a graph can be hashed, printed, compared and copied.
 * Ownership the graph owns its four arrays; finish frees them.
 * Units     ne in elements. Activations are F32 {elements, tokens}.
 * Errors    a builder that is given wrong shapes marks the graph failed and returns 0; every later call returns 0 too;
 *           bl_graph_check reports the first fault with node and shapes.
 * Threads   one thread per graph.
 */
#ifndef BL_GRAPH_H
#define BL_GRAPH_H

#include "dtype.h"

enum bl_part { BL_PART_EMBED, BL_PART_ATTN, BL_PART_STATE, BL_PART_FFN, BL_PART_EXPERTS, BL_PART_HEAD, BL_N_PARTS };
const char *bl_part_name(enum bl_part);

enum bl_op {
#define X(op, ...) BL_OP_##op,
#include "op.def"
#undef X
    BL_N_OPS
};
enum bl_split { BL_SPLIT_NONE, BL_SPLIT_OUTPUT, BL_SPLIT_HEADS, BL_SPLIT_EXPERTS };
struct bl_op_info {
    const char *name;
    uint8_t max_src, n_dst, split;
    uint16_t attr_bytes;
};
extern const struct bl_op_info bl_ops[BL_N_OPS];

/* ---- attributes (plain data, hashed byte for byte: zero them first) ---- */
struct bl_none_attr { uint32_t unused; };
struct bl_embed_attr { float scale; };
struct bl_heads_attr { uint32_t head_rows, transposed; };
struct bl_norm_attr { float eps; uint32_t run; };
struct bl_repeat_attr { uint32_t copies; };
struct bl_store_attr { uint32_t group; };  /* tokens of a row; 1: each its own */
enum bl_rope_mode { BL_ROPE_NORM /* pairs 2i, 2i+1 */, BL_ROPE_NEOX /* pairs i, i + n_dims/2 */ };
struct bl_angles_attr {                  /* families.md section 2.2, 2.3 */
    uint32_t n_dims;
    uint32_t yarn;                       /* 1: blend by lo, hi; 0: freq_scale for all */
    float base, freq_scale, magnitude;
    float lo, hi;
    uint32_t sections[4];                /* pairs per axis of positions, section 2.2; all 0: one axis for all */
    uint32_t group, inverse;             /* positions are rounded down to multiples of group, 0: not; 1: sines negated */
};
struct bl_rope_attr { uint32_t mode, head_elems, n_dims, first; };
struct bl_temper_attr { float scale; uint32_t every; };
struct bl_attention_attr {
    uint32_t n_head, n_head_kv, dk, dv;
    uint32_t window;                     /* 0 = all earlier positions, otherwise that many, itself included */
    float scale;
};
struct bl_groups_attr {
    struct bl_attention_attr at;
    uint32_t group;                      /* tokens of a group */
};
enum bl_glu_kind { BL_GLU_SILU, BL_GLU_SILU_CLAMPED /* gate <= limit, |up| <= limit */, BL_GLU_GELU_TANH,
                   BL_GLU_SWIGLU_OAI /* gate <= limit, |up| <= limit, (up + 1) */, BL_GLU_SIGMOID };
struct bl_glu_attr { uint32_t kind; float alpha, limit; };
enum bl_gating { BL_GATE_SOFTMAX = 1, BL_GATE_SIGMOID = 2, BL_GATE_SOFTMAX_CHOSEN = 3, BL_GATE_SQRT_SOFTPLUS = 4 };
struct bl_route_attr {
    uint32_t n_used, gating, normalise;
    uint32_t n_group, n_group_used, group_by_max; /* n_group <= 1: no groups */
    float scale;                                  /* 0 or 1 = none */
};
struct bl_experts_attr {
    uint32_t n_used;
    uint32_t part, parts;                /* which of how many nodes: struct bl_expert_parts; parts 0: all in this one */
    uint32_t chunk, chunks;              /* of the experts sent there a few at a time: which of how many; chunks 0: its own */
    struct bl_glu_attr glu;
};
struct bl_softcap_attr { float cap; };
struct bl_streams_attr {
    uint32_t n, iterations;              /* streams; rounds of making rows and columns sum to 1 */
    float norm_eps, eps;
};
struct bl_stream_read_attr { uint32_t n; };
struct bl_compress_attr { uint32_t group, overlap; };
/* CHOOSE keeps the n rows of the largest scores (not a number counts as -infinity), listed by row. Which of equal rows
 * stay is what a binary heap of n keeps, worst row on top, that sees the rows in their order: the first n rows are made
 * a heap from the last inner place back to the top; each later row that is better than the top takes its place. A row is
 * put in place by letting the free place sink to a leaf, past the worse child (of equal ones the right), and then rise
 * while what is above it is better. */
struct bl_choose_attr { uint32_t n_head, dk, n, group; };
enum bl_round_kind { BL_ROUND_E4M3, BL_ROUND_E2M1 };
struct bl_round_attr { uint32_t kind, run, n, group; };
struct bl_hadamard_attr { uint32_t run; };
struct bl_slice_attr { uint32_t run, first, n; };
struct bl_concat_attr { uint32_t runs; };
struct bl_conv_attr { uint32_t silu; /* 1: of the result */ };
struct bl_delta_attr {
    uint32_t n_head_k, n_head_v, dk, dv;
    uint32_t tiled;                      /* key head of value head n: 1: n mod n_head_k, 0: n div (n_head_v / n_head_k) */
    float eps;                           /* least length that q and k are divided by */
    float scale;                         /* of q */
};

/* ---- graph ---- */
typedef uint32_t bl_val; /* index of a value; 0 = none */
enum bl_origin { BL_ACTIVATION, BL_WEIGHT, BL_STATE_ROWS, BL_PARAM };
enum bl_param { BL_PARAM_TOKENS, BL_PARAM_POSITIONS, BL_PARAM_OUT_ROWS }; /* arrays of the params block, args.h */

struct bl_value {
    uint32_t ne[4];      /* state rows: {elements of a row, rows per sequence, sequences, 1} */
    uint8_t type, origin;
    int32_t index;       /* weight, state description or enum bl_param; -1 for activations */
};
struct bl_node {
    uint8_t op, part, n_src, n_dst;
    int16_t layer;       /* -1 outside layers */
    bl_val dst[2];
    uint32_t src;        /* first of n_src = bl_ops[op].max_src entries in graph.srcs; absent ones are 0 */
    uint32_t attr;       /* byte offset in graph.attrs, 8-aligned */
};
/* Experts of a layer may come in n nodes, part 0 to n - 1, all of the same weights: each adds up those experts alone that
 * its device has, and the parts are added in their order. Part `last`, which need not wait for copies, is emitted after
 * the others. The last `chunks` of the n are emitted behind them, after the shared experts, and each is added before the
 * next begins: of experts that are sent to the device a few at a time. */
struct bl_expert_parts { uint16_t n, last, chunks; };
struct bl_graph {
    struct bl_node *nodes;
    struct bl_value *vals; /* vals[0] is the none value */
    bl_val *srcs;
    unsigned char *attrs;
    uint32_t n_nodes, n_vals, n_srcs, n_attr_bytes;
    uint32_t cap_nodes, cap_vals, cap_srcs, cap_attrs;
    bl_val *leaf;          /* [cap_leaves] leaf values by index and origin, 0 = none yet */
    uint32_t cap_leaves;
    bl_val result;         /* logits; 0 when the step wants none */
    const struct bl_expert_parts *parts; /* [layers] borrowed while a model is built; NULL: experts come in one node */
    uint8_t part;          /* given to the nodes that follow */
    int16_t layer;
    bool failed;
    enum bl_status status; /* why */
    char fault[200];
};

void bl_graph_init(struct bl_graph *);
void bl_graph_finish(struct bl_graph *); /* zeroed is fine */
enum bl_status bl_graph_check(const struct bl_graph *); /* BL_OK, or the first fault with its message */
void bl_graph_at(struct bl_graph *, enum bl_part, int layer); /* where following nodes belong */
void bl_graph_print(const struct bl_graph *, void (*line)(void *arg, const char *text), void *arg);
static inline const void *bl_node_attr(const struct bl_graph *g, const struct bl_node *n)
{
    return g->attrs + n->attr;
}
static inline bl_val bl_node_src(const struct bl_graph *g, const struct bl_node *n, unsigned i)
{
    return i < n->n_src ? g->srcs[n->src + i] : 0;
}
uint64_t bl_value_bytes(const struct bl_value *);

/* Leaves: the same (origin, index) gives the same value. */
bl_val bl_graph_weight(struct bl_graph *, int32_t index, enum bl_dtype, const uint32_t ne[3]);
bl_val bl_graph_state(struct bl_graph *, int32_t index, enum bl_dtype, uint32_t row_elems, uint32_t rows,
                      uint32_t sequences);
bl_val bl_graph_param(struct bl_graph *, enum bl_param, uint32_t n);

/* Nodes: op.def says what they compute. */
bl_val bl_graph_embed(struct bl_graph *, bl_val table, bl_val tokens, float scale);
bl_val bl_graph_gather_rows(struct bl_graph *, bl_val x, bl_val rows);
bl_val bl_graph_rms_norm(struct bl_graph *, bl_val x, bl_val w, float eps);
bl_val bl_graph_rms_norm_runs(struct bl_graph *, bl_val x, uint32_t run, float eps); /* without weights */
bl_val bl_graph_matmul(struct bl_graph *, bl_val w, bl_val x, bl_val bias, bl_val scale);
bl_val bl_graph_matmul_heads(struct bl_graph *, bl_val w, bl_val x, bl_val scale, const struct bl_heads_attr *);
bl_val bl_graph_rope_angles(struct bl_graph *, bl_val positions, bl_val factors, const struct bl_angles_attr *);
bl_val bl_graph_rope(struct bl_graph *, bl_val x, bl_val angles, enum bl_rope_mode, uint32_t head_elems);
/* Rotates from element `first` of every head on. */
bl_val bl_graph_rope_at(struct bl_graph *, bl_val x, bl_val angles, enum bl_rope_mode, uint32_t head_elems,
                        uint32_t first);
bl_val bl_graph_temper(struct bl_graph *, bl_val x, bl_val positions, const struct bl_temper_attr *);
bl_val bl_graph_kv_store(struct bl_graph *, bl_val x, bl_val state);
bl_val bl_graph_kv_store_groups(struct bl_graph *, bl_val x, bl_val state, uint32_t group);
bl_val bl_graph_attention(struct bl_graph *, bl_val q, bl_val k, bl_val v, bl_val sinks,
                          const struct bl_attention_attr *);
struct bl_attention_vals { bl_val q, k, v, sinks, rows, chosen; };
bl_val bl_graph_attention_groups(struct bl_graph *, const struct bl_attention_vals *, const struct bl_groups_attr *);
bl_val bl_graph_glu(struct bl_graph *, bl_val gate, bl_val up, const struct bl_glu_attr *);
bl_val bl_graph_add(struct bl_graph *, bl_val a, bl_val b);
void bl_graph_route(struct bl_graph *, bl_val logits, bl_val bias, const struct bl_route_attr *, bl_val *ids,
                    bl_val *weights);
struct bl_route_vals { bl_val logits, bias, table, tokens; };
void bl_graph_route_by_table(struct bl_graph *, const struct bl_route_vals *, const struct bl_route_attr *, bl_val *ids,
                             bl_val *weights);
struct bl_expert_vals { bl_val gate, up, down, gate_b, up_b, down_b, gate_s, up_s, down_s; };
bl_val bl_graph_experts(struct bl_graph *, bl_val x, bl_val ids, bl_val weights, const struct bl_expert_vals *,
                        const struct bl_experts_attr *);
bl_val bl_graph_softcap(struct bl_graph *, bl_val x, float cap);
bl_val bl_graph_slice(struct bl_graph *, bl_val x, uint32_t run, uint32_t first, uint32_t n);
bl_val bl_graph_concat(struct bl_graph *, bl_val a, bl_val b, bl_val c);
bl_val bl_graph_concat_runs(struct bl_graph *, bl_val a, bl_val b, bl_val c, uint32_t runs);
bl_val bl_graph_short_conv(struct bl_graph *, bl_val x, bl_val w, bl_val state, bool silu);
struct bl_delta_vals { bl_val qkv, beta, alpha, a, dt, state; };
bl_val bl_graph_delta_rule(struct bl_graph *, const struct bl_delta_vals *, const struct bl_delta_attr *);

bl_val bl_graph_repeat(struct bl_graph *, bl_val x, uint32_t copies);
bl_val bl_graph_stream_weights(struct bl_graph *, bl_val streams, bl_val z, bl_val base, bl_val scale,
                               const struct bl_streams_attr *);
bl_val bl_graph_stream_read(struct bl_graph *, bl_val streams, bl_val weights, uint32_t n_streams);
bl_val bl_graph_stream_write(struct bl_graph *, bl_val streams, bl_val y, bl_val weights);
bl_val bl_graph_compress(struct bl_graph *, bl_val x, bl_val gate, bl_val ape, bl_val state,
                         const struct bl_compress_attr *);
bl_val bl_graph_round(struct bl_graph *, bl_val x, const struct bl_round_attr *);
bl_val bl_graph_hadamard(struct bl_graph *, bl_val x, uint32_t run);
bl_val bl_graph_choose(struct bl_graph *, bl_val q, bl_val weights, bl_val rows, const struct bl_choose_attr *);

#endif
