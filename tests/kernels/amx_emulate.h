/* SPDX-License-Identifier: MIT */
/* amx_emulate.h — the operations of backends/cpu/x86/amx_tile.h in plain C, in its place.
 *
 * Purpose   the AMX panels run on processors without tiles. What the instructions refuse ends the program: the fault
 *           of a real one. Tiles that were not written since the configuration are poison.
 * Ownership the state is this header's, in the one file that includes it.
 * Units     as amx_tile.h.
 * Errors    abort().
 * Threads   one.
 */
#ifndef BL_X86_AMX_TILE_H
#define BL_X86_AMX_TILE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct tile_config {
    uint8_t palette, start_row, zero[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "as the instruction reads it");

enum { TILES = 8, TILE_ROWS = 16, TILE_BYTES = 64 };
static struct {
    struct tile_config shape; /* palette 0: none, the instructions fault */
    uint8_t tile[TILES][TILE_ROWS][TILE_BYTES];
} tiles;

static inline void tile_require(int condition)
{
    if (!condition)
        abort();
}
static inline void tile_configure(const struct tile_config *c)
{
    tile_require(c->palette == 1);
    for (int i = 0; i < 16; i++) {
        tile_require(c->rows[i] <= TILE_ROWS && c->row_bytes[i] <= TILE_BYTES);
        tile_require(i < TILES || (c->rows[i] == 0 && c->row_bytes[i] == 0));
        tile_require((c->rows[i] == 0) == (c->row_bytes[i] == 0));
    }
    for (int i = 0; i < 14; i++)
        tile_require(c->zero[i] == 0);
    tiles.shape = *c;
    memset(tiles.tile, 0xa5, sizeof tiles.tile);
}
static inline void tile_release(void)
{
    memset(&tiles.shape, 0, sizeof tiles.shape);
}
static inline void tile_zero(int t)
{
    tile_require(tiles.shape.rows[t] > 0);
    memset(tiles.tile[t], 0, sizeof tiles.tile[t]);
}
/* What a load does not fill becomes zero. */
static inline void tile_load(int t, const void *from, intptr_t stride)
{
    tile_zero(t);
    for (int r = 0; r < tiles.shape.rows[t]; r++)
        memcpy(tiles.tile[t][r], (const char *)from + r * stride, tiles.shape.row_bytes[t]);
}
static inline void tile_store(void *to, intptr_t stride, int t)
{
    tile_require(tiles.shape.rows[t] > 0);
    for (int r = 0; r < tiles.shape.rows[t]; r++)
        memcpy((char *)to + r * stride, tiles.tile[t][r], tiles.shape.row_bytes[t]);
}
static inline void tile_dot(int c, int a, int b)
{
    const struct tile_config *s = &tiles.shape;
    const int n_m = s->rows[c], n_n = s->row_bytes[c] / 4, n_k = s->row_bytes[a] / 4;
    tile_require(c != a && c != b && a != b && n_m > 0 && n_n > 0 && n_k > 0);
    tile_require(s->row_bytes[c] % 4 == 0 && s->row_bytes[a] % 4 == 0);
    tile_require(s->rows[a] == n_m && s->rows[b] == n_k && s->row_bytes[b] == 4 * n_n);
    for (int m = 0; m < n_m; m++)
        for (int n = 0; n < n_n; n++) {
            uint32_t sum;
            memcpy(&sum, &tiles.tile[c][m][4 * n], 4);
            for (int k = 0; k < n_k; k++)
                for (int i = 0; i < 4; i++)
                    sum += (uint32_t)((int8_t)tiles.tile[a][m][4 * k + i] * (int)tiles.tile[b][k][4 * n + i]);
            memcpy(&tiles.tile[c][m][4 * n], &sum, 4);
        }
}
#define TILE_ZERO(t) tile_zero(t)
#define TILE_LOAD(t, from, stride) tile_load(t, from, (intptr_t)(stride))
#define TILE_STORE(to, stride, t) tile_store(to, (intptr_t)(stride), t)
#define TILE_DOT(c, a, b) tile_dot(c, a, b)

#endif
