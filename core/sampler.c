/* SPDX-License-Identifier: MIT */
/* From logits to a token, in the order that users of llama.cpp know their settings by:
 *
 *     repeat penalty -> top_k -> top_p -> min_p -> temperature -> draw
 *
 * so top_p and min_p judge probabilities at temperature 1 among the top_k. Every filter keeps a
 * prefix of the ranking (logit descending, then id ascending) and finds it by selection, in linear
 * time, without sorting. The draw is a prefix too: it ends at the token where the sum of weights in
 * rank order reaches a random share of the total. A pick hence depends on ranks and sums alone, and
 * these come from integers and IEEE doubles, not libm: one seed, one text on every platform. */
#include "mem.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK = 64, USUAL_WINDOW = 64, LEAST_KEYS = 256 };

struct bl_sampler {
    uint32_t n_vocab, top_k;      /* top_k = n_vocab: off */
    double top_p, min_p, penalty; /* 1, 0, 1: off */
    double inv_temp;              /* 0: greedy */
    uint64_t random;

    int32_t *window; /* ring of accepted ids, NULL without penalty */
    uint32_t window_size, n_window, window_next;
    float *penalised; /* n_vocab logits, NULL without penalty */

    uint64_t *key; /* candidates, NULL when greedy */
    size_t n_keys;
};

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Logit and id in one integer: a larger key ranks higher, no two are equal. Not for NaN. */
static uint64_t make_key(float logit, uint32_t id)
{
    uint32_t bits;
    logit += 0.0f; /* -0 ties with 0 */
    memcpy(&bits, &logit, sizeof bits);
    bits ^= bits >> 31 ? UINT32_MAX : UINT32_C(1) << 31;
    return (uint64_t)bits << 32 | (UINT32_MAX - id);
}

static float key_logit(uint64_t key)
{
    uint32_t bits = (uint32_t)(key >> 32);
    float logit;
    bits ^= bits >> 31 ? UINT32_C(1) << 31 : UINT32_MAX;
    memcpy(&logit, &bits, sizeof logit);
    return logit;
}

static int32_t key_id(uint64_t key)
{
    return (int32_t)(UINT32_MAX - (uint32_t)key);
}

