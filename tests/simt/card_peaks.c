/* SPDX-License-Identifier: MIT */
/* What a card does at best, measured by the kernels of peak.cu; a line of JSON.
 *
 *     card_peaks cuda0|hip1 FOLDER
 *
 * FOLDER has peak.fatbin or peak.ARCH.co. Bytes and multiply-adds are of a second. */
#include "backends.h"
#include "file.h"
#include "mem.h"
#include "simt/simt.h"
#include "thread.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    THREADS = 256, /* these four as peak.cu */
    AT_ONCE = 8,
    CHAINS = 4,
    MACS = 16 * 16 * 16, /* of a product */
    BLOCKS_OF_A_UNIT = 8,
    TRIES = 5
};
static const uint64_t enough_ns = 20000000, long_ns = 1000000000, most_ns = 60000000000;
static const uint64_t most_bytes = UINT64_C(8) << 30;

struct peaks {
    struct bl_simt_device *card;
    void *module, *stream;
    struct bl_mem out;
    uint32_t blocks;
};

static enum bl_status open_card(struct bl_device **out, const char *name)
{
    char *end, vendor[8] = "";
    const size_t n = strcspn(name, "0123456789");

    if (n >= sizeof vendor)
        return bl_fail(BL_EINVAL, "%s is no card: cuda0, hip1", name);
    memcpy(vendor, name, n);
    const struct bl_backend *b = bl_backend_find(vendor);
    const unsigned long index = strtoul(name + n, &end, 10);
    if (!b || *end || end == name + n || (strcmp(vendor, "cuda") && strcmp(vendor, "hip")))
        return bl_fail(BL_EINVAL, "%s is no card: cuda0, hip1", name);
    return b->open((uint32_t)index, &(struct bl_device_config){.threads = 1, .number = 1}, out);
}

static enum bl_status load(struct peaks *k, const char *folder)
{
    const struct bl_simt_vendor *v = k->card->vendor;
    char path[512];
    struct bl_file *file;
    const void *image;

    const int n = snprintf(path, sizeof path, "%s/peak%s%s%s", folder, v->by_arch ? "." : "",
                           v->by_arch ? k->card->card.arch : "", v->suffix);
    if (n < 0 || (size_t)n >= sizeof path)
        return bl_fail(BL_EINVAL, "the name of the folder is too long");
    BL_TRY(bl_file_open(&file, path));
    enum bl_status st = bl_file_map(file, &image);
    if (!st)
        st = bl_simt_try(k->card, k->card->fn->module_load(k->card->driver, &k->module, image),
                         path);
    bl_file_close(file);
    return st;
}

/* One launch, from the host's side. */
static enum bl_status time_once(struct peaks *k, void *kernel, struct bl_simt_args *a, uint64_t *ns)
{
    const struct bl_simt_fns *fn = k->card->fn;
    const struct bl_simt_driver *driver = k->card->driver;
    const uint32_t grid[3] = {k->blocks, 1, 1}, block[3] = {THREADS, 1, 1};
    void *args[] = {a};
    const uint64_t start = bl_now_ns();
    int code;

    BL_TRY(bl_simt_try(k->card, fn->launch(driver, kernel, grid, block, 0, k->stream, args),
                       "launch"));
    do {
        code = fn->stream_query(driver, k->stream);
        *ns = bl_now_ns() - start;
    } while (code == BL_SIMT_NOT_READY && *ns < most_ns);
    return bl_simt_try(k->card, code, "a kernel of peak.cu");
}

/* Best of several, with as many rounds as fill some time, but at most `most`; count: where the
 * arguments say how many. */
