/* SPDX-License-Identifier: MIT */
/* Norms, rotations and stores of several values in one launch: rows.cu. */
#include "simt_rows.h"

enum { THREADS = 256, FIRST_ADDR = 1, FIRST_NUM = 1, ADDRS = 5, NUMS = 10 };
enum { FIRST, RUN, RUNS, EPS, HEAD, TURN, KIND, ROW_BYTES, ROWS, ROUND }; /* numbers of a job */
enum { NORM = 1, HALVES = 2, TURNED = 4, ROUNDED = 8, NARROW = 16, KV_SHIFT = 8, GROUP_SHIFT = 16 };
enum { X, W, ANGLES, Y, STATE }; /* addresses of a job */

static void add_norm(struct bl_simt_builder *b, uint64_t *a, uint32_t *n)
{
    a[W] = bl_simt_src_addr(b, 1);
    n[EPS] = bl_simt_float(((const struct bl_norm_attr *)bl_simt_attr(b))->eps);
    n[KIND] |= NORM;
}

static void add_rope(struct bl_simt_builder *b, uint64_t *a, uint32_t *n)
{
    const struct bl_rope_attr *rope = bl_simt_attr(b);
    a[ANGLES] = bl_simt_src_addr(b, 1);
    n[HEAD] = rope->head_elems;
    n[TURN] = rope->n_dims | rope->first << 16;
    n[KIND] |= rope->mode == BL_ROPE_NEOX ? HALVES : 0;
}

static void add_turn(struct bl_simt_builder *b, uint64_t *a, uint32_t *n)
{
    (void)b, (void)a;
    n[KIND] |= TURNED;
}

static void add_round(struct bl_simt_builder *b, uint64_t *a, uint32_t *n)
{
    (void)a;
    const struct bl_round_attr *at = bl_simt_attr(b);
    n[ROUND] = at->n | at->group << 16;
    n[KIND] |= ROUNDED | (at->kind == BL_ROUND_E2M1 ? NARROW : 0);
}

static void add_store(struct bl_simt_builder *b, uint64_t *a, uint32_t *n)
{
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
    static void (*const add[BL_SIMT_N_STAGES])(struct bl_simt_builder *, uint64_t *, uint32_t *) = {
        [BL_SIMT_NORM] = add_norm,   [BL_SIMT_ROPE] = add_rope,   [BL_SIMT_TURN] = add_turn,
        [BL_SIMT_ROUND] = add_round, [BL_SIMT_STORE] = add_store,
    };

    bl_simt_stand(b, j->first);
    a[X] = bl_simt_src_addr(b, 0);
    n[FIRST] = first;
    n[RUN] = j->run;
    n[RUNS] = bl_simt_src(b, 0)->ne[0] / j->run;
    for (unsigned i = 0; i < BL_SIMT_N_STAGES; i++)
        if (j->stage[i]) {
            bl_simt_stand(b, j->stage[i]);
            add[i](b, a, n);
        }
    if (!j->stage[BL_SIMT_STORE])
        a[Y] = j->last->dst[0];
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
