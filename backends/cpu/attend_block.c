/* SPDX-License-Identifier: MIT */
/* The steps of attention by tiles of queries; attention.h says how the work is cut. */
#include "attend_rows.h"

#include <math.h>

enum {
    TILES = 4,       /* that take one panel after the other, which stays in the first-level cache */
    PIECE = 16,      /* rows between which the next ones are asked for */
    MOST_ROWS = 512, /* queries of a unit: they pay for decoding keys and values */
    QUERY_BYTES = 640000, /* of queries and sums: they stay in a second-level cache of 1 MiB */
    UNITS = 4             /* for each thread at least, so that their ends do not show */
};

/* ---- a thread's tools ---- */

/* 64 consecutive keys of one head in hand, or fewer: from lane `first` to `end`. */
struct keys {
    const uint8_t *k, *v; /* where offsets count from */
    uint64_t *k_off, *v_off;
    uint32_t first, end, at; /* lane 0 is key `at` */
};

/* Keys that a query sees of a part. */
struct span {
    uint32_t first, end;
};

struct running {
    float max, sum;
    bool any;
};

struct work {
    struct keys keys[2]; /* in use, and the next */
    float *q, *acc;      /* [rows] */
    float *panel;        /* [64 keys] */
    float *values;       /* [64] */
    float *score;        /* [TILES] */
    struct bl_tile *tile;
    struct span *span;
    struct running *total; /* [rows] */
    const void **ahead;    /* lines for one call of a kernel */
};

/* Sizes of the pieces, in the order of struct work. */
struct layout {
    uint64_t off, q, acc, panel, values, score, tile, span, total, ahead;
};

static struct layout layout_of(const struct bl_attention_attr *at, uint32_t rows)
{
    const uint64_t width = bl_tile_padded(at->dv);
    return (struct layout){
        .off = 4 * BL_TILE_KEYS * sizeof(uint64_t),
        .q = bl_cpu_round((uint64_t)rows * at->dk * sizeof(float)),
        .acc = bl_cpu_round(rows * width * sizeof(float)),
        .panel = bl_cpu_round((uint64_t)at->dk * BL_TILE_KEYS * sizeof(float)),
        .values = BL_TILE_KEYS * width * sizeof(float),
        .score = TILES * BL_TILE_ROWS * BL_TILE_KEYS * sizeof(float),
        .tile = bl_cpu_round(rows / BL_TILE_ROWS * sizeof(struct bl_tile)),
        .span = bl_cpu_round(rows * sizeof(struct span)),
        .total = bl_cpu_round(rows * sizeof(struct running)),
        .ahead = bl_cpu_round((at->dk > width ? at->dk : width) * sizeof(void *)),
    };
}

uint32_t bl_cpu_tile_rows(const struct bl_attention_attr *at, uint32_t n_tok)
{
    const uint64_t bytes = ((uint64_t)at->dk + bl_tile_padded(at->dv)) * sizeof(float);
    const uint64_t all = (uint64_t)n_tok * (at->n_head / at->n_head_kv);
    uint64_t rows = QUERY_BYTES / bytes < MOST_ROWS ? QUERY_BYTES / bytes : MOST_ROWS;
    rows = rows < all ? rows : all;
    return (uint32_t)bl_align_up(rows ? rows : 1, BL_TILE_ROWS);
}

uint64_t bl_cpu_tile_work_bytes(const struct bl_attention_attr *at, uint32_t rows)
{
    const struct layout l = layout_of(at, rows);
    return l.off + l.q + l.acc + l.panel + l.values + l.score + l.tile + l.span + l.total + l.ahead;
}

static struct work work_of(const struct bl_cpu_attention_args *a, uint32_t ith)
{
    const struct layout l = layout_of(&a->at, a->tile_rows);
    uint8_t *p = a->work + ith * a->work_bytes;
    struct work w = {0};
    for (unsigned i = 0; i < 2; i++) {
        w.keys[i].k_off = (uint64_t *)p + 2 * i * BL_TILE_KEYS;
        w.keys[i].v_off = w.keys[i].k_off + BL_TILE_KEYS;
    }
    w.q = (float *)(p += l.off);
    w.acc = (float *)(p += l.q);
    w.panel = (float *)(p += l.acc);
    w.values = (float *)(p += l.panel);
    w.score = (float *)(p += l.values);
    w.tile = (struct bl_tile *)(p += l.score);
    w.span = (struct span *)(p += l.tile);
    w.total = (struct running *)(p += l.span);
    w.ahead = (const void **)(p + l.total);
    return w;
}