static uint64_t max_key(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t min_key(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Splits n >= 2 keys so that all in front are larger than all behind; returns how many are in
 * front, 1..n-1. The pivot is not the smallest: of two the larger, else the median of three. */
static size_t partition(uint64_t *key, size_t n)
{
    uint64_t a = key[0], b = key[n / 2], c = key[n - 1];
    uint64_t low = min_key(a, b), high = max_key(a, b);
    uint64_t pivot = n == 2 ? high : max_key(low, min_key(high, c));
    size_t i = 0, j = n - 1;
    for (;; i++, j--) {
        while (key[i] > pivot)
            i++;
        while (key[j] < pivot)
            j--;
        if (i >= j)
            return j + 1;
        uint64_t t = key[i];
        key[i] = key[j];
        key[j] = t;
    }
}

/* Brings the k largest of n keys to the front, the smallest of them to key[k - 1]; 0 < k <= n. */
static void select_count(uint64_t *key, size_t n, size_t k)
{
    size_t lo = 0, hi = n; /* the k-th is in between; all before are larger, all behind smaller */
    while (hi - lo > 1) {
        size_t mid = lo + partition(key + lo, hi - lo);
        if (k <= mid)
            hi = mid;
        else
            lo = mid;
    }
}

/* ---- weights --------------------------------------------------------------------------------- */

/* e^x for x <= 0, within 2e-15, and 3e-308 below -708 and for NaN: the same bits wherever doubles
 * are IEEE, and free of branches, for the vectoriser. */
static inline double exp_negative(double x)
{
    const double log2e = 1.44269504088896338700e+00;
    const double ln2_high = 6.93147180369123816490e-01; /* 32 bits: times k exact */
    const double ln2_low = 1.90821492927058770002e-10;
    x = x > -708.0 ? x : -708.0;
    int32_t k = (int32_t)(x * log2e - 0.5);
    double r = x - (double)k * ln2_high - (double)k * ln2_low; /* |r| <= 0.35 */
    double p = 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    uint64_t bits = (uint64_t)(uint32_t)(k + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static double sum_exp(double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        x[i] = exp_negative(x[i]);
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return sum;
}

/* A weight is a probability relative to the best logit's. */
static double sum_weights(const uint64_t *key, size_t n, float best, double inv_temp)
{
    double x[BLOCK], sum = 0;
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t m = n - at < BLOCK ? n - at : BLOCK;
        for (size_t i = 0; i < m; i++)
            x[i] = ((double)key_logit(key[at + i]) - (double)best) * inv_temp;
        sum += sum_exp(x, m);
    }
    return sum;
}

static double sum_logits(const float *logits, size_t n, float best)
{
    double x[BLOCK], sum = 0;
    for (size_t at = 0; at < n; at += BLOCK) {
        size_t m = n - at < BLOCK ? n - at : BLOCK;
        for (size_t i = 0; i < m; i++)
            x[i] = (double)logits[at + i] - (double)best;
        sum += sum_exp(x, m);
    }
    return sum;
}

/* Brings the shortest prefix of the ranking whose weights reach `target` to the front, its last
 * member at the end; returns its length. All n keys when they do not reach it. */
static size_t select_weight(uint64_t *key, size_t n, float best, double inv_temp, double target)
{
    size_t lo = 0, hi = n;
    while (hi - lo > 1) {
        size_t front = partition(key + lo, hi - lo);
        double sum = sum_weights(key + lo, front, best, inv_temp);
        if (sum >= target) {
            hi = lo + front;
        } else {
            lo += front;
            target -= sum;
        }
    }
    return hi;
}

/* ---- candidates ------------------------------------------------------------------------------ */

/* Branch-free, for the vectoriser: nearly every block of a vocabulary has nothing to offer. */
static bool any_above(const float *x, uint32_t n, float bar)
{
    int any = 0;
    for (uint32_t i = 0; i < n; i++)
        any |= x[i] > bar;
    return any;
}

static uint32_t block_end(uint32_t from, uint32_t n)
{
    return n - from < BLOCK ? n : from + BLOCK;
}

/* The lowest id with the largest logit. Without any above -inf: the first that is not NaN, or 0. */
static uint32_t find_best(const float *x, uint32_t n, float *best)
{
    uint32_t id = 0;
    *best = -INFINITY;
    for (uint32_t at = 0; at < n; at = block_end(at, n)) {
        if (!any_above(x + at, block_end(at, n) - at, *best))
            continue;
        for (uint32_t i = at; i < block_end(at, n); i++) {
            if (x[i] > *best) {
                *best = x[i];
                id = i;
            }
        }
    }
    if (*best == -INFINITY)
        for (uint32_t i = n; i-- > 0;)
            id = isnan(x[i]) ? id : i;
    return id;
}

/* Keys of the top_k logits above `bar`. Whenever the buffer is full it is cut to its top_k, the
 * last of which is the new bar: later ids do not pass it on a tie, NaN and -inf never pass. */
static size_t collect(struct bl_sampler *s, const float *x, float bar)
{
    size_t n = 0;
    for (uint32_t at = 0; at < s->n_vocab; at = block_end(at, s->n_vocab)) {
        uint32_t end = block_end(at, s->n_vocab);
        if (!any_above(x + at, end - at, bar))
            continue;
        for (uint32_t i = at; i < end; i++) {
            if (!(x[i] > bar))
                continue;
            s->key[n++] = make_key(x[i], i);
            if (n == s->n_keys && n > s->top_k) {
                select_count(s->key, n, s->top_k);
                n = s->top_k;
                bar = key_logit(s->key[n - 1]);
            }
        }
    }
    if (n > s->top_k) {
        select_count(s->key, n, s->top_k);
        n = s->top_k;
    }
    return n;
}

/* A logit that is surely below a weight of `cut`; the slack covers libm and rounding to float. */
static float bar_below(float best, double cut)
{
    return cut > 0 ? (float)((double)best + log(cut) - 1e-3 - 1e-6 * fabs((double)best))
                   : -INFINITY;
}

/* Keeps the keys that weigh at least `cut`, the best one among them. */
static size_t keep_likely(uint64_t *key, size_t n, float best, double cut)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (exp_negative((double)key_logit(key[i]) - (double)best) >= cut)
            key[kept++] = key[i];
    return kept;
}

/* Candidates after top_k, top_p and min_p; returns how many. The last two both keep a prefix of one
 * ranking, so min_p may go first as long as top_p's share is one of all candidates. The ones that
 * weigh less than half of (1 - top_p) / n of the total cannot be in that share, for all of them
 * together are too few to be missed: seldom more than a few hundred need to be ranked. */
static size_t filter(struct bl_sampler *s, const float *x, float best)
{
    bool all = s->top_k == s->n_vocab, nucleus = s->top_p < 1;
    size_t n = all ? s->n_vocab : collect(s, x, -INFINITY);
    double cut = s->min_p, total = 0;
    if (nucleus) {
        total = all ? sum_logits(x, n, best) : sum_weights(s->key, n, best, 1);
        double spare = (1 - s->top_p) * total / (2 * (double)n);
        cut = spare > cut ? spare : cut;
    }
    if (all)
        n = collect(s, x, bar_below(best, cut));
    if (cut > 0)
        n = keep_likely(s->key, n, best, cut);
    return nucleus ? select_weight(s->key, n, best, 1, s->top_p * total) : n;
}

/* ---- random numbers -------------------------------------------------------------------------- */

/* splitmix64: any seed, 0 included, starts a good sequence. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static double uniform(uint64_t *state)
{
    return (double)(next_random(state) >> 11) * 0x1p-53; /* [0, 1) */
}

/* ---- the sampler ----------------------------------------------------------------------------- */

static enum bl_status check_settings(const struct bl_sampling *p, uint32_t n_vocab)
{
    if (n_vocab == 0 || n_vocab > INT32_MAX)
        return bl_fail(BL_EINVAL, "sampler: %u tokens in the vocabulary", n_vocab);
    if (!(p->temp >= 0) || isinf(p->temp))
        return bl_fail(BL_EINVAL, "sampler: temp %g, must be 0 or more", (double)p->temp);
    if (!(p->top_p >= 0))
        return bl_fail(BL_EINVAL, "sampler: top_p %g, must be 0 or more", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return bl_fail(BL_EINVAL, "sampler: min_p %g, must be 0 to 1", (double)p->min_p);
    if (!(p->repeat_penalty >= 0) || isinf(p->repeat_penalty))
        return bl_fail(BL_EINVAL, "sampler: repeat_penalty %g, must be 0 or more",
                       (double)p->repeat_penalty);
    return BL_OK;
}

static enum bl_status make_buffers(struct bl_sampler *s, uint32_t repeat_last)
{
    if (s->penalty != 1) {
        s->window_size = repeat_last ? repeat_last : USUAL_WINDOW;
        s->window = bl_calloc(s->window_size, sizeof *s->window);
        s->penalised = bl_calloc(s->n_vocab, sizeof *s->penalised);
        if (!s->window || !s->penalised)
            return bl_fail(BL_ENOMEM, "sampler: no memory for a window of %u tokens",
                           s->window_size);
    }
    if (s->inv_temp > 0) {
        size_t want = 2 * (size_t)s->top_k;
        want = want < LEAST_KEYS ? LEAST_KEYS : want;
        s->n_keys = want < s->n_vocab ? want : s->n_vocab;
        s->key = bl_calloc(s->n_keys, sizeof *s->key);
        if (!s->key)
            return bl_fail(BL_ENOMEM, "sampler: no memory for %zu candidates", s->n_keys);
    }
    return BL_OK;
}

enum bl_status bl_sampler_create(struct bl_sampler **out, const struct bl_sampling *p,
                                 uint32_t n_vocab)
{
    BL_TRY(check_settings(p, n_vocab));
    struct bl_sampler *s = bl_calloc(1, sizeof *s);
    if (!s)
        return bl_fail(BL_ENOMEM, "sampler: no memory");
    s->n_vocab = n_vocab;
    s->top_k = p->top_k && p->top_k < n_vocab ? p->top_k : n_vocab;
    s->top_p = p->top_p > 0 && p->top_p < 1 ? (double)p->top_p : 1;
    s->min_p = (double)p->min_p;
    s->penalty = p->repeat_penalty > 0 ? (double)p->repeat_penalty : 1;
    s->inv_temp = p->temp > 0 ? 1 / (double)p->temp : 0;
    s->random = p->seed;
    enum bl_status st = make_buffers(s, p->repeat_last);
    if (st) {
        bl_sampler_destroy(s);
        return st;
    }
    *out = s;
    return BL_OK;
}

void bl_sampler_destroy(struct bl_sampler *s)
{
    if (!s)
        return;
    free(s->key);
    free(s->penalised);
    free(s->window);
    free(s);
}

void bl_sampler_accept(struct bl_sampler *s, int32_t id)
{
    if (!s->window || (uint32_t)id >= s->n_vocab) /* negative ones too */
        return;
    s->window[s->window_next] = id;
    s->window_next = s->window_next + 1 < s->window_size ? s->window_next + 1 : 0;
    s->n_window += s->n_window < s->window_size;
}

/* Each token of the window is punished once, however often it occurs there. */
static const float *penalise(struct bl_sampler *s, const float *logits)
{
    memcpy(s->penalised, logits, s->n_vocab * sizeof *logits);
    for (uint32_t i = 0; i < s->n_window; i++) {
        int32_t id = s->window[i];
        double logit = (double)logits[id];
        s->penalised[id] = (float)(logit > 0 ? logit / s->penalty : logit * s->penalty);
    }
    return s->penalised;
}

int32_t bl_sampler_pick(struct bl_sampler *s, const float *logits)
{
    const float *x = s->n_window ? penalise(s, logits) : logits;
    float best;
    uint32_t id = find_best(x, s->n_vocab, &best);
    if (s->inv_temp == 0 || isinf(best))
        return (int32_t)id;
    size_t n = filter(s, x, best);
    double total = sum_weights(s->key, n, best, s->inv_temp);
    n = select_weight(s->key, n, best, s->inv_temp, uniform(&s->random) * total);
    return key_id(s->key[n - 1]);
}
