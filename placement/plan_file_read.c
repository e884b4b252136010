/* SPDX-License-Identifier: MIT */
/* Plan files in: what can be told without a model and a machine. */
#include "plan_fields.h"
#include "plan_file.h"

#include "mem.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

static const struct bl_json_limits limits = {
    .most_bytes = 4 << 20, .most_depth = 16, .most_items = 100000};
enum { MOST_PLACES = 16384, MOST_MEMORY = 4096, MOST_LAYERS = 1 << 20, MOST_EXPERTS = 1 << 20 };

/* ---- runs of layers and of experts ----------------------------------------------------------- */

static bool read_number(const char **text, uint32_t most, uint32_t *out)
{
    uint64_t v = 0;
    const char *p = *text;

    if (*p < '0' || *p > '9')
        return false;
    for (; *p >= '0' && *p <= '9'; p++)
        if ((v = 10 * v + (uint64_t)(*p - '0')) > most)
            return false;
    *text = p;
    *out = (uint32_t)v;
    return true;
}

/* "34-42", "34", or the number 34. */
static enum bl_status read_run(const struct bl_json *at, uint32_t most, uint32_t *first,
                               uint32_t *last)
{
    const char *text = bl_json_text(at);
    bool good = text && read_number(&text, most, first);

    if (cJSON_IsNumber(at->item)) {
        const double v = at->item->valuedouble;
        good = v >= 0 && v <= most;
        *first = good ? (uint32_t)v : 0;
        good = good && v == *first;
        text = "";
    }
    *last = *first;
    if (good && *text == '-') {
        text++;
        good = read_number(&text, most, last) && *last >= *first;
    }
    return good && !*text ? BL_OK
                          : bl_json_wrong(at, "must be a number or a run, such as \"34-42\"");
}

/* ---- placement ------------------------------------------------------------------------------- */

static const char *device_name(const void *arg, size_t i)
{
    const struct bl_plan_file *f = arg;
    return i < f->n_devices ? f->device[i].id : NULL;
}

/* By id, or by kind and number. */
static uint16_t find_device(const struct bl_plan_file *f, const char *name)
{
    uint32_t n[BL_N_DEVICE_KINDS] = {0};
    char alias[16];

    for (uint32_t d = 0; d < f->n_devices; d++)
        if (!strcmp(f->device[d].id, name))
            return (uint16_t)d;
    for (uint32_t d = 0; d < f->n_devices; d++) {
        const uint8_t kind = f->device[d].kind;
        snprintf(alias, sizeof alias, "%s%u", bl_kind_words[kind], n[kind]++);
        if (!strcmp(alias, name))
            return (uint16_t)d;
    }
    return BL_NO_DEVICE;
}

static enum bl_status resolve(const struct bl_json *at, const struct bl_plan_file *f,
                              struct bl_plan_file_place *p)
{
    struct bl_json it;

    p->on = find_device(f, p->device);
    if (p->on != BL_NO_DEVICE)
        return BL_OK;
    bl_json_member(at, "device", &it);
    const char *near = bl_nearest_name(p->device, device_name, f);
    return near ? bl_json_wrong(&it, "'%s' is no device of the plan's machine; the nearest is '%s'",
                                p->device, near)
                : bl_json_wrong(&it, "'%s' is no device of the plan's machine", p->device);
}

/* {"layer": 12, "experts": "0-63", "device": "gpu1"} */
static enum bl_status read_some(const struct bl_json *at, const struct bl_json *experts,
                                struct bl_plan_file_place *p)
{
    struct bl_json it;

    if (bl_json_member(at, "part", &it) || bl_json_member(at, "layers", &it))
        return bl_json_wrong(&it, "cannot stand beside 'experts', which are those of one 'layer'");
    if (!bl_json_member(at, "layer", &it))
        return bl_json_wrong(at, "must have a member 'layer' beside 'experts'");
    BL_TRY(read_run(&it, MOST_LAYERS, &p->first, &p->last));
    if (p->first != p->last)
        return bl_json_wrong(&it, "must be one layer");
    p->some = true;
    p->part = BL_PART_EXPERTS;
    return read_run(experts, MOST_EXPERTS, &p->expert_first, &p->expert_last);
}

/* {"layers": "34-42", "part": "experts", "device": "gpu1"}, {"part": "head", "device": "gpu0"} */
static enum bl_status read_part(const struct bl_json *at, struct bl_plan_file_place *p)
{
    struct bl_json part, layers, it;

    if (!bl_json_member(at, "part", &part))
        return bl_json_wrong(at, "must have a member 'part', or 'experts' of one 'layer'");
    if (bl_json_member(at, "layer", &it))
        return bl_json_wrong(&it, "goes with 'experts'; a part has 'layers'");
    const bool outside = p->part == BL_PART_EMBED || p->part == BL_PART_HEAD;
    if (bl_json_member(at, "layers", &layers) == outside)
        return outside ? bl_json_wrong(&layers, "do not have '%s'", bl_json_text(&part))
                       : bl_json_wrong(at, "must have a member 'layers'");
    return outside ? BL_OK : read_run(&layers, MOST_LAYERS, &p->first, &p->last);
}

