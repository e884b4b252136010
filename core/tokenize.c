/* SPDX-License-Identifier: MIT */
/* bl_tokenize: cuts special tokens out of a text, hands the rest to the model's encoder; and the
 * parts that both encoders share: symbols, the queue of merges, byte fallback. */
#include "vocab.h"

#include <stdlib.h>
#include <string.h>

#include "mem.h"

#define NONE UINT32_MAX

/* ---- working memory ---- */

/* The array with room for item n, perhaps moved; NULL leaves it as it was. Growth is geometric, so
 * that pushing stays linear. */
static void *with_room(void *items, size_t *cap, size_t n, size_t item_bytes)
{
    if (n < *cap)
        return items;
    uint64_t bytes;
    size_t want = n < 32 ? 64 : n + n / 2;
    void *p = NULL;
    if (bl_size_mul(want, item_bytes, &bytes) && bytes <= PTRDIFF_MAX)
        p = realloc(items, (size_t)bytes);
    if (p)
        *cap = want;
    else
        bl_fail(BL_ENOMEM, "tokenizer: out of memory for %zu items of %zu bytes", want, item_bytes);
    return p;
}

#define RESERVE(array, cap, n)                                                                     \
    do {                                                                                           \
        void *room_ = with_room((array), &(cap), (n), sizeof *(array));                            \
        if (!room_)                                                                                \
            return BL_ENOMEM;                                                                      \
        (array) = room_;                                                                           \
    } while (0)

enum bl_status bl_tok_push(struct bl_tok_work *w, int32_t id)
{
    RESERVE(w->id, w->cap_ids, w->n_ids);
    w->id[w->n_ids++] = id;
    return BL_OK;
}

enum bl_status bl_tok_push_bytes(struct bl_tok_work *w, const char *s, size_t n_bytes)
{
    const struct bl_vocab *v = w->vocab;
    bool all = true;
    for (size_t i = 0; i < n_bytes; i++)
        all = all && v->byte_id[(unsigned char)s[i]] >= 0;
    if (!all && v->unknown >= 0)
        return bl_tok_push(w, v->unknown);
    for (size_t i = 0; i < n_bytes; i++)
        if (v->byte_id[(unsigned char)s[i]] >= 0)
            BL_TRY(bl_tok_push(w, v->byte_id[(unsigned char)s[i]]));
    return BL_OK;
}

enum bl_status bl_tok_normalise(struct bl_tok_work *w, const char *s, size_t n_bytes, bool prefix,
                                size_t *n_out)
{
    static const char space[] = "\xE2\x96\x81"; /* U+2581: how a vocabulary spells a space */
    if (n_bytes + 1 > w->cap_buffer) {
        char *p = realloc(w->buffer, n_bytes + 1);
        if (!p)
            return bl_fail(BL_ENOMEM, "tokenizer: out of memory for %zu bytes", n_bytes + 1);
        w->buffer = p;
        w->cap_buffer = n_bytes + 1;
    }
    size_t n = 0;
    if (prefix)
        w->buffer[n++] = ' ';
    for (size_t i = 0; i < n_bytes; n++) {
        bool is_space = n_bytes - i >= 3 && memcmp(s + i, space, 3) == 0;
        w->buffer[n] = is_space ? ' ' : s[i];
        i += is_space ? 3 : 1;
    }
    w->text = w->buffer;
    *n_out = n;
    return BL_OK;
}

/* ---- symbols and the queue of merges ---- */

enum bl_status bl_tok_symbols(struct bl_tok_work *w, size_t n_bytes, bool characters)
{
    const struct bl_vocab *v = w->vocab;
    w->n_symbols = 0;
    for (size_t at = 0; at < n_bytes;) {
        enum bl_utf8 what = BL_UTF8_BAD;
        size_t len = characters ? bl_utf8_next(w->text + at, n_bytes - at, &what) : 1;
        if (what != BL_UTF8_OK)
            len = 1;
        RESERVE(w->symbol, w->cap_symbols, w->n_symbols);
        uint32_t i = (uint32_t)w->n_symbols++;
        w->symbol[i] = (struct bl_tok_symbol){
            .prev = i ? i - 1 : NONE,
            .next = i + 1,
            .start = (uint32_t)at,
            .bytes = (uint32_t)len,
            .id = characters ? bl_vocab_find(v, &v->by_text, w->text + at, len)
                             : v->byte_id[(unsigned char)w->text[at]]};
        at += len;
    }
    if (w->n_symbols)
        w->symbol[w->n_symbols - 1].next = NONE;
    return BL_OK;
}

static enum bl_status heap_push(struct bl_tok_work *w, const struct bl_tok_pair *pair)
{
    RESERVE(w->heap, w->cap_heap, w->n_heap);
    size_t i = w->n_heap++;
    for (size_t up; i && w->heap[up = (i - 1) / 2].key > pair->key; i = up)
        w->heap[i] = w->heap[up];
    w->heap[i] = *pair;
    return BL_OK;
}

