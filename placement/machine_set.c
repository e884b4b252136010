/* SPDX-License-Identifier: MIT */
/* One thing about a machine made otherwise: what `--device-set` and `--what-if` ask. */
#include "machine_file.h"

#include "machine_fields.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_TEXT = 96 };
struct assignment {
    char shown[MOST_TEXT]; /* as given */
    char all[MOST_TEXT];   /* cut into the three below */
    char *owner, *member, *value;
};

static enum bl_status cut(struct assignment *a, const char *text)
{
    char *equals, *dot = NULL;
    snprintf(a->shown, sizeof a->shown, "%s", text);
    bl_one_line(a->shown);
    if (strlen(text) >= sizeof a->all)
        return bl_fail(BL_EINVAL, "'%.40s...' is too long for DEVICE.MEMBER=VALUE", a->shown);
    memcpy(a->all, a->shown, sizeof a->all);
    if ((equals = strchr(a->all, '='))) {
        *equals = 0;
        dot = strrchr(a->all, '.'); /* PCI addresses have one, too */
    }
    if (!dot || dot == a->all || !dot[1] || !equals[1])
        return bl_fail(BL_EINVAL,
                       "'%.60s' is no DEVICE.MEMBER=VALUE, such as gpu0.mem=24GiB or "
                       "link0.bps=12GB/s",
                       a->shown);
    *dot = 0;
    a->owner = a->all;
    a->member = dot + 1;
    a->value = equals + 1;
    return BL_OK;
}

static const struct bl_json_field *find_row(const struct bl_machine_fields *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++)
        if (!strcmp(f->field[i].name, name))
            return &f->field[i];
    return NULL;
}

/* The short names, then those of the file. */
struct names {
    const char *const *words;
    const struct bl_machine_fields *f;
};

static const char *any_name(const void *arg, size_t i)
{
    const struct names *n = arg;
    for (const char *const *w = n->words; *w; w++)
        if (i-- == 0)
            return *w;
    return i < n->f->n ? n->f->field[i].name : NULL;
}

static enum bl_status unknown_member(const struct assignment *a, const struct names *n)
{
    const char *near = bl_nearest_name(a->member, any_name, n);
    return near ? bl_fail(BL_EINVAL, "%s has no '%s'; the nearest is '%s'", a->owner, a->member,
                          near)
                : bl_fail(BL_EINVAL, "%s has no '%s'", a->owner, a->member);
}

static enum bl_status read_double(const struct assignment *a, enum bl_json_kind kind, double max,
                                  double *out)
{
    char name[MOST_TEXT + 2];
    const struct bl_json_field row = {"", kind, 0, 1, max, NULL, false, false};
    snprintf(name, sizeof name, "%s.%s", a->owner, a->member);
    return bl_json_assign(&row, name, a->value, out);
}

static uint64_t share(uint64_t bytes, double factor)
{
    const double v = (double)bytes * factor;
    return v < 1 ? (bytes ? 1 : 0) : (uint64_t)v;
}

static enum bl_status set_mem(struct bl_machine_device *d, const struct assignment *a)
{
    double v;
    BL_TRY(read_double(a, BL_JSON_SIZE, 0x1p50, &v));
    const double factor = v / (double)d->mem_bytes;
    d->mem_bytes = (uint64_t)v;
    d->usable_bytes = share(d->usable_bytes, factor);
    d->usable_bytes = d->usable_bytes < d->mem_bytes ? d->usable_bytes : d->mem_bytes;
    for (uint32_t i = 0; i < d->n_domains; i++) {
        d->domain[i].mem_bytes = share(d->domain[i].mem_bytes, factor);
        d->domain[i].usable_bytes = share(d->domain[i].usable_bytes, factor);
    }
    snprintf(d->mem_source, sizeof d->mem_source, "set: %s.%s=%s", a->owner, a->member, a->value);
    return BL_OK;
}

/* Memory that others share has become less. */
static void shrink_sharers(struct bl_machine *m, uint16_t owner)
{
    const uint64_t most = m->device[owner].mem_bytes;
    for (uint32_t i = 0; i < m->n_devices; i++) {
        struct bl_machine_device *d = &m->device[i];
        if (d->mem_kind != BL_MEMORY_UNIFIED || d->shares != owner)
            continue;
        d->mem_bytes = d->mem_bytes < most ? d->mem_bytes : most;
        d->usable_bytes = d->usable_bytes < most ? d->usable_bytes : most;
    }
}

static enum bl_status set_usable(struct bl_machine_device *d, const struct assignment *a)
{
    double v;
    BL_TRY(read_double(a, BL_JSON_SIZE, 0x1p50, &v));
    d->usable_bytes = (uint64_t)v;
    if (d->usable_bytes > d->mem_bytes) /* sources that see too little are why one sets it */
        d->mem_bytes = d->usable_bytes;
    snprintf(d->mem_source, sizeof d->mem_source, "set: %s.%s=%s", a->owner, a->member, a->value);
    return BL_OK;
}

