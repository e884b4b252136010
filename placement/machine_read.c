/* SPDX-License-Identifier: MIT */
/* Machine files in. */
#include "machine_file.h"

#include "backends.h"
#include "machine_fields.h"
#include "mem.h"

#include <cjson/cJSON.h>
#include <stdio.h>

static const struct bl_json_limits limits = {
    .most_bytes = 4 << 20, .most_depth = 16, .most_items = 100000};
enum { MOST_LINKS = 1024, MOST_HUBS = 64 };

/* ---- lists of one device --------------------------------------------------------------------- */

struct list {
    const char *name;
    const struct bl_machine_fields *fields;
    size_t at, bytes; /* first item, of an item */
    size_t count_at;
    uint32_t most;
};
#define LIST(name, fields, member, count, most)                                                    \
    {                                                                                              \
        name, &bl_fields_##fields, offsetof(struct bl_machine_device, member),                     \
            sizeof((struct bl_machine_device *)0)->member[0],                                      \
            offsetof(struct bl_machine_device, count), most                                        \
    }
static const struct list lists[] = {
    LIST("mem_readings", reading, reading, n_readings, BL_MAX_READINGS),
    LIST("domains", domain, domain, n_domains, BL_MAX_DOMAINS),
    LIST("read_rates", read_rate, read_rate, n_read_rates, BL_MAX_READ_RATES),
    LIST("barriers", barrier, barrier, n_barriers, BL_MAX_BARRIERS),
};

static enum bl_status read_list(const struct bl_json *device, const struct list *l,
                                struct bl_machine_device *d)
{
    struct bl_json at, it;
    uint32_t *n = (uint32_t *)(void *)((char *)d + l->count_at);
    if (!bl_json_member(device, l->name, &at))
        return BL_OK;
    BL_TRY(bl_json_list(&at, l->most, n));
    for (bool more = bl_json_first(&at, &it); more; more = bl_json_next(&it))
        BL_TRY(bl_fields_read(&it, l->fields, (char *)d + l->at + it.index * l->bytes));
    return BL_OK;
}

static enum bl_status type_of(const struct bl_json *at, const char *name, enum bl_dtype *out)
{
    return name && bl_dtype_by_name(name, out) == BL_OK ? BL_OK
           : name ? bl_json_wrong(at, "must be named after a tensor type: %s", bl_error())
                  : bl_json_wrong(at, "must be the name of a tensor type");
}

static enum bl_status read_rates(const struct bl_json *device, struct bl_machine_device *d)
{
    struct bl_json at, it;
    if (!bl_json_member(device, "rates", &at))
        return BL_OK;
    BL_TRY(bl_json_object(&at));
    for (bool more = bl_json_first(&at, &it); more; more = bl_json_next(&it)) {
        enum bl_dtype t = 0;
        const bool any = !strcmp(bl_json_name(&it), "default");
        if (!any)
            BL_TRY(type_of(&it, bl_json_name(&it), &t));
        struct bl_type_rate *rate = any ? &d->rate_default : &d->rate[t];
        if (rate->decode_bps > 0 || rate->macs_per_s[0] > 0)
            return bl_json_wrong(&it, "is there twice");
        BL_TRY(bl_fields_read(&it, &bl_fields_rate, rate));
    }
    return BL_OK;
}

/* Index of the team that a member is named after. */
static enum bl_status team_of(const struct bl_json *at, unsigned *out)
{
    unsigned i = 0;
    while (i < BL_N_STEP_TEAMS && strcmp(bl_json_name(at), bl_step_team_names[i]))
        i++;
    *out = i;
    return i < BL_N_STEP_TEAMS ? BL_OK : bl_json_wrong(at, "must be 'few' or 'many'");
}

