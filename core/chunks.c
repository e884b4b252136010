/* SPDX-License-Identifier: MIT */
#include "chunks.h"

#include "mem.h"

#include <math.h>

enum { PIECE_ALIGN = 64 }; /* of a tensor's pieces in a chunk: a cache line, a vector */

bool bl_weight_leads(const struct bl_model *m, uint32_t weight)
{
    const struct bl_weight *w = &m->weight[weight];

    for (uint32_t i = weight; i-- > 0 && m->weight[i].layer == w->layer;)
        if (m->weight[i].tensor == w->tensor && bl_weight_has_table(&m->weight[i]))
            return false;
    return true;
}

static bool is_of(const struct bl_model *m, uint32_t weight, int layer)
{
    return m->weight[weight].layer == layer && bl_weight_has_table(&m->weight[weight]);
}

/* Weights of a layer's experts are among these. */
struct span {
    uint32_t first, end;
};

static void widen(struct span *s, int32_t weight)
{
    if (weight < 0)
        return;
    s->first = (uint32_t)weight < s->first ? (uint32_t)weight : s->first;
    s->end = (uint32_t)weight >= s->end ? (uint32_t)weight + 1 : s->end;
}

static struct span span_of(const struct bl_model *m, int layer)
{
    static const uint8_t roles[] = {BL_W_EXP_GATE, BL_W_EXP_UP, BL_W_EXP_DOWN};
    struct span s = {UINT32_MAX, 0};

    for (size_t i = 0; i < BL_COUNT(roles); i++) {
        const struct bl_linear *l = &m->layer[layer].role[roles[i]];
        widen(&s, l->w);
        widen(&s, l->bias);
        widen(&s, l->scale);
    }
    return s;
}

static uint64_t piece_bytes(const struct bl_model *m, uint32_t weight, uint32_t n)
{
    return bl_align_up(n * bl_weight_expert_stride(&m->weight[weight]), PIECE_ALIGN);
}

static uint64_t pieces_bytes(const struct bl_model *m, uint32_t layer, uint32_t n)
{
    const struct span s = span_of(m, (int)layer);
    uint64_t bytes = 0;

    for (uint32_t i = s.first; i < s.end; i++)
        if (is_of(m, i, (int)layer) && bl_weight_leads(m, i))
            bytes += piece_bytes(m, i, n);
    return bytes;
}

static void count(const struct bl_model *m, uint32_t layer, struct bl_chunking *c)
{
    const struct span s = span_of(m, (int)layer);

    for (uint32_t i = s.first; i < s.end; i++) {
        if (!is_of(m, i, (int)layer))
            continue;
        c->n_tables++;
        if (!bl_weight_leads(m, i))
            continue;
        c->n_tensors++;
        c->expert_bytes += bl_weight_expert_stride(&m->weight[i]);
    }
    c->table_bytes =
        bl_align_up((uint64_t)c->n_tables * c->n_experts * sizeof(uint64_t), PIECE_ALIGN);
}

static uint32_t cut(const struct bl_plan *p, const struct bl_chunking *c)
{
    const uint64_t fit = (p->chunk_bytes ? p->chunk_bytes : BL_CHUNK_BYTES) / c->expert_bytes;
    const uint32_t most = (c->n_sent + BL_LEAST_CHUNKS - 1) / BL_LEAST_CHUNKS,
                   least = (c->n_sent + BL_MOST_CHUNKS - 1) / BL_MOST_CHUNKS;

    return fit > most ? most : fit < least ? least : (uint32_t)fit;
}

void bl_plan_chunks(const struct bl_plan *p, const struct bl_model *m, uint32_t layer,
                    struct bl_chunking *out)
{
    struct bl_chunking c = {.card = BL_NO_DEVICE, .n_experts = m->hp.n_expert};
    const uint16_t card = bl_plan_device(p, (int)layer, BL_PART_FFN);

    *out = c;
    if (!card || !m->layer[layer].moe)
        return;
    c.n_sent = bl_plan_experts_on(p, layer, c.n_experts, 0);
    count(m, layer, &c);
    if (!c.n_sent || !c.expert_bytes)
        return;
    c.card = card;
    c.n_each = cut(p, &c);
    c.n_chunks = (c.n_sent + c.n_each - 1) / c.n_each;
    c.bytes = c.table_bytes + pieces_bytes(m, layer, c.n_each);
    *out = c;
}

uint64_t bl_chunk_offset(const struct bl_model *m, const struct bl_chunking *c, uint32_t weight,
                         uint32_t n)
{
    const struct bl_weight *w = &m->weight[weight];
    const struct span s = span_of(m, w->layer);
    uint64_t off = c->table_bytes;

    for (uint32_t i = s.first; i < s.end; i++) {
        if (!is_of(m, i, w->layer) || !bl_weight_leads(m, i))
            continue;
        if (m->weight[i].tensor == w->tensor)
            break;
        off += piece_bytes(m, i, n);
    }
    return off;
}

uint64_t bl_chunk_table(const struct bl_model *m, uint32_t weight)
{
    uint64_t n = 0;

    for (uint32_t i = span_of(m, m->weight[weight].layer).first; i < weight; i++)
        n += is_of(m, i, m->weight[weight].layer);
    return n * m->hp.n_expert * sizeof(uint64_t);
}

bool bl_plan_stages(const struct bl_plan *p, const struct bl_machine *machine, uint16_t card)
{
    const struct bl_caps *host = &machine->device[0].caps, *c = &machine->device[card].caps;
    return c->copies_from == BL_COPIES_FROM_BLOCKS && p->mmap && host->import_host;
}

void bl_plan_ring(const struct bl_plan *p, const struct bl_model *m, uint16_t card,
                  struct bl_ring_bytes *out)
{
    uint64_t tables = 0;

    *out = (struct bl_ring_bytes){0};
    for (uint32_t l = 0; p->stream_from && l < p->n_layers; l++) {
        struct bl_chunking c;
        bl_plan_chunks(p, m, l, &c);
        if (c.card != card)
            continue;
        out->part = c.bytes > out->part ? c.bytes : out->part;
        out->most_chunks = c.n_chunks > out->most_chunks ? c.n_chunks : out->most_chunks;
        tables = c.table_bytes > tables ? c.table_bytes : tables;
    }
    out->tables = 2 * (uint64_t)out->most_chunks * tables;
}

/* The tables of struct bl_stage. */
uint64_t bl_plan_stage_notes_bytes(const struct bl_plan *p, const struct bl_model *m)
{
    const uint64_t experts = (uint64_t)m->hp.n_layer * m->hp.n_expert;
    return p->stream_from ? experts * (sizeof(uint64_t) + 2 * sizeof(uint32_t)) +
                                m->hp.n_layer * sizeof(uint64_t)
                          : 0;
}

double bl_chunk_experts(const struct bl_chunking *c, uint32_t chunk, uint32_t used, uint32_t n_tok)
{
    const double touched = 1 - pow(1 - (double)used / c->n_experts, n_tok);
    const double left = c->n_sent * touched - (double)chunk * c->n_each;

    return fmin(fmax(left, 0), c->n_each);
}

double bl_chunk_share(const struct bl_chunking *c, uint32_t chunk, uint32_t used, uint32_t n_tok)
{
    const double touched = 1 - pow(1 - (double)used / c->n_experts, n_tok);
    return bl_chunk_experts(c, chunk, used, n_tok) / (c->n_sent * touched);
}
