/* SPDX-License-Identifier: MIT */
/* Tensor types: what every block decodes to, bit for bit; ids and names; encoders; half floats. */
#include "support.h"

#include <float.h>
#include <math.h>

#include "dtype.h"
#include "dtype_unpack.h"

static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t to_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* The high byte of a 64-bit linear congruential generator: the same in every language. */
static uint8_t next_byte(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint8_t)(*seed >> 56);
}

static float next_float(uint64_t *seed)
{
    int32_t v = 0;
    for (int i = 0; i < 3; i++)
        v = v << 8 | next_byte(seed);
    return (float)(v - (1 << 23)) * 0x1p-23f;
}

/* ---- decoding ------------------------------------------------------------------------------ */

/* NULL when there is no such file. */
static void *read_file(const char *dir, const char *name, const char *suffix, size_t *bytes)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%s", dir, name, suffix);
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(f);
    rewind(f);
    void *data = malloc(*bytes);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, f), *bytes);
    fclose(f);
    return data;
}

static bool decodes_as_recorded(const char *dir, enum bl_dtype type)
{
    const struct bl_dtype_info *t = &bl_dtypes[type];
    size_t raw_bytes, want_bytes;
    void *raw = read_file(dir, t->name, "bin", &raw_bytes);
    if (!raw)
        return false;
    float *want = read_file(dir, t->name, "f32", &want_bytes), *got = malloc(want_bytes);
    assert_non_null(want);
    assert_non_null(got);
    size_t k = want_bytes / sizeof *want;
    assert_int_equal(raw_bytes, bl_dtype_row_bytes(type, k));
    bl_dtype_decode(type, k, got, raw);
    for (size_t i = 0; i < k; i++)
        if (to_bits(got[i]) != to_bits(want[i]))
            fail_msg("%s[%zu]: %.9g instead of %.9g", t->name, i, (double)got[i], (double)want[i]);
    free(raw);
    free(want);
    free(got);
    return true;
}

static void every_weight_type_decodes_as_recorded(void **state)
{
    (void)state;
    for (unsigned t = BL_F16; t < BL_N_DTYPES; t++)
        if (bl_dtypes[t].act != BL_ACT_NONE)
            assert_true(decodes_as_recorded(BL_TEST_DATA "/dequant", (enum bl_dtype)t));
}

static void full_recordings_decode_as_recorded(void **state)
{
    (void)state;
    const char *root = getenv("BALLAST_REFERENCE");
    char dir[4000];
    unsigned n = 0;
    if (!root || !*root) {
        print_message("skipped: BALLAST_REFERENCE does not name the full set\n");
        skip();
    }
    snprintf(dir, sizeof dir, "%s/dequant", root);
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        n += decodes_as_recorded(dir, (enum bl_dtype)t);
    assert_in_range(n, 24, BL_N_DTYPES);
}

/* A thousand random blocks of each type reach every codebook entry, scale and sign pattern,
 * infinities included. The hashes (FNV-1a over the floats' bits, NaN as 0x7fc00000) are of an
 * independent decoder in Python. */
