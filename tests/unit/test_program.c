/* SPDX-License-Identifier: MIT */
/* Lowering and verifying: one device, two devices, and programs that were tampered with. */
#include "support.h"

#include "backends.h"
#include "divide.h"
#include "planner.h"
#include "program.h"

static struct bl_gguf *gguf;
static struct bl_model *model;
static struct bl_machine machine;

static int open_model(void **state)
{
    (void)state;
    struct bl_model_options mo = {.ctx_tokens = 256, .type_k = BL_F16, .type_v = BL_F16};
    struct bl_machine_device *d = calloc(4, sizeof *d);

    assert_int_equal(bl_gguf_open(&gguf, BL_TEST_DATA "/reference/models/llama-f32.gguf"), BL_OK);
    assert_int_equal(bl_model_open(&model, gguf, &mo), BL_OK);
    for (uint32_t i = 0; i < 4; i++) {
        snprintf(d[i].id, sizeof d[i].id, "cpu%u", i);
        d[i].backend = bl_backend_find("cpu");
        d[i].config = (struct bl_device_config){.threads = 2, .cpu_mask = UINT32_MAX};
        d[i].usable_bytes = 1 << 30;
        assert_int_equal(d[i].backend->caps(0, &d[i].config, &d[i].caps), BL_OK);
    }
    machine = (struct bl_machine){.device = d, .n_devices = 2};
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    bl_machine_finish(&machine);
    bl_model_close(model);
    bl_gguf_close(gguf);
    return 0;
}

/* Layers in `second` (a bit each) live on device 1; the head too if asked. */
static struct bl_plan plan_for(uint32_t second, bool head)
{
    struct bl_plan p;

    assert_int_equal(bl_plan_init(&p, model), BL_OK);
    p.ctx_tokens = 256;
    p.batch_tokens = p.ubatch_tokens = 64;
    p.out_tokens = 64;
    p.max_sessions = 2;
    for (uint32_t l = 0; l < p.n_layers; l++)
        for (uint32_t part = 0; part < BL_N_PARTS; part++)
            p.slot[l * BL_N_PARTS + part] = second >> l & 1;
    p.slot[p.n_layers * BL_N_PARTS + BL_PART_HEAD] = head;
    assert_int_equal(bl_plan_check(&p, model, &machine), BL_OK);
    return p;
}

static struct bl_program lowered(const struct bl_plan *p, uint32_t n_tok, uint32_t n_out)
{
    struct bl_program prog;
    struct bl_shape s = bl_plan_bucket(p, n_tok, n_out);

    assert_int_equal(bl_program_lower(&prog, model, p, &machine, &s), BL_OK);
    return prog;
}

static void one_device_is_one_segment_without_copies(void **state)
{
    (void)state;
    struct bl_plan p = plan_for(0, false);
    struct bl_program prog = lowered(&p, 7, 1);

    assert_int_equal(prog.shape.n_tok, 8);
    assert_int_equal(prog.n_copies, 0);
    assert_int_equal(prog.n_signals, 0);
    assert_int_equal(prog.n_steps, 1);
    assert_int_equal(prog.range[0].n, prog.graph.n_nodes);
    assert_int_equal(prog.arena_bytes[1], 0);
    assert_true(prog.used[0] && !prog.used[1]);
    assert_int_equal(bl_program_verify(&prog), BL_OK);
    bl_program_finish(&prog);
    bl_plan_finish(&p);
}

static void arena_reuses_what_is_dead(void **state)
{
    (void)state;
    struct bl_plan p = plan_for(0, false);
    struct bl_program prog = lowered(&p, 64, 64);
    uint64_t sum = 0;

    for (bl_val v = 1; v < prog.graph.n_vals; v++)
        if (prog.home[v * 2] != BL_NO_HOME)
            sum += bl_value_bytes(&prog.graph.vals[v]);
    assert_true(prog.arena_bytes[0] < sum / 2);
    bl_program_finish(&prog);
    bl_plan_finish(&p);
}

static void every_split_verifies(void **state)
{
    (void)state;
    for (uint32_t second = 0; second < 1u << model->hp.n_layer; second++)
        for (int head = 0; head < 2; head++)
            for (uint32_t n_out = 0; n_out < 3; n_out++) {
                struct bl_plan p = plan_for(second, head);
                struct bl_program prog = lowered(&p, 16, n_out);
                assert_int_equal(bl_program_verify(&prog), BL_OK);
                if (second)
                    assert_true(prog.n_copies > 0);
                bl_program_finish(&prog);
                bl_plan_finish(&p);
            }
}

static void a_value_is_copied_once_per_device(void **state)
{
    (void)state;
    struct bl_plan p =
        plan_for(1, false); /* layer 0 elsewhere: hidden state there and back, angles there */
    struct bl_program prog = lowered(&p, 16, 1);

    for (uint32_t a = 0; a < prog.n_copies; a++)
        for (uint32_t b = a + 1; b < prog.n_copies; b++)
            assert_false(prog.copy[a].val == prog.copy[b].val &&
                         prog.copy[a].to == prog.copy[b].to);
    bl_program_finish(&prog);
    bl_plan_finish(&p);
}

