/* SPDX-License-Identifier: MIT */
/* plan_flags.c — a plan as command lines of other programs, to be pasted into a shell. */
#include "plan_verb.h"

#include <string.h>

/* Characters that mean something to a shell. */
static bool needs_quotes(const char *s)
{
    return !*s || s[strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                              "_-+=./,:@%")];
}

static void print_word(FILE *f, const char *s)
{
    if (!needs_quotes(s)) {
        fputs(s, f);
        return;
    }
    fputc('\'', f);
    for (; *s; s++)
        if (*s == '\'')
            fputs("'\\''", f);
        else
            fputc(*s, f);
    fputc('\'', f);
}

static void print_peer(FILE *f, const char *name, const char *model, const struct bl_peer_flags *p)
{
    fprintf(f, "# %s%s\n", name, p->n_notes ? "; what its flags cannot say:" : "");
    for (uint32_t i = 0; i < p->n_notes; i++)
        fprintf(f, "#   %s\n", p->note[i]);
    fprintf(f, "%s%sllama-server -m ", p->environment, p->environment[0] ? " " : "");
    print_word(f, model);
    for (uint32_t i = 0; i < p->n_args; i++) {
        const bool flag = p->arg[i][0] == '-';
        /* what concerns devices stands on lines of its own */
        const bool line = !strcmp(p->arg[i], "-ngl") || !strcmp(p->arg[i], "-ot");
        fputs(flag && line ? " \\\n  " : " ", f);
        print_word(f, p->arg[i]);
    }
    fputc('\n', f);
}

int bl_plan_flags_print(const struct bl_report *r, FILE *f, const struct bl_placement *p,
                        const char *model)
{
    static const enum bl_peer peers[] = {BL_PEER_LLAMACPP, BL_PEER_IK};

    for (size_t i = 0; i < sizeof peers / sizeof peers[0]; i++) {
        struct bl_peer_flags flags = {0};
        const enum bl_status st = bl_placement_flags(p, peers[i], &flags);
        if (st)
            return bl_report_status(r, BL_STAGE_RUN, st);
        fputs(i ? "\n" : "", f);
        print_peer(f, bl_peer_name(peers[i]), model ? model : "model.gguf", &flags);
        bl_peer_flags_finish(&flags);
    }
    return BL_EXIT_OK;
}
