/* SPDX-License-Identifier: MIT */
/* Attention by tiles: which keys come next, and their cache lines. */
#include "attend_block.h"

struct bl_attend_source bl_attend_source_of(const struct bl_attend_unit *u, uint32_t part)
{
    return (struct bl_attend_source){u->kv, u->all, bl_attend_part_of(u->all, part)};
}

void bl_attend_find_keys(const struct bl_cpu_attention_args *a, struct bl_attend_source *s,
                         struct bl_attend_keys *keys)
{
    struct bl_attend_part p = s->part;
    const uint32_t lane = p.first % BL_TILE_KEYS, room = BL_TILE_KEYS - lane;
    keys->at = p.first - lane;
    keys->first = keys->end = lane;
    if (!p.n)
        return;
    p.n = p.n < room ? p.n : room;
    keys->end = lane + p.n;
    keys->k = (p.groups ? a->rows : a->k) + s->kv * a->k_head_bytes;
    keys->v = (p.groups ? a->rows : a->v) + s->kv * a->v_head_bytes;
    bl_attend_find(a, s->view, p, keys->k_off + lane, keys->v_off + lane);
    for (uint32_t j = 0; j < lane; j++) {
        keys->k_off[j] = keys->k_off[lane];
        keys->v_off[j] = keys->v_off[lane];
    }
    for (uint32_t j = keys->end; j < BL_TILE_KEYS; j++) {
        keys->k_off[j] = keys->k_off[keys->end - 1];
        keys->v_off[j] = keys->v_off[keys->end - 1];
    }
    s->part.first += p.n;
    s->part.n -= p.n;
}

/* Lists the cache lines of a panel of rows to come, for a kernel to ask for one in each of its
 * `room` rounds: all at once would wait for each other while nothing is computed. Rows of one head
 * lie apart, other heads between them, where hardware does not look. What finds no room is asked
 * for here. */
static void list_lines(const struct bl_attend_work *w, uint32_t room, const uint8_t *base,
                       const uint64_t *off, struct bl_attend_span rows, size_t head_bytes)
{
    uint32_t n = 0;
    for (uint32_t j = rows.first; j < rows.end; j++) {
        const uint8_t *row = base + off[j];
        for (const uint8_t *line = row - (uintptr_t)row % 64; line < row + head_bytes; line += 64)
            if (n < room)
                w->ahead[n++] = line;
            else
                BL_PREFETCH(line);
    }
    for (; n < room; n++)
        w->ahead[n] = w->score;
}

bl_tile_ahead *bl_attend_keys_ahead(const struct bl_cpu_attention_args *a,
                                    const struct bl_attend_work *w, uint32_t from, uint32_t n,
                                    uint32_t room)
{
    const struct bl_attend_keys *k = &w->keys[1];
    list_lines(w, room, k->k, k->k_off, bl_attend_lanes_of(k, from, n), a->k_head_bytes);
    return w->ahead;
}

bl_tile_ahead *bl_attend_values_ahead(const struct bl_cpu_attention_args *a,
                                      const struct bl_attend_work *w, uint32_t from, uint32_t n,
                                      uint32_t room)
{
    const struct bl_attend_keys *k = &w->keys[1];
    if (k->v == k->k) /* they come as keys */
        return NULL;
    list_lines(w, room, k->v, k->v_off, bl_attend_lanes_of(k, from, n), a->v_head_bytes);
    return w->ahead;
}
