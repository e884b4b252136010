/* SPDX-License-Identifier: MIT */
#include "stage_ring.h"

#include "mem.h"
#include "take.h"

#include <stdlib.h>

enum { WASTE_SHARE = 100 };   /* of the bytes that were of use, guesses may cost one in so many */
enum { USED = 1, TAKEN = 2 }; /* marks: some token chose it; it is in a chunk */

static const struct bl_sending *sending_of(const struct bl_stage *s, uint32_t chunk)
{
    return &s->program->sending[s->program->chunk[chunk].sending];
}

static struct bl_ring *ring_of(const struct bl_stage *s, uint32_t chunk)
{
    return &s->ring[sending_of(s, chunk)->cut.card];
}

static size_t first_of(const struct bl_stage *s, uint32_t layer)
{
    return (size_t)layer * s->model->hp.n_expert;
}

/* ---- which experts ---- */

/* Slots may have taken some from the host since the plan was made. */
static bool is_on_host(const struct bl_stage *s, uint32_t layer, uint32_t expert)
{
    const uint64_t *table = bl_weights_table(s->weights, s->model, 0, s->first_weight[layer]);
    return table && table[expert];
}

static void put(struct bl_stage *s, uint32_t chunk, uint32_t expert)
{
    struct bl_cargo *c = &s->cargo[chunk];

    s->expert[c->first + c->n++] = expert;
    s->mark[first_of(s, sending_of(s, chunk)->layer) + expert] |= TAKEN;
}

static bool is_sure(const struct bl_stage *s, uint32_t layer, uint32_t expert)
{
    return s->seen[layer] && (double)s->uses[first_of(s, layer) + expert] * s->n_tok >=
                                 s->sure_tokens * (double)s->seen[layer];
}

/* Of those that are sure and in no chunk, the most used; n_experts: there is none. */
static uint32_t surest(const struct bl_stage *s, const struct bl_sending *of)
{
    const size_t first = first_of(s, of->layer);
    uint32_t best = of->cut.n_experts;

    for (uint32_t e = 0; e < of->cut.n_experts; e++)
        if (!(s->mark[first + e] & TAKEN) && is_sure(s, of->layer, e) &&
            is_on_host(s, of->layer, e) &&
            (best == of->cut.n_experts || s->uses[first + e] > s->uses[first + best]))
            best = e;
    return best;
}

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void empty(struct bl_stage *s, uint32_t chunk)
{
    struct bl_cargo *c = &s->cargo[chunk];
    uint8_t *mark = s->mark + first_of(s, sending_of(s, chunk)->layer);

    while (c->n)
        mark[s->expert[c->first + --c->n]] &= (uint8_t)~TAKEN;
}

/* Only a full chunk leaves enough room in those behind it, whoever was chosen. */
static bool fill_ahead(struct bl_stage *s, uint32_t chunk)
{
    const struct bl_sending *of = sending_of(s, chunk);
    struct bl_cargo *c = &s->cargo[chunk];
    uint32_t *n_filled = &s->n_filled[of - s->program->sending];

    if (s->wasted_bytes * WASTE_SHARE > s->used_bytes || *n_filled != s->program->chunk[chunk].nth)
        return false;
    for (uint32_t e; c->n < of->cut.n_each && (e = surest(s, of)) < of->cut.n_experts;)
        put(s, chunk, e);
    if (c->n < of->cut.n_each) {
        empty(s, chunk);
        return false;
    }
    qsort(&s->expert[c->first], c->n, sizeof *s->expert, by_number);
    ++*n_filled;
    return c->filled = true;
}

static void fill_rest(struct bl_stage *s, uint32_t sending)
{
    const struct bl_sending *of = &s->program->sending[sending];
    const uint8_t *mark = s->mark + first_of(s, of->layer);
    uint32_t k = s->n_filled[sending];

    for (uint32_t e = 0; e < of->cut.n_experts; e++) {
        if (mark[e] != USED || !is_on_host(s, of->layer, e))
            continue;
        k += s->cargo[of->first + k].n == of->cut.n_each;
        put(s, of->first + k, e);
    }
    for (k = 0; k < of->cut.n_chunks; k++)
        s->cargo[of->first + k].filled = true;
    s->n_filled[sending] = of->cut.n_chunks;
}

