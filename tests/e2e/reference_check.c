/* SPDX-License-Identifier: MIT */
/* Compares the engine with logits recorded from an independent implementation.
 *
 *   reference_check [OPTION...] DIR NAME...    the named cases
 *   reference_check [OPTION...] --all          every case of $BALLAST_REFERENCE whose family is
 *                                              built; exit 77 without it
 *
 * OPTIONs, in this order: --scalar, --quick, --mode MODE, --devices LIST,
 * --divide SEED | --simulate SEED | --plans N --seed SEED
 *
 * Each prompt runs in one batch, token by token and in mixed chunks (--quick, for an emulated
 * processor: in mixed chunks only), in every mode the case has a tolerance for, and in mixed chunks
 * with the quantised caches that its rows fit; or in one MODE only, such as exact, or native, which
 * is where the kernels of a processor are. In exact mode greedy continuations must be equal, but
 * where the recorded margin is below 0.01; quantised activations move logits by more than such
 * margins. --divide: experts of every layer lie at random on two or three devices, and all rows are
 * also held against one device's: in exact mode within an NMSE of 1e-9, with the same largest
 * logit but where its margin is small. --simulate: the same, every part of every layer and every
 * expert lying at random on the CPU and one to three simulated devices, with a plan of its own in
 * each mode. --plans: N plans of each model, of seeds that follow each other, over devices of mixed
 * kinds with everything that a plan can say at random (random_plan.h); memory taken is what was
 * planned. --plans 1 with the seed of a line repeats that plan. Of cards the largest logit
 * may natively be another one where the margin is within what tolerated rounding explains.
 * --devices: everything on the first of those named, such as cuda0 (exit 77 where Vulkan's are
 * named and there are none); with --simulate they take the place of the simulated ones, with
 * --plans they are among those that a plan may name. */
#include "random_plan.h"
#include "vulkan_rig.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps of random plans are small, as buffers that cannot be cut would be larger than weights. */
enum { CTX = 1024, PLANS_UBATCH = 32, MAX_PROMPT = 1024, MIXED = 2, N_CHUNKINGS };
/* Cards round activations otherwise than what was recorded did, to halves or to bytes by the number
 * of tokens: a choice of experts that was close may fall the other way. */
static const double card_rounding = 4;

struct mode {
    const char *name, *kv;
    bool exact;
    double most; /* NMSE against the exact run, 0: the case has a tolerance or lacks the mode */
};
/* Quantised caches that were not recorded move logits by up to 6e-3 (q8_0) and 0.48 (q4_0) on these
 * prompts, and by 1 and more where a row is read wrongly. */
static const struct mode modes[] = {
    {"exact", "f32", true, 0},         {"f16kv", "f16", true, 0},
    {"native", "f16", false, 0},       {"kv_q8_0", "q8_0", false, 0},
    {"q8_0 rows", "q8_0", true, 1e-2}, {"q4_0 rows", "q4_0", true, 0.6}};
static const uint32_t whole[] = {MAX_PROMPT, 0}, single[] = {1, 0}, mixed[] = {7, 1, 32, 5, 0};
static const uint32_t *const chunkings[] = {whole, single, mixed};
static const char *const chunking_names[] = {"whole", "single", "mixed"};

static bool scalar, quick, divide, simulate, random_plans, vulkan_too;
static uint64_t divide_seed;
static struct random_plan plan; /* random_plans: the one that is checked */
static uint32_t n_plans = 1;
/* Of experts into slots; bytes through rings; blocks that what is larger was spread over. */
static uint64_t n_moves, n_sent, n_spread;
static const char *only_mode, *on_devices;
static int n_failed, n_checked;

static char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    long size = -1;

    if (f && !fseek(f, 0, SEEK_END))
        size = ftell(f);
    if (size >= 0 && (text = calloc(1, (size_t)size + 1))) {
        rewind(f);
        *n = fread(text, 1, (size_t)size, f);
    }
    if (f)
        fclose(f);
    if (!text)
        printf("cannot read %s\n", path);
    return text;
}

