/* SPDX-License-Identifier: MIT */
/* Experts of one layer divided over devices, in the plan's table: against a map of every expert. */
#include "support.h"

#include "alloc_fail.h"
#include "backends.h"
#include "plan.h"

enum { LAYERS = 3, EXPERTS = 24, DEVICES = 3 };

static struct bl_plan plan_of(uint16_t *slot)
{
    memset(slot, 0, (LAYERS + 1) * BL_N_PARTS * sizeof *slot);
    for (uint32_t l = 0; l < LAYERS; l++)
        slot[l * BL_N_PARTS + BL_PART_EXPERTS] = (uint16_t)(l % DEVICES);
    return (struct bl_plan){.n_layers = LAYERS, .slot = slot};
}

static void equals_map(const struct bl_plan *p, uint16_t map[LAYERS][EXPERTS])
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint32_t on[DEVICES] = {0};
        for (uint32_t e = 0; e < EXPERTS; e++) {
            uint32_t end = e + 1;
            while (end < EXPERTS && map[l][end] == map[l][e])
                end++;
            const struct bl_expert_range run = bl_plan_expert_run(p, l, e, EXPERTS);
            assert_int_equal(bl_plan_expert_device(p, l, e), map[l][e]);
            assert_true(run.layer == l && run.first == e && run.device == map[l][e]);
            assert_int_equal(run.n, end - e);
            on[map[l][e]]++;
        }
        for (uint16_t d = 0; d < DEVICES; d++)
            assert_int_equal(bl_plan_experts_on(p, l, EXPERTS, d), on[d]);
    }
}

static void is_in_order(const struct bl_plan *p)
{
    for (uint32_t i = 1; i < p->n_ranges; i++) {
        const struct bl_expert_range *a = &p->range[i - 1], *b = &p->range[i];
        assert_true(a->layer < b->layer || (a->layer == b->layer && a->first + a->n <= b->first));
        assert_false(a->layer == b->layer && a->first + a->n == b->first && a->device == b->device);
    }
}

static void any_ranges_are_found_again(void **state)
{
    (void)state;
    uint16_t slot[(LAYERS + 1) * BL_N_PARTS], map[LAYERS][EXPERTS];
    bool taken[LAYERS][EXPERTS];
    uint32_t refused = 0, seed = 7;

    for (uint32_t round = 0; round < 100; round++) {
        struct bl_plan p = plan_of(slot);
        memset(taken, 0, sizeof taken);
        for (uint32_t l = 0; l < LAYERS; l++)
            for (uint32_t e = 0; e < EXPERTS; e++)
                map[l][e] = bl_plan_device(&p, (int)l, BL_PART_EXPERTS);
        for (uint32_t k = 0; k < 20; k++) {
            seed = seed * 1664525 + 1013904223;
            const uint32_t l = seed >> 8 & 0xff, n = 1 + (seed >> 16 & 3);
            const uint32_t first = (seed >> 20) % (EXPERTS - n + 1), layer = l % LAYERS;
            const uint16_t device = (uint16_t)((seed >> 28) % DEVICES);
            bool free_all = true;
            for (uint32_t e = first; e < first + n; e++)
                free_all = free_all && !taken[layer][e];
            assert_int_equal(bl_plan_add_range(&p, layer, first, n, device),
                             free_all ? BL_OK : BL_EINVAL);
            refused += !free_all;
            for (uint32_t e = first; free_all && e < first + n; e++) {
                taken[layer][e] = true;
                map[layer][e] = device;
            }
            is_in_order(&p);
            equals_map(&p, map);
        }
        free(p.range);
    }
    assert_true(refused > 100);
}

static void neighbours_of_one_device_are_one(void **state)
{
    (void)state;
    uint16_t slot[(LAYERS + 1) * BL_N_PARTS];
    struct bl_plan p = plan_of(slot);

    assert_int_equal(bl_plan_add_range(&p, 1, 8, 4, 2), BL_OK);
    assert_int_equal(bl_plan_add_range(&p, 1, 0, 4, 2), BL_OK);
    assert_int_equal(p.n_ranges, 2);
    assert_int_equal(bl_plan_add_range(&p, 1, 4, 4, 2), BL_OK);
    assert_int_equal(p.n_ranges, 1);
    assert_true(p.range->first == 0 && p.range->n == 12);
    assert_int_equal(bl_plan_add_range(&p, 2, 12, 1, 2), BL_OK);
    assert_int_equal(bl_plan_add_range(&p, 1, 12, 1, 0), BL_OK);
    assert_int_equal(p.n_ranges, 3);
    free(p.range);
}

