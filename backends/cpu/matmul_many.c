/* SPDX-License-Identifier: MIT */
/* MATMUL for many tokens: blocks of tokens times panels of rows, taken by whoever is free. */
#include "matmul.h"

struct many_args {
    struct bl_cpu_matmul_args few; /* first */
    struct bl_panel_weight weight;
    const uint8_t *tiles;
    struct bl_cpu_room *room; /* [threads] */
    struct bl_cpu_counter *counter;
};

/* Where the sums of a panel go: y of the block's first token, at the panel's rows. */
struct unit {
    const struct bl_cpu_matmul_args *to;
    float *y;
    uint32_t row, n_rows;
};

static void store(const void *arg, float (*sum)[BL_PANEL_ROWS], uint32_t first, uint32_t n)
{
    const struct unit *u = arg;
    float *y = u->y + (size_t)first * u->to->n;
    for (uint32_t t = 0; t < n; t++, y += u->to->n) {
        bl_cpu_scale_and_bias(u->to, sum[t], u->row, u->n_rows);
        bl_panel_put(y, sum[t], u->n_rows);
    }
}

/* A panel for all tokens of a block. */
static void unit_run(const struct many_args *a, struct bl_cpu_room *room,
                     const struct bl_panel_tokens *x, struct bl_cpu_range tiles, uint32_t panel,
                     const uint8_t *next)
{
    const uint32_t row = panel * BL_PANEL_ROWS, left = a->few.n - row;
    const size_t token = bl_panel_tile_first(x->n_tok, x->n_tiles, tiles.first);
    const struct unit u = {.to = &a->few,
                           .y = a->few.y + token * a->few.n + row,
                           .row = row,
                           .n_rows = left < BL_PANEL_ROWS ? left : BL_PANEL_ROWS};
    bl_panel_rows(&a->weight, &(struct bl_panel_sums){room->sum[0], store, &u}, room->panel,
                  a->few.w, row, x, tiles.first, tiles.end, next);
}

/* One unit is claimed ahead, so that its rows can be fetched. */
static void many_run(const void *args, const struct bl_cpu_job *job)
{
    const struct many_args *a = args;
    const uint32_t n_tok = bl_cpu_n_rows(job, a->few.rows),
                   n_panels = (a->few.n + BL_PANEL_ROWS - 1) / BL_PANEL_ROWS;
    if (n_tok < a->weight.kernel->from) {
        bl_cpu_matmul_dots(&a->few, job);
        return;
    }
    const struct bl_panel_tokens x = bl_panel_tokens_of(&a->weight, a->tiles, n_tok);
    const uint32_t n_blocks = bl_panel_blocks(&x, a->few.k, n_panels, job->nth);
    const uint32_t n = n_blocks * n_panels;
    uint32_t unit, then;
    for (bool more = bl_cpu_claim(a->counter, n, &unit); more; unit = then) {
        more = bl_cpu_claim(a->counter, n, &then);
        const uint32_t block = unit / n_panels;
        const struct bl_cpu_range tiles = {bl_panel_tile_first(x.n_tiles, n_blocks, block),
                                           bl_panel_tile_first(x.n_tiles, n_blocks, block + 1)};
        unit_run(a, &a->room[job->ith], &x, tiles, unit % n_panels,
                 more ? a->few.w + then % n_panels * BL_PANEL_ROWS * a->few.w_stride : NULL);
    }
}

void bl_cpu_matmul_many(struct bl_cpu_builder *b)
{
    const struct bl_value *w = bl_cpu_src(b, 0), *x = bl_cpu_src(b, 1);
    const struct bl_panel_kernel *panel = &b->dev->kernels.panel[w->type];
    const struct bl_cpu_many in = bl_cpu_many(b, 1, b->dev->kernels.matmul[w->type].act, panel);
    struct many_args *a = bl_cpu_step(b, many_run, sizeof *a, BL_CPU_SPREAD);
    if (!a)
        return;
    a->few = bl_cpu_matmul_of(b, in.vectors);
    a->weight = bl_panel_weight_of(&b->dev->kernels, w->type, w);
    a->tiles = (const uint8_t *)(uintptr_t)in.tiles.addr;
    a->room = (struct bl_cpu_room *)(uintptr_t)in.own;
    a->counter = bl_cpu_counter_of(b);
    bl_cpu_uses_many(b, &in, x->ne[1]);
    a->few.y = bl_cpu_writes(b, 0);
    b->last_matmul = NULL;
}
