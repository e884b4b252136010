/* SPDX-License-Identifier: MIT */
/* Models on cards of CUDA and HIP against the same on the CPU, in float: one card, several, of both
 * kinds.
 *
 *     test_simt_models LIBRARY|cuda|hip...    emulated drivers, or those of this machine */
#include "engine_rig.h"

#include "divide.h"
#include "parts.h"
#include "simt_rig.h"

enum { MOST_FACES = 4, MOST_CARDS = 3 };
static struct simt_rig face[MOST_FACES];
static uint32_t n_faces, n_cards; /* of each face */
static uint32_t n_apart;          /* models that are not as on the CPU */

static void fresh_cards(void)
{
    for (uint32_t i = 0; i < n_faces; i++)
        if (!face[i].is_real && !face[i].configure(&(struct emu_config){
                                    .n_cards = MOST_CARDS, .late_us = 50, .seed = i + 1}))
            fail_msg("%s: something was not given back", face[i].path);
}

static enum bl_status add_cards(struct bl_machine *m, uint32_t n)
{
    struct bl_machine_device *d = realloc(m->device, (n + 1) * sizeof *d);

    if (!d)
        return bl_fail(BL_ENOMEM, "out of memory for %u devices", n);
    m->device = d;
    m->n_devices = n + 1;
    for (uint32_t i = 1; i <= n; i++) {
        d[i] = d[0];
        d[i].backend = face[(i - 1) % n_faces].backend;
        d[i].index = (i - 1) / n_faces;
        snprintf(d[i].id, sizeof d[i].id, "%s%u", d[i].backend->name, d[i].index);
        d[i].kind = BL_KIND_GPU;
        BL_TRY(d[i].backend->caps(d[i].index, &d[i].config, &d[i].caps));
    }
    return BL_OK;
}

typedef enum bl_status place_fn(struct bl_plan *, const struct bl_model *, uint32_t n_devices,
                                void *arg);

static enum bl_status make_parts(struct bl_engine_parts *p, const char *path,
                                 const struct bl_options *opt, uint32_t n, place_fn *place,
                                 void *arg)
{
    BL_TRY(parts_model(p, path, opt));
    BL_TRY(bl_plan_make(&p->plan, p->model, &p->machine, opt));
    BL_TRY(add_cards(&p->machine, n));
    BL_TRY(place(&p->plan, p->model, n + 1, arg));
    return parts_devices(p);
}

static struct bl_engine *on_cards(const char *name, const struct bl_options *opt, uint32_t n,
                                  place_fn *place, void *arg)
{
    struct bl_engine_parts p = {0};
    struct bl_engine *e = NULL;
    char path[512];

    snprintf(path, sizeof path, MODELS "%s.gguf", name);
    if (parts_open(&e, &p, opt, make_parts(&p, path, opt, n, place, arg)))
        fail_msg("%s: %s", name, bl_error());
    return e;
}

static void no_pageable_copies(void)
{
    struct emu_counts c;
    for (uint32_t i = 0; i < n_faces; i++) {
        if (face[i].is_real)
            continue;
        face[i].read(&c);
        assert_int_equal(c.pageable_copies, 0);
    }
}

static void compare(const char *name, uint32_t n, place_fn *place, void *arg)
{
    const struct bl_options opt = small();
    struct bl_engine *one = opened(name, &opt);

    fresh_cards();
    struct bl_engine *e = on_cards(name, &opt, n, place, arg);
    memory_is_as_planned(e);
    float *want = last_logits(one), *got = last_logits(e);
    const double err = nmse(got, want, bl_engine_n_vocab(e));
    const bool apart = !(err < 1e-9);
    n_apart += apart;
    printf("%-20s %u card%s NMSE %.2e%s\n", name, n, n == 1 ? " " : "s", err,
           apart ? ", which is too much" : "");
    no_pageable_copies();
    free(want);
    free(got);
    bl_close(one);
    bl_close(e);
    fresh_cards();
}

static void compare_on_one(const char *name)
{
    compare(name, 1, all_on_first, NULL);
}

static void models_are_as_on_the_cpu(void **state)
{
    (void)state;
    n_apart = 0;
    each_model(compare_on_one);
    assert_int_equal(n_apart, 0);
}

