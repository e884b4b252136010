/* SPDX-License-Identifier: MIT */
/* What a list of devices names, as entries of a machine. */
#include "devices.h"

#include "backends.h"
#include "direct.h"
#include "found.h"
#include "json.h"
#include "log.h"
#include "machine_file.h"
#include "mem.h"
#include "node_cost.h"

#include <ctype.h>
#include <stdio.h>

enum { MOST_TEXT = 96, MOST_INDEX = 63, MOST_REASON = 320 };
struct item {
    char shown[MOST_TEXT]; /* as given */
    char all[MOST_TEXT];   /* cut into those below */
    char *memory, *link, *fault;
    bool shared; /* its memory is the host's */
    const struct bl_backend *backend;
    uint32_t index;
    struct bl_found found; /* of a device that a driver tells of */
};

/* ---- one item ---- */

/* What follows the mark, which is cut off; NULL: it is not there. */
static char *cut(char *text, char mark)
{
    char *at = strchr(text, mark);
    if (at)
        *at++ = 0;
    return at;
}

static const char *backend_name(const void *arg, size_t i)
{
    (void)arg;
    return bl_backends[i] ? bl_backends[i]->name : NULL;
}

static enum bl_status no_such_kind(const struct item *it)
{
    const char *near = bl_nearest_name(it->all, backend_name, NULL);
    char all[160] = "";
    size_t n = 0;

    for (size_t i = 0; !near && bl_backends[i] && n < sizeof all; i++)
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", i ? ", " : "; there are ",
                              bl_backends[i]->name);
    return bl_fail(BL_EINVAL, "--devices: '%s' is of no kind that this build has%s%s%s", it->shown,
                   near ? "; the nearest is " : "", near ? near : "", all);
}

static enum bl_status find_by_id(struct item *it)
{
    if (bl_found_by_id(it->all, NULL, &it->found))
        return bl_fail_in(BL_EINVAL, "--devices");
    it->backend = it->found.backend;
    it->index = it->found.index;
    return BL_OK;
}

static enum bl_status find_backend(struct item *it)
{
    char *digits = it->all;

    if (bl_found_is_id(it->all))
        return find_by_id(it);
    while (*digits && !isdigit((unsigned char)*digits))
        digits++;
    char *end = digits;
    const unsigned long index = *digits ? strtoul(digits, &end, 10) : 0;
    if (*end || index > MOST_INDEX)
        return bl_fail(BL_EINVAL, "--devices: '%s' must end in a number up to %d or in none",
                       it->shown, MOST_INDEX);
    it->index = (uint32_t)index;
    *digits = 0;
    if (!(it->backend = bl_backend_find(it->all))) {
        return no_such_kind(it);
    }
    struct bl_found f = {.backend = it->backend, .index = it->index};
    uint32_t n = 0;
    if (f.backend->facts && !it->memory && !f.backend->count(&n) && f.index >= n)
        return bl_fail(BL_EINVAL, "--devices: '%s': there %s %u device%s of that kind here%s",
                       it->shown, n == 1 ? "is" : "are", n, bl_plural(n),
                       n ? ", counted from 0" : "");
    const enum bl_status st =
        f.backend->facts ? f.backend->facts(f.index, &f.facts) : BL_EUNAVAILABLE;
    if (!st)
        it->found = f;
    else if (f.backend->facts && !it->memory) /* with a size it can be planned for all the same */
        return bl_fail_in(st, "--devices: '%s'", it->shown);
    return BL_OK;
}

/* Addresses on a bus have colons of their own. */
static char *after_name(char *text)
{
    enum { BUS_ID = 16 };
    return bl_found_is_id(text) && text[0] == 'p' && strlen(text) >= BUS_ID ? text + BUS_ID : text;
}

