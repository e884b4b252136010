/* SPDX-License-Identifier: MIT */
/* What no single member of a machine shows: names, sums, ways between devices. */
#include "machine_file.h"

#include "backends.h"
#include "mem.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- names ----------------------------------------------------------------------------------- */

uint16_t bl_machine_find(const struct bl_machine *m, const char *name)
{
    static const char *const prefix[] = {"cpu", "gpu"}; /* enum bl_device_kind */
    for (uint32_t d = 0; d < m->n_devices; d++)
        if (!strcmp(m->device[d].id, name))
            return (uint16_t)d;
    for (uint32_t d = 0; d < m->n_devices; d++) { /* as it was asked for */
        char number[32];
        snprintf(number, sizeof number, "%s%u", m->device[d].backend_name, m->device[d].index);
        if (!m->device[d].described && !strcmp(number, name))
            return (uint16_t)d;
    }
    for (unsigned kind = 0; kind < BL_N_DEVICE_KINDS; kind++) {
        char *end;
        if (strncmp(name, prefix[kind], 3) || name[3] < '0' || name[3] > '9')
            continue;
        unsigned long n = strtoul(name + 3, &end, 10);
        for (uint32_t d = 0; !*end && d < m->n_devices; d++)
            if (m->device[d].kind == kind && n-- == 0)
                return (uint16_t)d;
    }
    return BL_NO_DEVICE;
}

/* Letters, digits and the marks of PCI addresses; neither a path nor an assignment. */
static bool is_id(const char *id)
{
    for (const char *c = id; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') ||
              *c == ':' || *c == '-' || *c == '_' || (*c == '.' && c != id)))
            return false;
    return *id != 0;
}

static enum bl_status check_ids(const struct bl_machine *m, const char *what)
{
    for (uint32_t d = 0; d < m->n_devices; d++) {
        if (!is_id(m->device[d].id))
            return bl_fail(BL_EFORMAT,
                           "%s: devices[%u].id '%s': letters, digits, '-', '_', ':' and '.' only",
                           what, d, m->device[d].id);
        for (uint32_t e = 0; e < d; e++)
            if (!strcmp(m->device[d].id, m->device[e].id))
                return bl_fail(BL_EFORMAT, "%s: devices[%u].id '%s' is also that of devices[%u]",
                               what, d, m->device[d].id, e);
    }
    return BL_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

bool bl_memory_judge(struct bl_memory_reading *r, uint32_t n, uint64_t mem_bytes,
                     uint64_t *usable_bytes, uint32_t *chosen)
{
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++) {
        r[i].refused = !r[i].bytes || (mem_bytes && r[i].bytes > mem_bytes);
        if (!r[i].refused && (best == n || r[i].bytes < r[best].bytes))
            best = i;
    }
    if (best == n)
        return false;
    *usable_bytes = r[best].bytes;
    *chosen = best;
    return true;
}

/* Unified memory is no larger than what it is shared with, and sources may see all of that where
 * the driver counts only what was carved out. */
static uint64_t pool_bytes(const struct bl_machine *m, const struct bl_machine_device *d)
{
    if (d->mem_kind == BL_MEMORY_UNIFIED && d->shares < m->n_devices)
        return m->device[d->shares].mem_bytes;
    return d->mem_bytes;
}

