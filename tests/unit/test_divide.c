/* SPDX-License-Identifier: MIT */
/* Experts of one layer divided over devices: results, memory, and what the program looks like. */
#include "engine_rig.h"

#include "divide.h"

static const char *const models[] = {"mixtral-f32",  "gpt-oss-mxfp4",    "deepseek4-f32",
                                     "qwen3moe-iq3", "ernie4_5-moe-f32", "qwen3next-f32"};

static struct bl_engine *divided(const char *name, const struct bl_options *opt, uint32_t n_devices,
                                 uint64_t *seed)
{
    struct bl_engine *e;
    char path[512];

    snprintf(path, sizeof path, MODELS "%s.gguf", name);
    if (divided_open(&e, path, opt, n_devices, seed))
        fail_msg("%s: %s", name, bl_error());
    return e;
}

/* ---- memory: what is planned is taken, and it is each expert once ---- */

static uint64_t sum_of_tensors(const struct bl_engine *e, uint16_t device)
{
    const struct bl_gguf *g = e->parts.gguf;
    uint64_t *bytes = calloc(bl_gguf_n_tensors(g), sizeof *bytes), sum = 0;

    bl_plan_tensor_bytes(&e->parts.plan, e->parts.model, device, bytes);
    for (uint32_t t = 0; t < bl_gguf_n_tensors(g); t++)
        sum += bytes[t];
    free(bytes);
    return sum;
}

static uint64_t experts_once(const struct bl_model *m)
{
    uint64_t sum = 0;
    for (uint32_t t = 0; t < bl_gguf_n_tensors(m->gguf); t++)
        for (uint32_t i = 0; i < m->n_weights; i++)
            if (m->weight[i].tensor == t && m->weight[i].part == BL_PART_EXPERTS) {
                sum += bl_gguf_tensor(m->gguf, t)->bytes;
                break;
            }
    return sum;
}

static void experts_are_held_once(struct bl_engine *e)
{
    const struct bl_model *m = e->parts.model;
    uint64_t held = 0, rest = 0;

    for (uint16_t d = 0; d < e->parts.machine.n_devices; d++)
        held += sum_of_tensors(e, d);
    /* everything on one device, but for experts */
    uint16_t *slot = e->parts.plan.slot;
    const struct bl_plan one = {.n_layers = e->parts.plan.n_layers,
                                .slot = calloc((m->hp.n_layer + 1) * BL_N_PARTS, sizeof *slot)};
    for (uint32_t l = 0; l < m->hp.n_layer; l++)
        one.slot[l * BL_N_PARTS + BL_PART_EXPERTS] = 1;
    uint64_t *bytes = calloc(bl_gguf_n_tensors(m->gguf), sizeof *bytes);
    bl_plan_tensor_bytes(&one, m, 0, bytes);
    for (uint32_t t = 0; t < bl_gguf_n_tensors(m->gguf); t++)
        rest += bytes[t];
    free(bytes);
    free(one.slot);
    assert_int_equal(held, rest + experts_once(m));
}

static void divided_is_as_one_device(void **state)
{
    (void)state;
    uint64_t seed = 20;

    for (uint32_t i = 0; i < 2 * BL_COUNT(models); i++) {
        const char *name = models[i % BL_COUNT(models)];
        struct bl_options opt = small();
        opt.no_mmap = i & 1;
        struct bl_engine *one = opened(name, &opt);
        const uint64_t from = seed;
        struct bl_engine *e = divided(name, &opt, 2 + i / BL_COUNT(models), &seed);
        float *want = last_logits(one), *got = last_logits(e);
        const double err = nmse(got, want, bl_engine_n_vocab(e));
        if (!(err < 1e-9))
            fail_msg("%s, seed %llu: NMSE %.2e", name, (unsigned long long)from, err);
        memory_is_as_planned(e);
        experts_are_held_once(e);
        free(want);
        free(got);
        bl_close(one);
        bl_close(e);
    }
}

