/* SPDX-License-Identifier: MIT */
/* vocab.h — the vocabulary behind the public functions, and the working memory of one tokenising call.
 *
 * Purpose   one form for all supported models: every token is a string of output bytes plus a type. SentencePiece's
 *           U+2581 is a space here and the byte-level alphabet is decoded, so encoders run on plain bytes.
 * Ownership a vocabulary owns one block of memory sized from the file's header, and its pre-tokeniser.
 * Units     bytes; ids are token numbers, -1 = none.
 * Errors    BL_EFORMAT names the key and the index; BL_EUNSUPPORTED names what is supported; BL_EUNAVAILABLE: the
 *           file has no vocabulary.
 * Threads   a vocabulary is read-only after open; a struct bl_tok_work belongs to one call.
 */
#ifndef BL_VOCAB_H
#define BL_VOCAB_H

#include "pretok.h"

enum bl_vocab_kind {
    BL_VOCAB_SPM,     /* "llama": merges by score on characters */
    BL_VOCAB_BPE,     /* "gpt2": merges by rank on bytes */
    BL_VOCAB_BPE_UTF8 /* "gemma4": merges by rank on characters */
};
enum { /* bl_vocab.attr: the file's token_type in the low bits, and what we know besides */
    BL_TOKEN_NORMAL = 1,
    BL_TOKEN_UNKNOWN = 2,
    BL_TOKEN_CONTROL = 3,
    BL_TOKEN_USER_DEFINED = 4,
    BL_TOKEN_UNUSED = 5,
    BL_TOKEN_BYTE = 6,
    BL_TOKEN_TYPE = 7,    /* mask */
    BL_TOKEN_END = 8,     /* generation stops here */
    BL_TOKEN_RSTRIP = 16, /* white space after it in the text is dropped */
    BL_TOKEN_PRINT = 32,  /* control, but printed: an output parser wants to see it */
    BL_TOKEN_INEXACT = 64 /* its bytes are not what its text spells: never found by text */
};

struct bl_token_table { /* bytes -> id, open addressing; slots hold id + 1, 0 = free */
    uint32_t *slot;
    uint32_t mask;
};
struct bl_merge {
    int32_t left, right, result; /* result -1: merges into a text that is no token */
};
struct bl_vocab {
    enum bl_vocab_kind kind;
    uint32_t n_tokens, n_merges, n_specials;
    uint32_t max_bytes;             /* longest token */
    uint8_t *attr;                  /* [n_tokens] */
    uint32_t *start;                /* [n_tokens + 1] into bytes */
    char *bytes;
    uint32_t *priority;             /* SPM [n_tokens]: smaller merges first */
    struct bl_merge *merge;         /* BPE [n_merges]: index = rank */
    uint32_t *merge_slot;           /* pair -> rank + 1 */
    uint32_t merge_mask;
    uint64_t *special;              /* [n_specials] control, unknown, user-defined: ~length << 32 | id, sorted */
    uint64_t special_first[4];      /* bit set of the bytes they begin with */
    bool has_user_defined;
    struct bl_token_table by_text;  /* what the encoders may produce */
    struct bl_token_table by_special;
    int32_t byte_id[256];
    int32_t bos, eos, unknown;
    bool add_bos, add_eos, space_prefix, ignore_merges;
    struct bl_pretok *pretok;       /* NULL for SPM */
    void *block;
    size_t block_bytes;
};

/* Bytes bl_vocab_open will hold, from the header alone; 0 where it would fail. Never less than the real number. */
uint64_t bl_vocab_plan_bytes(const struct bl_gguf *);
uint64_t bl_vocab_heap_bytes(const struct bl_vocab *);

/* The output bytes of a token, not NUL-terminated. */
static inline const char *bl_vocab_piece(const struct bl_vocab *v, int32_t id, uint32_t *n_bytes)
{
    *n_bytes = v->start[id + 1] - v->start[id];
    return v->bytes + v->start[id];
}
static inline unsigned bl_vocab_type(const struct bl_vocab *v, int32_t id)
{
    return v->attr[id] & BL_TOKEN_TYPE;
}
static inline bool bl_vocab_text_is(const char *s, uint64_t n_bytes, const char *word)
{
    return n_bytes == strlen(word) && memcmp(s, word, n_bytes) == 0;
}
int32_t bl_vocab_find(const struct bl_vocab *, const struct bl_token_table *, const char *s, size_t n_bytes);
/* Adds `id` unless its text is there already. false: too many texts share its hash, which is no accident. */
bool bl_vocab_index(struct bl_vocab *, struct bl_token_table *, int32_t id);
/* Rank of the merge of two tokens, -1 = they do not merge. */
int64_t bl_vocab_merge_rank(const struct bl_vocab *, int32_t left, int32_t right);
/* Makes merge[rank] known to bl_vocab_merge_rank unless its pair is known already. */
bool bl_vocab_index_merge(struct bl_vocab *, uint32_t rank);

