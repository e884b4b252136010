/* SPDX-License-Identifier: MIT */
/* Which type every weight gets. A recipe is a base type and rules PATTERN=TYPE, of which the last
 * that matches counts: the mixes that quantising programs make, written down. */
#include "synth.h"

#include "mem.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_RULES = 32, WORD_BYTES = 64 };

static const struct {
    const char *name, *types;
} recipes[] = {
    {"q4_k_m", "q4_k,attn_qkv=q5_k,attn_v@more=q6_k,ffn_down*@more=q6_k,head=q6_k"},
    {"q5_k_m", "q5_k,attn_qkv=q6_k,attn_v@more=q6_k,ffn_down*@more=q6_k,head=q6_k"},
    {"q6_k", "q6_k"},
    {"q8_0", "q8_0"},
    {"mxfp4_moe", "q8_0,*_exps=mxfp4"},
    {"q4_k_exps", "q8_0,*_exps=q4_k"},
    {"ud-q4_k_xl", "q8_0,*_exps=q4_k,ffn_down_exps=q5_k,ffn_down_exps@more=q6_k,token_embd=q4_k,"
                   "head=q6_k"},
    {"ud-q3_k_xl", "q8_0,*_exps=q3_k,ffn_down_exps=q4_k,ffn_down_exps@more=q5_k,token_embd=q4_k,"
                   "head=q6_k"},
    {"ud-q2_k_xl", "q6_k,*_exps=q2_k,ffn_down_exps=q3_k,ffn_down_exps@more=q4_k,token_embd=q4_k,"
                   "head=q6_k"},
    {"ud-iq2_xxs", "q5_k,*_exps=iq2_xxs,ffn_down_exps=iq2_s,ffn_down_exps@more=iq3_xxs,"
                   "token_embd=q4_k,head=q6_k"},
    {"ud-iq1_m", "q5_k,*_exps=iq1_m,ffn_down_exps=iq2_xxs,ffn_down_exps@more=iq3_xxs,"
                 "token_embd=q4_k,head=q6_k"},
};

const char *bl_synth_recipe(uint32_t i, const char **types)
{
    if (i >= BL_COUNT(recipes))
        return NULL;
    *types = recipes[i].types;
    return recipes[i].name;
}

/* Small, and spoilt by coarse types: converters leave them alone. Stems, without block number. */
static const char *const kept[] = {"ffn_gate_inp", "hc_*_fn", "output_hc_fn", "*_ape",
                                   "indexer.proj"};

struct rule {
    char pattern[WORD_BYTES];
    bool more; /* only in layers that get more bits */
    enum bl_dtype type;
};
struct recipe {
    enum bl_dtype base;
    struct rule rule[MOST_RULES];
    uint32_t n;
};

/* ---- reading ---- */

static enum bl_status read_rule(const char *text, size_t n, struct rule *r)
{
    char word[WORD_BYTES], *equals, *at;
    if (n >= sizeof word)
        return bl_fail(BL_EINVAL, "recipe: '%.40s...' is too long", text);
    memcpy(word, text, n);
    word[n] = 0;
    equals = strchr(word, '=');
    if (!equals || equals == word)
        return bl_fail(BL_EINVAL, "recipe: '%s' must be PATTERN=TYPE", word);
    *equals = 0;
    at = strchr(word, '@');
    if (at && strcmp(at, "@more"))
        return bl_fail(BL_EINVAL, "recipe: '%s': only @more is known", at);
    if (at)
        *at = 0;
    r->more = at;
    memcpy(r->pattern, word, sizeof word);
    return bl_dtype_by_name(equals + 1, &r->type);
}

static enum bl_status read_base(const char *text, size_t n, enum bl_dtype *out)
{
    char word[WORD_BYTES];
    snprintf(word, sizeof word, "%.*s", n < WORD_BYTES ? (int)n : WORD_BYTES - 1, text);
    return bl_dtype_by_name(word, out);
}

static enum bl_status read_recipe(const char *text, struct recipe *r)
{
    for (uint32_t i = 0; i < BL_COUNT(recipes); i++)
        if (!strcmp(recipes[i].name, text))
            text = recipes[i].types;
    size_t n = strcspn(text, ",");
    BL_TRY(read_base(text, n, &r->base));
    for (text += n; *text == ','; text += n) {
        if (r->n == MOST_RULES)
            return bl_fail(BL_EINVAL, "recipe: more than %d rules", MOST_RULES);
        n = strcspn(++text, ",");
        BL_TRY(read_rule(text, n, &r->rule[r->n++]));
    }
    return BL_OK;
}

/* ---- matching ---- */

