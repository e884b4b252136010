/* SPDX-License-Identifier: MIT */
/* What other programs would reach: near what was published of them, by the placement that their
 * flags can say, in the plan's JSON if asked for. */
#include "support.h"

#include "placement.h"

#include <math.h>

struct rig {
    struct bl_synth *synth;
    struct bl_placement *p;
};
struct ask {
    const char *shape, *machine;
    uint64_t ctx, depth;
    uint32_t ubatch;
    const struct bl_placement_rules *rules;
    bool peers;
};

static void open_rig(struct rig *r, const struct ask *a)
{
    const struct bl_synth_options so = {.shape = a->shape, .no_data = true};
    const struct bl_placement_options po = {.prefill_weight = 0.3,
                                            .depth_tokens = a->depth,
                                            .fixed_ubatch = a->ubatch > 0,
                                            .peers = a->peers};
    const struct bl_options opt = {.machine_file = a->machine,
                                   .rules = a->rules,
                                   .ctx_tokens = a->ctx,
                                   .ubatch_tokens = a->ubatch};

    *r = (struct rig){0};
    if (bl_synth_open(&r->synth, &so) ||
        bl_placement_make(&r->p, bl_synth_gguf(r->synth), &opt, &po))
        fail_msg("%s on %s: %s", a->shape, a->machine, bl_error());
}

static void close_rig(struct rig *r)
{
    bl_placement_close(r->p);
    bl_synth_close(r->synth);
}

static struct bl_peer_speed speed_of(const struct rig *r, enum bl_peer peer)
{
    struct bl_peer_speed s;
    if (bl_placement_peer(r->p, peer, &s))
        fail_msg("%s", bl_error());
    return s;
}

/* ---- against published measurements ---- */

static const struct bl_placement_rules moe25 = {.n_gpu_layers = -1, .n_cpu_moe = 25},
                                       moe26 = {.n_gpu_layers = -1, .n_cpu_moe = 26};
static const char *const by_hand[] = {
    "blk.(3[4-6]).ffn_.*_exps=CUDA1,blk.(3[7-9]).ffn_.*_exps=CUDA2,blk.(4[0-2]).ffn_.*_exps=CUDA3"};
static const struct bl_placement_rules hand_made = {.n_gpu_layers = -1,
                                                    .n_cpu_moe = 34,
                                                    .tensor_split = "100,1,1,1",
                                                    .override = by_hand,
                                                    .n_overrides = 1};

/* Rows of these machines, with their shapes: tokens/s; 0: not stated. */
static const struct {
    struct ask ask;
    enum bl_peer peer;
    double decode, prefill;
} published[] = {
    {{"gpt-oss-120b", "rtx-3090-ddr5-2ch", 8192, 2048, 512, &moe26, false},
     BL_PEER_LLAMACPP,
     32.3,
     380},
    {{"gpt-oss-120b", "rtx-3090-ddr5-2ch", 8192, 2048, 2048, &moe25, false},
     BL_PEER_LLAMACPP,
     33,
     1113},
    {{"deepseek-v4-flash", "4x-rtx-3060-ddr4-4ch", 368640, 10240, 1024, &hand_made, false},
     BL_PEER_LLAMACPP,
     10.25,
     63.4},
    {{"qwen3-next-80b", "cobalt-100-96", 32768, 2048, 512, NULL, false},
     BL_PEER_LLAMACPP,
     29.5,
     133},
    {{"qwen3-next-80b", "cobalt-100-96", 32768, 2048, 512, NULL, false}, BL_PEER_IK, 69.7, 665},
    {{"qwen3-30b-a3b", "cobalt-100-32", 32768, 2048, 512, NULL, false}, BL_PEER_LLAMACPP, 48, 89},
    {{"gpt-oss-120b", "cobalt-100-32", 32768, 2048, 512, NULL, false}, BL_PEER_LLAMACPP, 43, 84},
    {{"qwen3.5-35b-a3b", "cobalt-100-32", 32768, 2048, 512, NULL, false}, BL_PEER_IK, 66, 445},
    {{"deepseek-v4-flash", "cobalt-100-32", 32768, 2048, 512, NULL, false}, BL_PEER_IK, 17.4, 84},
};

static double off(double predicted, double measured)
{
    return measured > 0 ? fmax(predicted / measured, measured / predicted) : 1;
}

