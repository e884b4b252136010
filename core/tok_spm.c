/* SPDX-License-Identifier: MIT */
/* SentencePiece BPE: characters merge into vocabulary entries, the highest score first. */
#include "vocab.h"

static bool pair_by_score(const struct bl_tok_work *w, const struct bl_tok_symbol *left,
                          const struct bl_tok_symbol *right, uint32_t *priority, int32_t *id)
{
    const struct bl_vocab *v = w->vocab;
    size_t n = (size_t)left->bytes + right->bytes; /* neighbours: one stretch of text */
    *id = bl_vocab_find(v, &v->by_text, w->text + left->start, n);
    if (*id < 0)
        return false;
    *priority = v->priority[*id];
    return true;
}

enum bl_status bl_tok_spm(struct bl_tok_work *w, const char *s, size_t n_bytes, bool first)
{
    size_t n;
    BL_TRY(bl_tok_normalise(w, s, n_bytes, first && w->vocab->space_prefix, &n));
    BL_TRY(bl_tok_symbols(w, n, true));
    BL_TRY(bl_tok_merge(w, pair_by_score));
    return bl_tok_emit(w);
}
