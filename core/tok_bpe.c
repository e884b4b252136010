/* SPDX-License-Identifier: MIT */
/* Byte-pair encoding: the pre-tokeniser's pieces, merged pair by pair in the order of the file's
 * merge list. */
#include "vocab.h"

static bool pair_by_rank(const struct bl_tok_work *w, const struct bl_tok_symbol *left,
                         const struct bl_tok_symbol *right, uint32_t *priority, int32_t *id)
{
    int64_t rank = bl_vocab_merge_rank(w->vocab, left->id, right->id);
    if (rank < 0)
        return false;
    *priority = (uint32_t)rank;
    *id = w->vocab->merge[rank].result;
    return true;
}

/* Files without a merge list are made from vocabularies whose ids are the order of merging. */
static bool pair_by_id(const struct bl_tok_work *w, const struct bl_tok_symbol *left,
                       const struct bl_tok_symbol *right, uint32_t *priority, int32_t *id)
{
    const struct bl_vocab *v = w->vocab;
    size_t n = (size_t)left->bytes + right->bytes;
    *id = bl_vocab_find(v, &v->by_text, w->text + left->start, n);
    *priority = (uint32_t)*id;
    return *id >= 0;
}

static bool all_newlines(const char *s, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        if (s[i] != '\n')
            return false;
    return true;
}

static enum bl_status encode_piece(void *arg, const char *s, size_t n_bytes)
{
    struct bl_tok_work *w = arg;
    const struct bl_vocab *v = w->vocab;
    bool characters = v->kind == BL_VOCAB_BPE_UTF8;
    if (v->ignore_merges || (characters && all_newlines(s, n_bytes))) {
        int32_t id = bl_vocab_find(v, &v->by_text, s, n_bytes);
        if (id >= 0)
            return bl_tok_push(w, id);
    }
    w->text = s;
    BL_TRY(bl_tok_symbols(w, n_bytes, characters));
    BL_TRY(bl_tok_merge(w, v->n_merges ? pair_by_rank : pair_by_id));
    return bl_tok_emit(w);
}

enum bl_status bl_tok_bpe(struct bl_tok_work *w, const char *s, size_t n_bytes)
{
    if (w->vocab->kind == BL_VOCAB_BPE_UTF8) {
        BL_TRY(bl_tok_normalise(w, s, n_bytes, false, &n_bytes));
        s = w->buffer;
    }
    return bl_pretok_split(w->vocab->pretok, s, n_bytes, encode_piece, w);
}
