/* SPDX-License-Identifier: MIT */
/* Plans over devices that are only described: lowered, verified and sized as others are. */
#include "support.h"

#include "machine_file.h"
#include "planner.h"
#include "program.h"

static const char *const models[] = {"llama-f32",     "gemma3-f32",    "gpt-oss-mxfp4",
                                     "qwen3next-f32", "deepseek2-f32", "deepseek4-f32"};
static const char machine_text[] =
    "{\"ballast_machine\": 1, \"name\": \"two cards\", \"devices\": ["
    "{\"id\": \"cpu0\", \"kind\": \"cpu\", \"cores\": 8, \"mem_bytes\": \"64GiB\"},"
    "{\"id\": \"gpu0\", \"kind\": \"gpu\", \"backend\": \"cuda\", \"mem_bytes\": \"24GiB\"}],"
    "\"links\": [{\"a\": \"cpu0\", \"b\": \"gpu0\", \"ab_rated_bps\": 16e9, \"ba_rated_bps\": "
    "16e9}]}";

struct case_ {
    struct bl_gguf *gguf;
    struct bl_model *model;
    struct bl_machine machine;
    struct bl_plan plan;
};

static void open_case(struct case_ *c, const char *name)
{
    const struct bl_model_options mo = {.ctx_tokens = 128, .type_k = BL_F16, .type_v = BL_F16};
    const struct bl_options opt = {.ubatch_tokens = 64, .batch_tokens = 64, .threads = 2};
    char path[512];
    memset(c, 0, sizeof *c);
    snprintf(path, sizeof path, BL_TEST_DATA "/reference/models/%s.gguf", name);
    assert_int_equal(bl_gguf_open(&c->gguf, path), BL_OK);
    assert_int_equal(bl_model_open(&c->model, c->gguf, &mo), BL_OK);
    assert_int_equal(
        bl_machine_parse(&c->machine, "two cards", machine_text, sizeof machine_text - 1), BL_OK);
    assert_int_equal(bl_plan_init(&c->plan, c->model), BL_OK);
    assert_int_equal(bl_plan_size_steps(&c->plan, c->model, &opt), BL_OK);
}

static void close_case(struct case_ *c)
{
    bl_plan_finish(&c->plan);
    bl_machine_finish(&c->machine);
    bl_model_close(c->model);
    bl_gguf_close(c->gguf);
}

/* Everything but experts, which stay in RAM, and the table of embeddings. */
static void move_to_card(struct bl_plan *p)
{
    for (uint32_t l = 0; l < p->n_layers; l++)
        for (uint32_t part = 0; part < BL_N_PARTS; part++)
            p->slot[l * BL_N_PARTS + part] = part != BL_PART_EXPERTS;
    p->slot[p->n_layers * BL_N_PARTS + BL_PART_HEAD] = 1;
}

static void sized(void **state)
{
    (void)state;
    for (size_t i = 0; i < BL_COUNT(models); i++) {
        struct case_ c;
        struct bl_block_bytes blocks[2];
        struct bl_program prog = {0};
        open_case(&c, models[i]);
        move_to_card(&c.plan);
        assert_int_equal(bl_plan_check(&c.plan, c.model, &c.machine), BL_OK);
        if (bl_plan_memory(&c.plan, c.model, &c.machine, blocks))
            fail_msg("%s: %s", models[i], bl_error());
        assert_true(blocks[1].weights > 0 && blocks[1].state > 0 && blocks[1].compute > 0);
        assert_int_equal(blocks[1].mapped, 0); /* a card cannot use the file where it is mapped */
        assert_int_equal(blocks[0].state, 0);
        assert_true(bl_ledger_planned(&c.plan.ledger, 1) >= blocks[1].weights + blocks[1].state);
        const struct bl_shape s = bl_plan_bucket(&c.plan, 16, 1);
        assert_int_equal(bl_program_lower(&prog, c.model, &c.plan, &c.machine, &s), BL_OK);
        assert_int_equal(bl_program_verify(&prog), BL_OK);
        assert_true(prog.n_copies > 0);
        bl_program_finish(&prog);
        close_case(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sized)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
