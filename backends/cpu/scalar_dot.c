/* SPDX-License-Identifier: MIT */
/* The dot product of every weight type, once: what SIMD kernels are tested against.
 *
 * Quantised weights: the integer sums of 16 products are exact, and what follows (scales, addends,
 * the sum over the row) is in double, so the result is the dot of decoded weights and decoded
 * activations rounded once. A kernel that sums in float may be compared with it at c * eps * sum of
 * |terms|, and all error is the kernel's. */
#include "scalar.h"
#include "dtype_unpack.h"

static int32_t dot16(const int8_t *a, const int8_t *b)
{
    int32_t sum = 0;
    for (unsigned i = 0; i < 16; i++)
        sum += a[i] * b[i];
    return sum;
}

static double row_dot(enum bl_dtype type, uint32_t k, const uint8_t *w,
                      const struct bl_act_block *x)
{
    const struct bl_unpacker *law = &bl_unpackers[type];
    const uint32_t elems = bl_dtypes[type].block_elems, bytes = bl_dtypes[type].block_bytes;
    struct bl_unpacked u;
    double sum = 0;
    for (uint32_t at = 0; at < k;
         at += elems, w += bytes) { /* 32, 64, 128 or 256: inside one x block */
        const struct bl_act_block *a = x + at / 256;
        const uint32_t first = at % 256 / 16;
        law->unpack(&u, w);
        for (uint32_t s = 0, g = first; s < elems / 16; s++, g++) {
            double part = (double)u.scale[s] * dot16(u.q + 16 * s, a->q + 16 * g);
            if (law->has_add)
                part += (double)u.add[s] * a->sum[g];
            sum += part * (double)a->d[g / 2];
        }
    }
    return sum;
}

static void dot_act(enum bl_dtype type, uint32_t k, uint32_t rows, float *out, const void *w,
                    size_t w_stride, const struct bl_act_block *x)
{
    for (uint32_t r = 0; r < rows; r++)
        out[r] = (float)row_dot(type, k, (const uint8_t *)w + r * w_stride, x);
}

double bl_scalar_dot_f32(uint32_t n, const float *a, const float *b)
{
    double part[8] = {0}, sum = 0;
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (uint32_t j = 0; j < 8; j++)
            part[j] += (double)a[i + j] * (double)b[i + j];
    for (; i < n; i++)
        part[i % 8] += (double)a[i] * (double)b[i];
    for (uint32_t j = 0; j < 8; j++)
        sum += part[j];
    return sum;
}

void bl_scalar_dot_decoded(enum bl_dtype type, uint32_t k, uint32_t rows, float *out, const void *w,
                           size_t w_stride, const float *x)
{
    const size_t piece_bytes = (size_t)bl_dtype_row_bytes(type, 256);
    float decoded[256];
    for (uint32_t r = 0; r < rows; r++) {
        const uint8_t *p = (const uint8_t *)w + r * w_stride;
        double sum = 0;
        for (uint32_t at = 0; at < k; at += 256, p += piece_bytes) {
            uint32_t n = k - at < 256 ? k - at : 256;
            bl_dtype_decode(type, n, decoded, p);
            sum += bl_scalar_dot_f32(n, decoded, x + at);
        }
        out[r] = (float)sum;
    }
}

/* A kernel has no type argument: every row of dtype.def becomes a function. */
#define X(e, id, name, elems, bytes, law)                                                          \
    static void dot_##e(uint32_t k, uint32_t rows, float *out, const void *w, size_t w_stride,     \
                        const void *x, const void *next)                                           \
    {                                                                                              \
        (void)next;                                                                                \
        if (BL_ACT_##law == BL_ACT_F32)                                                            \
            bl_scalar_dot_decoded(BL_##e, k, rows, out, w, w_stride, x);                           \
        else                                                                                       \
            dot_act(BL_##e, k, rows, out, w, w_stride, x);                                         \
    }
#include "dtype.def"
#undef X

void bl_scalar_dots(struct bl_matmul_kernel matmul[BL_N_DTYPES])
{
    static const struct {
        bl_dot_fn *dot;
        const char *f32_name, *act_name;
    } dots[BL_N_DTYPES] = {
#define X(e, id, name, elems, bytes, law)                                                          \
    [BL_##e] = {dot_##e, "dot_" name "_f32_1__scalar", "dot_" name "_act_1__scalar"},
#include "dtype.def"
#undef X
    };
    for (unsigned t = 0; t < BL_N_DTYPES; t++) {
        uint8_t law = bl_dtypes[t].act;
        matmul[t] = (struct bl_matmul_kernel){
            .dot_name = law == BL_ACT_F32 ? dots[t].f32_name : dots[t].act_name,
            .dot = dots[t].dot,
            .act = law,
            .rows = 1,
        };
        if (law == BL_ACT_NONE)
            matmul[t] = (struct bl_matmul_kernel){0};
    }
}