static enum bl_status read_step_rates(const struct bl_json *device, struct bl_machine_device *d)
{
    struct bl_json at, it;
    if (!bl_json_member(device, "step_rates", &at))
        return BL_OK;
    BL_TRY(bl_json_object(&at));
    for (bool more = bl_json_first(&at, &it); more; more = bl_json_next(&it)) {
        unsigned team;
        BL_TRY(team_of(&it, &team));
        BL_TRY(bl_fields_read(&it, &bl_fields_step_rate, &d->step_rate[team]));
    }
    return BL_OK;
}

static enum bl_status read_kv_team(const struct bl_json *at, struct bl_kv_rate *rate)
{
    struct bl_json it;
    BL_TRY(bl_json_object(at));
    for (bool more = bl_json_first(at, &it); more; more = bl_json_next(&it)) {
        enum bl_dtype t;
        BL_TRY(type_of(&it, bl_json_name(&it), &t));
        BL_TRY(bl_fields_read(&it, &bl_fields_kv_rate, &rate[t]));
    }
    return BL_OK;
}

static enum bl_status read_kv_rates(const struct bl_json *device, struct bl_machine_device *d)
{
    struct bl_json at, it;
    if (!bl_json_member(device, "kv_rates", &at))
        return BL_OK;
    BL_TRY(bl_json_object(&at));
    for (bool more = bl_json_first(&at, &it); more; more = bl_json_next(&it)) {
        unsigned team;
        BL_TRY(team_of(&it, &team));
        BL_TRY(read_kv_team(&it, d->kv_rate[team]));
    }
    return BL_OK;
}

static enum bl_status read_tile(const struct bl_json *at, struct bl_caps *caps)
{
    enum bl_dtype t, same;
    struct bl_json it;
    double from;
    BL_TRY(type_of(at, bl_json_name(at), &t));
    BL_TRY(bl_fields_read(at, &bl_fields_tile, &caps->tiles[t]));
    bl_json_member(at, "same_as", &it);
    BL_TRY(type_of(&it, bl_json_text(&it), &same));
    bl_json_member(at, "from", &it);
    from = cJSON_IsNumber(it.item) ? it.item->valuedouble : 0;
    if (!(from >= 1 && from <= UINT8_MAX))
        return bl_json_wrong(&it, "must be a number of tokens between 1 and 255");
    caps->tiles[t].from = (uint8_t)from;
    caps->tiles[t].same_as = (uint8_t)same;
    return BL_OK;
}

static enum bl_status read_caps(const struct bl_json *device, struct bl_caps *caps)
{
    struct bl_json at, tiles, it;
    if (!bl_json_member(device, "caps", &at))
        return BL_OK;
    BL_TRY(bl_fields_read(&at, &bl_fields_caps, caps));
    if (caps->granule_bytes & (caps->granule_bytes - 1))
        return bl_json_wrong(&at, "must have a power of two as granule_bytes");
    if (!bl_json_member(&at, "tiles", &tiles))
        return BL_OK;
    BL_TRY(bl_json_object(&tiles));
    for (bool more = bl_json_first(&tiles, &it); more; more = bl_json_next(&it))
        BL_TRY(read_tile(&it, caps));
    return BL_OK;
}

/* ---- devices, links, hubs -------------------------------------------------------------------- */

static enum bl_status read_device(const struct bl_json *at, struct bl_machine_device *d)
{
    d->shares = BL_NO_DEVICE;
    d->described = true;
    BL_TRY(bl_fields_read(at, &bl_fields_device, d));
    for (size_t i = 0; i < BL_COUNT(lists); i++)
        BL_TRY(read_list(at, &lists[i], d));
    BL_TRY(read_rates(at, d));
    BL_TRY(read_step_rates(at, d));
    BL_TRY(read_kv_rates(at, d));
    BL_TRY(read_caps(at, &d->caps));
    struct bl_json kind;
    if (!bl_json_member(at, "mem_kind", &kind))
        d->mem_kind = d->kind == BL_KIND_CPU ? BL_MEMORY_HOST : BL_MEMORY_DEDICATED;
    if (!d->backend_name[0])
        snprintf(d->backend_name, sizeof d->backend_name, "%s",
                 d->kind == BL_KIND_CPU ? "cpu" : "null");
    if (!d->name[0])
        snprintf(d->name, sizeof d->name, "%s", d->id);
    return BL_OK;
}