static struct bl_tok_pair heap_pop(struct bl_tok_work *w)
{
    struct bl_tok_pair top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < w->n_heap) {
        if (child + 1 < w->n_heap && w->heap[child + 1].key < w->heap[child].key)
            child++;
        if (w->heap[child].key >= last.key)
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

static enum bl_status consider(struct bl_tok_work *w, uint32_t left, uint32_t right,
                               bl_tok_pair_fn *pair)
{
    if (left == NONE || right == NONE)
        return BL_OK;
    const struct bl_tok_symbol *l = &w->symbol[left], *r = &w->symbol[right];
    struct bl_tok_pair p = {.right = right, .bytes = l->bytes + r->bytes};
    uint32_t priority;
    if (!pair(w, l, r, &priority, &p.id))
        return BL_OK;
    p.key = (uint64_t)priority << 32 | left;
    return heap_push(w, &p);
}

/* Takes the right symbol into the left one, unless one of the two has merged elsewhere since the
 * pair was queued: a symbol only changes by growing or by vanishing, and either changes the sum. */
static bool take_pair(struct bl_tok_work *w, const struct bl_tok_pair *p, uint32_t left)
{
    struct bl_tok_symbol *l = &w->symbol[left], *r = &w->symbol[p->right];
    if (!l->bytes || !r->bytes || l->bytes + r->bytes != p->bytes)
        return false;
    l->bytes = p->bytes;
    l->id = p->id;
    l->next = r->next;
    r->bytes = 0;
    if (r->next != NONE)
        w->symbol[r->next].prev = left;
    return true;
}

enum bl_status bl_tok_merge(struct bl_tok_work *w, bl_tok_pair_fn *pair)
{
    w->n_heap = 0;
    for (uint32_t i = 1; i < w->n_symbols; i++)
        BL_TRY(consider(w, i - 1, i, pair));
    while (w->n_heap) {
        struct bl_tok_pair p = heap_pop(w);
        uint32_t left = (uint32_t)p.key;
        if (!take_pair(w, &p, left))
            continue;
        BL_TRY(consider(w, w->symbol[left].prev, left, pair));
        BL_TRY(consider(w, left, w->symbol[left].next, pair));
    }
    return BL_OK;
}

enum bl_status bl_tok_emit(struct bl_tok_work *w)
{
    for (uint32_t i = w->n_symbols ? 0 : NONE; i != NONE; i = w->symbol[i].next) {
        const struct bl_tok_symbol *s = &w->symbol[i];
        BL_TRY(s->id >= 0 ? bl_tok_push(w, s->id)
                          : bl_tok_push_bytes(w, w->text + s->start, s->bytes));
    }
    return BL_OK;
}

/* ---- special tokens ---- */

/* A text as a chain of fragments: raw (id -1) or one special token. */
struct fragment {
    size_t start, n_bytes;
    int32_t id;
    uint32_t next;
};
struct fragments {
    struct fragment *item;
    size_t n, cap;
};

static bool may_start(const struct bl_vocab *v, unsigned char byte)
{
    return v->special_first[byte / 64] >> (byte % 64) & 1;
}

/* Where control tokens count: nowhere, or outside what a user typed. */
struct parse {
    bool control;
    const struct bl_span *user; /* sorted, apart */
    size_t n_user;
};

static bool touches_user(const struct parse *p, size_t begin, size_t end)
{
    size_t low = 0, high = p->n_user; /* the first span that ends behind begin */
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (p->user[mid].end > begin)
            high = mid;
        else
            low = mid + 1;
    }
    return low < p->n_user && p->user[low].begin < end;
}

/* The special token of exactly `len` bytes at text + at; -1 = none that counts. Text typed by a
 * user never becomes a control token: there only user-defined ones are seen. */
static int32_t special_at(const struct bl_vocab *v, const char *text, size_t at, size_t len,
                          const struct parse *p)
{
    if (!may_start(v, (unsigned char)text[at]))
        return -1;
    int32_t id = bl_vocab_find(v, &v->by_special, text + at, len);
    if (id < 0 || bl_vocab_type(v, id) == BL_TOKEN_USER_DEFINED)
        return id;
    return p->control && !touches_user(p, at, at + len) ? id : -1;
}

static enum bl_status fragment_after(struct fragments *f, uint32_t at, size_t start, size_t n_bytes,
                                     int32_t id)
{
    RESERVE(f->item, f->cap, f->n);
    f->item[f->n] = (struct fragment){start, n_bytes, id, f->item[at].next};
    f->item[at].next = (uint32_t)f->n++;
    return BL_OK;
}

static size_t skip_space(const char *s, size_t at, size_t end)
{
    while (at < end && (s[at] == ' ' || (s[at] >= '\t' && s[at] <= '\r')))
        at++;
    return at;
}

