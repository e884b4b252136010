/* SPDX-License-Identifier: MIT */
/* The header of the model that a shape describes: its keys as JSON has them, and the tensors that
 * its family asks for. */
#include "synth.h"

#include "mem.h"
#include "model.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_KEYS = 256, TENSORS_PER_LAYER = 64, KEY_BYTES = 128 };

/* ---- keys ---- */

struct maker {
    const struct bl_synth_shape *s;
    struct bl_gguf *g;
    const char *key; /* in hand */
};

static enum bl_status put(const struct maker *k, enum bl_value_type type, enum bl_value_type item,
                          uint64_t n, const void *data, uint64_t bytes)
{
    return bl_gguf_add_kv(k->g, &(struct bl_kv){k->key, type, item, n, data, bytes});
}

static enum bl_status put_u32(const struct maker *k, uint32_t v)
{
    return put(k, BL_VAL_U32, BL_VAL_U32, 1, &v, sizeof v);
}

static enum bl_status put_text(const struct maker *k, const char *text)
{
    uint64_t n = strlen(text);
    unsigned char *packed = bl_calloc(1, (size_t)n + sizeof n);
    if (!packed)
        return bl_synth_no_memory(k->s->name);
    memcpy(packed, &n, sizeof n);
    memcpy(packed + sizeof n, text, (size_t)n);
    enum bl_status st = put(k, BL_VAL_STRING, BL_VAL_STRING, 1, packed, n + sizeof n);
    free(packed);
    return st;
}

/* One number as the bytes of an item; false: it does not fit the type. */
static bool pack(enum bl_value_type type, const cJSON *j, unsigned char out[8])
{
    float f;
    int32_t i;
    if (type == BL_VAL_BOOL) {
        out[0] = cJSON_IsTrue(j) ? 1 : 0;
        return cJSON_IsBool(j);
    }
    if (!cJSON_IsNumber(j) || !isfinite(j->valuedouble))
        return false;
    if (type == BL_VAL_F32) {
        f = (float)j->valuedouble;
        memcpy(out, &f, sizeof f);
        return isfinite(f);
    }
    if (fabs(j->valuedouble) > INT32_MAX || j->valuedouble != floor(j->valuedouble) ||
        (type == BL_VAL_U32 && j->valuedouble < 0))
        return false;
    i = (int32_t)j->valuedouble;
    memcpy(out, &i, sizeof i);
    return true;
}

static enum bl_status bad_value(const struct maker *k)
{
    return bl_synth_wrong(k->s->name, k->key,
                          "a number, a text, true or false, a list, or such as {\"f32\": 1}, "
                          "{\"i32\": [0], \"repeat\": [4, 128]}");
}

/* Item i of a list that goes on with another for ever. */
static const cJSON *item_of(const cJSON *list, const cJSON *repeat, uint32_t i)
{
    int n = cJSON_GetArraySize(list), m = cJSON_GetArraySize(repeat);
    if (i < (uint32_t)n)
        return cJSON_GetArrayItem(list, (int)i);
    return m ? cJSON_GetArrayItem(repeat, (int)((i - (uint32_t)n) % (uint32_t)m)) : NULL;
}

/* As long as it is written, or, with what repeats, one item for each layer. */
static enum bl_status put_list(const struct maker *k, enum bl_value_type item, const cJSON *list,
                               const cJSON *repeat)
{
    uint32_t n = repeat ? k->s->layers + k->s->drafts : (uint32_t)cJSON_GetArraySize(list);
    uint32_t size = item == BL_VAL_BOOL ? 1 : 4;
    unsigned char *packed = bl_calloc(n, 8), one[8];
    bool good = true;
    if (!packed)
        return bl_synth_no_memory(k->s->name);
    for (uint32_t i = 0; i < n && good; i++) {
        good = pack(item, item_of(list, repeat, i), one);
        memcpy(packed + (size_t)i * size, one, size);
    }
    enum bl_status st =
        good ? put(k, BL_VAL_ARRAY, item, n, packed, (uint64_t)n * size) : bad_value(k);
    free(packed);
    return st;
}

