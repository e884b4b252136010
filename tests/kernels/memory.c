/* SPDX-License-Identifier: MIT */
/* Guarded regions: pages between two that nobody may touch, filled with poison around what is in
 * use. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

enum { POISON = 0xa5 };

struct region_state {
    uint8_t *first; /* of MEMORY_REGION_BYTES */
    uint8_t *taken;
    size_t taken_bytes;
};
struct memory {
    struct region_state region[N_REGIONS];
};

static uint8_t *map_guarded(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), all = MEMORY_REGION_BYTES + 2 * page;
    uint8_t *p = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + page, MEMORY_REGION_BYTES, PROT_READ | PROT_WRITE)) {
        perror("kernel_check: guard pages");
        exit(2);
    }
    return p + page;
}

struct memory *memory_open(void)
{
    static struct memory m;
    for (unsigned i = 0; i < N_REGIONS; i++) {
        m.region[i].first = map_guarded();
        memset(m.region[i].first, POISON, MEMORY_REGION_BYTES);
        m.region[i].taken = m.region[i].first;
    }
    return &m;
}

/* Only what the last case used has to become poison again. */
void *memory_take(struct memory *m, enum region which, size_t bytes, bool from_start)
{
    struct region_state *r = &m->region[which];
    if (bytes > MEMORY_REGION_BYTES) {
        fprintf(stderr, "kernel_check: a case needs %zu bytes, regions have %d\n", bytes,
                MEMORY_REGION_BYTES);
        exit(2);
    }
    memset(r->taken, POISON, r->taken_bytes);
    r->taken = from_start ? r->first : r->first + MEMORY_REGION_BYTES - bytes;
    r->taken_bytes = bytes;
    return r->taken;
}

bool memory_is_poison(const void *p, size_t bytes)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < bytes; i++)
        if (b[i] != POISON)
            return false;
    return true;
}

/* A kernel that writes astray does so near its output: 4 KiB on each side are looked at. */
bool memory_frame_intact(const struct memory *m, enum region which)
{
    const struct region_state *r = &m->region[which];
    const uint8_t *end = r->first + MEMORY_REGION_BYTES, *behind = r->taken + r->taken_bytes;
    const size_t before = (size_t)(r->taken - r->first), after = (size_t)(end - behind);
    const size_t near_before = before < 4096 ? before : 4096;
    return memory_is_poison(r->taken - near_before, near_before) &&
           memory_is_poison(behind, after < 4096 ? after : 4096);
}
