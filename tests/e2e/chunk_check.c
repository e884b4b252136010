/* SPDX-License-Identifier: MIT */
/* However a prompt is cut, the same numbers come out.
 *
 *   chunk_check [--seed N] [--rounds N] [--scalar] DIR NAME...   models of a reference folder
 *   chunk_check [--seed N] [--rounds N] [--scalar] --all         every model of $BALLAST_REFERENCE
 *                                                                that opens; exit 77 without it
 *
 * Random tokens are fed in one step, and in random chunks of 1, 7, 32 and 512 with wrong turns:
 * tokens that should not have been, which are taken back. The second engine's physical batches are
 * smaller, so that steps are cut as well. Logits of every token are compared, with float weights
 * and with the kernels of every day. The seed that is printed repeats a run. */
#include "ballast.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1100, BACK = 5, MOST_VOCAB = 1 << 17 };
/* Rounding of sums in another order: steps of few tokens and of many use different kernels, and
 * attention of many may round values to 16 bits. Quantised activations make of it, now and then,
 * another whole number, and a model of random weights is often undecided between two
 * experts: where another one was chosen a row has little in common, which 5 rows of 100 may (40 of
 * 1,100 at most were seen). Others are held by what nine rows of ten stay below: 5.5e-3 at most was
 * seen, and 4.9e-3 of float weights, where only the cache and such values are rounded. What a row
 * sees and where it lies is held by the exact mode. */
#define MOST_EXACT 1e-10
#define MOST_NATIVE 8e-3
#define MOST_FLOAT 6e-3
#define OTHER_EXPERT 0.05
#define MOST_OTHERS (5 * N / 100)

struct run {
    struct bl_engine *e;
    struct bl_session *s;
    float *rows; /* [N][n_vocab] */
    uint32_t n_vocab, n_steps, n_taken_back;
};

static uint64_t state = 1;
static uint32_t n_rounds = 2;
static bool scalar;
static int n_failed, n_checked;

static uint32_t pick(uint32_t below)
{
    state += 0x9e3779b97f4a7c15u;
    uint64_t z = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z >> 33) % below);
}

/* ---- feeding ---- */

static enum bl_status feed(struct run *r, const int32_t *ids, uint32_t n, float *rows)
{
    static uint8_t all[N];
    struct bl_session *of[N];
    memset(all, rows != NULL, sizeof all);
    for (uint32_t i = 0; i < n; i++)
        of[i] = r->s;
    enum bl_status st = bl_decode(r->e, &(struct bl_batch){n, ids, of, all});
    for (uint32_t i = 0; !st && rows && i < n; i++)
        memcpy(rows + (size_t)i * r->n_vocab, bl_logits(r->e, i), r->n_vocab * sizeof *rows);
    return st;
}

static enum bl_status take_wrong_turn(struct run *r)
{
    const uint64_t n = bl_session_n_tokens(r->s);
    int32_t wrong[BACK];
    uint32_t k = 1 + pick(BACK);
    if (n + k > N)
        return BL_OK;
    for (uint32_t i = 0; i < k; i++)
        wrong[i] = (int32_t)pick(r->n_vocab);
    r->n_taken_back += k;
    enum bl_status st = feed(r, wrong, k, NULL);
    return st ? st : bl_session_rewind(r->s, n);
}

static enum bl_status feed_in_chunks(struct run *r, const int32_t *ids)
{
    static const uint32_t lengths[] = {1, 7, 32, 512};
    enum bl_status st = BL_OK;
    for (uint32_t at = 0, n; !st && at < N; at += n, r->n_steps++) {
        n = lengths[pick(4)];
        n = n < N - at ? n : N - at;
        st = feed(r, ids + at, n, r->rows + (size_t)at * r->n_vocab);
        if (!st && pick(3) == 0)
            st = take_wrong_turn(r);
    }
    return st;
}

static bool run_open(struct run *r, const char *path, bool exact, uint32_t ubatch)
{
    const struct bl_options opt = {.ctx_tokens = N,
                                   .batch_tokens = N,
                                   .ubatch_tokens = ubatch,
                                   .out_tokens = N,
                                   .exact = exact,
                                   .scalar = scalar,
                                   .rewind_tokens = BACK};
    *r = (struct run){.n_vocab = 0};
    if (bl_open(&r->e, path, &opt))
        return false;
    r->n_vocab = bl_engine_n_vocab(r->e);
    r->rows = r->n_vocab <= MOST_VOCAB ? malloc((size_t)N * r->n_vocab * sizeof *r->rows) : NULL;
    return r->rows && !bl_session_create(&r->s, r->e);
}

static void run_close(struct run *r)
{
    bl_session_destroy(r->s);
    if (r->e)
        bl_close(r->e);
    free(r->rows);
}

