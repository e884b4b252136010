/* SPDX-License-Identifier: MIT */
/* Contents of tensors: random codes under scales that keep activations near 1, whatever the depth.
 * A weight of n inputs gets values of root mean square 1 / sqrt(n). */
#include "synth.h"

#include "mem.h"

#include <math.h>
#include <stdlib.h>

enum {
    PIECE_BYTES = 1 << 20,
    STEPS = 8,        /* different scales that blocks get, */
    TRIAL_BLOCKS = 64 /* and blocks that are decoded to find them */
};

enum scale_kind { HALF, HALF_MIN, E8M0, UE4M3, SPREAD };

/* Where a block keeps its scale. ratio: the minimum in scales that takes the mean to 0. */
static const struct layout {
    uint8_t kind, at, min_at;
    float ratio;
    bool ternary; /* two-bit codes, of which the last is not used */
} layouts[BL_N_DTYPES] = {
    [BL_Q4_0] = {HALF, 0, 0, 0, false},         [BL_Q4_1] = {HALF_MIN, 0, 2, -7.5f, false},
    [BL_Q5_0] = {HALF, 0, 0, 0, false},         [BL_Q5_1] = {HALF_MIN, 0, 2, -15.5f, false},
    [BL_Q8_0] = {HALF, 0, 0, 0, false},         [BL_Q2_K] = {HALF_MIN, 80, 82, 1.5f, false},
    [BL_Q3_K] = {HALF, 108, 0, 0, false},       [BL_Q4_K] = {HALF_MIN, 0, 2, 7.5f, false},
    [BL_Q5_K] = {HALF_MIN, 0, 2, 15.5f, false}, [BL_Q6_K] = {HALF, 208, 0, 0, false},
    [BL_IQ2_XXS] = {HALF, 0, 0, 0, false},      [BL_IQ2_XS] = {HALF, 0, 0, 0, false},
    [BL_IQ2_S] = {HALF, 0, 0, 0, false},        [BL_IQ3_XXS] = {HALF, 0, 0, 0, false},
    [BL_IQ3_S] = {HALF, 0, 0, 0, false},        [BL_IQ1_S] = {HALF, 0, 0, 0, false},
    [BL_IQ1_M] = {SPREAD, 48, 0, 0, false},     [BL_IQ4_NL] = {HALF, 0, 0, 0, false},
    [BL_IQ4_XS] = {HALF, 0, 0, 0, false},       [BL_TQ1_0] = {HALF, 52, 0, 0, false},
    [BL_TQ2_0] = {HALF, 64, 0, 0, true},        [BL_MXFP4] = {E8M0, 0, 0, 0, false},
    [BL_NVFP4] = {UE4M3, 0, 0, 0, false},       [BL_Q1_0] = {HALF, 0, 0, 0, false},
    [BL_Q2_0] = {HALF, 0, 0, 0, true},
};

/* Vectors and small tables that are no weights: uniform around `mean`. By the end of the name. */
static const struct law {
    const char *tail;
    float mean, reach;
} laws[] = {
    {"norm.weight", 1, 0.25f},
    {"exp_probs_b.bias", 0, 0.05f},
    {"attn_sinks.weight", 0, 1},
    {"ssm_a", -4, 3.5f},
    {"ssm_dt.bias", -3, 2},
    {"ssm_conv1d.weight", 0, 0.9f},
    {"_scale.weight", 0.5f, 0.25f},
    {"_base.weight", 0, 1},
    {"_ape.weight", 0, 1},
    {"rope_freqs.weight", 4, 3},
    {"rope_factors_long.weight", 4, 3},
    {"rope_factors_short.weight", 1.25f, 0.25f},
    {".scale", 1, 0.25f},
    {".bias", 0, 0.1f},
};

struct bl_synth_fill {
    const struct bl_tensor_info *t;
    uint64_t key, done; /* bytes */
    uint64_t piece_bytes;
    const struct law *law;
    uint32_t n_expert;
    uint16_t scale[STEPS], min[STEPS];
    uint64_t keep, set; /* of floats: bits that stay random, bits that make the exponent */
    uint64_t *word;
};

/* ---- random words ---- */

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void random_words(uint64_t key, uint64_t first, uint64_t *out, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = mix(key + (first + i) * UINT64_C(0x9e3779b97f4a7c15));
}

static uint64_t key_of(uint64_t seed, const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return mix(h + mix(seed + UINT64_C(0x9e3779b97f4a7c15)));
}

/* ---- blocks ---- */

/* Nibbles of a half on top of four words. */
static void put_spread(unsigned char *p, uint16_t half)
{
    for (unsigned k = 0; k < 4; k++)
        p[2 * k + 1] = (unsigned char)((p[2 * k + 1] & 15u) | (half >> 4 * k & 15u) << 4);
}