/* ---- units ---- */

/* Query heads [head, head + n_heads) of one key head for tokens [t0, t1) of one sequence: rows of
 * tiles in the order of tokens, then heads. Many tokens: against all that they see; few: one part
 * of it. */
struct unit {
    uint32_t t0, t1, kv, head, n_heads, part;
    uint32_t key, n_same; /* of its tokens and key head: a number, and how many units there are */
    struct bl_attend_view all;
};

struct plan {
    uint32_t tokens, heads, subsets; /* of a unit; units of one key head */
    bool few;
};

/* Blocks of tokens from the last, whose tokens see most: what ends last shall be small. */
struct walk {
    struct plan plan;
    uint32_t t0, t1, parts, n_blocks;
    uint64_t before, units; /* of later blocks, of this one */
    struct bl_attend_view all;
};

static uint32_t start_of_run(const struct bl_params *p, uint32_t end, uint32_t most)
{
    const uint32_t *seq = BL_PARAMS_ARRAY(const uint32_t, p, p->seq_off);
    uint32_t t = end - 1;
    while (t > 0 && end - t < most && seq[t - 1] == seq[t])
        t--;
    return t;
}

/* false before the first token */
static bool next_block(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                       struct walk *w)
{
    w->before += w->units;
    w->units = 0;
    if (!w->t0)
        return false;
    w->n_blocks++;
    w->t1 = w->t0;
    w->t0 = start_of_run(p, w->t1, w->plan.tokens);
    w->all = bl_attend_view_of_all(a, p, w->t0, w->t1);
    w->parts = w->plan.few ? bl_attend_n_parts(a, w->all) : 1;
    w->units = (uint64_t)w->parts * a->at.n_head_kv * w->plan.subsets;
    return true;
}

/* false: there are fewer units. Indices must not go down. */
static bool locate(const struct bl_cpu_attention_args *a, const struct bl_params *p, struct walk *w,
                   uint32_t index, struct unit *u)
{
    while (index - w->before >= w->units)
        if (!next_block(a, p, w))
            return false;
    const uint32_t i = (uint32_t)(index - w->before), subset = i % w->plan.subsets;
    const uint32_t first = subset * w->plan.heads, left = a->group - first;
    *u = (struct unit){.t0 = w->t0, .t1 = w->t1, .all = w->all};
    u->kv = i / w->plan.subsets % a->at.n_head_kv;
    u->part = i / w->plan.subsets / a->at.n_head_kv;
    u->key = (w->n_blocks - 1) * a->at.n_head_kv + u->kv;
    u->n_same = w->parts * w->plan.subsets;
    u->head = u->kv * a->group + first;
    u->n_heads = left < w->plan.heads ? left : w->plan.heads;
    return true;
}

static void take_heads(const struct bl_cpu_attention_args *a, struct plan *plan, uint32_t most)
{
    const uint32_t n = (a->group + most - 1) / most, even = (a->group + n - 1) / n;
    plan->heads = n > 1 ? (uint32_t)bl_align_up(even, BL_TILE_ROWS) : a->group;
    plan->subsets = (a->group + plan->heads - 1) / plan->heads;
}

static uint64_t count_units(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                            const struct plan *plan)
{
    struct walk w = {.plan = *plan, .t0 = p->n_tok};
    while (next_block(a, p, &w))
        ;
    return w.before;
}

/* Large units decode keys for many queries; small ones keep all threads at work. */
static struct plan plan_of(const struct bl_cpu_attention_args *a, const struct bl_cpu_job *job,
                           bool few)
{
    struct plan plan = {.few = few};
    take_heads(a, &plan, a->tile_rows);
    plan.tokens = a->chosen ? 1 : a->tile_rows / plan.heads;
    while (count_units(a, job->params, &plan) < (uint64_t)UNITS * job->nth)
        if (plan.tokens > 1)
            plan.tokens = (plan.tokens + 1) / 2;
        else if (plan.heads > BL_TILE_ROWS)
            take_heads(a, &plan, plan.heads / 2);
        else
            break;
    return plan;
}

