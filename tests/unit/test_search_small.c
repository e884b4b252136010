/* SPDX-License-Identifier: MIT */
/* Small instances made at random: the plan that is found is within a hundredth of the best of all
 * there are; more memory and faster links never cost; names mean nothing.
 *
 *     test_search_small [--seed N] [--instances N]     BALLAST_SEED=N does the same
 */
#include "search_rig.h"

static uint64_t first_seed = 1;
static uint32_t n_instances = 150;

static uint32_t pick(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % n;
}

static double between(uint64_t *seed, double low, double high)
{
    return low * pow(high / low, pick(seed, 1 << 20) / (double)(1 << 20));
}

/* ---- instances ---- */

struct instance {
    const char *shape;
    uint32_t layers, n_cards, cores;
    double host_bytes, host_bps, weight;
    struct {
        double bytes, bps, link_bps;
        const char *backend;
    } card[2];
};

static double model_bytes(const char *shape, uint32_t layers)
{
    struct rig r;
    double sum = 0;

    open_model(&r, shape, layers, 2048);
    for (uint32_t i = 0; i < bl_gguf_n_tensors(r.model->gguf); i++)
        sum += (double)bl_gguf_tensor(r.model->gguf, i)->bytes;
    close_rig(&r);
    return sum;
}

/* Cards of which some hold nothing and some everything, hosts that may lack room for what is left.
 */
static struct instance make(uint64_t seed)
{
    static const char *const shapes[] = {
        "gpt-oss-20b", "glm-4.5-air",    "llama-3-8b", "qwen3-30b-a3b",
        "phi-4",       "qwen3-next-80b", "minimax-m2", "ernie-4.5-21b-a3b"};
    static const char *const backends[] = {"cuda", "hip"};
    static const double weights[] = {0, 0.3, 0.3, 0.7, 1};
    struct instance x = {.shape = shapes[pick(&seed, BL_COUNT(shapes))]};

    x.n_cards = pick(&seed, 8) ? 1 + pick(&seed, 2) : 0;
    x.layers = 2 + pick(&seed, x.n_cards < 2 ? 3 : 2);
    x.weight = weights[pick(&seed, BL_COUNT(weights))];
    x.cores = 4u << pick(&seed, 4);
    const double bytes = model_bytes(x.shape, x.layers);
    x.host_bytes = bytes * between(&seed, 0.6, 2) + 1.5e9;
    x.host_bps = between(&seed, 20e9, 500e9);
    for (uint32_t i = 0; i < x.n_cards; i++) {
        x.card[i].bytes = bytes * between(&seed, 0.1, 1.2) + 0.7e9;
        x.card[i].bps = between(&seed, 80e9, 2e12);
        x.card[i].link_bps = between(&seed, 0.5e9, 60e9);
        x.card[i].backend = backends[pick(&seed, BL_COUNT(backends))];
    }
    return x;
}

static void describe(const struct instance *x, const char *prefix, char *text, size_t cap)
{
    size_t n =
        (size_t)snprintf(text, cap,
                         "{\"ballast_machine\": 1, \"name\": \"typed\", \"devices\": [{\"id\": "
                         "\"cpu0\", \"kind\": \"cpu\", \"cores\": %u, \"mem_bytes\": %.0f, "
                         "\"usable_bytes\": %.0f, \"read_rated_bps\": %.0f, \"isa\": "
                         "\"avx512-vnni\", \"clock_hz\": 4e9}",
                         x->cores, x->host_bytes, x->host_bytes, x->host_bps);
    for (uint32_t i = 0; i < x->n_cards; i++)
        n += (size_t)snprintf(text + n, cap - n,
                              ", {\"id\": \"%s%u\", \"kind\": \"gpu\", \"backend\": \"%s\", "
                              "\"mem_bytes\": %.0f, \"usable_bytes\": %.0f, \"read_rated_bps\": "
                              "%.0f, \"f16_macs_per_s\": %.0f}",
                              prefix, i, x->card[i].backend, x->card[i].bytes, x->card[i].bytes,
                              x->card[i].bps, x->card[i].bps * 60);
    n += (size_t)snprintf(text + n, cap - n, "], \"links\": [");
    for (uint32_t i = 0; i < x->n_cards; i++)
        n += (size_t)snprintf(text + n, cap - n,
                              "%s{\"a\": \"cpu0\", \"b\": \"%s%u\", \"ab_rated_bps\": %.0f, "
                              "\"ba_rated_bps\": %.0f}",
                              i ? ", " : "", prefix, i, x->card[i].link_bps, x->card[i].link_bps);
    snprintf(text + n, cap - n, "]}");
}

