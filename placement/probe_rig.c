/* SPDX-License-Identifier: MIT */
/* Small graphs on a device, for their time. */
#include "probe.h"

#include "args.h"
#include "backends.h"
#include "machine.h"
#include "mem.h"
#include "thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PAGE = 4096, INPUT_ROWS = 2 };
static const uint64_t patience_ns = 60000000000;

static enum bl_status open_at(struct bl_rig *r, const struct bl_backend *backend, uint32_t index,
                              const struct bl_device_config *config)
{
    *r = (struct bl_rig){.backend = backend, .arena = bl_calloc(1, sizeof *r->arena)};
    enum bl_status st = r->arena ? backend->open(index, config, &r->dev)
                                 : bl_fail(BL_ENOMEM, "probe: out of memory");
    if (!st)
        st = r->dev->ops->stream_open(r->dev, &r->stream);
    if (st)
        bl_rig_close(r);
    else
        bl_graph_init(&r->graph);
    return st;
}

enum bl_status bl_rig_open(struct bl_rig *r, const struct bl_backend *backend,
                           const struct bl_device_config *config)
{
    return open_at(r, backend, 0, config);
}

/* A stream that does not answer is given up: closed as it is, it would be waited for. */
enum bl_status bl_rig_join(struct bl_rig *r, struct bl_point p)
{
    const enum bl_status st = r->dev->ops->join(p, patience_ns);
    char why[160];

    if (st != BL_ETIMEDOUT || !r->dev->ops->cancel)
        return st;
    snprintf(why, sizeof why, "%s", bl_error());
    r->dev->ops->cancel(r->stream);
    return bl_fail(st, "%s", why);
}

/* The pattern is a small number in every type that is a float, and no odd one as a scale. */
static enum bl_status fill_card(struct bl_rig *r)
{
    enum { PATTERN = 0x2c2c2c2c };
    struct bl_point p;
    BL_TRY(r->dev->ops->fill(r->stream, &r->card, 0, PATTERN, r->card.bytes));
    BL_TRY(r->dev->ops->signal(r->stream, &p));
    return bl_rig_join(r, p);
}

enum bl_status bl_rig_open_card(struct bl_rig *r, const struct bl_machine_device *d, size_t bytes,
                                size_t rest)
{
    BL_TRY(open_at(r, d->backend, d->index, &d->config));
    enum bl_status st = r->dev->ops->mem_alloc(r->dev, bytes, false, &r->card);
    if (!st)
        st = fill_card(r);
    if (st) {
        bl_rig_close(r);
        return st;
    }
    r->rest =
        (struct bl_rig_block){(unsigned char *)(uintptr_t)(r->card.addr + bytes - rest), rest};
    return BL_OK;
}

void bl_rig_clear(struct bl_rig *r)
{
    if (r->segment)
        r->dev->ops->segment_free(r->segment);
    if (r->dev) {
        r->dev->ops->mem_free(&r->scratch);
        r->dev->ops->mem_free(&r->params);
    }
    bl_graph_finish(&r->graph);
    if (r->arena)
        bl_arena_finish(r->arena);
    r->segment = NULL;
    r->value = NULL;
    r->bound = NULL;
    r->addr = NULL;
    r->first_position = 0;
    r->states = (struct bl_rig_block){0};
    bl_graph_init(&r->graph);
}

void bl_rig_close(struct bl_rig *r)
{
    bl_rig_clear(r);
    bl_graph_finish(&r->graph);
    if (r->stream)
        r->dev->ops->stream_close(r->stream);
    if (r->dev)
        r->dev->ops->mem_free(&r->card);
    if (r->dev)
        r->dev->ops->close(r->dev);
    free(r->arena);
    *r = (struct bl_rig){0};
}

