/* SPDX-License-Identifier: MIT */
/* SHORT_CONV and DELTA_RULE: token after token, in the order of the batch, on the state of the
 * token's sequence. Threads share elements (rows of state matrices), each taking its own through
 * all tokens, so sequences may be mixed and cut anyhow without a difference in the result. A
 * sequence begins at position 0: what an earlier one left in the slot is never read. */
#include "scalar.h"
#include "segment.h"

#include <math.h>

enum {
    CHANNELS = 64, /* dealt together: whole vectors, whatever a thread's share */
    PIECE = 256,   /* channels taken through all tokens at a time */
    MOST_TAPS = 16,
    TOGETHER = 16,          /* tokens for which state rows are brought into the first-level cache */
    STATE_BYTES = 24 << 10, /* of those rows */
    ROW_GROUP = 4           /* rows that kernels like to take together */
};

/* ---- where a token stands ---- */

struct place {
    uint32_t slot, pos;
};

static struct place place_of(const struct bl_params *p, uint32_t t)
{
    const uint32_t seq = BL_PARAMS_ARRAY(const uint32_t, p, p->seq_off)[t];
    return (struct place){BL_PARAMS_ARRAY(const struct bl_seq_params, p, p->table_off)[seq].slot,
                          BL_PARAMS_ARRAY(const uint32_t, p, p->pos_off)[t]};
}

/* ---- SHORT_CONV ---- */

struct conv_args {
    const float *x, *w;
    float *y, *state;
    uint32_t n, taps, rows_per_seq;
    bool silu;
};

static float *state_row(const struct conv_args *a, struct place at, uint32_t pos)
{
    return a->state + (size_t)bl_kv_row(a->rows_per_seq, at.slot, pos) * a->n;
}

/* Channels [c, c + n) of a token, n at most PIECE. row[j]: its x for j = taps - 1, before that
 * those of the tokens before it; there are none below `first`. w: taps of PIECE. */
static void conv_piece(const struct conv_args *a, const struct bl_cpu_kernels *k,
                       const float *const row[MOST_TAPS], uint32_t first, uint32_t c, uint32_t n,
                       const float *w, float *y)
{
    float sum[PIECE];
    for (uint32_t i = 0; i < n; i++)
        sum[i] = w[first * PIECE + i] * row[first][c + i];
    for (uint32_t j = first + 1; j < a->taps; j++)
        for (uint32_t i = 0; i < n; i++)
            sum[i] += w[j * PIECE + i] * row[j][c + i];
    if (a->silu)
        k->sigmoid_mul(n, y + c, sum, sum);
    else
        memcpy(y + c, sum, n * sizeof *y);
}

/* All tokens for channels [c, c + n): the taps of a channel lie together in the file, here those of
 * all channels for one tap, which makes plain loops into vector instructions. */
static void conv_tokens(const struct conv_args *a, const struct bl_cpu_job *job, uint32_t c,
                        uint32_t n)
{
    const uint32_t before = a->taps - 1;
    float w[MOST_TAPS * PIECE];
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < a->taps; j++)
            w[j * PIECE + i] = a->w[(size_t)(c + i) * a->taps + j];
    for (uint32_t t = 0; t < job->params->n_tok; t++) {
        const struct place at = place_of(job->params, t);
        const uint32_t first = at.pos < before ? before - at.pos : 0;
        const float *row[MOST_TAPS];
        for (uint32_t j = first; j < before; j++)
            row[j] = state_row(a, at, at.pos - before + j);
        row[before] = a->x + (size_t)t * a->n;
        conv_piece(a, job->kernels, row, first, c, n, w, a->y + (size_t)t * a->n);
        memcpy(state_row(a, at, at.pos) + c, row[before] + c, /* over the oldest, which is read */
               n * sizeof(float));
    }
}