static cJSON *read_json(const char *dir, const char *name)
{
    char path[1024];
    size_t n;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    char *text = read_file(path, &n);
    cJSON *json = text ? cJSON_Parse(text) : NULL;
    free(text);
    return json;
}

static void fail(const char *what, const char *where)
{
    n_failed++;
    printf("FAIL %s: %s\n", where, what);
}

/* ---- logits ---- */

static double nmse_row(const float *x, const float *ref, uint32_t n)
{
    double err = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        double d = (double)x[i] - (double)ref[i];
        err += d * d;
        sum += (double)ref[i] * (double)ref[i];
    }
    return isfinite(err) ? err / sum : INFINITY;
}

/* All positions' logits of a prompt fed in the given chunks; the session is left at its end. */
static float *run_prompt(struct bl_engine *e, struct bl_session *s, const int32_t *ids, uint32_t n,
                         const uint32_t *chunks)
{
    uint32_t n_vocab = bl_engine_n_vocab(e), at = 0, c = 0;
    float *rows = malloc((size_t)n * n_vocab * sizeof *rows);
    struct bl_session *sessions[MAX_PROMPT];
    uint8_t want[MAX_PROMPT];

    memset(want, 1, sizeof want);
    for (uint32_t i = 0; i < n; i++)
        sessions[i] = s;
    while (rows && at < n) {
        uint32_t len = chunks[c] < n - at ? chunks[c] : n - at;
        struct bl_batch b = {len, ids + at, sessions, want};
        if (bl_decode(e, &b)) {
            printf("decode: %s\n", bl_error());
            free(rows);
            return NULL;
        }
        for (uint32_t i = 0; i < len; i++)
            memcpy(rows + (size_t)(at + i) * n_vocab, bl_logits(e, i), n_vocab * sizeof *rows);
        at += len;
        c += chunks[c + 1] != 0;
    }
    return rows;
}

/* A routing tie decided otherwise throws single rows off: a model with experts passes with three
 * rows in four. */
static bool close_enough(const float *rows, const float *ref, uint32_t n, uint32_t n_vocab,
                         double tolerance, bool ties, double *nmse)
{
    uint32_t good = 0;

    *nmse = nmse_row(rows, ref, n * n_vocab);
    for (uint32_t i = 0; i < n; i++)
        good +=
            nmse_row(rows + (size_t)i * n_vocab, ref + (size_t)i * n_vocab, n_vocab) <= tolerance;
    return *nmse <= tolerance || (ties && n > 1 && 4 * good >= 3 * n);
}

/* ---- greedy ---- */

static int32_t largest(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}

static void check_greedy(struct bl_engine *e, struct bl_session *s, const float *last,
                         const cJSON *prompt, const char *where)
{
    const cJSON *want = cJSON_GetObjectItem(prompt, "greedy");
    const cJSON *margin = cJSON_GetObjectItem(prompt, "greedy_margin");
    int n = cJSON_GetArraySize(want);
    int32_t id = largest(last, bl_engine_n_vocab(e));

    for (int i = 0; i < n; i++) {
        if (id != cJSON_GetArrayItem(want, i)->valueint) {
            if (cJSON_GetArrayItem(margin, i)->valuedouble >= 0.01)
                fail("greedy continuation differs where the margin is not small", where);
            return;
        }
        if (i + 1 == n)
            return;
        struct bl_batch b = {1, &id, &s, NULL};
        if (bl_decode(e, &b)) {
            fail(bl_error(), where);
            return;
        }
        id = largest(bl_logits(e, 0), bl_engine_n_vocab(e));
    }
}

/* ---- divided against one device ---- */

static float margin_of(const float *x, uint32_t n)
{
    const int32_t best = largest(x, n);
    float next = -INFINITY;

    for (uint32_t i = 0; i < n; i++)
        next = (int32_t)i != best && x[i] > next ? x[i] : next;
    return x[best] - next;
}

struct run {
    struct bl_engine *e, *one; /* one: on one device, or NULL */
    const struct mode *mode;
    bool ties;
};

