/* SPDX-License-Identifier: MIT */
/* What a list of devices names, as entries of a machine. */
#include "devices.h"

#include "backends.h"
#include "json.h"
#include "log.h"
#include "machine_file.h"
#include "mem.h"
#include "node_cost.h"

#include <ctype.h>
#include <stdio.h>

enum { MOST_TEXT = 96, MOST_INDEX = 63 };
struct item {
    char shown[MOST_TEXT]; /* as given */
    char all[MOST_TEXT];   /* cut into those below */
    char *memory, *link, *fault;
    const struct bl_backend *backend;
    uint32_t index;
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

static enum bl_status find_backend(struct item *it)
{
    char *digits = it->all;

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
        const char *near = bl_nearest_name(it->all, backend_name, NULL);
        return bl_fail(BL_EINVAL, "--devices: '%s' is of no kind that this build has%s%s",
                       it->shown, near ? "; the nearest is " : "", near ? near : "");
    }
    return BL_OK;
}

static enum bl_status read_item(struct item *it, const char *text, size_t n)
{
    *it = (struct item){.index = 0};
    if (!n || n >= sizeof it->all)
        return bl_fail(BL_EINVAL, "--devices: items have 1 to %d characters", MOST_TEXT - 1);
    memcpy(it->shown, text, n);
    bl_one_line(it->shown);
    memcpy(it->all, it->shown, sizeof it->all);
    it->fault = cut(it->all, '+');
    it->link = cut(it->all, '@');
    it->memory = cut(it->all, ':');
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

