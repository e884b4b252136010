#version 450
/* SPDX-License-Identifier: MIT */
/* ROUTE: which experts a token goes to, and with what weights; a work group is one token.
 *   a: router outputs, [selection bias], [table], ids, weights, params
 *   n: experts, used, gating, normalise, groups, groups used, group by its largest alone, scale   groups: tokens
 * Of equal scores the lower expert is taken; what is not a number counts as least. */
#extension GL_GOOGLE_include_directive : require
#include "bl.glsl"
#include "sum.glsl"

layout(local_size_x = 128) in;
const uint MOST = 1024, OUT = 0x80000000u;
const uint SOFTMAX = 1, SIGMOID = 2, SOFTMAX_CHOSEN = 3, SQRT_SOFTPLUS = 4;
shared float p[MOST];
shared int key[MOST];
shared int best_key[128];
shared uint best_at[128];
shared uint chosen[128];

/* Integers in the order of the floats, both zeros alike. */
int key_of(const float score)
{
    const int bits = floatBitsToInt(score + 0.0);
    return isnan(score) ? int(OUT + 1u) : bits < 0 ? bits == int(OUT) ? 0 : bits ^ 0x7fffffff : bits;
}

float score_of(const uint e) { return p[e] + (arg.a[1] != 0 ? floats_at(arg.a[1]).v[e] : 0); }

/* ln(1 + x), as exact for small x */
float log1(const float x)
{
    precise const float u = 1 + x;
    return u == 1 ? x : log(u) * x / (u - 1);
}

void gate(const uint n, const uint me)
{
    float most = -1.0 / 0.0, sum = 0;
    for (uint e = me; e < n; e += 128)
        most = max(most, p[e]);
    if (arg.n[2] == SOFTMAX) {
        most = group_max(most);
        for (uint e = me; e < n; e += 128)
            sum += p[e] = exp(p[e] - most);
        sum = group_sum(sum);
    }
    for (uint e = me; e < n; e += 128) {
        if (arg.n[2] == SOFTMAX)
            p[e] /= sum;
        else if (arg.n[2] == SIGMOID)
            p[e] = 1 / (1 + exp(-p[e]));
        else if (arg.n[2] == SQRT_SOFTPLUS)
            p[e] = sqrt(p[e] > 20 ? p[e] : log1(exp(p[e])));
    }
    barrier();
}

/* The sum of a group's two largest scores, or the largest alone. */
float group_score(const uint g, const uint n)
{
    float first = -1.0 / 0.0, second = first;
    for (uint e = g * n; e < (g + 1) * n; e++) {
        const float s = score_of(e);
        second = s > first ? first : max(second, s);
        first = max(first, s);
    }
    return arg.n[6] != 0 || n < 2 ? first : first + second;
}

/* Rules out the groups that are not among the best; by one invocation. */
void pick_groups(const uint n_experts)
{
    const uint n_group = arg.n[4], n = n_experts / n_group;
    for (uint e = 0; e < n_experts; e++)
        key[e] = int(OUT);
    for (uint used = 0; used < arg.n[5]; used++) {
        uint best = n_group;
        float most = 0;
        for (uint g = 0; g < n_group; g++) {
            const float s = group_score(g, n);
            if (key[g * n] == int(OUT) && (best == n_group || s > most)) {
                best = g;
                most = s;
            }
        }
        for (uint e = best * n; best < n_group && e < (best + 1) * n; e++)
            key[e] = key_of(score_of(e));
    }
}

/* The expert of the largest key; it is out from then on. */
uint take(const uint n, const uint me)
{
    best_key[me] = int(OUT);
    best_at[me] = me < n ? me : 0;
    for (uint e = me; e < n; e += 128)
        if (key[e] > best_key[me]) {
            best_key[me] = key[e];
            best_at[me] = e;
        }
    barrier();
    for (uint half_n = 64; half_n > 0; half_n /= 2) {
        if (me < half_n && (best_key[me + half_n] > best_key[me] ||
                            (best_key[me + half_n] == best_key[me] && best_at[me + half_n] < best_at[me]))) {
            best_key[me] = best_key[me + half_n];
            best_at[me] = best_at[me + half_n];
        }
        barrier();
    }
    const uint e = best_at[0];
    if (me == 0)
        key[e] = int(OUT);
    barrier();
    return e;
}

/* By one invocation: there are few. */
void weigh(const uint used, const uint t)
{
    floats_at w = floats_at(arg.a[4] + 4 * uint64_t(used) * t);
    float most = -1.0 / 0.0, sum = 0;
    for (uint u = 0; u < used; u++) {
        words_at(arg.a[3]).v[used * t + u] = chosen[u];
        most = max(most, p[chosen[u]]);
    }
    for (uint u = 0; u < used; u++) {
        w.v[u] = arg.n[2] == SOFTMAX_CHOSEN ? exp(p[chosen[u]] - most) : p[chosen[u]];
        sum += w.v[u];
    }
    for (uint u = 0; arg.n[2] == SOFTMAX_CHOSEN && u < used; u++)
        w.v[u] /= sum;
    if (arg.n[3] != 0) {
        sum = 0;
        for (uint u = 0; u < used; u++)
            sum += w.v[u];
        for (uint u = 0; u < used; u++)
            w.v[u] /= max(sum, 6.103515625e-5);
    }
    for (uint u = 0; num(7) != 0 && u < used; u++)
        w.v[u] *= num(7);
}

void main()
{
    const uint n = arg.n[0], used = arg.n[1], t = gl_WorkGroupID.x, me = gl_LocalInvocationIndex;
    if (t >= params_at(arg.a[5]).n_tok)
        return;
    for (uint e = me; e < n; e += 128)
        p[e] = floats_at(arg.a[0] + 4 * uint64_t(n) * t).v[e];
    barrier();
    gate(n, me);
    if (arg.a[2] != 0) {
        const uint id = param(arg.a[5], params_at(arg.a[5]).token_off, t);
        for (uint u = me; u < used; u += 128)
            chosen[u] = words_at(arg.a[2] + 4 * uint64_t(used) * id).v[u];
    } else {
        if (arg.n[4] <= 1) {
            for (uint e = me; e < n; e += 128)
                key[e] = key_of(score_of(e));
        } else if (me == 0) {
            pick_groups(n);
        }
        barrier();
        for (uint u = 0; u < used; u++) {
            const uint e = take(n, me);
            if (me == 0)
                chosen[u] = e;
        }
    }
    barrier();
    if (me == 0)
        weigh(used, t);
}