/* Another largest logit, by more than rounding explains. Activations of cards are rounded otherwise
 * than the CPU's: natively a margin within four times the error that is tolerated is small, and a
 * row past that is of a choice of experts that fell the other way. */
static bool chooses_otherwise(const struct run *r, const float *row, const float *ref, uint32_t n,
                              double tolerance)
{
    const bool rounded = plan.rounds && strcmp(r->mode->name, "exact");
    const float margin = margin_of(ref, n);
    double sum = 0;

    if (largest(row, n) == largest(ref, n) || margin < 0.01f)
        return false;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)ref[i] * (double)ref[i];
    return !rounded || ((!r->ties || nmse_row(row, ref, n) <= tolerance) &&
                        margin > 4 * sqrt(tolerance * sum / n));
}

static bool divided_is_good(const struct run *r, const float *rows, const float *ref, uint32_t n,
                            double tolerance, uint32_t differ)
{
    const bool exact = !strcmp(r->mode->name, "exact");
    double nmse;

    if (!ref || (!exact && !random_plans))
        return ref;
    if (!close_enough(rows, ref, n, bl_engine_n_vocab(r->one), exact ? 1e-9 : tolerance,
                      !exact && r->ties, &nmse))
        return false;
    return !differ;
}

static void check_division(const struct run *r, const float *rows, const int32_t *ids, uint32_t n,
                           int c, double tolerance, const char *where)
{
    const uint32_t n_vocab = bl_engine_n_vocab(r->one);
    struct bl_session *s;
    uint32_t differ = 0;
    char what[100];

    if (bl_session_create(&s, r->one)) {
        fail(bl_error(), where);
        return;
    }
    float *ref = run_prompt(r->one, s, ids, n, chunkings[c]);
    for (size_t i = 0; ref && i < n; i++)
        differ += chooses_otherwise(r, rows + i * n_vocab, ref + i * n_vocab, n_vocab, tolerance);
    const double nmse = ref ? nmse_row(rows, ref, n * n_vocab) : INFINITY;
    snprintf(what, sizeof what, "divided: NMSE %.1e of one device, %u rows choose otherwise", nmse,
             differ);
    if (!divided_is_good(r, rows, ref, n, tolerance, differ))
        fail(what, where);
    else
        printf("     %s  %s\n", where, what);
    free(ref);
    bl_session_destroy(s);
}

/* ---- one prompt, one mode ---- */

static float *recorded(const char *dir, const cJSON *prompt, const char *mode, uint32_t n_vocab,
                       uint32_t *n_rows)
{
    const char *run = strcmp(mode, "kv_q8_0") ? "exact" : mode;
    const cJSON *file = cJSON_GetObjectItem(cJSON_GetObjectItem(prompt, "logits"), run);
    char path[1024];
    size_t bytes = 0;

    if (!cJSON_IsString(file))
        return NULL;
    snprintf(path, sizeof path, "%s/%s", dir, file->valuestring);
    float *rows = (float *)(void *)read_file(path, &bytes);
    *n_rows = (uint32_t)(bytes / sizeof(float) / n_vocab);
    return rows;
}

static void check_chunking(const struct run *r, const cJSON *prompt, const int32_t *ids, uint32_t n,
                           const float *ref, uint32_t n_ref, double tolerance, int c,
                           const char *where)
{
    struct bl_engine *e = r->e;
    const bool ties = r->ties && strcmp(r->mode->name, "exact");
    uint32_t n_vocab = bl_engine_n_vocab(e);
    struct bl_session *s;
    double nmse;
    char line[300];

    if (bl_session_create(&s, e)) {
        fail(bl_error(), where);
        return;
    }
    float *rows = run_prompt(e, s, ids, n, chunkings[c]);
    snprintf(line, sizeof line, "%s %s", where, chunking_names[c]);
    n_checked++;
    if (!rows)
        fail("no logits", line);
    else if (!close_enough(rows + (size_t)(n - n_ref) * n_vocab, ref, n_ref, n_vocab, tolerance,
                           ties, &nmse)) {
        char what[100];
        snprintf(what, sizeof what, "NMSE %.3e, tolerance %.1e", nmse, tolerance);
        fail(what, line);
    } else {
        printf("ok   %s  NMSE %.2e of %.1e\n", line, nmse, tolerance);
        if (r->mode->exact && !(r->mode->most > 0))
            check_greedy(e, s, rows + (size_t)(n - 1) * n_vocab, prompt, line);
        if (r->one)
            check_division(r, rows, ids, n, c, tolerance, line);
    }
    free(rows);
    bl_session_destroy(s);
}

