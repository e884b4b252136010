/* SPDX-License-Identifier: MIT */
#include "gguf.h"

#include <inttypes.h>
#include <math.h>

/* Writers disagree about widths; values are widened on the way out and checked against what the
 * caller can hold. A key of the wrong type is an error even where a default exists: the default
 * would hide a corrupt file. */

static const char *type_text(const struct bl_kv *kv, char out[16])
{
    static const char *const name[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                       "bool", "string", "array", "u64", "i64", "f64"};
    bool array = kv->type == BL_VAL_ARRAY;
    const char *s = name[kv->item];
    size_t n = strlen(s);
    memcpy(out, s, n + 1);
    if (array)
        memcpy(out + n, "[]", 3);
    return out;
}

static enum bl_status fail_key(const struct bl_gguf *g, const struct bl_kv *kv, const char *what)
{
    char type[16];
    return bl_fail(BL_EFORMAT, "%s: key '%s' is %s; %s is needed", bl_path_tail(bl_gguf_path(g)),
                   kv->key, type_text(kv, type), what);
}

static enum bl_status fail_range(const struct bl_gguf *g, const struct bl_kv *kv, const char *what)
{
    return bl_fail(BL_EFORMAT, "%s: value of key '%s' does not fit %s",
                   bl_path_tail(bl_gguf_path(g)), kv->key, what);
}

/* *kv = NULL when the key is absent and may be. */
static enum bl_status find(const struct bl_gguf *g, const char *key, bool required,
                           const struct bl_kv **kv)
{
    *kv = bl_gguf_find(g, key);
    if (*kv || !required)
        return BL_OK;
    return bl_fail(BL_EFORMAT, "%s: key '%s' is missing", bl_path_tail(bl_gguf_path(g)), key);
}

/* ---- elements
 * ----------------------------------------------------------------------------------------- */

static const unsigned char *item_at(const struct bl_kv *kv, uint64_t i, uint64_t size)
{
    return (const unsigned char *)kv->data + i * size;
}

enum load { LOADED, WRONG_TYPE, OUT_OF_RANGE };

static enum load load_integer(const struct bl_kv *kv, uint64_t i, int64_t *out)
{
    uint64_t u;
    switch (kv->item) {
    case BL_VAL_U8:
        *out = *item_at(kv, i, 1);
        return LOADED;
    case BL_VAL_I8:
        *out = (int8_t)*item_at(kv, i, 1);
        return LOADED;
    case BL_VAL_U16:
        *out = bl_load_u16(item_at(kv, i, 2));
        return LOADED;
    case BL_VAL_I16:
        *out = (int16_t)bl_load_u16(item_at(kv, i, 2));
        return LOADED;
    case BL_VAL_U32:
        *out = bl_load_u32(item_at(kv, i, 4));
        return LOADED;
    case BL_VAL_I32:
        *out = (int32_t)bl_load_u32(item_at(kv, i, 4));
        return LOADED;
    case BL_VAL_U64:
        u = bl_load_u64(item_at(kv, i, 8));
        if (u > INT64_MAX)
            return OUT_OF_RANGE;
        *out = (int64_t)u;
        return LOADED;
    case BL_VAL_I64:
        *out = (int64_t)bl_load_u64(item_at(kv, i, 8));
        return LOADED;
    default:
        return WRONG_TYPE;
    }
}

static enum load load_float(const struct bl_kv *kv, uint64_t i, float *out)
{
    double d;
    if (kv->item == BL_VAL_F32) {
        memcpy(out, item_at(kv, i, 4), sizeof *out);
        return LOADED;
    }
    if (kv->item != BL_VAL_F64)
        return WRONG_TYPE;
    memcpy(&d, item_at(kv, i, 8), sizeof d);
    if (isfinite(d) && !isfinite((float)d))
        return OUT_OF_RANGE;
    *out = (float)d;
    return LOADED;
}

static enum bl_status get_integer(const struct bl_gguf *g, const struct bl_kv *kv, uint64_t i,
                                  int64_t lo, int64_t hi, const char *into, int64_t *out)
{
    int64_t v = 0;
    enum load r = load_integer(kv, i, &v);
    if (r == WRONG_TYPE)
        return fail_key(g, kv, "an integer");
    if (r == OUT_OF_RANGE || v < lo || v > hi)
        return fail_range(g, kv, into);
    *out = v;
    return BL_OK;
}

static enum bl_status get_float(const struct bl_gguf *g, const struct bl_kv *kv, uint64_t i,
                                float *out)
{
    float v = 0;
    switch (load_float(kv, i, &v)) {
    case WRONG_TYPE:
        return fail_key(g, kv, "f32 or f64");
    case OUT_OF_RANGE:
        return fail_range(g, kv, "f32");
    case LOADED:
        break;
    }
    *out = v;
    return BL_OK;
}

/* ---- scalars
 * ------------------------------------------------------------------------------------------ */

enum bl_status bl_gguf_i64(const struct bl_gguf *g, const char *key, bool required, int64_t *out)
{
    const struct bl_kv *kv;
    BL_TRY(find(g, key, required, &kv));
    if (!kv)
        return BL_OK;
    if (kv->type == BL_VAL_ARRAY)
        return fail_key(g, kv, "an integer");
    return get_integer(g, kv, 0, INT64_MIN, INT64_MAX, "i64", out);
}

