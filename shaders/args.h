/* SPDX-License-Identifier: MIT */
/* args.h — what kernels on every device read: the params block of a step and the mapping from positions to rows.
 *
 * Purpose   per-step numbers in one block, so that segments and captured graphs replay without patching.
 * Ownership the engine writes a block, the program copies it to each device in stream order.
 * Units     tokens, rows, byte offsets from the start of the block.
 * Errors    none.
 * Threads   a block is not changed while a step that reads it is in flight.
 */
#ifndef BL_ARGS_H
#define BL_ARGS_H

#include <stdint.h>

struct bl_params {
    uint32_t n_tok, n_seq, n_out, n_bytes;  /* real counts of this step; bytes of the block */
    uint32_t token_off;                     /* int32_t[n_tok]  token ids */
    uint32_t pos_off;                       /* uint32_t[n_tok] position in its sequence */
    uint32_t seq_off;                       /* uint32_t[n_tok] index into the sequence table */
    uint32_t out_off;                       /* uint32_t[n_out] which tokens' logits are wanted */
    uint32_t table_off;                     /* struct bl_seq_params[n_seq] */
    uint32_t reserved[3];
};
struct bl_seq_params {
    uint32_t n_kv;  /* tokens in the sequence once this step is stored */
    uint32_t slot;  /* which of the state's sequences it owns */
};

#define BL_PARAMS_ARRAY(type, p, off) ((type *)((unsigned char *)(uintptr_t)(p) + (off)))

/* Row of a position: state values have ne = {row elements, rows per sequence, sequences}. A window is a ring. */
static inline uint32_t bl_kv_row(uint32_t rows_per_seq, uint32_t slot, uint32_t pos)
{
    return slot * rows_per_seq + pos % rows_per_seq;
}

#endif
