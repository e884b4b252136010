/* SPDX-License-Identifier: MIT */
/* What the kernels of every day cost in accuracy: their predictions beside those of the float
 * reference.
 *
 *   divergence_check [OPTIONS] MODEL TEXT        tokens of a text file
 *   divergence_check [OPTIONS] --synth SHAPE     a made-up model and tokens by chance
 *
 *   --tokens N      of them at most (default 2000)
 *   --chunk N       fed at a time (default 512; 1: as when answering)
 *   --cache TYPE    of keys and values of the native run (default f16)
 *   --layers N      of a made-up model (default 4)
 *   --types RECIPE  likewise (default: the shape's)
 *   --outliers N    channels of a made-up model that are 50 times as large as others (default 0)
 *   --most X        fail if the mean divergence is above X
 *
 * Printed are the mean and the largest Kullback-Leibler divergence in nats, how often the likeliest
 * token is the same, and the error of the logits relative to their variance. */
#include "ballast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 4096, FACTOR = 50, CHUNK_MOST = 2048 };

struct args {
    const char *model, *text, *synth, *types, *cache;
    uint32_t tokens, chunk, layers, outliers;
    double most;
};
struct run {
    struct bl_engine *e;
    struct bl_session *s;
};
struct sums {
    double kl, kl_most, error, variance;
    uint32_t n, same;
};

static int fail(const char *what)
{
    fprintf(stderr, "divergence_check: %s: %s\n", what, bl_error());
    return 1;
}

/* ---- a model with channels that stand out ---- */

static bool is_norm(const struct bl_tensor_info *t)
{
    return t->n_dims == 1 && strcmp(t->type_name, "f32") == 0 &&
           (strstr(t->name, "attn_norm.weight") || strstr(t->name, "ffn_norm.weight"));
}

/* Real models have a few channels of activations far above the others; made-up ones get them by
 * their norms. */
static bool enlarge(FILE *f, const struct bl_tensor_info *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t at = t->file_off + (t->ne[0] / n * i + i % 7) * sizeof(float);
        float x;
        if (fseek(f, (long)at, SEEK_SET) || fread(&x, sizeof x, 1, f) != 1)
            return false;
        x *= FACTOR;
        if (fseek(f, (long)at, SEEK_SET) || fwrite(&x, sizeof x, 1, f) != 1)
            return false;
    }
    return true;
}

static int add_outliers(const char *path, uint32_t n)
{
    struct bl_gguf *g;
    if (bl_gguf_open(&g, path))
        return fail(path);
    FILE *f = fopen(path, "r+b");
    bool good = f != NULL;
    for (uint32_t i = 0; good && i < bl_gguf_n_tensors(g); i++)
        if (is_norm(bl_gguf_tensor(g, i)))
            good = enlarge(f, bl_gguf_tensor(g, i), n);
    if (f && fclose(f))
        good = false;
    bl_gguf_close(g);
    if (!good)
        fprintf(stderr, "divergence_check: %s cannot be changed\n", path);
    return !good;
}

static int make_model(const struct args *a, const char *path)
{
    const struct bl_synth_options so = {
        .shape = a->synth, .recipe = a->types, .layers = a->layers, .vocab = VOCAB};
    struct bl_synth *s;
    if (bl_synth_open(&s, &so))
        return fail(a->synth);
    enum bl_status st = bl_synth_write(s, path);
    bl_synth_close(s);
    if (st)
        return fail(path);
    return a->outliers ? add_outliers(path, a->outliers) : 0;
}

/* ---- tokens ---- */

static int32_t *chance_tokens(uint32_t n)
{
    int32_t *ids = malloc(n * sizeof *ids);
    uint32_t z = 1;
    for (uint32_t i = 0; ids && i < n; i++) {
        z = z * 1664525u + 1013904223u;
        ids[i] = (int32_t)((z >> 8) % VOCAB);
    }
    return ids;
}

static int32_t *text_tokens(const struct bl_engine *e, const char *path, uint32_t *n)
{
    enum { MOST = 1 << 20 };
    char *text = malloc(MOST);
    FILE *f = fopen(path, "rb");
    int32_t *ids = NULL;
    size_t n_ids = 0;
    if (text && f && bl_engine_vocab(e)) {
        const size_t n_bytes = fread(text, 1, MOST, f);
        if (bl_tokenize(bl_engine_vocab(e), text, n_bytes, BL_TOK_ADD_SPECIAL | BL_TOK_NO_EOS, &ids,
                        &n_ids))
            ids = NULL;
    }
    if (f)
        fclose(f);
    free(text);
    *n = n_ids < *n ? (uint32_t)n_ids : *n;
    return ids;
}

/* ---- comparing ---- */

static double log_sum_exp(const float *x, uint32_t n, uint32_t *best)
{
    double sum = 0;
    *best = 0;
    for (uint32_t i = 1; i < n; i++)
        *best = x[i] > x[*best] ? i : *best;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - x[*best]);
    return x[*best] + log(sum);
}