/* '*' stands for any number of characters. */
static bool matches(const char *pattern, const char *s)
{
    for (; *pattern && *pattern != '*'; pattern++, s++)
        if (*pattern != *s)
            return false;
    if (!*pattern)
        return !*s;
    for (;; s++) {
        if (matches(pattern + 1, s))
            return true;
        if (!*s)
            return false;
    }
}

struct place {
    char stem[WORD_BYTES]; /* "attn_q" of "blk.3.attn_q.weight" */
    uint32_t layer, layers;
    bool head; /* what makes logits, the embedding where there is one matrix for both */
};

static struct place place_of(const struct bl_gguf *g, const char *name, uint32_t layers)
{
    struct place p = {.layers = layers};
    char *end;
    if (!strncmp(name, "blk.", 4)) {
        p.layer = (uint32_t)strtoul(name + 4, &end, 10);
        name = *end == '.' ? end + 1 : end;
    }
    snprintf(p.stem, sizeof p.stem, "%s", name);
    end = strrchr(p.stem, '.');
    if (end)
        *end = 0;
    p.head = !strcmp(p.stem, "output") ||
             (!strcmp(p.stem, "token_embd") && !bl_gguf_find_tensor(g, "output.weight", NULL));
    return p;
}

/* The layers in which mixes spend more: the first and last eighth, between them every third. */
static bool gets_more(const struct place *p)
{
    uint32_t eighth = p->layers / 8;
    return p->layer < eighth || p->layer >= 7 * p->layers / 8 || (p->layer - eighth) % 3 == 2;
}

static bool applies(const struct rule *r, const struct place *p)
{
    bool named = strcmp(r->pattern, "head") ? matches(r->pattern, p->stem) : p->head;
    return named && (!r->more || gets_more(p));
}

/* Rows that are no whole number of blocks get a near type of smaller blocks, as quantisers do it.
 */
static enum bl_dtype fitting(enum bl_dtype type, uint64_t n_in)
{
    if (n_in % bl_dtypes[type].block_elems == 0)
        return type;
    switch (type) {
    case BL_Q4_K:
        type = BL_Q5_0;
        break;
    case BL_Q5_K:
        type = BL_Q5_1;
        break;
    case BL_Q6_K:
        type = BL_Q8_0;
        break;
    default:
        type = BL_IQ4_NL;
    }
    return n_in % bl_dtypes[type].block_elems ? BL_F16 : type;
}

static enum bl_dtype type_of(const struct recipe *r, const struct place *p, uint64_t n_in)
{
    enum bl_dtype type = r->base;
    for (uint32_t i = 0; i < BL_COUNT(kept); i++)
        if (matches(kept[i], p->stem))
            return BL_F32;
    for (uint32_t i = 0; i < r->n; i++)
        if (applies(&r->rule[i], p))
            type = r->rule[i].type;
    return fitting(type, n_in);
}

/* A rule that names nothing is most likely misspelt. In built-in recipes it may. */
static enum bl_status check_rules(const struct bl_gguf *g, const struct recipe *r, uint32_t layers)
{
    for (uint32_t i = 0; i < r->n; i++) {
        bool used = false;
        for (uint32_t t = 0; t < bl_gguf_n_tensors(g) && !used; t++) {
            struct place p = place_of(g, bl_gguf_tensor(g, t)->name, layers);
            used = strcmp(r->rule[i].pattern, "head") ? matches(r->rule[i].pattern, p.stem) : true;
        }
        if (!used)
            return bl_fail(BL_EINVAL, "recipe: no tensor of this model matches '%s'",
                           r->rule[i].pattern);
    }
    return BL_OK;
}

static enum bl_status check_type(enum bl_dtype type)
{
    return bl_dtypes[type].act != BL_ACT_NONE
               ? BL_OK
               : bl_fail(BL_EINVAL, "recipe: %s is not a type of weight", bl_dtypes[type].name);
}

enum bl_status bl_synth_apply_recipe(struct bl_gguf *g, const char *text, uint32_t layers)
{
    struct recipe r = {0};
    const char *types;
    bool known = false;
    BL_TRY(read_recipe(text, &r));
    BL_TRY(check_type(r.base));
    for (uint32_t i = 0; i < r.n; i++)
        BL_TRY(check_type(r.rule[i].type));
    for (uint32_t i = 0; bl_synth_recipe(i, &types); i++)
        known = known || !strcmp(bl_synth_recipe(i, &types), text);
    if (!known)
        BL_TRY(check_rules(g, &r, layers));
    for (uint32_t i = 0; i < bl_gguf_n_tensors(g); i++) {
        const struct bl_tensor_info *t = bl_gguf_tensor(g, i);
        struct place p = place_of(g, t->name, layers);
        if (t->type == BL_F16) /* an outline's weights */
            BL_TRY(bl_gguf_set_type(g, i, type_of(&r, &p, t->ne[0])));
    }
    return BL_OK;
}
