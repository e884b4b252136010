/* SPDX-License-Identifier: MIT */
/* COMPRESS: token after token, in the order of the batch, through the ring of the token's sequence.
 * Threads share elements, each taking its own through all tokens, so sequences may be mixed and
 * prompts cut anyhow without a difference in the result, and the ring holds just what a group looks
 * back on. What an earlier sequence left in it is never read: the groups of a sequence begin with
 * its own tokens. */
#include "segment.h"

#include <math.h>

enum { ELEMENTS = 64 }; /* of one call of a kernel, whatever a thread's share */

struct compress_args {
    const float *x, *gate;
    const uint8_t *ape;
    float *y, *state;
    size_t ape_row;
    uint32_t n, halves, group; /* elements of the result; 2: groups overlap */
    uint32_t rows_per_seq;
    uint8_t ape_type;
    float *work; /* every thread's own: a row of ape */
};

struct token {
    uint32_t t, slot, pos;
};

/* The ring's row of a position: x, then its gate. */
static float *row_of(const struct compress_args *a, const struct token *at, uint32_t pos)
{
    return a->state + (size_t)bl_kv_row(a->rows_per_seq, at->slot, pos) * 2 * a->halves * a->n;
}

static void keep(const struct compress_args *a, const struct token *at, const float *ape,
                 uint32_t i, uint32_t n)
{
    float *row = row_of(a, at, at->pos);
    for (uint32_t half = 0; half < a->halves; half++, i += a->n) {
        const size_t from = (size_t)at->t * a->halves * a->n + i;
        memcpy(row + i, a->x + from, n * sizeof *row);
        for (uint32_t j = 0; j < n; j++)
            row[a->halves * a->n + i + j] = a->gate[from + j] + ape[i + j];
    }
}

/* The slots of the group that ends at a token: its own tokens and, where groups overlap, those of
 * the group before, which has a half of its own. */
struct slots {
    uint32_t first, end, own; /* positions; from `own` on the group itself */
};

static struct slots slots_of(const struct compress_args *a, const struct token *at)
{
    struct slots s = {.end = at->pos + 1, .own = at->pos + 1 - a->group};
    s.first = a->halves == 2 && s.own ? s.own - a->group : s.own;
    return s;
}

static const float *slot(const struct compress_args *a, const struct token *at,
                         const struct slots *s, uint32_t pos, uint32_t i)
{
    return row_of(a, at, pos) + (pos >= s->own ? (a->halves - 1) * a->n : 0) + i;
}

/* Elements [i, i + n) of a group's row. */
static void pool(const struct compress_args *a, const struct bl_cpu_kernels *k,
                 const struct token *at, uint32_t i, uint32_t n)
{
    const struct slots s = slots_of(a, at);
    const uint32_t gate = a->halves * a->n;
    float max[ELEMENTS], e[ELEMENTS], sum[ELEMENTS] = {0}, y[ELEMENTS] = {0};
    memcpy(max, slot(a, at, &s, s.first, i) + gate, n * sizeof *max);
    for (uint32_t p = s.first + 1; p < s.end; p++) {
        const float *g = slot(a, at, &s, p, i) + gate;
        for (uint32_t j = 0; j < n; j++)
            max[j] = g[j] > max[j] ? g[j] : max[j];
    }
    for (uint32_t p = s.first; p < s.end; p++) {
        const float *x = slot(a, at, &s, p, i);
        for (uint32_t j = 0; j < n; j++)
            e[j] = x[gate + j] - max[j];
        k->exp_sum(n, e, 0);
        for (uint32_t j = 0; j < n; j++) {
            sum[j] += e[j];
            y[j] += e[j] * x[j];
        }
    }
    for (uint32_t j = 0; j < n; j++)
        a->y[(size_t)at->t * a->n + i + j] = y[j] / sum[j];
}

static const float *ape_of(const struct compress_args *a, const struct bl_cpu_job *job,
                           uint32_t pos)
{
    const uint8_t *row = a->ape + pos % a->group * a->ape_row;
    float *work = a->work + (size_t)job->ith * a->halves * a->n;
    if (a->ape_type == BL_F32)
        return (const float *)(const void *)row;
    bl_dtype_decode(a->ape_type, a->halves * a->n, work, row);
    return work;
}

static void compress_run(const void *args, const struct bl_cpu_job *job)
{
    const struct compress_args *a = args;
    const struct bl_params *p = job->params;
    const struct bl_cpu_range own = bl_cpu_groups(a->n, ELEMENTS, job->ith, job->nth);
    const uint32_t *seq = BL_PARAMS_ARRAY(const uint32_t, p, p->seq_off),
                   *pos = BL_PARAMS_ARRAY(const uint32_t, p, p->pos_off);
    const struct bl_seq_params *table =
        BL_PARAMS_ARRAY(const struct bl_seq_params, p, p->table_off);
    for (uint32_t t = 0; t < p->n_tok && own.first < own.end; t++) {
        const struct token at = {t, table[seq[t]].slot, pos[t]};
        const float *ape = ape_of(a, job, pos[t]);
        for (uint32_t i = own.first, n; i < own.end; i += n) {
            n = own.end - i < ELEMENTS ? own.end - i : ELEMENTS;
            keep(a, &at, ape, i, n);
            if ((pos[t] + 1) % a->group)
                memset(a->y + (size_t)t * a->n + i, 0, n * sizeof *a->y);
            else
                pool(a, job->kernels, &at, i, n);
        }
    }
}

static uint64_t work_bytes(const struct bl_caps *caps, const struct bl_value *ape)
{
    return ape->type == BL_F32 ? 0 : bl_cpu_round((uint64_t)caps->threads * ape->ne[0] * 4);
}

static void compress_emit(struct bl_cpu_builder *b)
{
    const struct bl_compress_attr *at = bl_cpu_attr(b);
    const struct bl_value *ape = bl_cpu_src(b, 2);
    const uint64_t bytes = work_bytes(&b->dev->base.caps, ape), work = bl_cpu_take(b, bytes);
    struct compress_args *a = bl_cpu_step(b, compress_run, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    a->x = bl_cpu_reads(b, 0);
    a->gate = bl_cpu_reads(b, 1);
    a->ape = bl_cpu_weight(b, 2);
    a->y = bl_cpu_writes(b, 0);
    a->state = bl_cpu_writes(b, 1);
    if (bytes)
        bl_cpu_touch(b, work, bytes, 0, true);
    a->ape_row = (size_t)bl_dtype_row_bytes(ape->type, ape->ne[0]);
    a->n = bl_cpu_dst(b, 0)->ne[0];
    a->halves = 1 + at->overlap;
    a->group = at->group;
    a->rows_per_seq = bl_cpu_dst(b, 1)->ne[1];
    a->ape_type = ape->type;
    a->work = (float *)(uintptr_t)work;
}

static uint64_t compress_scratch(const struct bl_caps *caps, const struct bl_graph *g,
                                 const struct bl_node *n)
{
    return work_bytes(caps, &g->vals[bl_node_src(g, n, 2)]);
}

const struct bl_cpu_op bl_cpu_compress = {.scratch = compress_scratch, .emit = compress_emit};