static void random_blocks_decode_to_known_hash(void **state)
{
    static const struct {
        enum bl_dtype type;
        uint64_t hash;
    } want[] = {
        {BL_Q4_0, 0x2b22f6a4aa990725},    {BL_Q4_1, 0xf6ff8e3ddc362055},
        {BL_Q5_0, 0xb09f1105669e7f25},    {BL_Q5_1, 0xcc8cf8251623ef63},
        {BL_Q8_0, 0xad54e262d67381e5},    {BL_Q2_K, 0xa717bf69c8dc3fa5},
        {BL_Q3_K, 0x7de59dfa9710a565},    {BL_Q4_K, 0xfa085fb54472ecab},
        {BL_Q5_K, 0x0a9ebbedd4927263},    {BL_Q6_K, 0x785ef5d2cf61a7db},
        {BL_IQ2_XXS, 0x799a33c26990f921}, {BL_IQ2_XS, 0xedd9408160a68359},
        {BL_IQ2_S, 0x20314e6b32074911},   {BL_IQ3_XXS, 0x50a80ea7ed3e510d},
        {BL_IQ3_S, 0xb614022b2ee66b15},   {BL_IQ1_S, 0x499f6f4f3302d6c5},
        {BL_IQ1_M, 0x120e5e4ebd4f67a5},   {BL_IQ4_NL, 0x61e8012503d942a5},
        {BL_IQ4_XS, 0x03bb888ef24023cb},  {BL_MXFP4, 0x780b3498104f6725},
        {BL_NVFP4, 0x4926b16eb92cab25},   {BL_TQ1_0, 0x85ebbaf68187a325},
        {BL_TQ2_0, 0xf53747d07cbec325},   {BL_Q1_0, 0x68afccecb8343325},
        {BL_Q2_0, 0xfd81518c3b222b25},
    };
    (void)state;
    for (size_t i = 0; i < BL_COUNT(want); i++) {
        const struct bl_dtype_info *t = &bl_dtypes[want[i].type];
        uint64_t seed = t->gguf_id, hash = UINT64_C(0xcbf29ce484222325);
        for (int b = 0; b < 1000; b++) {
            uint8_t block[256];
            float y[256];
            for (unsigned j = 0; j < t->block_bytes; j++)
                block[j] = next_byte(&seed);
            bl_dtype_decode(want[i].type, t->block_elems, y, block);
            for (unsigned j = 0; j < t->block_elems; j++)
                hash =
                    (hash ^ (isnan(y[j]) ? 0x7fc00000 : to_bits(y[j]))) * UINT64_C(0x100000001b3);
        }
        if (hash != want[i].hash)
            fail_msg("%s: other values than the reference decoder's", t->name);
    }
}

static void fp4_scales_are_exact_at_the_ends(void **state)
{
    (void)state;
    for (int e = 0; e < 255; e++) {             /* 255 is NaN in E8M0, never written */
        uint8_t block[17] = {(uint8_t)e, 0x21}; /* elements 0 and 16: 0.5 and 1 */
        float y[32];
        bl_dtype_decode(BL_MXFP4, 32, y, block);
        assert_true((double)y[0] == ldexp(1, e - 128) && (double)y[16] == ldexp(1, e - 127));
    }
    for (int x = 0; x < 128; x++) {
        uint8_t block[36] = {(uint8_t)x, 0, 0, 0, 0x02}; /* element 0: 1 */
        double want = x / 8 ? ldexp(8 + x % 8, x / 8 - 10) : ldexp(x % 8, -9);
        float y[64];
        bl_dtype_decode(BL_NVFP4, 64, y, block);
        assert_true((double)y[0] == (x == 0x7f ? 0 : want));
    }
}

/* Every type that is a weight can be decoded, and the unpacked form is whole sixteens of at most
 * 256. */
static void every_type_has_its_decoder(void **state)
{
    (void)state;
    for (unsigned t = 0; t < BL_N_DTYPES; t++) {
        const struct bl_dtype_info *info = &bl_dtypes[t];
        bool plain = info->block_elems == 1;
        bool wanted = !plain && (info->act != BL_ACT_NONE || t == BL_Q8_1 || t == BL_Q8_K);
        assert_int_equal(bl_unpackers[t].unpack != NULL, wanted);
        assert_true(plain || (info->block_elems % 32 == 0 && info->block_elems <= 256));
    }
}

/* ---- ids, names, sizes --------------------------------------------------------------------- */

static void ids_find_their_types(void **state)
{
    (void)state;
    for (unsigned t = 0; t < BL_N_DTYPES; t++) {
        enum bl_dtype found = BL_N_DTYPES;
        assert_int_equal(bl_dtype_by_gguf_id(bl_dtypes[t].gguf_id, &found), BL_OK);
        assert_int_equal(found, t);
    }
}

static void foreign_ids_are_refused_in_words(void **state)
{
    static const struct {
        uint32_t id;
        const char *says;
    } bad[] = {
        {4, "Q4_2"},
        {5, "Q4_3"},
        {31, "re-download the model as Q4_0"},
        {32, "Q4_0_4_8"},
        {33, "Q4_0_8_8"},
        {36, "I2_S"},
        {37, "IQ4_NL_4_8"},
        {38, "as IQ4_NL"},
        {139, "IQ4_K"},
        {158, "IQ1_KT"},
        {202, "Q4_0_R8"},
        {399, "ik_llama.cpp"},
        {43, "type 43 is unknown"},
        {142, "142"},
        {UINT32_MAX, "4294967295"},
    };
    (void)state;
    for (size_t i = 0; i < BL_COUNT(bad); i++) {
        enum bl_dtype untouched = BL_Q6_K;
        assert_int_equal(bl_dtype_by_gguf_id(bad[i].id, &untouched), BL_EFORMAT);
        assert_int_equal(untouched, BL_Q6_K);
        if (!strstr(bl_error(), bad[i].says))
            fail_msg("id %u: \"%s\" does not say \"%s\"", bad[i].id, bl_error(), bad[i].says);
    }
}