static void note_bytes(struct bl_stage *s, const struct bl_sending *of)
{
    const uint8_t *mark = s->mark + first_of(s, of->layer);

    for (uint32_t e = 0; e < of->cut.n_experts; e++)
        if (mark[e] & TAKEN) {
            uint64_t *sum = mark[e] & USED ? &s->used_bytes : &s->wasted_bytes;
            *sum += of->cut.expert_bytes;
        }
}

void bl_stage_pick(struct bl_stage *s, uint32_t sending, const struct bl_mem *arena)
{
    const struct bl_program *p = s->program;
    const struct bl_sending *of = &p->sending[sending];
    const size_t first = first_of(s, of->layer);
    const int32_t *ids = (const int32_t *)(const void *)((const unsigned char *)arena->host +
                                                         p->home[(size_t)of->ids * p->n_devices]);
    const size_t n = (size_t)s->n_tok * p->graph.vals[of->ids].ne[0];

    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && (uint32_t)ids[i] < of->cut.n_experts) {
            s->mark[first + (uint32_t)ids[i]] |= USED;
            s->uses[first + (uint32_t)ids[i]]++;
        }
    s->seen[of->layer] += s->n_tok;
    s->picked[sending] = true;
    fill_rest(s, sending);
    note_bytes(s, of);
}

/* ---- commands: one that a full queue refused is given again, those before it are not ---- */

struct giving {
    struct bl_stage *stage;
    const struct bl_chunk *chunk;
    const struct bl_sending *of;
    struct bl_cargo *cargo;
    struct bl_device *dev;
    struct bl_stream *stream;
    uint32_t at, *done;
};

static bool is_done(struct giving *g)
{
    return g->at++ < *g->done;
}

static enum bl_status give_wait(struct giving *g, struct bl_point p)
{
    if (!p.stream || is_done(g))
        return BL_OK;
    BL_TRY(g->dev->ops->wait(g->stream, p));
    ++*g->done;
    return BL_OK;
}

static enum bl_status give_copy(struct giving *g, const struct bl_mem *dst, uint64_t dst_off,
                                const struct bl_mem *src, uint64_t src_off, uint64_t bytes)
{
    if (is_done(g))
        return BL_OK;
    BL_TRY(g->dev->ops->copy(g->stream, dst, dst_off, src, src_off, bytes));
    ++*g->done;
    return BL_OK;
}

static enum bl_status give_signal(struct giving *g, struct bl_point *out)
{
    if (is_done(g))
        return BL_OK;
    BL_TRY(g->dev->ops->signal(g->stream, out));
    ++*g->done;
    return BL_OK;
}

/* ---- a chunk's tables and pieces ---- */

static struct bl_ring *ring_at(const struct giving *g)
{
    return &g->stage->ring[g->of->cut.card];
}

static uint64_t part_off(const struct giving *g)
{
    return g->chunk->seq % BL_RING_PARTS * ring_at(g)->part_bytes;
}

static uint64_t table_off(const struct giving *g)
{
    return g->chunk->seq % ring_at(g)->n_tables * ring_at(g)->table_bytes;
}

/* Where the experts will be once they are there. */
static void write_tables(const struct giving *g)
{
    const struct bl_stage *s = g->stage;
    const struct bl_ring *r = ring_at(g);
    const uint32_t l = g->of->layer;
    unsigned char *to = (unsigned char *)r->tables.host + table_off(g);

    memset(to, 0, g->of->cut.table_bytes);
    for (uint32_t i = s->first_weight[l]; i < s->end_weight[l]; i++) {
        const struct bl_weight *w = &s->model->weight[i];
        if (w->layer != (int)l || !bl_weight_has_table(w))
            continue;
        uint64_t *entry = (uint64_t *)(void *)(to + s->table[i]);
        const uint64_t base = r->mem.addr + part_off(g) + bl_weight_offset(w) +
                              bl_chunk_offset(s->model, &g->of->cut, i, g->cargo->n);
        for (uint32_t k = 0; k < g->cargo->n; k++)
            entry[s->expert[g->cargo->first + k]] = base + k * bl_weight_expert_stride(w);
    }
}

