/* SPDX-License-Identifier: MIT */
/* What a card does at best: reading its memory, and products of matrices of halves from registers. What kernels reach is
 * held against it; no model runs these. */
#include "simt/mma.hpp"

constexpr uint32_t THREADS = 256, AT_ONCE = 8, CHAINS = 4;

/* a: what is read, a float for each thread   n: threads, rounds of AT_ONCE quads for each */
BL_KERNEL(peak_read, THREADS)
{
    const uint32_t me = block_x() * THREADS + thread_x();
    const quad *from = at<const quad>(p.a[0]) + me;
    float sum = 0;

    for (uint32_t r = 0; r < p.n[1]; r++) {
        quad q[AT_ONCE];
        BL_UNROLL for (uint32_t i = 0; i < AT_ONCE; i++)
            q[i] = from[(static_cast<uint64_t>(r) * AT_ONCE + i) * p.n[0]];
        BL_UNROLL for (uint32_t i = 0; i < AT_ONCE; i++)
            sum += q[i].v[0] + q[i].v[1] + q[i].v[2] + q[i].v[3];
    }
    floats(p.a[1])[me] = sum;
}

struct alignas(16) tile_of_16 {
    uint32_t w[16 * 8];
};

/* a: a float for each thread   n: rounds of CHAINS products; chains begin apart, so that none is another's copy */
BL_KERNEL(peak_halves, THREADS)
{
    BL_SHARED tile_of_16 tile;
    fragment a, b;
    sums s[CHAINS];

    if (thread_x() < 16 * 8)
        tile.w[thread_x()] = 0x00010001u * (thread_x() % 7);
    sync();
    load_fragment(a, tile.w, 8);
    load_fragment(b, tile.w, 8);
    BL_UNROLL for (uint32_t c = 0; c < CHAINS; c++)
        BL_UNROLL for (uint32_t i = 0; i < SUMS; i++)
            s[c].v[i] = static_cast<float>(c + thread_x());
    for (uint32_t r = 0; r < p.n[0]; r++)
        BL_UNROLL for (uint32_t c = 0; c < CHAINS; c++)
            multiply(s[c], a, b);
    float sum = 0;
    BL_UNROLL for (uint32_t c = 0; c < CHAINS; c++)
        BL_UNROLL for (uint32_t i = 0; i < SUMS; i++)
            sum += s[c].v[i];
    floats(p.a[0])[block_x() * THREADS + thread_x()] = sum;
}
