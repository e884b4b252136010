/* SPDX-License-Identifier: MIT */
/* Shapes as JSON: the known ones and those of one's own, which may stand on them. */
#include "synth.h"

#include "mem.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    MOST_VOCAB = 1 << 20,
    MOST_LIKE = 4, /* shapes that stand on each other */
    MOST_JSON_BYTES = 1 << 20
};

enum bl_status bl_synth_wrong(const char *shape, const char *member, const char *wanted)
{
    return bl_fail(BL_EINVAL, "shape %s: '%.60s' must be %s", shape, member, wanted);
}

enum bl_status bl_synth_no_memory(const char *shape)
{
    return bl_fail(BL_ENOMEM, "shape %s: out of memory", shape);
}

/* ---- the text ---- */

const char *bl_synth_shape(uint32_t i)
{
    return i < bl_synth_n_sources ? bl_synth_sources[i].name : NULL;
}

static const struct bl_synth_source *source_by_name(const char *name)
{
    for (uint32_t i = 0; i < bl_synth_n_sources; i++)
        if (!strcmp(bl_synth_sources[i].name, name))
            return &bl_synth_sources[i];
    return NULL;
}

static enum bl_status parse(const char *name, const char *text, size_t n, cJSON **out)
{
    const char *end = text;
    if (n > MOST_JSON_BYTES)
        return bl_fail(BL_EINVAL, "shape %s: %zu bytes; the most is %d", name, n, MOST_JSON_BYTES);
    cJSON *root = cJSON_ParseWithLengthOpts(text, n, &end, false);
    if (!root)
        return bl_fail(BL_EFORMAT, "shape %s: no JSON, or cut off, at byte %td", name, end - text);
    if (!cJSON_IsObject(root)) {
        cJSON_Delete(root);
        return bl_fail(BL_EFORMAT, "shape %s: must be a JSON object", name);
    }
    *out = root;
    return BL_OK;
}

/* Puts `item` of another tree over the member of that name; null takes the member away. */
static bool put_over(cJSON *to, cJSON *item)
{
    cJSON_DeleteItemFromObjectCaseSensitive(to, item->string);
    if (cJSON_IsNull(item))
        return true;
    cJSON *copy = cJSON_Duplicate(item, true);
    if (copy && cJSON_AddItemToObject(to, item->string, copy))
        return true;
    cJSON_Delete(copy);
    return false;
}

static bool lay_over(cJSON *base, const cJSON *own)
{
    cJSON *keys = cJSON_GetObjectItemCaseSensitive(base, "metadata"), *item, *key;
    cJSON_ArrayForEach(item, own)
    {
        if (strcmp(item->string, "metadata") || !cJSON_IsObject(item) || !keys) {
            if (strcmp(item->string, "like") && !put_over(base, item))
                return false;
            continue;
        }
        cJSON_ArrayForEach(key, item) if (!put_over(keys, key)) return false;
    }
    return true;
}

/* Replaces the tree by the shape it is like, with the tree's own members over it. */
static enum bl_status resolve_like(const char *name, cJSON **root)
{
    const cJSON *like;
    for (int depth = 0; (like = cJSON_GetObjectItemCaseSensitive(*root, "like")); depth++) {
        const struct bl_synth_source *s =
            cJSON_IsString(like) ? source_by_name(like->valuestring) : NULL;
        cJSON *base = NULL;
        if (!s || depth == MOST_LIKE)
            return bl_synth_wrong(name, "like",
                                  "the name of a known shape; see 'ballast synth --list'");
        BL_TRY(parse(s->name, (const char *)s->json, s->n_bytes, &base));
        bool good = lay_over(base, *root);
        cJSON_Delete(*root);
        *root = base;
        if (!good)
            return bl_synth_no_memory(name);
    }
    return BL_OK;
}

/* ---- members ---- */

static enum bl_status check_members(const char *name, const cJSON *root)
{
    static const char *const known[] = {"about",   "architecture", "parameters", "layers",
                                        "vocab",   "tokenizer",    "recipe",     "metadata",
                                        "tensors", "draft",        "source"};
    const cJSON *item;
    cJSON_ArrayForEach(item, root)
    {
        bool found = false;
        for (unsigned i = 0; i < BL_COUNT(known) && !found; i++)
            found = !strcmp(known[i], item->string);
        if (!found)
            return bl_synth_wrong(name, item->string,
                                  "one of architecture, layers, vocab, metadata, "
                                  "tensors, draft, tokenizer, recipe, parameters, "
                                  "about, source, like");
    }
    return BL_OK;
}

static enum bl_status read_text(const struct bl_synth_shape *s, const char *member,
                                const char *otherwise, const char **out)
{
    const cJSON *j = cJSON_GetObjectItemCaseSensitive(s->root, member);
    *out = otherwise;
    if (!j && otherwise)
        return BL_OK;
    if (!cJSON_IsString(j) || !j->valuestring[0])
        return bl_synth_wrong(s->name, member, "text");
    *out = j->valuestring;
    return BL_OK;
}