/* Experts that lie side by side are one copy. */
static enum bl_status copy_tensor(struct giving *g, uint32_t weight, const struct bl_mem *dst,
                                  uint64_t to)
{
    const struct bl_stage *s = g->stage;
    const struct bl_weight *w = &s->model->weight[weight];
    const struct bl_mem *from = bl_weights_home(s->weights, s->model, w->tensor);
    const uint64_t *at = bl_weights_table(s->weights, s->model, 0, weight);
    const uint64_t each = bl_weight_expert_stride(w);
    const uint32_t *expert = &s->expert[g->cargo->first];

    for (uint32_t k = 0, n; k < g->cargo->n; k += n) {
        for (n = 1; k + n < g->cargo->n && at[expert[k + n]] == at[expert[k]] + n * each;)
            n++;
        BL_TRY(give_copy(g, dst, to + k * each, from,
                         at[expert[k]] - bl_weight_offset(w) - from->addr, n * each));
    }
    return BL_OK;
}

static enum bl_status copy_pieces(struct giving *g, const struct bl_mem *dst, uint64_t to)
{
    const struct bl_stage *s = g->stage;
    const struct bl_ring *r = ring_at(g);
    const uint32_t l = g->of->layer;

    BL_TRY(give_copy(g, dst, to, &r->tables, table_off(g), g->of->cut.table_bytes));
    for (uint32_t i = s->first_weight[l]; i < s->end_weight[l]; i++) {
        const struct bl_weight *w = &s->model->weight[i];
        if (w->layer != (int)l || !bl_weight_has_table(w) || !bl_weight_leads(s->model, i))
            continue;
        const uint64_t off = bl_chunk_offset(s->model, &g->of->cut, i, g->cargo->n);
        BL_TRY(copy_tensor(g, i, dst, to + off));
    }
    return BL_OK;
}

static uint64_t cargo_bytes(const struct giving *g)
{
    const struct bl_stage *s = g->stage;
    const uint32_t l = g->of->layer;
    uint64_t end = g->of->cut.table_bytes;

    for (uint32_t i = s->first_weight[l]; g->cargo->n && i < s->end_weight[l]; i++) {
        const struct bl_weight *w = &s->model->weight[i];
        if (w->layer == (int)l && bl_weight_has_table(w) && bl_weight_leads(s->model, i))
            end = bl_chunk_offset(s->model, &g->of->cut, i, g->cargo->n) +
                  g->cargo->n * bl_weight_expert_stride(w);
    }
    return end;
}

/* ---- steps ---- */

static enum bl_status stage_chunk(struct giving *g, struct bl_point *point)
{
    const struct bl_chunk *c = g->chunk;

    if (c->before != BL_NO_CHUNK)
        BL_TRY(give_wait(g, point[g->stage->program->chunk[c->before].sent]));
    const uint32_t n_waits = g->at;
    BL_TRY(copy_pieces(g, &ring_at(g)->host, part_off(g)));
    g->cargo->n_stage_copies = g->at - n_waits;
    BL_TRY(give_signal(g, &point[c->staged]));
    g->cargo->staged = true;
    return BL_OK;
}

static enum bl_status send_chunk(struct giving *g, struct bl_point *point)
{
    const struct bl_chunk *c = g->chunk;
    const struct bl_ring *r = ring_at(g);

    if (c->before != BL_NO_CHUNK)
        BL_TRY(give_wait(g, point[g->stage->program->chunk[c->before].freed]));
    if (g->of->staged)
        BL_TRY(give_wait(g, point[c->staged]));
    const uint32_t n_waits = g->at;
    if (g->of->staged)
        BL_TRY(give_copy(g, &r->mem, part_off(g), &r->host, part_off(g), cargo_bytes(g)));
    else
        BL_TRY(copy_pieces(g, &r->mem, part_off(g)));
    const uint32_t n_copies = g->at - n_waits;
    BL_TRY(give_signal(g, &point[c->sent]));
    g->cargo->n_copies = n_copies;
    g->cargo->bytes = g->of->staged
                          ? cargo_bytes(g)
                          : g->of->cut.table_bytes + g->cargo->n * g->of->cut.expert_bytes;
    g->stage->sent_bytes += g->cargo->bytes;
    g->cargo->sent = true;
    return BL_OK;
}

/* What comes before the pick is done as far as it is sure to be of use. */
enum bl_status bl_stage_step(struct bl_stage *s, const struct bl_step *step, struct bl_point *point)
{
    const bool stages = step->kind == BL_STEP_STAGE;
    const struct bl_chunk *c = &s->program->chunk[step->index];
    struct bl_cargo *cargo = &s->cargo[step->index];
    struct giving g = {.stage = s,
                       .chunk = c,
                       .of = &s->program->sending[c->sending],
                       .cargo = cargo,
                       .done = stages ? &cargo->n_staged : &cargo->n_sent};
    const bool first = stages || !g.of->staged; /* of the two, where there are two */