/* ---- comparing ---- */

static double distance(const float *x, const float *y, size_t n)
{
    double err = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)x[i] - (double)y[i];
        err += d * d;
        all += (double)y[i] * (double)y[i];
    }
    return isfinite(err) && all > 0 ? err / all : INFINITY;
}

/* Of rows: what nine of ten stay below, and how many have little in common. */
struct distances {
    double most;
    uint32_t n_others;
};

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct distances distances_of(const struct run *x, const struct run *y)
{
    static double row[N];
    struct distances d = {0};
    for (size_t t = 0; t < N; t++) {
        const size_t at = t * y->n_vocab;
        row[t] = distance(x->rows + at, y->rows + at, y->n_vocab);
        d.n_others += !(row[t] <= OTHER_EXPERT);
    }
    qsort(row, N, sizeof *row, by_size);
    d.most = row[9 * N / 10];
    return d;
}

static void report(const char *name, const char *mode, const struct run *r, double most,
                   const struct distances *got)
{
    const bool good = got->most <= most && got->n_others <= MOST_OTHERS;
    n_checked++;
    n_failed += !good;
    printf(
        "%s %s %s: %u steps, %u taken back, NMSE of nine rows in ten %.1e of %.0e, %u of %d rows "
        "otherwise%s\n",
        good ? "ok  " : "FAIL", name, mode, r->n_steps, r->n_taken_back, got->most, most,
        got->n_others, N, got->most > 0 || got->n_others ? "" : ", the same bits");
}

static double most_of(const char *name, bool exact)
{
    const size_t n = strlen(name);
    const bool is_float = n > 4 && !strcmp(name + n - 4, "-f32");
    return exact ? MOST_EXACT : is_float ? MOST_FLOAT : MOST_NATIVE;
}

static void check_mode(const char *path, const char *name, bool exact)
{
    static const uint32_t ubatches[] = {512, 3};
    const char *mode = exact ? "exact" : "native";
    const double most = most_of(name, exact);
    int32_t ids[N];
    struct run whole, cut;
    bool good = run_open(&whole, path, exact, N);
    for (uint32_t i = 0; good && i < N; i++)
        ids[i] = (int32_t)pick(whole.n_vocab);
    good = good && !feed(&whole, ids, N, whole.rows);
    for (uint32_t k = 0; good && k < n_rounds; k++) {
        good = run_open(&cut, path, exact, ubatches[k % 2]) && !feed_in_chunks(&cut, ids);
        if (good) {
            const struct distances got = distances_of(&cut, &whole);
            report(name, mode, &cut, most, &got);
        }
        run_close(&cut);
    }
    if (!good) {
        n_failed++;
        printf("FAIL %s %s: %s\n", name, mode, bl_error());
    }
    run_close(&whole);
}

static void check(const char *dir, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/models/%s.gguf", dir, name);
    check_mode(path, name, true);
    check_mode(path, name, false);
}

/* ---- the whole folder ---- */

static int check_all(void)
{
    const char *dir = getenv("BALLAST_REFERENCE");
    static char text[1 << 16];
    char path[1024];
    const cJSON *name;
    if (!dir || !*dir) {
        printf("skipped: BALLAST_REFERENCE does not name a reference folder\n");
        return 77;
    }
    snprintf(path, sizeof path, "%s/index.json", dir);
    FILE *f = fopen(path, "rb");
    if (!f || !fread(text, 1, sizeof text - 1, f))
        n_failed++;
    if (f)
        fclose(f);
    cJSON *index = cJSON_Parse(text);
    cJSON_ArrayForEach(name, index) check(dir, name->valuestring);
    cJSON_Delete(index);
    return 0;
}

int main(int argc, char **argv)
{
    int i = 1, rc = 0;
    uint64_t seed = 1;
    for (; i < argc && !strncmp(argv[i], "--", 2) && strcmp(argv[i], "--all"); i++)
        if (!strcmp(argv[i], "--scalar"))
            scalar = true;
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--rounds") && i + 1 < argc)
            n_rounds = (uint32_t)strtoul(argv[++i], NULL, 0);
        else
            i = argc;
    if (i >= argc || (strcmp(argv[i], "--all") && argc - i < 2)) {
        printf("usage: chunk_check [--seed N] [--rounds N] [--scalar] DIR NAME... | --all\n");
        return 2;
    }
    printf("--seed %" PRIu64 " --rounds %u\n", seed, n_rounds);
    state = seed;
    if (!strcmp(argv[i], "--all"))
        rc = check_all();
    else
        for (int k = i + 1; k < argc; k++)
            check(argv[i], argv[k]);
    if (rc)
        return rc;
    printf("%d checked, %d failed\n", n_checked, n_failed);
    return n_failed || !n_checked ? 1 : 0;
}
