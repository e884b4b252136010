/* SPDX-License-Identifier: MIT */
/* plan_peers.c — a plan's speeds beside those that other programs would reach. */
#include "plan_verb.h"

#include <math.h>

static void print_speed(FILE *f, const struct bl_speed *s)
{
    if (s->tok_per_s > 0 && isfinite(s->tok_per_s))
        fprintf(f, " %9.1f (%.1f-%.1f)", s->tok_per_s, s->tok_per_s * exp(-s->sd),
                s->tok_per_s * exp(s->sd));
    else
        fprintf(f, " %9s", "not known");
}

static void print_row(FILE *f, const char *name, const struct bl_speed *decode,
                      const struct bl_speed *prefill)
{
    fprintf(f, "  %-13s decode", name);
    print_speed(f, decode);
    fprintf(f, ", prefill");
    print_speed(f, prefill);
    fputc('\n', f);
}

void bl_plan_peers_print(FILE *f, const struct bl_placement *p)
{
    static const enum bl_peer peers[] = {BL_PEER_LLAMACPP, BL_PEER_IK};
    struct bl_placement_info i;

    bl_placement_describe(p, &i);
    fprintf(f, "\nOther programs, each with the nearest placement that its flags can say, in "
               "tokens/s\n");
    print_row(f, "ballast", &i.decode, &i.prefill);
    for (size_t k = 0; k < sizeof peers / sizeof peers[0]; k++) {
        struct bl_peer_speed s;
        if (bl_placement_peer(p, peers[k], &s))
            fprintf(f, "  %s\n", bl_error());
        else
            print_row(f, bl_peer_name(peers[k]), &s.decode, &s.prefill);
    }
}