static enum bl_status read_item(struct item *it, const char *text, size_t n)
{
    *it = (struct item){.index = 0};
    if (!n)
        return bl_fail(BL_EINVAL, "--devices: a name is missing; they are separated by commas, "
                                  "such as sim0,vulkan0:8GiB");
    if (n >= sizeof it->all)
        return bl_fail(BL_EINVAL, "--devices: '%.40s...' is longer than %d characters", text,
                       MOST_TEXT - 1);
    memcpy(it->shown, text, n);
    bl_one_line(it->shown);
    memcpy(it->all, it->shown, sizeof it->all);
    it->fault = cut(it->all, '+');
    it->link = cut(it->all, '@');
    it->memory = cut(after_name(it->all), ':');
    char *size = it->memory ? cut(it->memory, ':') : NULL;
    it->shared = it->memory && !strcmp(it->memory, "shared");
    if (it->shared)
        it->memory = size;
    else if (size)
        return bl_fail(BL_EINVAL, "--devices: '%s': memory is SIZE, shared or shared:SIZE",
                       it->shown);
    return find_backend(it);
}

static enum bl_status read_number(const struct item *it, const char *what, const char *text,
                                  enum bl_json_kind kind, double least, double *out)
{
    char name[MOST_TEXT + 32];
    const struct bl_json_field row = {"", kind, 0, least, 0x1p50, NULL, false, false};

    if (!text)
        return BL_OK;
    snprintf(name, sizeof name, "--devices: %s of '%s'", what, it->shown);
    return bl_json_assign(&row, name, text, out);
}

static enum bl_status read_fault(const struct item *it, struct bl_fault *out)
{
    static const char *const word[BL_N_FAULT_KINDS] = {
        [BL_FAULT_ALLOC] = "alloc", [BL_FAULT_COPY] = "copy",   [BL_FAULT_SUBMIT] = "submit",
        [BL_FAULT_LOST] = "lost",   [BL_FAULT_STUCK] = "stuck", [BL_FAULT_CORRUPT] = "corrupt"};
    char text[MOST_TEXT], *end;
    double bytes;

    if (!it->fault)
        return BL_OK;
    snprintf(text, sizeof text, "%s", it->fault);
    const char *number = cut(text, '=');
    if (number && !strcmp(text, "memory")) {
        BL_TRY(read_number(it, "fault", number, BL_JSON_SIZE, 1, &bytes));
        *out = (struct bl_fault){BL_FAULT_MEMORY, (uint64_t)bytes};
        return BL_OK;
    }
    const unsigned long nth =
        number && isdigit((unsigned char)*number) ? strtoul(number, &end, 10) : 0;
    for (unsigned kind = BL_FAULT_NONE + 1; kind < BL_N_FAULT_KINDS; kind++)
        if (nth && nth < UINT32_MAX && !*end && word[kind] && !strcmp(text, word[kind])) {
            *out = (struct bl_fault){(uint8_t)kind, nth};
            return BL_OK;
        }
    return bl_fail(BL_EINVAL,
                   "--devices: '%s' must end in alloc, copy, submit, lost, stuck or corrupt, '=' "
                   "and which of them it is, from 1, or in memory=SIZE",
                   it->shown);
}

/* ---- entries ---- */

/* Of a card such as one may have at home. */
static void fill_figures(struct bl_machine_device *d)
{
    const double read_bps = 300e9, macs = 10e12;

    d->read_rated_bps = d->read_measured_bps = read_bps;
    d->f32_macs_per_s = d->f16_macs_per_s = d->i8_macs_per_s = macs;
    d->rate_default.decode_bps = read_bps;
    for (unsigned i = 0; i < BL_N_RATE_TOKENS; i++)
        d->rate_default.macs_per_s[i] = macs;
    for (unsigned i = 0; i < BL_N_STEP_TEAMS; i++)
        d->step_rate[i].moved_bps = read_bps;
    d->launch_ns = 5000;
}

/* What a card does not have is for --device-set, and for plans only. */
static enum bl_status check_memory(const struct item *it, double bytes)
{
    const uint64_t has = it->found.facts.mem_bytes;

    if (!it->found.backend || !it->memory || !has || bytes <= (double)has)
        return BL_OK;
    return bl_fail(BL_EINVAL, "--devices: '%s': the device has %.2f GiB; name so much at most",
                   it->shown, (double)has / 0x1p30);
}