static void put_scale(const struct layout *l, unsigned char *block, uint16_t scale, uint16_t min)
{
    unsigned char *p = block + l->at;
    switch ((enum scale_kind)l->kind) {
    case HALF_MIN:
        memcpy(block + l->min_at, &min, sizeof min);
        memcpy(p, &scale, sizeof scale);
        break;
    case HALF:
        memcpy(p, &scale, sizeof scale);
        break;
    case E8M0:
        p[0] = (unsigned char)scale;
        break;
    case UE4M3:
        memset(p, (unsigned char)scale, 4);
        break;
    case SPREAD:
        put_spread(p, scale);
        break;
    }
}

static void fill_blocks(const struct bl_synth_fill *f, uint64_t n_bytes)
{
    const struct layout *l = &layouts[f->t->type];
    uint64_t size = bl_dtypes[f->t->type].block_bytes, n = n_bytes / size;
    unsigned char *p = (unsigned char *)f->word;
    if (l->ternary)
        for (uint64_t i = 0; i < (n_bytes + 7) / 8; i++)
            f->word[i] &= ~((f->word[i] >> 1 & f->word[i] & UINT64_C(0x5555555555555555)) << 1);
    for (uint64_t i = 0; i < n; i++, p += size) {
        unsigned step = p[size - 1] % STEPS; /* a code, or what is about to be replaced */
        put_scale(l, p, f->scale[step], f->min[step]);
    }
}

/* Root mean square of what random codes mean under scale 1. */
static float rms_of_codes(const struct bl_synth_fill *f)
{
    enum bl_dtype type = (enum bl_dtype)f->t->type;
    uint32_t elems = bl_dtypes[type].block_elems;
    float value[256];
    double sum = 0;
    random_words(f->key, 0, f->word, (uint64_t)TRIAL_BLOCKS * bl_dtypes[type].block_bytes / 8 + 1);
    fill_blocks(f, (uint64_t)TRIAL_BLOCKS * bl_dtypes[type].block_bytes);
    for (unsigned b = 0; b < TRIAL_BLOCKS; b++) {
        bl_dtype_decode(type, elems, value,
                        (const char *)f->word + (size_t)b * bl_dtypes[type].block_bytes);
        for (unsigned i = 0; i < elems; i++)
            sum += (double)value[i] * (double)value[i];
    }
    return (float)sqrt(sum / (TRIAL_BLOCKS * (double)elems));
}

/* The nearest code of 4 exponent and 3 mantissa bits from below, at least the smallest. */
static uint16_t to_ue4m3(float v)
{
    uint16_t code = 1;
    while (code < 0x7e) {
        unsigned e = (code + 1u) >> 3, m = (code + 1u) & 7;
        float next = e ? ldexpf(1 + (float)m / 8, (int)e - 7) : ldexpf((float)m / 8, -6);
        if (next > v)
            break;
        code++;
    }
    return code;
}

static uint16_t scale_code(const struct layout *l, float v)
{
    int e;
    if (l->kind == E8M0) {
        frexpf(v, &e);
        return (uint16_t)(e + 126 < 1 ? 1 : e + 126);
    }
    if (l->kind == UE4M3)
        return to_ue4m3(v);
    uint16_t half = bl_f32_to_f16(v);
    return half ? half : 1;
}

/* Powers of two only: the one below and the one above, in shares that make up the mean square. */
static void choose_powers(struct bl_synth_fill *f, float unit)
{
    uint16_t low = scale_code(&layouts[f->t->type], unit);
    float over = unit / ldexpf(1, low - 127);
    for (unsigned i = 0; i < STEPS; i++)
        f->scale[i] = (uint16_t)(low + ((float)i + 0.5f < STEPS * (over * over - 1) / 3));
}

static void choose_scales(struct bl_synth_fill *f, float target)
{
    const struct layout *l = &layouts[f->t->type];
    uint16_t one = scale_code(l, 1);
    for (unsigned i = 0; i < STEPS; i++) {
        f->scale[i] = one;
        f->min[i] = bl_f32_to_f16(l->ratio);
    }
    float unit = target / rms_of_codes(f);
    for (unsigned i = 0; i < STEPS; i++) {
        float v = unit * (0.75f + 0.5f * (float)i / (STEPS - 1));
        f->scale[i] = scale_code(l, v);
        f->min[i] = bl_f32_to_f16(v * l->ratio);
    }
    if (l->kind == E8M0)
        choose_powers(f, unit);
}

/* ---- floats ---- */

/* Sign and mantissa stay random, the exponent is fixed: magnitudes from a power of two to the next,
 * whose root mean square is 1.53 times the lower one. */