static void names_find_their_types(void **state)
{
    enum bl_dtype found;
    (void)state;
    for (unsigned t = 0; t < BL_N_DTYPES; t++) {
        assert_int_equal(bl_dtype_by_name(bl_dtypes[t].name, &found), BL_OK);
        assert_int_equal(found, t);
    }
    assert_int_equal(bl_dtype_by_name("Q8_0", &found), BL_OK);
    assert_int_equal(found, BL_Q8_0);
}

static void wrong_names_bring_near_ones(void **state)
{
    static const struct {
        const char *name, *says;
    } wrong[] = {
        {"q4", "'q4' is no tensor type; near it: q4_0, q4_1, q4_k"},
        {"iq2", "near it: iq2_xxs, iq2_xs, iq2_s"}, /* beginnings, however much is missing */
        {"fp16", "near it: f16"},
        {"iq2xxs", "near it: iq2_xxs"}, /* a letter too few in the middle */
        {"mmxfp4", "near it: mxfp4"},   /* one too many in front */
        {"IQ4NL", "near it: iq4_nl"},
    };
    enum bl_dtype untouched = BL_Q6_K;
    (void)state;
    for (size_t i = 0; i < BL_COUNT(wrong); i++) {
        assert_int_equal(bl_dtype_by_name(wrong[i].name, &untouched), BL_EINVAL);
        if (!strstr(bl_error(), wrong[i].says))
            fail_msg("\"%s\" does not say \"%s\"", bl_error(), wrong[i].says);
    }
    assert_int_equal(bl_dtype_by_name("quite something else", &untouched), BL_EINVAL);
    assert_null(strstr(bl_error(), "near"));
    assert_int_equal(bl_dtype_by_name("", &untouched), BL_EINVAL);
    assert_int_equal(untouched, BL_Q6_K);
}

static void rows_are_whole_blocks(void **state)
{
    (void)state;
    assert_int_equal(bl_dtype_row_bytes(BL_F32, 5), 20);
    assert_int_equal(bl_dtype_row_bytes(BL_Q4_K, 512), 288);
    assert_int_equal(bl_dtype_row_bytes(BL_Q4_K, 288), 0);
    assert_int_equal(bl_dtype_row_bytes(BL_MXFP4, 2880), 1530);
    assert_int_equal(bl_dtype_row_bytes(BL_Q8_0, 0), 0);
    assert_int_equal(bl_dtype_row_bytes(BL_F64, UINT64_C(1) << 61), 0); /* 2^64 bytes */
    assert_int_equal(bl_dtype_row_bytes(BL_F64, (UINT64_C(1) << 61) - 1), UINT64_MAX - 7);
}

/* ---- half floats --------------------------------------------------------------------------- */

static double half_value(unsigned h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return h & 0x8000 ? -v : v;
}

static void every_half_is_its_float_and_back(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        float f = bl_f16_to_f32((uint16_t)h);
        unsigned rest = h & 0x7fff;
        assert_int_equal(!!signbit(f), h >> 15);
        if (rest > 0x7c00) {
            assert_true(isnan(f));
            assert_int_equal(bl_f32_to_f16(f), h | 0x200);
            continue;
        }
        assert_true(rest == 0x7c00 ? isinf(f) : (double)f == half_value(h));
        assert_int_equal(bl_f32_to_f16(f), h);
    }
}

/* Between each two neighbours: the middle goes to the even one, its own neighbours to the nearer.
 * 0x7bff's upper neighbour is infinity, at 65536 for this purpose. */
