/* SPDX-License-Identifier: MIT */
/* The table of types, their ids and names; half floats; decoding and encoding of rows. */
#include <assert.h>
#include <stdio.h>
#include <strings.h>

#include "dtype.h"
#include "dtype_unpack.h"

const struct bl_dtype_info bl_dtypes[BL_N_DTYPES] = {
#define X(e, id, name, elems, bytes, law) [BL_##e] = {name, id, elems, bytes, BL_ACT_##law},
#include "dtype.def"
#undef X
};

/* ---- ids ----------------------------------------------------------------------------------- */

/* Ids that files of other times and programs use, and what the owner of such a file can do. */
enum advice { REQUANTISE, AS_Q4_0, AS_IQ4_NL, I2_S, FORK };
struct foreign_id {
    uint16_t id;
    uint8_t advice;
    const char *name;
};
static const struct foreign_id foreign_ids[] = {
    {4, REQUANTISE, "Q4_2"},       {5, REQUANTISE, "Q4_3"},       {31, AS_Q4_0, "Q4_0_4_4"},
    {32, AS_Q4_0, "Q4_0_4_8"},     {33, AS_Q4_0, "Q4_0_8_8"},     {36, I2_S, "IQ4_NL_4_4"},
    {37, AS_IQ4_NL, "IQ4_NL_4_8"}, {38, AS_IQ4_NL, "IQ4_NL_8_8"}, {133, FORK, "Q6_0"},
    {134, FORK, "IQ1_BN"},         {135, FORK, "IQ2_BN"},         {136, FORK, "Q8_K64"},
    {137, FORK, "IQ2_K"},          {138, FORK, "IQ3_K"},          {139, FORK, "IQ4_K"},
    {140, FORK, "IQ5_K"},          {141, FORK, "IQ6_K"},          {144, FORK, "IQ4_KS"},
    {145, FORK, "IQ2_KS"},         {146, FORK, "IQ4_KSS"},        {151, FORK, "Q8_KV"},
    {152, FORK, "IQ5_KS"},         {153, FORK, "IQ2_KT"},         {154, FORK, "IQ3_KT"},
    {155, FORK, "IQ4_KT"},         {156, FORK, "IQ3_KS"},         {157, FORK, "IQ2_KL"},
    {158, FORK, "IQ1_KT"},         {202, FORK, "Q4_0_R8"},        {206, FORK, "Q5_0_R4"},
    {208, FORK, "Q8_0_R8"},        {210, FORK, "Q2_K_R4"},        {211, FORK, "Q3_K_R4"},
    {212, FORK, "Q4_K_R4"},        {213, FORK, "Q5_K_R4"},        {214, FORK, "Q6_K_R4"},
    {216, FORK, "IQ2_XXS_R4"},     {217, FORK, "IQ2_XS_R4"},      {218, FORK, "IQ3_XXS_R4"},
    {219, FORK, "IQ1_S_R4"},       {220, FORK, "IQ4_NL_R4"},      {221, FORK, "IQ3_S_R4"},
    {222, FORK, "IQ2_S_R4"},       {223, FORK, "IQ4_XS_R8"},      {229, FORK, "IQ1_M_R4"},
    {230, FORK, "BF16_R16"},       {233, FORK, "Q6_0_R4"},        {335, FORK, "IQ2_BN_R4"},
    {337, FORK, "IQ2_K_R4"},       {338, FORK, "IQ3_K_R4"},       {339, FORK, "IQ4_K_R4"},
    {340, FORK, "IQ5_K_R4"},       {344, FORK, "IQ4_KS_R4"},      {352, FORK, "IQ5_KS_R4"},
    {398, FORK, "Q8_KV_R8"},       {399, FORK, "Q8_K_R8"},
};

