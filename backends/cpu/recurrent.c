/* SPDX-License-Identifier: MIT */
/* SHORT_CONV: token after token, in the order of the batch, on the state of the token's sequence.
 * Threads share channels, each taking its own through all tokens, so sequences may be mixed and cut
 * anyhow without a difference in the result. */
#include "recurrent.h"

enum {
    CHANNELS = 64, /* dealt together: whole vectors, whatever a thread's share */
    PIECE = 256,   /* channels of one call of a kernel */
    MOST_TAPS = 16
};

struct conv_args {
    const float *x, *w;
    float *y, *state;
    uint32_t n, taps, rows_per_seq;
    bool silu;
};

static float *state_row(const struct conv_args *a, struct bl_cpu_place at, uint32_t pos)
{
    return a->state + (size_t)bl_kv_row(a->rows_per_seq, at.slot, pos) * a->n;
}

/* What channels of a token are added up from: tap j is `taps - 1 - j` tokens back, in the batch or,
 * before the run began, in the state. Nothing is before a sequence. */
static void find_rows(const struct conv_args *a, const struct bl_cpu_run *run, uint32_t t,
                      uint32_t c, const float *row[MOST_TAPS])
{
    static const float none[PIECE];
    const uint32_t since = t - run->first, pos = run->at.pos + since;
    for (uint32_t j = 0; j < a->taps; j++) {
        const uint32_t back = a->taps - 1 - j;
        if (back <= since)
            row[j] = a->x + (size_t)(t - back) * a->n + c;
        else
            row[j] = back <= pos ? state_row(a, run->at, pos - back) + c : none;
    }
}

static void conv_token(const struct conv_args *a, const struct bl_cpu_kernels *k,
                       const struct bl_cpu_run *run, uint32_t t, struct bl_cpu_range own)
{
    float *y = a->y + (size_t)t * a->n;
    for (uint32_t c = own.first, n; c < own.end; c += n) {
        const float *row[MOST_TAPS];
        n = own.end - c < PIECE ? own.end - c : PIECE;
        find_rows(a, run, t, c, row);
        k->short_conv(n, a->taps, y + c, row, a->w + (size_t)c * a->taps);
        if (a->silu)
            k->sigmoid_mul(n, y + c, y + c, y + c);
    }
}

/* Into the state go those of the last tokens that the next run may look back on; each takes the
 * place of one that no later token of this run reads. */
static void keep(const struct conv_args *a, const struct bl_cpu_run *run, uint32_t t,
                 struct bl_cpu_range own)
{
    if (run->end - t <= a->rows_per_seq)
        memcpy(state_row(a, run->at, run->at.pos + (t - run->first)) + own.first,
               a->x + (size_t)t * a->n + own.first, (own.end - own.first) * sizeof(float));
}

static void conv_run(const void *args, const struct bl_cpu_job *job)
{
    const struct conv_args *a = args;
    const struct bl_cpu_range own = bl_cpu_groups(a->n, CHANNELS, job->ith, job->nth);
    struct bl_cpu_run run = {0};
    while (own.first < own.end && bl_cpu_next_run(job->params, &run))
        for (uint32_t t = run.first; t < run.end; t++) {
            conv_token(a, job->kernels, &run, t, own);
            keep(a, &run, t, own);
        }
}

static void conv_emit(struct bl_cpu_builder *b)
{
    const struct bl_value *w = bl_cpu_src(b, 1);
    struct conv_args *a = bl_cpu_step(b, conv_run, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    a->x = bl_cpu_reads(b, 0);
    a->w = bl_cpu_weight(b, 1);
    a->y = bl_cpu_writes(b, 0);
    a->state = bl_cpu_writes(b, 1);
    a->n = w->ne[1];
    a->taps = w->ne[0];
    a->rows_per_seq = bl_cpu_dst(b, 1)->ne[1];
    a->silu = ((const struct bl_conv_attr *)bl_cpu_attr(b))->silu;
}

static bool conv_supports(const struct bl_graph *g, const struct bl_node *n)
{
    return g->vals[bl_node_src(g, n, 1)].ne[0] <= MOST_TAPS;
}

const struct bl_cpu_op bl_cpu_short_conv = {.supports = conv_supports, .emit = conv_emit};