/* Units are taken one by one as threads come for them; results do not depend on who takes which. */
static bool next_unit(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                      struct walk *w, struct unit *u)
{
    uint32_t i;
    return bl_cpu_claim(a->counter, UINT32_MAX, &i) && locate(a, p, w, i, u);
}

/* ---- keys in hand ---- */

/* Where the next 64 keys come from: what is left of a part. */
struct source {
    uint32_t kv;
    struct bl_attend_view view;
    struct bl_attend_part part;
};

/* Finds the first keys of the source, whose lanes are their places modulo 64 whatever comes before
 * or after, and takes them from it. Lanes outside get the nearest row. */
static void find_keys(const struct bl_cpu_attention_args *a, struct source *s, struct keys *keys)
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

static struct source source_of(const struct bl_cpu_attention_args *a, const struct unit *u,
                               uint32_t part)
{
    return (struct source){u->kv, u->all, bl_attend_part_of(a, u->all, part)};
}

/* Lanes [from, from + n) of those that there are. */
static struct span lanes_of(const struct keys *k, uint32_t from, uint32_t n)
{
    const uint32_t end = from + n < k->end ? from + n : k->end;
    return (struct span){from > k->first ? from : k->first, end};
}

/* Lists the cache lines of a panel of rows to come, for a kernel to ask for one in each of its
 * `room` rounds: all at once would wait for each other while nothing is computed. Rows of one head
 * lie apart, other heads between them, where hardware does not look. What finds no room is asked
 * for here. */
static void list_lines(const struct work *w, uint32_t room, const uint8_t *base,
                       const uint64_t *off, struct span rows, size_t head_bytes)
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

static bl_tile_ahead *keys_ahead(const struct bl_cpu_attention_args *a, const struct work *w,
                                 uint32_t from)
{
    const struct keys *k = &w->keys[1];
    list_lines(w, a->at.dk, k->k, k->k_off, lanes_of(k, from, BL_TILE_PANEL), a->k_head_bytes);
    return w->ahead;
}

static bl_tile_ahead *values_ahead(const struct bl_cpu_attention_args *a, const struct work *w,
                                   uint32_t from, uint32_t n_keys)
{
    const struct keys *k = &w->keys[1];
    if (k->v == k->k) /* they come as keys */
        return NULL;
    list_lines(w, n_keys * (bl_tile_padded(a->at.dv) / 32), k->v, k->v_off,
               lanes_of(k, from, BL_TILE_PANEL), a->v_head_bytes);
    return w->ahead;
}

/* ---- 64 keys ---- */

/* Some tiles of a unit and the keys in hand. decode: the first tiles to meet these; then `once`:
 * there are no others, and the second panel may take the place of the first in the cache. */
struct meeting {
    const struct bl_cpu_attention_args *a;
    const struct bl_tile_kernel *kernel;
    struct work *w;
    uint32_t n_rows, first_tile, n_tiles;
    struct span seen[TILES]; /* lanes that some row of the tile sees */
    bool decode, once;
};

static uint32_t rows_of_tile(const struct meeting *m, uint32_t i)
{
    const uint32_t left = m->n_rows - (m->first_tile + i) * BL_TILE_ROWS;
    return left < BL_TILE_ROWS ? left : BL_TILE_ROWS;
}

static uint32_t lane_of(const struct keys *k, uint32_t key)
{
    return key <= k->at ? 0 : key - k->at < BL_TILE_KEYS ? key - k->at : BL_TILE_KEYS;
}

static void limit_tile(struct meeting *m, uint32_t i)
{
    const uint32_t at = m->first_tile + i;
    const struct span *span = m->w->span + at * BL_TILE_ROWS;
    struct bl_tile *t = &m->w->tile[at];
    struct span seen = {BL_TILE_KEYS, 0};
    for (uint32_t r = 0; r < rows_of_tile(m, i); r++) {
        t->first[r] = lane_of(&m->w->keys[0], span[r].first);
        t->end[r] = lane_of(&m->w->keys[0], span[r].end);
        if (t->first[r] >= t->end[r])
            continue;
        seen.first = t->first[r] < seen.first ? t->first[r] : seen.first;
        seen.end = t->end[r] > seen.end ? t->end[r] : seen.end;
    }
    m->seen[i] = seen;
}

