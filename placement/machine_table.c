/* SPDX-License-Identifier: MIT */
/* A machine in words. */
#include "machine_file.h"

#include "machine_fields.h"

#include <stdarg.h>
#include <stdio.h>

struct page {
    void (*line)(void *arg, const char *text);
    void *arg;
    char text[512];
    size_t n;
};

static void add(struct page *p, const char *fmt, ...) BL_PRINTF(2, 3);
static void add(struct page *p, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    const int n = vsnprintf(p->text + p->n, sizeof p->text - p->n, fmt, list);
    va_end(list);
    if (n > 0)
        p->n += (size_t)n < sizeof p->text - p->n ? (size_t)n : sizeof p->text - p->n - 1;
}

static void end(struct page *p)
{
    if (p->n)
        p->line(p->arg, p->text);
    p->n = 0;
    p->text[0] = 0;
}

/* "12.3 GB/s measured, 25.6 rated" */
static void add_rate(struct page *p, double measured, double rated)
{
    if (measured > 0)
        add(p, "%.4g GB/s measured", measured * 1e-9);
    if (rated > 0)
        add(p, measured > 0 ? ", %.4g rated" : "%.4g GB/s rated", rated * 1e-9);
}

static void show_memory(struct page *p, const struct bl_machine *m,
                        const struct bl_machine_device *d)
{
    add(p, "  memory    %s", BL_SIZE(d->mem_bytes));
    if (d->shares != BL_NO_DEVICE && d->mem_kind == BL_MEMORY_UNIFIED)
        add(p, " shared with %s", m->device[d->shares].id);
    add(p, ", %s usable: %s", BL_SIZE(d->usable_bytes), d->mem_source);
    end(p);
    for (uint32_t i = 0; i < d->n_readings; i++) {
        add(p, "            %s: %s%s", d->reading[i].source, BL_SIZE(d->reading[i].bytes),
            d->reading[i].refused ? ", refused: impossible" : "");
        end(p);
    }
    if (d->driver_bytes)
        add(p, "            %.0f MiB of it for the driver", (double)d->driver_bytes / 0x1p20);
    end(p);
    if (d->carve_out_bytes)
        add(p, "            %s of it carved out", BL_SIZE(d->carve_out_bytes));
    end(p);
    if (bl_device_read_bps(d) > 0) {
        add(p, "  reads     ");
        add_rate(p, d->read_measured_bps, d->read_rated_bps);
        end(p);
    }
}

static void show_domains(struct page *p, const struct bl_machine_device *d)
{
    for (uint32_t i = 0; i < d->n_domains; i++) {
        const struct bl_domain *o = &d->domain[i];
        add(p, "  node %-4u %u core%s, %s, ", o->node, o->n_cores, bl_plural(o->n_cores),
            BL_SIZE(o->mem_bytes));
        add_rate(p, o->read_measured_bps, o->read_rated_bps);
        if (o->far_bps > 0)
            add(p, ", %.4g from another node", o->far_bps * 1e-9);
        end(p);
    }
}

static void show_threads(struct page *p, const struct bl_machine_device *d)
{
    for (uint32_t i = 0; i < d->n_read_rates; i++) {
        add(p, "  threads   %4u read %8.4g GB/s", d->read_rate[i].threads,
            d->read_rate[i].bps * 1e-9);
        if (d->n_domains > 1)
            add(p, " from %u node%s", d->read_rate[i].domains, bl_plural(d->read_rate[i].domains));
        for (uint32_t b = 0; b < d->n_barriers; b++)
            if (d->barrier[b].threads == d->read_rate[i].threads)
                add(p, ", meet in %.4g us", d->barrier[b].ns * 1e-3);
        end(p);
    }
}

static void show_fixed(struct page *p, const struct bl_machine_device *d)
{
    if (d->launch_ns > 0)
        add(p, "  fixed     launch %.4g us", d->launch_ns * 1e-3);
    if (d->layer_ns > 0)
        add(p, "%s layer %.4g us, step %.4g us", p->n ? "," : "  fixed    ", d->layer_ns * 1e-3,
            d->step_ns * 1e-3);
    end(p);
    const struct {
        const char *name;
        double macs_per_s;
    } rated[] = {{"f16", d->f16_macs_per_s}, {"f32", d->f32_macs_per_s}, {"i8", d->i8_macs_per_s}};
    for (unsigned i = 0; i < BL_COUNT(rated); i++)
        if (rated[i].macs_per_s > 0)
            add(p, "%s %s %.4g T",
                p->n ? "," : "  rated     multiply-adds per second:", rated[i].name,
                rated[i].macs_per_s * 1e-12);
    end(p);
}