static void halves_round_to_nearest_even(void **state)
{
    (void)state;
    for (unsigned h = 0; h < 0x7c00; h++) {
        double next = h == 0x7bff ? 65536 : half_value(h + 1);
        float middle = (float)((half_value(h) + next) / 2);
        assert_int_equal(bl_f32_to_f16(middle), h + (h & 1));
        assert_int_equal(bl_f32_to_f16(nextafterf(middle, 0)), h);
        assert_int_equal(bl_f32_to_f16(nextafterf(middle, INFINITY)), h + 1);
        assert_int_equal(bl_f32_to_f16(-middle), 0x8000 | (h + (h & 1)));
    }
    assert_int_equal(bl_f32_to_f16(FLT_MAX), 0x7c00);
    assert_int_equal(bl_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(bl_f32_to_f16(from_bits(1)), 0);
    assert_int_equal(bl_f32_to_f16(from_bits(0x7f800001)),
                     0x7e00); /* NaN with no bit that a half keeps */
}

static uint16_t encode_bf16(float f)
{
    uint16_t h;
    bl_dtype_encode(BL_BF16, 1, &h, &f);
    return h;
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t stored = (uint16_t)h;
        float f;
        bl_dtype_decode(BL_BF16, 1, &f, &stored);
        assert_int_equal(to_bits(f), h << 16);
        if ((h & 0x7fff) > 0x7f80) {
            assert_int_equal(encode_bf16(f), h | 0x40);
            continue;
        }
        assert_int_equal(encode_bf16(f), h);
        if ((h & 0x7fff) == 0x7f80)
            continue;
        assert_int_equal(encode_bf16(from_bits(h << 16 | 0x7fff)), h);
        assert_int_equal(encode_bf16(from_bits(h << 16 | 0x8000)), h + (h & 1));
        assert_int_equal(encode_bf16(from_bits(h << 16 | 0x8001)), h + 1);
    }
    assert_int_equal(encode_bf16(from_bits(0x7f800001)), 0x7fc0);
    assert_int_equal(encode_bf16(from_bits(0xffffffff)), 0xffff);
}

/* ---- encoding ------------------------------------------------------------------------------ */

enum { N = 512 };
static const enum bl_dtype encodable[] = {BL_F32,  BL_F16,  BL_BF16, BL_Q8_0,
                                          BL_Q8_1, BL_Q8_K, BL_Q4_0};

/* Rows of 512: uniform, a spike among small values, an outlier of either sign, constant, zero,
 * subnormal. */
static void make_row(unsigned kind, float x[N])
{
    uint64_t seed = kind;
    for (unsigned i = 0; i < N; i++) {
        float v = next_float(&seed);
        x[i] = kind == 3   ? -2.5f
               : kind == 4 ? 0
               : kind == 5 ? v * 1e-41f
               : kind == 6 ? v * 1e4f
                           : v;
    }
    for (unsigned i = 0; kind == 1 && i < N; i += 32)
        x[i + i / 32] = i % 64 ? 300 : -300;
}

/* The largest error an encoder may make in a block with largest magnitude `most`. */
static double error_bound(enum bl_dtype type, double most, double x)
{
    const double half_step =
        0x1p-25; /* of half's subnormals; also what a scale too small for a half loses */
    switch (type) {
    case BL_F32:
        return 0;
    case BL_F16:
        return fabs(x) * 0x1p-11 + half_step;
    case BL_BF16:
        return fabs(x) * 0x1p-8 + 0x1p-134;
    case BL_Q8_K:
        return most / 127 * 0.5 * (1 + 0x1p-15) +
               127 / (double)FLT_MAX; /* as -127 / x is infinite */
    case BL_Q4_0: /* half a step inside, a whole one at the end that has seven steps */
        return most / 8 + most * 0x1p-11 + 8 * half_step;
    default:
        return most / 127 * 0.5 + most * 0x1p-11 + 127 * half_step;
    }
}

