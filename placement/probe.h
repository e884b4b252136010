/* SPDX-License-Identifier: MIT */
/* probe.h — what this machine is and how fast: facts that cost nothing, and measurements.
 *
 * Purpose   fills in machine.h for the device that runs the program. Everything is measured through the device contract,
 *           with the kernels that models run on.
 * Ownership the machine is the caller's; blocks and devices live only during a call.
 * Units     nanoseconds, bytes per second, multiply-adds per second.
 * Errors    BL_ENOMEM, BL_EUNAVAILABLE: too little memory to measure in. What no time was left for stays 0.
 * Threads   any; starts threads of its own and ends them.
 */
#ifndef BL_PROBE_H
#define BL_PROBE_H

#include "machine.h"

struct bl_options;

/* ---- probe_host.c: facts ---- */

/* Name, instruction set, cores, memory nodes, memory by several sources. */
void bl_probe_host(struct bl_machine *, const struct bl_host_memory *, const struct bl_options *);
/* What /proc/cpuinfo says, of which `text` is a copy: name into at most cap bytes, and the best instruction set. */
enum bl_isa bl_probe_cpuinfo(const char *text, char *name, size_t cap);

/* ---- probe_measure.c: speeds of device 0 ---- */

struct bl_probe_plan {
    bool quick;                   /* few types, few thread counts */
    uint64_t budget_ns;           /* 0: 15 s, quick 3 s; if it is over in the first round, what comes last is left out */
    void (*note)(void *arg, const char *text); /* what is going on; may be NULL */
    void *arg;
};
enum bl_status bl_probe_measure(struct bl_machine *, const struct bl_probe_plan *);

/* ---- probe_card.c: speeds of another device and of its link with the host ---- */

/* The budget is for all of it; 0: 4 s, quick 2 s. What the device cannot do, or has too little memory for, stays 0. */
enum bl_status bl_probe_card(struct bl_machine *, uint16_t d, const struct bl_probe_plan *);

/* ---- probe_rig.c: a few nodes on a device ---- */

enum { BL_RIG_TOKENS = 512 };
struct bl_rig_block {             /* weights or states one after the other, from the first again where it ends */
    unsigned char *bytes;
    size_t n;
};
struct bl_rig {
    struct bl_device *dev;
    const struct bl_backend *backend;
    struct bl_stream *stream;
    struct bl_segment *segment;
    struct bl_graph graph;
    uint32_t first;               /* node that runs first; earlier ones only make inputs */
    struct bl_mem scratch, params;
    void **value;                 /* [n_vals]; borrowed where given, otherwise blocks of arena */
    struct bl_arena *arena;
    struct bl_bound *bound;
    uint64_t *addr;
    uint32_t first_position;      /* of the n_tok tokens of ready */
    struct bl_rig_block states;   /* where states of sessions are; none: in memory of the rig */
    struct bl_mem card;           /* of a device that does not see the host's memory, filled with small numbers; */
    struct bl_rig_block rest;     /* the part of it that values are in which have no place of their own */
};
enum bl_status bl_rig_open(struct bl_rig *, const struct bl_backend *, const struct bl_device_config *);
/* On a card, with a block of so many bytes there, of which the rig takes the last `rest` for values. */
struct bl_machine_device;
enum bl_status bl_rig_open_card(struct bl_rig *, const struct bl_machine_device *, size_t bytes, size_t rest);
void bl_rig_close(struct bl_rig *);  /* zeroed is fine */
/* Forgets the graph and what it was bound to, states; the device stays. */
void bl_rig_clear(struct bl_rig *);
/* An input of n elements and n_tok tokens: what follows runs, what came before does not. */
bl_val bl_rig_input(struct bl_rig *, uint32_t n, uint32_t n_tok);
/* After the graph is built: the block, or NULL, for matrices, other memory for what remains,
 * segment. */
enum bl_status bl_rig_ready(struct bl_rig *, const struct bl_rig_block *weights, uint32_t n_tok);
enum bl_status bl_rig_run(struct bl_rig *, uint64_t *ns); /* of one run, from the submitting thread */
enum bl_status bl_rig_join(struct bl_rig *, struct bl_point); /* after a minute the stream has failed */
/* Median of `most` runs after one that does not count; fewer when budget_ns is over, the first run always. Runs during
 * which other programs had the processors do not count, as long as three remain. */
enum bl_status bl_rig_time(struct bl_rig *, uint32_t most, uint64_t budget_ns, double *ns);
double bl_median(double *, uint32_t n); /* sorts */
/* Of n times, of which the first n_own are this program's alone: their median if they are three at least, otherwise that
 * of the fastest third of all. Sorts. */
double bl_undisturbed(double *took, uint32_t n_own, uint32_t n);
uint64_t bl_process_ns(void); /* processor time of all threads */

#endif
