/* SPDX-License-Identifier: MIT */
/* The sampler against one that sorts everything and asks libm. */
#include "support.h"

#include <math.h>

#include "alloc_fail.h"
#include "ballast.h"

static uint64_t seed;

static uint32_t next_random(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 32);
}

static int reseed(void **state)
{
    (void)state;
    seed = 3;
    return 0;
}

static struct bl_sampler *make(struct bl_sampling p, uint32_t n_vocab)
{
    struct bl_sampler *s = NULL;
    assert_int_equal(bl_sampler_create(&s, &p, n_vocab), BL_OK);
    assert_non_null(s);
    return s;
}

static int32_t pick_once(struct bl_sampling p, const float *logits, uint32_t n)
{
    struct bl_sampler *s = make(p, n);
    int32_t id = bl_sampler_pick(s, logits);
    bl_sampler_destroy(s);
    return id;
}

/* ---- the slow sampler ------------------------------------------------------------------------ */

enum { MOST = 3000 };

struct candidate {
    double logit;
    int32_t id;
};

static int by_rank(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* The ranking after all filters; returns its length. */
static uint32_t slow_filter(struct candidate *c, const struct bl_sampling *p, const float *logits,
                            uint32_t n_vocab)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_vocab; i++)
        if (logits[i] > -INFINITY)
            c[n++] = (struct candidate){(double)logits[i], (int32_t)i};
    qsort(c, n, sizeof *c, by_rank);
    if (p->top_k && p->top_k < n)
        n = p->top_k;
    if (p->top_p > 0 && p->top_p < 1) {
        double total = 0, sum = 0;
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n; i++)
            total += exp(c[i].logit - c[0].logit);
        while (kept < n && sum < (double)p->top_p * total)
            sum += exp(c[kept++].logit - c[0].logit);
        n = kept;
    }
    while (n > 1 && exp(c[n - 1].logit - c[0].logit) < (double)p->min_p)
        n--;
    return n;
}

