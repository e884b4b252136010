/* SPDX-License-Identifier: MIT */
/* plan_table.c — a plan for people. */
#include "plan_verb.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const double gib = 1.0 / (1 << 30);

static void print_speed(FILE *f, const char *what, const struct bl_speed *s)
{
    fprintf(f, "  %-8s %8.1f tokens/s, between %.1f and %.1f in two cases of three\n", what,
            s->tok_per_s, s->tok_per_s * exp(-s->sd), s->tok_per_s * exp(s->sd));
}

static void print_speeds(FILE *f, const struct bl_placement_info *i)
{
    if (!(i->decode.tok_per_s > 0)) {
        fprintf(f,
                "\nNothing is known of this machine's speed; 'ballast probe -o FILE' measures it "
                "for --machine FILE\n");
        return;
    }
    fprintf(f, "\nPredicted at a depth of %" PRIu64 " tokens\n", i->depth_tokens);
    print_speed(f, "decode", &i->decode);
    print_speed(f, "prefill", &i->prefill);
    if (i->stream_from_tok)
        fprintf(
            f,
            "  prefill is with experts in RAM sent to the cards, in steps of %u tokens or more\n",
            i->stream_from_tok);
}

static void print_groups(FILE *f, const struct bl_placement *p)
{
    struct bl_placement_group g;

    fprintf(f, "\n%-9s %-16s experts\n", "layers", "attention, dense");
    for (uint32_t i = 0; i < bl_placement_group(p, i, &g); i++) {
        char layers[32];
        snprintf(layers, sizeof layers, g.first < g.last ? "%u-%u" : "%u", g.first, g.last);
        fprintf(f, "%-9s %-16s %-16s %s\n", layers, g.attention, g.experts ? g.experts : "-",
                g.experts ? g.why_experts : g.why_attention);
        if (g.experts)
            fprintf(f, "%-9s %-16s %-16s %s\n", "", "", "", g.why_attention);
    }
}

static uint64_t bytes_for(const struct bl_placement *p, const char *device, const char *purpose)
{
    struct bl_memory_line l;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < bl_placement_memory(p, i, &l); i++)
        if (!strcmp(l.device, device) && (!purpose || !strcmp(l.purpose, purpose)))
            sum += l.planned_bytes;
    return sum;
}

/* In GiB, unless that would look like nothing. */
static void print_size(FILE *f, uint64_t bytes)
{
    const double shown = 0.005;

    if (!bytes || (double)bytes * gib >= shown)
        fprintf(f, " %10.2f", (double)bytes * gib);
    else
        fprintf(f, " %10s", bl_size_text(bytes, (char[BL_SIZE_TEXT]){0}));
}

static void print_memory(FILE *f, const struct bl_placement *p)
{
    static const char *const purposes[] = {"weights", "state", "compute"};
    struct bl_placement_device d;

    fprintf(f, "\n%-16s %10s %10s %10s %10s %10s %10s   GiB\n", "device", "weights", "state",
            "compute", "other", "planned", "of");
    for (uint32_t i = 0; i < bl_placement_device(p, i, &d); i++) {
        uint64_t rest = d.planned_bytes;
        fprintf(f, "%-16s", d.id);
        for (size_t k = 0; k < COUNT(purposes); k++) {
            const uint64_t bytes = bytes_for(p, d.id, purposes[k]);
            print_size(f, bytes);
            rest -= bytes;
        }
        print_size(f, rest);
        print_size(f, d.planned_bytes);
        print_size(f, d.budget_bytes);
        fputc('\n', f);
    }
}

void bl_plan_table_print(FILE *f, const struct bl_placement *p)
{
    struct bl_placement_info i;
    const char *note;

    bl_placement_describe(p, &i);
    fprintf(f, "%s (%s) on %s\n", i.model, i.arch, i.machine);
    fprintf(f, "context %" PRIu64 " tokens, steps of at most %u\n", i.ctx_tokens, i.ubatch_tokens);
    print_groups(f, p);
    print_memory(f, p);
    fputc('\n', f);
    for (uint32_t n = 0; n < bl_placement_note(p, n, &note); n++)
        fprintf(f, "%s\n", note);
    print_speeds(f, &i);
}

int bl_plan_table_explain(const struct bl_report *r, FILE *f, const struct bl_placement *p,
                          const char *name)
{
    struct bl_placement_tensor t;

    if (bl_placement_tensor(p, name, &t)) {
        bl_report_error(r, "--explain: %s", bl_error());
        return BL_EXIT_USAGE;
    }
    fprintf(f, "%s: %" PRIu64 " bytes, %s", name, t.bytes, t.part);
    if (t.layer >= 0)
        fprintf(f, " of layer %d", t.layer);
    fprintf(f, ", on %s\n%s\n", t.device, t.why);
    return BL_EXIT_OK;
}