/* One device has the experts that a token did not choose: it adds zeros. */
static void a_device_that_nobody_chooses_adds_nothing(void **state)
{
    (void)state;
    struct bl_options opt = small();
    uint64_t seed = 3;
    struct bl_engine *e = divided("mixtral-f32", &opt, 3, &seed);
    struct bl_session *s;

    assert_int_equal(bl_session_create(&s, e), BL_OK);
    for (uint32_t i = 0; i < N_PROMPT; i++) { /* two of four experts a token */
        assert_int_equal(feed(e, s, &prompt[i], 1), BL_OK);
        for (uint32_t k = 0; k < bl_engine_n_vocab(e); k++)
            assert_true(isfinite(bl_logits(e, 0)[k]));
    }
    bl_session_destroy(s);
    bl_close(e);
}

/* ---- programs ---- */

static uint32_t steps_before(const struct bl_program *p, uint32_t node)
{
    for (uint32_t i = 0; i < p->n_steps; i++) {
        if (p->step[i].kind != BL_STEP_RUN)
            continue;
        const struct bl_range *r = &p->range[p->step[i].index];
        if (node >= r->first && node < r->first + r->n)
            return i;
    }
    return UINT32_MAX;
}

/* Each holder has one part; the router's own device computes its part last. */
static void check_parts(const struct bl_program *p, const struct bl_plan *plan, uint32_t layer,
                        uint32_t n_experts)
{
    const uint16_t home = bl_plan_device(plan, (int)layer, BL_PART_FFN);
    uint32_t found = 0, last = 0, parts = 0;

    while (bl_plan_expert_holder(plan, layer, n_experts, parts) != BL_NO_DEVICE)
        parts++;
    for (uint32_t i = 0; i < p->graph.n_nodes; i++) {
        const struct bl_node *n = &p->graph.nodes[i];
        if (n->op != BL_OP_EXPERTS || n->layer != (int)layer)
            continue;
        const struct bl_experts_attr *at = bl_node_attr(&p->graph, n);
        assert_int_equal(p->node_device[i],
                         bl_plan_expert_holder(plan, layer, n_experts, at->part));
        assert_int_equal(at->parts, parts > 1 ? parts : 0);
        found++;
        last = i;
    }
    assert_int_equal(found, parts);
    if (parts < 2 || !bl_plan_experts_on(plan, layer, n_experts, home))
        return;
    assert_int_equal(p->node_device[last], home);
    for (uint32_t c = 0, at = steps_before(p, last); c < p->n_steps; c++) {
        const struct bl_step *s = &p->step[c];
        const bl_val x = bl_node_src(&p->graph, &p->graph.nodes[last], 0);
        if (s->kind == BL_STEP_COPY && p->copy[s->index].val == x)
            assert_true(c < at);
    }
}

static void programs_start_other_devices_first(void **state)
{
    (void)state;
    uint64_t seed = 5;

    for (uint32_t k = 0; k < 40; k++) {
        struct bl_options opt = small();
        struct bl_engine_parts p = {0};
        char path[512];
        snprintf(path, sizeof path, MODELS "%s.gguf", models[k % BL_COUNT(models)]);
        assert_int_equal(divide_parts(&p, path, &opt, 2 + k % 3, &seed), BL_OK);
        for (uint32_t n_tok = 1; n_tok <= 16; n_tok += 15) {
            struct bl_program prog;
            const struct bl_shape s = bl_plan_bucket(&p.plan, n_tok, 1);
            assert_int_equal(bl_program_lower(&prog, p.model, &p.plan, &p.machine, &s), BL_OK);
            if (bl_program_verify(&prog))
                fail_msg("plan %u: %s", k, bl_error());
            for (uint32_t l = 0; l < p.model->hp.n_layer; l++)
                if (p.model->layer[l].moe)
                    check_parts(&prog, &p.plan, l, p.model->hp.n_expert);
            bl_program_finish(&prog);
        }
        bl_engine_parts_finish(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(divided_is_as_one_device),
        cmocka_unit_test(a_device_that_nobody_chooses_adds_nothing),
        cmocka_unit_test(programs_start_other_devices_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
