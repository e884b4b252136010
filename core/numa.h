/* SPDX-License-Identifier: MIT */
/* numa.h — which memory nodes a block lies on: asked for, and counted.
 *
 * Purpose   placement of host memory on machines with several memory nodes.
 * Ownership none: blocks stay their owner's.
 * Units     bytes; a set of nodes is a bit each, nodes beyond the 64th cannot be named.
 * Errors    false where the system cannot; the memory is as good as before.
 * Threads   any.
 */
#ifndef BL_NUMA_H
#define BL_NUMA_H

#include "status.h"

enum { BL_MAX_NODES = 64 };
/* Pages of the block that are touched from now on lie on the one node named, or take turns over several. Whole pages only:
 * p is a page's first byte. */
bool bl_numa_place(void *p, size_t bytes, uint64_t nodes);
/* Bytes of the block on each node, from at most 4096 pages at even distances; what is not in memory counts nowhere. */
bool bl_numa_count(const void *p, size_t bytes, uint64_t on_node[BL_MAX_NODES]);

#endif
