#version 450
/* SPDX-License-Identifier: MIT */
/* ATTENTION and ATTENTION_GROUPS: a work group is HEADS query heads of one key head, of up to TOKENS tokens, over one of
 * SPLITS parts of what they see. KEYS rows at a time go through shared memory, where all its queries use them, by a
 * running softmax.
 *   a: q, k, v, [sinks], [rows of groups], [chosen], y, params, partials or standings, unused
 *   n: heads, key heads, 2 unused, window, scale, rows of a sequence, bytes of a row of k, pass and passes (16 bits each),
 *      group rows, tokens of a group, chosen of a token
 *   groups: key heads times blocks of HEADS, blocks of TOKENS, SPLITS
 * What a token sees is one list: rows of whole groups, all or the chosen, then positions of the window. Neighbouring tokens
 * of one sequence are taken together, over all that any of them sees; tokens that chose are taken one by one.
 *
 * With more than one split, partials get {maximum, sum, dv values} for each; attention_merge.comp makes the result of
 * them. With more than one pass each goes over its part of the list in a dispatch of its own, and leaves {maximum, sum} in
 * standings and the values in y for the next. */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"
#include "kv.glsl"

layout(local_size_x = 128) in;
layout(constant_id = 0) const uint K_TYPE = BL_F16;
layout(constant_id = 1) const uint V_TYPE = BL_F16;
layout(constant_id = 2) const uint SPLITS = 1;
layout(constant_id = 3) const uint HEADS = 1;
layout(constant_id = 4) const uint TOKENS = 1;
layout(constant_id = 5) const uint DK = 128;
layout(constant_id = 6) const uint DV = 128;
const uint QUERIES = HEADS * TOKENS; /* at most MOST_QUERIES: number h + HEADS * token */
const uint KEYS = 32, DEPTH = 32, WIDTH = 128, MOST_QUERIES = 32, CHUNKS = (DV + WIDTH - 1) / WIDTH;
/* Scores of a key are shared by four invocations, the softmax of a query by LANES; each column of values has its own. */
const uint OF_KEY = (QUERIES + 3) / 4, LANES = 4;
const float NEVER = -1.0 / 0.0;

shared float tile[KEYS * WIDTH], tile_q[DEPTH][MOST_QUERIES];
shared vec4 score[MOST_QUERIES][KEYS / 4];
shared float part_most[MOST_QUERIES][LANES], part_sum[MOST_QUERIES][LANES], keep[MOST_QUERIES], top[MOST_QUERIES],
    total[MOST_QUERIES];
shared uint row_number[KEYS];

struct view { uint slot, first, end, n_rows, t, n, pos; }; /* of tokens [t, t + n) from position pos on */

uint first_seen(const uint pos)
{
    const uint window = arg.n[4];
    return window != 0 && pos >= window ? pos - window + 1 : 0;
}

uint group_rows(const uint pos)
{
    if (arg.a[4] == 0)
        return 0;
    const uint n = (pos + 1) / arg.n[10];
    return arg.a[5] != 0 ? min(n, arg.n[11]) : n;
}

view view_of(const uint t, const uint end)
{
    const uint64_t p = arg.a[7];
    const uint seq = seq_of(p, t);
    view v;
    v.pos = pos_of(p, t);
    v.t = t;
    for (v.n = 1; arg.a[5] == 0 && t + v.n < end && seq_of(p, t + v.n) == seq && pos_of(p, t + v.n) == v.pos + v.n;)
        v.n++;
    v.slot = slot_of(p, seq);
    v.first = first_seen(v.pos);
    v.end = v.pos + v.n;
    v.n_rows = group_rows(v.end - 1);
    return v;
}

/* Row i of what is seen, as a number of a row of groups or of the window. */
uint row_of(const view v, const uint i)
{
    if (i >= v.n_rows)
        return v.slot * arg.n[6] + (v.first + i - v.n_rows) % arg.n[6];
    const uint row = arg.a[5] != 0 ? words_at(arg.a[5]).v[v.t * arg.n[11] + i] : i;
    return v.slot * arg.n[9] + min(row, arg.n[9] - 1); /* who chooses may have failed */
}

bool sees(const view v, const uint i, const uint token)
{
    const uint pos = v.pos + token, at = v.first + i - v.n_rows;
    if (token >= v.n)
        return false;
    return i < v.n_rows ? i < group_rows(pos) : at <= pos && at >= first_seen(pos);
}

/* Eight elements of one of the rows in hand; of the list it is number i. */
void load_eight(const bool keys, const uint kv, const view v, const uint i, const uint j, const uint e, out float x[8])
{
    const bool of_keys = keys || arg.a[1] == arg.a[2];
    const uint type = of_keys ? K_TYPE : V_TYPE, row_bytes = of_keys ? arg.n[7] : kv_bytes(V_TYPE, DV * arg.n[1]);
    const uint64_t base = i < v.n_rows ? arg.a[4] : keys ? arg.a[1] : arg.a[2];
    kv_eight(type, base + uint64_t(row_bytes) * row_number[j] + kv_bytes(type, of_keys ? DK : DV) * kv, e, keys ? DK : DV, x);
}