static enum bl_status put_typed(const struct maker *k, const cJSON *j)
{
    static const struct {
        const char *name;
        enum bl_value_type type;
    } types[] = {
        {"u32", BL_VAL_U32}, {"i32", BL_VAL_I32}, {"f32", BL_VAL_F32}, {"bool", BL_VAL_BOOL}};
    const cJSON *repeat = cJSON_GetObjectItemCaseSensitive(j, "repeat");
    for (unsigned i = 0; i < BL_COUNT(types); i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(j, types[i].name);
        unsigned char one[8];
        if (!v || (repeat && !cJSON_IsArray(repeat)))
            continue;
        if (cJSON_IsArray(v))
            return put_list(k, types[i].type, v, repeat);
        return pack(types[i].type, v, one) ? put(k, types[i].type, types[i].type, 1, one,
                                                 types[i].type == BL_VAL_BOOL ? 1 : 4)
                                           : bad_value(k);
    }
    return bad_value(k);
}

/* Whole numbers are u32, others f32; lists of whole numbers i32. */
static enum bl_status put_value(const struct maker *k, const cJSON *j)
{
    unsigned char one[8];
    if (cJSON_IsObject(j))
        return put_typed(k, j);
    if (cJSON_IsArray(j))
        return put_list(k, BL_VAL_I32, j, NULL);
    if (cJSON_IsString(j))
        return put_text(k, j->valuestring);
    if (pack(BL_VAL_BOOL, j, one))
        return put(k, BL_VAL_BOOL, BL_VAL_BOOL, 1, one, 1);
    if (pack(BL_VAL_U32, j, one))
        return put(k, BL_VAL_U32, BL_VAL_U32, 1, one, 4);
    return pack(BL_VAL_F32, j, one) ? put(k, BL_VAL_F32, BL_VAL_F32, 1, one, 4) : bad_value(k);
}

/* Numbers of layers at the beginning: a model cut short has at most so many, and, of dense ones,
 * one less, so that experts remain. */
static bool cut_to_layers(const struct maker *k, const char *suffix, const cJSON *j, uint32_t *out)
{
    uint32_t most = k->s->layers;
    if (!bl_synth_is_count(j, 0, BL_SYNTH_MOST_LAYERS))
        return false;
    if (!strcmp(suffix, "leading_dense_block_count"))
        most--;
    else if (strcmp(suffix, "hash_layer_count"))
        return false;
    *out = j->valuedouble < most ? (uint32_t)j->valuedouble : most;
    return true;
}

static enum bl_status put_keys(struct maker *k, const cJSON *keys)
{
    char full[KEY_BYTES];
    const cJSON *j;
    uint32_t cut;
    cJSON_ArrayForEach(j, keys)
    {
        int n = snprintf(full, sizeof full, "%s.%s", k->s->arch, j->string);
        if (n < 0 || n >= KEY_BYTES)
            return bl_synth_wrong(k->s->name, j->string, "shorter");
        k->key = full;
        BL_TRY(cut_to_layers(k, j->string, j, &cut) ? put_u32(k, cut) : put_value(k, j));
    }
    return BL_OK;
}

static enum bl_status put_sized(struct maker *k, const char *suffix, uint32_t v)
{
    char full[KEY_BYTES];
    snprintf(full, sizeof full, "%.64s.%s", k->s->arch, suffix);
    k->key = full;
    return put_u32(k, v);
}

static enum bl_status put_metadata(struct maker *k)
{
    const struct bl_synth_shape *s = k->s;
    const cJSON *keys = cJSON_GetObjectItemCaseSensitive(s->root, "metadata");
    k->key = "general.architecture";
    BL_TRY(put_text(k, s->arch));
    k->key = "general.type";
    BL_TRY(put_text(k, "model"));
    k->key = "general.name";
    BL_TRY(put_text(k, s->about));
    k->key = "general.quantization_version";
    BL_TRY(put_u32(k, 2));
    BL_TRY(put_sized(k, "block_count", s->layers + s->drafts));
    BL_TRY(put_sized(k, "vocab_size", s->vocab));
    if (s->drafts)
        BL_TRY(put_sized(k, "nextn_predict_layers", s->drafts));
    BL_TRY(put_keys(k, keys));
    return bl_synth_add_vocab(k->g, s->pre, s->vocab);
}

/* ---- tensors of drafting blocks, which families do not ask for ---- */

