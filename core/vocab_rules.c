/* SPDX-License-Identifier: MIT */
/* What a vocabulary does with its tokens: which ids are special, what stands around a text, where
 * generation ends. */
#include "vocab.h"

#include <ctype.h>
#include <inttypes.h>

#include "answer.h"
#include "gguf.h"
#include "log.h"

/* ---- where generation ends ---- */

enum { END_RETURN, END_CALL, END_TOOL_RESPONSE, END_OTHER };
static const char *const end_texts[] = {
    [END_RETURN] = "<|return|>",
    [END_CALL] = "<|call|>",
    [END_TOOL_RESPONSE] = "<|tool_response>",
    [END_OTHER] = "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "</s>",
    ("<\xEF\xBD\x9C"
     "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"),
};

/* Marks the tokens with these texts, as the file spells them, and notes the first few of the list.
 */
static void mark_end_texts(struct bl_vocab *v, const struct bl_vocab_source *src,
                           bool seen[END_OTHER])
{
    uint64_t cursor = 0, n;
    const char *s;
    for (uint32_t i = 0; bl_gguf_next_string(src->tokens, &cursor, &s, &n); i++)
        for (size_t k = 0; n >= 4 && n <= 32 && k < BL_COUNT(end_texts); k++)
            if (bl_vocab_text_is(s, n, end_texts[k])) {
                v->attr[i] |= BL_TOKEN_END;
                if (k < END_OTHER)
                    seen[k] = true;
            }
}

/* A special id of the file. One beyond the vocabulary is ignored, as the key often is wrong in old
 * files. */
static enum bl_status read_id(const struct bl_gguf *g, const char *key, uint32_t n_tokens,
                              int32_t *id)
{
    int64_t value = -1;
    if (*id >= 0 && (uint32_t)*id >= n_tokens)
        *id = -1; /* the default */
    BL_TRY(bl_gguf_i64(g, key, false, &value));
    if (value >= 0 && value < n_tokens)
        *id = (int32_t)value;
    else if (value != -1)
        bl_warn("%s is %" PRId64 ", the vocabulary has %" PRIu32 " tokens: ignored", key, value,
                n_tokens);
    return BL_OK;
}

static enum bl_status read_end_ids(struct bl_vocab *v, const struct bl_gguf *g)
{
    static const char *const keys[] = {
        "tokenizer.ggml.eot_token_id",     "tokenizer.ggml.eom_token_id",
        "tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id",
        "tokenizer.ggml.fim_sep_token_id",
    };
    if (v->eos >= 0)
        v->attr[v->eos] |= BL_TOKEN_END;
    for (size_t i = 0; i < BL_COUNT(keys); i++) {
        int32_t id = -1;
        BL_TRY(read_id(g, keys[i], v->n_tokens, &id));
        if (id >= 0)
            v->attr[id] |= BL_TOKEN_END;
    }
    return BL_OK;
}

static bool token_is(const struct bl_vocab *v, uint32_t i, const char *text)
{
    uint32_t n;
    const char *s = bl_vocab_piece(v, (int32_t)i, &n);
    return bl_vocab_text_is(s, n, text);
}

/* gpt-oss ends its messages with <|end|> in mid-answer, and its channel markers are wanted by
 * whoever reads the answer; gemma4's </s> is no end. */
static void apply_exceptions(struct bl_vocab *v, const bool seen[END_OTHER])
{
    static const char *const visible[] = {"<|channel|>", "<|message|>", "<|start|>",
                                          "<|constrain|>"};
    bool harmony = seen[END_RETURN] && seen[END_CALL];
    for (uint32_t i = 0; (harmony || seen[END_TOOL_RESPONSE]) && i < v->n_tokens; i++) {
        if ((harmony && token_is(v, i, "<|end|>")) ||
            (seen[END_TOOL_RESPONSE] && token_is(v, i, "</s>")))
            v->attr[i] &= (uint8_t)~BL_TOKEN_END;
        for (size_t k = 0; harmony && k < BL_COUNT(visible); k++)
            if (token_is(v, i, visible[k]))
                v->attr[i] |= BL_TOKEN_PRINT;
    }
}

/* Whoever parts reasoning from the answer has to see where it ends. */
static void show_marks(struct bl_vocab *v)
{
    for (uint32_t k = 0; k < v->n_specials; k++) {
        int32_t id = (int32_t)(v->special[k] & UINT32_MAX);
        uint32_t n;
        const char *s = bl_vocab_piece(v, id, &n);
        if (bl_answer_is_mark(s, n))
            v->attr[id] |= BL_TOKEN_PRINT;
    }
}

static bool contains_folded(const char *s, uint64_t n, const char *word)
{
    size_t len = strlen(word), i;
    for (uint64_t at = 0; at + len <= n; at++) {
        for (i = 0; i < len && tolower((unsigned char)s[at + i]) == word[i]; i++)
            ;
        if (i == len)
            return true;
    }
    return false;
}

/* Phi-3 was trained without the white space after its special tokens. */
static enum bl_status mark_rstrip(struct bl_vocab *v, const struct bl_gguf *g)
{
    const char *name = "";
    uint64_t n = 0;
    BL_TRY(bl_gguf_str(g, "general.name", false, &name, &n));
    if (v->kind != BL_VOCAB_SPM ||
        (!contains_folded(name, n, "phi-3") && !contains_folded(name, n, "phi3")))
        return BL_OK;
    for (uint32_t k = 0; k < v->n_specials; k++) {
        uint32_t i = (uint32_t)v->special[k];
        if (!token_is(v, i, "<unk>") && !token_is(v, i, "<s>") && !token_is(v, i, "<|endoftext|>"))
            v->attr[i] |= BL_TOKEN_RSTRIP;
    }
    return BL_OK;
}

enum bl_status bl_vocab_read_rules(struct bl_vocab *v, const struct bl_vocab_source *src,
                                   const struct bl_gguf *g)
{
    bool spm = v->kind == BL_VOCAB_SPM, squeeze = false, seen[END_OTHER] = {false};
    v->bos = spm ? 1 : -1;
    v->eos = spm ? 2 : -1;
    v->unknown = spm ? 0 : -1;
    v->add_bos = spm || src->rule->add_bos;
    v->space_prefix = spm;
    v->ignore_merges = src->rule && src->rule->ignore_merges;
    BL_TRY(read_id(g, "tokenizer.ggml.bos_token_id", v->n_tokens, &v->bos));
    BL_TRY(read_id(g, "tokenizer.ggml.eos_token_id", v->n_tokens, &v->eos));
    BL_TRY(read_id(g, "tokenizer.ggml.unknown_token_id", v->n_tokens, &v->unknown));
    BL_TRY(bl_gguf_bool(g, "tokenizer.ggml.add_bos_token", false, &v->add_bos));
    BL_TRY(bl_gguf_bool(g, "tokenizer.ggml.add_eos_token", false, &v->add_eos));
    BL_TRY(bl_gguf_bool(g, "tokenizer.ggml.remove_extra_whitespaces", false, &squeeze));
    if (spm)
        BL_TRY(bl_gguf_bool(g, "tokenizer.ggml.add_space_prefix", false, &v->space_prefix));
    if (v->add_bos && v->bos < 0)
        bl_warn("texts should begin with a token, but tokenizer.ggml.bos_token_id is missing");
    if (squeeze)
        bl_warn("tokenizer.ggml.remove_extra_whitespaces is for unigram vocabularies: ignored");
    mark_end_texts(v, src, seen);
    BL_TRY(read_end_ids(v, g));
    apply_exceptions(v, seen);
    show_marks(v);
    return mark_rstrip(v, g);
}