static enum bl_status time_kernel(struct peaks *k, const char *name, struct bl_simt_args *a,
                                  uint32_t *count, uint32_t most, double *best_ns)
{
    void *kernel;
    uint64_t ns = 0;

    BL_TRY(bl_simt_try(
        k->card, k->card->fn->module_kernel(k->card->driver, &kernel, k->module, name), name));
    for (*count = 1;; *count = *count > most / 2 ? most : 2 * *count) {
        BL_TRY(time_once(k, kernel, a, &ns));
        if (ns >= enough_ns || *count == most)
            break;
    }
    *best_ns = (double)ns;
    for (unsigned i = 1; i < TRIES && ns < long_ns; i++) {
        BL_TRY(time_once(k, kernel, a, &ns));
        *best_ns = (double)ns < *best_ns ? (double)ns : *best_ns;
    }
    return BL_OK;
}

static enum bl_status measure_reading(struct peaks *k, double *bytes_per_s)
{
    const uint32_t threads = k->blocks * THREADS;
    const uint64_t round = (uint64_t)threads * AT_ONCE * 16, memory = k->card->card.mem_bytes / 4;
    const uint64_t rounds = (memory < most_bytes ? memory : most_bytes) / round;
    struct bl_device *dev = &k->card->base;
    struct bl_simt_args a = {.n = {threads}};
    struct bl_mem m;
    double ns;

    if (!rounds)
        return bl_fail(BL_ENOMEM, "%s has too little memory", dev->name);
    BL_TRY(dev->ops->mem_alloc(dev, (size_t)(rounds * round), false, &m));
    a.a[0] = m.addr;
    a.a[1] = k->out.addr;
    const enum bl_status st = time_kernel(k, "peak_read", &a, &a.n[1], (uint32_t)rounds, &ns);
    dev->ops->mem_free(&m);
    if (!st)
        *bytes_per_s = (double)(a.n[1] * round) / ns * 1e9;
    return st;
}

static enum bl_status measure_halves(struct peaks *k, double *macs_per_s)
{
    const double warps = (double)k->blocks * THREADS / k->card->card.limits.warp;
    struct bl_simt_args a = {.a = {k->out.addr}};
    double ns;

    BL_TRY(time_kernel(k, "peak_halves", &a, &a.n[0], 1 << 20, &ns));
    *macs_per_s = warps * a.n[0] * CHAINS * MACS / ns * 1e9;
    return BL_OK;
}

static enum bl_status measure(struct peaks *k, const char *folder)
{
    struct bl_device *dev = &k->card->base;
    double reading = 0, halves = 0;

    BL_TRY(bl_simt_use(k->card));
    BL_TRY(load(k, folder));
    BL_TRY(
        bl_simt_try(k->card, k->card->fn->stream_create(k->card->driver, &k->stream), "no stream"));
    BL_TRY(dev->ops->mem_alloc(dev, (size_t)k->blocks * THREADS * sizeof(float), false, &k->out));
    BL_TRY(measure_reading(k, &reading));
    BL_TRY(measure_halves(k, &halves));
    printf("{\"card\": \"%s\", \"arch\": \"%s\", \"units\": %u, \"read_bps\": %.4g, "
           "\"f16_macs_per_s\": %.4g}\n",
           k->card->card.name, k->card->card.arch, k->card->card.limits.units, reading, halves);
    return BL_OK;
}

int main(int argc, char **argv)
{
    struct bl_device *dev = NULL;

    if (argc != 3) {
        fprintf(stderr, "usage: card_peaks cuda0|hip1 FOLDER\n");
        return 2;
    }
    enum bl_status st = open_card(&dev, argv[1]);
    if (!st) {
        struct peaks k = {.card = bl_simt_of(dev)};
        k.blocks = k.card->card.limits.units * BLOCKS_OF_A_UNIT;
        st = measure(&k, argv[2]);
        if (k.out.dev)
            dev->ops->mem_free(&k.out);
        if (k.stream)
            k.card->fn->stream_destroy(k.card->driver, k.stream);
        if (k.module)
            k.card->fn->module_unload(k.card->driver, k.module);
        dev->ops->close(dev);
    }
    if (st)
        fprintf(stderr, "card_peaks: %s\n", bl_error());
    return st ? 1 : 0;
}
