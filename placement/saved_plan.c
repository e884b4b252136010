/* SPDX-License-Identifier: MIT */
/* A plan file as it stands: what it says of itself, without its model and its machine. */
#include "plan_file.h"

#include "mem.h"

#include <stdio.h>
#include <stdlib.h>

struct bl_saved_plan {
    struct bl_plan_file file;
};

static enum bl_status keep(struct bl_saved_plan **out, struct bl_plan_file *f)
{
    struct bl_saved_plan *s = bl_calloc(1, sizeof *s);

    if (!s) {
        bl_plan_file_finish(f);
        return bl_fail(BL_ENOMEM, "out of memory for a plan");
    }
    s->file = *f;
    *out = s;
    return BL_OK;
}

enum bl_status bl_saved_plan_load(struct bl_saved_plan **out, const char *plan_file)
{
    struct bl_plan_file f;

    BL_TRY(bl_plan_file_load(&f, plan_file));
    return keep(out, &f);
}

enum bl_status bl_saved_plan_parse(struct bl_saved_plan **out, const char *what, const char *text,
                                   size_t n_bytes)
{
    struct bl_plan_file f;

    BL_TRY(bl_plan_file_parse(&f, what, text, n_bytes));
    return keep(out, &f);
}

void bl_saved_plan_close(struct bl_saved_plan *s)
{
    if (!s)
        return;
    bl_plan_file_finish(&s->file);
    free(s);
}

void bl_saved_plan_describe(const struct bl_saved_plan *s, struct bl_placement_info *out)
{
    const struct bl_plan_file *f = &s->file;
    const struct bl_plan_file_settings *o = &f->settings;

    *out = (struct bl_placement_info){.model = f->model.name[0] ? f->model.name : f->model.arch,
                                      .arch = f->model.arch,
                                      .machine = f->machine_name,
                                      .n_layers = f->model.n_layers,
                                      .ctx_tokens = o->ctx_tokens,
                                      .asked_ctx_tokens =
                                          o->asked_ctx_tokens ? o->asked_ctx_tokens : o->ctx_tokens,
                                      .depth_tokens = o->depth_tokens,
                                      .batch_tokens = o->batch_tokens,
                                      .ubatch_tokens = o->ubatch_tokens,
                                      .decode = f->decode,
                                      .prefill = f->prefill,
                                      .threads = o->threads,
                                      .threads_prefill = o->threads_prefill,
                                      .type_k = o->type_k,
                                      .type_v = o->type_v};
}

static uint64_t sum_of(const struct bl_plan_file *f, const char *device, const char *purpose)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < f->n_memory; i++) {
        const struct bl_plan_file_memory *m = &f->memory[i];
        if (!strcmp(m->device, device) && (!purpose || !strcmp(m->purpose, purpose)) &&
            !bl_size_add(sum, m->planned_bytes, &sum))
            return UINT64_MAX;
    }
    return sum;
}

uint32_t bl_saved_plan_device(const struct bl_saved_plan *s, uint32_t i,
                              struct bl_placement_device *out)
{
    const struct bl_plan_file *f = &s->file;

    if (i < f->n_devices) {
        const struct bl_plan_file_device *d = &f->device[i];
        const uint64_t gone = d->kind == BL_KIND_GPU ? f->settings.reserve_bytes : 0;
        *out = (struct bl_placement_device){
            .id = d->id,
            .name = d->name,
            .usable_bytes = d->usable_bytes,
            .budget_bytes = d->usable_bytes > gone ? d->usable_bytes - gone : 0,
            .planned_bytes = sum_of(f, d->id, NULL),
            .mem_bytes = d->mem_bytes,
            .driver_bytes = sum_of(f, d->id, "driver"),
            .shares =
                d->kind != BL_KIND_CPU && d->mem_kind == BL_MEMORY_UNIFIED ? f->device[0].id : NULL,
            .cpu = d->kind == BL_KIND_CPU};
    }
    return f->n_devices;
}

uint32_t bl_saved_plan_place(const struct bl_saved_plan *s, uint32_t i, struct bl_saved_place *out)
{
    const struct bl_plan_file *f = &s->file;

    if (i < f->n_places) {
        const struct bl_plan_file_place *p = &f->place[i];
        const bool whole = p->part == BL_PART_EMBED || p->part == BL_PART_HEAD;
        *out = (struct bl_saved_place){.part = bl_part_name((enum bl_part)p->part),
                                       .device = p->device,
                                       .first = whole ? -1 : (int32_t)p->first,
                                       .last = whole ? -1 : (int32_t)p->last,
                                       .expert_first = p->some ? (int32_t)p->expert_first : -1,
                                       .expert_last = p->some ? (int32_t)p->expert_last : -1};
    }
    return f->n_places;
}

uint32_t bl_saved_plan_memory(const struct bl_saved_plan *s, uint32_t i, struct bl_memory_line *out)
{
    const struct bl_plan_file *f = &s->file;

    if (i < f->n_memory)
        *out = (struct bl_memory_line){.device = f->memory[i].device,
                                       .purpose = f->memory[i].purpose,
                                       .planned_bytes = f->memory[i].planned_bytes};
    return f->n_memory;
}