static void choose_exponent(struct bl_synth_fill *f, float target)
{
    int e;
    frexpf(target / 1.0801f, &e); /* 1.53 / sqrt 2: as far above as below */
    e -= 1;
    switch (f->t->type) {
    case BL_F16:
        e = e < -14 ? -14 : e;
        f->keep = UINT64_C(0x83ff83ff83ff83ff);
        f->set = (uint64_t)(e + 15) << 10 & 0x7c00u;
        f->set *= UINT64_C(0x0001000100010001);
        break;
    case BL_BF16:
        f->keep = UINT64_C(0x807f807f807f807f);
        f->set = (uint64_t)(e + 127) << 7 & 0x7f80u;
        f->set *= UINT64_C(0x0001000100010001);
        break;
    default:
        f->keep = UINT64_C(0x807fffff807fffff);
        f->set = (uint64_t)(e + 127) << 23 & 0x7f800000u;
        f->set *= UINT64_C(0x0000000100000001);
    }
}

static void fill_floats(const struct bl_synth_fill *f, uint64_t n_bytes)
{
    for (uint64_t i = 0; i < (n_bytes + 7) / 8; i++)
        f->word[i] = (f->word[i] & f->keep) | f->set;
}

static void fill_by_law(const struct bl_synth_fill *f, uint64_t n_bytes)
{
    unsigned char *p = (unsigned char *)f->word;
    for (uint64_t i = 0; i < n_bytes; i += sizeof(float)) {
        uint32_t r = bl_load_u32(p + i);
        float v = f->law->mean + f->law->reach * (2 * ((float)(r >> 8) * 0x1p-24f) - 1);
        memcpy(p + i, &v, sizeof v);
    }
}

/* ---- expert ids ---- */

/* Columns of ids, one for each token: a random one and others at equal distances, all different. */
static void fill_ids(const struct bl_synth_fill *f, uint64_t n_bytes)
{
    uint64_t k = f->t->ne[0], first = f->done / sizeof(int32_t);
    uint64_t gap = f->n_expert > k ? f->n_expert / k : 1;
    unsigned char *p = (unsigned char *)f->word;
    for (uint64_t i = 0; i < n_bytes / sizeof(int32_t); i++) {
        uint64_t token = (first + i) / k, j = (first + i) % k;
        int32_t id = (int32_t)((mix(f->key + token) + j * gap) % f->n_expert);
        memcpy(p + i * sizeof id, &id, sizeof id);
    }
}

/* ---- the whole ---- */

static const struct law *law_of(const struct bl_tensor_info *t)
{
    size_t n = strlen(t->name), m;
    for (unsigned i = 0; i < BL_COUNT(laws) && t->type == BL_F32; i++) {
        m = strlen(laws[i].tail);
        if (n >= m && !strcmp(t->name + n - m, laws[i].tail))
            return &laws[i];
    }
    return NULL;
}

static bool is_float(uint32_t type)
{
    return type == BL_F32 || type == BL_F16 || type == BL_BF16;
}

static void prepare(struct bl_synth_fill *f)
{
    float target = 1 / sqrtf((float)f->t->ne[0]);
    f->law = law_of(f->t);
    if (is_float(f->t->type))
        choose_exponent(f, target);
    else if (f->t->type != BL_I32)
        choose_scales(f, target);
}

enum bl_status bl_synth_fill_create(struct bl_synth_fill **out, const struct bl_tensor_info *t,
                                    uint64_t seed, uint32_t n_expert)
{
    uint64_t block = bl_dtypes[t->type].block_bytes;
    if (bl_dtypes[t->type].act == BL_ACT_NONE && (t->type != BL_I32 || !n_expert))
        return bl_fail(BL_EINVAL, "tensor '%s': nothing is known of contents of type %s", t->name,
                       t->type_name);
    struct bl_synth_fill *f = bl_calloc(1, sizeof *f);
    if (f)
        f->word = bl_calloc(PIECE_BYTES / 8, 8);
    if (!f || !f->word) {
        bl_synth_fill_destroy(f);
        return bl_fail(BL_ENOMEM, "out of memory");
    }
    f->t = t;
    f->key = key_of(seed, t->name);
    f->n_expert = n_expert;
    f->piece_bytes = PIECE_BYTES / block * block;
    prepare(f);
    *out = f;
    return BL_OK;
}

void bl_synth_fill_destroy(struct bl_synth_fill *f)
{
    if (f)
        free(f->word);
    free(f);
}

uint64_t bl_synth_fill_next(struct bl_synth_fill *f, const void **bytes)
{
    uint64_t left = f->t->bytes - f->done, n = left < f->piece_bytes ? left : f->piece_bytes;
    random_words(f->key, f->done / f->piece_bytes * (PIECE_BYTES / 8), f->word, (n + 7) / 8);
    if (f->t->type == BL_I32)
        fill_ids(f, n);
    else if (f->law)
        fill_by_law(f, n);
    else if (is_float(f->t->type))
        fill_floats(f, n);
    else
        fill_blocks(f, n);
    f->done += n;
    *bytes = f->word;
    return n;
}