static void verify_finds_an_overlap(void **state)
{
    (void)state;
    struct bl_plan p = plan_for(0, false);
    struct bl_program prog = lowered(&p, 16, 1);

    for (uint32_t i = 0; i < prog.graph.n_nodes; i++) {
        const struct bl_node *n = &prog.graph.nodes[i];
        if (n->op != BL_OP_MATMUL)
            continue;
        prog.home[n->dst[0] * 2] = prog.home[bl_node_src(&prog.graph, n, 1) * 2];
        break;
    }
    assert_int_equal(bl_program_verify(&prog), BL_EINVAL);
    assert_non_null(strstr(bl_error(), "step 0"));
    bl_program_finish(&prog);
    bl_plan_finish(&p);
}

static void verify_finds_a_missing_wait_and_copy(void **state)
{
    (void)state;
    struct bl_plan p = plan_for(1, false);

    for (enum bl_step_kind kind = BL_STEP_COPY; kind <= BL_STEP_WAIT; kind++) {
        struct bl_program prog = lowered(&p, 16, 1);
        uint32_t i = 0;
        while (prog.step[i].kind != kind)
            i++;
        memmove(&prog.step[i], &prog.step[i + 1], (prog.n_steps - i - 1) * sizeof *prog.step);
        prog.n_steps--;
        assert_int_equal(bl_program_verify(&prog), BL_EINVAL);
        bl_program_finish(&prog);
    }
    bl_plan_finish(&p);
}

/* Values that go between two devices pass through host memory, but where a link joins them;
 * whatever the plan, nothing is read before it is there or written over while it is in use. */
static void any_plan_over_four_devices_holds(void **state)
{
    (void)state;
    uint32_t seed = 1, staged = 0, direct = 0;
    struct bl_plan p = plan_for(0, false);
    struct bl_link links[] = {{.a = 2, .b = 1}, {.a = 2, .b = 3}, {.a = 1, .b = 3}, {.b = 1}};

    machine.n_devices = 4;
    machine.link = links;
    for (uint32_t k = 0; k < 400; k++) {
        machine.n_links = k % 5;
        for (uint32_t i = 0; i < (p.n_layers + 1) * BL_N_PARTS; i++) {
            seed = seed * 1664525 + 1013904223;
            p.slot[i] = (uint16_t)(seed >> 24 & 3);
        }
        struct bl_program prog = lowered(&p, 1 + (k & 31), 1);
        if (bl_program_verify(&prog))
            fail_msg("plan %u: %s", k, bl_error());
        for (uint32_t c = 0; c < prog.n_copies; c++) {
            const uint16_t from = prog.copy[c].from, to = prog.copy[c].to;
            assert_true((from == 0) != (to == 0) || bl_machine_direct(&machine, from, to));
            assert_false(from == to);
            direct += from && to;
            staged += c && prog.copy[c].val == prog.copy[c - 1].val && prog.copy[c].from == 0;
        }
        bl_program_finish(&prog);
    }
    assert_true(staged > 0 && direct > 0);
    machine.n_devices = 2;
    machine.link = NULL;
    machine.n_links = 0;
    bl_plan_finish(&p);
}

/* Of its own experts several devices read one value at a time, which its owner keeps until it knows
 * that all of them are done. */
static void experts_anywhere(const char *path)
{
    const struct bl_model_options mo = {.ctx_tokens = 256, .type_k = BL_F16, .type_v = BL_F16};
    uint64_t seed = 5;
    struct bl_gguf *file;
    struct bl_model *m;
    struct bl_plan p;
    struct bl_program prog;

    assert_int_equal(bl_gguf_open(&file, path), BL_OK);
    assert_int_equal(bl_model_open(&m, file, &mo), BL_OK);
    for (uint32_t k = 0; k < 200; k++) {
        const uint64_t from = seed;
        machine.n_links = k % 4;
        assert_int_equal(bl_plan_init(&p, m), BL_OK);
        p.ctx_tokens = 256;
        p.batch_tokens = p.ubatch_tokens = p.out_tokens = 64;
        p.max_sessions = 2;
        assert_int_equal(scatter_plan(&p, m, machine.n_devices, &seed), BL_OK);
        assert_int_equal(bl_plan_check(&p, m, &machine), BL_OK);
        const struct bl_shape shape = bl_plan_bucket(&p, 1 + k % 63, 1);
        assert_int_equal(bl_program_lower(&prog, m, &p, &machine, &shape), BL_OK);
        if (bl_program_verify(&prog))
            fail_msg("%s, seed %llu: %s", path, (unsigned long long)from, bl_error());
        bl_program_finish(&prog);
        bl_plan_finish(&p);
    }
    bl_model_close(m);
    bl_gguf_close(file);
}

