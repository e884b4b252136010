/* SPDX-License-Identifier: MIT */
/* Machine files out: members in the order of the tables, types in the order of dtype.def. */
#include "machine_file.h"

#include "machine_fields.h"

#include <stdlib.h>

static void put_list(struct bl_json_out *o, const char *name, const struct bl_machine_fields *f,
                     const void *items, size_t bytes, uint32_t n)
{
    if (!n)
        return;
    bl_json_open(o, name, '[', false);
    for (uint32_t i = 0; i < n; i++) {
        bl_json_open(o, NULL, '{', true);
        bl_fields_put(o, f, (const char *)items + i * bytes);
        bl_json_close(o, '}');
    }
    bl_json_close(o, ']');
}
#define PUT_LIST(o, name, fields, items, n)                                                        \
    put_list(o, name, &bl_fields_##fields, items, sizeof(items)[0], n)

static void put_rate(struct bl_json_out *o, const char *name, const struct bl_type_rate *r)
{
    bool any = r->decode_bps > 0;
    for (unsigned i = 0; i < BL_N_RATE_TOKENS; i++)
        any |= r->macs_per_s[i] > 0;
    if (!any)
        return;
    bl_json_open(o, name, '{', true);
    bl_fields_put(o, &bl_fields_rate, r);
    bl_json_close(o, '}');
}

static bool has_rates(const struct bl_machine_device *d)
{
    static const struct bl_type_rate none;
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        if (memcmp(&d->rate[t], &none, sizeof none))
            return true;
    return memcmp(&d->rate_default, &none, sizeof none) != 0;
}

static void put_rates(struct bl_json_out *o, const struct bl_machine_device *d)
{
    if (!has_rates(d))
        return;
    bl_json_open(o, "rates", '{', false);
    put_rate(o, "default", &d->rate_default);
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        put_rate(o, bl_dtypes[t].name, &d->rate[t]);
    bl_json_close(o, '}');
}

static void put_step_rates(struct bl_json_out *o, const struct bl_machine_device *d)
{
    static const struct bl_step_rate none;
    bool any = false;
    for (unsigned i = 0; i < BL_N_STEP_TEAMS; i++) {
        if (!memcmp(&d->step_rate[i], &none, sizeof none))
            continue;
        if (!any)
            bl_json_open(o, "step_rates", '{', false);
        any = true;
        bl_json_open(o, bl_step_team_names[i], '{', false);
        bl_fields_put(o, &bl_fields_step_rate, &d->step_rate[i]);
        bl_json_close(o, '}');
    }
    if (any)
        bl_json_close(o, '}');
}

static bool has_kv(const struct bl_kv_rate *r)
{
    static const struct bl_kv_rate none;
    return memcmp(r, &none, sizeof none) != 0;
}

static void put_kv_team(struct bl_json_out *o, const char *name, const struct bl_kv_rate *rate)
{
    bl_json_open(o, name, '{', false);
    for (unsigned t = 0; t < BL_N_DTYPES; t++) {
        if (!has_kv(&rate[t]))
            continue;
        bl_json_open(o, bl_dtypes[t].name, '{', true);
        bl_fields_put(o, &bl_fields_kv_rate, &rate[t]);
        bl_json_close(o, '}');
    }
    bl_json_close(o, '}');
}

static void put_kv_rates(struct bl_json_out *o, const struct bl_machine_device *d)
{
    bool any[BL_N_STEP_TEAMS] = {false}, open = false;
    for (unsigned i = 0; i < BL_N_STEP_TEAMS; i++)
        for (unsigned t = 0; t < BL_N_DTYPES; t++)
            any[i] |= has_kv(&d->kv_rate[i][t]);
    for (unsigned i = 0; i < BL_N_STEP_TEAMS; i++) {
        if (!any[i])
            continue;
        if (!open)
            bl_json_open(o, "kv_rates", '{', false);
        open = true;
        put_kv_team(o, bl_step_team_names[i], d->kv_rate[i]);
    }
    if (open)
        bl_json_close(o, '}');
}

static void put_tiles(struct bl_json_out *o, const struct bl_caps *caps)
{
    bl_json_open(o, "tiles", '{', false);
    for (unsigned t = 0; t < BL_N_DTYPES; t++) {
        const struct bl_tile_caps *tile = &caps->tiles[t];
        if (!tile->from)
            continue;
        bl_json_open(o, bl_dtypes[t].name, '{', true);
        bl_fields_put(o, &bl_fields_tile, tile);
        bl_json_put_number(o, "from", tile->from);
        bl_json_put_text(o, "same_as", bl_dtypes[tile->same_as].name);
        bl_json_close(o, '}');
    }
    bl_json_close(o, '}');
}

static void put_caps(struct bl_json_out *o, const struct bl_caps *caps)
{
    bl_json_open(o, "caps", '{', false);
    bl_fields_put(o, &bl_fields_caps, caps);
    put_tiles(o, caps);
    bl_json_close(o, '}');
}

static void put_device(struct bl_json_out *o, const struct bl_machine *m,
                       const struct bl_machine_device *d)
{
    bl_json_open(o, NULL, '{', false);
    bl_fields_put(o, &bl_fields_device, d);
    if (d->shares != BL_NO_DEVICE)
        bl_json_put_text(o, "shares", m->device[d->shares].id);
    PUT_LIST(o, "mem_readings", reading, d->reading, d->n_readings);
    PUT_LIST(o, "domains", domain, d->domain, d->n_domains);
    PUT_LIST(o, "read_rates", read_rate, d->read_rate, d->n_read_rates);
    PUT_LIST(o, "barriers", barrier, d->barrier, d->n_barriers);
    put_rates(o, d);
    put_step_rates(o, d);
    put_kv_rates(o, d);
    if (!d->caps_assumed)
        put_caps(o, &d->caps);
    bl_json_close(o, '}');
}

static void put_hubs(struct bl_json_out *o, const struct bl_machine *m)
{
    bl_json_open(o, "hubs", '[', false);
    for (uint32_t h = 0; h < m->n_hubs; h++) {
        bl_json_open(o, NULL, '{', true);
        bl_fields_put(o, &bl_fields_hub, &m->hub[h]);
        if (m->hub[h].up != BL_NO_DEVICE)
            bl_json_put_text(o, "up", m->hub[m->hub[h].up].id);
        bl_json_close(o, '}');
    }
    bl_json_close(o, ']');
}

static void put_links(struct bl_json_out *o, const struct bl_machine *m)
{
    bl_json_open(o, "links", '[', false);
    for (uint32_t i = 0; i < m->n_links; i++) {
        const struct bl_link *l = &m->link[i];
        bl_json_open(o, NULL, '{', true);
        bl_json_put_text(o, "a", m->device[l->a].id);
        bl_json_put_text(o, "b", m->device[l->b].id);
        if (l->via != BL_NO_DEVICE)
            bl_json_put_text(o, "via", m->hub[l->via].id);
        bl_fields_put(o, &bl_fields_link, l);
        bl_json_close(o, '}');
    }
    bl_json_close(o, ']');
}

enum bl_status bl_machine_write(const struct bl_machine *m, char **text, size_t *n_bytes)
{
    struct bl_json_out o = {0};
    bl_json_open(&o, NULL, '{', false);
    bl_json_put_number(&o, "ballast_machine", BL_MACHINE_FORMAT);
    bl_fields_put(&o, &bl_fields_machine, m);
    bl_json_open(&o, "devices", '[', false);
    for (uint32_t d = 0; d < m->n_devices; d++)
        put_device(&o, m, &m->device[d]);
    bl_json_close(&o, ']');
    if (m->n_hubs)
        put_hubs(&o, m);
    if (m->n_links)
        put_links(&o, m);
    bl_json_close(&o, '}');
    BL_TRY(bl_json_out_end(&o));
    *text = o.text;
    *n_bytes = o.n;
    return BL_OK;
}
