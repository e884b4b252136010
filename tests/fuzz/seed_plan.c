/* SPDX-License-Identifier: MIT */
/* The seed corpus of fuzz_plan: the plan that is made for its model and machine, whole, without its
 * derived half, with experts divided, and cut off. */
#include "ballast.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char divided[] = "{\"layer\": 2, \"experts\": \"5-9\", \"device\": \"cpu0\"}, "
                              "{\"layers\": 3, \"part\": \"ffn\", \"device\": \"gpu0\"}, ";

static int write_seed(const char *dir, const char *name, const char *a, size_t n_a, const char *b,
                      const char *c)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/plan-%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f)
        return 0;
    const int good = fwrite(a, 1, n_a, f) == n_a && fputs(b, f) >= 0 && fputs(c, f) >= 0;
    return fclose(f) == 0 && good;
}

static int write_seeds(const char *dir, const char *text)
{
    const char *list = strstr(text, "\"placement\": ["),
               *derived = strstr(text, ",\n  \"derived\"");
    if (!list || !derived)
        return 0;
    list += strlen("\"placement\": [");
    return write_seed(dir, "whole", text, strlen(text), "", "") &&
           write_seed(dir, "bare", text, (size_t)(derived - text), "}", "") &&
           write_seed(dir, "divided", text, (size_t)(list - text), divided, list) &&
           write_seed(dir, "cut", text, (size_t)(list - text), "", "");
}

int main(int argc, char **argv)
{
    const struct bl_synth_options so = {.shape = "gpt-oss-20b", .layers = 4, .no_data = true};
    const struct bl_options opt = {.machine_file = "2x-rtx-pro-4000"};
    struct bl_placement *p = NULL;
    struct bl_synth *s = NULL;
    char *text = NULL;
    size_t n;

    const int good = argc == 2 && !bl_synth_open(&s, &so) &&
                     !bl_placement_make(&p, bl_synth_gguf(s), &opt, NULL) &&
                     !bl_placement_json(p, &text, &n) && write_seeds(argv[1], text);
    free(text);
    bl_placement_close(p);
    bl_synth_close(s);
    return good ? 0 : 1;
}