static void compare(struct sums *s, const float *want, const float *got, uint32_t n)
{
    uint32_t a, b;
    const double lw = log_sum_exp(want, n, &a), lg = log_sum_exp(got, n, &b);
    double kl = 0, mean = 0, error = 0, square = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double w = want[i], g = got[i];
        kl += exp(w - lw) * ((w - lw) - (g - lg));
        mean += w / n;
        square += w * w / n;
        error += (w - g) * (w - g) / n;
    }
    s->kl += kl;
    s->kl_most = kl > s->kl_most ? kl : s->kl_most;
    s->error += error;
    s->variance += square - mean * mean;
    s->same += a == b;
    s->n++;
}

static enum bl_status feed(const struct run *r, const int32_t *ids, uint32_t n)
{
    static uint8_t all[CHUNK_MOST];
    struct bl_session *of[CHUNK_MOST];
    memset(all, 1, sizeof all);
    for (uint32_t i = 0; i < n; i++)
        of[i] = r->s;
    return bl_decode(r->e, &(struct bl_batch){n, ids, of, all});
}

static int compare_all(const struct args *a, const struct run *exact, const struct run *native,
                       const int32_t *ids, uint32_t n, struct sums *s)
{
    for (uint32_t at = 0; at < n; at += a->chunk) {
        const uint32_t k = n - at < a->chunk ? n - at : a->chunk;
        if (feed(exact, ids + at, k) || feed(native, ids + at, k))
            return fail("a step");
        for (uint32_t i = 0; i < k; i++)
            compare(s, bl_logits(exact->e, i), bl_logits(native->e, i),
                    bl_engine_n_vocab(native->e));
    }
    return 0;
}

/* ---- */

static int open_run(struct run *r, const struct args *a, const char *path, bool exact)
{
    const struct bl_options opt = {.ctx_tokens = a->tokens + 1,
                                   .batch_tokens = a->chunk,
                                   .ubatch_tokens = a->chunk,
                                   .out_tokens = a->chunk,
                                   .exact = exact,
                                   .type_k = exact ? NULL : a->cache,
                                   .type_v = exact ? NULL : a->cache};
    return bl_open(&r->e, path, &opt) || bl_session_create(&r->s, r->e) ? fail(path) : 0;
}

static void close_run(struct run *r)
{
    bl_session_destroy(r->s);
    bl_close(r->e);
}

static int check(const struct args *a, const char *path)
{
    struct run exact = {0}, native = {0};
    struct sums s = {0};
    uint32_t n = a->tokens;
    int32_t *ids = NULL;
    int code = open_run(&exact, a, path, true) || open_run(&native, a, path, false);

    if (!code) {
        ids = a->synth ? chance_tokens(n) : text_tokens(native.e, a->text, &n);
        code = ids ? compare_all(a, &exact, &native, ids, n, &s) : fail(a->text ? a->text : "ids");
    }
    if (!code && s.n) {
        const double mean = s.kl / s.n;
        printf("%u tokens in chunks of %u: KL mean %.6f, most %.6f nats; same likeliest token "
               "%.2f %%; logits NMSE %.2e\n",
               s.n, a->chunk, mean, s.kl_most, 100.0 * s.same / s.n, s.error / s.variance);
        if (!(mean <= a->most)) {
            printf("FAILED: more than %g\n", a->most);
            code = 1;
        }
    }
    free(ids);
    close_run(&exact);
    close_run(&native);
    return code;
}

static bool read_args(struct args *a, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strncmp(name, "--", 2) != 0) {
            *(a->model ? &a->text : &a->model) = name;
            continue;
        }
        if (!value)
            return false;
        i++;
        if (!strcmp(name, "--tokens"))
            a->tokens = (uint32_t)strtoul(value, NULL, 10);
        else if (!strcmp(name, "--chunk"))
            a->chunk = (uint32_t)strtoul(value, NULL, 10);
        else if (!strcmp(name, "--layers"))
            a->layers = (uint32_t)strtoul(value, NULL, 10);
        else if (!strcmp(name, "--outliers"))
            a->outliers = (uint32_t)strtoul(value, NULL, 10);
        else if (!strcmp(name, "--types"))
            a->types = value;
        else if (!strcmp(name, "--cache"))
            a->cache = value;
        else if (!strcmp(name, "--synth"))
            a->synth = value;
        else if (!strcmp(name, "--most"))
            a->most = strtod(value, NULL);
        else
            return false;
    }
    return a->tokens && a->chunk && a->chunk <= CHUNK_MOST &&
           (a->synth ? !a->model : a->text != NULL);
}

int main(int argc, char **argv)
{
    struct args a = {.tokens = 2000, .chunk = 512, .layers = 4, .cache = "f16", .most = INFINITY};
    if (!read_args(&a, argc, argv)) {
        fprintf(stderr, "usage: divergence_check [OPTIONS] MODEL TEXT | --synth SHAPE\n");
        return 2;
    }
    bl_log_set(NULL, NULL, BL_LOG_ERROR);
    if (!a.synth)
        return check(&a, a.model);
    const char *path = "divergence_check.gguf";
    int code = make_model(&a, path);
    if (!code)
        code = check(&a, path);
    remove(path);
    return code;
}