/* Its own splitmix64: the sequence of numbers is part of what a seed means. */
static double slow_uniform(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

/* The pick for one random number; *near when it lies so close to a border that rounding decides. */
static int32_t slow_pick(const struct candidate *c, uint32_t n, double temp, double u, bool *near)
{
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        total += exp((c[i].logit - c[0].logit) / temp);
    for (uint32_t i = 0; i < n; i++) {
        sum += exp((c[i].logit - c[0].logit) / temp);
        *near = fabs(sum - u * total) < 1e-9 * total;
        if (*near || sum >= u * total)
            return c[i].id;
    }
    return c[n - 1].id;
}

static void compare_picks(const struct bl_sampling *p, const float *logits, uint32_t n_vocab)
{
    static struct candidate c[MOST];
    struct bl_sampler *s = make(*p, n_vocab);
    uint64_t random = p->seed;
    uint32_t n = slow_filter(c, p, logits, n_vocab);
    for (int i = 0; i < 50; i++) {
        bool near = false;
        int32_t want = slow_pick(c, n, (double)p->temp, slow_uniform(&random), &near);
        int32_t got = bl_sampler_pick(s, logits);
        if (!near && got != want)
            fail_msg("n_vocab %u temp %g top_k %u top_p %g min_p %g seed %llu, pick %d: %d, not %d",
                     n_vocab, (double)p->temp, p->top_k, (double)p->top_p, (double)p->min_p,
                     (unsigned long long)p->seed, i, got, want);
    }
    bl_sampler_destroy(s);
}

static void fill_logits(float *x, uint32_t n, int kind)
{
    for (uint32_t i = 0; i < n; i++) {
        double u = (double)next_random() / 4294967296.0;
        switch (kind) {
        case 0: /* wide */
            x[i] = (float)(20 * u * u * u - 10);
            break;
        case 1: /* flat, many ties */
            x[i] = (float)(next_random() % 5) / 4;
            break;
        case 2: /* every one better than the one before */
            x[i] = (float)i / 16;
            break;
        case 3: /* every one worse */
            x[i] = -(float)i / 300;
            break;
        default: /* with values that must not win */
            x[i] = u < 0.1 ? NAN : u < 0.2 ? -INFINITY : u < 0.3 ? -3e38f : (float)(8 * u);
        }
    }
}

static void picks_as_the_slow_one(void **state)
{
    static const float ps[] = {0, 0.05f, 0.5f, 0.9f, 0.99f, 1}, ms[] = {0, 0, 0.01f, 0.3f, 1};
    static const float temps[] = {0.1f, 0.8f, 1, 5, 1e6f};
    static const uint32_t ks[] = {0, 1, 2, 40, 127, 1000, MOST + 1};
    static float x[MOST];
    (void)state;
    for (uint32_t round = 0; round < 1500; round++) {
        uint32_t n = round % 3 == 0 ? 1 + next_random() % 12 : 1 + next_random() % MOST;
        fill_logits(x, n, (int)(round % 5));
        x[next_random() % n] = 4;
        struct bl_sampling p = {.temp = temps[next_random() % 5],
                                .top_k = ks[next_random() % 7],
                                .top_p = ps[next_random() % 6],
                                .min_p = ms[next_random() % 5],
                                .seed = round};
        compare_picks(&p, x, n);
    }
}

/* ---- filters, seen through a temperature that makes what they keep equally likely ------------ */

static void assert_kept(struct bl_sampling p, const float *x, uint32_t n, uint32_t want, int draws)
{
    bool seen[64] = {false};
    uint32_t kept = 0;
    p.temp = 1e9f;
    struct bl_sampler *s = make(p, n);
    for (int i = 0; i < draws; i++)
        seen[bl_sampler_pick(s, x)] = true;
    for (uint32_t i = 0; i < n; i++) {
        kept += seen[i];
        assert_int_equal(seen[i], i < want);
    }
    assert_int_equal(kept, want);
    bl_sampler_destroy(s);
}

static void filters_keep_what_they_say(void **state)
{
    (void)state;
    /* 1/2, 1/4, 1/8, ... of the best, hence about 0.50, 0.25, 0.125 ... of the total */
    float halves[16];
    for (int i = 0; i < 16; i++)
        halves[i] = -(float)i * 0.693147f;
    assert_kept((struct bl_sampling){0}, halves, 16, 16, 4000);
    assert_kept((struct bl_sampling){.top_k = 5}, halves, 16, 5, 4000);
    assert_kept((struct bl_sampling){.top_k = 1}, halves, 16, 1, 4000);
    assert_kept((struct bl_sampling){.top_k = 99}, halves, 16, 16, 4000);
    assert_kept((struct bl_sampling){.top_p = 0.49f}, halves, 16, 1, 4000);
    assert_kept((struct bl_sampling){.top_p = 0.51f}, halves, 16, 2, 4000);
    assert_kept((struct bl_sampling){.top_p = 0.76f}, halves, 16, 3, 4000);
    assert_kept((struct bl_sampling){.top_p = 1}, halves, 16, 16, 4000);
    assert_kept((struct bl_sampling){.min_p = 0.26f}, halves, 16, 2, 4000);
    assert_kept((struct bl_sampling){.min_p = 0.24f}, halves, 16, 3, 4000);
    assert_kept((struct bl_sampling){.min_p = 1}, halves, 16, 1, 4000);
    /* of three, the first has 4/7: a share of what top_k left, not of everything */
    assert_kept((struct bl_sampling){.top_k = 3, .top_p = 0.56f}, halves, 16, 1, 4000);
    assert_kept((struct bl_sampling){.top_k = 3, .top_p = 0.58f}, halves, 16, 2, 4000);
    assert_kept((struct bl_sampling){.top_p = 0.9f, .min_p = 0.4f}, halves, 16, 2, 4000);
    /* and min_p's total is not top_p's */
    assert_kept((struct bl_sampling){.top_p = 0.6f, .min_p = 0.2f}, halves, 16, 2, 4000);

    float ties[40];
    for (int i = 0; i < 40; i++)
        ties[i] = i % 2 ? -0.0f : 0.0f;
    assert_kept((struct bl_sampling){.top_k = 7}, ties, 40, 7, 4000);
    assert_kept((struct bl_sampling){.top_p = 0.5f}, ties, 40, 20, 4000);
    assert_kept((struct bl_sampling){.min_p = 1}, ties, 40, 40, 4000);
}

/* min_p set to the floats around e^d tells its rounding apart: no room for a coarse exponential. */
static void min_p_is_exact(void **state)
{
    (void)state;
    for (int i = 1; i <= 500; i++) {
        const float x[] = {0, -(float)i / 64};
        float under = (float)exp((double)x[1]);
        if ((double)under > exp((double)x[1]))
            under = nextafterf(under, 0);
        assert_kept((struct bl_sampling){.min_p = under}, x, 2, 2, 60);
        assert_kept((struct bl_sampling){.min_p = nextafterf(under, 1)}, x, 2, 1, 60);
    }
}

static void temperature_comes_last(void **state)
{
    /* at temperature 1 the second has 0.27 of the best's probability; a colder one must not hide it
     * from min_p */
    float x[] = {2.0f, 0.7f};
    int second = 0;
    (void)state;
    struct bl_sampler *s = make((struct bl_sampling){.temp = 0.5f, .min_p = 0.2f}, 2);
    for (int i = 0; i < 2000; i++)
        second += bl_sampler_pick(s, x) == 1;
    bl_sampler_destroy(s);
    /* e^-2.6 / (1 + e^-2.6) = 0.069 */
    assert_in_range(second, 100, 180);
}

static void frequencies_are_probabilities(void **state)
{
    enum { N = 8, DRAWS = 200000 };
    static const float x[N] = {0.3f, -1, 2, 0, 1.5f, -2.5f, 0.9f, -0.2f};
    static const float temps[] = {0.5f, 1, 3};
    (void)state;
    for (int t = 0; t < 3; t++) {
        int count[N] = {0};
        double total = 0, chi2 = 0;
        struct bl_sampler *s = make((struct bl_sampling){.temp = temps[t], .seed = 11}, N);
        for (int i = 0; i < DRAWS; i++)
            count[bl_sampler_pick(s, x)]++;
        bl_sampler_destroy(s);
        for (int i = 0; i < N; i++)
            total += exp((double)x[i] / (double)temps[t]);
        for (int i = 0; i < N; i++) {
            double want = DRAWS * exp((double)x[i] / (double)temps[t]) / total;
            chi2 += (count[i] - want) * (count[i] - want) / want;
        }
        /* 7 degrees of freedom: 40 is passed by chance once in a million */
        if (!(chi2 < 40))
            fail_msg("temp %g: chi-square %g", (double)temps[t], chi2);
    }
}

/* ---- seeds ----------------------------------------------------------------------------------- */

static void seeds_fix_the_text(void **state)
{
    /* recorded once; logits are exact binary fractions, so any platform must repeat it */
    static const int32_t recorded[12] = {365, 62, 142, 1, 105, 136, 68, 50, 352, 217, 420, 229};
    float x[500];
    (void)state;
    for (int i = 0; i < 500; i++)
        x[i] = (float)((i * 7919) % 500) / 64;
    struct bl_sampling p = {.temp = 0.75f, .top_k = 100, .top_p = 0.9375f, .min_p = 0.03125f};
    struct bl_sampler *a = make(p, 500), *b = make(p, 500);
    p.seed = 1;
    struct bl_sampler *c = make(p, 500);
    int differ = 0;
    for (int i = 0; i < 12; i++) {
        int32_t id = bl_sampler_pick(a, x);
        assert_int_equal(id, recorded[i]);
        assert_int_equal(bl_sampler_pick(b, x), id);
        differ += bl_sampler_pick(c, x) != id;
    }
    assert_true(differ > 6);
    bl_sampler_destroy(a);
    bl_sampler_destroy(b);
    bl_sampler_destroy(c);
}

/* ---- greedy and odd logits ------------------------------------------------------------------- */

static void greedy_takes_the_largest(void **state)
{
    float x[200];
    (void)state;
    for (int i = 0; i < 200; i++)
        x[i] = -5;
    assert_int_equal(pick_once((struct bl_sampling){0}, x, 200), 0);
    x[199] = -4;
    assert_int_equal(pick_once((struct bl_sampling){0}, x, 200), 199);
    x[70] = x[130] = -1;
    assert_int_equal(pick_once((struct bl_sampling){0}, x, 200), 70);
    x[3] = -0.0f;
    x[4] = 0;
    assert_int_equal(pick_once((struct bl_sampling){.top_k = 3, .top_p = 0.5f}, x, 200), 3);
}

static void odd_logits_never_win(void **state)
{
    static const struct bl_sampling ways[] = {
        {0},
        {.temp = 1},
        {.temp = 1, .top_k = 2},
        {.temp = 1, .top_p = 0.9f},
        {.temp = 1e-30f, .min_p = 0.5f},
    };
    const float inf = INFINITY, nan = NAN;
    const float one[] = {nan, -inf, -3e38f, nan}, none[] = {nan, -inf, nan, -inf};
    const float all_nan[] = {nan, nan, -nan, nan}, top[] = {3e38f, nan, inf, inf};
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        assert_int_equal(pick_once(ways[i], one, 4), 2);
        assert_int_equal(pick_once(ways[i], none, 4), 1);
        assert_int_equal(pick_once(ways[i], all_nan, 4), 0);
        assert_int_equal(pick_once(ways[i], top, 4), 2);
        assert_int_equal(pick_once(ways[i], one + 2, 1), 0);
    }
}