static float *score_of(const struct meeting *m, uint32_t i)
{
    return m->w->score + i * BL_TILE_ROWS * BL_TILE_KEYS;
}

/* Rows of keys in hand from lane `from` on, where they lie; `ask`: those of the next as well. */
static struct bl_tile_source rows_from(const struct meeting *m, struct span lanes, bool values,
                                       bool ask)
{
    const struct keys *k = &m->w->keys[0], *next = &m->w->keys[1];
    struct bl_tile_source s = {.n_keys = lanes.end - lanes.first};
    s.base = values ? k->v : k->k;
    s.row = (values ? k->v_off : k->k_off) + lanes.first;
    if (ask && next->first < next->end && !(values && next->v == next->k)) {
        s.next_base = values ? next->v : next->k;
        s.next = (values ? next->v_off : next->k_off) + lanes.first;
    }
    return s;
}

static void score_rows(const struct meeting *m)
{
    bool ask = m->decode;
    for (uint32_t i = 0; i < m->n_tiles; i++) {
        const struct span seen = m->seen[i];
        if (seen.first >= seen.end)
            continue;
        const struct bl_tile_source s = rows_from(m, seen, false, ask);
        m->a->row_scores(m->a->at.dk, rows_of_tile(m, i), score_of(m, i) + seen.first,
                         m->w->q + (size_t)(m->first_tile + i) * BL_TILE_ROWS * m->a->at.dk, &s);
        ask = false;
    }
}

static void score_panel(const struct meeting *m, uint32_t from)
{
    const struct bl_cpu_attention_args *a = m->a;
    const struct keys *k = &m->w->keys[0];
    float *panel = m->w->panel + (size_t)(m->once ? 0 : from) * a->at.dk;
    const struct span have = lanes_of(k, from, BL_TILE_PANEL);
    bl_tile_ahead *ahead = m->decode ? keys_ahead(a, m->w, from) : NULL;
    if (m->decode && have.first < have.end)
        a->keys(a->at.dk, panel, k->k, k->k_off + from);
    for (uint32_t i = 0; i < m->n_tiles; i++) {
        if (m->seen[i].first >= from + BL_TILE_PANEL || m->seen[i].end <= from)
            continue;
        m->kernel->scores(a->at.dk, rows_of_tile(m, i), score_of(m, i) + from,
                          m->w->q + (size_t)(m->first_tile + i) * BL_TILE_ROWS * a->at.dk, panel,
                          ahead);
        ahead = NULL;
    }
}

static void weigh(const struct meeting *m)
{
    for (uint32_t i = 0; i < m->n_tiles; i++)
        if (m->seen[i].first < m->seen[i].end)
            m->kernel->weights(rows_of_tile(m, i), score_of(m, i), &m->w->tile[m->first_tile + i]);
}

static float *value_of(const struct meeting *m, uint32_t lane)
{
    return m->w->values +
           (size_t)(m->once ? lane % BL_TILE_PANEL : lane) * bl_tile_padded(m->a->at.dv);
}

/* Lanes that all of some rows of a tile see. */
struct stretch {
    uint32_t row, n_rows;
    struct span lanes;
};