/* Threads are given, so that only places are chosen. */
static void open_named(struct rig *r, const struct instance *x, const char *prefix)
{
    char text[2048];

    open_model(r, x->shape, x->layers, 2048);
    describe(x, prefix, text, sizeof text);
    parse_machine(r, text);
    r->machine.device[0].config.threads = r->machine.device[0].config.threads_prefill = x->cores;
    r->so.prefill_weight = x->weight;
    r->so.fixed_ubatch = true;
    r->opt.ubatch_tokens = r->opt.batch_tokens = 64;
}

static void open_instance(struct rig *r, const struct instance *x)
{
    open_named(r, x, "gpu");
}

/* False: it does not fit. */
static bool found(struct rig *r, uint64_t seed)
{
    const enum bl_status st = bl_search(&r->c, r->model, &r->machine, &r->opt, &r->so);

    if (st && st != BL_ENOFIT)
        fail_msg("seed %llu: %s", (unsigned long long)seed, bl_error());
    for (uint16_t d = 0; !st && d < r->machine.n_devices; d++)
        if (bl_ledger_planned(&r->c.plan.ledger, d) > bl_device_budget(&r->machine.device[d], 0))
            fail_msg("seed %llu: more is planned on %s than there is", (unsigned long long)seed,
                     r->machine.device[d].id);
    return !st;
}

/* ---- against all plans ---- */

static void print_places(const struct bl_plan *p)
{
    for (uint32_t l = 0; l < p->n_layers; l++)
        printf(" %u/%u", bl_plan_device(p, (int)l, BL_PART_ATTN),
               bl_plan_device(p, (int)l, BL_PART_EXPERTS));
    for (uint32_t i = 0; i < p->n_ranges; i++)
        printf(", %u of layer %u to %u", p->range[i].n, p->range[i].layer, p->range[i].device);
}

static void print_instance(uint64_t seed, const struct instance *x)
{
    printf("  seed %llu: %s, %u layers, weight %.1f, host %.2f GB %.0f GB/s",
           (unsigned long long)seed, x->shape, x->layers, x->weight, x->host_bytes * 1e-9,
           x->host_bps * 1e-9);
    for (uint32_t i = 0; i < x->n_cards; i++)
        printf("; %s %.2f GB %.0f GB/s, link %.1f GB/s", x->card[i].backend,
               x->card[i].bytes * 1e-9, x->card[i].bps * 1e-9, x->card[i].link_bps * 1e-9);
    printf("\n");
}

static void near_the_best_of_all_plans(void **state)
{
    (void)state;
    uint32_t none = 0, cards = 0, wrong = 0;
    double worst = 0;

    for (uint64_t seed = first_seed; seed < first_seed + n_instances; seed++) {
        const struct instance x = make(seed);
        struct best best;
        struct rig r;
        open_instance(&r, &x);
        const bool fits_there = found(&r, seed);
        exhaustive(&r, &best);
        const double score = fits_there ? score_of(&r, &r.c.plan) : INFINITY;
        const double off = isfinite(best.score) ? score / best.score - 1 : 0;
        none += !fits_there;
        cards += fits_there && bl_plan_uses(&r.c.plan, 1);
        worst = off > worst ? off : worst;
        if (off > 0.01) {
            print_instance(seed, &x);
            printf("    found%s", fits_there ? "" : " nothing");
            if (fits_there)
                print_places(&r.c.plan);
            printf(": %.5g; best", score);
            print_places(&best.plan);
            printf(": %.5g, %.1f %% less\n", best.score, 100 * off);
            wrong++;
        }
        bl_plan_finish(&best.plan);
        close_rig(&r);
    }
    printf("  %u instances from seed %llu: %u with nothing that fits, %u on cards, at worst %.2f "
           "%% off\n",
           n_instances, (unsigned long long)first_seed, none, cards, 100 * worst);
    assert_int_equal(wrong, 0);
    assert_true(n_instances < 20 || (cards >= n_instances / 3 && none < n_instances / 2));
}