/* Dimension by dimension, each eight of them further on, so that writes lie in different banks. */
void load_keys(const uint kv, const view v, const uint at, const uint n_here, const uint chunk)
{
    const uint j = gl_LocalInvocationIndex / 4, g = gl_LocalInvocationIndex % 4;
    float x[8] = float[8](0, 0, 0, 0, 0, 0, 0, 0);
    if (j < n_here)
        load_eight(true, kv, v, at + j, j, chunk / 8 + g, x);
    [[unroll]] for (uint i = 0; i < 8; i++)
        tile[(8 * g + i) * KEYS + (j + 8 * g) % KEYS] = x[i];
}

void load_values(const uint kv, const view v, const uint at, const uint n_here, const uint chunk)
{
    [[dont_unroll]] for (uint item = gl_LocalInvocationIndex; item < KEYS * WIDTH / 8; item += 128) {
        const uint j = item / (WIDTH / 8), g = item % (WIDTH / 8);
        float x[8] = float[8](0, 0, 0, 0, 0, 0, 0, 0);
        if (chunk + 8 * g >= DV)
            continue;
        if (j < n_here)
            load_eight(false, kv, v, at + j, j, chunk / 8 + g, x);
        [[unroll]] for (uint i = 0; i < 8; i++)
            tile[j * WIDTH + 8 * g + i] = x[i];
    }
}

void load_queries(const uint head0, const uint n_heads, const view v, const uint skipped, const uint chunk)
{
    for (uint item = gl_LocalInvocationIndex; item < 4 * QUERIES; item += 128) {
        const uint q = item / 4, g = item % 4, h = q % HEADS, token = q / HEADS - skipped;
        float x[8];
        [[unroll]] for (uint i = 0; i < 8; i++)
            x[i] = 0;
        if (q / HEADS >= skipped && token < v.n && h < n_heads)
            kv_eight(BL_F32, arg.a[0] + 4 * (uint64_t(arg.n[0]) * (v.t + token) + head0 + h) * DK, chunk / 8 + g, DK, x);
        [[unroll]] for (uint i = 0; i < 8; i++)
            tile_q[8 * g + i][q] = x[i];
    }
}

/* Scores of the keys in hand by the running maximum, as weights; most and sum are those of query me / LANES. */
void soften(inout float most, inout float sum)
{
    const uint q = gl_LocalInvocationIndex / LANES, lane = gl_LocalInvocationIndex % LANES;
    float mine = NEVER;
    if (q < QUERIES)
        [[unroll]] for (uint i = 0; i < KEYS / 4 / LANES; i++) {
            const vec4 s = score[q][lane + LANES * i];
            mine = max(max(mine, max(s.x, s.y)), max(s.z, s.w));
        }
    part_most[q][lane] = mine;
    barrier();
    const float next = max(max(most, max(part_most[q][0], part_most[q][1])), max(part_most[q][2], part_most[q][3]));
    const float c = most < next ? exp(most - next) : 1;
    vec4 all = vec4(0);
    if (q < QUERIES)
        [[unroll]] for (uint i = 0; i < KEYS / 4 / LANES; i++) {
            const vec4 s = score[q][lane + LANES * i];
            const vec4 p = mix(exp(s - next), vec4(0), equal(s, vec4(NEVER)));
            score[q][lane + LANES * i] = p;
            all += p;
        }
    part_sum[q][lane] = all.x + all.y + all.z + all.w;
    if (lane == 0)
        keep[q] = c;
    barrier();
    sum = sum * c + (part_sum[q][0] + part_sum[q][1] + part_sum[q][2] + part_sum[q][3]);
    most = next;
}