static void senseless_ranges_are_refused(void **state)
{
    (void)state;
    uint16_t slot[(LAYERS + 1) * BL_N_PARTS];
    struct bl_plan p = plan_of(slot);

    assert_int_equal(bl_plan_add_range(&p, LAYERS, 0, 1, 1), BL_EINVAL);
    assert_int_equal(bl_plan_add_range(&p, 0, 0, 0, 1), BL_EINVAL);
    assert_int_equal(bl_plan_add_range(&p, 0, 2, UINT32_MAX - 1, 1), BL_EINVAL);
    assert_int_equal(bl_plan_add_range(&p, 0, 4, 4, 1), BL_OK);
    assert_int_equal(bl_plan_add_range(&p, 0, 7, 2, 1), BL_EINVAL);
    assert_non_null(strstr(bl_error(), "experts 4-7"));
    assert_int_equal(bl_plan_add_range(&p, 0, 0, 5, 1), BL_EINVAL);
    alloc_fail_at(1);
    assert_int_equal(bl_plan_add_range(&p, 0, 12, 1, 1), BL_ENOMEM);
    assert_true(alloc_fail_stop());
    assert_int_equal(p.n_ranges, 1);
    free(p.range);
}

/* ---- against a model: a dense layer, then layers of 8 experts ---- */

static void keep_line(void *arg, const char *text)
{
    char *all = arg;
    strncat(all, text, 2000 - strlen(all));
    strncat(all, "\n", 2000 - strlen(all));
}

static void check_and_print_know_ranges(void **state)
{
    (void)state;
    struct bl_gguf *gguf;
    struct bl_model *m;
    struct bl_machine_device d[2] = {{.id = "cpu0"}, {.id = "gpu1"}};
    const struct bl_machine machine = {.device = d, .n_devices = 2};
    char text[2001] = "";
    struct bl_plan p;

    assert_int_equal(bl_gguf_open(&gguf, BL_TEST_DATA "/reference/models/ernie4_5-moe-f32.gguf"),
                     BL_OK);
    assert_int_equal(bl_model_open(&m, gguf, NULL), BL_OK);
    const uint32_t n = m->hp.n_expert, last = m->hp.n_layer - 1;
    assert_int_equal(bl_plan_init(&p, m), BL_OK);
    assert_false(bl_plan_uses(&p, 1));
    assert_int_equal(bl_plan_add_range(&p, last, 2, 3, 1), BL_OK);
    assert_true(bl_plan_uses(&p, 1) && bl_plan_uses(&p, 0));
    assert_int_equal(bl_plan_check(&p, m, &machine), BL_OK);
    bl_plan_print(&p, m, &machine, keep_line, text);
    assert_non_null(strstr(text, "experts 2-4 gpu1\n"));

    p.range->n = n;
    assert_int_equal(bl_plan_check(&p, m, &machine), BL_EINVAL);
    *p.range = (struct bl_expert_range){last, 0, n, 2};
    assert_int_equal(bl_plan_check(&p, m, &machine), BL_EINVAL);
    assert_false(m->layer[0].moe);
    *p.range = (struct bl_expert_range){0, 0, 1, 1};
    assert_int_equal(bl_plan_check(&p, m, &machine), BL_EINVAL);
    *p.range = (struct bl_expert_range){last, 1, 1, 1};
    assert_int_equal(bl_plan_add_range(&p, last, 3, 1, 1), BL_OK);
    p.range[1].first = 1;
    assert_int_equal(bl_plan_check(&p, m, &machine), BL_EINVAL);
    bl_plan_finish(&p);
    bl_model_close(m);
    bl_gguf_close(gguf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_ranges_are_found_again),
        cmocka_unit_test(neighbours_of_one_device_are_one),
        cmocka_unit_test(senseless_ranges_are_refused),
        cmocka_unit_test(check_and_print_know_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