static void any_plan_is_as_on_the_cpu(void **state)
{
    static const char *const models[] = {"mixtral-f32",  "gpt-oss-mxfp4",    "deepseek4-f32",
                                         "qwen3moe-iq3", "ernie4_5-moe-f32", "qwen3next-f32"};
    uint64_t seed = 11;
    (void)state;
    n_apart = 0;
    for (uint32_t i = 0; i < BL_COUNT(models); i++) {
        const uint32_t n = 2 + i % 2, most = n_cards * n_faces;
        printf("seed %llu: ", (unsigned long long)seed);
        compare(models[i], n < most ? n : most, divide_at_random, &seed);
    }
    assert_int_equal(n_apart, 0);
}

static uint32_t n_layers_of(const struct bl_engine *e)
{
    return e->parts.model->hp.n_layer;
}

/* Steps of one token: what the driver is asked for. most: launches for each layer, mean over them;
 * outside: for the embedding, the angles and the head. */
static void count_step_of(const char *name, const struct bl_options *opt, uint32_t most,
                          uint32_t outside)
{
    struct bl_session *s;
    struct emu_counts before, after;

    fresh_cards();
    struct bl_engine *e = on_cards(name, opt, 1, all_on_first, NULL);
    ok(bl_session_create(&s, e));
    ok(feed(e, s, prompt, 4));
    ok(feed(e, s, prompt + 4, 1)); /* makes the program */
    face[0].read(&before);
    ok(feed(e, s, prompt + 5, 1));
    face[0].read(&after);
    const uint32_t launches = after.launches - before.launches, layers = n_layers_of(e);
    printf("%-20s a step of one token: %u launches for %u layers, %u replays, %u copies\n", name,
           launches, layers, after.graph_launches - before.graph_launches,
           after.copies - before.copies);
    assert_int_equal(after.graph_launches - before.graph_launches, 1);
    assert_int_equal(after.copies - before.copies, 2);
    if (launches > most * layers + outside)
        fail_msg("%s: more than %u launches for each layer and %u for the rest", name, most,
                 outside);
    bl_session_destroy(s);
    bl_close(e);
    fresh_cards();
}

static void count_step(const char *name, uint32_t most, uint32_t outside)
{
    const struct bl_options opt = small();
    count_step_of(name, &opt, most, outside);
}

static void a_step_is_one_replay(void **state)
{
    struct bl_options rounded = small();
    (void)state;
    if (face[0].is_real)
        skip(); /* it does not tell what it was asked for */
    rounded.round_kv = rounded.round_index = true;
    count_step("llama-f32", 8, 5);
    count_step("qwen3moe-iq3", 12, 5);
    count_step("gpt-oss-mxfp4", 13, 5);
    count_step("qwen3next-f32", 22, 5);
    count_step("deepseek4-f32", 25, 14);
    count_step_of("deepseek4-f32", &rounded, 25, 14);
}

/* The least that a face has here. */
static void count_cards(const struct simt_rig *r)
{
    uint32_t n = MOST_CARDS;
    if (r->is_real && r->backend->count(&n)) {
        fprintf(stderr, "%s\n", bl_error());
        exit(1);
    }
    n_cards = n_faces && n_cards < n ? n_cards : n;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_is_one_replay),
                                       cmocka_unit_test(any_plan_is_as_on_the_cpu),
                                       cmocka_unit_test(models_are_as_on_the_cpu)};

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc && n_faces < MOST_FACES; i++) {
        rig = (struct simt_rig){0};
        rig_load(argv[i]);
        if (!rig.is_real)
            rig.configure(&(struct emu_config){.n_cards = MOST_CARDS});
        count_cards(&rig);
        face[n_faces++] = rig;
    }
    if (!n_faces) {
        fprintf(stderr, "usage: %s LIBRARY...\n", argv[0]);
        return 2;
    }
    /* of both kinds at once: plans only, the rest was seen with each */
    return n_faces > 1 ? cmocka_run_group_tests_name(
                             "mixed", ((const struct CMUnitTest[]){tests[1]}), NULL, NULL)
                       : cmocka_run_group_tests(tests, NULL, NULL);
}
