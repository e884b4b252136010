/* SPDX-License-Identifier: MIT */
/* EMBED, GATHER_ROWS, KV_STORE, SLICE, CONCAT, GLU, ADD and SOFTCAP: moving rows and working on
 * elements. */
#include "segment.h"

#include <math.h>

/* ---- EMBED ---- */

struct embed_args {
    const uint8_t *table;
    float *y;
    size_t row_bytes;
    uint32_t n;
    float scale;
    uint8_t type;
};

static void embed_run(const void *args, const struct bl_cpu_job *job)
{
    const struct embed_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, BL_CPU_TOKENS);
    const int32_t *id = BL_PARAMS_ARRAY(const int32_t, job->params, job->params->token_off);
    for (uint32_t t = r.first; t < r.end; t++) {
        float *y = a->y + (size_t)t * a->n;
        bl_dtype_decode(a->type, a->n, y, a->table + (size_t)id[t] * a->row_bytes);
        if (a->scale != 1)
            for (uint32_t i = 0; i < a->n; i++)
                y[i] *= a->scale;
    }
}

static void embed_emit(struct bl_cpu_builder *b)
{
    const struct bl_value *table = bl_cpu_src(b, 0);
    struct embed_args *a = bl_cpu_step(b, embed_run, sizeof *a, BL_CPU_TOKENS);
    if (!a)
        return;
    a->table = bl_cpu_weight(b, 0);
    a->y = bl_cpu_writes(b, 0);
    a->row_bytes = (size_t)bl_dtype_row_bytes(table->type, table->ne[0]);
    a->n = table->ne[0];
    a->scale = ((const struct bl_embed_attr *)bl_cpu_attr(b))->scale;
    a->type = table->type;
}

static bool embed_supports(const struct bl_graph *g, const struct bl_node *n)
{
    return bl_dtypes[g->vals[bl_node_src(g, n, 0)].type].act != BL_ACT_NONE;
}

const struct bl_cpu_op bl_cpu_embed = {.supports = embed_supports, .emit = embed_emit};

/* ---- GATHER_ROWS ---- */

struct gather_args {
    const float *x;
    float *y;
    uint32_t n;
};

static void gather_run(const void *args, const struct bl_cpu_job *job)
{
    const struct gather_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, BL_CPU_OUTPUTS);
    const uint32_t *from = BL_PARAMS_ARRAY(const uint32_t, job->params, job->params->out_off);
    for (uint32_t i = r.first; i < r.end; i++)
        memcpy(a->y + (size_t)i * a->n, a->x + (size_t)from[i] * a->n, a->n * sizeof *a->y);
}

static void gather_emit(struct bl_cpu_builder *b)
{
    struct gather_args *a = bl_cpu_step(b, gather_run, sizeof *a, BL_CPU_OUTPUTS);
    if (!a)
        return;
    a->x = bl_cpu_reads(b, 0); /* any token's row: counted otherwise, so other threads' too */
    a->y = bl_cpu_writes(b, 0);
    a->n = bl_cpu_src(b, 0)->ne[0];
}

const struct bl_cpu_op bl_cpu_gather_rows = {.emit = gather_emit};

/* ---- KV_STORE ---- */

struct store_args {
    const float *x;
    uint8_t *state;
    size_t row_bytes;
    uint32_t n, rows_per_seq, group;
    uint8_t type;
};

static void store_run(const void *args, const struct bl_cpu_job *job)
{
    const struct store_args *a = args;
    const struct bl_params *p = job->params;
    const struct bl_cpu_range r = bl_cpu_rows(job, BL_CPU_TOKENS);
    const uint32_t *pos = BL_PARAMS_ARRAY(const uint32_t, p, p->pos_off);
    const uint32_t *seq = BL_PARAMS_ARRAY(const uint32_t, p, p->seq_off);
    const struct bl_seq_params *table =
        BL_PARAMS_ARRAY(const struct bl_seq_params, p, p->table_off);
    for (uint32_t t = r.first; t < r.end; t++) {
        if ((pos[t] + 1) % a->group)
            continue;
        const size_t row = bl_kv_row(a->rows_per_seq, table[seq[t]].slot, pos[t] / a->group);
        bl_dtype_encode(a->type, a->n, a->state + row * a->row_bytes, a->x + (size_t)t * a->n);
    }
}

