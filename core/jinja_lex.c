/* SPDX-License-Identifier: MIT */
#include "jinja_ast.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

const char *bl_jtok_text(enum bl_jtok t)
{
    static const char *const text[] = {
        [BL_JT_END] = "end of template",
        [BL_JT_DATA] = "template data / text",
        [BL_JT_PRINT_BEGIN] = "begin of print statement",
        [BL_JT_PRINT_END] = "end of print statement",
        [BL_JT_BLOCK_BEGIN] = "begin of statement block",
        [BL_JT_BLOCK_END] = "end of statement block",
        [BL_JT_NAME] = "name",
        [BL_JT_STRING] = "string",
        [BL_JT_INT] = "integer",
        [BL_JT_FLOAT] = "float",
        [BL_JT_ADD] = "+",
        [BL_JT_SUB] = "-",
        [BL_JT_MUL] = "*",
        [BL_JT_DIV] = "/",
        [BL_JT_FLOORDIV] = "//",
        [BL_JT_MOD] = "%",
        [BL_JT_POW] = "**",
        [BL_JT_TILDE] = "~",
        [BL_JT_EQ] = "==",
        [BL_JT_NE] = "!=",
        [BL_JT_LT] = "<",
        [BL_JT_LE] = "<=",
        [BL_JT_GT] = ">",
        [BL_JT_GE] = ">=",
        [BL_JT_ASSIGN] = "=",
        [BL_JT_DOT] = ".",
        [BL_JT_COLON] = ":",
        [BL_JT_PIPE] = "|",
        [BL_JT_COMMA] = ",",
        [BL_JT_SEMICOLON] = ";",
        [BL_JT_LPAREN] = "(",
        [BL_JT_RPAREN] = ")",
        [BL_JT_LBRACKET] = "[",
        [BL_JT_RBRACKET] = "]",
        [BL_JT_LBRACE] = "{",
        [BL_JT_RBRACE] = "}",
        [BL_JT_IN] = "in",
        [BL_JT_NOT_IN] = "not in",
    };
    return text[t];
}

/* Newlines become \n and one at the end goes, as jinja2 reads templates. */
static struct bl_jv normalised(struct bl_jinja_run *r, const char *source, size_t n_bytes)
{
    struct bl_jbuf *b = bl_jbuf_new(r, n_bytes);
    for (size_t i = 0; i < n_bytes && !r->status; i++) {
        bool cr = source[i] == '\r';
        if (cr && i + 1 < n_bytes && source[i + 1] == '\n')
            continue;
        b->bytes[b->used++] = cr ? '\n' : source[i];
    }
    if (b->used && b->bytes[b->used - 1] == '\n')
        b->used--;
    b->cap = b->used; /* constants are slices of it and must not append to it */
    return bl_jbuf_string(b);
}

void bl_jlex_init(struct bl_jlex *x, struct bl_jinja_run *r, const char *source, size_t n_bytes)
{
    x->run = r;
    x->source = normalised(r, source, n_bytes);
    x->s = bl_jv_bytes(x->source);
    x->n = x->source.len;
    x->at = x->n_open = 0;
    x->line = 1;
    x->at_tag = false;
    x->mode = BL_JT_DATA;
}

static struct bl_jtoken fail(struct bl_jlex *x, const char *message)
{
    x->run->line = x->line;
    bl_jrun_fail(x->run, BL_EFORMAT, "%s", message);
    return (struct bl_jtoken){.type = BL_JT_END, .line = x->line};
}

static bool starts(const struct bl_jlex *x, uint32_t at, const char *what)
{
    size_t n = strlen(what);
    return x->n - at >= n && memcmp(x->s + at, what, n) == 0;
}

static uint32_t skip_space(const struct bl_jlex *x, uint32_t at)
{
    return at + (uint32_t)bl_jtext_lstrip(x->s + at, x->n - at);
}

static void move_to(struct bl_jlex *x, uint32_t at)
{
    for (; x->at < at; x->at++)
        x->line += x->s[x->at] == '\n';
}

static struct bl_jtoken token(struct bl_jlex *x, enum bl_jtok type, uint32_t n)
{
    struct bl_jtoken t = {type, x->line, bl_jv_slice(x->source, x->at, n)};
    move_to(x, x->at + n);
    return t;
}

/* ---- text between tags ----------------------------------------------------------------------- */

/* Where the text from `begin` to a tag at `end` really ends. '-' takes all white space; a statement
 * or comment alone at the beginning of its line takes the blanks before it (lstrip_blocks), unless
 * '+' forbids. */
