/* SPDX-License-Identifier: MIT */
/* emu.h — what tests tell the emulated driver, and what they learn from it.
 *
 * Purpose   a library that a backend takes for libcuda or libamdhip64: cards with little memory, streams that run late on
 *           threads of their own, kernels compiled for the host; calls that fail when asked to. It is as strict as the
 *           real ones, and stricter: nothing is told from an address that is not its own, and streams and events are only
 *           used while their card is the calling thread's.
 * Ownership the library's; whoever loads it by its path finds the same cards as the backend.
 * Units     bytes, microseconds.
 * Errors    the vendor's codes.
 * Threads   any; configure while nothing is alive.
 */
#ifndef BL_TEST_EMU_H
#define BL_TEST_EMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EMU_MOST_CARDS = 8 };
struct emu_config {
    uint32_t n_cards;
    uint64_t mem_bytes[EMU_MOST_CARDS]; /* 0: 256 MiB */
    uint32_t late_us;      /* each command begins up to so much later than it could */
    uint32_t seed;
    uint32_t fail_nth;     /* the n-th call that can fail does; 0: none */
    int fail_code;         /* 0: 999 */
    uint32_t stuck_nth;    /* the n-th command of a stream never ends */
    uint32_t broken_nth;   /* the n-th kernel ends with an illegal address */
    int driver_version;    /* 0: 13000 */
    bool no_register;      /* of the host's memory */
    bool peers;            /* cards reach each other */
    bool peers_lie;        /* and what is copied between them comes out changed */
};
struct emu_counts {
    uint32_t calls;        /* that can fail */
    uint32_t launches;     /* of kernels, those in graphs too, when they ran */
    uint32_t graph_launches, copies, peer_copies, pageable_copies;
    uint64_t to_card_bytes, from_card_bytes; /* copied, over the host's links */
    /* alive */
    uint64_t mem_bytes, host_bytes;
    uint32_t registered, streams, events, modules, graphs, contexts;
};
/* Forgets everything; what is stuck is let go. False: something is still alive. */
typedef bool emu_configure_fn(const struct emu_config *);
typedef void emu_read_fn(struct emu_counts *);
bool emu_configure(const struct emu_config *);
void emu_read(struct emu_counts *);

#ifdef __cplusplus
}
#endif
#endif