bool bl_synth_is_count(const struct cJSON *j, uint64_t least, uint64_t most)
{
    return cJSON_IsNumber(j) && j->valuedouble >= (double)least && j->valuedouble <= (double)most &&
           j->valuedouble == floor(j->valuedouble);
}

static enum bl_status read_count(const struct bl_synth_shape *s, const cJSON *in,
                                 const char *member, uint32_t least, uint32_t most, uint32_t *out)
{
    char wanted[64];
    const cJSON *j = cJSON_GetObjectItemCaseSensitive(in, member);
    if (!bl_synth_is_count(j, least, most)) {
        snprintf(wanted, sizeof wanted, "a whole number, %" PRIu32 " to %" PRIu32, least, most);
        return bl_synth_wrong(s->name, member, wanted);
    }
    *out = (uint32_t)j->valuedouble;
    return BL_OK;
}

static enum bl_status read_also(struct bl_synth_shape *s)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(s->root, "tensors"), *item;
    if (!list)
        return BL_OK;
    if (!cJSON_IsArray(list))
        return bl_synth_wrong(s->name, "tensors", "a list of names such as \"output.weight\"");
    s->also = bl_calloc((size_t)cJSON_GetArraySize(list), sizeof *s->also);
    if (!s->also)
        return bl_synth_no_memory(s->name);
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsString(item))
            return bl_synth_wrong(s->name, "tensors", "a list of names such as \"output.weight\"");
        s->also[s->n_also++] = item->valuestring;
    }
    return BL_OK;
}

static enum bl_status read_members(struct bl_synth_shape *s)
{
    const cJSON *draft = cJSON_GetObjectItemCaseSensitive(s->root, "draft");
    const cJSON *params = cJSON_GetObjectItemCaseSensitive(s->root, "parameters");
    BL_TRY(check_members(s->name, s->root));
    BL_TRY(read_text(s, "architecture", NULL, &s->arch));
    BL_TRY(read_text(s, "about", s->name, &s->about));
    BL_TRY(read_text(s, "tokenizer", "gpt-2", &s->pre));
    BL_TRY(read_text(s, "recipe", "q4_k_m", &s->recipe));
    BL_TRY(read_count(s, s->root, "layers", 1, BL_SYNTH_MOST_LAYERS, &s->layers));
    BL_TRY(read_count(s, s->root, "vocab", BL_SYNTH_LEAST_VOCAB, MOST_VOCAB, &s->vocab));
    if (params && !bl_synth_is_count(params, 0, UINT64_C(1) << 50))
        return bl_synth_wrong(s->name, "parameters", "a whole number");
    s->published_params = params ? (uint64_t)params->valuedouble : 0;
    if (draft)
        BL_TRY(read_count(s, draft, "layers", 1, 8, &s->drafts));
    if (!cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(s->root, "metadata")))
        return bl_synth_wrong(s->name, "metadata", "an object of keys");
    return read_also(s);
}

static enum bl_status apply_options(struct bl_synth_shape *s, const struct bl_synth_options *o)
{
    if (o->layers > BL_SYNTH_MOST_LAYERS)
        return bl_fail(BL_EINVAL, "%" PRIu32 " layers; the most is %d", o->layers,
                       BL_SYNTH_MOST_LAYERS);
    if (o->vocab && (o->vocab < BL_SYNTH_LEAST_VOCAB || o->vocab > MOST_VOCAB))
        return bl_fail(BL_EINVAL, "a vocabulary of %" PRIu32 " tokens; must be %d to %d", o->vocab,
                       BL_SYNTH_LEAST_VOCAB, MOST_VOCAB);
    if (o->layers) {
        s->layers = o->layers;
        s->drafts = 0;
    }
    s->vocab = o->vocab ? o->vocab : s->vocab;
    s->recipe = o->recipe ? o->recipe : s->recipe;
    return BL_OK;
}

static enum bl_status open_shape(struct bl_synth_shape *s, const struct bl_synth_options *o)
{
    const struct bl_synth_source *known = o->json ? NULL : source_by_name(s->name);
    if (!o->json && !known)
        return bl_fail(BL_EINVAL, "no shape is called '%.60s'; see 'ballast synth --list'",
                       s->name);
    BL_TRY(o->json ? parse(s->name, o->json, o->json_bytes, &s->root)
                   : parse(s->name, (const char *)known->json, known->n_bytes, &s->root));
    BL_TRY(resolve_like(s->name, &s->root));
    BL_TRY(read_members(s));
    return apply_options(s, o);
}

enum bl_status bl_synth_shape_open(struct bl_synth_shape *s, const struct bl_synth_options *o)
{
    *s = (struct bl_synth_shape){.name = o->shape ? o->shape : "?"};
    enum bl_status st = open_shape(s, o);
    if (st)
        bl_synth_shape_finish(s);
    return st;
}

void bl_synth_shape_finish(struct bl_synth_shape *s)
{
    cJSON_Delete(s->root);
    free(s->also);
    *s = (struct bl_synth_shape){0};
}
