/* SPDX-License-Identifier: MIT */
#include "vocab.h"

#include <stdlib.h>

#include "gguf.h"
#include "mem.h"

/* ---- tables ---- */

/* Tables are at most half full, where a chain of this length is no accident: such texts were made
 * to collide. */
enum { MAX_PROBES = 512, MIN_SLOTS = 16 };

static uint64_t table_slots(uint64_t n)
{
    uint64_t slots = MIN_SLOTS;
    while (slots < 2 * n)
        slots *= 2;
    return slots;
}

static uint64_t mix(uint64_t x)
{
    x *= 0x9E3779B97F4A7C15u;
    return x ^ x >> 32;
}

static uint32_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = mix(n + 1), tail = 0;
    for (; n >= 8; s += 8, n -= 8)
        h = mix(h ^ bl_load_u64(s));
    memcpy(&tail, s, n);
    return (uint32_t)mix(h ^ tail);
}

/* The slot that holds this text, or the free one where it belongs; NULL: neither within MAX_PROBES.
 */
static uint32_t *table_slot(const struct bl_vocab *v, const struct bl_token_table *t, const char *s,
                            size_t n_bytes)
{
    uint32_t i = hash_bytes(s, n_bytes) & t->mask;
    for (unsigned probe = 0; probe < MAX_PROBES; probe++, i = (i + 1) & t->mask) {
        if (t->slot[i] == 0)
            return &t->slot[i];
        uint32_t n;
        const char *have = bl_vocab_piece(v, (int32_t)(t->slot[i] - 1), &n);
        if (n == n_bytes && memcmp(have, s, n) == 0)
            return &t->slot[i];
    }
    return NULL;
}

int32_t bl_vocab_find(const struct bl_vocab *v, const struct bl_token_table *t, const char *s,
                      size_t n_bytes)
{
    if (n_bytes == 0 || n_bytes > v->max_bytes)
        return -1;
    const uint32_t *slot = table_slot(v, t, s, n_bytes);
    return slot ? (int32_t)*slot - 1 : -1;
}

bool bl_vocab_index(struct bl_vocab *v, struct bl_token_table *t, int32_t id)
{
    uint32_t n;
    const char *s = bl_vocab_piece(v, id, &n);
    uint32_t *slot = table_slot(v, t, s, n);
    if (slot && *slot == 0)
        *slot = (uint32_t)id + 1;
    return slot != NULL;
}

static uint32_t *merge_slot(const struct bl_vocab *v, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t i = (uint32_t)mix(mix(key)) & v->merge_mask;
    for (unsigned probe = 0; probe < MAX_PROBES; probe++, i = (i + 1) & v->merge_mask) {
        uint32_t *slot = &v->merge_slot[i];
        if (*slot == 0)
            return slot;
        const struct bl_merge *m = &v->merge[*slot - 1];
        if (m->left == left && m->right == right)
            return slot;
    }
    return NULL;
}

int64_t bl_vocab_merge_rank(const struct bl_vocab *v, int32_t left, int32_t right)
{
    if (left < 0 || right < 0)
        return -1;
    const uint32_t *slot = merge_slot(v, left, right);
    return slot ? (int64_t)*slot - 1 : -1;
}

bool bl_vocab_index_merge(struct bl_vocab *v, uint32_t rank)
{
    uint32_t *slot = merge_slot(v, v->merge[rank].left, v->merge[rank].right);
    if (slot && *slot == 0)
        *slot = rank + 1;
    return slot != NULL;
}

/* ---- the block ---- */

/* Takes the next `n` items from the block; with no block yet, only counts. */
static void *place(char *block, uint64_t *at, uint64_t n, uint64_t item_bytes)
{
    void *p = block ? block + *at : NULL;
    *at = bl_align_up(*at + n * item_bytes, 16);
    return p;
}

/* Points the arrays into the block and returns its size. Every size comes from the header, so that
 * planning and opening are one arithmetic; decoded tokens are never longer than the file's. */