    if (!it->fault)
        return BL_OK;
    snprintf(text, sizeof text, "%s", it->fault);
    const char *number = cut(text, '=');
    const unsigned long nth =
        number && isdigit((unsigned char)*number) ? strtoul(number, &end, 10) : 0;
    for (unsigned kind = BL_FAULT_NONE + 1; kind < BL_N_FAULT_KINDS; kind++)
        if (nth && nth < UINT32_MAX && !*end && !strcmp(text, word[kind])) {
            *out = (struct bl_fault){(uint8_t)kind, (uint32_t)nth};
            return BL_OK;
        }
    return bl_fail(BL_EINVAL,
                   "--devices: '%s' must end in alloc, copy, submit, lost, stuck or corrupt, '=' "
                   "and which of them it is, from 1",
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

/* Kernels, graphs and what drivers take besides what is asked for. */
static uint64_t usable_of(const struct bl_device_facts *f)
{
    const uint64_t least = UINT64_C(256) << 20, share = f->mem_bytes / 32;
    const uint64_t reserve = share > least ? share : least;

    return f->free_bytes > 2 * reserve ? f->free_bytes - reserve : f->free_bytes / 2;
}

static enum bl_status fill_simulated(struct bl_machine_device *d, const struct item *it)
{
    double bytes = 8 * 0x1p30;

    snprintf(d->name, sizeof d->name, "simulated");
    BL_TRY(read_number(it, "memory", it->memory, BL_JSON_SIZE, 1, &bytes));
    d->mem_bytes = d->usable_bytes = (uint64_t)bytes;
    return read_fault(it, &d->fault);
}

static enum bl_status fill_real(struct bl_machine_device *d, const struct item *it)
{
    struct bl_device_facts f = {.id = ""};
    double bytes;

    if (it->fault)
        return bl_fail(BL_EINVAL, "--devices: '%s': only simulated devices fail when asked to",
                       it->shown);
    if (!it->memory && !it->backend->facts)
        return bl_fail(BL_EINVAL,
                       "--devices: '%s': say how much of its memory may be used, as in "
                       "vulkan0:4GiB",
                       it->shown);
    if (it->backend->facts)
        BL_TRY(it->backend->facts(it->index, &f));
    bytes = (double)usable_of(&f);
    BL_TRY(read_number(it, "memory", it->memory, BL_JSON_SIZE, 1, &bytes));
    snprintf(d->name, sizeof d->name, "%s", *f.name ? f.name : d->id);
    if (*f.id)
        snprintf(d->id, sizeof d->id, "%s", f.id);
    d->usable_bytes = (uint64_t)bytes;
    d->mem_bytes = f.mem_bytes > d->usable_bytes ? f.mem_bytes : d->usable_bytes;
    d->integrated = f.integrated;
    return BL_OK;
}

static enum bl_status fill_card(struct bl_machine_device *d, const struct item *it,
                                const struct bl_machine_device *host)
{
    const bool simulated = !strcmp(it->backend->name, "sim");

    BL_TRY(simulated ? fill_simulated(d, it) : fill_real(d, it));
    d->kind = BL_KIND_GPU;
    d->mem_kind = BL_MEMORY_DEDICATED;
    snprintf(d->mem_source, sizeof d->mem_source, "--devices");
    d->config = (struct bl_device_config){
        .threads = 1, .cpu_mask = host->config.cpu_mask, .exact = host->config.exact};
    fill_figures(d);
    return BL_OK;
}

/* Two backends may know one card, or the list names it twice. */
static enum bl_status check_new(const struct bl_machine *m, const struct item *it,
                                const struct bl_machine_device *d)
{
    for (uint32_t i = 0; i < m->n_devices; i++)
        if (!strcmp(m->device[i].id, d->id) && strcmp(it->backend->name, "sim"))
            return bl_fail(BL_EINVAL, "--devices: '%s' is %s, as %s%u is: name a card once",
                           it->shown, d->id, m->device[i].backend_name, m->device[i].index);
    return BL_OK;
}

static enum bl_status add_link(struct bl_machine *m, const struct item *it, uint16_t to)
{
    double bps = 16e9;
    struct bl_link *bigger = realloc(m->link, (m->n_links + 1) * sizeof *bigger);

    if (!bigger)
        return bl_fail(BL_ENOMEM, "out of memory for %u links", m->n_links + 1);
    m->link = bigger;
    BL_TRY(read_number(it, "link", it->link, BL_JSON_BPS, 1e3, &bps));
    m->link[m->n_links++] = (struct bl_link){.a = 0,
                                             .b = to,
                                             .via = BL_NO_DEVICE,
                                             .name = "--devices",
                                             .ab_measured_bps = bps,
                                             .ba_measured_bps = bps,
                                             .latency_ns = 5000,
                                             .cross_ns = 10000};
    return BL_OK;
}

static enum bl_status add_device(struct bl_machine *m, const struct item *it)
{
    if (m->n_devices == BL_MAX_DEVICES)
        return bl_fail(BL_ELIMIT, "--devices: there can be %d", BL_MAX_DEVICES);
    struct bl_machine_device *bigger = realloc(m->device, (m->n_devices + 1) * sizeof *bigger);
    if (!bigger)
        return bl_fail(BL_ENOMEM, "out of memory for %u devices", m->n_devices + 1);
    m->device = bigger;
    struct bl_machine_device *d = &bigger[m->n_devices];
    *d = (struct bl_machine_device){
        .backend = it->backend, .index = it->index, .shares = BL_NO_DEVICE};
    snprintf(d->backend_name, sizeof d->backend_name, "%s", it->backend->name);
    snprintf(d->id, sizeof d->id, "%s%u", it->backend->name, it->index);
    BL_TRY(fill_card(d, it, &bigger[0]));
    BL_TRY(check_new(m, it, d));
    BL_TRY(it->backend->caps(it->index, &d->config, &d->caps));
    d->config.number = (uint16_t)m->n_devices;
    return add_link(m, it, (uint16_t)m->n_devices++);
}

static enum bl_status add_item(struct bl_machine *m, const struct item *it)
{
    if (!strcmp(it->backend->name, "cpu"))
        return it->index || it->memory || it->link || it->fault
                   ? bl_fail(BL_EINVAL, "--devices: '%s': there is one cpu, with all its memory",
                             it->shown)
                   : BL_OK;
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

enum bl_status bl_machine_add_devices(struct bl_machine *m, const char *list)
{
    struct item it;

    if (list)
        assume_host(&m->device[0]);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        BL_TRY(read_item(&it, at, strcspn(at, ",")));
        BL_TRY(add_item(m, &it));
    }
    return list && bl_machine_check(m, "--devices") ? BL_EINVAL : BL_OK;
}

enum bl_status bl_machine_simulate_host(struct bl_machine *m)
{
    struct bl_machine_device *d = &m->device[0];

    d->backend = bl_backend_find("sim");
    d->index = MOST_INDEX;
    return d->backend->caps(d->index, &d->config, &d->caps);
}