/* Cuts the tokens of `len` bytes out of one raw fragment, left to right. */
static enum bl_status cut_fragment(struct fragments *f, uint32_t i, const struct bl_vocab *v,
                                   const char *text, size_t len, const struct parse *parse)
{
    size_t at = f->item[i].start, end = at + f->item[i].n_bytes;
    while (end - at >= len) {
        int32_t id = special_at(v, text, at, len, parse);
        if (id < 0) {
            at++;
            continue;
        }
        size_t rest = at + len;
        if (v->attr[id] & BL_TOKEN_RSTRIP)
            rest = skip_space(text, rest, end);
        f->item[i].n_bytes = at - f->item[i].start;
        BL_TRY(fragment_after(f, i, at, len, id));
        BL_TRY(fragment_after(f, f->item[i].next, rest, end - rest, -1));
        i = f->item[f->item[i].next].next;
        at = rest;
    }
    return BL_OK;
}

/* Longer tokens first, and of one length the leftmost: the order in which added tokens have to be
 * found, whatever they have in common. One pass over the raw text per distinct length. */
static enum bl_status cut_specials(struct fragments *f, const struct bl_vocab *v, const char *text,
                                   size_t n_bytes, const struct parse *parse)
{
    RESERVE(f->item, f->cap, f->n);
    f->item[f->n++] = (struct fragment){0, n_bytes, -1, NONE};
    if (!parse->control && !v->has_user_defined)
        return BL_OK;
    uint32_t len = 0, last = 0;
    for (uint32_t k = 0; k < v->n_specials; k++, last = len) {
        len = ~(uint32_t)(v->special[k] >> 32);
        if (len == last || len > n_bytes)
            continue;
        for (uint32_t i = 0; i != NONE; i = f->item[i].next)
            if (f->item[i].id < 0)
                BL_TRY(cut_fragment(f, i, v, text, len, parse));
    }
    return BL_OK;
}

static enum bl_status encode_fragments(struct bl_tok_work *w, const struct fragments *f,
                                       const char *text)
{
    bool first = true; /* nothing, or a special token, stands before */
    for (uint32_t i = 0; i != NONE; i = f->item[i].next) {
        const struct fragment *g = &f->item[i];
        if (g->id >= 0) {
            BL_TRY(bl_tok_push(w, g->id));
            first = true;
        } else if (g->n_bytes) {
            BL_TRY(w->vocab->kind == BL_VOCAB_SPM
                       ? bl_tok_spm(w, text + g->start, g->n_bytes, first)
                       : bl_tok_bpe(w, text + g->start, g->n_bytes));
            first = false;
        }
    }
    return BL_OK;
}

/* ---- the call ---- */

/* A text that already begins with BOS does not get a second one. */
static enum bl_status add_around(struct bl_tok_work *w, unsigned flags)
{
    const struct bl_vocab *v = w->vocab;
    if (v->add_bos && v->bos >= 0 && (w->n_ids == 0 || w->id[0] != v->bos)) {
        BL_TRY(bl_tok_push(w, v->bos));
        memmove(w->id + 1, w->id, (w->n_ids - 1) * sizeof *w->id);
        w->id[0] = v->bos;
    }
    if (v->add_eos && v->eos >= 0 && !(flags & BL_TOK_NO_EOS))
        BL_TRY(bl_tok_push(w, v->eos));
    return BL_OK;
}

enum bl_status bl_tokenize_chat(const struct bl_vocab *v, const char *text, size_t n_bytes,
                                const struct bl_span *user, size_t n_user, unsigned flags,
                                int32_t **ids, size_t *n_ids)
{
    const struct parse parse = {flags & BL_TOK_PARSE_SPECIAL, user, n_user};
    struct bl_tok_work w = {.vocab = v};
    struct fragments f = {0};
    enum bl_status st;
    if (n_bytes > INT32_MAX)
        return bl_fail(BL_ELIMIT, "text of %zu bytes: at most 2 GiB can be tokenised at once",
                       n_bytes);
    if ((st = cut_specials(&f, v, text, n_bytes, &parse)) ||
        (st = encode_fragments(&w, &f, text)) ||
        (st = flags & BL_TOK_ADD_SPECIAL ? add_around(&w, flags) : BL_OK))
        goto out;
    if (!w.id && !(w.id = bl_calloc(1, sizeof *w.id))) { /* no ids are an array too */
        st = bl_fail(BL_ENOMEM, "tokenizer: out of memory");
        goto out;
    }
    *ids = w.id;
    *n_ids = w.n_ids;
    w.id = NULL;
out:
    free(w.id);
    free(w.symbol);
    free(w.heap);
    free(w.buffer);
    free(f.item);
    return st;
}

enum bl_status bl_tokenize(const struct bl_vocab *v, const char *text, size_t n_bytes,
                           unsigned flags, int32_t **ids, size_t *n_ids)
{
    return bl_tokenize_chat(v, text, n_bytes, NULL, 0, flags, ids, n_ids);
}