/* ---- vocab_read.c: the file's arrays ---- */

struct bl_vocab_source { /* the header's view, checked for type and length */
    const char *file; /* for messages */
    enum bl_vocab_kind kind;
    const struct bl_pretok_rule *rule; /* NULL for SPM */
    const struct bl_kv *tokens, *types, *scores, *merges;
    uint32_t n_tokens, n_merges, n_specials;
};
enum bl_status bl_vocab_source_read(struct bl_vocab_source *, const struct bl_gguf *);
enum bl_status bl_vocab_read_tokens(struct bl_vocab *, const struct bl_vocab_source *);
enum bl_status bl_vocab_read_scores(struct bl_vocab *, const struct bl_vocab_source *);
enum bl_status bl_vocab_read_merges(struct bl_vocab *, const struct bl_vocab_source *);

/* ---- vocab_rules.c ---- */

/* Special ids, what is added around a text, where generation ends. */
enum bl_status bl_vocab_read_rules(struct bl_vocab *, const struct bl_vocab_source *, const struct bl_gguf *);

/* ---- tokenize.c: one call ---- */

struct bl_tok_symbol {
    uint32_t prev, next; /* UINT32_MAX = none */
    uint32_t start, bytes; /* of the text; bytes 0: merged away */
    int32_t id;
};
struct bl_tok_pair {
    uint64_t key; /* priority, then position of the left symbol: smallest first */
    uint32_t right, bytes;
    int32_t id; /* of the merged symbol */
};
struct bl_tok_work {
    const struct bl_vocab *vocab;
    int32_t *id; /* the result */
    size_t n_ids, cap_ids;
    const char *text; /* of the piece being merged */
    struct bl_tok_symbol *symbol;
    size_t n_symbols, cap_symbols;
    struct bl_tok_pair *heap;
    size_t n_heap, cap_heap;
    char *buffer; /* normalised text */
    size_t cap_buffer;
};
enum bl_status bl_tok_push(struct bl_tok_work *, int32_t id);
/* Text that is no token: its byte tokens, or the unknown token where there are none. */
enum bl_status bl_tok_push_bytes(struct bl_tok_work *, const char *s, size_t n_bytes);
/* Makes work->text from `s`: U+2581 becomes a space, one space goes before when asked for. */
enum bl_status bl_tok_normalise(struct bl_tok_work *, const char *s, size_t n_bytes, bool prefix, size_t *n_out);
/* One symbol per byte or per character (a byte that is not UTF-8 counts as one). */
enum bl_status bl_tok_symbols(struct bl_tok_work *, size_t n_bytes, bool characters);
/* Merges the best pair until none is left. `pair` says whether two neighbours merge, how early and into what. */
typedef bool bl_tok_pair_fn(const struct bl_tok_work *, const struct bl_tok_symbol *left,
                            const struct bl_tok_symbol *right, uint32_t *priority, int32_t *id);
enum bl_status bl_tok_merge(struct bl_tok_work *, bl_tok_pair_fn *pair);
enum bl_status bl_tok_emit(struct bl_tok_work *); /* ids of the remaining symbols */

/* One fragment without special tokens. first: nothing or a special token stands before it. */
enum bl_status bl_tok_spm(struct bl_tok_work *, const char *s, size_t n_bytes, bool first);
enum bl_status bl_tok_bpe(struct bl_tok_work *, const char *s, size_t n_bytes);

/* ---- text.c: UTF-8 ---- */

enum bl_utf8 { BL_UTF8_OK, BL_UTF8_BAD, BL_UTF8_CUT /* right so far, ends too early */ };
/* Length of the sequence at s (n_bytes > 0) or, when it is not one, of the longest prefix that could begin one
 * (at least 1). */
size_t bl_utf8_next(const char *s, size_t n_bytes, enum bl_utf8 *what);

#endif