/* False: no rate can be that. One that is not known stays so. */
static bool scale(double *rate, double factor)
{
    *rate *= factor;
    return *rate == 0 || (*rate >= 1e3 && *rate <= 1e16);
}

static bool scale_reads(struct bl_machine_device *d, double factor)
{
    bool good = scale(&d->rate_default.decode_bps, factor);

    for (uint32_t i = 0; i < d->n_domains; i++) {
        struct bl_domain *n = &d->domain[i];
        good = scale(&n->read_rated_bps, factor) && good;
        good = scale(&n->read_measured_bps, factor) && good;
        good = scale(&n->far_bps, factor) && good;
    }
    for (uint32_t i = 0; i < d->n_read_rates; i++)
        good = scale(&d->read_rate[i].bps, factor) && good;
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        good = scale(&d->rate[t].decode_bps, factor) && good;
    for (unsigned t = 0; t < BL_N_DTYPES; t++) /* what few tokens read of caches is from memory */
        good = scale(&d->kv_rate[BL_STEP_FEW][t].values_per_s, factor) && good;
    return good;
}

static enum bl_status set_read(struct bl_machine_device *d, const struct assignment *a)
{
    double v;
    BL_TRY(read_double(a, BL_JSON_BPS, 1e16, &v));
    const double was = bl_device_read_bps(d), factor = was > 0 ? v / was : 1;
    d->read_rated_bps = v;
    d->read_measured_bps = d->read_measured_bps > 0 ? v : 0;
    return scale_reads(d, factor)
               ? BL_OK
               : bl_fail(BL_EINVAL,
                         "%s: a rate that was measured with it would be %g times what it is, which "
                         "is none there can be",
                         a->shown, factor);
}

static enum bl_status set_row(const struct bl_machine_fields *f, const struct assignment *a,
                              const struct names *names, void *base)
{
    char name[MOST_TEXT + 2];
    const struct bl_json_field *row = find_row(f, a->member);
    if (!row)
        return unknown_member(a, names);
    snprintf(name, sizeof name, "%s.%s", a->owner, a->member);
    if (!strcmp(a->member, "id"))
        return bl_fail(BL_EINVAL, "%s: a device keeps its id", name);
    return bl_json_assign(row, name, a->value, base);
}

static enum bl_status set_device(struct bl_machine_device *d, const struct assignment *a)
{
    static const char *const words[] = {"mem", "usable", "read", NULL};
    const struct names names = {words, &bl_fields_device};
    if (!strcmp(a->member, "mem") || !strcmp(a->member, "mem_bytes"))
        return set_mem(d, a);
    if (!strcmp(a->member, "usable") || !strcmp(a->member, "usable_bytes"))
        return set_usable(d, a);
    if (!strcmp(a->member, "read"))
        return set_read(d, a);
    return set_row(&bl_fields_device, a, &names, d);
}

static enum bl_status set_link(struct bl_link *l, const struct assignment *a)
{
    static const char *const words[] = {"bps", "latency", NULL};
    const struct names names = {words, &bl_fields_link};
    double v;
    if (!strcmp(a->member, "latency"))
        return read_double(a, BL_JSON_NS, 1e12, &l->latency_ns);
    if (strcmp(a->member, "bps"))
        return set_row(&bl_fields_link, a, &names, l);
    BL_TRY(read_double(a, BL_JSON_BPS, 1e16, &v));
    l->ab_rated_bps = l->ba_rated_bps = v;
    l->ab_measured_bps = l->ba_measured_bps = 0;
    return BL_OK;
}

static struct bl_link *find_link(const struct bl_machine *m, const char *name)
{
    char *end;
    if (strncmp(name, "link", 4) || name[4] < '0' || name[4] > '9')
        return NULL;
    const unsigned long n = strtoul(name + 4, &end, 10);
    return !*end && n < m->n_links ? &m->link[n] : NULL;
}

static enum bl_status unknown_owner(const struct bl_machine *m, const char *name)
{
    char text[160];
    size_t n = 0;
    for (uint32_t d = 0; d < m->n_devices && n < sizeof text; d++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", d ? ", " : "", m->device[d].id);
    return bl_fail(BL_EINVAL, "'%.40s' is neither device nor link of this machine, which has %s%s",
                   name, text, m->n_links ? " and links from link0 on" : "");
}

enum bl_status bl_machine_set(struct bl_machine *m, const char *text)
{
    struct assignment a;
    BL_TRY(cut(&a, text));
    const uint16_t d = bl_machine_find(m, a.owner);
    struct bl_link *l = find_link(m, a.owner);
    if (d == BL_NO_DEVICE && !l)
        return unknown_owner(m, a.owner);
    BL_TRY(d != BL_NO_DEVICE ? set_device(&m->device[d], &a) : set_link(l, &a));
    if (d != BL_NO_DEVICE)
        shrink_sharers(m, d);
    return bl_machine_check(m, a.shown) ? BL_EINVAL : BL_OK;
}
