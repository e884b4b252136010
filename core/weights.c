/* SPDX-License-Identifier: MIT */
#include "weights.h"

#include "log.h"
#include "mem.h"
#include "numa.h"
#include "take.h"
#include "thread.h"
#include "upload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PIECE_BYTES = 16 << 20 }; /* read or touched between two progress reports */

struct loader {
    struct bl_weights *w;
    const struct bl_model *model;
    struct bl_plan *plan;
    const struct bl_block_bytes *blocks;
    struct bl_device *const *device;
    const struct bl_options *opt;
    const struct bl_mem *room; /* of the host, for what goes to memory that it does not see */
    struct bl_upload upload;
    const struct bl_weight **of; /* [n_tensors] experts: a weight of the tensor; else NULL */
    uint64_t *off;               /* [n_tensors] of one device */
    uint64_t *base;              /* [n_tensors] address, 0 = not loaded */
    struct bl_progress progress;
    uint64_t started_ns;
};

static enum bl_status report(struct loader *l, uint64_t bytes)
{
    l->progress.done_bytes += bytes;
    l->progress.elapsed_ns = bl_now_ns() - l->started_ns;
    if (l->opt->progress)
        l->opt->progress(l->opt->progress_arg, &l->progress);
    return l->opt->stop && l->opt->stop(l->opt->stop_arg)
               ? bl_fail(BL_ECANCELLED, "stopped while weights were read")
               : BL_OK;
}

/* ---- what a device holds of a tensor: all of it, or runs of its experts ---- */

struct slice {
    uint64_t off, bytes;
};

/* The first slice at `from` or behind it; false: there are no more. */
static bool next_slice(const struct loader *l, uint16_t d, uint32_t t, uint64_t from,
                       struct slice *out)
{
    const struct bl_weight *w = l->of[t];
    const uint64_t bytes = bl_gguf_tensor(l->model->gguf, t)->bytes;

    *out = (struct slice){from, bytes - from};
    if (!w)
        return from < bytes;
    const uint32_t n = bl_weight_n_experts(w);
    const uint64_t each = bl_weight_expert_stride(w);
    for (uint32_t e = (uint32_t)(from / each); e < n;) {
        const struct bl_expert_range run = bl_plan_expert_run(l->plan, (uint32_t)w->layer, e, n);
        *out = (struct slice){e * each, run.n * each};
        if (run.device == d)
            return true;
        e += run.n;
    }
    return false;
}

/* ---- mapped: used where the file lies ---- */

/* Reads one byte a page so that the first step does not pay for the disk. */
static enum bl_status touch(struct loader *l, const unsigned char *p, uint64_t bytes)
{
    size_t page = bl_page_bytes();

    for (uint64_t at = 0; at < bytes; at += PIECE_BYTES) {
        uint64_t n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        for (uint64_t i = 0; i < n; i += page)
            (void)*(const volatile unsigned char *)(p + at + i);
        BL_TRY(report(l, n));
    }
    return BL_OK;
}

static void lock_pages(struct loader *l, const void *p, uint64_t bytes)
{
    if (l->opt->mlock && mlock(p, bytes))
        bl_warn("weights are not locked in memory: %s; raise the limit with ulimit -l",
                strerror(errno));
}

static enum bl_status map_shard(struct loader *l, uint16_t d, uint32_t shard)
{
    struct bl_file *file = bl_gguf_file(l->model->gguf, shard);
    struct bl_mem *import = &l->w->import[shard];
    const void *map;

    BL_TRY(bl_file_map(file, &map));
    BL_TRY(bl_file_check(file));
    /* a wish: few systems keep files in huge pages */
    (void)madvise((void *)(uintptr_t)map, bl_file_bytes(file), MADV_HUGEPAGE);
    if (!import->bytes)
        BL_TRY(l->device[d]->ops->mem_import(l->device[d], (void *)(uintptr_t)map,
                                             bl_file_bytes(file), import));
    lock_pages(l, map, bl_file_bytes(file));
    return bl_ledger_count(&l->plan->ledger, d, BL_MEM_WEIGHTS, (int64_t)bl_file_bytes(file));
}

