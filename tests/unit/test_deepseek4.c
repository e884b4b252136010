/* SPDX-License-Identifier: MIT */
/* deepseek4 as a whole, on a small model made by formula: the recorded logits, prompts cut anyhow,
 * sequences side by side, rewinding. */
#include "support.h"

#include "gguf.h"
#include "mem.h"

#include <math.h>
#include <unistd.h>

enum { VOCAB = 64, N_TOKENS = 300, EXPERTS = 8, USED = 3, MOST_TENSORS = 192, MOST_ROWS = 32 };

static struct {
    char name[64];
    uint32_t index, n_dims;
    uint64_t ne[3];
    double mean, amp;
} tensor[MOST_TENSORS];
static struct {
    uint32_t pos, best;
    double squares, x[8];
} golden[MOST_ROWS];
static struct {
    char name[64];
    float first, last;
} check[8];
static uint32_t n_tensors, n_golden, n_checks;
static int32_t token[N_TOKENS];
static char folder[64], path[80];

/* ---- the table ---- */

static void read_tokens(const char *line)
{
    int at = 0;
    for (uint32_t i = 0, n; i < N_TOKENS; i++, at += (int)n)
        assert_int_equal(sscanf(line + at, "%d%n", &token[i], (int *)&n), 1);
}

static void read_line(const char *line)
{
    unsigned long ne[3] = {1, 1, 1};
    char dims[32];
    if (sscanf(line, "tensor %u %63s %31s %lf %lf", &tensor[n_tensors].index,
               tensor[n_tensors].name, dims, &tensor[n_tensors].mean,
               &tensor[n_tensors].amp) == 5) {
        tensor[n_tensors].n_dims = (uint32_t)sscanf(dims, "%lux%lux%lu", &ne[0], &ne[1], &ne[2]);
        for (unsigned i = 0; i < 3; i++)
            tensor[n_tensors].ne[i] = ne[i];
        assert_true(++n_tensors < MOST_TENSORS);
    }
    if (sscanf(line, "check %63s %f %f", check[n_checks].name, &check[n_checks].first,
               &check[n_checks].last) == 3)
        assert_true(++n_checks < BL_COUNT(check));
    if (!strncmp(line, "tokens ", 7))
        read_tokens(line + 7);
    double *x = golden[n_golden].x;
    if (sscanf(line, "logits %u %u %lf %lf %lf %lf %lf %lf %lf %lf %lf", &golden[n_golden].pos,
               &golden[n_golden].best, &golden[n_golden].squares, &x[0], &x[1], &x[2], &x[3], &x[4],
               &x[5], &x[6], &x[7]) == 11)
        assert_true(++n_golden < MOST_ROWS);
}

static int enter(void **state)
{
    char line[4096];
    FILE *f = fopen(BL_TEST_DATA "/deepseek4_tiny.txt", "r");
    (void)state;
    if (!f)
        return -1;
    while (fgets(line, sizeof line, f))
        read_line(line);
    fclose(f);
    snprintf(folder, sizeof folder, "/tmp/ballast_ds4_XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/tiny.gguf", folder);
    return n_tensors < 170 || n_golden < 20 || n_checks < 4;
}