static uint32_t trimmed_end(const struct bl_jlex *x, uint32_t begin, uint32_t end, char sign,
                            bool print)
{
    if (sign == '-')
        return begin + (uint32_t)bl_jtext_rstrip(x->s + begin, end - begin);
    if (sign == '+' || print)
        return end;
    uint32_t line = end;
    while (line > begin && x->s[line - 1] != '\n')
        line--;
    bool line_start = line > begin || begin == 0 || x->s[begin - 1] == '\n';
    bool blank = line + bl_jtext_lstrip(x->s + line, end - line) == end;
    return line_start && blank ? line : end;
}

/* After "%}" or "#}" that ends at `at`: one newline goes (trim_blocks); with '-' all white space;
 * with '+' nothing. */
static uint32_t after_tag(const struct bl_jlex *x, uint32_t at, char sign)
{
    if (sign == '-')
        return skip_space(x, at);
    return at + (sign != '+' && at < x->n && x->s[at] == '\n');
}

static char sign_at(const struct bl_jlex *x, uint32_t at)
{
    return at < x->n && (x->s[at] == '-' || x->s[at] == '+') ? x->s[at] : 0;
}

static uint32_t find_tag(const struct bl_jlex *x, uint32_t at)
{
    for (; at + 1 < x->n; at++)
        if (x->s[at] == '{' && strchr("{%#", x->s[at + 1]) && x->s[at + 1])
            return at;
    return x->n;
}

static bool skip_comment(struct bl_jlex *x)
{
    uint32_t body = x->at + 2 + (sign_at(x, x->at + 2) != 0), end = body;
    while (end < x->n && !starts(x, end, "#}"))
        end++;
    if (end == x->n) {
        fail(x, "Missing end of comment tag");
        return false;
    }
    move_to(x, after_tag(x, end + 2, end > body ? sign_at(x, end - 1) : 0));
    return true;
}

/* The end of "word %}" that begins at `at` after white space, 0 if it is not that; *sign: what
 * stands before "%}". */
static uint32_t match_word(const struct bl_jlex *x, uint32_t at, const char *word, char *sign)
{
    at = skip_space(x, at);
    if (!starts(x, at, word))
        return 0;
    at = skip_space(x, at + (uint32_t)strlen(word));
    *sign = sign_at(x, at);
    at += *sign != 0;
    return starts(x, at, "%}") ? at + 2 : 0;
}

/* A raw block gives one data token, perhaps an empty one. */
static bool raw_block(struct bl_jlex *x, struct bl_jtoken *out)
{
    char sign;
    uint32_t body = match_word(x, x->at + 2 + (sign_at(x, x->at + 2) != 0), "raw", &sign);
    if (!body || sign == '+')
        return false;
    if (sign == '-')
        body = skip_space(x, body);
    for (uint32_t at = body; at + 1 < x->n; at++) {
        char before = starts(x, at, "{%") ? sign_at(x, at + 2) : 0;
        uint32_t end =
            starts(x, at, "{%") ? match_word(x, at + 2 + (before != 0), "endraw", &sign) : 0;
        if (!end)
            continue;
        move_to(x, body);
        *out = token(x, BL_JT_DATA, trimmed_end(x, body, at, before, false) - body);
        move_to(x, after_tag(x, end, sign));
        return true;
    }
    *out = fail(x, "Missing end of raw directive");
    return true;
}

static struct bl_jtoken next_data(struct bl_jlex *x)
{
    while (!x->run->status) {
        struct bl_jtoken raw;
        uint32_t tag = x->at_tag ? x->at : find_tag(x, x->at);
        if (!x->at_tag) {
            bool print = tag < x->n && x->s[tag + 1] == '{';
            uint32_t end =
                tag < x->n ? trimmed_end(x, x->at, tag, sign_at(x, tag + 2), print) : tag;
            struct bl_jtoken t = token(x, BL_JT_DATA, end - x->at);
            move_to(x, tag);
            x->at_tag = tag < x->n;
            if (t.value.len)
                return t;
        }
        if (tag == x->n)
            break;
        x->at_tag = false;
        char kind = x->s[tag + 1];
        if (kind == '#') {
            skip_comment(x);
            continue;
        }
        if (kind == '%' && raw_block(x, &raw))
            return raw;
        x->mode = kind == '{' ? BL_JT_PRINT_BEGIN : BL_JT_BLOCK_BEGIN;
        return token(x, x->mode, 2 + (sign_at(x, tag + 2) != 0));
    }
    return (struct bl_jtoken){.type = BL_JT_END, .line = x->line};
}

/* ---- inside tags ----------------------------------------------------------------------------- */

static bool is_digit(char c, int base)
{
    int v = c >= '0' && c <= '9'                 ? c - '0'
            : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                 : 99;
    return v < base;
}

/* Digits with single underscores between them. */
static uint32_t skip_digits(const struct bl_jlex *x, uint32_t at, int base)
{
    while (at < x->n && (is_digit(x->s[at], base) ||
                         (x->s[at] == '_' && at + 1 < x->n && is_digit(x->s[at + 1], base))))
        at++;
    return at;
}