static void encoding_stays_within_its_bound(void **state)
{
    (void)state;
    for (size_t e = 0; e < BL_COUNT(encodable); e++)
        for (unsigned kind = 0; kind < 7; kind++) {
            const enum bl_dtype type = encodable[e];
            const unsigned elems = bl_dtypes[type].block_elems;
            float x[N], y[N];
            uint8_t row[4 * N];
            assert_true(bl_dtype_can_encode(type));
            make_row(kind, x);
            bl_dtype_encode(type, N, row, x);
            bl_dtype_decode(type, N, y, row);
            for (unsigned i = 0; i < N; i++) {
                double most = 0;
                for (unsigned j = i / elems * elems; j < (i / elems + 1) * elems; j++)
                    most = fmax(most, fabs((double)x[j]));
                if (!(fabs((double)y[i] - (double)x[i]) <= error_bound(type, most, (double)x[i])))
                    fail_msg("%s, row %u: %.9g became %.9g", bl_dtypes[type].name, kind,
                             (double)x[i], (double)y[i]);
            }
        }
    assert_false(bl_dtype_can_encode(BL_Q4_K));
    assert_false(bl_dtype_can_encode(BL_I32));
}

/* The scale, the sums and the extreme of a block, which a round trip does not show. */
static void encoded_blocks_have_their_fields(void **state)
{
    float x[256];
    uint8_t q8_0[34], q8_1[36], q8_k[292], q4_0[18];
    uint64_t seed = 9;
    int sum = 0;
    (void)state;
    for (unsigned i = 0; i < 256; i++)
        x[i] = next_float(&seed);
    x[7] = 1.5f;
    bl_dtype_encode(BL_Q8_0, 32, q8_0, x);
    assert_int_equal(bl_load_u16(q8_0), bl_f32_to_f16(1.5f / 127));
    assert_int_equal((int8_t)q8_0[2 + 7], 127);

    bl_dtype_encode(BL_Q8_1, 32, q8_1, x);
    assert_memory_equal(q8_1 + 4, q8_0 + 2, 32);
    for (unsigned i = 0; i < 32; i++)
        sum += (int8_t)q8_1[4 + i];
    assert_int_equal(bl_load_u16(q8_1), bl_load_u16(q8_0));
    assert_int_equal(bl_load_u16(q8_1 + 2), bl_f32_to_f16(1.5f / 127 * (float)sum));

    bl_dtype_encode(BL_Q8_K, 256, q8_k, x);
    assert_float_equal(from_bits(bl_load_u32(q8_k)), -1.5 / 127, 1e-8);
    assert_int_equal((int8_t)q8_k[4 + 7], -127);
    for (unsigned s = 0; s < 16; s++) {
        sum = 0;
        for (unsigned i = 0; i < 16; i++)
            sum += (int8_t)q8_k[4 + 16 * s + i];
        assert_int_equal((int16_t)bl_load_u16(q8_k + 260 + 2 * s), sum);
    }

    bl_dtype_encode(BL_Q4_0, 32, q4_0, x);
    assert_int_equal(bl_load_u16(q4_0), bl_f32_to_f16(1.5f / -8));
    assert_int_equal(q4_0[2 + 7] & 15, 0);
}

/* Ties go to even; 127 steps of 1 make the quotients exact. */
static void eight_bit_law_rounds_ties_to_even(void **state)
{
    float x[32] = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, -127, 125.5f, 0.49999997f};
    static const int8_t want[11] = {127, 0, 2, 2, 0, -2, -2, 126, -127, 126, 0};
    int8_t q[32];
    (void)state;
    assert_true(bl_quantize_i8(32, q, x) == 1);
    assert_memory_equal(q, want, sizeof want);
    x[3] = NAN;
    assert_true(isnan(bl_quantize_i8(32, q, x)));
    x[3] = -INFINITY;
    assert_true(isinf(bl_quantize_i8(32, q, x)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_type_decodes_as_recorded),
        cmocka_unit_test(full_recordings_decode_as_recorded),
        cmocka_unit_test(random_blocks_decode_to_known_hash),
        cmocka_unit_test(fp4_scales_are_exact_at_the_ends),
        cmocka_unit_test(every_type_has_its_decoder),
        cmocka_unit_test(ids_find_their_types),
        cmocka_unit_test(foreign_ids_are_refused_in_words),
        cmocka_unit_test(names_find_their_types),
        cmocka_unit_test(wrong_names_bring_near_ones),
        cmocka_unit_test(rows_are_whole_blocks),
        cmocka_unit_test(every_half_is_its_float_and_back),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(encoding_stays_within_its_bound),
        cmocka_unit_test(encoded_blocks_have_their_fields),
        cmocka_unit_test(eight_bit_law_rounds_ties_to_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
