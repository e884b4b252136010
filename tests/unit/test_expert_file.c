/* SPDX-License-Identifier: MIT */
/* Experts in files: statistics of their use, slots in plans. */
#include "engine_rig.h"

#include "alloc_fail.h"
#include "expert_file.h"
#include "plan_file.h"
#include "slots.h"

#include <unistd.h>

#define MIXTRAL MODELS "mixtral-f32.gguf"

static char path[] = "/tmp/ballast-experts-XXXXXX";

static void good(enum bl_status st)
{
    if (st)
        fail_msg("%s", bl_error());
}

static struct bl_engine_parts parts_of(const char *name, enum bl_expert_policy policy)
{
    struct bl_options opt = small();
    struct bl_engine_parts p = {0};
    char file[512];
    uint64_t seed = 6;

    snprintf(file, sizeof file, MODELS "%s.gguf", name);
    good(slotted_parts(&p, file, &opt, 3, policy, &seed));
    return p;
}

/* ---- statistics ---- */

static struct bl_expert_stats some(const struct bl_model *m)
{
    struct bl_expert_stats s;

    good(bl_expert_stats_init(&s, m->hp.n_layer, m->hp.n_expert));
    s.n_tok = 1234567890123;
    for (uint32_t l = 0; l < s.n_layers; l++)
        for (uint32_t e = 0; m->layer[l].moe && e < s.n_experts; e++) {
            s.uses[l * s.n_experts + e] = l + 10 * e;
            s.reuse[l * s.n_experts + e] = 7 * e;
            s.alone[l] += 7 * e;
        }
    return s;
}

static void written_is_read(void **state)
{
    (void)state;
    struct bl_engine_parts p = parts_of("deepseek4-f32", BL_EXPERTS_LRU);
    struct bl_expert_stats a = some(p.model), b;
    const size_t n = (size_t)a.n_layers * a.n_experts;
    char *text, *again;
    size_t bytes, bytes_again;

    good(bl_expert_file_text(&text, &bytes, &a, p.model));
    good(bl_expert_file_parse(&b, p.model, "s", text, bytes));
    assert_memory_equal(a.uses, b.uses, n * sizeof *a.uses);
    assert_memory_equal(a.reuse, b.reuse, n * sizeof *a.reuse);
    assert_memory_equal(a.alone, b.alone, a.n_layers * sizeof *a.alone);
    assert_int_equal(a.n_tok, b.n_tok);
    good(bl_expert_file_text(&again, &bytes_again, &b, p.model));
    assert_int_equal(bytes, bytes_again);
    assert_memory_equal(text, again, bytes);
    free(text);
    free(again);
    bl_expert_stats_finish(&a);
    bl_expert_stats_finish(&b);
    bl_engine_parts_finish(&p);
}

