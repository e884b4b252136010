/* SPDX-License-Identifier: MIT */
#include "jinja_eval.h"

/* ---- case ------------------------------------------------------------------------------------ */

enum { SHARP_S = 0xDF }; /* the one small letter in use whose capital is two letters */

struct caser {
    enum bl_jcase how;
    bool first;      /* nothing came yet */
    bool after_word; /* the character before belongs to a word */
};

static bool starts_word(uint32_t cp)
{
    return bl_jtext_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (int)cp));
}

static bool is_cased(uint32_t cp)
{
    return bl_jtext_upper(cp) != cp || bl_jtext_lower(cp) != cp || cp == SHARP_S;
}

static bool wants_upper(struct caser *c, uint32_t cp)
{
    bool upper = c->how == BL_JCASE_UPPER;
    if (c->how == BL_JCASE_SWAP)
        upper = bl_jtext_lower(cp) == cp;
    if (c->how == BL_JCASE_CAPITALIZE)
        upper = c->first;
    if (c->how == BL_JCASE_TITLE || c->how == BL_JCASE_WORDS)
        upper = !c->after_word;
    c->after_word = c->how == BL_JCASE_TITLE ? is_cased(cp) : !starts_word(cp);
    c->first = false;
    return upper;
}

static size_t map_character(struct caser *c, const char *s, size_t n, char out[8])
{
    uint32_t cp = bl_jtext_decode(s, n);
    bool single = c->how == BL_JCASE_CAPITALIZE || c->how == BL_JCASE_TITLE;
    bool upper = wants_upper(c, cp);
    if (cp == SHARP_S && upper) {
        memcpy(out, single ? "Ss" : "SS", 2);
        return 2;
    }
    uint32_t mapped = upper ? bl_jtext_upper(cp) : bl_jtext_lower(cp);
    if (mapped != cp)
        return bl_jtext_encode(mapped, out);
    return 0; /* as it is, damaged or not */
}

struct bl_jv bl_jstr_case(struct bl_jinja_run *r, struct bl_jv s, enum bl_jcase how)
{
    struct caser c = {.how = how, .first = true};
    struct bl_jbuf *b = bl_jbuf_new(r, s.len);
    const char *bytes = bl_jv_bytes(s);
    bool user = false;
    char out[8];
    for (uint32_t at = 0, end = 0; at < s.len && !r->status;) {
        if (at >= end)
            end = at + bl_jv_run_at(s, at, &user);
        size_t n = bl_jtext_next(bytes + at, s.len - at),
               n_out = map_character(&c, bytes + at, n, out);
        bl_jbuf_put(r, b, n_out ? out : bytes + at, n_out ? n_out : n, user);
        at += (uint32_t)n;
    }
    struct bl_jv v = bl_jbuf_string(b);
    v.markup = s.markup;
    return v;
}

/* ---- stripping, searching -------------------------------------------------------------------- */

static bool has_character(struct bl_jv chars, const char *s, size_t n)
{
    return chars.len && memmem(bl_jv_bytes(chars), chars.len, s, n);
}

struct bl_jv bl_jstr_strip(struct bl_jinja_run *r, struct bl_jv s, struct bl_jv chars, bool left,
                           bool right)
{
    const char *bytes = bl_jv_bytes(s);
    size_t begin = 0, end = s.len;
    if (chars.kind <= BL_J_NONE) {
        end = right ? bl_jtext_rstrip(bytes, end) : end;
        begin = left ? bl_jtext_lstrip(bytes, end) : 0;
        bl_jrun_work(r, s.len - (end - begin));
        return bl_jv_slice(s, begin, end - begin);
    }
    if (chars.kind != BL_J_STRING)
        return bl_jrun_fail(r, BL_EINVAL, "strip arg must be None or str");
    while (right && begin < end && bl_jrun_work(r, (uint64_t)chars.len + BL_JPIECE_BYTES)) {
        size_t n = bl_jtext_last(bytes, end);
        if (!has_character(chars, bytes + end - n, n))
            break;
        end -= n;
    }
    while (left && begin < end && bl_jrun_work(r, (uint64_t)chars.len + BL_JPIECE_BYTES)) {
        size_t n = bl_jtext_next(bytes + begin, end - begin);
        if (!has_character(chars, bytes + begin, n))
            break;
        begin += n;
    }
    return bl_jv_slice(s, begin, end - begin);
}

/* By first byte, and what is compared in vain is charged: memmem would do, but under the address
 * sanitizer it looks at the whole rest each time, which makes replacing quadratic. */
int64_t bl_jstr_find(struct bl_jinja_run *r, struct bl_jv in, uint32_t from, struct bl_jv what)
{
    const char *bytes = bl_jv_bytes(in), *w = bl_jv_bytes(what);
    if (!what.len)
        return from;
    while (in.len - from >= what.len) {
        const char *at = memchr(bytes + from, w[0], in.len - from - what.len + 1);
        uint32_t looked_at = at ? (uint32_t)(at - bytes) - from : in.len - from;
        if (!bl_jrun_work(r, (uint64_t)looked_at + what.len + BL_JPIECE_BYTES) || !at)
            return -1;
        if (memcmp(at, w, what.len) == 0)
            return at - bytes;
        from = (uint32_t)(at - bytes) + 1;
    }
    return -1;
}