static enum bl_status settle_memory(struct bl_machine *m, const char *what,
                                    struct bl_machine_device *d)
{
    const uint64_t pool = pool_bytes(m, d);
    uint32_t chosen;
    if (!d->mem_bytes && pool) /* all of what it shares, as far as nothing says otherwise */
        d->mem_bytes = pool;
    if (!d->usable_bytes && d->n_readings) {
        if (!bl_memory_judge(d->reading, d->n_readings, pool, &d->usable_bytes, &chosen))
            return bl_fail(BL_EFORMAT,
                           "%s: device %s: no source of mem_readings says a possible number of "
                           "bytes; give usable_bytes",
                           what, d->id);
        snprintf(d->mem_source, sizeof d->mem_source, "%s", d->reading[chosen].source);
    }
    if (!d->mem_bytes)
        d->mem_bytes = d->usable_bytes;
    if (!d->usable_bytes)
        d->usable_bytes = d->mem_bytes;
    if (!d->mem_source[0])
        snprintf(d->mem_source, sizeof d->mem_source, "%s", "the machine file");
    if (!d->mem_bytes)
        return bl_fail(BL_EFORMAT, "%s: device %s has no memory: give mem_bytes", what, d->id);
    if (d->usable_bytes > d->mem_bytes || d->mem_bytes > pool)
        return bl_fail(BL_EFORMAT,
                       "%s: device %s: usable_bytes %llu of mem_bytes %llu%s is more than there is",
                       what, d->id, (unsigned long long)d->usable_bytes,
                       (unsigned long long)d->mem_bytes,
                       d->mem_kind == BL_MEMORY_UNIFIED ? ", which it shares," : "");
    return BL_OK;
}

static enum bl_status check_kind(const struct bl_machine *m, const char *what,
                                 const struct bl_machine_device *d)
{
    const bool unified = d->mem_kind == BL_MEMORY_UNIFIED;
    if ((d->kind == BL_KIND_CPU) != (d->mem_kind == BL_MEMORY_HOST))
        return bl_fail(BL_EFORMAT,
                       "%s: device %s: a cpu has mem_kind host, a gpu dedicated or unified", what,
                       d->id);
    if (unified != (d->shares != BL_NO_DEVICE))
        return bl_fail(BL_EFORMAT,
                       "%s: device %s: unified memory and shares, the id of the cpu whose memory "
                       "it is, go together",
                       what, d->id);
    if (unified && m->device[d->shares].kind != BL_KIND_CPU)
        return bl_fail(BL_EFORMAT, "%s: device %s shares the memory of %s, which is no cpu", what,
                       d->id, m->device[d->shares].id);
    if (!unified && d->carve_out_bytes)
        return bl_fail(BL_EFORMAT, "%s: device %s: only unified memory is carved out", what, d->id);
    return BL_OK;
}

static enum bl_status check_domains(const char *what, struct bl_machine_device *d)
{
    uint64_t bytes = 0, seen = 0;
    uint32_t cores = 0;
    for (uint32_t i = 0; i < d->n_domains; i++) {
        struct bl_domain *o = &d->domain[i];
        if (seen >> o->node & 1)
            return bl_fail(BL_EFORMAT, "%s: device %s: two domains have node %u", what, d->id,
                           o->node);
        seen |= (uint64_t)1 << o->node;
        o->usable_bytes = o->usable_bytes ? o->usable_bytes : o->mem_bytes;
        if (o->usable_bytes > o->mem_bytes)
            return bl_fail(BL_EFORMAT, "%s: device %s: domain %u has more usable bytes than bytes",
                           what, d->id, o->node);
        bytes += o->mem_bytes;
        cores += o->n_cores;
    }
    if (d->n_domains && (bytes > d->mem_bytes || (d->cores && cores > d->cores)))
        return bl_fail(BL_EFORMAT, "%s: device %s: its domains have more %s than it has", what,
                       d->id, bytes > d->mem_bytes ? "memory" : "cores");
    return BL_OK;
}

/* ---- backends -------------------------------------------------------------------------------- */

/* Room for activations in the panels of whatever kernels there are: bytes per token and 256
 * columns as floats, as signed bytes with scales and sums. */
static void assume_tiles(struct bl_caps *caps)
{
    enum { FLOAT_PART = 1024, BYTE_PART = 384, FROM = 3 };
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        if (bl_dtypes[t].act != BL_ACT_NONE) {
            const bool is_float = bl_dtypes[t].act == BL_ACT_F32;
            caps->tiles[t] = (struct bl_tile_caps){is_float ? FLOAT_PART : BYTE_PART, FROM,
                                                   (uint8_t)(is_float ? BL_F32 : BL_Q4_0)};
        }
}