static void check_prompt(const struct run *r, const char *dir, const cJSON *prompt,
                         const char *where)
{
    const struct mode *mode = r->mode;
    const cJSON *recorded_for =
        cJSON_GetObjectItem(cJSON_GetObjectItem(prompt, "tolerance_nmse"), mode->name);
    const double allowed = mode->most > 0 ? mode->most : cJSON_GetNumberValue(recorded_for);
    const bool rounded = on_devices && !mode->exact && (!random_plans || plan.rounds);
    const double tolerance = rounded ? card_rounding * allowed : allowed;
    const cJSON *list = cJSON_GetObjectItem(prompt, "ids");
    int32_t ids[MAX_PROMPT];
    uint32_t n = 0, n_ref = 0;
    const cJSON *id;

    if (isnan(tolerance))
        return;
    cJSON_ArrayForEach(id, list) if (n < MAX_PROMPT) ids[n++] = id->valueint;
    float *ref = recorded(dir, prompt, mode->name, bl_engine_n_vocab(r->e), &n_ref);
    if (!ref || !n_ref || n_ref > n)
        fail("no recorded logits", where);
    for (int c = quick || mode->most > 0 ? MIXED : 0; ref && n_ref <= n && c < N_CHUNKINGS; c++)
        check_chunking(r, prompt, ids, n, ref, n_ref, tolerance, c, where);
    free(ref);
}

static bool has_mode(const cJSON *c, const char *mode)
{
    const cJSON *p;
    cJSON_ArrayForEach(
        p, cJSON_GetObjectItem(
               c, "prompts")) if (cJSON_GetObjectItem(cJSON_GetObjectItem(p, "tolerance_nmse"),
                                                      mode)) return true;
    return false;
}

/* ---- opening ---- */

/* What was planned was taken, byte for byte; of the heap no more. */
static void check_memory(const struct bl_engine *e, const char *where)
{
    struct bl_memory_line line;
    char what[200];

    for (uint32_t k = 0; k < bl_engine_memory(e, k, &line); k++)
        if (strcmp(line.purpose, "host") ? line.planned_bytes != line.measured_bytes
                                         : line.planned_bytes < line.measured_bytes) {
            snprintf(what, sizeof what, "%s of %s: %llu bytes planned, %llu taken", line.purpose,
                     line.device, (unsigned long long)line.planned_bytes,
                     (unsigned long long)line.measured_bytes);
            fail(what, where);
        }
}

/* As fast as may be: times are not what is tested. */
static enum bl_status open_simulated(struct bl_engine **out, const char *path,
                                     const struct bl_options *opt)
{
    static const char *const devices[] = {"sim0@1TB/s", "sim0@1TB/s,sim1@1TB/s",
                                          "sim0@1TB/s,sim1@1TB/s,sim2@1TB/s"};
    struct bl_options with = *opt;

    with.devices = on_devices ? on_devices : devices[divide_pick(&divide_seed, 3)];
    printf("     plan %llu on cpu,%s\n", (unsigned long long)divide_seed, with.devices);
    return simulated_open(out, path, &with, &divide_seed);
}

