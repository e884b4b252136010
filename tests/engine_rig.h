/* SPDX-License-Identifier: MIT */
/* engine_rig.h — engines over the small recorded models, on one device and on two.
 *
 *     opened or split_engine, bl_session_create, feed, bl_logits, bl_close
 */
#ifndef BL_TEST_ENGINE_RIG_H
#define BL_TEST_ENGINE_RIG_H

#include "support.h"

#include "backends.h"
#include "engine.h"
#include "mem.h"
#include "planner.h"
#include "vocab.h"

#include <dirent.h>
#include <math.h>

#ifndef BL_TEST_DATA
#define BL_TEST_DATA "tests/data"
#endif
#define MODELS BL_TEST_DATA "/reference/models/"
enum { N_PROMPT = 24, SPLIT_SLACK = 4 };

static const int32_t prompt[N_PROMPT] = {270, 322, 89,  12, 300, 7,   45,  101, 270, 33, 8,  61,
                                         240, 199, 350, 2,  77,  123, 311, 90,  14,  5,  66, 210};

static inline struct bl_options small(void)
{
    return (struct bl_options){.ctx_tokens = 128,
                               .batch_tokens = 64,
                               .ubatch_tokens = 16,
                               .out_tokens = 64,
                               .threads = 2,
                               .max_sessions = 3,
                               .exact = true};
}

static inline struct bl_engine *opened(const char *name, const struct bl_options *opt)
{
    struct bl_engine *e;
    char path[512];

    snprintf(path, sizeof path, MODELS "%s.gguf", name);
    if (bl_open(&e, path, opt))
        fail_msg("%s: %s", name, bl_error());
    return e;
}

static inline enum bl_status feed(struct bl_engine *e, struct bl_session *s, const int32_t *ids,
                                  uint32_t n)
{
    struct bl_session *of[N_PROMPT];
    uint8_t want[N_PROMPT];

    for (uint32_t i = 0; i < n; i++) {
        of[i] = s;
        want[i] = 1;
    }
    return bl_decode(e, &(struct bl_batch){n, ids, of, want});
}

static inline double nmse(const float *x, const float *y, uint32_t n)
{
    double err = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        err += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        sum += (double)y[i] * y[i];
    }
    return err / sum;
}

/* What was planned was taken, byte for byte; of the heap no more. */
static inline void memory_is_as_planned(const struct bl_engine *e)
{
    struct bl_memory_line line;

    for (uint32_t k = 0; k < bl_engine_memory(e, k, &line); k++)
        if (strcmp(line.purpose, "host") ? line.planned_bytes != line.measured_bytes
                                         : line.planned_bytes < line.measured_bytes)
            fail_msg("%s of %s: %llu bytes planned, %llu taken", line.purpose, line.device,
                     (unsigned long long)line.planned_bytes,
                     (unsigned long long)line.measured_bytes);
}

/* Logits of the last prompt token, fed whole; malloc'ed. */
static inline float *last_logits(struct bl_engine *e)
{
    struct bl_session *s;
    size_t bytes = bl_engine_n_vocab(e) * sizeof(float);
    float *copy = malloc(bytes);

    assert_int_equal(bl_session_create(&s, e), BL_OK);
    assert_int_equal(feed(e, s, prompt, N_PROMPT), BL_OK);
    memcpy(copy, bl_logits(e, N_PROMPT - 1), bytes);
    bl_session_destroy(s);
    return copy;
}

/* ---- two devices: both are this CPU, with arenas, streams and pools of their own ---- */

static inline struct bl_engine *split_engine(const char *name, uint32_t second, bool head,
                                             struct bl_options *opt)
{
    struct bl_engine_parts p = {0};
    struct bl_model_options mo = {
        .ctx_tokens = 128, .type_k = BL_F32, .type_v = BL_F32, .slack_tokens = SPLIT_SLACK};
    struct bl_engine *e;
    char path[512];

    snprintf(path, sizeof path, MODELS "%s.gguf", name);
    assert_int_equal(bl_gguf_open(&p.gguf, path), BL_OK);
    assert_int_equal(bl_model_open(&p.model, p.gguf, &mo), BL_OK);
    assert_int_equal(bl_machine_probe(&p.machine, opt), BL_OK);
    p.machine.device = realloc(p.machine.device, 2 * sizeof *p.machine.device);
    p.machine.device[1] = p.machine.device[0];
    snprintf(p.machine.device[1].id, sizeof p.machine.device[1].id, "cpu1");
    p.machine.n_devices = 2;
    assert_int_equal(bl_plan_make(&p.plan, p.model, &p.machine, opt), BL_OK);
    for (uint32_t l = 0; l < p.plan.n_layers; l++)
        for (uint32_t part = 0; part < BL_N_PARTS; part++)
            p.plan.slot[l * BL_N_PARTS + part] = second >> l & 1;
    /* experts of the layers of device 0 on the other one */
    for (uint32_t l = 0; l < p.plan.n_layers; l++)
        p.plan.slot[l * BL_N_PARTS + BL_PART_EXPERTS] = 1;
    p.plan.slot[p.plan.n_layers * BL_N_PARTS + BL_PART_HEAD] = head;
    p.device = calloc(2, sizeof *p.device);
    for (uint32_t d = 0; d < 2; d++) {
        const struct bl_machine_device *md = &p.machine.device[d];
        assert_int_equal(md->backend->open(0, &md->config, &p.device[d]), BL_OK);
    }
    if (bl_engine_create(&e, &p, opt))
        fail_msg("%s", bl_error());
    return e;
}

/* Calls it with the name of every recorded model in tests/data. */
static inline void each_model(void (*check)(const char *name))
{
    DIR *dir = opendir(MODELS);
    char name[64];

    assert_non_null(dir);
    for (const struct dirent *f; (f = readdir(dir));) {
        const char *dot = strstr(f->d_name, ".gguf");
        if (!dot)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(dot - f->d_name), f->d_name);
        check(name);
    }
    closedir(dir);
}

#endif