static enum bl_status touch_tensor(struct loader *l, uint16_t d, uint32_t t)
{
    const struct bl_tensor_info *info = bl_gguf_tensor(l->model->gguf, t);
    const unsigned char *at =
        (const unsigned char *)l->w->import[info->shard].host + info->file_off;
    struct slice s;

    for (uint64_t from = 0; next_slice(l, d, t, from, &s); from = s.off + s.bytes) {
        bl_file_will_need(bl_gguf_file(l->model->gguf, info->shard), info->file_off + s.off,
                          s.bytes);
        BL_TRY(touch(l, at + s.off, s.bytes));
    }
    return BL_OK;
}

static enum bl_status use_mapped(struct loader *l, uint16_t d)
{
    const struct bl_gguf *g = l->model->gguf;

    for (uint32_t s = 0; s < l->w->n_shards; s++)
        for (uint32_t t = 0; t < bl_gguf_n_tensors(g); t++)
            if (l->off[t] != UINT64_MAX && bl_gguf_tensor(g, t)->shard == s) {
                BL_TRY(map_shard(l, d, s));
                break;
            }
    for (uint32_t t = 0; t < bl_gguf_n_tensors(g); t++) {
        const struct bl_tensor_info *info = bl_gguf_tensor(g, t);
        if (l->off[t] == UINT64_MAX)
            continue;
        l->base[t] = l->w->import[info->shard].addr + info->file_off;
        BL_TRY(touch_tensor(l, d, t));
    }
    return BL_OK;
}

enum bl_status bl_weights_check(const struct bl_weights *w, const struct bl_model *m)
{
    for (uint32_t s = 0; s < w->n_shards; s++)
        if (w->import[s].bytes)
            BL_TRY(bl_file_check(bl_gguf_file(m->gguf, s)));
    return BL_OK;
}

/* ---- read: into blocks of the device ---- */

static enum bl_status take_blocks(struct loader *l, uint16_t d)
{
    struct bl_ledger *ledger = &l->plan->ledger;
    const struct bl_block_bytes *b = &l->blocks[d];

    BL_TRY(bl_blocks_take(&l->w->block[d], ledger, d, l->device[d], BL_MEM_WEIGHTS, b->weights,
                          b->window, d == 0 || l->device[d]->unified));
    return bl_take(ledger, l->device[d]->caps.visible_on_host ? 0 : d, l->device[d], BL_MEM_PARAMS,
                   b->tables, true, &l->w->table[d]);
}

/* Bytes of a tensor's slice into the block, straight or through the host's. */
static enum bl_status read_piece(struct loader *l, const struct bl_tensor_info *info, uint64_t from,
                                 size_t n, const struct bl_mem *block, uint64_t to)
{
    struct bl_file *file = bl_gguf_file(l->model->gguf, info->shard);

    if (block->host)
        return bl_file_read(file, from, n, (unsigned char *)block->host + to);
    void *at;
    for (size_t done = 0, room; done < n; done += room) {
        BL_TRY(bl_upload_next(&l->upload, &at, &room));
        room = room < n - done ? room : n - done;
        BL_TRY(bl_file_read(file, from + done, room, at));
        BL_TRY(bl_upload_send(&l->upload, info->name, block, to + done, room));
    }
    return BL_OK;
}

/* Into one block. */
static enum bl_status read_slice(struct loader *l, const struct bl_tensor_info *info,
                                 const struct slice *s, const struct bl_mem *block, uint64_t to)
{
    for (uint64_t at = 0; at < s->bytes; at += PIECE_BYTES) {
        uint64_t n = s->bytes - at < PIECE_BYTES ? s->bytes - at : PIECE_BYTES;
        BL_TRY(read_piece(l, info, info->file_off + s->off + at, n, block, to + at));
        BL_TRY(report(l, n));
    }
    return BL_OK;
}