static enum bl_status first_device_parts(struct bl_engine_parts *p, const char *path,
                                         const struct bl_options *opt)
{
    BL_TRY(parts_model(p, path, opt));
    BL_TRY(bl_plan_init(&p->plan, p->model));
    BL_TRY(bl_plan_size_steps(&p->plan, p->model, opt));
    for (uint32_t i = 0; i < (p->plan.n_layers + 1) * BL_N_PARTS; i++)
        p->plan.slot[i] = 1;
    BL_TRY(bl_plan_check(&p->plan, p->model, &p->machine));
    return bl_devices_open(p, opt);
}

static enum bl_status open_on_first_device(struct bl_engine **out, const char *path,
                                           const struct bl_options *opt)
{
    struct bl_options with = *opt;
    struct bl_engine_parts p = {0};

    with.devices = on_devices;
    return parts_open(out, &p, &with, first_device_parts(&p, path, &with));
}

static enum bl_status open_engine(struct bl_engine **out, const char *path,
                                  const struct bl_options *opt)
{
    if (random_plans)
        return random_plan_open(out, path, opt, &plan);
    if (simulate)
        return open_simulated(out, path, opt);
    if (on_devices)
        return open_on_first_device(out, path, opt);
    return divide ? divided_open(out, path, opt, 2 + divide_pick(&divide_seed, 2), &divide_seed)
                  : bl_open(out, path, opt);
}

static void check_mode(const char *dir, const cJSON *c, const char *name, const struct mode *mode)
{
    struct bl_options opt = {.ctx_tokens = CTX,
                             .batch_tokens = CTX,
                             .ubatch_tokens = random_plans ? PLANS_UBATCH : CTX,
                             .out_tokens = CTX,
                             .exact = mode->exact,
                             .scalar = scalar,
                             .type_k = mode->kv,
                             .type_v = mode->kv};
    char path[1024], where[256];
    struct run r = {.mode = mode, .ties = cJSON_IsTrue(cJSON_GetObjectItem(c, "moe"))};
    const cJSON *p;

    snprintf(path, sizeof path, "%s/%s", dir, cJSON_GetObjectItem(c, "file")->valuestring);
    enum bl_status st = open_engine(&r.e, path, &opt);
    if (!st && (divide || simulate || random_plans) && (st = bl_open(&r.one, path, &opt)))
        bl_close(r.e);
    if (st == BL_EINVAL && mode->most > 0 && strstr(bl_error(), "; use f16"))
        return;
    if (st) {
        fail(bl_error(), name);
        return;
    }
    cJSON_ArrayForEach(p, cJSON_GetObjectItem(c, "prompts"))
    {
        snprintf(where, sizeof where, "%s %s %s", name, p->string, mode->name);
        check_prompt(&r, dir, p, where);
    }
    check_memory(r.e, name);
    n_moves += r.e->residency.experts.n_moves;
    n_sent += r.e->stage.sent_bytes;
    for (uint16_t d = 1; random_plans && d < r.e->parts.machine.n_devices; d++)
        n_spread += r.e->weights.block[d].n > 1 ? r.e->weights.block[d].n : 0;
    bl_close(r.one);
    bl_close(r.e);
}

static bool is_wanted(const cJSON *c, const struct mode *m)
{
    if (only_mode)
        return !strcmp(m->name, only_mode) && (m->most > 0 || has_mode(c, m->name));
    if (random_plans && strcmp(m->name, "exact") && strcmp(m->name, "native"))
        return false;
    return m->most > 0 || has_mode(c, m->name);
}

static void check_modes(const char *dir, const cJSON *c, const char *name)
{
    char text[256];

    if (random_plans) {
        plan = random_plan_of(divide_seed++, vulkan_too, on_devices);
        random_plan_describe(&plan, text, sizeof text);
        printf("plan %s: %s\n", name, text);
    }
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++)
        if (is_wanted(c, &modes[m]))
            check_mode(dir, c, name, &modes[m]);
}

static void check_case(const char *dir, const char *name)
{
    char file[256];

    snprintf(file, sizeof file, "cases/%s.json", name);
    cJSON *c = read_json(dir, file);
    if (!c) {
        fail("no case file", name);
        return;
    }
    const bool left_out = divide && !cJSON_IsTrue(cJSON_GetObjectItem(c, "moe"));
    if (left_out)
        printf("skip %s: it has no experts\n", name);
    for (uint32_t i = 0; !left_out && i < n_plans; i++)
        check_modes(dir, c, name);
    cJSON_Delete(c);
}

