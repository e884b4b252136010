/* SPDX-License-Identifier: MIT */
/* What positions say: ROPE_ANGLES, ROPE. */
#include "simt/params.hpp"

constexpr uint32_t THREADS = 64;

/* Numbers of rope_angles. */
enum { N_DIMS, GROUP, INVERSE, YARN, FREQ_SCALE, MAGNITUDE, LOW, HIGH, STEP, STEP_HIGH, AXES, AXES_HIGH };

/* base^(-2 i / n_dims) */
BL_DEV double step_to(const struct bl_simt_args &p, uint32_t i)
{
    double x = bits_as<double>(static_cast<uint64_t>(p.n[STEP_HIGH]) << 32 | p.n[STEP]), r = 1;
    for (; i > 0; i >>= 1, x *= x)
        r = (i & 1u) != 0 ? r * x : r;
    return r;
}

/* High frequencies stay as they are, low ones are interpolated, with a ramp between low and high. */
BL_DEV double blend(const struct bl_simt_args &p, uint32_t i)
{
    const double scale = num(p, FREQ_SCALE), low = num(p, LOW);
    if (p.n[YARN] == 0)
        return scale;
    const double wide = static_cast<double>(num(p, HIGH)) - low, width = wide > 0.001 ? wide : 0.001;
    const double ramp = (static_cast<double>(i) - low) / width;
    const double plain = 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
    return scale * (1 - plain) + plain;
}

/* A text token stands at one position on the first three axes, and at 0 on the last. */
BL_DEV bool turns(const struct bl_simt_args &p, uint32_t i)
{
    const uint32_t a = p.n[AXES] & 0xffffu, b = p.n[AXES] >> 16, c = p.n[AXES_HIGH] & 0xffffu,
                   all = a + b + c + (p.n[AXES_HIGH] >> 16);
    if (all == 0)
        return true;
    const uint32_t j = i % all, axis = j % 3;
    return j < 3 * (axis == 0 ? a : axis == 1 ? b : c);
}

struct direction {
    float cosine, sine;
};

/* Of a part of a turn within [-1/8, 1/8]. */
BL_DEV direction small_turn(double x)
{
    const double a = x * 6.283185307179586, s = a * a;
    const double sine = a * (1 - s / 6 * (1 - s / 20 * (1 - s / 42 * (1 - s / 72 * (1 - s / 110)))));
    const double cosine = 1 - s / 2 * (1 - s / 12 * (1 - s / 30 * (1 - s / 56 * (1 - s / 90))));
    return {static_cast<float>(cosine), static_cast<float>(sine)};
}

BL_DEV direction turn(double x)
{
    x -= floor(x + 0.5);
    const int quarter = static_cast<int>(floor(x * 4 + 0.5));
    const direction v = small_turn(x - static_cast<double>(quarter) / 4);
    switch (quarter & 3) {
    case 0:
        return v;
    case 1:
        return {-v.sine, v.cosine};
    case 2:
        return {-v.cosine, -v.sine};
    default:
        return {v.sine, -v.cosine};
    }
}

/* Angles are made in double and reduced to a part of a turn first: at position 100,000 a float angle is off by thousandths.
 *   a: [factors], y, params   n: above; STEP is base^(-2 / n_dims) as a double, AXES pairs of each   grid: pairs, tokens */
BL_KERNEL(rope_angles, THREADS)
{
    const uint32_t n_dims = p.n[N_DIMS], i = block_x() * THREADS + thread_x(), t = block_y();
    if (2 * i >= n_dims || t >= step_of(p.a[2])->n_tok)
        return;
    const uint32_t pos = pos_of(p.a[2], t), first = pos - pos % p.n[GROUP];
    const double f = p.a[0] ? static_cast<double>(floats(p.a[0])[i]) : 1;
    const double phi = turns(p, i) ? static_cast<double>(first) * step_to(p, i) / f * blend(p, i) : 0;
    const direction v = turn(phi * 0.15915494309189535);
    float *y = floats(p.a[1]) + static_cast<uint64_t>(n_dims) * t + 2 * i;
    y[0] = v.cosine * num(p, MAGNITUDE);
    y[1] = (p.n[INVERSE] ? -v.sine : v.sine) * num(p, MAGNITUDE);
}

/* n_dims of every head rotated, from `first` on; the rest copied. A thread has two elements.
 *   a: x, angles, y   n: elements of a token, of a head, n_dims, first, neox   grid: pairs, tokens */
BL_KERNEL(rope, THREADS)
{
    const uint32_t n = p.n[0], head = p.n[1], n_dims = p.n[2], first = p.n[3];
    const uint32_t pair = block_x() * THREADS + thread_x(), t = block_y(), half_head = (head + 1) / 2;
    if (pair >= n / head * half_head)
        return;
    const uint64_t from = static_cast<uint64_t>(n) * t + pair / half_head * head;
    const float *x = floats(p.a[0]) + from;
    float *y = floats(p.a[2]) + from;
    const uint32_t i = pair % half_head;
    if (i < n_dims / 2) {
        const uint32_t a = first + (p.n[4] ? i : 2 * i), b = p.n[4] ? a + n_dims / 2 : a + 1;
        const float *angle = floats(p.a[1]) + static_cast<uint64_t>(n_dims) * t + 2 * i;
        const float x0 = x[a], x1 = x[b], c = angle[0], s = angle[1];
        y[a] = x0 * c - x1 * s;
        y[b] = x0 * s + x1 * c;
        return;
    }
    /* what is not rotated, in twos: before `first`, then behind */
    for (uint32_t j = 2 * i - n_dims; j < least(2 * i - n_dims + 2, head - n_dims); j++) {
        const uint32_t e = j < first ? j : j + n_dims;
        y[e] = x[e];
    }
}