static uint32_t skip_fraction(const struct bl_jlex *x, uint32_t at)
{
    uint32_t e = at;
    if (at + 1 < x->n && x->s[at] == '.' && is_digit(x->s[at + 1], 10))
        e = at = skip_digits(x, at + 1, 10);
    if (e < x->n && (x->s[e] | 32) == 'e') {
        e += sign_at(x, e + 1) ? 2 : 1;
        if (e < x->n && is_digit(x->s[e], 10))
            return skip_digits(x, e, 10);
    }
    return at;
}

static struct bl_jtoken number(struct bl_jlex *x)
{
    uint32_t begin = x->at, end;
    int base = 10;
    if (x->s[begin] == '0' && begin + 2 < x->n) {
        char c = (char)(x->s[begin + 1] | 32);
        base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
        if (!is_digit(x->s[begin + 2], base))
            base = 10;
    }
    bool after_dot = begin && x->s[begin - 1] == '.'; /* x.1.2 are two items, not one float */
    uint32_t digits = begin + (base == 10 ? 0 : 2);
    end = skip_digits(x, digits, base);
    uint32_t whole = end;
    if (base == 10 && !after_dot)
        end = skip_fraction(x, end);
    char text[64];
    uint32_t n = 0;
    for (uint32_t i = digits; i < end && n < sizeof text - 1; i++)
        if (x->s[i] != '_')
            text[n++] = x->s[i];
    text[n] = 0;
    errno = 0;
    struct bl_jtoken t = token(x, end > whole ? BL_JT_FLOAT : BL_JT_INT, end - begin);
    t.value = end > whole ? bl_jv_float(strtod(text, NULL)) : bl_jv_int(strtoll(text, NULL, base));
    if (!n || n == sizeof text - 1 || (errno && end == whole))
        return fail(x, "a number is too long");
    return t;
}