static enum bl_status choose_backend(const char *what, struct bl_machine_device *d)
{
    d->backend = bl_backend_find(d->backend_name);
    if (!d->backend || (d->kind == BL_KIND_CPU) != !strcmp(d->backend->name, "cpu"))
        d->backend = bl_backend_find(d->kind == BL_KIND_CPU ? "cpu" : "null");
    if (!d->backend)
        return bl_fail(BL_EUNSUPPORTED, "%s: device %s: no backend of this build can plan for it",
                       what, d->id);
    if (d->caps.granule_bytes)
        return BL_OK;
    const uint64_t block_bytes = d->caps.block_bytes;
    d->caps_assumed = true;
    if (d->kind == BL_KIND_GPU) {
        BL_TRY(d->backend->caps(0, &d->config, &d->caps));
        d->caps.block_bytes = block_bytes;
        return BL_OK;
    }
    d->caps = (struct bl_caps){
        .granule_bytes = 4096, .threads = d->cores ? d->cores : 1, .import_host = 1};
    assume_tiles(&d->caps);
    return BL_OK;
}

/* ---- links ----------------------------------------------------------------------------------- */

static enum bl_status check_hubs(const struct bl_machine *m, const char *what)
{
    for (uint32_t h = 0; h < m->n_hubs; h++) {
        uint32_t steps = 0;
        for (uint32_t g = 0; g < h; g++)
            if (!strcmp(m->hub[g].id, m->hub[h].id))
                return bl_fail(BL_EFORMAT, "%s: two hubs are called '%s'", what, m->hub[h].id);
        for (uint16_t up = m->hub[h].up; up != BL_NO_DEVICE; up = m->hub[up].up)
            if (++steps > m->n_hubs)
                return bl_fail(BL_EFORMAT, "%s: hub '%s' is above itself: the ups go in a circle",
                               what, m->hub[h].id);
    }
    return BL_OK;
}

static bool same_ends(const struct bl_link *l, const struct bl_link *k)
{
    return (l->a == k->a && l->b == k->b) || (l->a == k->b && l->b == k->a);
}

static enum bl_status check_link(const struct bl_machine *m, const char *what, uint32_t i)
{
    const struct bl_link *l = &m->link[i];
    if (l->a == l->b)
        return bl_fail(BL_EFORMAT, "%s: links[%u] goes from %s to itself", what, i,
                       m->device[l->a].id);
    for (uint32_t k = 0; k < i; k++)
        if (same_ends(l, &m->link[k]))
            return bl_fail(BL_EFORMAT, "%s: links[%u] and links[%u] both join %s and %s", what, k,
                           i, m->device[l->a].id, m->device[l->b].id);
    if (!(bl_link_bps(l, l->a) > 0) || !(bl_link_bps(l, l->b) > 0))
        return bl_fail(BL_EFORMAT,
                       "%s: links[%u] from %s to %s needs a bandwidth each way: ab_rated_bps and "
                       "ba_rated_bps, or measured ones",
                       what, i, m->device[l->a].id, m->device[l->b].id);
    return BL_OK;
}

static const struct bl_link *link_between(const struct bl_machine *m, uint16_t a, uint16_t b)
{
    const struct bl_link ends = {.a = a, .b = b};
    for (uint32_t i = 0; i < m->n_links; i++)
        if (same_ends(&m->link[i], &ends))
            return &m->link[i];
    return NULL;
}

static double leg_bps(const struct bl_machine *m, uint16_t from, uint16_t to, double *latency_ns)
{
    const struct bl_link *l = link_between(m, from, to);
    if (!l)
        return 0;
    double bps = bl_link_bps(l, from);
    for (uint16_t h = l->via; h != BL_NO_DEVICE; h = m->hub[h].up)
        if (m->hub[h].bps > 0 && m->hub[h].bps < bps)
            bps = m->hub[h].bps;
    *latency_ns += l->latency_ns;
    return bps;
}

