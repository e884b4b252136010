/* SPDX-License-Identifier: MIT */
/* synth.h — model files made up: the exact shape of a known model, random weights.
 *
 * Purpose   what the files behind bl_synth_open share. A shape is JSON (configs/README.md): keys as they stand in a
 *           GGUF file; which tensors follow from them is asked of the model's family (bl_model_outline).
 * Ownership a shape owns its JSON tree and lists; texts in it point into the tree.
 * Units     elements, bytes.
 * Errors    BL_EINVAL with the shape's name, the member and what is allowed.
 * Threads   one per object.
 */
#ifndef BL_SYNTH_H
#define BL_SYNTH_H

#include "gguf.h"

struct cJSON;

/* configs/shapes, in the order of their names; generated at build. */
struct bl_synth_source {
    const char *name;
    const unsigned char *json;
    size_t n_bytes;
};
extern const struct bl_synth_source bl_synth_sources[];
extern const uint32_t bl_synth_n_sources;

/* ---- synth_shape.c ---- */
struct bl_synth_shape {
    struct cJSON *root;
    const char *name, *about, *arch, *pre, *recipe;
    uint32_t layers, vocab;      /* as asked for */
    uint32_t drafts;             /* blocks for drafting behind the layers */
    uint64_t published_params;   /* 0: not said */
    const char **also;
    uint32_t n_also;
};
enum bl_status bl_synth_shape_open(struct bl_synth_shape *, const struct bl_synth_options *);
void bl_synth_shape_finish(struct bl_synth_shape *); /* zeroed is fine */
enum { BL_SYNTH_MOST_LAYERS = 1024 };
bool bl_synth_is_count(const struct cJSON *, uint64_t least, uint64_t most); /* a whole number from least to most */
enum bl_status bl_synth_wrong(const char *shape, const char *member, const char *wanted); /* "... must be `wanted`" */
enum bl_status bl_synth_no_memory(const char *shape);

/* ---- synth_header.c ---- */
/* Keys, vocabulary, then the tensors that the family wants: weights are F16, what must be F32 or I32 is. */
enum bl_status bl_synth_header(const struct bl_synth_shape *, struct bl_gguf **out);

/* ---- synth_vocab.c: every byte, a few special tokens, words of letters up to n ---- */
enum { BL_SYNTH_LEAST_VOCAB = 260 };
enum bl_status bl_synth_add_vocab(struct bl_gguf *, const char *pre, uint32_t n);

/* ---- synth_recipe.c: types of the weights ---- */
enum bl_status bl_synth_apply_recipe(struct bl_gguf *, const char *recipe, uint32_t layers);

/* ---- synth_fill.c: contents ---- */
struct bl_synth_fill;
/* Values depend on seed, name, type and shape, on nothing else. expert ids stay below n_expert. */
enum bl_status bl_synth_fill_create(struct bl_synth_fill **out, const struct bl_tensor_info *, uint64_t seed,
                                    uint32_t n_expert);
void bl_synth_fill_destroy(struct bl_synth_fill *);
/* The next piece, of at most about 1 MiB; 0: that was all. Valid until the next call. */
uint64_t bl_synth_fill_next(struct bl_synth_fill *, const void **bytes);

#endif
