/* SPDX-License-Identifier: MIT */
#include "expert_file.h"

#include "engine.h"
#include "file.h"
#include "mem.h"
#include "plan_fields.h"
#include "plan_file.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const struct bl_json_limits limits = {
    .most_bytes = 64 << 20, .most_depth = 8, .most_items = 4 << 20};

#define MOST_COUNT 0x1p53 /* what a number of JSON holds exactly */

static const struct bl_json_field file_rows[] = {
    {.name = "ballast_experts", .kind = BL_JSON_OTHER, .required = true},
    {.name = "model", .kind = BL_JSON_OTHER, .required = true},
    {.name = "n_tok", .kind = BL_JSON_OTHER, .required = true},
    {.name = "layers", .kind = BL_JSON_OTHER, .required = true},
};
static const struct bl_json_field layer_rows[] = {
    {.name = "layer", .kind = BL_JSON_OTHER, .required = true},
    {.name = "uses", .kind = BL_JSON_OTHER, .required = true},
    {.name = "alone", .kind = BL_JSON_OTHER, .required = true},
    {.name = "reuse", .kind = BL_JSON_OTHER, .required = true},
};

/* ---- in -------------------------------------------------------------------------------------- */

static enum bl_status read_count(const struct bl_json *at, double most, uint64_t *out)
{
    const double v = cJSON_IsNumber(at->item) ? at->item->valuedouble : -1;

    if (!(v >= 0 && v <= most && v == floor(v)))
        return bl_json_wrong(at, "must be a whole number from 0 to %.0f", most);
    *out = (uint64_t)v;
    return BL_OK;
}

static enum bl_status read_member(const struct bl_json *at, const char *name, double most,
                                  uint64_t *out)
{
    struct bl_json it;

    bl_json_member(at, name, &it);
    return read_count(&it, most, out);
}

static enum bl_status read_counts(const struct bl_json *at, const char *name, uint32_t n,
                                  uint64_t *out)
{
    struct bl_json list, it;
    uint32_t has;

    bl_json_member(at, name, &list);
    BL_TRY(bl_json_list(&list, n, &has));
    if (has != n)
        return bl_json_wrong(&list, "has %u numbers; the model has %u experts", has, n);
    for (bool more = bl_json_first(&list, &it); more; more = bl_json_next(&it))
        BL_TRY(read_count(&it, MOST_COUNT, &out[it.index]));
    return BL_OK;
}

static enum bl_status read_layer(const struct bl_json *at, const struct bl_model *m,
                                 struct bl_expert_stats *s, bool *seen)
{
    struct bl_json it;
    uint64_t l = 0;

    BL_TRY(bl_json_fields(at, layer_rows, BL_COUNT(layer_rows), NULL));
    BL_TRY(read_member(at, "layer", m->hp.n_layer - 1, &l));
    bl_json_member(at, "layer", &it);
    if (!m->layer[l].moe || seen[l])
        return bl_json_wrong(
            &it, seen[l] ? "is %u, as of an earlier element" : "is %u, which has no experts",
            (unsigned)l);
    seen[l] = true;
    BL_TRY(read_member(at, "alone", MOST_COUNT, &s->alone[l]));
    BL_TRY(read_counts(at, "uses", s->n_experts, s->uses + l * s->n_experts));
    return read_counts(at, "reuse", s->n_experts, s->reuse + l * s->n_experts);
}

static enum bl_status is_for(const struct bl_json *root, const struct bl_model *m)
{
    struct bl_plan_file_model there = {.n_layers = 0}, here;
    struct bl_json at;

    bl_json_member(root, "model", &at);
    BL_TRY(bl_fields_read(&at, &bl_plan_fields_model, &there));
    bl_plan_file_describe(&here, m);
    if (!strcmp(there.digest, here.digest) && !strcmp(there.arch, here.arch))
        return BL_OK;
    return bl_json_wrong(&at,
                         "is another one: '%s' (%s, %u layers, tensors %s); this is '%s' (%s, %u "
                         "layers, tensors %s)",
                         there.name, there.arch, there.n_layers, there.digest, here.name, here.arch,
                         here.n_layers, here.digest);
}

static enum bl_status read_layers(const struct bl_json *root, const struct bl_model *m,
                                  struct bl_expert_stats *s)
{
    struct bl_json list, it;
    uint32_t n;
    enum bl_status st;

    bl_json_member(root, "layers", &list);
    BL_TRY(bl_json_list(&list, m->hp.n_layer, &n));
    bool *seen = bl_calloc((size_t)m->hp.n_layer + 1, sizeof *seen);
    st = seen ? BL_OK : bl_fail(BL_ENOMEM, "out of memory for statistics of experts");
    for (bool more = bl_json_first(&list, &it); !st && more; more = bl_json_next(&it))
        st = read_layer(&it, m, s, seen);
    free(seen);
    return st;
}

static enum bl_status read_file(const struct bl_json *root, const struct bl_model *m,
                                struct bl_expert_stats *s)
{
    struct bl_json at;

    BL_TRY(bl_json_object(root));
    if (!bl_json_member(root, "ballast_experts", &at) || !cJSON_IsNumber(at.item))
        return bl_fail(BL_EFORMAT, "%s: no statistics: its first member must be \"%s\": %d",
                       root->what, "ballast_experts", BL_EXPERTS_FORMAT);
    if (at.item->valuedouble != BL_EXPERTS_FORMAT)
        return bl_json_wrong(&at, "is %.6g; this build reads format %d", at.item->valuedouble,
                             BL_EXPERTS_FORMAT);
    BL_TRY(bl_json_fields(root, file_rows, BL_COUNT(file_rows), NULL));
    BL_TRY(is_for(root, m));
    BL_TRY(read_member(root, "n_tok", MOST_COUNT, &s->n_tok));
    return read_layers(root, m, s);
}