static void conv_run(const void *args, const struct bl_cpu_job *job)
{
    const struct conv_args *a = args;
    const struct bl_cpu_range own = bl_cpu_groups(a->n, CHANNELS, job->ith, job->nth);
    for (uint32_t c = own.first; c < own.end; c += PIECE)
        conv_tokens(a, job, c, own.end - c < PIECE ? own.end - c : PIECE);
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

/* ---- DELTA_RULE ---- */

struct delta_args {
    const float *qkv, *beta, *alpha, *a, *dt;
    float *y, *state;
    struct bl_delta_attr at;
    uint32_t n, rows_per_seq,
        block;   /* elements of a token, versions of the state, rows at a time */
    float *work; /* every thread's own q and k */
};

static void scale_to(uint32_t n, float *y, const float *x, float least, float scale)
{
    const double length = sqrt(bl_scalar_dot_f32(n, x, x));
    scale /= length > (double)least ? (float)length : least;
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * scale;
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

/* work: place for q and k. */
static struct bl_delta_token token_of(const struct delta_args *a, uint32_t t, uint32_t head,
                                      float *work)
{
    const struct bl_delta_attr *at = &a->at;
    const uint32_t key = at->tiled ? head % at->n_head_k : head / (at->n_head_v / at->n_head_k);
    const float *q = a->qkv + (size_t)t * a->n + (size_t)key * at->dk;
    const size_t gate = (size_t)t * at->n_head_v + head;
    scale_to(at->dk, work, q, at->eps, at->scale);
    scale_to(at->dk, work + at->dk, q + (size_t)at->n_head_k * at->dk, at->eps, 1);
    return (struct bl_delta_token){
        .q = work,
        .k = work + at->dk,
        .decay = expf(a->a[head] * softplus(a->alpha[gate] + a->dt[head])),
        .beta = 1 / (1 + expf(-a->beta[gate])),
    };
}

/* The state rows [row, row + n) of a head as they stand before the token, where those after it go.
 */
static float *enter(const struct delta_args *a, struct place at, uint32_t head, uint32_t row,
                    uint32_t n)
{
    const size_t all = (size_t)a->at.n_head_v * a->at.dv * a->at.dk;
    const size_t off = ((size_t)head * a->at.dv + row) * a->at.dk,
                 bytes = (size_t)n * a->at.dk * sizeof(float);
    float *s = a->state + bl_kv_row(a->rows_per_seq, at.slot, at.pos) * all + off;
    if (!at.pos)
        memset(s, 0, bytes);
    else if (a->rows_per_seq > 1)
        memcpy(s, a->state + bl_kv_row(a->rows_per_seq, at.slot, at.pos - 1) * all + off, bytes);
    return s;
}

/* State rows [row, row + n) of a head through tokens [t0, t1). */
static void delta_rows(const struct delta_args *a, const struct bl_cpu_job *job,
                       const struct bl_delta_token *token, uint32_t t0, uint32_t t1, uint32_t head,
                       uint32_t row, uint32_t n)
{
    const size_t at = (size_t)head * a->at.dv + row;
    const float *v = a->qkv + 2 * (size_t)a->at.n_head_k * a->at.dk + at;
    for (uint32_t t = t0; t < t1; t++) {
        float *s = enter(a, place_of(job->params, t), head, row, n);
        float *y = a->y + (size_t)t * a->at.n_head_v * a->at.dv + at;
        job->kernels->delta_rule(a->at.dk, n, y, s, v + (size_t)t * a->n, &token[t - t0]);
    }
}

/* A few tokens at a time are made ready for all rows [row, end) of the head. */
static void delta_head(const struct delta_args *a, const struct bl_cpu_job *job, uint32_t head,
                       uint32_t row, uint32_t end)
{
    float *work = a->work + (size_t)job->ith * TOGETHER * 2 * a->at.dk;
    struct bl_delta_token token[TOGETHER];
    for (uint32_t t0 = 0, t1; t0 < job->params->n_tok; t0 = t1) {
        t1 = job->params->n_tok - t0 < TOGETHER ? job->params->n_tok : t0 + TOGETHER;
        for (uint32_t t = t0; t < t1; t++)
            token[t - t0] = token_of(a, t, head, work + (size_t)(t - t0) * 2 * a->at.dk);
        for (uint32_t r = row; r < end; r += a->block)
            delta_rows(a, job, token, t0, t1, head, r, end - r < a->block ? end - r : a->block);
    }
}

static void delta_run(const void *args, const struct bl_cpu_job *job)
{
    const struct delta_args *a = args;
    const uint32_t dv = a->at.dv;
    const struct bl_cpu_range own =
        bl_cpu_groups(a->at.n_head_v * dv, ROW_GROUP, job->ith, job->nth);
    for (uint32_t i = own.first, n; i < own.end; i += n) {
        n = dv - i % dv; /* to the end of the head */
        n = n < own.end - i ? n : own.end - i;
        delta_head(a, job, i / dv, i % dv, i % dv + n);
    }
}

static uint64_t delta_work_bytes(const struct bl_caps *caps, const struct bl_delta_attr *at)
{
    return bl_cpu_round((uint64_t)caps->threads * TOGETHER * 2 * at->dk * sizeof(float));
}

static void delta_emit(struct bl_cpu_builder *b)
{
    const struct bl_delta_attr *at = bl_cpu_attr(b);
    const uint64_t bytes = delta_work_bytes(&b->dev->base.caps, at), work = bl_cpu_take(b, bytes);
    struct delta_args *a = bl_cpu_step(b, delta_run, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    a->qkv = bl_cpu_reads(b, 0);
    a->beta = bl_cpu_reads(b, 1);
    a->alpha = bl_cpu_reads(b, 2);
    a->a = bl_cpu_weight(b, 3);
    a->dt = bl_cpu_weight(b, 4);
    bl_cpu_touch(b, work, bytes, 0, true);
    a->y = bl_cpu_writes(b, 0);
    a->state = bl_cpu_writes(b, 1);
    a->at = *at;
    a->n = bl_cpu_src(b, 0)->ne[0];
    a->rows_per_seq = bl_cpu_dst(b, 1)->ne[1];
    a->block = (uint32_t)(STATE_BYTES / (at->dk * sizeof(float))) / ROW_GROUP * ROW_GROUP;
    a->block = a->block ? a->block : ROW_GROUP;
    a->work = (float *)(uintptr_t)work;
}

static uint64_t delta_scratch(const struct bl_caps *caps, const struct bl_graph *g,
                              const struct bl_node *n)
{
    return delta_work_bytes(caps, bl_node_attr(g, n));
}

const struct bl_cpu_op bl_cpu_delta_rule = {.scratch = delta_scratch, .emit = delta_emit};