static void extreme_ranges_stay_finite(void **state)
{
    const float x[] = {-3.4e38f, 3.4e38f, 0, 3.3e38f};
    (void)state;
    assert_int_equal(pick_once((struct bl_sampling){.temp = 1}, x, 4), 1);
    assert_int_equal(pick_once((struct bl_sampling){.temp = 1e-45f, .top_k = 2}, x, 4), 1);
    assert_int_equal(pick_once((struct bl_sampling){.temp = 1, .min_p = 1e-6f}, x, 4), 1);
    assert_int_equal(pick_once((struct bl_sampling){.temp = 1, .top_p = 0.999999f}, x, 4), 1);
}

/* ---- repetition ------------------------------------------------------------------------------ */

static void penalty_divides_and_multiplies(void **state)
{
    const float high[] = {4, 3, 2}, low[] = {-1, -1.4f, -3};
    struct bl_sampling p = {.repeat_penalty = 1.5f};
    (void)state;
    struct bl_sampler *s = make(p, 3);
    assert_int_equal(bl_sampler_pick(s, high), 0);
    bl_sampler_accept(s, 0); /* 4 / 1.5 < 3 */
    assert_int_equal(bl_sampler_pick(s, high), 1);
    assert_int_equal(bl_sampler_pick(s, low), 1); /* -1 * 1.5 < -1.4 */
    bl_sampler_accept(s, 1);
    assert_int_equal(bl_sampler_pick(s, high), 0); /* 2.67 against 2 and 2 */
    for (int i = 0; i < 10; i++)
        bl_sampler_accept(s, 0); /* once, however often */
    assert_int_equal(bl_sampler_pick(s, high), 0);
    bl_sampler_destroy(s);
}