static void store_emit(struct bl_cpu_builder *b)
{
    const struct bl_value *state = bl_cpu_src(b, 1);
    struct store_args *a = bl_cpu_step(b, store_run, sizeof *a, BL_CPU_TOKENS);
    if (!a)
        return;
    a->x = bl_cpu_reads(b, 0);
    a->state = bl_cpu_writes(b, 0);
    a->row_bytes = (size_t)bl_dtype_row_bytes(state->type, state->ne[0]);
    a->n = state->ne[0];
    a->rows_per_seq = state->ne[1];
    a->group = ((const struct bl_store_attr *)bl_cpu_attr(b))->group;
    a->type = state->type;
}

static bool store_supports(const struct bl_graph *g, const struct bl_node *n)
{
    const struct bl_value *state = &g->vals[bl_node_src(g, n, 1)];
    return bl_dtype_can_encode(state->type) && bl_dtype_row_bytes(state->type, state->ne[0]);
}

const struct bl_cpu_op bl_cpu_kv_store = {.supports = store_supports, .emit = store_emit};

/* ---- SLICE, CONCAT ---- */

struct slice_args {
    const float *x;
    float *y;
    uint32_t n; /* elements of a row of x */
    struct bl_slice_attr at;
    uint8_t rows;
};

static void slice_run(const void *args, const struct bl_cpu_job *job)
{
    const struct slice_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    const uint32_t runs = a->n / a->at.run;
    float *y = a->y + (size_t)r.first * runs * a->at.n;
    for (uint32_t t = r.first; t < r.end; t++) {
        const float *x = a->x + (size_t)t * a->n + a->at.first;
        for (uint32_t i = 0; i < runs; i++, x += a->at.run, y += a->at.n)
            memcpy(y, x, a->at.n * sizeof *y);
    }
}

static void slice_emit(struct bl_cpu_builder *b)
{
    const uint8_t rows = bl_cpu_rows_of(b, 0);
    struct slice_args *a = bl_cpu_step(b, slice_run, sizeof *a, rows);
    if (!a)
        return;
    a->x = bl_cpu_reads(b, 0);
    a->y = bl_cpu_writes(b, 0);
    a->n = bl_cpu_src(b, 0)->ne[0];
    a->at = *(const struct bl_slice_attr *)bl_cpu_attr(b);
    a->rows = rows;
}

const struct bl_cpu_op bl_cpu_slice = {.emit = slice_emit};

struct concat_args {
    const float *x[3];
    uint32_t n[3]; /* of a run; 0: absent */
    uint32_t runs;
    float *y;
    uint8_t rows;
};

static void concat_run(const void *args, const struct bl_cpu_job *job)
{
    const struct concat_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    const size_t first = (size_t)r.first * a->runs, end = (size_t)r.end * a->runs;
    float *y = a->y + first * (a->n[0] + a->n[1] + a->n[2]);
    for (size_t run = first; run < end; run++)
        for (unsigned i = 0; i < 3; i++) {
            if (a->n[i])
                memcpy(y, a->x[i] + run * a->n[i], a->n[i] * sizeof *y);
            y += a->n[i];
        }
}

static void concat_emit(struct bl_cpu_builder *b)
{
    const uint8_t rows = bl_cpu_rows_of(b, 0);
    struct concat_args *a = bl_cpu_step(b, concat_run, sizeof *a, rows);
    if (!a)
        return;
    a->runs = ((const struct bl_concat_attr *)bl_cpu_attr(b))->runs;
    for (unsigned i = 0; i < 3; i++)
        if (bl_node_src(b->graph, b->node, i)) {
            a->x[i] = bl_cpu_reads(b, i);
            a->n[i] = bl_cpu_src(b, i)->ne[0] / a->runs;
        }
    a->y = bl_cpu_writes(b, 0);
    a->rows = rows;
}

const struct bl_cpu_op bl_cpu_concat = {.emit = concat_emit};

/* ---- GLU, ADD ---- */

struct pair_args {
    const float *a, *b;
    float *y;
    uint32_t n;
    struct bl_glu_attr glu;
    uint8_t rows;
};

enum { CLAMPED = 64 }; /* elements clamped at a time, on the stack */

static void silu_clamped(const struct bl_cpu_kernels *k, float limit, uint32_t n, float *y,
                         const float *gate, const float *up)
{
    float g[CLAMPED], u[CLAMPED];
    for (uint32_t at = 0, len; at < n; at += len) {
        len = n - at < CLAMPED ? n - at : CLAMPED;
        for (uint32_t i = 0; i < len; i++) {
            g[i] = gate[at + i] > limit ? limit : gate[at + i];
            u[i] = up[at + i] > limit ? limit : up[at + i] < -limit ? -limit : up[at + i];
        }
        k->silu_mul(len, y + at, g, u);
    }
}