static const char *device_name(const void *arg, size_t i)
{
    const struct bl_machine *m = arg;
    return i < m->n_devices ? m->device[i].id : NULL;
}

static enum bl_status device_ref(const struct bl_json *at, const char *member,
                                 const struct bl_machine *m, uint16_t *out)
{
    struct bl_json it;
    bl_json_member(at, member, &it);
    const char *text = bl_json_text(&it);
    *out = text ? bl_machine_find(m, text) : BL_NO_DEVICE;
    if (*out != BL_NO_DEVICE)
        return BL_OK;
    const char *near = text ? bl_nearest_name(text, device_name, m) : NULL;
    if (near)
        return bl_json_wrong(&it, "'%.40s' is no device here; the nearest is '%s'", text, near);
    return bl_json_wrong(&it, "must be the id of a device");
}

static const char *hub_name(const void *arg, size_t i)
{
    const struct bl_machine *m = arg;
    return i < m->n_hubs ? m->hub[i].id : NULL;
}

/* The member is optional. */
static enum bl_status hub_ref(const struct bl_json *at, const char *member,
                              const struct bl_machine *m, uint16_t *out)
{
    struct bl_json it;
    *out = BL_NO_DEVICE;
    if (!bl_json_member(at, member, &it))
        return BL_OK;
    const char *text = bl_json_text(&it);
    for (uint32_t h = 0; text && h < m->n_hubs; h++)
        if (!strcmp(m->hub[h].id, text))
            *out = (uint16_t)h;
    if (*out != BL_NO_DEVICE)
        return BL_OK;
    const char *near = text ? bl_nearest_name(text, hub_name, m) : NULL;
    if (near)
        return bl_json_wrong(&it, "'%.40s' is no hub here; the nearest is '%s'", text, near);
    return bl_json_wrong(&it, "must be the id of a hub");
}

static enum bl_status read_devices(const struct bl_json *at, struct bl_machine *m)
{
    struct bl_json it, shares;
    void *items;
    BL_TRY(bl_json_new_list(at, BL_MAX_DEVICES, sizeof *m->device, &items, &m->n_devices));
    m->device = items;
    for (bool more = bl_json_first(at, &it); more; more = bl_json_next(&it))
        BL_TRY(read_device(&it, &m->device[it.index]));
    for (bool more = bl_json_first(at, &it); more; more = bl_json_next(&it))
        if (bl_json_member(&it, "shares", &shares))
            BL_TRY(device_ref(&it, "shares", m, &m->device[it.index].shares));
    return BL_OK;
}

static enum bl_status read_hubs(const struct bl_json *at, struct bl_machine *m)
{
    struct bl_json it;
    void *items;
    BL_TRY(bl_json_new_list(at, MOST_HUBS, sizeof *m->hub, &items, &m->n_hubs));
    m->hub = items;
    for (bool more = bl_json_first(at, &it); more; more = bl_json_next(&it))
        BL_TRY(bl_fields_read(&it, &bl_fields_hub, &m->hub[it.index]));
    for (bool more = bl_json_first(at, &it); more; more = bl_json_next(&it))
        BL_TRY(hub_ref(&it, "up", m, &m->hub[it.index].up));
    return BL_OK;
}