static enum bl_status as_option(enum bl_status st)
{
    return st == BL_EFORMAT || st == BL_EIO ? BL_EINVAL : st;
}

static enum bl_status read_tree(cJSON *tree, const char *what, const struct bl_model *m,
                                struct bl_expert_stats *out)
{
    const struct bl_json root = bl_json_root(tree, what);
    struct bl_expert_stats s;
    enum bl_status st = bl_expert_stats_init(&s, m->hp.n_layer, m->hp.n_expert);

    if (!st)
        st = read_file(&root, m, &s);
    bl_json_free(tree);
    if (st)
        bl_expert_stats_finish(&s);
    else
        *out = s;
    return as_option(st);
}

enum bl_status bl_expert_file_parse(struct bl_expert_stats *out, const struct bl_model *m,
                                    const char *what, const char *text, size_t n_bytes)
{
    cJSON *tree;
    const enum bl_status st = bl_json_parse(&tree, what, text, n_bytes, &limits);
    return st ? as_option(st) : read_tree(tree, what, m, out);
}

enum bl_status bl_expert_file_load(struct bl_expert_stats *out, const struct bl_model *m,
                                   const char *path)
{
    const char *slash = strrchr(path, '/');
    char what[80];
    cJSON *tree;

    snprintf(what, sizeof what, "experts %.64s", slash ? slash + 1 : path);
    bl_one_line(what);
    if (!m->hp.n_expert)
        return bl_fail(BL_EINVAL, "%s: the model has no experts to count", what);
    *out = (struct bl_expert_stats){0};
    if (access(path, F_OK))
        return BL_OK;
    const enum bl_status st = bl_json_load(&tree, what, path, &limits);
    return st ? as_option(st) : read_tree(tree, what, m, out);
}

/* ---- out ------------------------------------------------------------------------------------- */

static void put_counts(struct bl_json_out *o, const char *name, const uint64_t *count, uint32_t n)
{
    bl_json_open(o, name, '[', true);
    for (uint32_t i = 0; i < n; i++)
        bl_json_put_number(o, NULL, fmin((double)count[i], MOST_COUNT));
    bl_json_close(o, ']');
}

static void put_layer(struct bl_json_out *o, const struct bl_expert_stats *s, uint32_t l)
{
    bl_json_open(o, NULL, '{', false);
    bl_json_put_number(o, "layer", l);
    put_counts(o, "uses", s->uses + (size_t)l * s->n_experts, s->n_experts);
    bl_json_put_number(o, "alone", fmin((double)s->alone[l], MOST_COUNT));
    put_counts(o, "reuse", s->reuse + (size_t)l * s->n_experts, s->n_experts);
    bl_json_close(o, '}');
}

enum bl_status bl_expert_file_text(char **text, size_t *n_bytes, const struct bl_expert_stats *s,
                                   const struct bl_model *m)
{
    struct bl_plan_file_model model;
    struct bl_json_out o = {0};

    bl_plan_file_describe(&model, m);
    bl_json_open(&o, NULL, '{', false);
    bl_json_put_number(&o, "ballast_experts", BL_EXPERTS_FORMAT);
    bl_json_open(&o, "model", '{', false);
    bl_fields_put(&o, &bl_plan_fields_model, &model);
    bl_json_close(&o, '}');
    bl_json_put_number(&o, "n_tok", fmin((double)s->n_tok, MOST_COUNT));
    bl_json_open(&o, "layers", '[', false);
    for (uint32_t l = 0; l < s->n_layers; l++)
        if (m->layer[l].moe)
            put_layer(&o, s, l);
    bl_json_close(&o, ']');
    bl_json_close(&o, '}');
    BL_TRY(bl_json_out_end(&o));
    *text = o.text;
    *n_bytes = o.n;
    return BL_OK;
}

/* ---- of an engine ---------------------------------------------------------------------------- */

bool bl_engine_expert_use(const struct bl_engine *e, struct bl_expert_use *out)
{
    const struct bl_residency *r = &e->residency;

    if (!r->experts.stats.uses)
        return false;
    *out = (struct bl_expert_use){.n_tok = r->experts.stats.n_tok,
                                  .uses = r->experts.n_uses,
                                  .hits = r->experts.n_hits,
                                  .moves = r->experts.n_moves,
                                  .moved_bytes = r->moved_bytes,
                                  .slots = r->experts.n_sets > 0};
    return true;
}

enum bl_status bl_engine_save_experts(const struct bl_engine *e, const char *path)
{
    const struct bl_expert_stats *s = &e->residency.experts.stats;
    struct bl_file_out file = {0};
    char *text;
    size_t n;

    if (!s->uses)
        return bl_fail(BL_EINVAL, "%s: no uses of experts were counted", bl_path_tail(path));
    BL_TRY(bl_expert_file_text(&text, &n, s, e->parts.model));
    enum bl_status st = bl_file_out_create(&file, path);
    if (!st && !(st = bl_file_out_write(&file, text, n)))
        st = bl_file_out_commit(&file);
    bl_file_out_abandon(&file);
    free(text);
    return st;
}
