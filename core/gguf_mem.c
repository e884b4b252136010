/* SPDX-License-Identifier: MIT */
/* GGUF headers that are in no file: put together in memory, read like any other. */
#include "gguf_impl.h"

#include <inttypes.h>
#include <stdlib.h>

enum { DEFAULT_ALIGNMENT = 32 };

enum bl_status bl_gguf_create(struct bl_gguf **out, const char *label, uint32_t most_kv,
                              uint32_t most_tensors)
{
    struct bl_gguf *g = bl_calloc(1, sizeof *g);
    if (!g)
        return bl_fail(BL_ENOMEM, "%s: out of memory", bl_path_tail(label));
    g->alignment = DEFAULT_ALIGNMENT;
    g->cap_kv = most_kv;
    g->cap_tensors = most_tensors;
    g->label = bl_arena_string(&g->names, label, strlen(label));
    g->kv = bl_calloc(most_kv, sizeof *g->kv);
    g->by_key = bl_calloc(most_kv, sizeof *g->by_key);
    g->tensor = bl_calloc(most_tensors, sizeof *g->tensor);
    g->by_name = bl_calloc(most_tensors, sizeof *g->by_name);
    if (!g->label || !g->kv || !g->by_key || !g->tensor || !g->by_name) {
        bl_gguf_close(g);
        return bl_fail(BL_ENOMEM, "%s: out of memory", bl_path_tail(label));
    }
    *out = g;
    return BL_OK;
}

/* Makes room in a sorted table of pointers, n of them there. */
static void open_gap(const void *table, uint32_t at, uint32_t n)
{
    char *p = (char *)(uintptr_t)table + at * sizeof(void *);
    memmove(p + sizeof(void *), p, (n - at) * sizeof(void *));
}

enum bl_status bl_gguf_add_kv(struct bl_gguf *g, const struct bl_kv *kv)
{
    char shown[BL_SHOWN_BYTES];
    uint32_t at = 0;
    while (at < g->n_kv && strcmp(g->by_key[at]->key, kv->key) < 0)
        at++;
    if (at < g->n_kv && !strcmp(g->by_key[at]->key, kv->key))
        return bl_fail(BL_EINVAL, "%s: key '%s' is there twice", bl_path_tail(bl_gguf_path(g)),
                       bl_gguf_show(shown, kv->key));
    if (g->n_kv == g->cap_kv)
        return bl_fail(BL_ELIMIT, "%s: more than %" PRIu32 " keys", bl_path_tail(bl_gguf_path(g)),
                       g->cap_kv);
    struct bl_kv *to = &g->kv[g->n_kv];
    char *data = bl_arena_alloc(&g->names, kv->data_bytes ? (size_t)kv->data_bytes : 1);
    *to = *kv;
    to->key = bl_arena_string(&g->names, kv->key, strlen(kv->key));
    to->data = data;
    if (!data || !to->key)
        return bl_fail(BL_ENOMEM, "%s: out of memory", bl_path_tail(bl_gguf_path(g)));
    if (kv->data_bytes)
        memcpy(data, kv->data, (size_t)kv->data_bytes);
    open_gap(g->by_key, at, g->n_kv);
    g->by_key[at] = to;
    g->n_kv++;
    return BL_OK;
}

/* Where the name is or belongs; true: it is there. */
static bool find_place(const struct bl_gguf *g, const char *name, uint32_t *at)
{
    uint32_t lo = 0, hi = g->n_tensors;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        int order = strcmp(g->by_name[mid]->name, name);
        if (!order) {
            *at = mid;
            return true;
        }
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    *at = lo;
    return false;
}

enum bl_status bl_gguf_set_type(struct bl_gguf *g, uint32_t i, enum bl_dtype type)
{
    struct bl_tensor_info *t = &g->tensor[i];
    char shown[BL_SHOWN_BYTES];
    if (bl_gguf_tensor_bytes(type, t->ne, &t->bytes))
        return bl_fail_in(BL_EINVAL, "%s: tensor '%s'", bl_path_tail(bl_gguf_path(g)),
                          bl_gguf_show(shown, t->name));
    t->type = (uint32_t)type;
    t->type_name = bl_dtypes[type].name;
    return BL_OK;
}

enum bl_status bl_gguf_add_tensor(struct bl_gguf *g, const char *name, enum bl_dtype type,
                                  uint32_t n_dims, const uint64_t *ne)
{
    char shown[BL_SHOWN_BYTES];
    uint32_t at;
    if (n_dims < 1 || n_dims > 4 || find_place(g, name, &at) || g->n_tensors == g->cap_tensors)
        return bl_fail(BL_EINVAL,
                       "%s: tensor '%s' is there twice, has %" PRIu32
                       " dimensions or is one of more than %" PRIu32,
                       bl_path_tail(bl_gguf_path(g)), bl_gguf_show(shown, name), n_dims,
                       g->cap_tensors);
    struct bl_tensor_info *t = &g->tensor[g->n_tensors];
    *t = (struct bl_tensor_info){.name = bl_arena_string(&g->names, name, strlen(name)),
                                 .n_dims = n_dims,
                                 .ne = {1, 1, 1, 1}};
    if (!t->name)
        return bl_fail(BL_ENOMEM, "%s: out of memory", bl_path_tail(bl_gguf_path(g)));
    memcpy(t->ne, ne, n_dims * sizeof *ne);
    BL_TRY(bl_gguf_set_type(g, g->n_tensors, type));
    open_gap(g->by_name, at, g->n_tensors);
    g->by_name[at] = t;
    g->n_tensors++;
    return BL_OK;
}
