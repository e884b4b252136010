/* SPDX-License-Identifier: MIT */
#include "numa.h"

#include "mem.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SAMPLES = 4096 };

bool bl_numa_place(void *p, size_t bytes, uint64_t nodes)
{
    const bool one = nodes && !(nodes & (nodes - 1));
    const uint64_t mask[] = {nodes, 0};
    const unsigned long n_bits = BL_MAX_NODES + 1; /* one more than the system looks at */
    if (!nodes || !bytes)
        return false;
    return syscall(SYS_mbind, p, (unsigned long)bytes, one ? MPOL_BIND : MPOL_INTERLEAVE, mask,
                   n_bits, 0u) == 0;
}

/* Where these pages lie: a node, or negative. */
static bool ask(const void **page, int *node, unsigned long n)
{
    return n == 0 || syscall(SYS_move_pages, 0, n, page, NULL, node, 0) == 0;
}

bool bl_numa_count(const void *p, size_t bytes, uint64_t on_node[BL_MAX_NODES])
{
    const size_t page = bl_page_bytes(), n_pages = (bytes + page - 1) / page;
    const size_t n = n_pages < SAMPLES ? n_pages : SAMPLES;
    const void *at[SAMPLES / 16];
    int node[SAMPLES / 16];
    uint64_t seen[BL_MAX_NODES] = {0};
    for (size_t first = 0; first < n; first += SAMPLES / 16) {
        const size_t end = n - first < SAMPLES / 16 ? n : first + SAMPLES / 16;
        for (size_t i = first; i < end; i++)
            at[i - first] = (const char *)p + i * n_pages / n * page;
        if (!ask(at, node, end - first))
            return false;
        for (size_t i = 0; i < end - first; i++)
            if (node[i] >= 0 && node[i] < BL_MAX_NODES)
                seen[node[i]]++;
    }
    for (size_t i = 0; i < BL_MAX_NODES; i++)
        on_node[i] = n ? (uint64_t)((double)bytes * (double)seen[i] / (double)n) : 0;
    return true;
}