static enum bl_status refuse_foreign(const struct foreign_id *f)
{
    switch ((enum advice)f->advice) {
    case AS_Q4_0:
        return bl_fail(BL_EFORMAT, "tensor type %u (%s) is retired: re-download the model as Q4_0",
                       f->id, f->name);
    case AS_IQ4_NL:
        return bl_fail(BL_EFORMAT,
                       "tensor type %u (%s) is retired: re-download the model as IQ4_NL", f->id,
                       f->name);
    case I2_S:
        return bl_fail(BL_EFORMAT,
                       "tensor type %u is retired (%s: re-download the model as IQ4_NL) or a "
                       "fork's I2_S: get the model in a mainline type such as TQ2_0",
                       f->id, f->name);
    case FORK:
        return bl_fail(BL_EFORMAT,
                       "tensor type %u (%s) exists only in the ik_llama.cpp fork: get the model "
                       "in a mainline type",
                       f->id, f->name);
    case REQUANTISE:
        break;
    }
    return bl_fail(BL_EFORMAT,
                   "tensor type %u (%s) is retired: get a newer conversion of the model", f->id,
                   f->name);
}

enum bl_status bl_dtype_by_gguf_id(uint32_t id, enum bl_dtype *out)
{
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        if (bl_dtypes[t].gguf_id == id) {
            *out = (enum bl_dtype)t;
            return BL_OK;
        }
    for (size_t i = 0; i < BL_COUNT(foreign_ids); i++)
        if (foreign_ids[i].id == id)
            return refuse_foreign(&foreign_ids[i]);
    return bl_fail(BL_EFORMAT,
                   "tensor type %u is unknown: the file is damaged or newer than this build", id);
}

/* ---- names --------------------------------------------------------------------------------- */

/* Edits (insert, delete, replace) from a to b, without regard to case; names longer than 15 are far
 * from any. */
static unsigned edits(const char *a, const char *b)
{
    unsigned row[16];
    size_t n = strlen(b);
    if (strlen(a) > 15 || n > 15)
        return 16;
    for (unsigned j = 0; j <= n; j++)
        row[j] = j;
    for (unsigned i = 1; a[i - 1]; i++) {
        unsigned diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            unsigned replace = diagonal + (strncasecmp(a + i - 1, b + j - 1, 1) != 0);
            unsigned indel = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            diagonal = row[j];
            row[j] = replace < indel ? replace : indel;
        }
    }
    return row[n];
}

static bool is_near(const char *given, const char *name)
{
    size_t n = strlen(given);
    return (n && strncasecmp(given, name, n) == 0) || edits(given, name) <= (n > 4 ? 2 : 1);
}

enum bl_status bl_dtype_by_name(const char *name, enum bl_dtype *out)
{
    char near[160] = "";
    size_t len = 0;
    for (unsigned t = 0; t < BL_N_DTYPES; t++) {
        if (strcasecmp(name, bl_dtypes[t].name) == 0) {
            *out = (enum bl_dtype)t;
            return BL_OK;
        }
        if (len < sizeof near && is_near(name, bl_dtypes[t].name))
            len += (size_t)snprintf(near + len, sizeof near - len, "%s%s", len ? ", " : "",
                                    bl_dtypes[t].name);
    }
    if (!len)
        return bl_fail(BL_EINVAL, "'%.32s' is no tensor type", name);
    return bl_fail(BL_EINVAL, "'%.32s' is no tensor type; near it: %s", name, near);
}

uint64_t bl_dtype_row_bytes(enum bl_dtype type, uint64_t k)
{
    const struct bl_dtype_info *t = &bl_dtypes[type];
    uint64_t blocks = k / t->block_elems;
    if (k % t->block_elems || blocks > UINT64_MAX / t->block_bytes)
        return 0;
    return blocks * t->block_bytes;
}

/* ---- half floats --------------------------------------------------------------------------- */