static uint64_t lay_out(struct bl_vocab *v, const struct bl_vocab_source *src, char *block)
{
    uint64_t at = 0, n = src->n_tokens;
    uint64_t text_slots = table_slots(n), special_slots = table_slots(src->n_specials);
    v->start = place(block, &at, n + 1, sizeof *v->start);
    v->attr = place(block, &at, n, sizeof *v->attr);
    v->bytes = place(block, &at, src->tokens->data_bytes - 8 * n, 1);
    v->by_text.slot = place(block, &at, text_slots, sizeof *v->by_text.slot);
    v->by_text.mask = (uint32_t)(text_slots - 1);
    v->special = place(block, &at, src->n_specials, sizeof *v->special);
    v->by_special.slot = place(block, &at, special_slots, sizeof *v->by_special.slot);
    v->by_special.mask = (uint32_t)(special_slots - 1);
    if (src->kind == BL_VOCAB_SPM) {
        v->priority = place(block, &at, n, sizeof *v->priority);
        return at;
    }
    uint64_t merge_slots = table_slots(src->n_merges);
    v->merge = place(block, &at, src->n_merges, sizeof *v->merge);
    v->merge_slot = place(block, &at, merge_slots, sizeof *v->merge_slot);
    v->merge_mask = (uint32_t)(merge_slots - 1);
    return at;
}

uint64_t bl_vocab_plan_bytes(const struct bl_gguf *g)
{
    struct bl_vocab_source src;
    struct bl_vocab shape = {0};
    if (bl_vocab_source_read(&src, g))
        return 0;
    uint64_t block = bl_align_up(lay_out(&shape, &src, NULL), bl_page_bytes());
    return block + sizeof shape + (src.rule ? BL_PRETOK_MAX_BYTES : 0);
}

uint64_t bl_vocab_heap_bytes(const struct bl_vocab *v)
{
    return sizeof *v + bl_align_up(v->block_bytes, bl_page_bytes()) +
           (v->pretok ? bl_pretok_heap_bytes(v->pretok) : 0);
}

/* ---- life ---- */

static enum bl_status allocate(struct bl_vocab *v, const struct bl_vocab_source *src)
{
    uint64_t bytes = lay_out(v, src, NULL);
    BL_TRY(bl_pages_alloc((size_t)bytes, &v->block));
    v->block_bytes = (size_t)bytes;
    lay_out(v, src, v->block);
    v->kind = src->kind;
    v->n_tokens = src->n_tokens;
    v->n_merges = src->n_merges;
    v->n_specials = src->n_specials;
    return BL_OK;
}

enum bl_status bl_vocab_open(struct bl_vocab **out, const struct bl_gguf *g)
{
    struct bl_vocab_source src;
    struct bl_vocab *v = NULL;
    enum bl_status st;
    if ((st = bl_vocab_source_read(&src, g)))
        goto out;
    st = BL_ENOMEM;
    if (!(v = bl_calloc(1, sizeof *v))) {
        bl_fail(BL_ENOMEM, "vocabulary: out of memory");
        goto out;
    }
    if ((st = allocate(v, &src)) || (st = bl_vocab_read_tokens(v, &src)) ||
        (st = bl_vocab_read_scores(v, &src)) || (st = bl_vocab_read_merges(v, &src)) ||
        (st = bl_vocab_read_rules(v, &src, g)) ||
        (st = src.rule ? bl_pretok_create(&v->pretok, src.rule->kind) : BL_OK))
        goto out;
    *out = v;
    v = NULL;
out:
    bl_vocab_close(v);
    return st;
}

void bl_vocab_close(struct bl_vocab *v)
{
    if (!v)
        return;
    bl_pretok_destroy(v->pretok);
    bl_pages_free(v->block, v->block_bytes);
    free(v);
}

uint32_t bl_vocab_size(const struct bl_vocab *v)
{
    return v->n_tokens;
}

bool bl_vocab_is_end(const struct bl_vocab *v, int32_t id)
{
    return id >= 0 && (uint32_t)id < v->n_tokens && (v->attr[id] & BL_TOKEN_END);
}

int32_t bl_vocab_bos(const struct bl_vocab *v)
{
    return v->bos;
}
