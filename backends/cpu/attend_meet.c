/* SPDX-License-Identifier: MIT */
/* Attention by tiles: 64 keys and some tiles, in floats; keys and values in panels or where they
 * lie. */
#include "attend_block.h"

enum { PAIR_TILES = 2 /* beside whose panels there is no room for more */ };

static uint32_t lane_of(const struct bl_attend_keys *k, uint32_t key)
{
    return key <= k->at ? 0 : key - k->at < BL_TILE_KEYS ? key - k->at : BL_TILE_KEYS;
}

static void limit_tile(struct bl_attend_meeting *m, uint32_t i)
{
    const uint32_t at = m->first_tile + i;
    const struct bl_attend_span *span = m->w->span + at * BL_TILE_ROWS;
    struct bl_tile *t = &m->w->tile[at];
    struct bl_attend_span seen = {BL_TILE_KEYS, 0};
    for (uint32_t r = 0; r < bl_attend_rows_of_tile(m, i); r++) {
        t->first[r] = lane_of(&m->w->keys[0], span[r].first);
        t->end[r] = lane_of(&m->w->keys[0], span[r].end);
        if (t->first[r] >= t->end[r])
            continue;
        seen.first = t->first[r] < seen.first ? t->first[r] : seen.first;
        seen.end = t->end[r] > seen.end ? t->end[r] : seen.end;
    }
    m->seen[i] = seen;
}

/* Rows of keys in hand from lane `from` on, where they lie; `ask`: those of the next as well. */
static struct bl_tile_source rows_from(const struct bl_attend_meeting *m,
                                       struct bl_attend_span lanes, bool values, bool ask)
{
    const struct bl_attend_keys *k = &m->w->keys[0], *next = &m->w->keys[1];
    struct bl_tile_source s = {.n_keys = lanes.end - lanes.first};
    s.base = values ? k->v : k->k;
    s.row = (values ? k->v_off : k->k_off) + lanes.first;
    if (ask && next->first < next->end && !(values && next->v == next->k)) {
        s.next_base = values ? next->v : next->k;
        s.next = (values ? next->v_off : next->k_off) + lanes.first;
    }
    return s;
}

static void score_rows(const struct bl_attend_meeting *m)
{
    bool ask = m->decode;
    for (uint32_t i = 0; i < m->n_tiles; i++) {
        const struct bl_attend_span seen = m->seen[i];
        if (seen.first >= seen.end)
            continue;
        const struct bl_tile_source s = rows_from(m, seen, false, ask);
        m->a->row_scores(m->a->at.dk, bl_attend_rows_of_tile(m, i),
                         bl_attend_score_of(m, i) + seen.first,
                         m->w->q + (size_t)(m->first_tile + i) * BL_TILE_ROWS * m->a->at.dk, &s);
        ask = false;
    }
}

static void score_panel(const struct bl_attend_meeting *m, uint32_t from)
{
    const struct bl_cpu_attention_args *a = m->a;
    const struct bl_attend_keys *k = &m->w->keys[0];
    float *panel = m->w->panel + (size_t)(m->once ? 0 : from) * a->at.dk;
    const struct bl_attend_span have = bl_attend_lanes_of(k, from, BL_TILE_PANEL);
    bl_tile_ahead *ahead =
        m->decode ? bl_attend_keys_ahead(a, m->w, from, BL_TILE_PANEL, a->at.dk) : NULL;
    if (m->decode && have.first < have.end)
        a->keys(a->at.dk, panel, k->k, k->k_off + from);
    for (uint32_t i = 0; i < m->n_tiles; i++) {
        if (m->seen[i].first >= from + BL_TILE_PANEL || m->seen[i].end <= from)
            continue;
        m->kernels->tile.scores(
            a->at.dk, bl_attend_rows_of_tile(m, i), bl_attend_score_of(m, i) + from,
            m->w->q + (size_t)(m->first_tile + i) * BL_TILE_ROWS * a->at.dk, panel, ahead);
        ahead = NULL;
    }
}

static void weigh(const struct bl_attend_meeting *m)
{
    for (uint32_t i = 0; i < m->n_tiles; i++)
        if (m->seen[i].first < m->seen[i].end)
            m->kernels->tile.weights(bl_attend_rows_of_tile(m, i), bl_attend_score_of(m, i),
                                     &m->w->tile[m->first_tile + i]);
}

static float *value_of(const struct bl_attend_meeting *m, uint32_t lane)
{
    return m->w->values +
           (size_t)(m->once ? lane % BL_TILE_PANEL : lane) * bl_tile_padded(m->a->at.dv);
}

/* Lanes that all of some rows of a tile see. */
struct stretch {
    uint32_t row, n_rows;
    struct bl_attend_span lanes;
};

