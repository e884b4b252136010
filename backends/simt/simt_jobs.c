/* SPDX-License-Identifier: MIT */
/* Norms, rotations and stores of several values in one launch: rows.cu. */
#include "simt_rows.h"

enum { THREADS = 256, FIRST_ADDR = 1, FIRST_NUM = 1, ADDRS = 5, NUMS = 9 };
enum { FIRST, RUN, RUNS, EPS, HEAD, TURN, KIND, ROW_BYTES, ROWS }; /* numbers of a job */
enum { NORM = 1, NEOX = 2, KV_SHIFT = 8, GROUP_SHIFT = 16 };       /* in KIND */
enum { X, W, ANGLES, Y, STATE };                                   /* addresses of a job */

static void add_norm(struct bl_simt_builder *b, const struct bl_bound *at, uint64_t *a, uint32_t *n)
{
    bl_simt_stand(b, at);
    a[W] = bl_simt_src_addr(b, 1);
    n[EPS] = bl_simt_float(((const struct bl_norm_attr *)bl_simt_attr(b))->eps);
    n[KIND] |= NORM;
}

static void add_rope(struct bl_simt_builder *b, const struct bl_bound *at, uint64_t *a, uint32_t *n)
{
    bl_simt_stand(b, at);
    const struct bl_rope_attr *rope = bl_simt_attr(b);
    a[ANGLES] = bl_simt_src_addr(b, 1);
    n[HEAD] = rope->head_elems;
    n[TURN] = rope->n_dims | rope->first << 16;
    n[KIND] |= rope->mode == BL_ROPE_NEOX ? NEOX : 0;
}

static void add_store(struct bl_simt_builder *b, const struct bl_bound *at, uint64_t *a,
                      uint32_t *n)
{
    bl_simt_stand(b, at);
    const struct bl_value *state = bl_simt_src(b, 1);
    const uint32_t group = ((const struct bl_store_attr *)bl_simt_attr(b))->group;
    a[STATE] = bl_simt_dst_addr(b, 0);
    n[ROW_BYTES] = bl_simt_row_bytes(state);
    n[ROWS] = state->ne[1];
    n[KIND] |= bl_simt_kv_of(state) << KV_SHIFT | group << GROUP_SHIFT;
}

/* Of the blocks from `first` on; returns how many it takes. */
static uint32_t add_job(struct bl_simt_builder *b, const struct bl_simt_job *j, uint32_t first,
                        uint64_t *a, uint32_t *n)
{
    const struct bl_bound *begin = j->norm ? j->norm : j->rope ? j->rope : j->store;
    const struct bl_bound *end = j->rope ? j->rope : j->norm;

    bl_simt_stand(b, begin);
    a[X] = bl_simt_src_addr(b, 0);
    n[FIRST] = first;
    n[RUN] = j->run;
    n[RUNS] = bl_simt_src(b, 0)->ne[0] / j->run;
    if (j->norm)
        add_norm(b, j->norm, a, n);
    if (j->rope)
        add_rope(b, j->rope, a, n);
    if (j->store)
        add_store(b, j->store, a, n);
    else
        a[Y] = end->dst[0];
    return n[RUNS];
}

void bl_simt_emit_jobs(struct bl_simt_builder *b, const struct bl_simt_job *job, uint32_t n)
{
    struct bl_simt_call c = {.kernel = "rows", .type = BL_SIMT_NO_TYPE, .block = {THREADS}};
    uint32_t blocks = 0;

    c.args.a[0] = b->params;
    c.args.n[0] = n;
    for (uint32_t j = 0; j < n; j++)
        blocks += add_job(b, &job[j], blocks, &c.args.a[FIRST_ADDR + ADDRS * j],
                          &c.args.n[FIRST_NUM + NUMS * j]);
    c.grid[0] = blocks;
    c.grid[1] = bl_simt_src(b, 0)->ne[1];
    bl_simt_emit(b, &c);
}
