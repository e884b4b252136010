/* SPDX-License-Identifier: MIT */
#include "pretok.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "vocab.h"

/* What the patterns share. They are the models' own, not adapted to this library. */
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
/* The model means the script; plain \p{Han} of PCRE2 also takes what it shares, such as U+3002. */
#define HAN "\\p{sc:Han}"
#define NOT_HAN "(?!" HAN ")"
#define LEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define SYMBOLS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define SYMBOLS_SLASH " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"
#define NEWLINES "\\s*[\\r\\n]+"
#define SPACES "\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|" SPACES

/* clang-format off */
enum kind_id { LLAMA_BPE, QWEN2, QWEN35, DEEPSEEK_V3, GPT_4O, GPT_2, SMOLLM, DEEPSEEK_LLM, DEFAULT,
               KIMI_K2, TEKKEN, GEMMA4, MINICPM5, JAIS_2, N_KINDS };
static const struct bl_pretok_kind kinds[N_KINDS] = {
    [LLAMA_BPE] = {"llama-bpe",
        {CONTRACTION "|" LEAD "\\p{L}+|\\p{N}{1,3}|" SYMBOLS "|" NEWLINES "|" SPACES}},
    [QWEN2] = {"qwen2",
        {CONTRACTION "|" LEAD "\\p{L}+|\\p{N}|" SYMBOLS "|" NEWLINES "|" SPACES}},
    [QWEN35] = {"qwen35",
        {CONTRACTION "|" LEAD "[\\p{L}\\p{M}]+|\\p{N}|"
         " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" NEWLINES "|" SPACES}},
    [DEEPSEEK_V3] = {"deepseek-v3",
        {"\\p{N}{1,3}",
         "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
         "[!\\\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
         "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|"
         NEWLINES "|" SPACES}},
    [GPT_4O] = {"gpt-4o",
        {LEAD UPPER "*" LOWER "+" CONTRACTION "?|" LEAD UPPER "+" LOWER "*" CONTRACTION "?|"
         "\\p{N}{1,3}|" SYMBOLS_SLASH "|" NEWLINES "|" SPACES}},
    [GPT_2] = {"gpt-2", {GPT2}},
    [SMOLLM] = {"smollm", {"\\p{N}", GPT2}},
    [DEEPSEEK_LLM] = {"deepseek-llm",
        {"[\\r\\n]",
         "\\s?[A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"
         "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"
         "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"
         "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}"
         "\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"
         "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"
         "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}"
         "\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}"
         "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}"
         "\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"
         "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}"
         "\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}"
         "\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"
         "\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"
         "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}"
         "\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"
         "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"
         "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}]+",
         "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}"
         "\\x{3000}-\\x{3002}]+",
         /* the model says \s+$ ; the look-behind changes no match, but without JIT a run is tried
            once and not once per character */
         "(?<!\\s)\\s+$",
         "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+",
         "\\p{N}+"}},
    [DEFAULT] = {"default", {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    [KIMI_K2] = {"kimi-k2",
        {HAN "+|"
         LEAD "(?:" NOT_HAN UPPER ")*(?:" NOT_HAN LOWER ")+" CONTRACTION "?|"
         LEAD "(?:" NOT_HAN UPPER ")+(?:" NOT_HAN LOWER ")*" CONTRACTION "?|"
         "\\p{N}{1,3}|" SYMBOLS "|" NEWLINES "|" SPACES}},
    [TEKKEN] = {"tekken",
        {LEAD UPPER "*" LOWER "+|" LEAD UPPER "+" LOWER "*|\\p{N}|" SYMBOLS_SLASH "|"
         NEWLINES "|" SPACES}},
    [GEMMA4] = {"gemma4", {"[^\\n]+|[\\n]+"}},
    /* like llama-bpe, with digits cut first */
    [MINICPM5] = {"minicpm5",
        {"\\p{N}{1,3}", CONTRACTION "|" LEAD "\\p{L}+|\\p{N}+|" SYMBOLS "|" NEWLINES "|" SPACES}},
    /* like llama-bpe, with runs of white space cut at powers of two */
    [JAIS_2] = {"jais-2",
        {CONTRACTION "|" LEAD "\\p{L}+|\\p{N}{1,3}|" SYMBOLS "|" NEWLINES "|"
         "\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|"
         "\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"}},
};

static const struct bl_pretok_rule rules[] = {
    /* values of tokenizer.ggml.pre, kind, pieces that are tokens stay whole, BOS by default */
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     &kinds[LLAMA_BPE], true, true},
    {"dbrx smaug-bpe glm4 chatglm-bpe", &kinds[LLAMA_BPE], false, false},
    {"minicpm5", &kinds[MINICPM5], true, false},
    {"jais-2", &kinds[JAIS_2], false, false},
    {"qwen2 deepseek-r1-qwen stablelm2 hunyuan solar-open megrez grok-2 kormo bailingmoe "
     "bailingmoe2 llada-moe", &kinds[QWEN2], false, false},
    {"qwen35", &kinds[QWEN35], false, false},
    {"deepseek-v3 hunyuan-dense joyai-llm", &kinds[DEEPSEEK_V3], false, false},
    {"gpt-4o llama4 kanana2 minimax-m2", &kinds[GPT_4O], false, false},
    {"gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum",
     &kinds[GPT_2], false, false},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
     &kinds[SMOLLM], false, false},
    {"deepseek-llm", &kinds[DEEPSEEK_LLM], false, false},
    {"default", &kinds[DEFAULT], false, false},
    {"kimi-k2", &kinds[KIMI_K2], false, false},
    {"tekken", &kinds[TEKKEN], true, true},
    {"gemma4", &kinds[GEMMA4], false, true},
};
/* clang-format on */