static void window_forgets(void **state)
{
    const float x[] = {9, 8, 0, 0};
    (void)state;
    struct bl_sampler *s = make((struct bl_sampling){.repeat_penalty = 2, .repeat_last = 3}, 4);
    bl_sampler_accept(s, 0);
    bl_sampler_accept(s, 2);
    bl_sampler_accept(s, 3);
    assert_int_equal(bl_sampler_pick(s, x), 1);
    bl_sampler_accept(s, 2);
    assert_int_equal(bl_sampler_pick(s, x), 0);
    bl_sampler_destroy(s);

    s = make((struct bl_sampling){.repeat_penalty = 2}, 4);
    bl_sampler_accept(s, 0);
    for (int i = 0; i < 63; i++)
        bl_sampler_accept(s, 2);
    assert_int_equal(bl_sampler_pick(s, x), 1);
    bl_sampler_accept(s, 2);
    assert_int_equal(bl_sampler_pick(s, x), 0);
    bl_sampler_destroy(s);
}

static void penalty_comes_before_filters(void **state)
{
    const float x[] = {5, 4, 3, 2};
    (void)state;
    struct bl_sampler *s =
        make((struct bl_sampling){.temp = 1, .top_k = 1, .repeat_penalty = 8, .repeat_last = 1}, 4);
    for (int i = 0; i < 20; i++) {
        int32_t id = bl_sampler_pick(s, x);
        assert_int_equal(id, i % 2);
        bl_sampler_accept(s, id);
    }
    bl_sampler_destroy(s);
}

