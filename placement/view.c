/* SPDX-License-Identifier: MIT */
/* view.c — a placement's weights by part, and its predicted steps event by event. */
#include "mem.h"
#include "placement.h"
#include "timeline.h"

#include <stdlib.h>

/* ---- weights by part ---- */

/* Sums by [device][part]; a tensor that plays several roles counts once on a device, at the first.
 * bytes: [n_tensors] */
static void sum_parts(const struct bl_placement *p, uint64_t *bytes, uint64_t *sum)
{
    for (uint16_t d = 0; d < p->machine.n_devices; d++) {
        bl_plan_tensor_bytes(&p->choice.plan, p->model, d, bytes);
        for (uint32_t i = 0; i < p->model->n_weights; i++) {
            const struct bl_weight *w = &p->model->weight[i];
            sum[(size_t)d * BL_N_PARTS + w->part] += bytes[w->tensor];
            bytes[w->tensor] = 0;
        }
    }
}

enum bl_status bl_placement_parts(const struct bl_placement *p, struct bl_part_bytes **out,
                                  uint32_t *n)
{
    const size_t most = (size_t)p->machine.n_devices * BL_N_PARTS;
    uint64_t *bytes = bl_calloc((size_t)bl_gguf_n_tensors(p->gguf) + 1, sizeof *bytes);
    uint64_t *sum = bl_calloc(most, sizeof *sum);
    struct bl_part_bytes *parts = bl_calloc(most, sizeof *parts);
    enum bl_status st = BL_OK;

    *n = 0;
    if (!bytes || !sum || !parts)
        st = bl_fail(BL_ENOMEM, "out of memory for the parts of a placement");
    else
        sum_parts(p, bytes, sum);
    for (size_t i = 0; !st && i < most; i++)
        if (sum[i])
            parts[(*n)++] =
                (struct bl_part_bytes){.device = p->machine.device[i / BL_N_PARTS].id,
                                       .part = bl_part_name((enum bl_part)(i % BL_N_PARTS)),
                                       .bytes = sum[i]};
    free(bytes);
    free(sum);
    if (st) {
        free(parts);
        return st;
    }
    *out = parts;
    return BL_OK;
}

/* ---- steps ---- */

static const char *what(const struct bl_event *e)
{
    return e->kind == BL_EVENT_COPY     ? "copy"
           : e->kind == BL_EVENT_STREAM ? "experts sent"
           : e->kind == BL_EVENT_STAGE  ? "experts staged"
                                        : bl_part_name((enum bl_part)e->part);
}

static void fill_step(const struct bl_placement *p, const struct bl_timeline *t,
                      struct bl_step_event *event, uint32_t *n)
{
    const struct bl_machine_device *device = p->machine.device;

    for (uint32_t i = 0; i < t->n_events; i++) {
        const struct bl_event *e = &t->event[i];
        event[(*n)++] = (struct bl_step_event){.device = device[e->device].id,
                                               .from = device[e->from].id,
                                               .to = device[e->to].id,
                                               .what = what(e),
                                               .layer = e->layer,
                                               .begin_ns = e->begin_ns,
                                               .end_ns = e->end_ns};
    }
}

enum bl_status bl_placement_step(const struct bl_placement *p, uint32_t n_tok,
                                 struct bl_predicted_step *out)
{
    const struct bl_choice *c = &p->choice;
    const struct bl_timeline_options opt = {.depth_tokens = c->depth_tokens,
                                            .stream_from_tok = c->stream_from_tok,
                                            .keep_events = true};
    struct bl_timeline t = {0};

    if (!n_tok || n_tok > c->plan.ubatch_tokens)
        return bl_fail(BL_EINVAL, "a step of %u tokens: the plan's have 1 to %u", n_tok,
                       c->plan.ubatch_tokens);
    BL_TRY(bl_timeline_predict(&t, p->model, &c->plan, &p->machine, n_tok, &opt));
    *out = (struct bl_predicted_step){.n_tok = bl_plan_bucket(&c->plan, n_tok, 1).n_tok,
                                      .depth_tokens = c->depth_tokens,
                                      .ns = t.ns};
    out->event = bl_calloc((size_t)t.n_events + 1, sizeof *out->event);
    if (out->event)
        fill_step(p, &t, out->event, &out->n_events);
    bl_timeline_finish(&t);
    return out->event ? BL_OK : bl_fail(BL_ENOMEM, "out of memory for a predicted step");
}

void bl_predicted_step_finish(struct bl_predicted_step *s)
{
    free(s->event);
    *s = (struct bl_predicted_step){0};
}
