/* SPDX-License-Identifier: MIT */
/* What a session keeps, kind by kind: the planner's own sizes, before there is a machine. */
#include "planner.h"

#include "mem.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const law_name[] = {[BL_PER_TOKEN] = "per token",
                                       [BL_WINDOW] = "window",
                                       [BL_PER_GROUP] = "per group",
                                       [BL_FIXED] = "fixed"};

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return bl_size_mul(a, b, &product) ? product : UINT64_MAX;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return bl_size_add(a, b, &sum) ? sum : UINT64_MAX;
}

/* One layer's. */
static struct bl_state_line describe(const struct bl_state_desc *d, const struct bl_shape *s)
{
    const char *dot = strrchr(d->name, '.');
    uint32_t rows = bl_state_rows(d, s), slack = bl_state_slack_rows(d, s);
    struct bl_state_line l = {.law = law_name[d->law],
                              .type_name = bl_dtypes[d->type].name,
                              .span_tokens = d->law == BL_WINDOW      ? d->window
                                             : d->law == BL_PER_GROUP ? d->group
                                                                      : 1,
                              .layers = 1,
                              .row_bytes = bl_dtype_row_bytes(d->type, d->row_elems),
                              .rows = rows - slack,
                              .slack_rows = slack};
    l.bytes = times(l.rows, l.row_bytes);
    l.slack_bytes = times(l.slack_rows, l.row_bytes);
    snprintf(l.name, sizeof l.name, "%s", dot ? dot + 1 : d->name);
    return l;
}

static bool same_kind(const struct bl_state_line *a, const struct bl_state_line *b)
{
    return !strcmp(a->name, b->name) && a->law == b->law && a->type_name == b->type_name &&
           a->span_tokens == b->span_tokens && a->row_bytes == b->row_bytes && a->rows == b->rows &&
           a->slack_rows == b->slack_rows;
}

static void add(struct bl_state_info *info, const struct bl_state_line *l)
{
    uint32_t i = 0;

    while (i < info->n_lines && !same_kind(&info->line[i], l))
        i++;
    if (i == info->n_lines) {
        info->line[info->n_lines++] = *l;
    } else {
        struct bl_state_line *to = &info->line[i];
        to->layers++;
        to->bytes = plus(to->bytes, l->bytes);
        to->slack_bytes = plus(to->slack_bytes, l->slack_bytes);
    }
    info->bytes = plus(info->bytes, l->bytes);
    info->slack_bytes = plus(info->slack_bytes, l->slack_bytes);
}

static enum bl_status sum_up(struct bl_state_info *out, const struct bl_model *m,
                             const struct bl_options *opt)
{
    struct bl_options one = *opt;
    struct bl_plan p = {0};

    one.max_sessions = 1;
    BL_TRY(bl_plan_size_steps(&p, m, &one));
    struct bl_shape s = bl_plan_bucket(&p, p.ubatch_tokens, 1);
    struct bl_state_info info = {.ctx_tokens = p.ctx_tokens, .ubatch_tokens = p.ubatch_tokens};
    info.line = bl_calloc(m->n_states + 1, sizeof *info.line);
    if (!info.line)
        return bl_fail(BL_ENOMEM, "out of memory for %u kinds of state", m->n_states);
    for (uint32_t i = 0; i < m->n_states; i++) {
        struct bl_state_line l = describe(&m->state[i], &s);
        add(&info, &l);
    }
    *out = info;
    return BL_OK;
}

enum bl_status bl_state_info_make(struct bl_state_info *out, const struct bl_gguf *g,
                                  const struct bl_options *opt)
{
    static const struct bl_options defaults;
    struct bl_model_options mo;
    struct bl_model *m = NULL;

    opt = opt ? opt : &defaults;
    BL_TRY(bl_model_choose(&mo, opt));
    BL_TRY(bl_model_open(&m, g, &mo));
    enum bl_status st = sum_up(out, m, opt);
    bl_model_close(m);
    return st;
}

void bl_state_info_finish(struct bl_state_info *info)
{
    free(info->line);
    *info = (struct bl_state_info){0};
}
