/* SPDX-License-Identifier: MIT */
/* trace.c — a placement's predicted steps as a trace, a process each. */
#include "machine_file.h"
#include "placement.h"
#include "timeline.h"

#include <math.h>
#include <stdio.h>

static enum bl_status put_step(struct bl_trace_out *t, const struct bl_placement *p,
                               const char *what, uint32_t n_tok)
{
    const struct bl_choice *c = &p->choice;
    const struct bl_timeline_options opt = {.depth_tokens = c->depth_tokens,
                                            .stream_from_tok = c->stream_from_tok,
                                            .keep_events = true};
    struct bl_timeline line = {0};
    char name[160];

    BL_TRY(bl_timeline_predict(&line, p->model, &c->plan, &p->machine, n_tok, &opt));
    enum bl_status st = BL_OK;
    if (!isfinite(line.ns))
        st = bl_fail(
            BL_EINVAL,
            "nothing is known of this machine's speed, so there is no timeline; 'ballast probe -o "
            "FILE' measures it for --machine FILE");
    snprintf(name, sizeof name, "%s: %u token%s after %llu, predicted", what, n_tok,
             n_tok == 1 ? "" : "s", (unsigned long long)c->depth_tokens);
    if (!st)
        bl_trace_out_process(t, name);
    for (uint32_t i = 0; !st && i < line.n_events; i++)
        bl_trace_out_event(t, &line.event[i]);
    bl_timeline_finish(&line);
    return st;
}

enum bl_status bl_placement_trace(const struct bl_placement *p, char **text, size_t *n_bytes)
{
    struct bl_trace_out t;

    bl_trace_out_begin(&t, &p->machine);
    enum bl_status st = put_step(&t, p, "decode", 1);
    if (!st)
        st = put_step(&t, p, "prefill", p->choice.plan.ubatch_tokens);
    if (!st)
        return bl_trace_out_end(&t, text, n_bytes);
    free(t.json.text);
    return st;
}