    if (stages ? cargo->staged : cargo->sent)
        return BL_OK;
    if (first && !cargo->filled && !fill_ahead(s, step->index))
        return BL_OK;
    if (!first && !cargo->staged)
        return BL_OK;
    g.dev = s->device[step->device];
    g.stream = stages ? s->beside : ring_of(s, step->index)->stream;
    if (first && !*g.done)
        write_tables(&g);
    return stages ? stage_chunk(&g, point) : send_chunk(&g, point);
}

static enum bl_status reserve(struct bl_stage *s, const struct bl_program *p)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n_sendings; i++)
        n += p->sending[i].cut.n_chunks * p->sending[i].cut.n_each;
    if (p->n_chunks > s->cap_chunks) {
        struct bl_cargo *bigger = realloc(s->cargo, p->n_chunks * sizeof *bigger);
        if (!bigger)
            return bl_fail(BL_ENOMEM, "out of memory for %u chunks of experts", p->n_chunks);
        s->cargo = bigger;
        s->cap_chunks = p->n_chunks;
    }
    if (n > s->cap_experts) {
        uint32_t *bigger = realloc(s->expert, n * sizeof *bigger);
        if (!bigger)
            return bl_fail(BL_ENOMEM, "out of memory for %u experts on their way", n);
        s->expert = bigger;
        s->cap_experts = n;
    }
    return BL_OK;
}

enum bl_status bl_stage_begin(struct bl_stage *s, const struct bl_program *p, uint32_t n_tok)
{
    s->program = p;
    s->n_tok = n_tok;
    if (!p->n_sendings)
        return BL_OK;
    BL_TRY(reserve(s, p));
    memset(s->mark, 0, (size_t)s->model->hp.n_layer * s->model->hp.n_expert);
    memset(s->n_filled, 0, s->model->hp.n_layer * sizeof *s->n_filled);
    memset(s->picked, 0, s->model->hp.n_layer * sizeof *s->picked);
    for (uint32_t c = 0, first = 0; c < p->n_chunks; c++) {
        s->cargo[c] = (struct bl_cargo){.first = first};
        first += sending_of(s, c)->cut.n_each;
    }
    return BL_OK;
}

/* ---- the whole ---- */

void bl_stage_settle(const struct bl_stage *s, uint16_t device, struct bl_place *place)
{
    if (!s->ring)
        return;
    place->beside = device ? s->ring[device].stream : s->beside;
    place->ring = s->ring[device].mem.addr;
    place->ring_part = s->ring[device].part_bytes;
}

static enum bl_status take(struct bl_stage *s, uint16_t d, uint64_t bytes, struct bl_mem *out)
{
    return bl_take(&s->plan->ledger, d, s->device[d], BL_MEM_STAGING, bytes, d == 0, out);
}

/* The host's too, if it fills the ring. */
static enum bl_status open_streams(struct bl_stage *s, uint16_t d)
{
    struct bl_device *dev = s->device[d], *host = s->device[0];
    struct bl_ring *r = &s->ring[d];

    BL_TRY(dev->ops->stream_open(dev, &r->stream));
    return r->host.bytes && !s->beside ? host->ops->stream_open(host, &s->beside) : BL_OK;
}

static enum bl_status open_ring(struct bl_stage *s, const struct bl_machine *machine, uint16_t d)
{
    struct bl_ring *r = &s->ring[d];
    struct bl_ring_bytes b;

    bl_plan_ring(s->plan, s->model, d, &b);
    if (!b.part)
        return BL_OK;
    r->part_bytes = b.part;
    r->n_tables = 2 * b.most_chunks;
    r->table_bytes = b.tables / r->n_tables;
    BL_TRY(take(s, d, BL_RING_PARTS * b.part, &r->mem));
    BL_TRY(take(s, 0, b.tables, &r->tables));
    if (bl_plan_stages(s->plan, machine, d))
        BL_TRY(take(s, 0, BL_RING_PARTS * b.part, &r->host));
    return open_streams(s, d);
}