static void sum_stretch(const struct meeting *m, uint32_t i, const struct stretch *s,
                        bl_tile_ahead *ahead, bool ask)
{
    const uint32_t dv = m->a->at.dv, tile = m->first_tile + i, from = s->lanes.first;
    const struct bl_tile *t = &m->w->tile[tile];
    float *acc = m->w->acc + ((size_t)tile * BL_TILE_ROWS + s->row) * bl_tile_padded(dv);
    const float *weight = score_of(m, i) + (size_t)s->row * BL_TILE_KEYS + from;
    const float *keep = t->first[s->row] == from ? t->keep + s->row : NULL;
    if (m->a->row_sum) {
        const struct bl_tile_source rows = rows_from(m, s->lanes, true, ask);
        m->a->row_sum(dv, s->n_rows, acc, weight, keep, &rows);
    } else {
        m->kernel->sum(dv, s->n_rows, s->lanes.end - from, acc, weight, value_of(m, from), keep,
                       ahead);
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
static void sum_tile(const struct meeting *m, uint32_t i, struct span lanes, bl_tile_ahead *ahead,
                     bool ask)
{
    const struct bl_tile *t = &m->w->tile[m->first_tile + i];
    const uint32_t n = rows_of_tile(m, i);
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

static void sum_rows(const struct meeting *m)
{
    bool ask = m->decode;
    for (uint32_t i = 0; i < m->n_tiles; i++) {
        if (m->seen[i].first >= m->seen[i].end)
            continue;
        sum_tile(m, i, m->seen[i], NULL, ask);
        ask = false;
    }
}

static void sum_panel(const struct meeting *m, uint32_t from)
{
    const struct bl_cpu_attention_args *a = m->a;
    const struct keys *k = &m->w->keys[0];
    const struct span have = lanes_of(k, from, BL_TILE_PANEL);
    bool ask = m->decode;
    if (m->decode && have.first < have.end)
        a->values(a->at.dv, have.end - have.first, value_of(m, have.first), k->v,
                  k->v_off + have.first);
    for (uint32_t i = 0; i < m->n_tiles; i++) {
        const struct span seen = m->seen[i];
        const struct span s = {seen.first > from ? seen.first : from,
                               seen.end < from + BL_TILE_PANEL ? seen.end : from + BL_TILE_PANEL};
        if (s.first >= s.end)
            continue;
        sum_tile(m, i, s, ask ? values_ahead(a, m->w, from, s.end - s.first) : NULL, false);
        ask = false;
    }
}

static void meet_keys(const struct bl_cpu_attention_args *a, const struct bl_cpu_job *job,
                      struct work *w, uint32_t n_rows)
{
    const uint32_t n_tiles = (n_rows + BL_TILE_ROWS - 1) / BL_TILE_ROWS;
    struct meeting m = {a,      &job->kernels->tile, w,
                        n_rows, .decode = true,      .once = n_tiles <= TILES};
    for (; m.first_tile < n_tiles; m.first_tile += TILES, m.decode = false) {
        m.n_tiles = n_tiles - m.first_tile < TILES ? n_tiles - m.first_tile : TILES;
        for (uint32_t i = 0; i < m.n_tiles; i++)
            limit_tile(&m, i);
        if (a->row_scores)
            score_rows(&m);
        for (uint32_t from = 0; from < BL_TILE_KEYS && !a->row_scores; from += BL_TILE_PANEL)
            score_panel(&m, from);
        weigh(&m);
        if (a->row_sum)
            sum_rows(&m);
        for (uint32_t from = 0; from < BL_TILE_KEYS && !a->row_sum; from += BL_TILE_PANEL)
            sum_panel(&m, from);
    }
}

/* ---- a part ---- */

static uint32_t n_rows_of(const struct unit *u)
{
    return (u->t1 - u->t0) * u->n_heads;
}

/* Queries of the unit, scaled so that weights are powers of two. */
static void load_queries(const struct bl_cpu_attention_args *a, const struct unit *u, float *q)
{
    const float scale = a->at.scale * 0x1.715476p+0f;
    const uint32_t n = u->n_heads * a->at.dk;
    for (uint32_t t = u->t0; t < u->t1; t++, q += n) {
        const float *src = a->q + ((size_t)t * a->at.n_head + u->head) * a->at.dk;
        for (uint32_t i = 0; i < n; i++)
            q[i] = src[i] * scale;
    }
}

static void begin_part(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                       const struct work *w, const struct unit *u, struct bl_attend_part part)
{
    const uint32_t n = n_rows_of(u);
    struct span *span = w->span;
    for (uint32_t t = u->t0; t < u->t1; t++) {
        const struct bl_attend_part mine = bl_attend_meet(bl_attend_view_of(a, p, t), part);
        for (uint32_t h = 0; h < u->n_heads; h++)
            *span++ = (struct span){mine.first, mine.first + mine.n};
    }
    for (uint32_t r = 0; r < n; r++) {
        w->tile[r / BL_TILE_ROWS].max[r % BL_TILE_ROWS] = -INFINITY;
        w->tile[r / BL_TILE_ROWS].sum[r % BL_TILE_ROWS] = 0;
    }
    memset(w->acc, 0, (size_t)n * bl_tile_padded(a->at.dv) * sizeof *w->acc);
}

/* From first keys, which are in hand, to last; then the first ones of `after` are. */
static void run_part(const struct bl_cpu_attention_args *a, const struct bl_cpu_job *job,
                     struct work *w, const struct unit *u, uint32_t part, struct source *after)
{
    struct source s = source_of(a, u, part);
    begin_part(a, job->params, w, u, s.part);
    s.part.n -= w->keys[0].end - w->keys[0].first;
    s.part.first += w->keys[0].end - w->keys[0].first;
    for (bool more = true; more;) {
        more = s.part.n > 0;
        find_keys(a, more ? &s : after, &w->keys[1]);
        meet_keys(a, job, w, n_rows_of(u));
        const struct keys in_use = w->keys[0];
        w->keys[0] = w->keys[1];
        w->keys[1] = in_use;
    }
}

/* ---- results ---- */

static void merge(uint32_t dv, struct running *to, float *y, struct running part, const float *acc)
{
    if (!to->any) {
        *to = part;
        memcpy(y, acc, dv * sizeof *y);
        return;
    }
    const float max = part.max > to->max ? part.max : to->max;
    const float c_to = exp2f(to->max - max), c_part = exp2f(part.max - max);
    to->max = max;
    to->sum = to->sum * c_to + part.sum * c_part;
    for (uint32_t i = 0; i < dv; i++)
        y[i] = y[i] * c_to + acc[i] * c_part;
}

/* A sink is a score without a value. */
static void finish(const struct bl_cpu_attention_args *a, struct running r, uint32_t head, float *y)
{
    float c = 1;
    if (a->sinks) {
        const float sink = a->sinks[head] * 0x1.715476p+0f, max = sink > r.max ? sink : r.max;
        c = exp2f(r.max - max);
        r.sum = r.sum * c + exp2f(sink - max);
    }
    c /= r.sum;
    for (uint32_t i = 0; i < a->at.dv; i++)
        y[i] *= c;
}

static float *out_of(const struct bl_cpu_attention_args *a, uint32_t t, uint32_t head)
{
    return a->y + ((size_t)t * a->at.n_head + head) * a->at.dv;
}

static struct running state_of(const struct work *w, uint32_t row)
{
    const struct bl_tile *t = &w->tile[row / BL_TILE_ROWS];
    const uint32_t r = row % BL_TILE_ROWS;
    return (struct running){t->max[r], t->sum[r], true};
}

static bool sees_any(const struct work *w, uint32_t row)
{
    return w->span[row].first < w->span[row].end;
}

/* ---- many tokens ---- */

static void merge_part(const struct bl_cpu_attention_args *a, const struct work *w,
                       const struct unit *u)
{
    const uint32_t dv = a->at.dv, width = bl_tile_padded(dv);
    for (uint32_t row = 0; row < n_rows_of(u); row++)
        if (sees_any(w, row))
            merge(dv, &w->total[row],
                  out_of(a, u->t0 + row / u->n_heads, u->head + row % u->n_heads), state_of(w, row),
                  w->acc + (size_t)row * width);
}

static void run_unit(const struct bl_cpu_attention_args *a, const struct bl_cpu_job *job,
                     struct work *w, const struct unit *u)
{
    const uint32_t n = bl_attend_n_parts(a, u->all), n_rows = n_rows_of(u);
    struct source s = source_of(a, u, 0);
    load_queries(a, u, w->q);
    memset(w->total, 0, n_rows * sizeof *w->total);
    find_keys(a, &s, &w->keys[0]);
    for (uint32_t i = 0; i < n; i++) {
        struct source after = {0};
        if (i + 1 < n)
            after = source_of(a, u, i + 1);
        run_part(a, job, w, u, i, &after);
        merge_part(a, w, u);
    }
    for (uint32_t row = 0; row < n_rows; row++) {
        const uint32_t t = u->t0 + row / u->n_heads, head = u->head + row % u->n_heads;
        finish(a, w->total[row], head, out_of(a, t, head));
    }
}

void bl_cpu_tile_many(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_cpu_attention_args *a = args;
    struct walk walk = {.plan = plan_of(a, job, false), .t0 = job->params->n_tok};
    struct work w = work_of(a, job->ith);
    struct unit u;
    while (next_unit(a, job->params, &walk, &u))
        run_unit(a, job, &w, &u);
}

/* ---- few tokens ---- */

static float *partial_of(const struct bl_cpu_attention_args *a, uint32_t t, uint32_t head,
                         uint32_t part)
{
    return a->partial +
           (((size_t)t * a->at.n_head + head) * a->n_splits + part) * a->partial_floats;
}

/* Parts of a unit are counted over what its tokens see together; a token counts its own. */
static uint32_t own_part(const struct bl_cpu_attention_args *a, struct bl_attend_view v,
                         struct bl_attend_part part)
{
    const uint32_t split = part.first / a->split;
    return part.groups ? split : bl_attend_row_parts(a, v) + split - v.first / a->split;
}

static void keep_part(const struct bl_cpu_attention_args *a, const struct bl_params *p,
                      const struct work *w, const struct unit *u)
{
    const uint32_t dv = a->at.dv, width = bl_tile_padded(dv);
    const struct bl_attend_part part = bl_attend_part_of(a, u->all, u->part);
    for (uint32_t row = 0; row < n_rows_of(u); row++) {
        const uint32_t t = u->t0 + row / u->n_heads, head = u->head + row % u->n_heads;
        if (!sees_any(w, row))
            continue;
        float *to = partial_of(a, t, head, own_part(a, bl_attend_view_of(a, p, t), part));
        const struct running r = state_of(w, row);
        memcpy(to, w->acc + (size_t)row * width, dv * sizeof *to);
        to[dv] = r.max;
        to[dv + 1] = r.sum;
    }
}

/* Results of all parts, which become shares of the whole. A sink is a score without a value. */
static void merge_parts(const struct bl_cpu_attention_args *a, const struct bl_cpu_kernels *kernels,
                        uint32_t t, uint32_t head, uint32_t n)
{
    const uint32_t dv = a->at.dv;
    const float sink = a->sinks ? a->sinks[head] * 0x1.715476p+0f : -INFINITY;
    float *p = partial_of(a, t, head, 0), *y = out_of(a, t, head), max = sink, sum;
    for (uint32_t s = 0; s < n; s++)
        max = p[s * a->partial_floats + dv] > max ? p[s * a->partial_floats + dv] : max;
    sum = a->sinks ? exp2f(sink - max) : 0;
    for (uint32_t s = 0; s < n; s++) {
        float *share = &p[s * a->partial_floats + dv];
        *share = exp2f(*share - max);
        sum += share[1] * *share;
    }
    memset(y, 0, dv * sizeof *y);
    for (uint32_t s = 0; s < n; s++, p += a->partial_floats)
        kernels->axpy(dv, y, p[dv] / sum, p);
}

/* Whoever brings the last part of some tokens and a key head puts their results together: no thread
 * waits for it, and parts are taken in their order. */
static void end_unit(const struct bl_cpu_attention_args *a, const struct bl_cpu_job *job,
                     const struct unit *u)
{
    _Atomic uint32_t *done = &a->done[u->key]->next;
    if (atomic_fetch_add_explicit(done, 1, memory_order_acq_rel) + 1 < u->n_same)
        return;
    for (uint32_t t = u->t0; t < u->t1; t++) {
        const uint32_t n = bl_attend_n_parts(a, bl_attend_view_of(a, job->params, t));
        for (uint32_t i = 0; i < a->group; i++)
            merge_parts(a, job->kernels, t, u->kv * a->group + i, n);
    }
}

/* A unit is taken before the last one is run, so that its first keys come near meanwhile. */
void bl_cpu_tile_few(const void *args, const struct bl_cpu_job *job)
{
    const struct bl_cpu_attention_args *a = args;
    struct walk walk = {.plan = plan_of(a, job, true), .t0 = job->params->n_tok};
    struct work w = work_of(a, job->ith);
    struct unit u, next;
    bool more = next_unit(a, job->params, &walk, &u);
    struct source s = {0};
    if (more) {
        s = source_of(a, &u, u.part);
        find_keys(a, &s, &w.keys[0]);
    }
    for (; more; u = next) {
        struct source after = {0};
        more = next_unit(a, job->params, &walk, &next);
        if (more)
            after = source_of(a, &next, next.part);
        load_queries(a, &u, w.q);
        run_part(a, job, &w, &u, u.part, &after);
        keep_part(a, job->params, &w, &u);
        end_unit(a, job, &u);
    }
}
