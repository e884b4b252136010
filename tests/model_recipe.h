/* SPDX-License-Identifier: MIT */
/* model_recipe.h — tiny models of every family, written from a recipe that a test may spoil first.
 *
 * Purpose   a valid file in one call, any key or tensor of it changed in another; all weights are zero, or
 *           random.
 * Ownership recipes are plain data. Files are written to one folder, which the group's teardown removes.
 * Units     elements.
 * Errors    fails the running test.
 * Threads   one.
 */
#ifndef BL_MODEL_RECIPE_H
#define BL_MODEL_RECIPE_H

#include "support.h"

#include "model.h"

enum {
    RC_EMBD = 32, RC_HEADS = 4, RC_HEADS_KV = 2, RC_HEAD = 8, RC_FF = 48, RC_VOCAB = 16, RC_LAYERS = 2,
    RC_EXPERTS = 4, RC_USED = 2,
    RC_Q_ROWS = RC_HEADS * RC_HEAD, RC_KV_ROWS = RC_HEADS_KV * RC_HEAD,
    /* layer 0 of hybrid families */
    RC_TAPS = 4, RC_SSM_K = 2, RC_SSM_V = 4, RC_SSM_HEAD = 8, RC_INNER = RC_SSM_V * RC_SSM_HEAD,
    RC_CHANNELS = 2 * RC_SSM_K * RC_SSM_HEAD + RC_INNER, RC_SHARED = 16, RC_EXP_FF = RC_FF / RC_USED
};

enum rc_kind { RC_NUMBER, RC_REAL, RC_TEXT, RC_NUMBERS, RC_FLAGS, RC_TOKENS };
struct rc_key {
    char name[64];
    enum rc_kind kind;
    uint32_t number;             /* or the length of a list */
    float real;
    const char *text;
    uint32_t list[8];
};
struct rc_tensor {
    char name[64];
    enum bl_dtype type;
    uint64_t ne[3];
};
struct rc {
    const char *arch;
    struct rc_key key[48];
    struct rc_tensor tensor[128];
    unsigned n_keys, n_tensors;
};
/* An architecture, or "llama-moe": llama with experts. rc_families: all that there are recipes for, then NULL. */
extern const char *const rc_families[];
void rc_make(struct rc *, const char *family);

/* Keys: "<arch>." goes before names that do not begin with "general." or "tokenizer.". What is there is replaced. */
void rc_number(struct rc *, const char *name, uint32_t);
void rc_real(struct rc *, const char *name, float);
void rc_text(struct rc *, const char *name, const char *);
void rc_list(struct rc *, const char *name, enum rc_kind, uint32_t n, const uint32_t *);
void rc_drop_key(struct rc *, const char *name);

/* Tensors: b, c may be 0 for 1. rc_layer adds "blk.<layer>." and makes it F32. */
void rc_tensor(struct rc *, const char *name, enum bl_dtype, uint32_t a, uint32_t b, uint32_t c);
void rc_layer(struct rc *, int layer, const char *stem, uint32_t a, uint32_t b, uint32_t c);
struct rc_tensor *rc_find(struct rc *, const char *name); /* NULL: none */
void rc_drop_tensor(struct rc *, const char *name);

/* Group setup and teardown; rc_path is where rc_save writes. */
enum { RC_PATH_BYTES = 64 };
extern char rc_path[RC_PATH_BYTES];
int rc_enter_folder(void **state);
int rc_leave_folder(void **state);
void rc_save(const struct rc *);
/* The same with F32 weights by chance: norms near 1, matrices that keep the size of what goes through them. Tensors of
 * another type stay zero. */
void rc_save_random(const struct rc *, uint64_t seed);

struct rc_model {
    struct bl_gguf *g;
    struct bl_model *m;
};
struct rc_model rc_open(const struct rc *, const struct bl_model_options *); /* saves and opens */
void rc_close(struct rc_model *);

/* The graph of a step of three sequences, ubatch 512, and what is in it. */
struct bl_graph rc_build(const struct bl_model *, uint32_t n_tok, uint32_t n_out);
unsigned rc_count(const struct bl_graph *, enum bl_op);
const struct bl_node *rc_nth(const struct bl_graph *, enum bl_op, unsigned n); /* from 0; fails where there are fewer */
/* The tensor behind a node's source, which must be a weight. */
const char *rc_source(const struct bl_model *, const struct bl_graph *, const struct bl_node *, unsigned src);

#define RC_GOOD(expr)                                                                              \
    do {                                                                                           \
        if (expr)                                                                                  \
            fail_msg("%s: %s", #expr, bl_error());                                                 \
    } while (0)

#endif
