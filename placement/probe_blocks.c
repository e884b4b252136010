/* SPDX-License-Identifier: MIT */
/* Memory that caches do not hold: what is read of it comes from where weights and states of models
 * come from. */
#include "probe_impl.h"

#include "mem.h"
#include "numa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    /* A block is larger than caches by so much: a cache keeps part of what passes through it, and
     * processors of one device may have caches of their own. */
    CACHES = 12,
    USUAL_BLOCK = 256 << 20, /* at least, as long as that is a small part of the memory */
    MOST_BLOCK = 1 << 30,
    LEAST_BLOCK = 64 << 20,
    SHARE = 4 /* of the block of states, one part in so many is for recurrent ones */
};

static size_t block_bytes(const struct bl_machine_device *d)
{
    const double room = (double)(d->usable_bytes / 4), want = CACHES * d->cache_bytes;
    const double bytes = want > MOST_BLOCK ? MOST_BLOCK : want > USUAL_BLOCK ? want : USUAL_BLOCK;
    return (size_t)(bytes < room ? bytes : room) / LEAST_BLOCK * LEAST_BLOCK;
}

/* Bytes that are weights of moderate size in every type, whatever part of a block they are: 5 bits
 * are random, the others keep exponents of floats below that of 1. */
static void fill(unsigned char *block, size_t bytes)
{
    const uint64_t random = 0x1f1f1f1f1f1f1f1f, fixed = 0x2020202020202020;
    uint64_t x = 88172645463325252;
    for (size_t i = 0; i + sizeof x <= bytes; i += sizeof x) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        const uint64_t word = (x & random) | fixed;
        memcpy(block + i, &word, sizeof word);
    }
}

enum bl_status bl_probe_take(const struct bl_probe *p, uint64_t nodes, struct bl_rig_block *out)
{
    const size_t bytes = block_bytes(p->dev);
    void *block;
    if (!bytes)
        return bl_fail(BL_EUNAVAILABLE,
                       "probe: %d MiB of memory to read in are more than a quarter of what may be "
                       "used",
                       LEAST_BLOCK >> 20);
    BL_TRY(bl_pages_alloc(bytes, &block));
    if (nodes)
        (void)bl_numa_place(block, bytes, nodes);
    fill(block, bytes);
    *out = (struct bl_rig_block){block, bytes};
    return BL_OK;
}

/* ---- as a file ---- */

/* Gone with its last descriptor and mapping. -1: there is no room for files. */
static int open_nameless(void)
{
    const char *const dir[] = {getenv("TMPDIR"), "/var/tmp", "/tmp"};
    char path[512];
    for (size_t i = 0; i < BL_COUNT(dir); i++) {
        if (!dir[i] ||
            snprintf(path, sizeof path, "%s/ballast-probe-XXXXXX", dir[i]) >= (int)sizeof path)
            continue;
        const int fd = mkstemp(path);
        if (fd < 0)
            continue;
        unlink(path);
        return fd;
    }
    return -1;
}

static bool write_all(int fd, const unsigned char *from, size_t bytes)
{
    while (bytes) {
        const ssize_t n = write(fd, from, bytes);
        if (n <= 0)
            return false;
        from += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* Touched, so that whoever measures does not wait for it. */
static void *map_file(int fd, size_t bytes)
{
    unsigned char *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return NULL;
    for (size_t i = 0; i < bytes; i += 4096)
        (void)*(const volatile unsigned char *)(p + i);
    return p;
}

/* A model is mapped, in pages that are smaller than a program's own where the system keeps files
 * so, and read some percent slower for it. What is placed on nodes is copied there. */
enum bl_status bl_probe_take_mapped(const struct bl_probe *p, struct bl_rig_block *out)
{
    struct bl_rig_block own;
    BL_TRY(bl_probe_take(p, bl_probe_home_bit(p), &own));
    const int fd = p->dev->n_domains > 1 ? -1 : open_nameless();
    void *map = fd >= 0 && write_all(fd, own.bytes, own.n) ? map_file(fd, own.n) : NULL;
    if (fd >= 0)
        close(fd);
    *out = map ? (struct bl_rig_block){map, own.n} : own;
    if (map)
        bl_probe_give(&own);
    return BL_OK;
}

void bl_probe_give(struct bl_rig_block *b)
{
    bl_pages_free(b->bytes, b->n);
    *b = (struct bl_rig_block){0};
}

/* ---- states ---- */

struct bl_rig_block bl_probe_cache_of(const struct bl_rig_block *states)
{
    return (struct bl_rig_block){states->bytes, states->n - states->n / SHARE};
}

struct bl_rig_block bl_probe_recurrent_of(const struct bl_rig_block *states)
{
    const size_t n = states->n / SHARE;
    return (struct bl_rig_block){states->bytes + states->n - n, n};
}