/* A copy with the first `from` in it replaced. */
static char *edited(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    char *out = malloc(strlen(text) + strlen(to) + 1);

    assert_non_null(at);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

static void refused(const struct bl_model *m, const char *text, const char *from, const char *to,
                    const char *words)
{
    char *bad = edited(text, from, to);
    struct bl_expert_stats s;

    if (bl_expert_file_parse(&s, m, "experts s", bad, strlen(bad)) != BL_EINVAL)
        fail_msg("'%s' for '%s' is taken", to, from);
    if (!strstr(bl_error(), words))
        fail_msg("'%s' lacks '%s'", bl_error(), words);
    free(bad);
}

static void wrong_files_are_refused(void **state)
{
    (void)state;
    struct bl_engine_parts p = parts_of("mixtral-f32", BL_EXPERTS_LRU),
                           other = parts_of("qwen3moe-iq3", BL_EXPERTS_LRU);
    struct bl_expert_stats a = some(p.model), b;
    char *text;
    size_t n;

    good(bl_expert_file_text(&text, &n, &a, p.model));
    refused(p.model, text, "\"ballast_experts\"", "\"ballast_plan\"", "no statistics");
    refused(p.model, text, "\"ballast_experts\": 1", "\"ballast_experts\": 2", "reads format 1");
    refused(p.model, text, "\"n_tok\": 1234567890123", "\"n_tok\": -1", "n_tok must be a whole");
    refused(p.model, text, "\"n_tok\": 1234567890123", "\"n_tok\": 1.5", "n_tok must be a whole");
    refused(p.model, text, "\"n_tok\": 1234567890123", "\"n_tok\": 1e300", "n_tok must be a whole");
    refused(p.model, text, "\"n_tok\": 1234567890123", "\"n_token\": 1", "n_token");
    refused(p.model, text, "\"layer\": 1", "\"layer\": 0", "earlier");
    refused(p.model, text, "\"layer\": 1", "\"layer\": 4000", "layers[1].layer must be");
    refused(p.model, text, "\"uses\": [", "\"uses\": [0, ", "uses");
    refused(p.model, text, "\"uses\": [0, ", "\"uses\": [", "uses has");
    refused(p.model, text, "\"uses\": [0, ", "\"uses\": [\"0\", ", "uses[0] must be");
    refused(p.model, text, "\"reuse\"", "\"reused\"", "reuse");
    refused(p.model, text, "{", "[", "JSON");
    if (bl_expert_file_parse(&b, other.model, "experts s", text, n) != BL_EINVAL)
        fail_msg("another model's are taken");
    assert_non_null(strstr(bl_error(), "is another one"));
    for (uint64_t k = 1;; k++) {
        alloc_fail_at(k);
        const enum bl_status st = bl_expert_file_parse(&b, p.model, "experts s", text, n);
        const bool failed = alloc_fail_stop();
        if (!failed) {
            good(st);
            bl_expert_stats_finish(&b);
            break;
        }
        assert_int_not_equal(st, BL_OK);
    }
    free(text);
    bl_expert_stats_finish(&a);
    bl_engine_parts_finish(&p);
    bl_engine_parts_finish(&other);
}

/* A run goes on from the file of the one before, and its steps are those of a run that counts
 * nothing. */
static void runs_add_up(void **state)
{
    (void)state;
    struct bl_options opt = small(), plain = small();
    struct bl_engine *one = opened("mixtral-f32", &plain), *e;
    struct bl_expert_use use;
    float *want = last_logits(one);

    assert_false(bl_engine_expert_use(one, &use));
    assert_int_equal(bl_engine_save_experts(one, path), BL_EINVAL);
    bl_close(one);
    unlink(path);
    opt.expert_file = path;
    for (uint32_t run = 1; run <= 2; run++) {
        e = opened("mixtral-f32", &opt);
        float *got = last_logits(e);
        assert_memory_equal(want, got, bl_engine_n_vocab(e) * sizeof *got);
        free(got);
        assert_true(bl_engine_expert_use(e, &use));
        assert_int_equal(use.n_tok, run * N_PROMPT);
        assert_int_equal(use.uses, 0); /* there are no slots */
        good(bl_engine_save_experts(e, path));
        bl_close(e);
    }
    free(want);
    /* another model's file is refused before anything is loaded; so is a model without experts */
    assert_int_equal(bl_open(&e, MODELS "qwen3moe-iq3.gguf", &opt), BL_EINVAL);
    assert_int_equal(bl_open(&e, MODELS "llama-f32.gguf", &opt), BL_EINVAL);
    assert_non_null(strstr(bl_error(), "no experts"));
    assert_int_equal(bl_open(&e, MIXTRAL, &opt), BL_OK);
    assert_int_equal(bl_engine_save_experts(e, "/nowhere/at/all"), BL_EIO);
    bl_close(e);
}

/* ---- slots in plans ---- */

static void same_slots(const struct bl_plan *a, const struct bl_plan *b)
{
    assert_int_equal(a->n_slot_sets, b->n_slot_sets);
    assert_int_equal(a->expert_policy, b->expert_policy);
    assert_int_equal(a->move_bytes, b->move_bytes);
    for (uint32_t i = 0; i < a->n_slot_sets; i++) {
        assert_int_equal(a->slots[i].layer, b->slots[i].layer);
        assert_int_equal(a->slots[i].device, b->slots[i].device);
        assert_int_equal(a->slots[i].n, b->slots[i].n);
    }
}

static char *plan_text(const struct bl_engine_parts *p, struct bl_plan_file_settings s)
{
    struct bl_json_out o = {0};
    struct bl_plan_file f;

    s.exact = true;
    s.depth_tokens = 16;
    good(bl_plan_file_make(&f, &p->plan, p->model, &p->machine, &s));
    bl_json_open(&o, NULL, '{', false);
    bl_plan_file_put(&o, &f);
    bl_json_close(&o, '}');
    good(bl_json_out_end(&o));
    bl_plan_file_finish(&f);
    return o.text;
}

static void plans_keep_slots(void **state)
{
    (void)state;
    static const char *const models[] = {"mixtral-f32", "deepseek4-f32", "qwen3next-f32"};

    for (uint32_t k = 0; k < 9; k++) {
        struct bl_options opt = small();
        struct bl_engine_parts p =
            parts_of(models[k % 3], (enum bl_expert_policy)(k / 3 % BL_N_EXPERT_POLICIES));
        struct bl_plan_file f;
        struct bl_plan q;
        p.plan.move_bytes = k * 1000;
        char *text = plan_text(&p, (struct bl_plan_file_settings){.depth_tokens = 1});
        good(bl_plan_file_parse(&f, "plan p", text, strlen(text)));
        good(bl_plan_file_options(&f, &opt));
        good(bl_plan_file_apply(&q, &f, p.model, &p.machine, &opt, 0));
        same_slots(&p.plan, &q);
        bl_plan_finish(&q);
        opt.expert_policy = "fixed";
        good(bl_plan_file_apply(&q, &f, p.model, &p.machine, &opt, 0));
        assert_int_equal(q.expert_policy, BL_EXPERTS_FIXED);
        bl_plan_finish(&q);
        opt.expert_policy = "lfu";
        assert_int_equal(bl_plan_file_apply(&q, &f, p.model, &p.machine, &opt, 0), BL_EINVAL);
        bl_plan_file_finish(&f);
        free(text);
        bl_engine_parts_finish(&p);
    }
}

static void wrong_row(const struct bl_engine_parts *p, const char *text, const char *from,
                      const char *to, const char *words)
{
    struct bl_options opt = small();
    char *bad = edited(text, from, to);
    struct bl_plan_file f = {0};
    struct bl_plan q;
    enum bl_status st = bl_plan_file_parse(&f, "plan p", bad, strlen(bad));

    if (!st)
        st = bl_plan_file_options(&f, &opt);
    if (!st)
        st = bl_plan_file_apply(&q, &f, p->model, &p->machine, &opt, 0);
    if (st != BL_EINVAL || !strstr(bl_error(), words))
        fail_msg("%d: '%s' lacks '%s'", st, bl_error(), words);
    bl_plan_file_finish(&f);
    free(bad);
}

static void wrong_slots_of_plans_are_refused(void **state)
{
    (void)state;
    struct bl_engine_parts p = parts_of("mixtral-f32", BL_EXPERTS_LRU);

    p.plan.n_ranges = p.plan.n_slot_sets = 0;
    for (uint32_t l = 0; l < p.plan.n_layers; l++)
        p.plan.slot[l * BL_N_PARTS + BL_PART_EXPERTS] = 0;
    for (uint32_t l = 0; l < p.plan.n_layers; l++)
        good(bl_plan_add_slots(&p.plan, l, 1, 2));
    char *text = plan_text(&p, (struct bl_plan_file_settings){.depth_tokens = 1});
    wrong_row(&p, text, "\"slots\": 2", "\"slots\": 2, \"part\": \"experts\"", "beside 'slots'");
    wrong_row(&p, text, "\"slots\": 2", "\"slots\": 2, \"experts\": 3", "beside 'slots'");
    wrong_row(&p, text, "\"slots\": 2", "\"slots\": 999", "must be 1 to");
    wrong_row(&p, text, "\"slots\": 2, \"device\": \"cpu1\"", "\"slots\": 2, \"device\": \"cpu0\"",
              "on cpu0; they hold copies");
    wrong_row(&p, text, "\"slots\": 2, \"device\": \"cpu1\"}",
              "\"slots\": 2, \"device\": \"cpu1\"}, {\"layers\": 0, \"slots\": 1, \"device\": "
              "\"cpu1\"}",
              "which has 2 by placement[4]");
    wrong_row(&p, text, "\"slots\": 2, \"device\": \"cpu1\"}",
              "\"slots\": 2, \"device\": \"cpu1\"}, {\"layers\": 77, \"slots\": 1, \"device\": "
              "\"cpu2\"}",
              "the last layer is");
    wrong_row(&p, text, "\"lru\"", "\"lfu\"", "off, fixed, lru");
    free(text);
    bl_engine_parts_finish(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_is_read),
        cmocka_unit_test(wrong_files_are_refused),
        cmocka_unit_test(runs_add_up),
        cmocka_unit_test(plans_keep_slots),
        cmocka_unit_test(wrong_slots_of_plans_are_refused),
    };
    const int fd = mkstemp(path);

    if (fd < 0)
        return 1;
    close(fd);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