static void sum_stretch(const struct bl_attend_meeting *m, uint32_t i, const struct stretch *s,
                        bl_tile_ahead *ahead, bool ask)
{
    const uint32_t dv = m->a->at.dv, tile = m->first_tile + i, from = s->lanes.first;
    const struct bl_tile *t = &m->w->tile[tile];
    float *acc = m->w->acc + ((size_t)tile * BL_TILE_ROWS + s->row) * bl_tile_padded(dv);
    const float *weight = bl_attend_score_of(m, i) + (size_t)s->row * BL_TILE_KEYS + from;
    const float *keep = t->first[s->row] == from ? t->keep + s->row : NULL;
    if (m->a->row_sum) {
        const struct bl_tile_source rows = rows_from(m, s->lanes, true, ask);
        m->a->row_sum(dv, s->n_rows, acc, weight, keep, &rows);
    } else {
        m->kernels->tile.sum(dv, s->n_rows, s->lanes.end - from, acc, weight, value_of(m, from),
                             keep, ahead);
    }
}

static bool sees(const struct bl_tile *t, uint32_t row, uint32_t lane)
{
    return t->first[row] <= lane && lane < t->end[row];
}

/* The first lane behind `from`, before `end`, where some row begins or ends to see. */
static uint32_t next_edge(const struct bl_tile *t, uint32_t n, uint32_t from, uint32_t end)
{
    for (uint32_t r = 0; r < n; r++) {
        if (t->first[r] > from && t->first[r] < end)
            end = t->first[r];
        if (t->end[r] > from && t->end[r] < end)
            end = t->end[r];
    }
    return end;
}

/* Rows meet only what they see: zero times a value that is no number would be none. Mostly all rows
 * see all lanes. */
static void sum_tile(const struct bl_attend_meeting *m, uint32_t i, struct bl_attend_span lanes,
                     bl_tile_ahead *ahead, bool ask)
{
    const struct bl_tile *t = &m->w->tile[m->first_tile + i];
    const uint32_t n = bl_attend_rows_of_tile(m, i);
    for (uint32_t from = lanes.first, to; from < lanes.end; from = to) {
        to = next_edge(t, n, from, lanes.end);
        for (uint32_t r = 0, end; r < n; r = end) {
            end = r + 1;
            if (!sees(t, r, from))
                continue;
            while (end < n && sees(t, end, from) &&
                   (t->first[end] == from) == (t->first[r] == from))
                end++;
            sum_stretch(m, i, &(struct stretch){r, end - r, {from, to}}, ahead, ask);
            ahead = NULL;
        }
    }
}

static void sum_rows(const struct bl_attend_meeting *m)
{
    bool ask = m->decode;
    for (uint32_t i = 0; i < m->n_tiles; i++) {
        if (m->seen[i].first >= m->seen[i].end)
            continue;
        sum_tile(m, i, m->seen[i], NULL, ask);
        ask = false;
    }
}

static void sum_panel(const struct bl_attend_meeting *m, uint32_t from)
{
    const struct bl_cpu_attention_args *a = m->a;
    const struct bl_attend_keys *k = &m->w->keys[0];
    const struct bl_attend_span have = bl_attend_lanes_of(k, from, BL_TILE_PANEL);
    bool ask = m->decode;
    if (m->decode && have.first < have.end)
        a->values(a->at.dv, have.end - have.first, value_of(m, have.first), k->v,
                  k->v_off + have.first);
    for (uint32_t i = 0; i < m->n_tiles; i++) {
        const struct bl_attend_span seen = m->seen[i];
        const struct bl_attend_span s = {seen.first > from ? seen.first : from,
                                         seen.end < from + BL_TILE_PANEL ? seen.end
                                                                         : from + BL_TILE_PANEL};
        bl_tile_ahead *ahead = NULL;
        if (s.first >= s.end)
            continue;
        if (ask)
            ahead = bl_attend_values_ahead(a, m->w, from, BL_TILE_PANEL,
                                           (s.end - s.first) * (bl_tile_padded(a->at.dv) / 32));
        sum_tile(m, i, s, ahead, false);
        ask = false;
    }
}

static void meet_floats(const struct bl_attend_meeting *m)
{
    if (m->a->row_scores)
        score_rows(m);
    for (uint32_t from = 0; from < BL_TILE_KEYS && !m->a->row_scores; from += BL_TILE_PANEL)
        score_panel(m, from);
    weigh(m);
    if (m->a->row_sum)
        sum_rows(m);
    for (uint32_t from = 0; from < BL_TILE_KEYS && !m->a->row_sum; from += BL_TILE_PANEL)
        sum_panel(m, from);
}

void bl_attend_meet_keys(const struct bl_cpu_attention_args *a, const struct bl_cpu_job *job,
                         struct bl_attend_work *w, uint32_t n_rows)
{
    const uint32_t n_tiles = (n_rows + BL_TILE_ROWS - 1) / BL_TILE_ROWS;
    const uint32_t together = a->pair_keys ? PAIR_TILES : BL_ATTEND_TILES;
    struct bl_attend_meeting m = {.a = a, .kernels = job->kernels, .w = w, .n_rows = n_rows};
    m.once = n_tiles <= together;
    m.decode = true;
    for (; m.first_tile < n_tiles; m.first_tile += together, m.decode = false) {
        m.n_tiles = n_tiles - m.first_tile < together ? n_tiles - m.first_tile : together;
        for (uint32_t i = 0; i < m.n_tiles; i++)
            limit_tile(&m, i);
        if (a->pair_keys)
            bl_attend_meet_pairs(&m);
        else
            meet_floats(&m);
    }
}
