/* SPDX-License-Identifier: MIT */
/* Any plan file, held against one model and one machine.
 *
 * Input: the file.
 */
#include <stdio.h>
#include <stdlib.h>

#include "machine_file.h"
#include "plan_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "broken promise: %s: %s\n", what, bl_error());
    abort();
}

struct rig {
    struct bl_synth *synth;
    struct bl_model *model;
    struct bl_machine machine;
};

/* Once: it is the same for every input. Left to the end of the process. */
static const struct rig *the_rig(void)
{
    static struct rig r;
    const struct bl_synth_options so = {.shape = "gpt-oss-20b", .layers = 4, .no_data = true};

    if (r.synth)
        return &r;
    must(bl_synth_open(&r.synth, &so) == BL_OK, "a shape");
    must(bl_model_open(&r.model, bl_synth_gguf(r.synth), NULL) == BL_OK, "its model");
    must(bl_machine_load(&r.machine, "2x-rtx-pro-4000") == BL_OK, "a machine");
    return &r;
}

static void check_failure(enum bl_status st)
{
    must(st == BL_EINVAL || st == BL_ENOFIT, "a plan file fails in two ways");
    must(!strpbrk(bl_error(), "\n\r"), "a message is one line");
}

static bool apply(struct bl_plan *p, const struct bl_plan_file *f)
{
    const struct rig *r = the_rig();
    struct bl_options opt = {.ctx_tokens = 0};
    enum bl_status st = bl_plan_file_options(f, &opt);

    if (!st)
        st = bl_plan_file_apply(p, f, r->model, &r->machine, &opt, f->settings.reserve_bytes);
    if (st)
        check_failure(st);
    return st == BL_OK;
}

static char *text_of(const struct bl_plan *p, const struct bl_plan_file_settings *s, size_t *n)
{
    const struct rig *r = the_rig();
    struct bl_json_out o = {0};
    struct bl_plan_file f;

    must(bl_plan_file_make(&f, p, r->model, &r->machine, s) == BL_OK, "a plan can be written");
    bl_json_open(&o, NULL, '{', false);
    bl_plan_file_put(&o, &f);
    bl_json_close(&o, '}');
    must(bl_json_out_end(&o) == BL_OK, "a plan is written");
    bl_plan_file_finish(&f);
    *n = o.n;
    return o.text;
}

/* Every part is on a device, and written and read again the plan is the same. */
static void round_trip(const struct bl_plan *p, const struct bl_plan_file_settings *s)
{
    const struct rig *r = the_rig();
    struct bl_plan_file f;
    struct bl_plan again;
    size_t n, n_twice;
    char *text = text_of(p, s, &n), *twice;

    must(bl_plan_check(p, r->model, &r->machine) == BL_OK, "a plan is whole");
    must(bl_plan_file_parse(&f, "again", text, n) == BL_OK, "what was written can be read");
    must(apply(&again, &f), "and applied");
    twice = text_of(&again, &f.settings, &n_twice);
    must(n == n_twice && !memcmp(text, twice, n), "the same as before");
    bl_plan_finish(&again);
    bl_plan_file_finish(&f);
    free(text);
    free(twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct bl_plan_file f;
    struct bl_plan p;
    const enum bl_status st = bl_plan_file_parse(&f, "fuzz", (const char *)data, n);

    if (st) {
        check_failure(st);
        return 0;
    }
    if (apply(&p, &f)) {
        round_trip(&p, &f.settings);
        bl_plan_finish(&p);
    }
    bl_plan_file_finish(&f);
    return 0;
}