static float as_float(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t as_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* Without branches, so that loops over it become vector code. */
float bl_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = (uint32_t)(h & 0x7fff) << 13;
    uint32_t special = rest >= 0x0f800000 ? 0x7f800000 : 0; /* infinity and NaN */
    uint32_t quiet = rest > 0x0f800000 ? 0x00400000 : 0;    /* NaN made quiet, as hardware does */
    /* The exponents' biases differ by 112; the product also turns half's subnormals into normal
     * floats. */
    return as_float(sign | as_bits(as_float(rest) * 0x1p112f) | special | quiet);
}

uint16_t bl_f32_to_f16(float f)
{
    uint32_t bits = as_bits(f), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    uint32_t half;
    if (rest > 0x7f800000)
        half = 0x7e00 | (rest >> 13 & 0x3ff);
    else if (rest >= 0x477ff000) /* 65520 and more round to infinity */
        half = 0x7c00;
    else if (rest < 0x38800000) /* subnormal: the last bit of 0.5 is half's smallest step, so the
                                   sum rounds */
        half = as_bits(as_float(rest) + 0.5f) - as_bits(0.5f);
    else
        half = (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13;
    return (uint16_t)(sign | half);
}

static uint16_t f32_to_bf16(float f)
{
    uint32_t bits = as_bits(f);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* ---- decoding ------------------------------------------------------------------------------ */

static void decode_blocks(enum bl_dtype type, uint64_t k, float *dst, const uint8_t *src)
{
    const struct bl_dtype_info *info = &bl_dtypes[type];
    const struct bl_unpacker *law = &bl_unpackers[type];
    struct bl_unpacked u;
    assert(law->unpack);
    for (uint64_t at = 0; at < k; at += info->block_elems, src += info->block_bytes) {
        law->unpack(&u, src);
        for (unsigned s = 0; s < info->block_elems / 16u; s++, dst += 16) {
            for (unsigned i = 0; i < 16; i++)
                dst[i] = u.scale[s] * (float)u.q[16 * s + i];
            if (law->has_add)
                for (unsigned i = 0; i < 16; i++)
                    dst[i] += u.add[s];
        }
    }
}

void bl_dtype_decode(enum bl_dtype type, uint64_t k, float *dst, const void *src)
{
    const uint8_t *p = src;
    assert(k % bl_dtypes[type].block_elems == 0);
    switch (type) {
    case BL_F32:
        memcpy(dst, src, k * sizeof *dst);
        return;
    case BL_F16:
        for (uint64_t i = 0; i < k; i++)
            dst[i] = bl_f16_to_f32(bl_load_u16(p + 2 * i));
        return;
    case BL_BF16:
        for (uint64_t i = 0; i < k; i++)
            dst[i] = as_float((uint32_t)bl_load_u16(p + 2 * i) << 16);
        return;
    default:
        decode_blocks(type, k, dst, p);
    }
}

/* ---- encoding ------------------------------------------------------------------------------ */

/* Nearest even for |v| < 2^22: added to 1.5 * 2^23, a float has no room for a fraction. */
static int32_t nearest(float v)
{
    return (int32_t)as_bits(v + 0x1.8p23f) - (int32_t)as_bits(0x1.8p23f);
}

/* NaN becomes lo. */
static float clamp(float v, float lo, float hi)
{
    v = v > lo ? v : lo;
    return v < hi ? v : hi;
}

float bl_quantize_i8(uint32_t n, int8_t *q, const float *x)
{
    uint32_t most = 0; /* floats without sign are ordered as their bits, NaN last */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = as_bits(x[i]) & 0x7fffffff;
        most = bits > most ? bits : most;
    }
    float d = as_float(most) / 127.0f;
    if (d == 0) {
        memset(q, 0, n);
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) /* the clamp acts only where d is subnormal and so too small */
        q[i] = (int8_t)nearest(clamp(x[i] / d, -127, 127));
    return d;
}

static int sum_i8(unsigned n, const int8_t *q)
{
    int sum = 0;
    for (unsigned i = 0; i < n; i++)
        sum += q[i];
    return sum;
}

static void store_u16(uint8_t *p, uint16_t v)
{
    memcpy(p, &v, sizeof v);
}

static void encode_q8_0(uint8_t *b, const float *x)
{
    int8_t q[32];
    store_u16(b, bl_f32_to_f16(bl_quantize_i8(32, q, x)));
    memcpy(b + 2, q, sizeof q);
}

static void encode_q8_1(uint8_t *b, const float *x)
{
    int8_t q[32];
    float d = bl_quantize_i8(32, q, x);
    store_u16(b, bl_f32_to_f16(d));
    store_u16(b + 2, bl_f32_to_f16(d * (float)sum_i8(32, q)));
    memcpy(b + 4, q, sizeof q);
}

/* The value farthest from zero, with its sign; the first of equals. */
static float extreme(unsigned n, const float *x)
{
    float m = 0;
    for (unsigned i = 0; i < n; i++)
        if ((as_bits(x[i]) & 0x7fffffff) > (as_bits(m) & 0x7fffffff))
            m = x[i];
    return m;
}

/* The extreme becomes -127, whatever its sign, so d may be negative. */
static void encode_q8_k(uint8_t *b, const float *x)
{
    float m = extreme(256, x), inverse = -127.0f / m, d = 1 / inverse;
    int8_t q[256];
    int16_t sums[16];
    if (m == 0 || d == 0)
        d = inverse = 0;
    for (unsigned i = 0; i < 256; i++)
        q[i] = (int8_t)nearest(clamp(inverse * x[i], -127, 127));
    for (unsigned s = 0; s < 16; s++)
        sums[s] = (int16_t)sum_i8(16, q + 16 * s);
    memcpy(b, &d, sizeof d);
    memcpy(b + 4, q, sizeof q);
    memcpy(b + 260, sums, sizeof sums);
}

/* The extreme becomes -8, the end of the range that has one value more. */
static void encode_q4_0(uint8_t *b, const float *x)
{
    float d = extreme(32, x) / -8, inverse = d != 0 ? 1 / d : 0;
    store_u16(b, bl_f32_to_f16(d));
    for (unsigned i = 0; i < 16; i++) {
        unsigned low = (unsigned)clamp(x[i] * inverse + 8.5f, 0, 15);
        unsigned high = (unsigned)clamp(x[i + 16] * inverse + 8.5f, 0, 15);
        b[2 + i] = (uint8_t)(low | high << 4);
    }
}

typedef void encode_fn(uint8_t *block, const float *x);

static encode_fn *encoder(enum bl_dtype type)
{
    switch (type) {
    case BL_Q8_0:
        return encode_q8_0;
    case BL_Q8_1:
        return encode_q8_1;
    case BL_Q8_K:
        return encode_q8_k;
    case BL_Q4_0:
        return encode_q4_0;
    default:
        return NULL;
    }
}

bool bl_dtype_can_encode(enum bl_dtype type)
{
    return type == BL_F32 || type == BL_F16 || type == BL_BF16 || encoder(type);
}

bool bl_dtype_can_cache(enum bl_dtype type)
{
    return bl_dtypes[type].act != BL_ACT_NONE && bl_dtype_can_encode(type);
}

void bl_dtype_encode(enum bl_dtype type, uint64_t k, void *dst, const float *src)
{
    const struct bl_dtype_info *info = &bl_dtypes[type];
    uint8_t *p = dst;
    assert(bl_dtype_can_encode(type) && k % info->block_elems == 0);
    switch (type) {
    case BL_F32:
        memcpy(dst, src, k * sizeof *src);
        return;
    case BL_F16:
        for (uint64_t i = 0; i < k; i++)
            store_u16(p + 2 * i, bl_f32_to_f16(src[i]));
        return;
    case BL_BF16:
        for (uint64_t i = 0; i < k; i++)
            store_u16(p + 2 * i, f32_to_bf16(src[i]));
        return;
    default:
        for (uint64_t at = 0; at < k; at += info->block_elems, p += info->block_bytes)
            encoder(type)(p, src + at);
    }
}