void attend(const view v, const uint skipped, const uint kv, const uint head0, const uint n_heads)
{
    const uint me = gl_LocalInvocationIndex, pass = arg.n[8] & 0xffffu, passes = arg.n[8] >> 16;
    const uint all = v.n_rows + v.end - v.first, part = gl_WorkGroupID.z + pass, parts = SPLITS * passes;
    const uint begin = uint(uint64_t(all) * part / parts), end = uint(uint64_t(all) * (part + 1) / parts);
    const uint key = me % KEYS, q_key = me / KEYS * OF_KEY, column = me;
    const uint q_own = me / LANES, h_own = q_own % HEADS, t_own = v.t + q_own / HEADS - skipped;
    const bool owns = q_own < QUERIES && q_own / HEADS >= skipped && q_own / HEADS - skipped < v.n && h_own < n_heads;
    const uint64_t standing = arg.a[8] + 8 * (uint64_t(arg.n[0]) * t_own + head0 + h_own);
    float acc[CHUNKS][QUERIES], most = NEVER, sum = 0;

    if (pass > 0 && owns) {
        most = floats_at(standing).v[0];
        sum = floats_at(standing).v[1];
    }
    [[unroll]] for (uint c = 0; c < CHUNKS; c++)
        [[unroll]] for (uint p = 0; p < QUERIES; p++) {
            const uint d = c * WIDTH + column, token = p / HEADS - skipped;
            acc[c][p] = 0;
            if (pass > 0 && p / HEADS >= skipped && token < v.n && p % HEADS < n_heads && d < DV)
                acc[c][p] = floats_at(arg.a[6] + 4 * (uint64_t(arg.n[0]) * (v.t + token) + head0 + p % HEADS) * DV).v[d];
        }
    for (uint at = begin; at < end; at += KEYS) {
        const uint n_here = min(KEYS, end - at);
        float s[OF_KEY];
        [[unroll]] for (uint p = 0; p < OF_KEY; p++)
            s[p] = 0;
        barrier();
        if (me < n_here)
            row_number[me] = row_of(v, at + me);
        for (uint chunk = 0; chunk < DK; chunk += DEPTH) {
            barrier();
            load_keys(kv, v, at, n_here, chunk);
            load_queries(head0, n_heads, v, skipped, chunk);
            barrier();
            for (uint d = 0; d < DEPTH; d++) {
                const float x = tile[d * KEYS + (key + d / 8 * 8) % KEYS];
                [[unroll]] for (uint p = 0; p < OF_KEY; p++)
                    s[p] = fma(x, tile_q[d][q_key + p], s[p]);
            }
        }
        [[unroll]] for (uint p = 0; p < OF_KEY; p++) {
            const uint q = q_key + p;
            if (q < QUERIES)
                score[q][key / 4][key % 4] =
                    q / HEADS >= skipped && key < n_here && sees(v, at + key, q / HEADS - skipped) ? s[p] * num(5) : NEVER;
        }
        barrier();
        soften(most, sum);
        [[unroll]] for (uint c = 0; c < CHUNKS; c++) {
            barrier();
            load_values(kv, v, at, n_here, c * WIDTH);
            barrier();
            [[unroll]] for (uint p = 0; p < QUERIES; p++)
                acc[c][p] *= keep[p];
            for (uint j = 0; j < KEYS / 4; j++) {
                const vec4 x = vec4(tile[4 * j * WIDTH + column], tile[(4 * j + 1) * WIDTH + column],
                                    tile[(4 * j + 2) * WIDTH + column], tile[(4 * j + 3) * WIDTH + column]);
                [[unroll]] for (uint p = 0; p < QUERIES; p++)
                    acc[c][p] += dot(score[p][j], x);
            }
        }
    }
    if (me % LANES == 0) {
        top[q_own] = most;
        total[q_own] = sum;
    }
    barrier();
    if (me % LANES == 0 && owns && SPLITS > 1) {
        const uint64_t row = uint64_t(arg.n[0]) * t_own + head0 + h_own;
        floats_at to = floats_at(arg.a[8] + 4 * (row * SPLITS + gl_WorkGroupID.z) * (DV + 2));
        to.v[0] = most;
        to.v[1] = sum;
    } else if (me % LANES == 0 && owns && pass + 1 < passes) {
        floats_at(standing).v[0] = most;
        floats_at(standing).v[1] = sum;
    }
    [[unroll]] for (uint p = 0; p < QUERIES; p++) {
        const uint token = p / HEADS - skipped, h = head0 + p % HEADS;
        if (p / HEADS < skipped || token >= v.n || p % HEADS >= n_heads)
            continue;
        const uint64_t row = uint64_t(arg.n[0]) * (v.t + token) + h;
        const uint64_t to = SPLITS > 1 ? arg.a[8] + 4 * ((row * SPLITS + gl_WorkGroupID.z) * (DV + 2) + 2)
                                       : arg.a[6] + 4 * row * DV;
        float c = 1;
        if (SPLITS == 1 && pass + 1 == passes) {
            float all_of_it = total[p];
            if (arg.a[3] != 0) { /* a sink is a score without a value */
                const float sink = floats_at(arg.a[3]).v[h], high = max(sink, top[p]);
                c = exp(top[p] - high);
                all_of_it = all_of_it * c + exp(sink - high);
            }
            c /= all_of_it;
        }
        [[unroll]] for (uint i = 0; i < CHUNKS; i++)
            if (i * WIDTH + column < DV)
                floats_at(to).v[i * WIDTH + column] = acc[i][p] * c;
    }
}

void main()
{
    const uint gqa = arg.n[0] / arg.n[1], blocks = (gqa + HEADS - 1) / HEADS;
    const uint kv = gl_WorkGroupID.x / blocks, h = gl_WorkGroupID.x % blocks * HEADS;
    const uint first = gl_WorkGroupID.y * TOKENS, end = min(first + TOKENS, params_at(arg.a[7]).n_tok);
    for (uint t = first; t < end;) {
        const view v = view_of(t, end);
        attend(v, t - first, kv, kv * gqa + h, min(HEADS, gqa - h));
        t += v.n;
    }
}
