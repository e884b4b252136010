/* SPDX-License-Identifier: MIT */
/* as_bytes.glsl — a row of activations as signed bytes, and their products with four bytes of weights at a time.
 *
 * A row of k elements is k bytes, then for each 32 of them three floats: their scale, and that times the sums of the bytes
 * of either half. backends/vulkan/vk_plan.c: bl_vk_row_as_bytes. */
uint row_as_bytes(const uint k) { return 11 * k / 8 + 7 & ~7u; }
/* Of the bytes [8 e, 8 e + 8): their scale, the sum of the half that they belong to. */
uint64_t scale_at(const uint64_t row, const uint k, const uint e) { return row + (k + 12 * (e / 4)); }
uint64_t sum_at(const uint64_t row, const uint k, const uint e) { return scale_at(row, k, e) + 4 + 4 * (e / 2 % 2); }

/* Of the activations that a call multiplies: rows of arg.n[0] elements. */
uint64_t row_of_x(const uint i)
{
    const uint k = arg.n[0];
#if AS_BYTES
    return arg.a[1] + uint64_t(row_as_bytes(k)) * i;
#else
    return arg.a[1] + 4 * uint64_t(k) * i;
#endif
}

#if AS_BYTES
#extension GL_EXT_spirv_intrinsics : require
/* OpSDot of SPV_KHR_integer_dot_product. format 0: four bytes in a word. */
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int signed_dot(uint a, uint b, spirv_literal uint format);

int dot4(const uint a, const uint b) { return signed_dot(a, b, 0u); }
int dot8(const uvec2 a, const uvec2 b) { return dot4(a.x, b.x) + dot4(a.y, b.y); }
#endif