void bl_cpu_glu_run(const struct bl_cpu_kernels *k, const struct bl_glu_attr *at, uint32_t n,
                    float *y, const float *gate, const float *up)
{
    if (at->kind == BL_GLU_SILU)
        k->silu_mul(n, y, gate, up);
    else if (at->kind == BL_GLU_SILU_CLAMPED)
        silu_clamped(k, at->limit, n, y, gate, up);
    else if (at->kind == BL_GLU_GELU_TANH)
        k->gelu_mul(n, y, gate, up);
    else if (at->kind == BL_GLU_SIGMOID)
        k->sigmoid_mul(n, y, gate, up);
    else
        k->swiglu_oai(n, y, gate, up, at->alpha, at->limit);
}

static void glu_run(const void *args, const struct bl_cpu_job *job)
{
    const struct pair_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    for (uint32_t t = r.first; t < r.end; t++) {
        const size_t at = (size_t)t * a->n;
        bl_cpu_glu_run(job->kernels, &a->glu, a->n, a->y + at, a->a + at, a->b + at);
    }
}

/* One gate for each row. */
static void gate_run(const void *args, const struct bl_cpu_job *job)
{
    const struct pair_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    static const float one = 1;
    for (uint32_t t = r.first; t < r.end; t++) {
        const float *up = a->b + (size_t)t * a->n;
        float gate, *y = a->y + (size_t)t * a->n;
        bl_cpu_glu_run(job->kernels, &a->glu, 1, &gate, a->a + t, &one);
        for (uint32_t i = 0; i < a->n; i++)
            y[i] = gate * up[i];
    }
}

static void add_run(const void *args, const struct bl_cpu_job *job)
{
    const struct pair_args *a = args;
    const struct bl_cpu_range r = bl_cpu_rows(job, a->rows);
    for (uint32_t t = r.first; t < r.end; t++) {
        const size_t at = (size_t)t * a->n;
        job->kernels->add(a->n, a->y + at, a->a + at, a->b + at);
    }
}

static struct pair_args *pair_emit(struct bl_cpu_builder *b, bl_cpu_step_fn *run)
{
    const uint8_t rows = bl_cpu_rows_of(b, 0);
    struct pair_args *a = bl_cpu_step(b, run, sizeof *a, rows);
    if (!a)
        return NULL;
    a->a = bl_cpu_reads(b, 0);
    a->b = bl_cpu_reads(b, 1);
    a->y = bl_cpu_writes(b, 0);
    a->n = bl_cpu_src(b, 1)->ne[0];
    a->rows = rows;
    return a;
}

static void glu_emit(struct bl_cpu_builder *b)
{
    const bool one_gate = bl_cpu_src(b, 0)->ne[0] < bl_cpu_src(b, 1)->ne[0];
    struct pair_args *a = pair_emit(b, one_gate ? gate_run : glu_run);
    if (a)
        a->glu = *(const struct bl_glu_attr *)bl_cpu_attr(b);
}

static void add_emit(struct bl_cpu_builder *b)
{
    pair_emit(b, add_run);
}

const struct bl_cpu_op bl_cpu_glu = {.emit = glu_emit};
const struct bl_cpu_op bl_cpu_add = {.emit = add_emit};

/* ---- SOFTCAP ---- */

struct softcap_args {
    const float *x;
    float *y;
    uint32_t n;
    float cap;
    uint8_t rows;
};

/* Spread over the elements: with one token it is a whole vocabulary of tanh. */
static void softcap_run(const void *args, const struct bl_cpu_job *job)
{
    const struct softcap_args *a = args;
    const uint32_t n_rows = bl_cpu_n_rows(job, a->rows);
    const struct bl_cpu_range r = bl_cpu_split(a->n, job->ith, job->nth);
    for (uint32_t t = 0; t < n_rows; t++)
        for (uint32_t i = r.first; i < r.end; i++) {
            const size_t at = (size_t)t * a->n + i;
            a->y[at] = a->cap * tanhf(a->x[at] / a->cap);
        }
}

static void softcap_emit(struct bl_cpu_builder *b)
{
    struct softcap_args *a = bl_cpu_step(b, softcap_run, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    a->x = bl_cpu_reads(b, 0);
    a->y = bl_cpu_writes(b, 0);
    a->n = bl_cpu_src(b, 0)->ne[0];
    a->cap = ((const struct bl_softcap_attr *)bl_cpu_attr(b))->cap;
    a->rows = bl_cpu_rows_of(b, 0);
}

const struct bl_cpu_op bl_cpu_softcap = {.emit = softcap_emit};