/* {"layers": "3-42", "slots": 64, "device": "gpu1"} */
static enum bl_status read_slots(const struct bl_json *at, struct bl_plan_file_place *p)
{
    static const char *const others[] = {"part", "layer", "experts"};
    struct bl_json it;

    for (size_t i = 0; i < BL_COUNT(others); i++)
        if (bl_json_member(at, others[i], &it))
            return bl_json_wrong(&it, "cannot stand beside 'slots', which are for 'layers'");
    if (!bl_json_member(at, "layers", &it))
        return bl_json_wrong(at, "must have a member 'layers' beside 'slots'");
    p->part = BL_PART_EXPERTS;
    return read_run(&it, MOST_LAYERS, &p->first, &p->last);
}

static enum bl_status read_place(const struct bl_json *at, const struct bl_plan_file *f,
                                 struct bl_plan_file_place *p)
{
    struct bl_json experts;

    BL_TRY(bl_fields_read(at, &bl_plan_fields_place, p));
    BL_TRY(resolve(at, f, p));
    if (p->slots)
        return read_slots(at, p);
    return bl_json_member(at, "experts", &experts) ? read_some(at, &experts, p) : read_part(at, p);
}

static enum bl_status read_placement(const struct bl_json *at, struct bl_plan_file *f)
{
    struct bl_json it;
    void *items;

    BL_TRY(bl_json_new_list(at, MOST_PLACES, sizeof *f->place, &items, &f->n_places));
    f->place = items;
    for (bool more = bl_json_first(at, &it); more; more = bl_json_next(&it))
        BL_TRY(read_place(&it, f, &f->place[it.index]));
    return BL_OK;
}

/* ---- the machine, the settings --------------------------------------------------------------- */

static enum bl_status read_machine(const struct bl_json *at, struct bl_plan_file *f)
{
    struct bl_json list, it;
    void *items;

    BL_TRY(bl_fields_read(at, &bl_plan_fields_machine, f));
    bl_json_member(at, "devices", &list);
    BL_TRY(bl_json_new_list(&list, BL_MAX_DEVICES, sizeof *f->device, &items, &f->n_devices));
    f->device = items;
    if (!f->n_devices)
        return bl_json_wrong(&list, "must not be empty");
    for (bool more = bl_json_first(&list, &it); more; more = bl_json_next(&it)) {
        struct bl_plan_file_device *d = &f->device[it.index];
        BL_TRY(bl_fields_read(&it, &bl_plan_fields_device, d));
        for (const struct bl_plan_file_device *o = f->device; o < d; o++)
            if (!strcmp(o->id, d->id))
                return bl_json_wrong(&it, "has the id '%s' of an earlier one", d->id);
    }
    return BL_OK;
}

static enum bl_status read_nodes(const struct bl_json *settings, uint64_t *nodes)
{
    struct bl_json list, it;
    uint32_t n, node, last;

    if (!bl_json_member(settings, "nodes", &list))
        return BL_OK;
    BL_TRY(bl_json_list(&list, BL_MAX_MEMORY_NODES, &n));
    for (bool more = bl_json_first(&list, &it); more; more = bl_json_next(&it)) {
        BL_TRY(read_run(&it, BL_MAX_MEMORY_NODES - 1, &node, &last));
        for (; node <= last; node++)
            *nodes |= UINT64_C(1) << node;
    }
    return BL_OK;
}

static enum bl_status type_is(const struct bl_json *settings, const char *member, const char *name)
{
    struct bl_json it;
    enum bl_dtype t;

    bl_json_member(settings, member, &it);
    if (bl_dtype_by_name(name, &t))
        return bl_json_wrong(&it, "must name a tensor type: %s", bl_error());
    return bl_dtype_can_cache(t)
               ? BL_OK
               : bl_json_wrong(&it, "is '%s'; what is cached can be f32, f16, bf16, q8_0 or q4_0",
                               name);
}

static enum bl_status check_steps(const struct bl_json *settings,
                                  const struct bl_plan_file_settings *s)
{
    struct bl_json it;

    if (s->ubatch_tokens <= s->batch_tokens)
        return BL_OK;
    bl_json_member(settings, "ubatch_tokens", &it);
    return bl_json_wrong(&it, "is %u, more than batch_tokens, which is %u", s->ubatch_tokens,
                         s->batch_tokens);
}

static enum bl_status read_policy(const struct bl_json *settings, uint8_t *policy)
{
    struct bl_json it;
    const char *name;

    if (!bl_json_member(settings, "expert_policy", &it))
        return BL_OK;
    if (!(name = bl_json_text(&it)) || bl_expert_policy_by_name(name, policy))
        return bl_json_wrong(&it, "must be one of off, fixed, lru");
    return BL_OK;
}