static bool has_word(const char *words, const char *word, size_t n_bytes)
{
    while (*words) {
        size_t n = strcspn(words, " ");
        if (n == n_bytes && memcmp(words, word, n) == 0)
            return true;
        words += n + (words[n] == ' ');
    }
    return false;
}

const struct bl_pretok_rule *bl_pretok_rule_find(const char *pre, size_t n_bytes)
{
    for (size_t i = 0; i < BL_COUNT(rules); i++)
        if (has_word(rules[i].names, pre, n_bytes))
            return &rules[i];
    return NULL;
}

const struct bl_pretok_rule *bl_pretok_rule_at(uint32_t i)
{
    return i < BL_COUNT(rules) ? &rules[i] : NULL;
}

const char *bl_pretok_kind_names(void)
{
    return "llama-bpe, qwen2, qwen35, deepseek-v3, gpt-4o, gpt-2, smollm, deepseek-llm, default, "
           "kimi-k2, tekken, minicpm5, jais-2 and their aliases";
}

/* ---- compiled form ---- */

enum {
    MATCH_LIMIT = 10 * 1000 * 1000,
    HEAP_LIMIT_KIB = 64 * 1024, /* of the interpreter, where there is no JIT */
    JIT_STACK_MIN = 32 * 1024,
    JIT_STACK_MAX = 8 * 1024 * 1024,
    SLICE_BYTES = 64 * 1024
};

struct bl_pretok {
    pcre2_code *stage[BL_PRETOK_STAGES];
    unsigned n_stages;
    pcre2_general_context *memory;
    uint64_t heap_bytes;
};

/* PCRE2 allocates through these, so that what a splitter holds is counted where it is obtained. */
enum { COUNT_HEADER = 16 };

static void *counted_alloc(PCRE2_SIZE n, void *total)
{
    unsigned char *p = n <= SIZE_MAX - COUNT_HEADER ? malloc(n + COUNT_HEADER) : NULL;
    if (!p)
        return NULL;
    memcpy(p, &n, sizeof n);
    *(uint64_t *)total += n + COUNT_HEADER;
    return p + COUNT_HEADER;
}