static void show_rates(struct page *p, const struct bl_machine_device *d)
{
    bool any = false;
    for (unsigned t = 0; t < BL_N_DTYPES; t++) {
        const struct bl_type_rate *r = &d->rate[t];
        if (!(r->decode_bps > 0))
            continue;
        if (!any) {
            add(p, "  %-10s%12s %39s", "type", "decode GB/s", "GMAC/s with 8, 64, 512 tokens");
            end(p);
        }
        any = true;
        add(p, "  %-10s%12.4g %12.4g %12.4g %13.4g", bl_dtypes[t].name, r->decode_bps * 1e-9,
            r->macs_per_s[0] * 1e-9, r->macs_per_s[1] * 1e-9, r->macs_per_s[2] * 1e-9);
        end(p);
    }
}

static void show_steps(struct page *p, const struct bl_machine_device *d)
{
    static const char *const tokens[BL_N_STEP_TEAMS] = {"with few tokens", "with many"};
    for (unsigned i = 0; i < BL_N_STEP_TEAMS; i++) {
        const struct bl_step_rate *r = &d->step_rate[i];
        if (!(r->moved_bps > 0))
            continue;
        add(p, "  %-15s states %.3g G/s, moves %.4g GB/s", tokens[i], r->state_values_per_s * 1e-9,
            r->moved_bps * 1e-9);
        if (r->arranged_per_s > 0)
            add(p, ", arranges %.3g G/s", r->arranged_per_s * 1e-9);
        end(p);
    }
}

static void show_kv(struct page *p, const struct bl_machine_device *d)
{
    for (unsigned i = 0; i < BL_N_STEP_TEAMS * BL_N_DTYPES; i++) {
        const struct bl_kv_rate *r = &d->kv_rate[i / BL_N_DTYPES][i % BL_N_DTYPES];
        if (!(r->macs_per_s > 0))
            continue;
        add(p, "  attention to %s, %s tokens: %.3g G scores, %.4g GMAC, %.4g G values /s",
            bl_dtypes[i % BL_N_DTYPES].name, bl_step_team_names[i / BL_N_DTYPES],
            r->scores_per_s * 1e-9, r->macs_per_s * 1e-9, r->values_per_s * 1e-9);
        if (r->latent_macs_per_s > 0)
            add(p, "; latent %.4g GMAC/s", r->latent_macs_per_s * 1e-9);
        end(p);
    }
}

/* A stable id is followed by the number that tools count devices by. */
static void add_id(struct page *p, const struct bl_machine *m, const struct bl_machine_device *d)
{
    uint32_t n = 0;
    char ordinal[16];
    for (const struct bl_machine_device *o = m->device; o < d; o++)
        n += o->kind == d->kind;
    snprintf(ordinal, sizeof ordinal, "%s%u", bl_kind_words[d->kind], n);
    add(p, "%s", d->id);
    if (strcmp(ordinal, d->id))
        add(p, " (%s)", ordinal);
}

static void show_device(struct page *p, const struct bl_machine *m,
                        const struct bl_machine_device *d)
{
    add_id(p, m, d);
    add(p, ": %s, %s", d->name, bl_kind_words[d->kind]);
    if (d->cores)
        add(p, ", %u core%s, %u thread%s, %s", d->cores, bl_plural(d->cores), d->threads,
            bl_plural(d->threads), bl_isa_words[d->isa]);
    if (d->kind != BL_KIND_CPU)
        add(p, ", %s%s%s", bl_memory_words[d->mem_kind], d->integrated ? ", integrated" : "",
            d->described ? ", described" : "");
    end(p);
    if (d->kernels[0])
        add(p, "  kernels   %s", d->kernels);
    end(p);
    show_memory(p, m, d);
    show_domains(p, d);
    show_threads(p, d);
    show_fixed(p, d);
    show_steps(p, d);
    show_kv(p, d);
    show_rates(p, d);
}

static void show_link(struct page *p, const struct bl_machine *m, uint32_t i)
{
    const struct bl_link *l = &m->link[i];
    add(p, "link%u: %s to %s", i, m->device[l->a].id, m->device[l->b].id);
    if (l->via != BL_NO_DEVICE)
        add(p, " via %s", m->hub[l->via].id);
    add(p, "%s%s, ", l->name[0] ? ", " : "", l->name);
    add_rate(p, l->ab_measured_bps, l->ab_rated_bps);
    if (bl_link_bps(l, l->a) != bl_link_bps(l, l->b)) {
        add(p, "; back ");
        add_rate(p, l->ba_measured_bps, l->ba_rated_bps);
    }
    if (l->latency_ns > 0)
        add(p, ", %.4g us", l->latency_ns * 1e-3);
    end(p);
}

void bl_machine_table(const struct bl_machine *m, void (*line)(void *arg, const char *text),
                      void *arg)
{
    struct page p = {.line = line, .arg = arg};
    add(&p, "%s", m->name);
    end(&p);
    for (uint32_t d = 0; d < m->n_devices; d++)
        show_device(&p, m, &m->device[d]);
    for (uint32_t i = 0; i < m->n_links; i++)
        show_link(&p, m, i);
}
