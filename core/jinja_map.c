/* SPDX-License-Identifier: MIT */
#include "jinja_value.h"

#include <math.h>

enum { LINEAR = 8 }; /* entries up to which looking at all of them is as fast as an index */
#define FNV_BASIS UINT64_C(0xCBF29CE484222325)
#define FNV_PRIME UINT64_C(0x100000001B3)

static uint64_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= UINT64_C(0x9E3779B97F4A7C15);
    return h ^ h >> 29;
}

static uint64_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = FNV_BASIS;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * FNV_PRIME;
    return mix(h);
}

/* 1, 1.0 and true are one key. */
static uint64_t hash_number(struct bl_jv v)
{
    int64_t i;
    uint64_t bits;
    if (bl_jv_as_int(v, &i))
        return mix((uint64_t)i);
    if (v.f == floor(v.f) && fabs(v.f) < 0x1p63)
        return mix((uint64_t)(int64_t)v.f);
    memcpy(&bits, &v.f, sizeof bits);
    return mix(bits);
}

static uint64_t hash_key(struct bl_jinja_run *r, struct bl_jv v)
{
    uint64_t h = FNV_BASIS;
    switch (v.kind) {
    case BL_J_STRING:
        bl_jrun_work(r, v.len);
        return hash_bytes(bl_jv_bytes(v), v.len);
    case BL_J_BOOL:
    case BL_J_INT:
    case BL_J_FLOAT:
        return hash_number(v);
    case BL_J_NONE:
    case BL_J_UNDEFINED:
        return mix(v.kind);
    case BL_J_RANGE:
        return mix(v.range->n);
    case BL_J_TUPLE:
        if (bl_jrun_enter(r) && bl_jrun_work(r, v.list->n * sizeof v))
            for (uint32_t i = 0; i < v.list->n && !r->status; i++)
                h = mix(h ^ hash_key(r, v.list->item[i]));
        bl_jrun_leave(r);
        return h;
    case BL_J_LIST:
    case BL_J_MAP:
    case BL_J_VIEW:
        bl_jrun_fail(r, BL_EINVAL, "unhashable type: '%s'", bl_jv_type(v));
        return 0;
    default:
        return mix((uint64_t)(uintptr_t)v.list); /* an object, equal to itself only */
    }
}

struct bl_jmap *bl_jmap_new(struct bl_jinja_run *r)
{
    struct bl_jmap *m = bl_jrun_alloc(r, sizeof *m);
    return m ? m : &r->no_map;
}

struct bl_jv bl_jmap_value(struct bl_jmap *m)
{
    return (struct bl_jv){.kind = BL_J_MAP, .map = m};
}

/* Keys are chosen by whoever writes the conversation; a long search costs steps, so that colliding
 * ones cannot stall the render. */
static struct bl_jentry *find_hashed(struct bl_jinja_run *r, const struct bl_jmap *m,
                                     struct bl_jv key, uint64_t hash)
{
    uint32_t probes = 0;
    if (!m->slot) {
        for (uint32_t i = 0; i < m->n; i++)
            if (m->entry[i].hash == hash && bl_jv_equal(r, m->entry[i].key, key))
                return &m->entry[i];
        return NULL;
    }
    for (uint32_t at = (uint32_t)hash & m->mask; m->slot[at]; at = (at + 1) & m->mask) {
        struct bl_jentry *e = &m->entry[m->slot[at] - 1];
        if (e->hash == hash && bl_jv_equal(r, e->key, key))
            return e;
        if (++probes % 64 == 0 && !bl_jrun_step(r, 1))
            return NULL;
    }
    return NULL;
}

static void index_entry(struct bl_jmap *m, uint32_t i)
{
    uint32_t at = (uint32_t)m->entry[i].hash & m->mask;
    while (m->slot[at])
        at = (at + 1) & m->mask;
    m->slot[at] = i + 1;
}

/* At most half full. */
static void rebuild_index(struct bl_jinja_run *r, struct bl_jmap *m)
{
    uint32_t n_slots = 4 * LINEAR;
    while (n_slots < m->cap * 2)
        n_slots *= 2;
    m->slot = bl_jrun_alloc(r, n_slots * sizeof *m->slot);
    if (!m->slot)
        return;
    m->mask = n_slots - 1;
    for (uint32_t i = 0; i < m->n; i++)
        index_entry(m, i);
}

static bool grow(struct bl_jinja_run *r, struct bl_jmap *m)
{
    uint64_t cap = m->cap ? (uint64_t)m->cap * 2 : LINEAR;
    struct bl_jentry *entry = cap > UINT32_MAX / 4 ? NULL : bl_jrun_alloc(r, cap * sizeof *entry);
    if (!entry) {
        bl_jrun_fail(r, BL_ELIMIT, "a mapping of %u items is too large", m->n);
        return false;
    }
    if (m->n)
        memcpy(entry, m->entry, m->n * sizeof *entry);
    m->entry = entry;
    m->cap = (uint32_t)cap;
    if (cap > LINEAR)
        rebuild_index(r, m);
    return !r->status;
}

void bl_jmap_set(struct bl_jinja_run *r, struct bl_jmap *m, struct bl_jv key, struct bl_jv value)
{
    uint64_t hash = hash_key(r, key);
    struct bl_jentry *e = r->status ? NULL : find_hashed(r, m, key, hash);
    if (r->status || !bl_jrun_work(r, sizeof *e))
        return;
    if (e) {
        e->value = value;
        return;
    }
    if (m->n == m->cap && !grow(r, m))
        return;
    m->entry[m->n++] = (struct bl_jentry){key, value, hash};
    if (m->slot)
        index_entry(m, m->n - 1);
}

struct bl_jentry *bl_jmap_find(struct bl_jinja_run *r, const struct bl_jmap *m, struct bl_jv key)
{
    uint64_t hash = hash_key(r, key);
    return r->status ? NULL : find_hashed(r, m, key, hash);
}

struct bl_jentry *bl_jmap_find_text(struct bl_jinja_run *r, const struct bl_jmap *m,
                                    const char *key)
{
    struct bl_jbuf b = {.bytes = (char *)key, .used = (uint32_t)strlen(key)};
    return bl_jmap_find(r, m, bl_jbuf_string(&b));
}

void bl_jmap_remove(struct bl_jinja_run *r, struct bl_jmap *m, struct bl_jentry *e)
{
    size_t at = (size_t)(e - m->entry);
    memmove(e, e + 1, (m->n - at - 1) * sizeof *e);
    m->n--;
    if (m->slot && bl_jrun_work(r, m->n * sizeof *e))
        rebuild_index(r, m);
}

void bl_jmap_clear(struct bl_jmap *m)
{
    m->n = 0;
    if (m->slot)
        memset(m->slot, 0, (m->mask + (size_t)1) * sizeof *m->slot);
}