enum bl_status bl_gguf_u32(const struct bl_gguf *g, const char *key, bool required, uint32_t *out)
{
    const struct bl_kv *kv;
    int64_t v;
    BL_TRY(find(g, key, required, &kv));
    if (!kv)
        return BL_OK;
    if (kv->type == BL_VAL_ARRAY)
        return fail_key(g, kv, "an integer");
    BL_TRY(get_integer(g, kv, 0, 0, UINT32_MAX, "u32", &v));
    *out = (uint32_t)v;
    return BL_OK;
}

enum bl_status bl_gguf_f32(const struct bl_gguf *g, const char *key, bool required, float *out)
{
    const struct bl_kv *kv;
    BL_TRY(find(g, key, required, &kv));
    if (!kv)
        return BL_OK;
    if (kv->type == BL_VAL_ARRAY)
        return fail_key(g, kv, "f32 or f64");
    return get_float(g, kv, 0, out);
}

enum bl_status bl_gguf_bool(const struct bl_gguf *g, const char *key, bool required, bool *out)
{
    const struct bl_kv *kv;
    int64_t v;
    BL_TRY(find(g, key, required, &kv));
    if (!kv)
        return BL_OK;
    if (kv->type == BL_VAL_BOOL) {
        *out = *(const unsigned char *)kv->data != 0;
        return BL_OK;
    }
    if (kv->type == BL_VAL_ARRAY || load_integer(kv, 0, &v) == WRONG_TYPE)
        return fail_key(g, kv, "a bool");
    BL_TRY(get_integer(g, kv, 0, 0, 1, "a bool", &v));
    *out = v != 0;
    return BL_OK;
}

enum bl_status bl_gguf_str(const struct bl_gguf *g, const char *key, bool required, const char **s,
                           uint64_t *n_bytes)
{
    const struct bl_kv *kv;
    BL_TRY(find(g, key, required, &kv));
    if (!kv)
        return BL_OK;
    if (kv->type != BL_VAL_STRING)
        return fail_key(g, kv, "a string");
    *n_bytes = bl_load_u64(kv->data);
    *s = (const char *)kv->data + 8;
    return BL_OK;
}

/* ---- arrays
 * ------------------------------------------------------------------------------------------- */

/* Bools count as 0 and 1: layer patterns come either way. */
static enum bl_status get_layer(const struct bl_gguf *g, const struct bl_kv *kv, uint64_t i,
                                uint32_t *out)
{
    int64_t v;
    if (kv->item == BL_VAL_BOOL) {
        *out = *item_at(kv, i, 1);
        return BL_OK;
    }
    BL_TRY(get_integer(g, kv, i, 0, UINT32_MAX, "u32", &v));
    *out = (uint32_t)v;
    return BL_OK;
}

enum bl_status bl_gguf_u32_per_layer(const struct bl_gguf *g, const char *key, bool required,
                                     uint32_t n, uint32_t *out, bool *found)
{
    const struct bl_kv *kv;
    uint32_t v;
    BL_TRY(find(g, key, required, &kv));
    if (found)
        *found = kv != NULL;
    if (!kv)
        return BL_OK;
    bool array = kv->type == BL_VAL_ARRAY;
    if (array && kv->n < n)
        return bl_fail(BL_EFORMAT, "%s: key '%s' has %" PRIu64 " elements; %" PRIu32 " are needed",
                       bl_path_tail(bl_gguf_path(g)), key, kv->n, n);
    for (uint32_t i = 0; i < n; i++) /* all are checked before the first is stored */
        BL_TRY(get_layer(g, kv, array ? i : 0, &v));
    for (uint32_t i = 0; i < n; i++)
        BL_TRY(get_layer(g, kv, array ? i : 0, &out[i]));
    return BL_OK;
}

static enum bl_status find_element(const struct bl_gguf *g, const char *key, uint64_t i,
                                   const struct bl_kv **kv)
{
    BL_TRY(find(g, key, true, kv));
    if ((*kv)->type != BL_VAL_ARRAY)
        return fail_key(g, *kv, "an array");
    if (i >= (*kv)->n)
        return bl_fail(BL_EFORMAT,
                       "%s: key '%s' has %" PRIu64 " elements; element %" PRIu64 " is needed",
                       bl_path_tail(bl_gguf_path(g)), key, (*kv)->n, i);
    return BL_OK;
}

enum bl_status bl_gguf_f32_array(const struct bl_gguf *g, const char *key, uint64_t i, float *out)
{
    const struct bl_kv *kv;
    BL_TRY(find_element(g, key, i, &kv));
    return get_float(g, kv, i, out);
}

enum bl_status bl_gguf_i32_array(const struct bl_gguf *g, const char *key, uint64_t i, int32_t *out)
{
    const struct bl_kv *kv;
    int64_t v;
    BL_TRY(find_element(g, key, i, &kv));
    BL_TRY(get_integer(g, kv, i, INT32_MIN, INT32_MAX, "i32", &v));
    *out = (int32_t)v;
    return BL_OK;
}

bool bl_gguf_next_string(const struct bl_kv *kv, uint64_t *cursor, const char **s,
                         uint64_t *n_bytes)
{
    if (kv->item != BL_VAL_STRING || *cursor >= kv->data_bytes)
        return false;
    const char *p = (const char *)kv->data + *cursor;
    *n_bytes = bl_load_u64(p); /* inside the data: checked when the file was opened */
    *s = p + 8;
    *cursor += 8 + *n_bytes;
    return true;
}