bl_val bl_rig_input(struct bl_rig *r, uint32_t n, uint32_t n_tok)
{
    struct bl_graph *g = &r->graph;
    const bl_val table =
        bl_graph_weight(g, (int32_t)g->n_vals, BL_F32, (uint32_t[]){n, INPUT_ROWS, 1});
    const bl_val x = bl_graph_embed(g, table, bl_graph_param(g, BL_PARAM_TOKENS, n_tok), 1);
    r->first = g->n_nodes;
    return x;
}

/* Not zero, so that nothing divides by it, and of a size that stays one. */
static void fill_floats(float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        x[i] = (float)(i % 61) / 32 - 0.9f;
}

/* Where the next values of the block are; NULL: it is too small for them. */
static void *from_block(const struct bl_rig_block *b, size_t bytes, size_t *at)
{
    if (*at + bytes > b->n)
        *at = 0;
    void *w = *at + bytes <= b->n ? b->bytes + *at : NULL;
    *at += (bytes + PAGE - 1) / PAGE * PAGE;
    return w;
}

static enum bl_status make_values(struct bl_rig *r, const struct bl_rig_block *weights)
{
    const struct bl_graph *g = &r->graph;
    size_t at = 0, state_at = 0, rest_at = 0;
    r->value = bl_arena_alloc(r->arena, g->n_vals * sizeof *r->value);
    for (bl_val v = 1; r->value && v < g->n_vals; v++) {
        const struct bl_value *val = &g->vals[v];
        const size_t bytes = (size_t)bl_value_bytes(val);
        if (val->origin == BL_PARAM)
            continue;
        if (val->origin == BL_WEIGHT && weights && val->ne[1] > INPUT_ROWS)
            r->value[v] = from_block(weights, bytes, &at);
        else if (val->origin == BL_STATE_ROWS && r->states.n)
            r->value[v] = from_block(&r->states, bytes, &state_at);
        else if (r->rest.n)
            r->value[v] = from_block(&r->rest, bytes, &rest_at);
        else if ((r->value[v] = bl_arena_alloc(r->arena, bytes + 64)) && val->type == BL_F32)
            fill_floats(r->value[v], bytes / sizeof(float));
        if (!r->value[v])
            return bl_fail(BL_ENOMEM, "probe: out of memory");
    }
    return r->value ? BL_OK : bl_fail(BL_ENOMEM, "probe: out of memory");
}

/* One sequence whose n_tok tokens follow each other. */
static enum bl_status make_params(struct bl_rig *r, uint32_t n_tok)
{
    const size_t bytes =
        sizeof(struct bl_params) + 16 * (size_t)n_tok + sizeof(struct bl_seq_params);
    BL_TRY(r->dev->ops->mem_alloc(r->dev, bytes, true, &r->params));
    struct bl_params *p = r->params.host;
    if (!p)
        return bl_fail(BL_EUNAVAILABLE, "probe: %s has no memory that the host can write",
                       r->dev->name);
    *p = (struct bl_params){.n_tok = n_tok, .n_seq = 1, .n_out = n_tok, .n_bytes = (uint32_t)bytes};
    p->token_off = sizeof *p;
    p->pos_off = p->token_off + 4 * n_tok;
    p->seq_off = p->pos_off + 4 * n_tok;
    p->out_off = p->seq_off + 4 * n_tok;
    p->table_off = p->out_off + 4 * n_tok;
    for (uint32_t t = 0; t < n_tok; t++) {
        BL_PARAMS_ARRAY(int32_t, p, p->token_off)[t] = 0;
        BL_PARAMS_ARRAY(uint32_t, p, p->pos_off)[t] = r->first_position + t;
        BL_PARAMS_ARRAY(uint32_t, p, p->seq_off)[t] = 0;
        BL_PARAMS_ARRAY(uint32_t, p, p->out_off)[t] = t;
    }
    *BL_PARAMS_ARRAY(struct bl_seq_params, p, p->table_off) =
        (struct bl_seq_params){r->first_position + n_tok, 0};
    return BL_OK;
}