/* ---- properties ---- */

/* whole: experts of one layer are divided only where the best of those leaves room, which more of
 * anything may fill. */
static double score_found(const struct instance *x, uint64_t seed, bool whole)
{
    struct rig r;
    open_instance(&r, x);
    const bool fits_there = found(&r, seed);
    r.c.plan.n_ranges = whole ? 0 : r.c.plan.n_ranges;
    const double score = fits_there ? score_of(&r, &r.c.plan) : INFINITY;
    close_rig(&r);
    return score;
}

/* Each is within a hundredth of its best. */
static void never_slower(uint64_t seed, const char *what, double before, double after)
{
    if (after > before * 1.01)
        fail_msg("seed %llu: %s makes it slower: %g, then %g", (unsigned long long)seed, what,
                 before, after);
}

static void more_never_costs(void **state)
{
    (void)state;
    unsigned better = 0;

    for (uint64_t seed = first_seed; seed < first_seed + n_instances; seed++) {
        const struct instance x = make(seed);
        const double before = score_found(&x, seed, true);
        for (uint32_t i = 0; i < x.n_cards; i++) {
            struct instance memory = x, link = x, reading = x;
            memory.card[i].bytes *= 1.3;
            link.card[i].link_bps *= 4;
            reading.card[i].bps *= 1.5;
            const double more = score_found(&memory, seed, false);
            never_slower(seed, "more memory", before, more);
            never_slower(seed, "a faster link", before, score_found(&link, seed, false));
            never_slower(seed, "a faster card", before, score_found(&reading, seed, false));
            better += more < before * 0.99;
        }
        struct instance host = x;
        host.host_bytes *= 1.5;
        never_slower(seed, "more RAM", before, score_found(&host, seed, false));
    }
    printf("  %u cards of %u instances make use of more memory\n", better, n_instances);
    assert_true(n_instances < 20 || better > n_instances / 6);
}

static void same_places(const struct rig *a, const struct rig *b, uint64_t seed)
{
    const struct bl_plan *p = &a->c.plan, *q = &b->c.plan;
    const size_t n = (size_t)(p->n_layers + 1) * BL_N_PARTS * sizeof *p->slot;

    if (memcmp(p->slot, q->slot, n) || p->n_ranges != q->n_ranges ||
        p->ubatch_tokens != q->ubatch_tokens || a->c.stream_from_tok != b->c.stream_from_tok ||
        memcmp(&a->c.decode.tok_per_s, &b->c.decode.tok_per_s, sizeof(double)) ||
        memcmp(&a->c.prefill.tok_per_s, &b->c.prefill.tok_per_s, sizeof(double)))
        fail_msg("seed %llu: two searches of the same differ", (unsigned long long)seed);
    for (uint32_t i = 0; i < p->n_ranges; i++)
        assert_memory_equal(&p->range[i], &q->range[i], sizeof p->range[i]);
}

/* Twice, and with cards of other names: nothing but names changes. */
static void names_and_repetition_mean_nothing(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + n_instances; seed++) {
        const struct instance x = make(seed);
        struct rig r[3];
        bool fits_there[3];
        for (unsigned i = 0; i < 3; i++) {
            open_named(&r[i], &x, i < 2 ? "gpu" : "a-card");
            fits_there[i] = found(&r[i], seed);
        }
        assert_true(fits_there[0] == fits_there[1] && fits_there[0] == fits_there[2]);
        for (unsigned i = 1; fits_there[0] && i < 3; i++)
            same_places(&r[0], &r[i], seed);
        for (uint32_t i = 0; fits_there[0] && i < r[0].c.n_reasons; i++)
            assert_null(strstr(r[2].c.reason[i].text, "gpu"));
        for (unsigned i = 0; i < 3; i++)
            close_rig(&r[i]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_the_best_of_all_plans),
        cmocka_unit_test(more_never_costs),
        cmocka_unit_test(names_and_repetition_mean_nothing),
    };
    const char *seed = getenv("BALLAST_SEED");

    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--seed"))
            seed = argv[i + 1];
        if (!strcmp(argv[i], "--instances"))
            n_instances = (uint32_t)strtoul(argv[i + 1], NULL, 10);
    }
    if (seed)
        first_seed = strtoull(seed, NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