/* ---- the whole folder ---- */

static bool family_is_built(const char *dir, const char *name)
{
    char file[256];
    bool found = false;

    snprintf(file, sizeof file, "cases/%s.json", name);
    cJSON *c = read_json(dir, file);
    const cJSON *arch = cJSON_GetObjectItem(c, "arch");
    for (size_t i = 0; cJSON_IsString(arch) && bl_families[i]; i++)
        found = found || !strcmp(arch->valuestring, bl_families[i]->arch);
    if (!found)
        printf("skip %s: its family is not built\n", name);
    cJSON_Delete(c);
    return found;
}

static int check_all(void)
{
    const char *dir = getenv("BALLAST_REFERENCE");
    const cJSON *name;

    if (!dir || !*dir) {
        printf("skipped: BALLAST_REFERENCE does not name a reference folder\n");
        return 77;
    }
    cJSON *index = read_json(dir, "index.json");
    cJSON_ArrayForEach(name, index) if (family_is_built(dir, name->valuestring))
        check_case(dir, name->valuestring);
    cJSON_Delete(index);
    return 0;
}

static void print_warning(void *arg, enum bl_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    printf("     %s\n", line);
}

int main(int argc, char **argv)
{
    int i = 1, rc = 0;

    bl_log_set(print_warning, NULL, BL_LOG_WARN);
    if (i < argc && !strcmp(argv[i], "--scalar"))
        scalar = i++ > 0;
    if (i < argc && !strcmp(argv[i], "--quick"))
        quick = i++ > 0;
    if (i + 1 < argc && !strcmp(argv[i], "--mode")) {
        only_mode = argv[i + 1];
        i += 2;
    }
    if (i + 1 < argc && !strcmp(argv[i], "--devices")) {
        on_devices = argv[i + 1];
        i += 2;
    }
    if (i + 1 < argc && !strcmp(argv[i], "--divide")) {
        divide = true;
        divide_seed = strtoull(argv[i + 1], NULL, 10);
        printf("experts divided, seed %llu\n", (unsigned long long)divide_seed);
        i += 2;
    }
    if (i + 1 < argc && !strcmp(argv[i], "--simulate")) {
        simulate = true;
        divide_seed = strtoull(argv[i + 1], NULL, 10);
        printf("at random over devices, seed %llu\n", (unsigned long long)divide_seed);
        i += 2;
    }
    if (i + 3 < argc && !strcmp(argv[i], "--plans") && !strcmp(argv[i + 2], "--seed")) {
        random_plans = quick = true;
        vulkan_too = vulkan_here();
        n_plans = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        divide_seed = strtoull(argv[i + 3], NULL, 10);
        printf("%u random plans a model, seed %llu\n", n_plans, (unsigned long long)divide_seed);
        i += 4;
    }
    if (on_devices && !strncmp(on_devices, "vulkan", 6) && !vulkan_here())
        return 77;
    if (i < argc && !strcmp(argv[i], "--all"))
        rc = check_all();
    else if (argc - i < 2) {
        printf(
            "usage: reference_check [--scalar] [--quick] [--mode MODE] [--devices LIST] [--divide "
            "SEED | --simulate SEED | --plans N --seed SEED] DIR NAME... | --all\n");
        return 2;
    } else
        for (int k = i + 1; k < argc; k++)
            check_case(argv[i], argv[k]);
    if (rc)
        return rc;
    if (random_plans)
        printf("%llu moves of experts into slots, %llu bytes of experts sent, weights in %llu "
               "blocks\n",
               (unsigned long long)n_moves, (unsigned long long)n_sent,
               (unsigned long long)n_spread);
    printf("%d checked, %d failed\n", n_checked, n_failed);
    return n_failed || !n_checked ? 1 : 0;
}