/* n units beside each other in the file, of which the k-th of what the device has of the tensor is
 * the first: those that lie beside each other there, too, are read together. */
static enum bl_status read_units(struct loader *l, uint16_t d, uint32_t t, const struct slice *s,
                                 uint64_t each, uint64_t k)
{
    const struct bl_blocks *b = &l->w->block[d];
    uint64_t inside;

    for (uint64_t i = 0, n; i * each < s->bytes; i += n) {
        const uint64_t to = bl_unit_at(l->off[t], each, k + i, b->window);
        const uint64_t left = s->bytes / each - i, fit = bl_units_together(to, each, b->window);
        n = left < fit ? left : fit;
        const struct slice part = {s->off + i * each, n * each};
        const struct bl_mem *block = bl_blocks_at(b, to, &inside);
        BL_TRY(read_slice(l, bl_gguf_tensor(l->model->gguf, t), &part, block, inside));
    }
    return BL_OK;
}

static enum bl_status read_tensor(struct loader *l, uint16_t d, uint32_t t)
{
    const uint64_t each =
        l->of[t] ? bl_weight_expert_stride(l->of[t]) : bl_gguf_tensor(l->model->gguf, t)->bytes;
    struct slice s;
    uint64_t k = 0;

    for (uint64_t from = 0; next_slice(l, d, t, from, &s); from = s.off + s.bytes) {
        BL_TRY(read_units(l, d, t, &s, each, k));
        k += s.bytes / each;
    }
    return BL_OK;
}

static enum bl_status read_tensors(struct loader *l, uint16_t d)
{
    for (uint32_t t = 0; t < bl_gguf_n_tensors(l->model->gguf); t++) {
        if (l->off[t] == UINT64_MAX)
            continue;
        BL_TRY(read_tensor(l, d, t));
        l->base[t] = bl_blocks_addr(&l->w->block[d], l->off[t]);
    }
    return BL_OK;
}

static enum bl_status use_read(struct loader *l, uint16_t d)
{
    const struct bl_mem *block = &l->w->block[d].mem[0]; /* all are of a kind */
    enum bl_status st = BL_OK;

    if (!block->host)
        st = bl_upload_open(&l->upload, l->device[d], l->room);
    l->upload.patience_ns = l->opt->watchdog_s * UINT64_C(1000000000);
    if (!st)
        st = read_tensors(l, d);
    char why[512]; /* closing may fail as well, of what came first */
    snprintf(why, sizeof why, "%s", bl_error());
    const enum bl_status sent = bl_upload_close(&l->upload);
    if (st)
        return bl_fail(st, "%s", why);
    if (sent)
        return sent;
    if (block->host && d == 0)
        lock_pages(l, block->host, block->bytes);
    return BL_OK;
}

/* ---- addresses of weights and experts ---- */

/* In blocks a device's own experts lie one after the other, in a mapped file all of them do. */
static uint64_t expert_addr(const struct loader *l, uint16_t d, const struct bl_weight *w,
                            uint32_t expert, uint32_t nth)
{
    const struct bl_blocks *b = &l->w->block[d];
    const uint64_t each = bl_weight_expert_stride(w);

    if (!b->n)
        return l->base[w->tensor] + expert * each;
    return bl_blocks_addr(b, bl_unit_at(l->off[w->tensor], each, nth, b->window));
}

static void fill_table(const struct loader *l, uint16_t d, const struct bl_weight *w,
                       uint64_t *entry)
{
    const uint32_t n = bl_weight_n_experts(w);

    for (uint32_t e = 0, nth = 0; e < n; e++) {
        const bool here = bl_plan_expert_device(l->plan, (uint32_t)w->layer, e) == d;
        entry[e] = here ? expert_addr(l, d, w, e, nth++) + bl_weight_offset(w) : 0;
    }
}

