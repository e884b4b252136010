/* SPDX-License-Identifier: MIT */
/* Attention by tiles: 64 keys and some tiles, in pairs. */
#include "attend_block.h"

static uint32_t padded_pairs(const struct bl_attend_meeting *m)
{
    return bl_pair_padded(m->a->at.dk);
}

static void score_panel(const struct bl_attend_meeting *m, uint32_t from)
{
    const struct bl_cpu_attention_args *a = m->a;
    const struct bl_attend_keys *k = &m->w->keys[0];
    int16_t *panel = m->w->pair_panel + (size_t)from * padded_pairs(m);
    const struct bl_attend_span have = bl_attend_lanes_of(k, from, BL_TILE_PANEL);
    bl_tile_ahead *ahead =
        m->decode ? bl_attend_keys_ahead(a, m->w, from, BL_TILE_PANEL, a->at.dk) : NULL;
    if (m->decode && have.first < have.end)
        a->pair_keys(a->at.dk, panel, m->w->key_unit + from, k->k, k->k_off + from);
    for (uint32_t i = 0; i < m->n_tiles; i++) {
        const size_t row = (size_t)(m->first_tile + i) * BL_TILE_ROWS;
        if (m->seen[i].first >= from + BL_TILE_PANEL || m->seen[i].end <= from)
            continue;
        m->kernels->pair.scores(
            a->at.dk, bl_attend_rows_of_tile(m, i), bl_attend_score_of(m, i) + from,
            m->w->pair_q + row * padded_pairs(m), panel, m->w->key_unit + from, ahead);
        ahead = NULL;
    }
}

/* Values of pairs of lanes [first / 2, end / 2). */
struct stretch {
    uint32_t row, n_rows, first, end;
    uint32_t mask; /* of each pair */
};

static void sum_stretch(const struct bl_attend_meeting *m, uint32_t i, const struct stretch *s,
                        const float *keep, bl_tile_ahead *ahead)
{
    const uint32_t dv = m->a->at.dv, width = bl_tile_padded(dv);
    const size_t row = (size_t)(m->first_tile + i) * BL_TILE_ROWS + s->row;
    const uint16_t *weight = (const uint16_t *)bl_attend_score_of(m, i);
    m->kernels->pair.sum(dv, s->n_rows, (s->end - s->first) / 2, m->w->acc + row * width,
                         weight + (size_t)s->row * 2 * BL_TILE_KEYS + s->first,
                         m->w->pair_values + (size_t)s->first * width, keep ? keep + s->row : NULL,
                         s->mask, ahead);
}

/* One row and just what it sees: zero times a value that is no number would be none. The pairs are
 * those of all rows, so that sums come out the same. */
static void sum_alone(const struct bl_attend_meeting *m, uint32_t i, uint32_t r, const float *keep)
{
    enum { EVEN = 0xffff };
    const struct bl_tile *t = &m->w->tile[m->first_tile + i];
    for (uint32_t at = t->first[r], to; at < t->end[r]; at = to, keep = NULL) {
        struct stretch s = {r, 1, at & ~1u, (at & ~1u) + 2, UINT32_MAX};
        if (at % 2)
            s.mask = ~(uint32_t)EVEN;
        else if (t->end[r] - at == 1)
            s.mask = EVEN;
        else
            s.end = t->end[r] & ~1u;
        to = s.end < t->end[r] ? s.end : t->end[r];
        sum_stretch(m, i, &s, keep, NULL);
    }
}

static void sum_tile(const struct bl_attend_meeting *m, uint32_t i, bool kept, bl_tile_ahead *ahead)
{
    const struct bl_attend_span seen = m->seen[i];
    const float *keep = kept ? NULL : m->w->tile[m->first_tile + i].keep;
    const uint32_t n = bl_attend_rows_of_tile(m, i);
    const struct stretch all = {0, n, seen.first & ~1u, (seen.end + 1) & ~1u, UINT32_MAX};
    if (m->w->finite) {
        sum_stretch(m, i, &all, keep, ahead);
        return;
    }
    for (uint32_t r = 0; r < n; r++)
        sum_alone(m, i, r, keep);
}

/* Values of the lanes in whole pairs. */
static void decode_values(const struct bl_attend_meeting *m)
{
    const struct bl_attend_keys *k = &m->w->keys[0];
    const uint32_t dv = m->a->at.dv, first = k->first & ~1u;
    m->w->finite = m->a->pair_values(dv, k->end - first,
                                     m->w->pair_values + (size_t)first * bl_tile_padded(dv), k->v,
                                     k->v_off + first);
}

void bl_attend_meet_pairs(const struct bl_attend_meeting *m)
{
    const struct bl_attend_keys *k = &m->w->keys[0];
    bool kept[BL_ATTEND_TILES];
    for (uint32_t from = 0; from < BL_TILE_KEYS; from += BL_TILE_PANEL)
        score_panel(m, from);
    for (uint32_t i = 0; i < m->n_tiles; i++)
        if (m->seen[i].first < m->seen[i].end)
            kept[i] = !m->kernels->pair.weights(
                bl_attend_rows_of_tile(m, i), bl_attend_score_of(m, i),
                m->w->unit + (m->first_tile + i) * BL_TILE_ROWS, &m->w->tile[m->first_tile + i]);
    if (m->decode && k->first < k->end)
        decode_values(m);
    bool ask = m->decode;
    for (uint32_t i = 0; i < m->n_tiles; i++) {
        const struct bl_attend_span seen = m->seen[i];
        bl_tile_ahead *ahead = NULL;
        if (seen.first >= seen.end)
            continue;
        if (ask)
            ahead = bl_attend_values_ahead(m->a, m->w, 0, BL_TILE_KEYS,
                                           (((seen.end + 1) & ~1u) - (seen.first & ~1u)) *
                                               (bl_tile_padded(m->a->at.dv) / 32));
        sum_tile(m, i, kept[i], ahead);
        ask = false;
    }
}
