/* SPDX-License-Identifier: MIT */
/* topology_layout.h — a machine as hwloc sees it, and the part of it that threads may use. Only topology.c includes it.
 *
 * Purpose   this machine, an XML file or a description, limited by affinity, with its performance cores found.
 * Ownership bl_topology_close frees what bl_topology_load filled, also after a failure.
 * Units     processors (PUs), units (cores, or PUs where cores are unknown).
 * Errors    BL_EINVAL: a text that hwloc refuses; BL_EUNAVAILABLE: this machine cannot be told; BL_ENOMEM.
 * Threads   any; nothing is shared.
 */
#ifndef BL_TOPOLOGY_LAYOUT_H
#define BL_TOPOLOGY_LAYOUT_H

#include "topology.h"

#include <hwloc.h>

struct bl_topology {
    hwloc_topology_t topo;
    hwloc_bitmap_t allowed;   /* processors this process may run on */
    hwloc_bitmap_t chosen;    /* of these, the ones of the performance cores */
    hwloc_obj_type_t unit;    /* CORE, or PU where cores are unknown */
    bool foreign;             /* described by a text, not the machine we run on */
    uint32_t n_machine;       /* logical processors before affinity */
    uint32_t n_units, n_fast; /* units in allowed, in chosen */
    hwloc_bitmap_t home;      /* chosen processors of the memory node with most of them */
    uint32_t n_home;          /* units in it */
};
/* text: NULL = this machine, an hwloc XML file or a description such as "pack:1 core:8 pu:2". home is all of `chosen`. */
enum bl_status bl_topology_load(struct bl_topology *l, const char *text);
void bl_topology_close(struct bl_topology *l);

uint32_t bl_topology_weight(hwloc_const_bitmap_t set); /* processors in it */
unsigned bl_topology_objects(const struct bl_topology *l, hwloc_obj_type_t type);
/* The first processor of unit i that is in `among`; -1: none is. */
int bl_topology_first(const struct bl_topology *l, hwloc_const_bitmap_t among, unsigned i);
uint32_t bl_topology_count(const struct bl_topology *l, hwloc_const_bitmap_t among); /* units with one */

#endif