/* "E", "2E" and "V" mean the width and the vocabulary. */
static bool read_dim(const struct maker *k, const cJSON *j, uint64_t *out)
{
    char *end;
    uint32_t width = 0;
    char key[KEY_BYTES];
    if (bl_synth_is_count(j, 1, UINT32_MAX)) {
        *out = (uint64_t)j->valuedouble;
        return true;
    }
    if (!cJSON_IsString(j))
        return false;
    uint64_t times = strtoul(j->valuestring, &end, 10);
    times = end == j->valuestring ? 1 : times;
    snprintf(key, sizeof key, "%.64s.embedding_length", k->s->arch);
    if (bl_gguf_u32(k->g, key, true, &width))
        return false;
    *out = times * (*end == 'V' ? k->s->vocab : width);
    return (*end == 'E' || *end == 'V') && !end[1] && times && times < 100;
}

static enum bl_status add_draft_tensors(const struct maker *k, const cJSON *list, uint32_t block)
{
    const cJSON *j;
    cJSON_ArrayForEach(j, list)
    {
        char name[KEY_BYTES];
        uint64_t ne[2] = {1, 1};
        int n = cJSON_GetArraySize(j);
        bool good = (n == 1 || n == 2) && read_dim(k, cJSON_GetArrayItem(j, 0), &ne[0]) &&
                    (n == 1 || read_dim(k, cJSON_GetArrayItem(j, 1), &ne[1]));
        if (!good)
            return bl_synth_wrong(k->s->name, j->string,
                                  "one or two sizes, \"E\" and \"V\" among them");
        snprintf(name, sizeof name, "blk.%" PRIu32 ".%.80s", block, j->string);
        BL_TRY(bl_gguf_add_tensor(k->g, name, n == 1 ? BL_F32 : BL_F16, (uint32_t)n, ne));
    }
    return BL_OK;
}

/* What the last layer has, a drafting block has too. */
static enum bl_status add_drafts(const struct maker *k)
{
    const cJSON *draft = cJSON_GetObjectItemCaseSensitive(k->s->root, "draft");
    uint32_t n = bl_gguf_n_tensors(k->g), last = k->s->layers - 1;
    char prefix[32], name[KEY_BYTES];
    snprintf(prefix, sizeof prefix, "blk.%" PRIu32 ".", last);
    for (uint32_t d = 1; d <= k->s->drafts; d++) {
        for (uint32_t i = 0; i < n; i++) {
            const struct bl_tensor_info *t = bl_gguf_tensor(k->g, i);
            if (strncmp(t->name, prefix, strlen(prefix)))
                continue;
            snprintf(name, sizeof name, "blk.%" PRIu32 ".%.80s", last + d,
                     t->name + strlen(prefix));
            BL_TRY(bl_gguf_add_tensor(k->g, name, t->type, t->n_dims, t->ne));
        }
        BL_TRY(add_draft_tensors(k, cJSON_GetObjectItemCaseSensitive(draft, "tensors"), last + d));
    }
    return BL_OK;
}

/* ---- the whole ---- */

static bool ends_in(const char *name, const char *tail)
{
    size_t n = strlen(name), m = strlen(tail);
    return n >= m && !strcmp(name + n - m, tail) && (n == m || name[n - m - 1] == '.');
}

/* A tensor that is listed and that the family has no use for is misspelt. */
static enum bl_status check_also(const struct bl_synth_shape *s, const struct bl_gguf *g)
{
    for (uint32_t a = 0; a < s->n_also; a++) {
        bool found = false;
        for (uint32_t i = 0; i < bl_gguf_n_tensors(g) && !found; i++)
            found = ends_in(bl_gguf_tensor(g, i)->name, s->also[a]);
        if (!found)
            return bl_fail(BL_EINVAL, "shape %s: architecture %s has no tensor '%.60s' here",
                           s->name, s->arch, s->also[a]);
    }
    return BL_OK;
}

static enum bl_status make(struct maker *k)
{
    const struct bl_outline o = {k->g, k->s->also, k->s->n_also};
    BL_TRY(put_metadata(k));
    BL_TRY(bl_model_outline(&o));
    BL_TRY(check_also(k->s, k->g));
    return add_drafts(k);
}

enum bl_status bl_synth_header(const struct bl_synth_shape *s, struct bl_gguf **out)
{
    struct maker k = {.s = s};
    BL_TRY(
        bl_gguf_create(&k.g, s->name, MOST_KEYS, TENSORS_PER_LAYER * (s->layers + s->drafts + 1)));
    enum bl_status st = make(&k);
    if (st) {
        bl_gguf_close(k.g);
        return st;
    }
    *out = k.g;
    return BL_OK;
}
