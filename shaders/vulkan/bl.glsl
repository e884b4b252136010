/* SPDX-License-Identifier: MIT */
/* bl.glsl — what every kernel begins with: memory by address, the arguments of a call, the params block of a step.
 *
 * Buffers are addresses (VK_KHR_buffer_device_address), so a kernel sees the same 64-bit numbers as on other devices and
 * no descriptor limits how large a block may be. A call's arguments are at most 128 bytes of push constants, which is what
 * every driver has. */
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int32 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_control_flow_attributes : require

layout(buffer_reference, buffer_reference_align = 1, scalar) buffer bytes_at { uint8_t v[]; };
layout(buffer_reference, buffer_reference_align = 2, scalar) buffer halves_at { uint16_t v[]; };
layout(buffer_reference, buffer_reference_align = 4, scalar) buffer words_at { uint v[]; };
layout(buffer_reference, buffer_reference_align = 4, scalar) buffer ints_at { int v[]; };
layout(buffer_reference, buffer_reference_align = 4, scalar) buffer floats_at { float v[]; };
layout(buffer_reference, buffer_reference_align = 8, scalar) buffer addrs_at { uint64_t v[]; };
layout(buffer_reference, buffer_reference_align = 8, scalar) buffer pairs_at { uvec2 v[]; };
layout(buffer_reference, buffer_reference_align = 16, scalar) buffer vec4s_at { vec4 v[]; };

/* backends/vulkan/vk_ops.h: struct bl_vk_args. a: addresses, 0 where a source is absent. n: numbers, floats by their bits. */
layout(push_constant, scalar) uniform bl_args { uint64_t a[10]; uint n[12]; } arg;

/* shaders/args.h: struct bl_params, struct bl_seq_params */
layout(buffer_reference, buffer_reference_align = 4, scalar) buffer params_at {
    uint n_tok, n_seq, n_out, n_bytes, token_off, pos_off, seq_off, out_off, table_off;
};

/* Eight floats; rows of whole eights begin at multiples of 16 bytes. */
void floats8_at(const uint64_t at, out float v[8])
{
    if ((uint(at) & 15u) == 0) {
        const vec4 a = vec4s_at(at).v[0], b = vec4s_at(at).v[1];
        v = float[8](a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w);
    } else {
        [[unroll]] for (uint j = 0; j < 8; j++)
            v[j] = floats_at(at).v[j];
    }
}

float num(const uint i) { return uintBitsToFloat(arg.n[i]); }

uint param(const uint64_t params, const uint off, const uint i) { return words_at(params + off).v[i]; }
uint pos_of(const uint64_t p, const uint t) { return param(p, params_at(p).pos_off, t); }
uint seq_of(const uint64_t p, const uint t) { return param(p, params_at(p).seq_off, t); }
uint n_kv_of(const uint64_t p, const uint seq) { return param(p, params_at(p).table_off, 2 * seq); }
uint slot_of(const uint64_t p, const uint seq) { return param(p, params_at(p).table_off, 2 * seq + 1); }