static enum bl_status fill_card(struct bl_machine_device *d, const struct item *it,
                                const struct bl_machine_device *host)
{
    const bool simulated = !strcmp(it->backend->name, "sim");
    double bytes = 8 * 0x1p30;

    fill_figures(d);
    if (!simulated && (it->fault || (!it->memory && !it->found.backend)))
        return bl_fail(BL_EINVAL, "--devices: '%s': %s", it->shown,
                       it->fault ? "only simulated devices fail when asked to"
                                 : "say how much of its memory may be used, as in null0:4GiB");
    BL_TRY(read_number(it, "memory", it->memory, BL_JSON_SIZE, 1, &bytes));
    BL_TRY(check_memory(it, bytes));
    if (it->found.backend)
        return bl_found_fill(d, host, &it->found, it->shared, it->memory ? (uint64_t)bytes : 0);
    BL_TRY(read_fault(it, &d->fault));
    snprintf(d->name, sizeof d->name, "%s", simulated ? "simulated" : d->id);
    d->kind = BL_KIND_GPU;
    d->mem_kind = it->shared ? BL_MEMORY_UNIFIED : BL_MEMORY_DEDICATED;
    d->shares = it->shared ? 0 : BL_NO_DEVICE;
    d->mem_bytes = d->usable_bytes = (uint64_t)bytes;
    snprintf(d->mem_source, sizeof d->mem_source, "--devices");
    d->config = bl_card_config(d, host);
    return it->backend->caps(it->index, &d->config, &d->caps);
}

/* Two backends may know one card, or the list names it twice. */
static enum bl_status check_new(const struct bl_machine *m, const struct item *it,
                                const struct bl_machine_device *d)
{
    for (uint32_t i = 1; i < m->n_devices; i++)
        if (!m->device[i].described && m->device[i].backend == it->backend &&
            m->device[i].index == it->index) {
            if (!it->found.backend)
                return bl_fail(BL_EINVAL, "--devices: '%s' is named twice", it->shown);
            bl_warn("--devices: '%s' is named twice: two devices that share a card and its memory, "
                    "for tests",
                    it->shown);
        }
    for (uint32_t i = 0; i < m->n_devices; i++)
        if (!strcmp(m->device[i].id, d->id))
            return bl_fail(BL_EINVAL, "--devices: '%s' is %s, as %s%u is: name a card once",
                           it->shown, d->id, m->device[i].backend_name, m->device[i].index);
    return BL_OK;
}

static enum bl_status add_link(struct bl_machine *m, const struct item *it, uint16_t to)
{
    double bps = 16e9;

    BL_TRY(read_number(it, "link", it->link, BL_JSON_BPS, 1e3, &bps));
    return bl_machine_add_link(m, &(struct bl_link){.a = 0,
                                                    .b = to,
                                                    .via = BL_NO_DEVICE,
                                                    .name = "--devices",
                                                    .ab_measured_bps = bps,
                                                    .ba_measured_bps = bps,
                                                    .latency_ns = 5000,
                                                    .cross_ns = 10000});
}

/* What a driver tells of may be there more than once, for tests. */
static void name_device(const struct bl_machine *m, struct bl_machine_device *d,
                        const struct item *it)
{
    uint32_t nth = 1;

    if (!it->found.backend) {
        snprintf(d->id, sizeof d->id, "%s%u", it->backend->name, it->index);
        return;
    }
    for (uint32_t i = 1; i < m->n_devices; i++)
        nth += m->device[i].backend == it->backend && m->device[i].index == it->index;
    const char *id = it->found.facts.id;
    if (!*id)
        snprintf(d->id, sizeof d->id, "%s%u", it->backend->name, it->index);
    else if (nth > 1)
        snprintf(d->id, sizeof d->id, "%.20s_%u", id, nth);
    else
        snprintf(d->id, sizeof d->id, "%s", id);
}

static enum bl_status add_device(struct bl_machine *m, const struct item *it)
{
    if (m->n_devices == BL_MAX_DEVICES)
        return bl_fail(BL_EINVAL, "--devices: '%s' is one too many: there can be %d with the cpu",
                       it->shown, BL_MAX_DEVICES);
    struct bl_machine_device *d = bl_machine_new_device(m);
    if (!d)
        return BL_ENOMEM;
    *d = (struct bl_machine_device){
        .backend = it->backend, .index = it->index, .shares = BL_NO_DEVICE};
    snprintf(d->backend_name, sizeof d->backend_name, "%s", it->backend->name);
    name_device(m, d, it);
    BL_TRY(fill_card(d, it, &m->device[0]));
    BL_TRY(check_new(m, it, d));
    d->config.number = (uint16_t)m->n_devices;
    return add_link(m, it, (uint16_t)m->n_devices++);
}