static enum bl_status read_settings(const struct bl_json *at, struct bl_plan_file_settings *s)
{
    BL_TRY(bl_fields_read(at, &bl_plan_fields_settings, s));
    BL_TRY(check_steps(at, s));
    BL_TRY(type_is(at, "type_k", s->type_k));
    BL_TRY(type_is(at, "type_v", s->type_v));
    BL_TRY(read_policy(at, &s->expert_policy));
    return read_nodes(at, &s->nodes);
}

/* ---- what was derived, to compare with ------------------------------------------------------ */

static enum bl_status read_speed(const struct bl_json *at, const char *name, struct bl_speed *out)
{
    struct bl_json it;
    return bl_json_member(at, name, &it) ? bl_fields_read(&it, &bl_plan_fields_speed, out) : BL_OK;
}

static enum bl_status read_memory(const struct bl_json *at, struct bl_plan_file *f)
{
    struct bl_json it;
    void *items;

    BL_TRY(bl_json_new_list(at, MOST_MEMORY, sizeof *f->memory, &items, &f->n_memory));
    f->memory = items;
    for (bool more = bl_json_first(at, &it); more; more = bl_json_next(&it))
        BL_TRY(bl_fields_read(&it, &bl_plan_fields_memory, &f->memory[it.index]));
    return BL_OK;
}

static enum bl_status read_derived(const struct bl_json *at, struct bl_plan_file *f)
{
    struct bl_json it;

    BL_TRY(bl_fields_read(at, &bl_plan_fields_derived, f));
    if (bl_json_member(at, "memory", &it))
        BL_TRY(read_memory(&it, f));
    if (!bl_json_member(at, "prediction", &it))
        return BL_OK;
    BL_TRY(bl_fields_read(&it, &bl_plan_fields_prediction, f));
    BL_TRY(read_speed(&it, "decode", &f->decode));
    return read_speed(&it, "prefill", &f->prefill);
}

/* ---- the file ------------------------------------------------------------------------------- */

static enum bl_status read_file(const struct bl_json *root, struct bl_plan_file *f)
{
    struct bl_json at;

    BL_TRY(bl_json_object(root));
    if (!bl_json_member(root, "ballast_plan", &at) || !cJSON_IsNumber(at.item))
        return bl_fail(BL_EFORMAT, "%s: no plan: its first member must be \"ballast_plan\": %d",
                       root->what, BL_PLAN_FORMAT);
    if (at.item->valuedouble != BL_PLAN_FORMAT)
        return bl_json_wrong(&at, "is %.6g; this build reads format %d", at.item->valuedouble,
                             BL_PLAN_FORMAT);
    BL_TRY(bl_fields_read(root, &bl_plan_fields_file, f));
    bl_json_member(root, "model", &at);
    BL_TRY(bl_fields_read(&at, &bl_plan_fields_model, &f->model));
    bl_json_member(root, "machine", &at);
    BL_TRY(read_machine(&at, f));
    bl_json_member(root, "settings", &at);
    BL_TRY(read_settings(&at, &f->settings));
    bl_json_member(root, "placement", &at);
    BL_TRY(read_placement(&at, f));
    return bl_json_member(root, "derived", &at) ? read_derived(&at, f) : BL_OK;
}

/* A file that is wrong is the caller's choice of a file, not the model's fault. */
static enum bl_status as_option(enum bl_status st)
{
    return st == BL_EFORMAT || st == BL_EIO ? BL_EINVAL : st;
}

static enum bl_status read_tree(cJSON *tree, const char *what, struct bl_plan_file *out)
{
    struct bl_plan_file f = {                                      /* unless it says otherwise */
                             .settings = {.placed_by = BL_BY_HAND, //
                                          .expert_policy = BL_EXPERTS_LRU}};

    snprintf(f.what, sizeof f.what, "%s", what);
    const struct bl_json root = bl_json_root(tree, f.what);
    const enum bl_status st = read_file(&root, &f);
    bl_json_free(tree);
    if (st)
        bl_plan_file_finish(&f);
    else
        *out = f;
    return as_option(st);
}

enum bl_status bl_plan_file_parse(struct bl_plan_file *out, const char *what, const char *text,
                                  size_t n_bytes)
{
    cJSON *tree;
    const enum bl_status st = bl_json_parse(&tree, what, text, n_bytes, &limits);
    return st ? as_option(st) : read_tree(tree, what, out);
}

enum bl_status bl_plan_file_load(struct bl_plan_file *out, const char *path)
{
    const char *slash = strrchr(path, '/');
    char what[80];
    cJSON *tree;

    snprintf(what, sizeof what, "plan %.64s", slash ? slash + 1 : path);
    bl_one_line(what);
    const enum bl_status st = bl_json_load(&tree, what, path, &limits);
    return st ? as_option(st) : read_tree(tree, what, out);
}

void bl_plan_file_finish(struct bl_plan_file *f)
{
    free(f->device);
    free(f->place);
    free(f->memory);
    *f = (struct bl_plan_file){0};
}