double bl_machine_path_bps(const struct bl_machine *m, uint16_t from, uint16_t to,
                           double *latency_ns)
{
    double ns = 0, bps = leg_bps(m, from, to, &ns);
    if (!(bps > 0) && from != 0 && to != 0) {
        const double up = leg_bps(m, from, 0, &ns), down = leg_bps(m, 0, to, &ns);
        bps = up < down ? up : down;
    }
    if (latency_ns)
        *latency_ns = ns;
    return bps;
}

static enum bl_status check_links(const struct bl_machine *m, const char *what)
{
    BL_TRY(check_hubs(m, what));
    for (uint32_t i = 0; i < m->n_links; i++)
        BL_TRY(check_link(m, what, i));
    for (uint16_t d = 1; d < m->n_devices; d++)
        if (m->device[d].mem_kind != BL_MEMORY_UNIFIED && !(bl_machine_path_bps(m, 0, d, NULL) > 0))
            return bl_fail(BL_EFORMAT, "%s: no link joins %s and %s", what, m->device[0].id,
                           m->device[d].id);
    return BL_OK;
}

enum bl_status bl_machine_check(struct bl_machine *m, const char *what)
{
    if (!m->n_devices || m->device[0].kind != BL_KIND_CPU)
        return bl_fail(BL_EFORMAT, "%s: devices[0] must be the cpu that runs the program", what);
    BL_TRY(check_ids(m, what));
    for (uint32_t d = 0; d < m->n_devices; d++) {
        BL_TRY(check_kind(m, what, &m->device[d]));
        BL_TRY(settle_memory(m, what, &m->device[d]));
        BL_TRY(check_domains(what, &m->device[d]));
        BL_TRY(choose_backend(what, &m->device[d]));
    }
    return check_links(m, what);
}

/* ---- two machines ---------------------------------------------------------------------------- */

static bool device_differs(const struct bl_machine_device *a, const struct bl_machine_device *b,
                           char *text, size_t cap)
{
    /* What a system counts as its memory moves with its kernel. */
    const double ratio = (double)a->mem_bytes / (double)b->mem_bytes, tolerance = 0.02;
    if (strcmp(a->id, b->id)) {
        snprintf(text, cap, "there is %s in the place of %s", a->id, b->id);
    } else if (a->kind != b->kind || a->mem_kind != b->mem_kind) {
        snprintf(text, cap, "%s is another kind of device there", a->id);
    } else if (!(ratio > 1 - tolerance && ratio < 1 + tolerance)) {
        snprintf(text, cap, "%s has %s there, %s here", a->id, BL_SIZE(a->mem_bytes),
                 BL_SIZE(b->mem_bytes));
    } else if (a->cores != b->cores || a->n_domains != b->n_domains) {
        snprintf(text, cap, "%s has %u core%s and %u memory node%s there, %u and %u here", a->id,
                 a->cores, bl_plural(a->cores), a->n_domains, bl_plural(a->n_domains), b->cores,
                 b->n_domains);
    } else {
        return false;
    }
    return true;
}

bool bl_machine_differs(const struct bl_machine *there, const struct bl_machine *here, char *text,
                        size_t cap)
{
    if (there->n_devices != here->n_devices) {
        snprintf(text, cap, "%u device%s there, %u here", there->n_devices,
                 bl_plural(there->n_devices), here->n_devices);
        return true;
    }
    for (uint32_t d = 0; d < here->n_devices; d++)
        if (device_differs(&there->device[d], &here->device[d], text, cap))
            return true;
    for (uint16_t a = 0; a < here->n_devices; a++)
        for (uint16_t b = 0; b < a; b++)
            if (!link_between(there, a, b) != !link_between(here, a, b)) {
                snprintf(text, cap, "a link joins %s and %s only %s", here->device[b].id,
                         here->device[a].id, link_between(here, a, b) ? "here" : "there");
                return true;
            }
    return false;
}