static enum bl_status add_item(struct bl_machine *m, const struct item *it, uint32_t *n_first)
{
    if (!strcmp(it->backend->name, "cpu")) {
        if (!it->index && (*n_first)++)
            return bl_fail(BL_EINVAL, "--devices: '%s' is named twice", it->shown);
        if (it->memory || it->link || it->fault)
            return bl_fail(BL_EINVAL,
                           "--devices: '%s': a cpu has the memory of its node, all of it",
                           it->shown);
        return it->index ? bl_machine_add_node(m, it->index) : BL_OK;
    }
    return add_device(m, it);
}

/* Without any figure of the host there is nothing to weigh others against. */
static void assume_host(struct bl_machine_device *d)
{
    const double per_core_bps = 4e9;

    if (bl_device_read_bps(d) > 0 || bl_kernels_measured(d))
        return;
    d->read_rated_bps = per_core_bps * (d->cores ? d->cores : 1);
    bl_info("%s was not measured; %.0f GB/s are assumed of it ('ballast probe -o FILE' measures "
            "it for --machine FILE, --device-set %s.read=RATE says so)",
            d->id, d->read_rated_bps * 1e-9, d->id);
}

static enum bl_status add_one_found(struct bl_machine *m, const struct bl_found *f,
                                    void (*note)(void *arg, const char *text), void *arg)
{
    struct item it = {.backend = f->backend, .index = f->index, .found = *f};
    char text[192];

    snprintf(it.shown, sizeof it.shown, "%s%u", f->backend->name, f->index);
    for (uint32_t d = 1; d < m->n_devices; d++) /* another backend knows it, too */
        if (!strcmp(m->device[d].id, f->facts.id))
            return BL_OK;
    if (!f->facts.software)
        return add_device(m, &it);
    snprintf(text, sizeof text,
             "%s%u (%s) computes on this processor and is left out; --devices %s%u measures it",
             f->backend->name, f->index, f->facts.name, f->backend->name, f->index);
    if (note)
        note(arg, text);
    return BL_OK;
}

enum bl_status bl_machine_add_found(struct bl_machine *m, void (*note)(void *arg, const char *text),
                                    void *arg)
{
    const uint16_t first = (uint16_t)m->n_devices;
    struct bl_found f;

    for (uint32_t k = 0; k < BL_MAX_DEVICES; k++) {
        const enum bl_status st = bl_found_at(k, &f);
        if (st == BL_EINVAL)
            break;
        if (st && note)
            note(arg, bl_error());
        if (!st)
            BL_TRY(add_one_found(m, &f, note, arg));
    }
    return bl_direct_find(m, first);
}

static void tell(void *arg, const char *text)
{
    char *first = arg;

    bl_info("%s", text);
    if (!*first)
        snprintf(first, MOST_REASON, "%s", text);
}

static enum bl_status add_all(struct bl_machine *m)
{
    const uint32_t before = m->n_devices;
    char why[MOST_REASON] = "";

    BL_TRY(bl_machine_add_found(m, tell, why));
    if (m->n_devices == before)
        bl_warn("--devices all: there is no card that this build can use; cpu0 computes alone%s%s",
                *why ? ": " : "", why);
    return BL_OK;
}

static enum bl_status add_named(struct bl_machine *m, const char *list)
{
    const uint16_t first = (uint16_t)m->n_devices;
    struct item it;
    uint32_t n_first = 0; /* of cpu0, which is there in any case */

    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        BL_TRY(read_item(&it, at, strcspn(at, ",")));
        BL_TRY(add_item(m, &it, &n_first));
    }
    return bl_direct_find(m, first);
}

enum bl_status bl_machine_add_devices(struct bl_machine *m, const char *list)
{
    if (!list)
        return BL_OK;
    assume_host(&m->device[0]);
    BL_TRY(strcmp(list, "all") ? add_named(m, list) : add_all(m));
    return bl_machine_check(m, "--devices") ? BL_EINVAL : BL_OK;
}

enum bl_status bl_machine_simulate_host(struct bl_machine *m)
{
    struct bl_machine_device *d = &m->device[0];

    d->backend = bl_backend_find("sim");
    d->index = MOST_INDEX;
    return d->backend->caps(d->index, &d->config, &d->caps);
}