static void any_division_of_experts_holds(void **state)
{
    static const char *const of[] = {"mixtral-f32", "gpt-oss-mxfp4", "deepseek4-f32"};
    struct bl_link links[] = {{.a = 2, .b = 1}, {.a = 2, .b = 3}, {.a = 1, .b = 3}};
    char path[512];
    (void)state;

    machine.n_devices = 4;
    machine.link = links;
    for (uint32_t i = 0; i < BL_COUNT(of); i++) {
        snprintf(path, sizeof path, BL_TEST_DATA "/reference/models/%s.gguf", of[i]);
        experts_anywhere(path);
    }
    machine.n_devices = 2;
    machine.link = NULL;
    machine.n_links = 0;
}

/* A plan places parts: what a node reads must be placed with it. */
static void nodes_run_where_their_weights_and_state_lie(void **state)
{
    (void)state;
    uint32_t n_states = 0;

    for (uint32_t i = 0; bl_synth_shape(i); i++) {
        const struct bl_synth_options so = {.shape = bl_synth_shape(i), .no_data = true};
        const struct bl_model_options mo = {.ctx_tokens = 512, .type_k = BL_F16, .type_v = BL_F16};
        const struct bl_shape one = {
            .n_tok = 4, .n_out = 1, .max_sequences = 1, .ubatch_tokens = 4, .ctx_tokens = 512};
        struct bl_synth *synth;
        struct bl_model *m;
        struct bl_graph g;

        assert_int_equal(bl_synth_open(&synth, &so), BL_OK);
        assert_int_equal(bl_model_open(&m, bl_synth_gguf(synth), &mo), BL_OK);
        bl_graph_init(&g);
        assert_int_equal(bl_model_build(m, &one, &g), BL_OK);
        for (uint32_t k = 0; k < g.n_nodes; k++)
            for (unsigned s = 0; s < g.nodes[k].n_src; s++) {
                const struct bl_value *v = &g.vals[bl_node_src(&g, &g.nodes[k], s)];
                if (v->origin == BL_WEIGHT) {
                    assert_int_equal(m->weight[v->index].part, g.nodes[k].part);
                    assert_int_equal(m->weight[v->index].layer, g.nodes[k].layer);
                } else if (v->origin == BL_STATE_ROWS && bl_node_src(&g, &g.nodes[k], s)) {
                    assert_int_equal(g.nodes[k].part, BL_PART_STATE);
                    n_states++;
                }
            }
        bl_graph_finish(&g);
        bl_model_close(m);
        bl_synth_close(synth);
    }
    assert_true(n_states > 100);
}

/* Host memory that the other device writes into is not taken before the host is done with it. */
static void verify_finds_a_write_too_early(void **state)
{
    (void)state;
    struct bl_plan p = plan_for(1, false);
    struct bl_program prog = lowered(&p, 16, 1);
    uint32_t c = 0, moved = 0;

    while (prog.copy[c].to != 0)
        c++;
    uint64_t *home = &prog.home[(size_t)prog.copy[c].val * 2], right = *home;
    for (uint32_t v = 1; v < prog.graph.n_vals; v++)
        if (prog.home[(size_t)v * 2] != BL_NO_HOME && prog.home[(size_t)v * 2] != right) {
            *home = prog.home[(size_t)v * 2];
            moved += bl_program_verify(&prog) == BL_EINVAL;
        }
    assert_true(moved > 0);
    *home = right;
    assert_int_equal(bl_program_verify(&prog), BL_OK);
    bl_program_finish(&prog);
    bl_plan_finish(&p);
}

static void buckets_cover_every_step(void **state)
{
    (void)state;
    struct bl_plan p = plan_for(0, false);

    p.ubatch_tokens = 48; /* not a power of two */
    for (uint32_t n = 1; n <= 48; n++)
        for (uint32_t out = 0; out <= n; out++) {
            struct bl_shape s = bl_plan_bucket(&p, n, out);
            assert_true(s.n_tok >= n && s.n_tok <= 48 && s.n_out >= out && s.n_out <= s.n_tok);
            assert_true(s.n_tok < 2 * n);
        }
    bl_plan_finish(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_device_is_one_segment_without_copies),
        cmocka_unit_test(arena_reuses_what_is_dead),
        cmocka_unit_test(every_split_verifies),
        cmocka_unit_test(a_value_is_copied_once_per_device),
        cmocka_unit_test(any_plan_over_four_devices_holds),
        cmocka_unit_test(any_division_of_experts_holds),
        cmocka_unit_test(nodes_run_where_their_weights_and_state_lie),
        cmocka_unit_test(verify_finds_a_write_too_early),
        cmocka_unit_test(verify_finds_an_overlap),
        cmocka_unit_test(verify_finds_a_missing_wait_and_copy),
        cmocka_unit_test(buckets_cover_every_step),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
