/* SPDX-License-Identifier: MIT */
/* pretok.h — cuts text into the words that byte-pair merges must not cross.
 *
 * Purpose   the regular expressions behind tokenizer.ggml.pre: a table of kinds, the names that mean them, and the
 *           staged splitter. Stage 0 cuts the text into matches and the gaps between them; stage n cuts each piece
 *           of stage n-1 as a subject of its own.
 * Ownership a splitter is freed with bl_pretok_destroy; the rule it was made from is static.
 * Units     bytes.
 * Errors    BL_ENOMEM, BL_EUNSUPPORTED (a PCRE2 without Unicode), or what the piece function returned.
 * Threads   a splitter is read-only after creation; any number of threads may split with it.
 */
#ifndef BL_PRETOK_H
#define BL_PRETOK_H

#include "status.h"

enum { BL_PRETOK_STAGES = 6 };

struct bl_pretok_kind {
    const char *name;
    const char *stage[BL_PRETOK_STAGES]; /* unused ones are NULL */
};
struct bl_pretok_rule {
    const char *names; /* values of tokenizer.ggml.pre that mean it, with spaces between */
    const struct bl_pretok_kind *kind;
    bool ignore_merges; /* a piece that is a token is taken whole */
    bool add_bos;       /* unless the file says otherwise */
};
/* NULL: not a known name. */
const struct bl_pretok_rule *bl_pretok_rule_find(const char *pre, size_t n_bytes);
const struct bl_pretok_rule *bl_pretok_rule_at(uint32_t i); /* NULL at the end */
/* "llama-bpe, qwen2, ..." for the message of a refusal */
const char *bl_pretok_kind_names(void);

struct bl_pretok;
/* An upper bound of what any splitter holds, known before one is made. */
enum { BL_PRETOK_MAX_BYTES = 64 * 1024 };
enum bl_status bl_pretok_create(struct bl_pretok **out, const struct bl_pretok_kind *);
void bl_pretok_destroy(struct bl_pretok *); /* takes NULL */
uint64_t bl_pretok_heap_bytes(const struct bl_pretok *);

/* Calls `piece` for every piece of `text` in order; together they are the text. Runs of bytes that are not UTF-8
 * come as pieces of their own. A piece is never empty. */
typedef enum bl_status bl_pretok_piece_fn(void *arg, const char *piece, size_t n_bytes);
enum bl_status bl_pretok_split(const struct bl_pretok *, const char *text, size_t n_bytes, bl_pretok_piece_fn *piece,
                               void *arg);

#endif