enum bl_status bl_stage_open_streams(struct bl_stage *s)
{
    for (uint16_t d = 1; s->ring && d < s->n_devices; d++)
        if (s->ring[d].mem.dev)
            BL_TRY(open_streams(s, d));
    return BL_OK;
}

static enum bl_status allocate(struct bl_stage *s)
{
    const size_t n_layers = s->model->hp.n_layer, n = n_layers * s->model->hp.n_expert;

    s->ring = bl_calloc(s->n_devices, sizeof *s->ring);
    s->table = bl_calloc((size_t)s->model->n_weights + 1, sizeof *s->table);
    s->first_weight = bl_calloc(n_layers, sizeof *s->first_weight);
    s->end_weight = bl_calloc(n_layers, sizeof *s->end_weight);
    s->uses = bl_calloc(n, sizeof *s->uses);
    s->seen = bl_calloc(n_layers, sizeof *s->seen);
    s->n_filled = bl_calloc(n_layers, sizeof *s->n_filled);
    s->picked = bl_calloc(n_layers, sizeof *s->picked);
    s->mark = bl_calloc(n, sizeof *s->mark);
    if (!s->ring || !s->table || !s->first_weight || !s->end_weight || !s->uses || !s->seen ||
        !s->n_filled || !s->picked || !s->mark)
        return bl_fail(BL_ENOMEM, "out of memory for the experts that are sent to cards");
    for (uint32_t i = 0; i < s->model->n_weights; i++) {
        const struct bl_weight *w = &s->model->weight[i];
        if (!bl_weight_has_table(w))
            continue;
        s->table[i] = bl_chunk_table(s->model, i);
        if (!s->end_weight[w->layer])
            s->first_weight[w->layer] = i;
        s->end_weight[w->layer] = i + 1;
    }
    return BL_OK;
}

static void recall(struct bl_stage *s, const struct bl_expert_stats *before)
{
    const uint32_t n = s->model->hp.n_expert, used = s->model->hp.n_expert_used;

    memcpy(s->uses, before->uses, (size_t)s->model->hp.n_layer * n * sizeof *s->uses);
    for (uint32_t l = 0; used && l < s->model->hp.n_layer; l++) {
        uint64_t sum = 0;
        for (uint32_t e = 0; e < n; e++)
            sum += s->uses[first_of(s, l) + e];
        s->seen[l] = sum / used;
    }
}

enum bl_status bl_stage_open(struct bl_stage *s, const struct bl_model *m, struct bl_plan *plan,
                             const struct bl_machine *machine, const struct bl_weights *weights,
                             struct bl_device *const *device, const struct bl_expert_stats *before)
{
    if (!plan->stream_from || !m->hp.n_expert)
        return BL_OK;
    s->model = m;
    s->plan = plan;
    s->weights = weights;
    s->device = device;
    s->n_devices = machine->n_devices;
    s->sure_tokens = BL_SURE_TOKENS;
    BL_TRY(allocate(s));
    if (before)
        recall(s, before);
    for (uint16_t d = 1; d < s->n_devices; d++)
        if (device[d])
            BL_TRY(open_ring(s, machine, d));
    return bl_ledger_count(&plan->ledger, 0, BL_MEM_HOST,
                           (int64_t)bl_plan_stage_notes_bytes(plan, m));
}

static void free_mem(struct bl_mem *m)
{
    if (m->dev)
        m->dev->ops->mem_free(m);
}

void bl_stage_close_streams(struct bl_stage *s)
{
    if (s->beside)
        s->device[0]->ops->stream_close(s->beside);
    s->beside = NULL;
    for (uint32_t d = 0; s->ring && d < s->n_devices; d++) {
        if (s->ring[d].stream)
            s->device[d]->ops->stream_close(s->ring[d].stream);
        s->ring[d].stream = NULL;
    }
}

void bl_stage_close(struct bl_stage *s)
{
    bl_stage_close_streams(s);
    for (uint32_t d = 0; s->ring && d < s->n_devices; d++) {
        free_mem(&s->ring[d].mem);
        free_mem(&s->ring[d].host);
        free_mem(&s->ring[d].tables);
    }
    free(s->ring);
    free(s->table);
    free(s->first_weight);
    free(s->end_weight);
    free(s->uses);
    free(s->seen);
    free(s->n_filled);
    free(s->picked);
    free(s->mark);
    free(s->cargo);
    free(s->expert);
    *s = (struct bl_stage){0};
}