int64_t bl_jstr_find_last(struct bl_jinja_run *r, struct bl_jv in, uint32_t end, struct bl_jv what)
{
    const char *bytes = bl_jv_bytes(in), *w = bl_jv_bytes(what);
    if (!what.len)
        return end;
    int64_t charged = end;
    for (int64_t at = charged - what.len; at >= 0; at--) {
        if (bytes[at] != w[0])
            continue;
        if (!bl_jrun_work(r, (uint64_t)(charged - at) + what.len + BL_JPIECE_BYTES))
            return -1;
        if (memcmp(bytes + at, w, what.len) == 0)
            return at;
        charged = at;
    }
    bl_jrun_work(r, (uint64_t)charged);
    return -1;
}

/* Between all characters and at both ends. */
static struct bl_jv replace_nothing(struct bl_jinja_run *r, struct bl_jv s, struct bl_jv with,
                                    int64_t most)
{
    struct bl_jbuf *b = bl_jbuf_new(r, s.len);
    uint32_t at = 0;
    for (int64_t i = 0; (most < 0 || i < most) && !r->status; i++) {
        bl_jbuf_add(r, b, with);
        if (at == s.len)
            break;
        size_t n = bl_jtext_next(bl_jv_bytes(s) + at, s.len - at);
        bl_jbuf_add(r, b, bl_jv_slice(s, at, n));
        at += (uint32_t)n;
    }
    bl_jbuf_add(r, b, bl_jv_slice(s, at, s.len - at));
    return bl_jbuf_string(b);
}

struct bl_jv bl_jstr_replace(struct bl_jinja_run *r, struct bl_jv s, struct bl_jv old,
                             struct bl_jv with, int64_t most)
{
    if (!old.len)
        return replace_nothing(r, s, with, most);
    int64_t found = most ? bl_jstr_find(r, s, 0, old) : -1;
    if (found < 0)
        return s;
    struct bl_jbuf *b = bl_jbuf_new(r, s.len);
    uint32_t at = 0;
    for (int64_t i = 1; found >= 0 && !r->status; i++) {
        bl_jbuf_add(r, b, bl_jv_slice(s, at, (size_t)found - at));
        bl_jbuf_add(r, b, with);
        at = (uint32_t)found + old.len;
        found = most < 0 || i < most ? bl_jstr_find(r, s, at, old) : -1;
    }
    bl_jbuf_add(r, b, bl_jv_slice(s, at, s.len - at));
    return bl_jbuf_string(b);
}