static void address_weights(struct loader *l, uint16_t d)
{
    uint64_t *addr = l->w->addr + (size_t)d * l->model->n_weights;
    uint64_t next = 0;

    for (uint32_t i = 0; i < l->model->n_weights; i++) {
        const struct bl_weight *w = &l->model->weight[i];
        if (!bl_weight_has_table(w)) {
            if (bl_plan_device(l->plan, w->layer, w->part) == d)
                addr[i] = l->base[w->tensor] + bl_weight_offset(w);
            continue;
        }
        if (l->off[w->tensor] == UINT64_MAX && !bl_plan_slots_on(l->plan, (uint32_t)w->layer, d))
            continue;
        fill_table(l, d, w, (uint64_t *)(void *)((unsigned char *)l->w->table[d].host + next));
        addr[i] = l->w->table[d].addr + next;
        next += bl_weight_n_experts(w) * sizeof(uint64_t);
    }
}

/* Kernels index by these numbers: what is wrong here must not become a stray read. */
static enum bl_status check_tensor(const struct loader *l, const struct bl_weight *w)
{
    const struct bl_tensor_info *info = bl_gguf_tensor(l->model->gguf, w->tensor);
    int32_t id[1024];

    for (uint64_t at = 0, n; at < info->bytes; at += n) {
        n = info->bytes - at < sizeof id ? info->bytes - at : sizeof id;
        BL_TRY(bl_file_read(bl_gguf_file(l->model->gguf, info->shard), info->file_off + at, n, id));
        for (uint64_t k = 0; k < n / sizeof *id; k++)
            if (id[k] < 0 || (uint32_t)id[k] >= w->below)
                return bl_model_fail(l->model, BL_EFORMAT, "tensor '%s' holds %d; must be 0 to %u",
                                     info->name, id[k], w->below - 1);
    }
    return BL_OK;
}

static enum bl_status check_ids(const struct loader *l, uint16_t d)
{
    for (uint32_t i = 0; i < l->model->n_weights; i++) {
        const struct bl_weight *w = &l->model->weight[i];
        if (w->below && bl_plan_device(l->plan, w->layer, w->part) == d)
            BL_TRY(check_tensor(l, w));
    }
    return BL_OK;
}

static enum bl_status load_device(struct loader *l, uint16_t d)
{
    uint32_t n = bl_gguf_n_tensors(l->model->gguf);
    struct bl_layout at = {.window = l->blocks[d].window};

    bl_plan_tensor_offsets(l->plan, l->model, d, &at, l->off);
    memset(l->base, 0, n * sizeof *l->base);
    BL_TRY(l->blocks[d].weights ? use_read(l, d) : use_mapped(l, d));
    address_weights(l, d);
    return check_ids(l, d);
}

/* Bytes that loading will go through, for the progress report. */
static uint64_t total_bytes(struct loader *l, uint32_t n_devices)
{
    uint64_t sum = 0;
    for (uint16_t d = 0; d < n_devices; d++) {
        bl_plan_tensor_bytes(l->plan, l->model, d, l->off);
        for (uint32_t t = 0; t < bl_gguf_n_tensors(l->model->gguf); t++)
            sum += l->off[t];
    }
    return sum;
}

static enum bl_status allocate(struct loader *l, uint32_t n_devices)
{
    uint32_t n = bl_gguf_n_tensors(l->model->gguf);
    struct bl_weights *w = l->w;

    w->n_devices = n_devices;
    w->n_shards = bl_gguf_n_shards(l->model->gguf);
    w->addr = bl_calloc((size_t)l->model->n_weights * n_devices + 1, sizeof *w->addr);
    w->block = bl_calloc(n_devices, sizeof *w->block);
    w->table = bl_calloc(n_devices, sizeof *w->table);
    w->import = bl_calloc(w->n_shards, sizeof *w->import);
    l->of = bl_calloc(n + 1, sizeof *l->of);
    l->off = bl_calloc(n + 1, sizeof *l->off);
    l->base = bl_calloc(n + 1, sizeof *l->base);
    if (!w->addr || !w->block || !w->table || !w->import || !l->of || !l->off || !l->base)
        return bl_fail(BL_ENOMEM, "out of memory for the addresses of %u tensors", n);
    for (uint32_t i = 0; i < l->model->n_weights; i++)
        if (bl_weight_has_table(&l->model->weight[i]))
            l->of[l->model->weight[i].tensor] = &l->model->weight[i];
    return BL_OK;
}