static void counted_free(void *p, void *total)
{
    if (!p)
        return;
    PCRE2_SIZE n;
    unsigned char *block = (unsigned char *)p - COUNT_HEADER;
    memcpy(&n, block, sizeof n);
    *(uint64_t *)total -= n + COUNT_HEADER;
    free(block);
}

static enum bl_status compile_stage(struct bl_pretok *p, pcre2_compile_context *cc,
                                    const char *pattern)
{
    int error = 0;
    PCRE2_SIZE at = 0, jit_bytes = 0;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &error, &at, cc);
    if (!code && error == PCRE2_ERROR_HEAP_FAILED)
        return bl_fail(BL_ENOMEM, "pre-tokenizer: out of memory compiling a pattern");
    if (!code) {
        char text[120] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)text, sizeof text);
        return bl_fail(BL_EUNSUPPORTED, "pre-tokenizer: PCRE2 refuses a pattern at byte %zu: %s",
                       at, text);
    }
    p->stage[p->n_stages++] = code;
    /* Without JIT (no executable memory here, or an odd CPU) the interpreter gives the same pieces.
     */
    if (pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0 &&
        pcre2_pattern_info(code, PCRE2_INFO_JITSIZE, &jit_bytes) == 0)
        p->heap_bytes += jit_bytes;
    return BL_OK;
}

enum bl_status bl_pretok_create(struct bl_pretok **out, const struct bl_pretok_kind *kind)
{
    enum bl_status st = BL_ENOMEM;
    pcre2_compile_context *cc = NULL;
    struct bl_pretok *p = calloc(1, sizeof *p);
    if (!p)
        goto out;
    p->heap_bytes = sizeof *p;
    p->memory = pcre2_general_context_create(counted_alloc, counted_free, &p->heap_bytes);
    if (!p->memory || !(cc = pcre2_compile_context_create(p->memory)))
        goto out;
    st = BL_OK;
    for (unsigned i = 0; i < BL_PRETOK_STAGES && kind->stage[i] && !st; i++)
        st = compile_stage(p, cc, kind->stage[i]);
    if (!st) {
        *out = p;
        p = NULL;
    }
out:
    pcre2_compile_context_free(cc);
    bl_pretok_destroy(p);
    return st == BL_ENOMEM ? bl_fail(BL_ENOMEM, "pre-tokenizer %s: out of memory", kind->name) : st;
}

void bl_pretok_destroy(struct bl_pretok *p)
{
    if (!p)
        return;
    for (unsigned i = 0; i < p->n_stages; i++)
        pcre2_code_free(p->stage[i]);
    pcre2_general_context_free(p->memory);
    free(p);
}

uint64_t bl_pretok_heap_bytes(const struct bl_pretok *p)
{
    return p->heap_bytes;
}

/* ---- splitting ---- */

struct split {
    const struct bl_pretok *pretok;
    bl_pretok_piece_fn *piece;
    void *arg;
    pcre2_match_data *match[BL_PRETOK_STAGES]; /* one each: a stage waits while the next runs */
    pcre2_match_context *limits;
    pcre2_jit_stack *stack; /* only once a match has needed more than the thread's own */
};

static enum bl_status split_stage(struct split *, unsigned stage, const char *s, size_t n,
                                  bool sliced);

static int match_at(struct split *sp, unsigned stage, const char *s, size_t n, size_t from)
{
    const pcre2_code *code = sp->pretok->stage[stage];
    int rc =
        pcre2_match(code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, sp->match[stage], sp->limits);
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT || sp->stack)
        return rc;
    sp->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
    if (!sp->stack)
        return PCRE2_ERROR_NOMEMORY;
    pcre2_jit_stack_assign(sp->limits, NULL, sp->stack);
    return pcre2_match(code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, sp->match[stage],
                       sp->limits);
}