static uint32_t read_digits(const struct bl_jlex *x, uint32_t *at, uint32_t end, uint32_t most,
                            int base)
{
    uint32_t v = 0;
    for (uint32_t i = 0; i < most && *at < end && is_digit(x->s[*at], base); i++, (*at)++) {
        char c = x->s[*at];
        v = v * (uint32_t)base + (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return v;
}

/* What follows a backslash; *at moves behind it. */
static void unescape(struct bl_jlex *x, struct bl_jbuf *b, uint32_t *at, uint32_t end)
{
    static const char from[] = "\n\\'\"abfnrtv", to[] = "\0\\'\"\a\b\f\n\r\t\v";
    char c = x->s[*at], bytes[4];
    const char *found = c ? strchr(from, c) : NULL;
    if (found) {
        bl_jbuf_put(x->run, b, &to[found - from], c != '\n', false);
        (*at)++;
        return;
    }
    uint32_t most = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0, cp, digits_at = *at + 1;
    if (c >= '0' && c <= '7') {
        cp = read_digits(x, at, end, 3, 8);
    } else if (most) {
        cp = read_digits(x, &digits_at, end, most, 16);
        if (digits_at != *at + 1 + most)
            fail(x, "a string has an escape that ends too early");
        *at = digits_at;
        if (cp >= 0xD800 && cp < 0xDC00 && *at + 6 <= end && starts(x, *at, "\\u")) {
            uint32_t low_at = *at + 2, low = read_digits(x, &low_at, end, 4, 16);
            if (low >= 0xDC00 && low < 0xE000) {
                cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
                *at = low_at;
            }
        }
    } else { /* an unknown escape stays as it is written */
        bl_jbuf_put(x->run, b, "\\", 1, false);
        return;
    }
    bl_jbuf_put(x->run, b, bytes, bl_jtext_encode(cp, bytes), false);
}

static struct bl_jv unescaped(struct bl_jlex *x, uint32_t begin, uint32_t end)
{
    struct bl_jv plain = bl_jv_slice(x->source, begin, end - begin);
    if (!memchr(x->s + begin, '\\', end - begin))
        return plain;
    struct bl_jbuf *b = bl_jbuf_new(x->run, end - begin);
    for (uint32_t at = begin; at < end && !x->run->status;) {
        const char *slash = memchr(x->s + at, '\\', end - at);
        uint32_t stop = slash ? (uint32_t)(slash - x->s) : end;
        bl_jbuf_put(x->run, b, x->s + at, stop - at, false);
        at = stop;
        if (at < end) {
            at++;
            unescape(x, b, &at, end);
        }
    }
    b->cap = b->used; /* shared by all renders: nobody may append */
    return bl_jbuf_string(b);
}

static struct bl_jtoken unexpected_char(struct bl_jlex *x)
{
    char text[64];
    uint32_t n = (uint32_t)bl_jtext_next(x->s + x->at, x->n - x->at);
    const char *quote = x->s[x->at] == '\'' ? "\"" : "'";
    snprintf(text, sizeof text, "unexpected char %s%.*s%s at %u", quote, (int)(n < 5 ? n : 1),
             x->s + x->at, quote, x->at);
    return fail(x, text);
}

static struct bl_jtoken string(struct bl_jlex *x)
{
    uint32_t begin = x->at + 1, end = begin;
    while (end < x->n && x->s[end] != x->s[x->at])
        end += x->s[end] == '\\' && end + 1 < x->n ? 2 : 1;
    if (end >= x->n)
        return unexpected_char(x);
    struct bl_jv value = unescaped(x, begin, end);
    struct bl_jtoken t = token(x, BL_JT_STRING, end + 1 - x->at);
    t.value = value;
    return t;
}

static struct bl_jtoken bracket(struct bl_jlex *x, enum bl_jtok type)
{
    char c = x->s[x->at], text[64];
    if (strchr("([{", c)) {
        if (x->n_open == BL_JLEX_OPEN || x->n_open >= x->run->limits.depth) {
            x->run->line = x->line;
            bl_jrun_fail(x->run, BL_ELIMIT, "more than %u brackets are open", x->n_open);
            return (struct bl_jtoken){.type = BL_JT_END, .line = x->line};
        }
        x->open[x->n_open++] = c == '(' ? ')' : (char)(c + 2);
        return token(x, type, 1);
    }
    char wanted = x->n_open ? x->open[x->n_open - 1] : 0;
    if (wanted == c) {
        x->n_open--;
        return token(x, type, 1);
    }
    if (wanted)
        snprintf(text, sizeof text, "unexpected '%c', expected '%c'", c, wanted);
    else
        snprintf(text, sizeof text, "unexpected '%c'", c);
    return fail(x, text);
}

static struct bl_jtoken punctuation(struct bl_jlex *x)
{
    /* Longer ones first. */
    static const enum bl_jtok types[] = {
        BL_JT_FLOORDIV, BL_JT_POW, BL_JT_EQ,    BL_JT_NE,   BL_JT_LE,    BL_JT_GE,       BL_JT_ADD,
        BL_JT_SUB,      BL_JT_MUL, BL_JT_DIV,   BL_JT_MOD,  BL_JT_TILDE, BL_JT_LT,       BL_JT_GT,
        BL_JT_ASSIGN,   BL_JT_DOT, BL_JT_COLON, BL_JT_PIPE, BL_JT_COMMA, BL_JT_SEMICOLON};
    if (x->s[x->at] && strchr("()[]{}", x->s[x->at]))
        for (enum bl_jtok t = BL_JT_LPAREN; t <= BL_JT_RBRACE; t++)
            if (bl_jtok_text(t)[0] == x->s[x->at])
                return bracket(x, t);
    for (size_t i = 0; i < BL_COUNT(types); i++)
        if (starts(x, x->at, bl_jtok_text(types[i])))
            return token(x, types[i], (uint32_t)strlen(bl_jtok_text(types[i])));
    return unexpected_char(x);
}

static bool tag_end(struct bl_jlex *x, struct bl_jtoken *out)
{
    bool block = x->mode == BL_JT_BLOCK_BEGIN;
    char sign = sign_at(x, x->at);
    uint32_t at = x->at + (sign != 0);
    if (x->n_open || (sign == '+' && !block) || !starts(x, at, block ? "%}" : "}}"))
        return false;
    uint32_t end = at + 2;
    if (block || sign)
        end = after_tag(x, end, sign);
    *out = token(x, block ? BL_JT_BLOCK_END : BL_JT_PRINT_END, end - x->at);
    x->mode = BL_JT_DATA;
    return true;
}

static bool is_name(char c, bool first)
{
    return c == '_' || ((c | 32) >= 'a' && (c | 32) <= 'z') || (!first && c >= '0' && c <= '9');
}

struct bl_jtoken bl_jlex_next(struct bl_jlex *x)
{
    struct bl_jtoken t;
    if (x->run->status)
        return (struct bl_jtoken){.type = BL_JT_END, .line = x->line};
    if (x->mode == BL_JT_DATA)
        return next_data(x);
    move_to(x, skip_space(x, x->at));
    if (x->at == x->n)
        return (struct bl_jtoken){.type = BL_JT_END, .line = x->line};
    if (tag_end(x, &t))
        return t;
    char c = x->s[x->at];
    if (is_digit(c, 10))
        return number(x);
    if (c == '"' || c == '\'')
        return string(x);
    if (!is_name(c, true))
        return punctuation(x);
    uint32_t end = x->at;
    while (end < x->n && is_name(x->s[end], false))
        end++;
    return token(x, BL_JT_NAME, end - x->at);
}