/* ---- memory nodes ---- */

static uint32_t bits(uint64_t nodes)
{
    uint32_t n = 0;
    for (; nodes; nodes &= nodes - 1)
        n++;
    return n;
}

/* What is there now that everything has been read, and what the plan had for it. */
static void tell_nodes(const struct loader *l, uint16_t d)
{
    const struct bl_mem *block = l->w->block[d].mem; /* the host has one */
    const uint64_t nodes = l->device[d]->nodes;
    uint64_t on_node[BL_MAX_NODES];

    if (!nodes || !l->w->block[d].n || !block->host ||
        !bl_numa_count(block->host, block->bytes, on_node))
        return;
    for (uint32_t i = 0; i < BL_MAX_NODES; i++) {
        const uint64_t planned = nodes >> i & 1 ? block->bytes / bits(nodes) : 0;
        if (!planned && !on_node[i])
            continue;
        bl_info("memory node %u: %llu bytes of weights, %llu planned", i,
                (unsigned long long)on_node[i], (unsigned long long)planned);
        if (on_node[i] < planned - planned / 4)
            bl_warn("memory node %u holds %llu MiB of weights where %llu were planned; other "
                    "programs or cached files fill it, and decoding will be slower",
                    i, (unsigned long long)(on_node[i] >> 20), (unsigned long long)(planned >> 20));
    }
}

enum bl_status bl_weights_load(struct bl_weights *w, const struct bl_model *model,
                               struct bl_plan *plan, const struct bl_block_bytes *blocks,
                               struct bl_device *const *device, uint32_t n_devices,
                               const struct bl_mem *room, const struct bl_options *opt)
{
    struct loader l = {.w = w,
                       .model = model,
                       .plan = plan,
                       .blocks = blocks,
                       .device = device,
                       .room = room,
                       .opt = opt};
    enum bl_status st;

    *w = (struct bl_weights){0};
    if ((st = allocate(&l, n_devices)))
        goto out;
    l.started_ns = bl_now_ns();
    l.progress.total_bytes = total_bytes(&l, n_devices);
    for (uint16_t d = 0; !st && d < n_devices;
         d++) /* what is missing shows before hours of reading */
        if (device[d])
            st = take_blocks(&l, d);
    for (uint16_t d = 0; !st && d < n_devices; d++)
        if (device[d])
            st = load_device(&l, d);
    for (uint16_t d = 0; !st && d < n_devices; d++)
        if (device[d])
            tell_nodes(&l, d);
out:
    free((void *)l.of);
    free(l.off);
    free(l.base);
    return st;
}

uint64_t *bl_weights_table(const struct bl_weights *w, const struct bl_model *m, uint16_t d,
                           uint32_t weight)
{
    const uint64_t addr = w->addr[(size_t)d * m->n_weights + weight];
    unsigned char *host = w->table[d].host;

    return addr && host ? (uint64_t *)(void *)(host + (addr - w->table[d].addr)) : NULL;
}

const struct bl_mem *bl_weights_home(const struct bl_weights *w, const struct bl_model *m,
                                     uint32_t tensor)
{
    return w->block[0].n ? w->block[0].mem : &w->import[bl_gguf_tensor(m->gguf, tensor)->shard];
}

void bl_weights_finish(struct bl_weights *w)
{
    for (uint32_t d = 0; d < w->n_devices && w->block && w->table; d++) {
        bl_blocks_free(&w->block[d]);
        if (w->table[d].dev)
            w->table[d].dev->ops->mem_free(&w->table[d]);
    }
    for (uint32_t s = 0; s < w->n_shards && w->import; s++)
        if (w->import[s].dev)
            w->import[s].dev->ops->mem_free(&w->import[s]);
    free(w->addr);
    free(w->block);
    free(w->table);
    free(w->import);
    *w = (struct bl_weights){0};
}