/* End of a slice of at most SLICE_BYTES: after the last newline in it, else between characters. */
static size_t slice_bytes(const char *s, size_t n)
{
    if (n <= SLICE_BYTES)
        return n;
    for (size_t i = SLICE_BYTES; i > 0; i--)
        if (s[i - 1] == '\n')
            return i;
    size_t cut = SLICE_BYTES;
    while (((unsigned char)s[cut] & 0xC0) == 0x80)
        cut--;
    return cut;
}

/* A text on which the matcher gave up: in slices, and a slice it still gives up on stays whole. */
static enum bl_status split_sliced(struct split *sp, unsigned stage, const char *s, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t len = slice_bytes(s + at, n - at);
        BL_TRY(split_stage(sp, stage, s + at, len, true));
        at += len;
    }
    return BL_OK;
}

static enum bl_status split_next(struct split *sp, unsigned stage, const char *s, size_t n,
                                 bool sliced)
{
    if (n == 0)
        return BL_OK;
    if (stage + 1 == sp->pretok->n_stages)
        return sp->piece(sp->arg, s, n);
    return split_stage(sp, stage + 1, s, n, sliced);
}

static enum bl_status split_stage(struct split *sp, unsigned stage, const char *s, size_t n,
                                  bool sliced)
{
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(sp->match[stage]);
    size_t at = 0;
    while (at < n) {
        int rc = match_at(sp, stage, s, n, at);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc == PCRE2_ERROR_NOMEMORY)
            return bl_fail(BL_ENOMEM, "pre-tokenizer: out of memory splitting %zu bytes", n);
        if (rc < 0 && sliced)
            break;
        if (rc < 0)
            return split_sliced(sp, stage, s + at, n - at);
        size_t from = range[0], to = range[1];
        BL_TRY(split_next(sp, stage, s + at, from - at, sliced));
        BL_TRY(split_next(sp, stage, s + from, to - from, sliced));
        at = to;
    }
    return split_next(sp, stage, s + at, n - at, sliced);
}

/* Cuts at the borders of UTF-8: PCRE2 must not see anything else, and the bytes must survive. */
static enum bl_status split_runs(struct split *sp, const char *s, size_t n)
{
    size_t start = 0, at = 0;
    bool good = true;
    while (at < n) {
        enum bl_utf8 what;
        size_t len = bl_utf8_next(s + at, n - at, &what);
        bool ok = what == BL_UTF8_OK;
        if (ok != good && at > start) {
            BL_TRY(good ? split_stage(sp, 0, s + start, at - start, false)
                        : sp->piece(sp->arg, s + start, at - start));
            start = at;
        }
        good = ok;
        at += len;
    }
    if (at == start)
        return BL_OK;
    return good ? split_stage(sp, 0, s + start, at - start, false)
                : sp->piece(sp->arg, s + start, at - start);
}

enum bl_status bl_pretok_split(const struct bl_pretok *p, const char *text, size_t n_bytes,
                               bl_pretok_piece_fn *piece, void *arg)
{
    struct split sp = {.pretok = p, .piece = piece, .arg = arg};
    enum bl_status st = BL_ENOMEM;
    if (!(sp.limits = pcre2_match_context_create(NULL)))
        goto out;
    pcre2_set_match_limit(sp.limits, MATCH_LIMIT);
    pcre2_set_heap_limit(sp.limits, HEAP_LIMIT_KIB);
    for (unsigned i = 0; i < p->n_stages; i++)
        if (!(sp.match[i] = pcre2_match_data_create(1, NULL)))
            goto out;
    st = split_runs(&sp, text, n_bytes);
out:
    for (unsigned i = 0; i < p->n_stages; i++)
        pcre2_match_data_free(sp.match[i]);
    pcre2_match_context_free(sp.limits);
    pcre2_jit_stack_free(sp.stack);
    return st == BL_ENOMEM ? bl_fail(st, "pre-tokenizer: out of memory") : st;
}
