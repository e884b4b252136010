/* SPDX-License-Identifier: MIT */
/* RMS_NORM, ROPE, HADAMARD, ROUND and KV_STORE one after the other, or any of them, of several values at once: what lies
 * between the products of a layer's input and its attention. */
#include "simt/encode.hpp"
#include "simt/params.hpp"
#include "simt/round.hpp"

constexpr uint32_t THREADS = 256, MOST_RUN = 4096;

/* a: params, then of each job x, [w], [angles], [y], [state]
 * n: jobs, then of each job first block, elements of a run, runs, eps, elements of a head, n_dims and first, what is done,
 *    bytes of a row of the state, rows of a sequence, elements that are rounded and of a group   grid: runs of all jobs, tokens
 * What is done: 1: the norm; 2: halves of what is rotated are paired; 4: HADAMARD; 8: ROUND, 16: its kind; type of the state
 * from bit 8 on, tokens of a group from bit 16 on. */
enum { X_OF = 1, W_OF, ANGLES_OF, Y_OF, STATE_OF, ADDRS = 5 };
enum { FIRST = 1, RUN, RUNS, EPS, HEAD, TURN, KIND, ROW_BYTES, ROWS, ROUND, NUMS = 10 };
enum { NORM = 1, HALVES = 2, TURNED = 4, ROUNDED = 8, NARROW = 16 };

/* Like rms_norm of row.cu: in the same order. */
BL_DEV void norm_run(float *v, uint32_t n, const float *w, float eps, float *part)
{
    float sum = 0;
    for (uint32_t i = thread_x(); i < n; i += THREADS)
        sum = fmaf(v[i], v[i], sum);
    const float scale = 1 / sqrtf(sum_block<THREADS>(sum, part) / static_cast<float>(n) + eps);
    for (uint32_t i = thread_x(); i < n; i += THREADS)
        v[i] = v[i] * scale * (w ? w[i] : 1);
}

/* Every head of the run; what is not rotated stays. */
BL_DEV void turn_run(float *v, uint32_t n, uint32_t head, uint32_t n_dims, uint32_t first, bool halves, const float *angle)
{
    const uint32_t each = n_dims / 2;
    for (uint32_t pair = thread_x(); pair < n / head * each; pair += THREADS) {
        const uint32_t i = pair % each, a = pair / each * head + first + (halves ? i : 2 * i), b = halves ? a + each : a + 1;
        const float x0 = v[a], x1 = v[b], c = angle[2 * i], s = angle[2 * i + 1];
        v[a] = x0 * c - x1 * s;
        v[b] = x0 * s + x1 * c;
    }
}

/* The first `n` elements, in groups. */
BL_DEV void round_run(float *v, uint32_t n, uint32_t group, uint32_t kind)
{
    for (uint32_t first = thread_x() * group; first < n; first += THREADS * group)
        round_group(v, v, first, least(first + group, n), kind);
}

/* Elements [from, from + n) of the token's row; the caller has seen that the token completes its group. */
BL_DEV void store_run(const float *v, uint32_t from, uint32_t n, uint32_t kv, uint8_t *row)
{
    if (kv == KV_Q8_0 || kv == KV_Q4_0) {
        for (uint32_t i = thread_x(); i < n / 32; i += THREADS)
            encode(kv, row + kv_bytes(kv, from), v, i, n);
        return;
    }
    for (uint32_t i = thread_x(); i < n; i += THREADS)
        encode_one(kv, row, v[i], from + i);
}

BL_KERNEL(rows, THREADS)
{
    BL_SHARED float part[THREADS / BL_WARP], v[MOST_RUN];
    uint32_t a = 0, k = 0;
    for (uint32_t j = 1; j < p.n[0] && block_x() >= p.n[NUMS * j + FIRST]; j++) {
        a = ADDRS * j;
        k = NUMS * j;
    }
    const uint32_t n = p.n[k + RUN], run = block_x() - p.n[k + FIRST], t = block_y(), kind = p.n[k + KIND];
    const uint64_t from = static_cast<uint64_t>(n) * (p.n[k + RUNS] * t + run);
    const float *x = floats(p.a[a + X_OF]) + from;
    for (uint32_t i = thread_x(); i < n; i += THREADS)
        v[i] = x[i];
    if (kind & NORM)
        norm_run(v, n, floats(p.a[a + W_OF]), num(p, k + EPS), part);
    sync();
    if (p.a[a + ANGLES_OF]) {
        const uint32_t n_dims = p.n[k + TURN] & 0xffffu;
        turn_run(v, n, p.n[k + HEAD], n_dims, p.n[k + TURN] >> 16, (kind & HALVES) != 0,
                 floats(p.a[a + ANGLES_OF]) + static_cast<uint64_t>(n_dims) * t);
        sync();
    }
    if (kind & TURNED)
        hadamard_run<THREADS>(v, n);
    if (kind & ROUNDED) {
        sync();
        round_run(v, p.n[k + ROUND] & 0xffffu, p.n[k + ROUND] >> 16, kind & NARROW ? 1 : 0);
    }
    if (kind & (TURNED | ROUNDED))
        sync();
    for (uint32_t i = thread_x(); p.a[a + Y_OF] && i < n; i += THREADS)
        floats(p.a[a + Y_OF])[from + i] = v[i];
    if (!p.a[a + STATE_OF] || t >= step_of(p.a[0])->n_tok)
        return;
    const uint32_t pos = pos_of(p.a[0], t), group = kind >> 16;
    if ((pos + 1) % group != 0)
        return;
    const uint32_t row = row_of(p.n[k + ROWS], slot_of(p.a[0], seq_of(p.a[0], t)), pos / group);
    store_run(v, run * n, n, kind >> 8 & 255u, at<uint8_t>(p.a[a + STATE_OF]) + static_cast<uint64_t>(p.n[k + ROW_BYTES]) * row);
}