/* HTML escapes, once. */
struct bl_jv bl_jstr_escape(struct bl_jinja_run *r, struct bl_jv s)
{
    static const char special[] = "&<>'\"";
    static const char *const entity[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    if (s.markup)
        return s;
    struct bl_jbuf *b = bl_jbuf_new(r, s.len);
    for (uint32_t at = 0, n; at < s.len && !r->status; at += n + 1) {
        const char *bytes = bl_jv_bytes(s) + at;
        for (n = 0; at + n < s.len && (!bytes[n] || !strchr(special, bytes[n]));)
            n++;
        bl_jbuf_add(r, b, bl_jv_slice(s, at, n));
        if (at + n < s.len)
            bl_jbuf_puts(r, b, entity[strchr(special, bytes[n]) - special]);
    }
    struct bl_jv v = bl_jbuf_string(b);
    v.markup = true;
    return v;
}

/* ---- splitting, joining ---------------------------------------------------------------------- */

/* By white space; the rest after `most` splits keeps its inner space. */
static void split_words(struct bl_jinja_run *r, struct bl_jv s, int64_t most, struct bl_jlist *l)
{
    const char *bytes = bl_jv_bytes(s);
    size_t at = bl_jtext_lstrip(bytes, s.len);
    while (at < s.len && !r->status) {
        size_t end = at;
        if (most >= 0 && l->n == (uint64_t)most)
            end = bl_jtext_rstrip(bytes, s.len);
        else
            while (end < s.len && !bl_jtext_is_space(bl_jtext_decode(bytes + end, s.len - end)))
                end += bl_jtext_next(bytes + end, s.len - end);
        bl_jlist_push(r, l, bl_jv_slice(s, at, end - at));
        at = end + bl_jtext_lstrip(bytes + end, s.len - end);
    }
}

static void split_words_right(struct bl_jinja_run *r, struct bl_jv s, int64_t most,
                              struct bl_jlist *l)
{
    const char *bytes = bl_jv_bytes(s);
    size_t end = bl_jtext_rstrip(bytes, s.len);
    while (end && !r->status) {
        size_t at = end;
        if (most >= 0 && l->n == (uint64_t)most) {
            at = bl_jtext_lstrip(bytes, end);
        } else {
            for (size_t n; at; at -= n) {
                n = bl_jtext_last(bytes, at);
                if (bl_jtext_is_space(bl_jtext_decode(bytes + at - n, n)))
                    break;
            }
        }
        bl_jlist_push(r, l, bl_jv_slice(s, at, end - at));
        end = most >= 0 && l->n > (uint64_t)most ? 0 : bl_jtext_rstrip(bytes, at);
    }
}

static void split_at(struct bl_jinja_run *r, struct bl_jv s, struct bl_jv separator, int64_t most,
                     struct bl_jlist *l)
{
    uint32_t at = 0;
    while (!r->status) {
        int64_t found = most < 0 || l->n < (uint64_t)most ? bl_jstr_find(r, s, at, separator) : -1;
        uint32_t end = found < 0 ? s.len : (uint32_t)found;
        bl_jlist_push(r, l, bl_jv_slice(s, at, end - at));
        if (found < 0)
            break;
        at = end + separator.len;
    }
}

static void split_at_right(struct bl_jinja_run *r, struct bl_jv s, struct bl_jv separator,
                           int64_t most, struct bl_jlist *l)
{
    uint32_t end = s.len;
    while (!r->status) {
        int64_t found =
            most < 0 || l->n < (uint64_t)most ? bl_jstr_find_last(r, s, end, separator) : -1;
        uint32_t at = found < 0 ? 0 : (uint32_t)found + separator.len;
        bl_jlist_push(r, l, bl_jv_slice(s, at, end - at));
        if (found < 0)
            break;
        end = (uint32_t)found;
    }
}

static void reverse(struct bl_jlist *l)
{
    for (uint32_t i = 0; i < l->n / 2; i++) {
        struct bl_jv v = l->item[i];
        l->item[i] = l->item[l->n - 1 - i];
        l->item[l->n - 1 - i] = v;
    }
}

struct bl_jv bl_jstr_split(struct bl_jinja_run *r, struct bl_jv s, struct bl_jv separator,
                           int64_t most, bool from_right)
{
    struct bl_jlist *l = bl_jlist_new(r, 0);
    if (separator.kind > BL_J_NONE && separator.kind != BL_J_STRING)
        return bl_jrun_fail(r, BL_EINVAL, "must be str or None, not %s", bl_jv_type(separator));
    if (separator.kind == BL_J_STRING && !separator.len)
        return bl_jrun_fail(r, BL_EINVAL, "empty separator");
    if (!bl_jrun_work(r, s.len))
        return bl_jv_undefined(NULL);
    if (separator.kind == BL_J_STRING)
        (from_right ? split_at_right : split_at)(r, s, separator, most, l);
    else
        (from_right ? split_words_right : split_words)(r, s, most, l);
    if (from_right)
        reverse(l);
    return bl_jlist_value(BL_J_LIST, l);
}

static bool ends_line(uint32_t cp)
{
    return (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

struct bl_jlist *bl_jstr_lines(struct bl_jinja_run *r, struct bl_jv s, bool keep_ends)
{
    struct bl_jlist *l = bl_jlist_new(r, 0);
    const char *bytes = bl_jv_bytes(s);
    bl_jrun_work(r, s.len);
    for (size_t at = 0, end; at < s.len && !r->status; at = end) {
        size_t text = at;
        while (text < s.len && !ends_line(bl_jtext_decode(bytes + text, s.len - text)))
            text += bl_jtext_next(bytes + text, s.len - text);
        end = text;
        if (end < s.len)
            end += end + 1 < s.len && memcmp(bytes + end, "\r\n", 2) == 0
                       ? 2
                       : bl_jtext_next(bytes + end, s.len - end);
        bl_jlist_push(r, l, bl_jv_slice(s, at, (keep_ends ? end : text) - at));
    }
    return l;
}

struct bl_jv bl_jstr_pad(struct bl_jinja_run *r, struct bl_jv s, struct bl_jv fill, int64_t left,
                         int64_t right)
{
    struct bl_jbuf *b = bl_jbuf_new(r, 0);
    bl_jbuf_fill(r, b, fill, left);
    bl_jbuf_add(r, b, s);
    bl_jbuf_fill(r, b, fill, right);
    return bl_jbuf_string(b);
}

struct bl_jv bl_jstr_join(struct bl_jinja_run *r, struct bl_jv separator, struct bl_jv items,
                          bool convert)
{
    struct bl_jbuf *b = bl_jbuf_new(r, 64);
    struct bl_jiter it = bl_jiter_start(r, items);
    struct bl_jv item;
    for (uint32_t i = 0; bl_jiter_next(r, &it, &item); i++) {
        if (!convert && item.kind != BL_J_STRING)
            bl_jrun_fail(r, BL_EINVAL, "sequence item %u: expected str instance, %s found", i,
                         bl_jv_type(item));
        if (i)
            bl_jbuf_add(r, b, separator);
        bl_jv_print(r, b, item);
    }
    return bl_jbuf_string(b);
}
