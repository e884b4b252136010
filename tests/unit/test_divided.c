/* SPDX-License-Identifier: MIT */
/* Layers whose experts are divided over devices, as the planner and its public face count them;
 * ledger lines of what is neither weights nor state. */
#include "search_rig.h"

#include "placement.h"

struct placed {
    struct bl_synth *synth;
    struct bl_placement *p;
};

static void open_placed(struct placed *r)
{
    const struct bl_synth_options so = {.shape = "gpt-oss-120b", .no_data = true};
    const struct bl_placement_options po = {.prefill_weight = 0.3};
    const struct bl_options opt = {.machine_file = "rtx-3090-ddr5-2ch", .ctx_tokens = 8192};

    if (bl_synth_open(&r->synth, &so) ||
        bl_placement_make(&r->p, bl_synth_gguf(r->synth), &opt, &po))
        fail_msg("%s", bl_error());
    assert_true(r->p->choice.plan.n_ranges > 0);
}

static void close_placed(struct placed *r)
{
    bl_placement_close(r->p);
    bl_synth_close(r->synth);
}

static uint64_t layer_expert_bytes(const struct bl_model *m, int layer)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < m->n_weights; i++)
        if (m->weight[i].layer == layer && m->weight[i].part == BL_PART_EXPERTS)
            sum += bl_gguf_tensor(m->gguf, m->weight[i].tensor)->bytes;
    return sum;
}

/* Of each layer a card has what bl_plan_expert_device says, expert by expert. */
static void parts_add_up(void **state)
{
    (void)state;
    struct placed r;
    struct bl_part_bytes *part;
    double want[2] = {0}, is[2] = {0};
    uint32_t n;

    open_placed(&r);
    const struct bl_plan *plan = &r.p->choice.plan;
    const uint32_t n_experts = r.p->model->hp.n_expert;
    for (uint32_t l = 0; l < plan->n_layers; l++)
        for (uint32_t e = 0; e < n_experts; e++)
            want[bl_plan_expert_device(plan, l, e)] +=
                (double)layer_expert_bytes(r.p->model, (int)l) / n_experts;
    assert_int_equal(bl_placement_parts(r.p, &part, &n), BL_OK);
    for (uint32_t i = 0; i < n; i++)
        if (!strcmp(part[i].part, "experts"))
            is[strcmp(part[i].device, "cpu0") != 0] += (double)part[i].bytes;
    free(part);
    for (unsigned d = 0; d < 2; d++) {
        printf("  device %u: %.0f of %.0f bytes of experts\n", d, is[d], want[d]);
        assert_true(is[d] > 0 && fabs(is[d] - want[d]) < 1e-6 * want[d]);
    }
    close_placed(&r);
}

/* Longest time that one device spends on experts of the layer. */
static double experts_ns(const struct bl_placement *p, uint32_t n_tok, uint32_t layer,
                         const char *device)
{
    struct bl_predicted_step s;
    double ns = 0;

    assert_int_equal(bl_placement_step(p, n_tok, &s), BL_OK);
    for (uint32_t i = 0; i < s.n_events; i++)
        if (s.event[i].layer == (int32_t)layer && !strcmp(s.event[i].device, device) &&
            (!strcmp(s.event[i].what, "experts") || !strcmp(s.event[i].what, "experts sent")))
            ns += s.event[i].end_ns - s.event[i].begin_ns;
    bl_predicted_step_finish(&s);
    return ns;
}

/* A token reads of a divided layer what each device has of it. */
static void steps_share_the_work(void **state)
{
    (void)state;
    struct placed r;

    open_placed(&r);
    const struct bl_plan *plan = &r.p->choice.plan;
    const uint32_t l = plan->range[0].layer, n_experts = r.p->model->hp.n_expert;
    const double share = (double)bl_plan_experts_on(plan, l, n_experts, 0) / n_experts;
    const double some = experts_ns(r.p, 1, l, "cpu0"), all = experts_ns(r.p, 1, 0, "cpu0");
    printf("  the host has %.3f of layer %u and spends %.3f of the time of a whole one\n", share, l,
           some / all);
    assert_true(bl_plan_device(plan, 0, BL_PART_EXPERTS) == 0 && l != 0);
    assert_true(share > 0 && share < 1 && fabs(some / all - share) < 0.02);
    assert_true(experts_ns(r.p, 1, l, "gpu0") > 0);
    assert_true(experts_ns(r.p, 1, 0, "gpu0") <= 0);
    close_placed(&r);
}

static uint64_t line_of(const struct bl_placement *p, const char *device, const char *purpose,
                        uint32_t *n)
{
    struct bl_memory_line l;
    uint64_t sum = 0;

    *n = 0;
    for (uint32_t i = 0; i < bl_placement_memory(p, i, &l); i++)
        if (!strcmp(l.device, device) && !strcmp(l.purpose, purpose)) {
            sum += l.planned_bytes;
            ++*n;
        }
    return sum;
}

/* The driver's share counts against the card; lines of what is not there say so. */
static void ledger_names_what_else_there_is(void **state)
{
    (void)state;
    struct bl_placement_device d;
    struct bl_memory_line l;
    struct placed r;
    uint64_t sum = 0;
    uint32_t n;

    open_placed(&r);
    bl_placement_device(r.p, 1, &d);
    assert_true(d.driver_bytes > 0);
    assert_true(line_of(r.p, d.id, bl_purpose_name(BL_MEM_DRIVER), &n) == d.driver_bytes);
    assert_int_equal(n, 1);
    const uint64_t ring = line_of(r.p, d.id, bl_purpose_name(BL_MEM_STAGING), &n);
    assert_true((ring > 0) == (r.p->choice.plan.stream_from > 0) && n == 1);
    line_of(r.p, "cpu0", bl_purpose_name(BL_MEM_DRAFT), &n);
    assert_int_equal(n, 0); /* the file has no such layers */
    for (uint32_t i = 0; i < bl_placement_memory(r.p, i, &l); i++)
        sum += strcmp(l.device, d.id) ? 0 : l.planned_bytes;
    assert_true(sum == d.planned_bytes && sum <= d.budget_bytes);
    close_placed(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_add_up),
        cmocka_unit_test(steps_share_the_work),
        cmocka_unit_test(ledger_names_what_else_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