static void near_what_was_published(void **state)
{
    (void)state;
    unsigned n = 0, near = 0;

    for (size_t i = 0; i < BL_COUNT(published); i++) {
        struct rig r;
        open_rig(&r, &published[i].ask);
        const struct bl_peer_speed s = speed_of(&r, published[i].peer);
        const double d = off(s.decode.tok_per_s, published[i].decode),
                     p = off(s.prefill.tok_per_s, published[i].prefill);
        printf("  %-18s %-20s %-12s decode %6.1f of %6.1f, prefill %7.1f of %7.1f\n",
               published[i].ask.shape, published[i].ask.machine, bl_peer_name(published[i].peer),
               s.decode.tok_per_s, published[i].decode, s.prefill.tok_per_s, published[i].prefill);
        assert_true(s.decode.sd > 0.1 && s.decode.sd < 0.6 && s.prefill.sd > 0.1 &&
                    s.prefill.sd < 0.6);
        assert_true(d < 2 && p < 2);
        n += 2;
        near += (d < 1.5) + (p < 1.5);
        close_rig(&r);
    }
    assert_true(near >= n * 8 / 10);
}

/* ---- what the run is made of ---- */

static struct bl_peer_run run_of(const struct rig *r, enum bl_peer peer)
{
    struct bl_plan plan;
    struct bl_peer_run run;

    assert_int_equal(bl_peer_plan(&plan, r->p, peer), BL_OK);
    assert_int_equal(bl_peer_run_fill(&run, r->p, peer, &plan), BL_OK);
    bl_plan_finish(&plan);
    return run;
}

static double part_bytes(const struct rig *r, const char *part)
{
    struct bl_part_bytes *parts;
    uint32_t n;
    double sum = 0;

    assert_int_equal(bl_placement_parts(r->p, &parts, &n), BL_OK);
    for (uint32_t i = 0; i < n; i++)
        sum += strcmp(parts[i].part, part) ? 0 : (double)parts[i].bytes;
    free(parts);
    return sum;
}

static void every_byte_is_somewhere(void **state)
{
    (void)state;
    const struct ask a = {"gpt-oss-120b", "rtx-3090-ddr5-2ch", 8192, 64, 512, &moe25, false};
    struct rig r;

    open_rig(&r, &a);
    const struct bl_peer_run f = run_of(&r, BL_PEER_LLAMACPP);
    const struct bl_cost_load *held = f.run.held;
    const double experts = part_bytes(&r, "experts");
    printf("  %.0f and %.0f of %.0f bytes of experts\n", held[BL_COST_ON_GPU].bytes,
           held[BL_COST_IN_RAM].bytes, experts);
    /* but for biases */
    assert_true(fabs(held[0].bytes + held[1].bytes - experts) < 0.005 * experts);
    assert_true(fabs(held[BL_COST_IN_RAM].bytes / (held[0].bytes + held[1].bytes) - 25 / 36.0) <
                1e-3);
    assert_true(f.run.n_gpus == 1 && f.run.backend == BL_COST_CUDA && !f.run.repacked);
    /* What was kept on the card as a whole: attention, routers, norms, head; of the embedding a
     * row. */
    const double dense = part_bytes(&r, "attn") + part_bytes(&r, "ffn") + part_bytes(&r, "head");
    assert_true(fabs(f.run.dense[BL_COST_ON_GPU].bytes - dense) < 0.02 * dense);
    close_rig(&r);
}

static void cards_share_what_is_read(void **state)
{
    (void)state;
    const struct ask a = {"glm-4.5-air", "rtx-pro-5000-72-48", 8192, 64, 512, NULL, false};
    struct rig r;
    double sum = 0;

    open_rig(&r, &a);
    const struct bl_peer_run f = run_of(&r, BL_PEER_IK);
    for (uint32_t i = 0; i < f.run.n_gpus; i++) {
        assert_true(f.gpu[i].share > 0 && f.gpu[i].bps > 0 && f.gpu[i].link_bps > 0);
        sum += f.gpu[i].share;
    }
    assert_true(f.run.n_gpus && fabs(sum - 1) < 1e-9);
    close_rig(&r);
}

/* The graph counts attention over latent rows; peers expand them when they read a prompt. */
static void latent_rows_are_expanded_for_prompts(void **state)
{
    (void)state;
    const struct ask a = {"deepseek-v3", "turin-80", 4096, 1024, 512, NULL, false};
    struct rig r;

    open_rig(&r, &a);
    const struct bl_peer_run f = run_of(&r, BL_PEER_LLAMACPP);
    const double ctx = 1024 + 513 / 2.0, want = 61 * 128.0 * (192 + 128) * ctx;
    printf("  %.4g of %.4g multiply-adds\n", f.run.attend_fixed_macs, want);
    assert_true(fabs(f.run.attend_fixed_macs - want) < 0.01 * want);
    assert_true(f.run.layers[BL_COST_MLA] > 60 && f.run.n_gpus == 0);
    close_rig(&r);
}