static int leave(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static float value(uint32_t k, uint64_t i, double mean, double amp)
{
    uint64_t z = ((uint64_t)(4 * 4096 + k) << 32) + i + 1;
    z *= 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (float)(mean + amp * (2 * ((double)(z >> 40) / (1 << 24)) - 1));
}

/* ---- the file ---- */

static void put_list(struct bl_gguf_writer *w, const char *key, enum bl_value_type item,
                     const void *data, uint32_t n)
{
    assert_int_equal(bl_gguf_put_kv(w, &(struct bl_kv){.key = key,
                                                       .type = BL_VAL_ARRAY,
                                                       .item = item,
                                                       .n = n,
                                                       .data = data,
                                                       .data_bytes = 4 * n}),
                     BL_OK);
}

static void put_number(struct bl_gguf_writer *w, const char *suffix, uint32_t x)
{
    char key[96];
    snprintf(key, sizeof key, "deepseek4.%s", suffix);
    assert_int_equal(bl_gguf_put_u32(w, key, x), BL_OK);
}

static void put_real(struct bl_gguf_writer *w, const char *suffix, float x)
{
    char key[96];
    snprintf(key, sizeof key, "deepseek4.%s", suffix);
    assert_int_equal(bl_gguf_put_f32(w, key, x), BL_OK);
}

static void put_keys(struct bl_gguf_writer *w)
{
    static const uint32_t ratios[] = {0, 4, 128, 4, 0, 0};
    static const float clamp[] = {0.8f, 0.8f, 0.8f, 0.8f, 0.8f};
    static const struct {
        const char *key;
        uint32_t x;
    } number[] = {
        {"context_length", 1048576},
        {"embedding_length", 64},
        {"block_count", 6},
        {"nextn_predict_layers", 1},
        {"vocab_size", VOCAB},
        {"attention.head_count", 4},
        {"attention.head_count_kv", 1},
        {"attention.key_length", 80},
        {"attention.value_length", 80},
        {"attention.q_lora_rank", 32},
        {"attention.sliding_window", 128},
        {"attention.output_group_count", 2},
        {"attention.output_lora_rank", 24},
        {"attention.indexer.head_count", 32},
        {"attention.indexer.key_length", 32},
        {"attention.indexer.top_k", 16},
        {"rope.dimension_count", 16},
        {"expert_count", EXPERTS},
        {"expert_used_count", USED},
        {"expert_shared_count", 1},
        {"expert_feed_forward_length", 64},
        {"expert_gating_func", 4},
        {"hash_layer_count", 2},
        {"hyper_connection.count", 4},
        {"hyper_connection.sinkhorn_iterations", 20},
    };
    assert_int_equal(bl_gguf_put_str(w, "general.architecture", "deepseek4", 9), BL_OK);
    for (unsigned i = 0; i < BL_COUNT(number); i++)
        put_number(w, number[i].key, number[i].x);
    put_real(w, "attention.layer_norm_rms_epsilon", 1e-6f);
    put_real(w, "attention.compress_rope_freq_base", 1600);
    put_real(w, "rope.freq_base", 10000);
    put_real(w, "expert_weights_scale", 1.5f);
    put_real(w, "hyper_connection.epsilon", 1e-6f);
    assert_int_equal(bl_gguf_put_bool(w, "deepseek4.expert_weights_norm", true), BL_OK);
    put_list(w, "deepseek4.attention.compress_ratios", BL_VAL_I32, ratios, BL_COUNT(ratios));
    put_list(w, "deepseek4.swiglu_clamp_exp", BL_VAL_F32, clamp, BL_COUNT(clamp));
    assert_int_equal(bl_gguf_put_str(w, "deepseek4.rope.scaling.type", "yarn", 4), BL_OK);
    put_real(w, "rope.scaling.factor", 4);
    put_number(w, "rope.scaling.original_context_length", 64);
    put_real(w, "rope.scaling.yarn_beta_fast", 8);
    put_real(w, "rope.scaling.yarn_beta_slow", 1);
    put_real(w, "rope.scaling.yarn_attn_factor", 1.277f); /* means nothing here */
}

/* bad: what token 50 of layer 1 has for its second expert, 0: what it should. */
static void put_ids(struct bl_gguf_writer *w, int32_t layer, int32_t bad)
{
    for (int32_t t = 0; t < VOCAB; t++)
        for (int32_t j = 0; j < USED; j++) {
            int32_t id = (3 * t + layer + 5 * j * j) % EXPERTS;
            id = t == 50 && j == 1 && layer && bad ? bad : id;
            assert_int_equal(bl_gguf_write_data(w, &id, sizeof id), BL_OK);
        }
}

static void put_data(struct bl_gguf_writer *w, uint32_t i)
{
    const uint64_t n = tensor[i].ne[0] * tensor[i].ne[1] * tensor[i].ne[2];
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (uint64_t k = 0; k < n; k++)
        x[k] = value(tensor[i].index, k, tensor[i].mean, tensor[i].amp);
    for (uint32_t c = 0; c < n_checks; c++)
        if (!strcmp(tensor[i].name, check[c].name))
            assert_true(fabsf(x[0] - check[c].first) < 1e-6f &&
                        fabsf(x[n - 1] - check[c].last) < 1e-6f);
    assert_int_equal(bl_gguf_write_data(w, x, n * sizeof *x), BL_OK);
    free(x);
}

static void write_model(int32_t bad_id)
{
    static const char *const by_token[] = {"blk.0.ffn_gate_tid2eid.weight",
                                           "blk.1.ffn_gate_tid2eid.weight"};
    struct bl_gguf_writer *w;
    unlink(path);
    assert_int_equal(bl_gguf_writer_create(&w, path, 32), BL_OK);
    put_keys(w);
    for (uint32_t i = 0; i < n_tensors; i++)
        assert_int_equal(
            bl_gguf_put_tensor(w, tensor[i].name, BL_F32, tensor[i].n_dims, tensor[i].ne), BL_OK);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(bl_gguf_put_tensor(w, by_token[i], BL_I32, 2, (uint64_t[]){USED, VOCAB}),
                         BL_OK);
    for (uint32_t i = 0; i < n_tensors; i++)
        put_data(w, i);
    put_ids(w, 0, bad_id);
    put_ids(w, 1, bad_id);
    assert_int_equal(bl_gguf_writer_finish(w), BL_OK);
}

/* ---- engines ---- */

static struct bl_options exactly(void)
{
    return (struct bl_options){.ctx_tokens = 512,
                               .batch_tokens = 512,
                               .ubatch_tokens = 512,
                               .out_tokens = 512,
                               .threads = 2,
                               .max_sessions = 2,
                               .exact = true};
}

static struct bl_engine *opened(const struct bl_options *opt)
{
    struct bl_engine *e;
    if (bl_open(&e, path, opt))
        fail_msg("%s", bl_error());
    return e;
}

/* Logits of n tokens, which follow those that the session holds. */
static void feed(struct bl_engine *e, struct bl_session *s, const int32_t *ids, uint32_t n,
                 float *rows)
{
    struct bl_session *of[N_TOKENS];
    uint8_t want[N_TOKENS];
    for (uint32_t i = 0; i < n; i++) {
        of[i] = s;
        want[i] = 1;
    }
    if (bl_decode(e, &(struct bl_batch){n, ids, of, want}))
        fail_msg("%s", bl_error());
    for (uint32_t i = 0; i < n && rows; i++)
        memcpy(rows + i * VOCAB, bl_logits(e, i), VOCAB * sizeof *rows);
}

/* Logits of all tokens, fed in chunks; the last length is repeated. */
static float *run(struct bl_engine *e, const uint32_t *chunks)
{
    float *rows = malloc(N_TOKENS * VOCAB * sizeof *rows);
    struct bl_session *s;
    assert_int_equal(bl_session_create(&s, e), BL_OK);
    for (uint32_t at = 0, n; at < N_TOKENS; at += n) {
        n = *chunks < N_TOKENS - at ? *chunks : N_TOKENS - at;
        feed(e, s, token + at, n, rows + at * VOCAB);
        chunks += chunks[1] != 0;
    }
    bl_session_destroy(s);
    return rows;
}

static const uint32_t whole[] = {N_TOKENS, 0};

/* Logits of all tokens in the exact mode. */
static float *exact_logits(void)
{
    const struct bl_options opt = exactly();
    write_model(0);
    struct bl_engine *e = opened(&opt);
    float *rows = run(e, whole);
    bl_close(e);
    return rows;
}

/* ---- numbers ---- */

static void check_golden(const float *rows, uint32_t last, double tolerance)
{
    for (uint32_t i = 0; i < n_golden && golden[i].pos <= last; i++) {
        const float *x = rows + golden[i].pos * VOCAB;
        double squares = 0;
        uint32_t best = 0;
        for (uint32_t k = 0; k < VOCAB; k++) {
            squares += (double)x[k] * (double)x[k];
            best = x[k] > x[best] ? k : best;
        }
        for (uint32_t k = 0; k < 8; k++)
            if (!(fabs((double)x[k] - golden[i].x[k]) <= tolerance))
                fail_msg("position %u, logit %u: %.6f, want %.6f", golden[i].pos, k, (double)x[k],
                         golden[i].x[k]);
        assert_int_equal(best, golden[i].best);
        assert_true(fabs(squares - golden[i].squares) <= 500 * tolerance);
    }
}

static void recorded_logits(void **state)
{
    (void)state;
    float *rows = exact_logits();
    check_golden(rows, N_TOKENS, 1e-4);
    free(rows);
    struct bl_options opt = exactly();
    opt.type_k = opt.type_v = "f16";
    struct bl_engine *e = opened(&opt);
    rows = run(e, whole);
    check_golden(rows, 257, 2e-2);
    bl_close(e);
    free(rows);
}

/* Cut at, before and after the ends of groups and of the window, and into physical batches: the
 * same bits. */
static void chunks_do_not_matter(void **state)
{
    (void)state;
    static const uint32_t chunkings[][5] = {
        {1},         {3}, {5}, {127}, {128}, {129}, {255}, {126, 2, 1, 127}, {7, 121, 128, 3},
        {2, 1, 1, 9}};
    static const uint32_t ubatches[] = {512, 16, 1};
    float *want = exact_logits();
    for (unsigned u = 0; u < BL_COUNT(ubatches); u++) {
        struct bl_options opt = exactly();
        opt.ubatch_tokens = ubatches[u];
        struct bl_engine *e = opened(&opt);
        for (unsigned i = 0; i < (u ? 1 : BL_COUNT(chunkings)); i++) {
            float *got = run(e, u ? whole : chunkings[i]);
            for (uint32_t p = 0; p < N_TOKENS; p++)
                if (memcmp(got + p * VOCAB, want + p * VOCAB, VOCAB * sizeof *got))
                    fail_msg("ubatch %u, chunks of %u, ...: other bits at position %u", ubatches[u],
                             chunkings[i][0], p);
            free(got);
        }
        bl_close(e);
    }
    free(want);
}

/* Two sequences in one batch, at different phases of their groups. */
static void sequences_do_not_matter(void **state)
{
    (void)state;
    float *want = exact_logits();
    const struct bl_options opt = exactly();
    struct bl_engine *e = opened(&opt);
    struct bl_session *s[2];
    uint32_t pos[2] = {0, 0};
    assert_int_equal(bl_session_create(&s[0], e), BL_OK);
    assert_int_equal(bl_session_create(&s[1], e), BL_OK);
    feed(e, s[1], token, 3, NULL);
    pos[1] = 3;
    for (uint32_t step = 0; pos[1] < N_TOKENS; step++) {
        struct bl_session *of[16];
        int32_t ids[16];
        uint8_t all[16];
        uint32_t at[16], n = 0;
        for (uint32_t i = 0; i < 7 + step % 9; i++) {
            const uint32_t k = i % 3 != step % 2;
            if (pos[k] == N_TOKENS)
                continue;
            of[n] = s[k];
            all[n] = 1;
            at[n] = pos[k];
            ids[n++] = token[pos[k]++];
        }
        assert_int_equal(bl_decode(e, &(struct bl_batch){n, ids, of, all}), BL_OK);
        for (uint32_t i = 0; i < n; i++)
            assert_memory_equal(bl_logits(e, i), want + at[i] * VOCAB, VOCAB * sizeof *want);
    }
    assert_true(pos[0] > 140);
    bl_session_destroy(s[0]);
    bl_session_destroy(s[1]);
    bl_close(e);
    free(want);
}

/* ---- rewinding ---- */

/* Tokens that should not have been, taken back, leave no trace; or they cannot be taken back. */
static bool take_back(struct bl_engine *e, const struct bl_session *at, uint32_t back,
                      const float *want)
{
    enum { AFTER = 6 };
    const uint32_t n = (uint32_t)bl_session_n_tokens(at);
    float rows[AFTER * VOCAB];
    struct bl_session *s;
    assert_int_equal(bl_session_fork(&s, at), BL_OK);
    for (uint32_t i = 0; i < back; i++)
        feed(e, s, (int32_t[]){(token[n + i] + 17) % VOCAB}, 1, NULL);
    const enum bl_status st = bl_session_rewind(s, n);
    if (st) {
        assert_int_equal(st, BL_ELIMIT);
        assert_int_equal(bl_session_n_tokens(s), n + back);
    } else {
        feed(e, s, token + n, AFTER, rows);
        assert_memory_equal(rows, want + n * VOCAB, sizeof rows);
    }
    bl_session_destroy(s);
    return !st;
}

/* The ring of the tokens' parts holds two groups of 4, at least the one in hand and the one before
 * it. */
static bool may_take_back(uint32_t n, uint32_t back, uint32_t slack)
{
    const uint32_t first_needed = n / 4 * 4 >= 4 ? n / 4 * 4 - 4 : 0, rows = 8 + slack;
    return n + back <= rows || first_needed >= n + back - rows;
}

/* From n tokens on, at every step of a group and around the ends of groups of 128. */
static void rewind_from(struct bl_engine *e, uint32_t n, uint32_t slack, const float *want)
{
    struct bl_session *s;
    assert_int_equal(bl_session_create(&s, e), BL_OK);
    feed(e, s, token, n, NULL);
    for (uint32_t i = 0; i < 6; i++, n++) {
        for (uint32_t back = 1; back < 7; back++)
            if (take_back(e, s, back, want) != may_take_back(n, back, slack))
                fail_msg("%u tokens, %u taken back, slack %u", n, back, slack);
        feed(e, s, token + n, 1, NULL);
    }
    bl_session_destroy(s);
}

static void rewinding(void **state)
{
    (void)state;
    static const uint32_t starts[] = {1, 7, 125, 254};
    float *want = exact_logits();
    struct bl_options opt = exactly();
    opt.ubatch_tokens = 256;
    for (uint32_t slack = 0; slack <= 5; slack += 5) {
        opt.rewind_tokens = slack;
        struct bl_engine *e = opened(&opt);
        for (unsigned i = 0; i < BL_COUNT(starts); i++)
            rewind_from(e, starts[i], slack, want);
        bl_close(e);
    }
    free(want);
}

/* ---- copies ---- */

static void continue_copy(struct bl_engine *e, struct bl_session *s, uint32_t n, const float *want)
{
    enum { AFTER = 6 };
    float rows[AFTER * VOCAB];
    assert_int_equal(bl_session_n_tokens(s), n);
    feed(e, s, token + n, AFTER, rows);
    assert_memory_equal(rows, want + n * VOCAB, sizeof rows);
    bl_session_destroy(s);
}

/* A sequence goes on in a copy of it, and in what was saved and restored, wherever its groups and
 * its window stand. */
static void copies_go_on(void **state)
{
    (void)state;
    static const uint32_t at[] = {1, 3, 4, 127, 128, 129, 130, 255, 256, 257};
    float *want = exact_logits();
    struct bl_options opt = exactly();
    opt.ubatch_tokens = 16;
    struct bl_engine *e = opened(&opt);
    struct bl_session *s, *copy;
    char file[96];
    snprintf(file, sizeof file, "%s/state", folder);
    assert_int_equal(bl_session_create(&s, e), BL_OK);
    for (unsigned i = 0; i < BL_COUNT(at); i++) {
        const uint32_t held = (uint32_t)bl_session_n_tokens(s);
        feed(e, s, token + held, at[i] - held, NULL);
        assert_int_equal(bl_session_fork(&copy, s), BL_OK);
        continue_copy(e, copy, at[i], want);
        assert_int_equal(bl_session_save(s, file), BL_OK);
        assert_int_equal(bl_session_create(&copy, e), BL_OK);
        feed(e, copy, token + 50, 140, NULL); /* what was there before leaves no trace */
        assert_int_equal(bl_session_restore(copy, file), BL_OK);
        continue_copy(e, copy, at[i], want);
    }
    bl_session_destroy(s);
    bl_close(e);
    unlink(file);
    free(want);
}

/* ---- kept rows ---- */

/* Rows of 80 are not whole blocks. */
static void types_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct bl_options opt = exactly();
    struct bl_engine *e = NULL;
    write_model(0);
    opt.type_k = opt.type_v = "q8_0";
    assert_int_equal(bl_open(&e, path, &opt), BL_EINVAL);
    assert_string_equal(bl_error(),
                        "cache type q8_0 needs whole 32 elements; rows of blk.0.kv have "
                        "80, their parts 80; use f16");
}

