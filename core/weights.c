/* SPDX-License-Identifier: MIT */
#include "weights.h"

#include "log.h"
#include "mem.h"
#include "numa.h"
#include "thread.h"

#include <errno.h>
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
    uint64_t *off;  /* [n_tensors] of one device */
    uint64_t *base; /* [n_tensors] address, 0 = not loaded */
    struct bl_progress progress;
    uint64_t started_ns;
};

static void report(struct loader *l, uint64_t bytes)
{
    l->progress.done_bytes += bytes;
    l->progress.elapsed_ns = bl_now_ns() - l->started_ns;
    if (l->opt->progress)
        l->opt->progress(l->opt->progress_arg, &l->progress);
}

/* ---- mapped: used where the file lies ---- */

/* Reads one byte a page so that the first step does not pay for the disk. */
static void touch(struct loader *l, const unsigned char *p, uint64_t bytes)
{
    size_t page = bl_page_bytes();

    for (uint64_t at = 0; at < bytes; at += PIECE_BYTES) {
        uint64_t n = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        for (uint64_t i = 0; i < n; i += page)
            (void)*(const volatile unsigned char *)(p + at + i);
        report(l, n);
    }
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
        bl_file_will_need(bl_gguf_file(g, info->shard), info->file_off, info->bytes);
        l->base[t] = l->w->import[info->shard].addr + info->file_off;
        touch(l, (const unsigned char *)l->w->import[info->shard].host + info->file_off,
              info->bytes);
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

/* ---- read: one block per device ---- */

static enum bl_status read_tensor(struct loader *l, const struct bl_tensor_info *info,
                                  unsigned char *dst)
{
    for (uint64_t at = 0; at < info->bytes; at += PIECE_BYTES) {
        uint64_t n = info->bytes - at < PIECE_BYTES ? info->bytes - at : PIECE_BYTES;
        BL_TRY(bl_file_read(bl_gguf_file(l->model->gguf, info->shard), info->file_off + at, n,
                            dst + at));
        report(l, n);
    }
    return BL_OK;
}

static enum bl_status use_read(struct loader *l, uint16_t d)
{
    const struct bl_gguf *g = l->model->gguf;
    struct bl_mem *block = &l->w->block[d];

    BL_TRY(l->device[d]->ops->mem_alloc(l->device[d], l->blocks[d].weights, true, block));
    BL_TRY(bl_ledger_count(&l->plan->ledger, d, BL_MEM_WEIGHTS, (int64_t)block->granted_bytes));
    if (!block->host)
        return bl_fail(BL_EUNSUPPORTED,
                       "%s: weights cannot be read into memory the host does not see",
                       l->device[d]->name);
    for (uint32_t t = 0; t < bl_gguf_n_tensors(g); t++) {
        if (l->off[t] == UINT64_MAX)
            continue;
        BL_TRY(read_tensor(l, bl_gguf_tensor(g, t), (unsigned char *)block->host + l->off[t]));
        l->base[t] = block->addr + l->off[t];
    }
    lock_pages(l, block->host, block->bytes);
    return BL_OK;
}

/* ---- addresses of weights and experts ---- */

static enum bl_status take_table(struct loader *l, uint16_t d)
{
    struct bl_mem *table = &l->w->table[d];

    if (!l->blocks[d].tables)
        return BL_OK;
    BL_TRY(l->device[d]->ops->mem_alloc(l->device[d], l->blocks[d].tables, true, table));
    return bl_ledger_count(&l->plan->ledger, d, BL_MEM_PARAMS, (int64_t)table->granted_bytes);
}

static void address_weights(struct loader *l, uint16_t d)
{
    uint64_t next = 0;

    for (uint32_t i = 0; i < l->model->n_weights; i++) {
        const struct bl_weight *w = &l->model->weight[i];
        if (bl_plan_device(l->plan, w->layer, w->part) != d)
            continue;
        l->w->addr[i] = l->base[w->tensor] + bl_weight_offset(w);
        if (!bl_weight_has_table(w))
            continue;
        uint64_t *entry = (uint64_t *)(void *)((unsigned char *)l->w->table[d].host + next);
        for (uint32_t e = 0; e < w->ne[2]; e++)
            entry[e] = l->w->addr[i] + e * bl_weight_expert_stride(w);
        l->w->expert_table[i] = l->w->table[d].addr + next;
        next += w->ne[2] * sizeof *entry;
    }
}

/* Kernels index by these numbers: what is wrong here must not become a stray read. */
static enum bl_status check_ids(struct loader *l, uint16_t d)
{
    for (uint32_t i = 0; i < l->model->n_weights; i++) {
        const struct bl_weight *w = &l->model->weight[i];
        const struct bl_tensor_info *info = bl_gguf_tensor(l->model->gguf, w->tensor);
        if (!w->below || bl_plan_device(l->plan, w->layer, w->part) != d)
            continue;
        const int32_t *id = (const int32_t *)(uintptr_t)l->w->addr[i]; /* weights are host memory */
        for (uint64_t n = info->bytes / sizeof *id, k = 0; k < n; k++)
            if (id[k] < 0 || (uint32_t)id[k] >= w->below)
                return bl_model_fail(l->model, BL_EFORMAT, "tensor '%s' holds %d; must be 0 to %u",
                                     info->name, id[k], w->below - 1);
    }
    return BL_OK;
}

static enum bl_status load_device(struct loader *l, uint16_t d)
{
    uint32_t n = bl_gguf_n_tensors(l->model->gguf);

    bl_plan_tensor_offsets(l->plan, l->model, d, l->off);
    memset(l->base, 0, n * sizeof *l->base);
    BL_TRY(l->blocks[d].weights ? use_read(l, d) : use_mapped(l, d));
    BL_TRY(take_table(l, d));
    address_weights(l, d);
    return check_ids(l, d);
}

/* Bytes that loading will go through, for the progress report. */
static uint64_t total_bytes(struct loader *l, uint32_t n_devices)
{
    uint64_t sum = 0;
    for (uint16_t d = 0; d < n_devices; d++) {
        bl_plan_tensor_offsets(l->plan, l->model, d, l->off);
        for (uint32_t t = 0; t < bl_gguf_n_tensors(l->model->gguf); t++)
            sum += l->off[t] != UINT64_MAX ? bl_gguf_tensor(l->model->gguf, t)->bytes : 0;
    }
    return sum;
}

static enum bl_status allocate(struct loader *l, uint32_t n_devices)
{
    uint32_t n = bl_gguf_n_tensors(l->model->gguf);
    struct bl_weights *w = l->w;

    w->n_devices = n_devices;
    w->n_shards = bl_gguf_n_shards(l->model->gguf);
    w->addr = bl_calloc(l->model->n_weights + 1, sizeof *w->addr);
    w->expert_table = bl_calloc(l->model->n_weights + 1, sizeof *w->expert_table);
    w->block = bl_calloc(n_devices, sizeof *w->block);
    w->table = bl_calloc(n_devices, sizeof *w->table);
    w->import = bl_calloc(w->n_shards, sizeof *w->import);
    l->off = bl_calloc(n + 1, sizeof *l->off);
    l->base = bl_calloc(n + 1, sizeof *l->base);
    if (!w->addr || !w->expert_table || !w->block || !w->table || !w->import || !l->off || !l->base)
        return bl_fail(BL_ENOMEM, "out of memory for the addresses of %u tensors", n);
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
    const struct bl_mem *block = &l->w->block[d];
    const uint64_t nodes = l->plan->nodes;
    uint64_t on_node[BL_MAX_NODES];

    if (!nodes || !block->host || !bl_numa_count(block->host, block->bytes, on_node))
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
                               const struct bl_options *opt)
{
    struct loader l = {
        .w = w, .model = model, .plan = plan, .blocks = blocks, .device = device, .opt = opt};
    enum bl_status st;

    *w = (struct bl_weights){0};
    if ((st = allocate(&l, n_devices)))
        goto out;
    l.started_ns = bl_now_ns();
    l.progress.total_bytes = total_bytes(&l, n_devices);
    for (uint16_t d = 0; !st && d < n_devices; d++)
        if (device[d])
            st = load_device(&l, d);
    if (!st)
        tell_nodes(&l, 0);
out:
    free(l.off);
    free(l.base);
    return st;
}

void bl_weights_finish(struct bl_weights *w)
{
    for (uint32_t d = 0; d < w->n_devices && w->block && w->table; d++) {
        if (w->block[d].dev)
            w->block[d].dev->ops->mem_free(&w->block[d]);
        if (w->table[d].dev)
            w->table[d].dev->ops->mem_free(&w->table[d]);
    }
    for (uint32_t s = 0; s < w->n_shards && w->import; s++)
        if (w->import[s].dev)
            w->import[s].dev->ops->mem_free(&w->import[s]);
    free(w->addr);
    free(w->expert_table);
    free(w->block);
    free(w->table);
    free(w->import);
    *w = (struct bl_weights){0};
}