static void penalty_off_changes_nothing(void **state)
{
    static const float off[] = {0, 1};
    const float x[] = {5, 4};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct bl_sampler *s = make((struct bl_sampling){.repeat_penalty = off[i]}, 2);
        bl_sampler_accept(s, 0);
        assert_int_equal(bl_sampler_pick(s, x), 0);
        bl_sampler_destroy(s);
    }
}

static void foreign_ids_are_ignored(void **state)
{
    const float x[] = {5, 4};
    (void)state;
    struct bl_sampler *s = make((struct bl_sampling){.repeat_penalty = 2}, 2);
    bl_sampler_accept(s, -1);
    bl_sampler_accept(s, 2);
    bl_sampler_accept(s, INT32_MAX);
    assert_int_equal(bl_sampler_pick(s, x), 0);
    bl_sampler_destroy(s);
}

/* ---- settings and memory --------------------------------------------------------------------- */

static void bad_settings_are_refused(void **state)
{
    static const struct {
        struct bl_sampling p;
        const char *names;
    } bad[] = {
        {{.temp = -1}, "temp"},
        {{.temp = NAN}, "temp"},
        {{.temp = INFINITY}, "temp"},
        {{.top_p = -0.1f}, "top_p"},
        {{.top_p = NAN}, "top_p"},
        {{.min_p = 1.5f}, "min_p"},
        {{.min_p = -1}, "min_p"},
        {{.min_p = NAN}, "min_p"},
        {{.repeat_penalty = -2}, "repeat_penalty"},
        {{.repeat_penalty = NAN}, "repeat_penalty"},
        {{.repeat_penalty = INFINITY}, "repeat_penalty"},
    };
    const struct bl_sampling good = {0};
    struct bl_sampler *s = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(bl_sampler_create(&s, &bad[i].p, 10), BL_EINVAL);
        assert_non_null(strstr(bl_error(), bad[i].names));
        assert_null(s);
    }
    assert_int_equal(bl_sampler_create(&s, &good, 0), BL_EINVAL);
    assert_int_equal(bl_sampler_create(&s, &good, UINT32_MAX), BL_EINVAL);
    bl_sampler_destroy(NULL);
}

static void picking_allocates_nothing(void **state)
{
    enum { N = 20000 };
    static float x[N];
    const struct bl_sampling p = {.temp = 1, .top_p = 0.9f, .repeat_penalty = 1.1f};
    (void)state;
    fill_logits(x, N, 0);
    struct bl_sampler *s = make(p, N);
    alloc_fail_at(1);
    for (int i = 0; i < 100; i++)
        bl_sampler_accept(s, bl_sampler_pick(s, x));
    assert_false(alloc_fail_stop());
    bl_sampler_destroy(s);
}

static void creating_survives_no_memory(void **state)
{
    const struct bl_sampling p = {.temp = 1, .repeat_penalty = 2};
    struct bl_sampler *s = NULL;
    uint64_t n = 1;
    (void)state;
    for (;; n++) {
        alloc_fail_at(n);
        enum bl_status st = bl_sampler_create(&s, &p, 1000);
        if (!alloc_fail_stop())
            break;
        assert_int_equal(st, BL_ENOMEM);
        assert_null(s);
    }
    assert_true(n > 3);
    bl_sampler_destroy(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(picks_as_the_slow_one, reseed),
        cmocka_unit_test(filters_keep_what_they_say),
        cmocka_unit_test(min_p_is_exact),
        cmocka_unit_test(temperature_comes_last),
        cmocka_unit_test(frequencies_are_probabilities),
        cmocka_unit_test(seeds_fix_the_text),
        cmocka_unit_test(greedy_takes_the_largest),
        cmocka_unit_test(odd_logits_never_win),
        cmocka_unit_test(extreme_ranges_stay_finite),
        cmocka_unit_test(penalty_divides_and_multiplies),
        cmocka_unit_test(window_forgets),
        cmocka_unit_test(penalty_comes_before_filters),
        cmocka_unit_test(penalty_off_changes_nothing),
        cmocka_unit_test(foreign_ids_are_ignored),
        cmocka_unit_test(bad_settings_are_refused),
        cmocka_unit_test_setup(picking_allocates_nothing, reseed),
        cmocka_unit_test(creating_survives_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
