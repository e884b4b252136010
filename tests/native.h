/* SPDX-License-Identifier: MIT */
/* native.h — whether logits of quantised arithmetic are as near to those of float as the recorded reference's.
 *
 * Purpose   the bounds that reference_check takes from its cases, for tests that run other plans.
 * Ownership none.
 * Units     none.
 * Errors    the test fails.
 * Threads   one.
 */
#ifndef BL_TEST_NATIVE_H
#define BL_TEST_NATIVE_H

#include "engine_rig.h"

/* tolerance_nmse.native of the cases, of models without quantised weights f16kv. */
static inline double native_bound(const char *name)
{
    static const struct {
        const char *name;
        double nmse;
    } of[] = {{"gpt-oss-mxfp4", 4.5e-3}, {"qwen3moe-iq3", 2e-3}, {"deepseek4-f32", 6e-5}};

    for (size_t i = 0; i < BL_COUNT(of); i++)
        if (!strcmp(of[i].name, name))
            return of[i].nmse;
    return 2e-5;
}

static const char *const native_models[] = {"mixtral-f32", "gpt-oss-mxfp4", "deepseek4-f32", "qwen3moe-iq3"};

static inline uint32_t native_best(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

static inline float native_margin(const float *x, uint32_t n)
{
    const uint32_t best = native_best(x, n);
    float next = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        next = i != best && x[i] > next ? x[i] : next;
    return x[best] - next;
}

/* Logits of all tokens of the prompt, fed n_each at a time; malloc'ed. NULL: bl_error says why. */
static inline float *prompt_logits(struct bl_engine *e, uint32_t n_each)
{
    const uint32_t n_vocab = bl_engine_n_vocab(e);
    float *rows = malloc((size_t)N_PROMPT * n_vocab * sizeof *rows);
    struct bl_session *s = NULL;
    enum bl_status st = rows ? bl_session_create(&s, e) : BL_ENOMEM;

    for (uint32_t at = 0, n; !st && at < N_PROMPT; at += n) {
        n = n_each < N_PROMPT - at ? n_each : N_PROMPT - at;
        st = feed(e, s, &prompt[at], n);
        for (uint32_t i = 0; !st && i < n; i++)
            memcpy(rows + (size_t)(at + i) * n_vocab, bl_logits(e, i), n_vocab * sizeof *rows);
    }
    bl_session_destroy(s);
    if (!st)
        return rows;
    free(rows);
    return NULL;
}

/* A routing tie decided otherwise throws single rows off: three in four are enough. */
static inline void near_enough(const char *name, const float *got, const float *want, uint32_t n_vocab)
{
    const double bound = native_bound(name);
    const double all = nmse(got, want, N_PROMPT * n_vocab);
    uint32_t good = 0;

    for (size_t i = 0; i < N_PROMPT; i++)
        good += nmse(got + i * n_vocab, want + i * n_vocab, n_vocab) <= bound;
    printf("%-20s native NMSE %.2e of %.1e, %u of %u rows within\n", name, all, bound, good, (unsigned)N_PROMPT);
    if (!(all <= bound) && 4 * good < 3 * N_PROMPT)
        fail_msg("%s: native NMSE %.2e", name, all);
}

#endif