static enum bl_status bind_nodes(struct bl_rig *r)
{
    enum { MOST_SOURCES = 16 };
    const struct bl_graph *g = &r->graph;
    const uint32_t n = g->n_nodes - r->first;
    r->bound = bl_arena_alloc(r->arena, n * sizeof *r->bound);
    r->addr = bl_arena_alloc(r->arena, (size_t)n * (MOST_SOURCES + 2) * sizeof *r->addr);
    if (!r->bound || !r->addr)
        return bl_fail(BL_ENOMEM, "probe: out of memory");
    for (uint32_t i = 0; i < n; i++) {
        const struct bl_node *node = &g->nodes[r->first + i];
        uint64_t *src = r->addr + (size_t)i * (MOST_SOURCES + 2), *dst = src + MOST_SOURCES;
        r->bound[i] = (struct bl_bound){node, src, dst};
        for (unsigned s = 0; s < node->n_src && s < MOST_SOURCES; s++)
            src[s] = (uintptr_t)r->value[bl_node_src(g, node, s)];
        for (unsigned d = 0; d < node->n_dst; d++)
            dst[d] = (uintptr_t)r->value[node->dst[d]];
    }
    return BL_OK;
}

enum bl_status bl_rig_ready(struct bl_rig *r, const struct bl_rig_block *weights, uint32_t n_tok)
{
    uint64_t scratch = 64;
    BL_TRY(bl_graph_check(&r->graph));
    BL_TRY(make_values(r, weights));
    BL_TRY(make_params(r, n_tok));
    for (uint32_t i = r->first; i < r->graph.n_nodes; i++) {
        const uint64_t n = r->backend->scratch_bytes(&r->dev->caps, &r->graph, &r->graph.nodes[i]);
        scratch = n > scratch ? n : scratch;
        if (r->rest.n && !r->backend->supports(&r->dev->caps, &r->graph, &r->graph.nodes[i]))
            return bl_fail(BL_EUNSUPPORTED, "probe: %s cannot do this", r->dev->name);
    }
    BL_TRY(r->dev->ops->mem_alloc(r->dev, (size_t)scratch, false, &r->scratch));
    BL_TRY(bind_nodes(r));
    return r->dev->ops->segment_build(r->dev, &r->graph, r->bound, r->graph.n_nodes - r->first,
                                      &r->scratch, &r->params, &r->segment);
}

enum bl_status bl_rig_run(struct bl_rig *r, uint64_t *ns)
{
    struct bl_point p;
    const uint64_t start = bl_now_ns();
    BL_TRY(r->dev->ops->segment_run(r->stream, r->segment));
    BL_TRY(r->dev->ops->signal(r->stream, &p));
    BL_TRY(bl_rig_join(r, p));
    *ns = bl_now_ns() - start;
    return BL_OK;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bl_median(double *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return n == 0 ? 0 : n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

uint64_t bl_process_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

double bl_undisturbed(double *took, uint32_t n_own, uint32_t n)
{
    enum { ENOUGH = 3 };
    if (n_own >= ENOUGH)
        return bl_median(took, n_own);
    (void)bl_median(took, n); /* sorted */
    return bl_median(took, (n + 2) / 3);
}

enum bl_status bl_rig_time(struct bl_rig *r, uint32_t most, uint64_t budget_ns, double *ns)
{
    enum { MOST = 64 };
    static const double own_share = 0.8; /* of processor time: with less the time is others', too */
    double took[MOST];
    uint64_t one, sum = 0;
    uint32_t n = 0, n_own = 0;
    BL_TRY(bl_rig_run(r, &one));
    do {
        const uint64_t cpu = bl_process_ns();
        BL_TRY(bl_rig_run(r, &one));
        took[n] = (double)one;
        if ((double)(bl_process_ns() - cpu) >= own_share * (double)one * r->dev->caps.threads) {
            took[n] = took[n_own]; /* those that count stand in front */
            took[n_own++] = (double)one;
        }
        n++;
        sum += one;
    } while (n_own < most && n < MOST && sum + sum / n <= budget_ns);
    *ns = bl_undisturbed(took, n_own, n);
    return BL_OK;
}