static void kernels_of_their_own(void **state)
{
    (void)state;
    const struct ask cpu = {"qwen3-30b-a3b", "cobalt-100-32", 4096, 64, 512, NULL, false},
                     cards = {"qwen3-30b-a3b", "4x-r9700-threadripper", 4096, 64, 512, NULL, false};
    struct rig r;
    struct bl_peer_speed s;

    open_rig(&r, &cpu);
    assert_true(speed_of(&r, BL_PEER_IK).prefill.tok_per_s >
                2 * speed_of(&r, BL_PEER_LLAMACPP).prefill.tok_per_s);
    assert_true(run_of(&r, BL_PEER_IK).run.repacked && !run_of(&r, BL_PEER_LLAMACPP).run.repacked);
    assert_int_equal(bl_placement_peer(r.p, BL_PEER_DS4, &s), BL_EUNSUPPORTED);
    close_rig(&r);

    open_rig(&r, &cards);
    assert_true(speed_of(&r, BL_PEER_LLAMACPP).decode.tok_per_s > 20);
    assert_int_equal(bl_placement_peer(r.p, BL_PEER_IK, &s), BL_EUNSUPPORTED);
    assert_string_equal(bl_error(), "ik_llama.cpp supports the CPU and CUDA, not these cards");
    close_rig(&r);
}

/* Slower kernels on the CPU: sending gains earlier, and the flags say from where on. */
static void each_sends_experts_where_it_gains(void **state)
{
    (void)state;
    const struct ask a = {"deepseek-v4-flash", "4x-rtx-3060-ddr4-4ch", 8192, 64, 512, NULL, false};
    struct bl_peer_flags f = {0};
    char want[64];
    struct rig r;

    open_rig(&r, &a);
    const uint32_t from = speed_of(&r, BL_PEER_LLAMACPP).stream_from_tok,
                   ik = speed_of(&r, BL_PEER_IK).stream_from_tok;
    printf("  llama.cpp from %u, ik_llama.cpp from %u\n", from, ik);
    assert_true(from > 1 && (!ik || from < ik));
    assert_int_equal(bl_placement_flags(r.p, BL_PEER_LLAMACPP, &f), BL_OK);
    snprintf(want, sizeof want, "GGML_OP_OFFLOAD_MIN_BATCH=%u", from);
    assert_string_equal(f.environment, want);
    bl_peer_flags_finish(&f);
    close_rig(&r);
}

static void nodes_are_said_beside_the_flags(void **state)
{
    (void)state;
    const struct ask a = {"qwen3-30b-a3b", "cobalt-100-96", 4096, 64, 512, NULL, false};
    struct bl_peer_flags f = {0};
    struct rig r;
    bool said = false;

    open_rig(&r, &a);
    assert_int_equal(bl_placement_flags(r.p, BL_PEER_LLAMACPP, &f), BL_OK);
    for (uint32_t i = 0; i < f.n_notes; i++)
        said = said || strstr(f.note[i], "numactl -N 0 -m 0");
    assert_true(said);
    bl_peer_flags_finish(&f);
    close_rig(&r);
}

/* ---- in JSON ---- */

static char *json_of(const struct rig *r)
{
    char *text;
    size_t n;
    if (bl_placement_json(r->p, &text, &n))
        fail_msg("%s", bl_error());
    return text;
}

static void in_json_if_asked_for(void **state)
{
    (void)state;
    struct ask a = {"gpt-oss-120b", "rtx-3090-ddr5-2ch", 8192, 64, 0, NULL, false};
    struct bl_plan_file file;
    struct rig r;

    open_rig(&r, &a);
    char *text = json_of(&r);
    assert_null(strstr(text, "peers"));
    free(text);
    close_rig(&r);
    a.peers = true;
    open_rig(&r, &a);
    text = json_of(&r);
    assert_non_null(strstr(text, "\"name\": \"llama.cpp\""));
    assert_non_null(strstr(text, "\"name\": \"ik_llama.cpp\""));
    assert_int_equal(bl_plan_file_parse(&file, "plan", text, strlen(text)), BL_OK);
    bl_plan_file_finish(&file);
    free(text);
    close_rig(&r);
    a.machine = "4x-r9700-threadripper";
    open_rig(&r, &a);
    text = json_of(&r);
    assert_non_null(strstr(text, "\"why_not\": \"ik_llama.cpp supports the CPU and CUDA"));
    free(text);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_what_was_published),
        cmocka_unit_test(every_byte_is_somewhere),
        cmocka_unit_test(cards_share_what_is_read),
        cmocka_unit_test(latent_rows_are_expanded_for_prompts),
        cmocka_unit_test(kernels_of_their_own),
        cmocka_unit_test(each_sends_experts_where_it_gains),
        cmocka_unit_test(nodes_are_said_beside_the_flags),
        cmocka_unit_test(in_json_if_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
