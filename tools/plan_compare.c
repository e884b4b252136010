/* SPDX-License-Identifier: MIT */
/* plan_compare.c — two placements of a model side by side: speeds, memory, what moved. */
#include "plan_verb.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void print_speed(FILE *f, const char *what, double a, double b)
{
    fprintf(f, "%-24s %12.1f %12.1f %+10.1f %%\n", what, a, b, 100 * (b / a - 1));
}

static void print_tokens(FILE *f, const char *what, uint64_t a, uint64_t b)
{
    if (a != b)
        fprintf(f, "%-24s %12" PRIu64 " %12" PRIu64 "\n", what, a, b);
}

static void print_devices(FILE *f, const struct bl_placement *before,
                          const struct bl_placement *after)
{
    const double gib = 1.0 / (1 << 30);
    struct bl_placement_device a, b;
    const uint32_t n = bl_placement_device(before, 0, &a);

    for (uint32_t i = 0; i < n && i < bl_placement_device(after, i, &b); i++) {
        bl_placement_device(before, i, &a);
        fprintf(f, "%-24s %12.2f %12.2f %+10.2f   of %.2f", a.id, (double)a.planned_bytes * gib,
                (double)b.planned_bytes * gib,
                ((double)b.planned_bytes - (double)a.planned_bytes) * gib,
                (double)a.budget_bytes * gib);
        if (a.budget_bytes != b.budget_bytes)
            fprintf(f, ", then %.2f", (double)b.budget_bytes * gib);
        fputc('\n', f);
    }
}

/* Where a part of layer l is; NULL: the layer has none. */
static const char *place_of(const struct bl_placement *p, uint32_t l, bool experts)
{
    struct bl_placement_group g;

    for (uint32_t i = 0; i < bl_placement_group(p, i, &g); i++)
        if (g.first <= l && l <= g.last)
            return experts ? g.experts : g.attention;
    return NULL;
}

static bool same(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

/* Runs of layers that went the same way. */
static uint32_t print_moves(FILE *f, const struct bl_placement *before,
                            const struct bl_placement *after, uint32_t n_layers, bool experts)
{
    uint32_t n = 0;

    for (uint32_t l = 0, e; l < n_layers; l = e) {
        const char *a = place_of(before, l, experts), *b = place_of(after, l, experts);
        for (e = l + 1; e < n_layers && same(place_of(before, e, experts), a) &&
                        same(place_of(after, e, experts), b);
             e++)
            ;
        if (same(a, b) || !a || !b)
            continue;
        fprintf(f, "%s of layer%s %" PRIu32, experts ? "experts" : "attention, dense part",
                e > l + 1 ? "s" : "", l);
        if (e > l + 1)
            fprintf(f, "-%" PRIu32, e - 1);
        fprintf(f, ": from %s to %s\n", a, b);
        n++;
    }
    return n;
}

void bl_plan_compare_print(FILE *f, const struct bl_placement *before,
                           const struct bl_placement *after)
{
    struct bl_placement_info a, b;

    bl_placement_describe(before, &a);
    bl_placement_describe(after, &b);
    fprintf(f, "%s (%s) on %s\n\n", a.model, a.arch, a.machine);
    fprintf(f, "%-24s %12s %12s %12s\n", "", "before", "after", "change");
    print_speed(f, "decode, tokens/s", a.decode.tok_per_s, b.decode.tok_per_s);
    print_speed(f, "prefill, tokens/s", a.prefill.tok_per_s, b.prefill.tok_per_s);
    print_tokens(f, "context, tokens", a.ctx_tokens, b.ctx_tokens);
    print_tokens(f, "step, tokens", a.ubatch_tokens, b.ubatch_tokens);
    fprintf(f, "\n%-24s %12s %12s %12s\n", "planned, GiB", "before", "after", "change");
    print_devices(f, before, after);
    fputc('\n', f);
    const uint32_t moves = print_moves(f, before, after, a.n_layers, false) +
                           print_moves(f, before, after, a.n_layers, true);
    if (!moves)
        fprintf(f, "every layer stays where it was\n");
}