static enum bl_status read_links(const struct bl_json *at, struct bl_machine *m)
{
    struct bl_json it;
    void *items;
    BL_TRY(bl_json_new_list(at, MOST_LINKS, sizeof *m->link, &items, &m->n_links));
    m->link = items;
    for (bool more = bl_json_first(at, &it); more; more = bl_json_next(&it)) {
        struct bl_link *l = &m->link[it.index];
        BL_TRY(bl_fields_read(&it, &bl_fields_link, l));
        BL_TRY(device_ref(&it, "a", m, &l->a));
        BL_TRY(device_ref(&it, "b", m, &l->b));
        BL_TRY(hub_ref(&it, "via", m, &l->via));
    }
    return BL_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

static enum bl_status read_machine(const struct bl_json *root, struct bl_machine *m)
{
    struct bl_json at;
    BL_TRY(bl_json_object(root));
    if (!bl_json_member(root, "ballast_machine", &at) || !cJSON_IsNumber(at.item))
        return bl_fail(BL_EFORMAT,
                       "%s: no machine: its first member must be \"ballast_machine\": %d",
                       root->what, BL_MACHINE_FORMAT);
    if (at.item->valuedouble != BL_MACHINE_FORMAT)
        return bl_json_wrong(&at, "is %.6g; this build reads format %d", at.item->valuedouble,
                             BL_MACHINE_FORMAT);
    BL_TRY(bl_fields_read(root, &bl_fields_machine, m));
    bl_json_member(root, "devices", &at);
    BL_TRY(read_devices(&at, m));
    if (bl_json_member(root, "hubs", &at))
        BL_TRY(read_hubs(&at, m));
    if (bl_json_member(root, "links", &at))
        BL_TRY(read_links(&at, m));
    return bl_machine_check(m, root->what);
}

static enum bl_status read_tree(cJSON *tree, const char *what, struct bl_machine *out)
{
    const struct bl_json root = bl_json_root(tree, what);
    struct bl_machine m = {0};
    const enum bl_status st = read_machine(&root, &m);
    bl_json_free(tree);
    if (st)
        bl_machine_finish(&m);
    else
        *out = m;
    return st;
}

enum bl_status bl_machine_parse(struct bl_machine *out, const char *what, const char *text,
                                size_t n_bytes)
{
    cJSON *tree;
    BL_TRY(bl_json_parse(&tree, what, text, n_bytes, &limits));
    return read_tree(tree, what, out);
}

/* ---- those that come with the library -------------------------------------------------------- */

static const char *source_name(const void *arg, size_t i)
{
    (void)arg;
    return bl_machine_sources[i].name;
}

static const struct bl_machine_source *find_source(const char *name)
{
    for (uint32_t i = 0; i < bl_machine_n_sources; i++)
        if (!strcmp(bl_machine_sources[i].name, name))
            return &bl_machine_sources[i];
    return NULL;
}

enum bl_status bl_machine_known(uint32_t i, struct bl_machine_title *out)
{
    struct bl_machine m;
    if (i >= bl_machine_n_sources)
        return BL_EINVAL;
    const struct bl_machine_source *s = &bl_machine_sources[i];
    BL_TRY(bl_machine_parse(&m, s->name, (const char *)s->json, s->n_bytes));
    out->name = s->name;
    snprintf(out->about, sizeof out->about, "%s", m.name);
    bl_machine_finish(&m);
    return BL_OK;
}

enum bl_status bl_machine_load(struct bl_machine *out, const char *path)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    const bool is_name = !slash && !(dot && !strcmp(dot, ".json"));
    const struct bl_machine_source *s = is_name ? find_source(path) : NULL;
    char what[80];
    cJSON *tree;
    snprintf(what, sizeof what, "machine %.64s", slash ? slash + 1 : path);
    if (s)
        return bl_machine_parse(out, what, (const char *)s->json, s->n_bytes);
    enum bl_status st = bl_json_load(&tree, what, path, &limits);
    const char *near = st == BL_EIO && is_name ? bl_nearest_name(path, source_name, NULL) : NULL;
    if (near)
        return bl_fail(BL_EIO, "%.64s: no such file or known machine; the nearest is '%s'", path,
                       near);
    BL_TRY(st);
    return read_tree(tree, what, out);
}