static double distance(const float *x, const float *y)
{
    double err = 0, all = 0;
    for (uint32_t i = 0; i < N_TOKENS * VOCAB; i++) {
        err += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        all += (double)y[i] * y[i];
    }
    return err / all;
}

/* Each of the two changes what is computed, a little; and not how it is cut. */
static void rounding_as_in_training(void **state)
{
    (void)state;
    static const uint32_t odd[] = {5, 127, 1, 3, 130, 1, 0};
    float *want = exact_logits();
    for (uint32_t i = 1; i < 4; i++) {
        struct bl_options opt = exactly();
        opt.round_kv = i & 1;
        opt.round_index = i >> 1;
        struct bl_engine *e = opened(&opt);
        float *rows = run(e, whole), *cut = run(e, odd);
        const double d = distance(rows, want);
        if (!(d > 1e-7 && d < 5e-2))
            fail_msg("kv %u, index %u: NMSE %g", i & 1, i >> 1, d);
        assert_memory_equal(rows, cut, N_TOKENS * VOCAB * sizeof *rows);
        free(rows);
        free(cut);
        bl_close(e);
    }
    free(want);
}

/* ---- what the file may not hold ---- */

static void experts_that_are_not_there_are_refused(void **state)
{
    (void)state;
    static const int32_t bad[] = {EXPERTS, -1, INT32_MIN};
    const struct bl_options opt = exactly();
    for (unsigned i = 0; i < BL_COUNT(bad); i++) {
        struct bl_engine *e = NULL;
        write_model(bad[i]);
        assert_int_equal(bl_open(&e, path, &opt), BL_EFORMAT);
        assert_non_null(strstr(bl_error(), "'blk.1.ffn_gate_tid2eid.weight' holds"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_logits),
        cmocka_unit_test(chunks_do_not_matter),
        cmocka_unit_test(sequences_do_not_matter),
        cmocka_unit_test(rewinding),
        cmocka_unit_test(copies_go_on),
        cmocka_unit_test(types_that_do_not_fit_are_refused),
        cmocka_unit_test(rounding_as_in_training),
        cmocka_unit_test(experts_that_are_not_there_are_refused),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
