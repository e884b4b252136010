/* SPDX-License-Identifier: MIT */
/* Models with recurrent state through the engine: mixed sessions, slots used again, rewinding as
 * far as copies of the state are kept, plans over two devices. */
#include "engine_rig.h"

#include <stdio.h>
#include <unistd.h>

static const char *const models[] = {"qwen3next-f32", "qwen35-q4_k", "qwen35moe-f32"};

/* On one device, with copies of the recurrent state for `slack` tokens back. */
static struct bl_engine *with_slack(const char *name, uint32_t slack)
{
    struct bl_options opt = small();
    struct bl_engine_parts p = {0};
    struct bl_model_options mo = {
        .ctx_tokens = 128, .type_k = BL_F32, .type_v = BL_F32, .slack_tokens = slack};
    struct bl_engine *e;
    char path[512];

    snprintf(path, sizeof path, MODELS "%s.gguf", name);
    assert_int_equal(bl_gguf_open(&p.gguf, path), BL_OK);
    assert_int_equal(bl_model_open(&p.model, p.gguf, &mo), BL_OK);
    assert_int_equal(bl_machine_probe(&p.machine, &opt), BL_OK);
    assert_int_equal(bl_plan_make(&p.plan, p.model, &p.machine, &opt), BL_OK);
    p.device = calloc(1, sizeof *p.device);
    const struct bl_machine_device *md = &p.machine.device[0];
    assert_int_equal(md->backend->open(0, &md->config, &p.device[0]), BL_OK);
    if (bl_engine_create(&e, &p, &opt))
        fail_msg("%s", bl_error());
    return e;
}

static void assert_same(const struct bl_engine *e, const float *x, const float *want)
{
    assert_memory_equal(x, want, bl_engine_n_vocab(e) * sizeof *x);
}

/* The same bits whether its tokens come alone, in pieces or among others'. */
static void sessions_do_not_mix(void **state)
{
    (void)state;
    for (size_t m = 0; m < 3; m++) {
        struct bl_engine *e = with_slack(models[m], 0);
        struct bl_session *a, *b, *of[2 * N_PROMPT];
        float *alone = last_logits(e);
        int32_t ids[2 * N_PROMPT];

        assert_int_equal(bl_session_create(&a, e), BL_OK);
        assert_int_equal(bl_session_create(&b, e), BL_OK);
        assert_int_equal(feed(e, b, prompt + 3, 5), BL_OK);
        for (uint32_t i = 0; i < N_PROMPT; i++) {
            ids[2 * i] = prompt[i];
            ids[2 * i + 1] = prompt[N_PROMPT - 1 - i];
            of[2 * i] = a;
            of[2 * i + 1] = b;
        }
        assert_int_equal(bl_decode(e, &(struct bl_batch){2 * N_PROMPT, ids, of, NULL}), BL_OK);
        assert_same(e, bl_logits(e, 2 * N_PROMPT - 2), alone);
        free(alone);
        bl_session_destroy(a);
        bl_session_destroy(b);
        bl_close(e);
    }
}

/* What another session left in a slot, or this one before it was rewound to 0, is never seen. */
static void slots_are_used_again(void **state)
{
    (void)state;
    for (size_t m = 0; m < 3; m++) {
        struct bl_engine *e = with_slack(models[m], m == 0);
        struct bl_session *s;
        float *first = last_logits(e);

        assert_int_equal(bl_session_create(&s, e), BL_OK);
        assert_int_equal(s->slot, 0);
        assert_int_equal(feed(e, s, prompt + 5, 13), BL_OK);
        bl_session_destroy(s);
        float *second = last_logits(e);
        assert_same(e, second, first);
        assert_int_equal(bl_session_create(&s, e), BL_OK);
        assert_int_equal(feed(e, s, prompt + 9, 11), BL_OK);
        assert_int_equal(bl_session_rewind(s, 0), BL_OK);
        assert_int_equal(feed(e, s, prompt, N_PROMPT), BL_OK);
        assert_same(e, bl_logits(e, N_PROMPT - 1), first);
        bl_session_destroy(s);
        free(first);
        free(second);
        bl_close(e);
    }
}

static void recurrent_state_does_not_go_back(void **state)
{
    (void)state;
    for (size_t m = 0; m < 3; m++) {
        struct bl_engine *e = with_slack(models[m], 0);
        struct bl_session *s;

        assert_int_equal(bl_session_create(&s, e), BL_OK);
        assert_int_equal(feed(e, s, prompt, 10), BL_OK);
        assert_int_equal(bl_session_rewind(s, 9), BL_ELIMIT);
        assert_non_null(strstr(bl_error(),
                               "cannot rewind to 9 tokens: recurrent state (blk.0.conv)"
                               " goes back 0 from 10; rewind to 0 and feed them again"));
        assert_int_equal(bl_session_n_tokens(s), 10);
        assert_int_equal(bl_session_rewind(s, 10), BL_OK);
        assert_int_equal(feed(e, s, prompt + 10, 1), BL_OK);
        /* not for the convolution's sake alone */
        for (uint32_t i = 0; i < e->parts.model->n_states; i++)
            if (e->parts.model->state[i].tail)
                e->parts.model->state[i].law = BL_PER_TOKEN;
        assert_int_equal(bl_session_rewind(s, 10), BL_ELIMIT);
        assert_non_null(strstr(bl_error(), "(blk.0.ssm) goes back 0 from 11"));
        bl_session_destroy(s);
        bl_close(e);
    }
}

/* Wrong tokens, taken back again and again; the rest is as if they had never been. */
static void rewinds_within_the_kept_copies(void **state)
{
    (void)state;
    enum { SLACK = 3 };
    for (size_t m = 0; m < 3; m++) {
        struct bl_engine *e = with_slack(models[m], SLACK);
        struct bl_session *s;
        float *alone = last_logits(e);

        assert_int_equal(bl_session_create(&s, e), BL_OK);
        assert_int_equal(feed(e, s, prompt, 8), BL_OK);
        for (uint32_t n = 8; n < N_PROMPT; n += 2) {
            const uint32_t wrong = 1 + n / 2 % SLACK;
            assert_int_equal(feed(e, s, prompt + 2, wrong), BL_OK);
            assert_int_equal(bl_session_rewind(s, n), BL_OK);
            assert_int_equal(feed(e, s, prompt + n, 2), BL_OK);
        }
        assert_same(e, bl_logits(e, 1), alone);
        /* counted from the most that it has held: copies beyond that were overwritten */
        const uint64_t least = s->high - SLACK;
        assert_int_equal(least, N_PROMPT + 1 - SLACK);
        assert_int_equal(bl_session_rewind(s, least - 1), BL_ELIMIT);
        assert_int_equal(bl_session_rewind(s, least), BL_OK);
        assert_int_equal(feed(e, s, prompt + least, 2), BL_OK);
        assert_same(e, bl_logits(e, 1), alone);
        assert_int_equal(bl_session_rewind(s, least - 1), BL_ELIMIT);
        free(alone);
        bl_session_destroy(s);
        bl_close(e);
    }
}

/* Rows that a failed step may have overwritten are not gone on from. */
static void a_spoiled_session_starts_anew(void **state)
{
    (void)state;
    struct bl_engine *e = with_slack(models[0], 0);
    struct bl_session *s;
    float *alone = last_logits(e);

    assert_int_equal(bl_session_create(&s, e), BL_OK);
    assert_int_equal(feed(e, s, prompt, 5), BL_OK);
    s->high += 2; /* as a step of two tokens leaves it that fails */
    assert_int_equal(feed(e, s, prompt, 1), BL_ELIMIT);
    assert_non_null(strstr(bl_error(), "cannot go on from 5 tokens: recurrent state"));
    assert_int_equal(bl_session_rewind(s, 0), BL_OK);
    assert_int_equal(feed(e, s, prompt, N_PROMPT), BL_OK);
    assert_same(e, bl_logits(e, N_PROMPT - 1), alone);
    free(alone);
    bl_session_destroy(s);
    bl_close(e);
}

static void a_split_plan_equals_the_one_device_plan(void **state)
{
    (void)state;
    for (size_t m = 0; m < 3; m++)
        for (uint32_t second = 1; second < 4; second++) {
            struct bl_options opt = small();
            struct bl_engine *one = opened(models[m], &opt),
                             *two = split_engine(models[m], second, second & 1, &opt);
            float *a = last_logits(one), *b = last_logits(two);

            assert_true(nmse(b, a, bl_engine_n_vocab(one)) < 1e-9);
            free(a);
            free(b);
            bl_close(one);
            bl_close(two);
        }
}

/* ---- the layouts of the first files ---- */

enum { EMBD = 64, KEYS = 2, VALUES = 4, HEAD = 32 }; /* of qwen3next-f32 */

static float *tensor(const struct bl_gguf *g, const char *name)
{
    const struct bl_tensor_info *t = bl_gguf_find_tensor(g, name, NULL);
    float *x;
    assert_non_null(t);
    FILE *f = fopen(bl_gguf_path(g), "rb");
    assert_non_null(f);
    x = malloc(t->bytes);
    assert_int_equal(fseek(f, (long)t->file_off, SEEK_SET), 0);
    assert_int_equal(fread(x, 1, t->bytes, f), t->bytes);
    fclose(f);
    return x;
}

struct piece {
    const char *stem;  /* of the source */
    uint32_t first, n; /* rows */
};

/* Rows of other tensors of the layer, one piece after the other. */
static void write_pieces(struct bl_gguf_writer *w, const struct bl_gguf *g, int layer,
                         const struct piece *p, unsigned n)
{
    char name[64];
    for (unsigned i = 0; i < n; i++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", layer, p[i].stem);
        float *x = tensor(g, name);
        assert_int_equal(bl_gguf_write_data(w, x + p[i].first * EMBD, p[i].n * EMBD * sizeof *x),
                         BL_OK);
        free(x);
    }
}

/* q, k, v and z of each key head together. */
static void write_inputs(struct bl_gguf_writer *w, const struct bl_gguf *g, int layer)
{
    const uint32_t rho = VALUES / KEYS;
    for (uint32_t k = 0; k < KEYS; k++) {
        const struct piece p[] = {
            {"attn_qkv", k * HEAD, HEAD},
            {"attn_qkv", (KEYS + k) * HEAD, HEAD},
            {"attn_qkv", (2 * KEYS + k * rho) * HEAD, rho * HEAD},
            {"attn_gate", k * rho * HEAD, rho * HEAD},
        };
        write_pieces(w, g, layer, p, BL_COUNT(p));
    }
}

/* Beta or alpha (half 0 or 1) of all heads. */
static void write_gates(struct bl_gguf_writer *w, const struct bl_gguf *g, int layer, uint32_t half)
{
    const uint32_t rho = VALUES / KEYS;
    for (uint32_t k = 0; k < KEYS; k++) {
        const struct piece p = {"ssm_ba", (2 * k + half) * rho, rho};
        write_pieces(w, g, layer, &p, 1);
    }
}

/* What becomes of a tensor in the other layout. */
enum fate { SAME, GONE, INPUTS, GATES };
static enum fate fate_of(const struct bl_gguf *g, const char *name, int *layer)
{
    char conv[64], stem[64];
    if (sscanf(name, "blk.%d.%63s", layer, stem) != 2)
        return SAME;
    snprintf(conv, sizeof conv, "blk.%d.ssm_conv1d.weight", *layer);
    if (!bl_gguf_find_tensor(g, conv, NULL))
        return SAME;
    return !strcmp(stem, "attn_gate.weight")  ? GONE
           : !strcmp(stem, "attn_qkv.weight") ? INPUTS
           : !strcmp(stem, "ssm_ba.weight")   ? GATES
                                              : SAME;
}

static void put_matrix(struct bl_gguf_writer *w, int layer, const char *stem, uint64_t rows)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", layer, stem);
    assert_int_equal(bl_gguf_put_tensor(w, name, BL_F32, 2, (uint64_t[]){EMBD, rows, 1, 1}), BL_OK);
}

static void put_infos(struct bl_gguf_writer *w, const struct bl_gguf *g)
{
    for (uint32_t i = 0; i < bl_gguf_n_tensors(g); i++) {
        const struct bl_tensor_info *t = bl_gguf_tensor(g, i);
        int layer;
        const enum fate fate = fate_of(g, t->name, &layer);
        if (fate == SAME)
            assert_int_equal(bl_gguf_put_tensor(w, t->name, t->type, t->n_dims, t->ne), BL_OK);
        if (fate == INPUTS)
            put_matrix(w, layer, "ssm_in", (2 * KEYS + 2 * VALUES) * HEAD);
        if (fate == GATES) {
            put_matrix(w, layer, "ssm_beta", VALUES);
            put_matrix(w, layer, "ssm_alpha", VALUES);
        }
    }
}

static void put_data(struct bl_gguf_writer *w, const struct bl_gguf *g)
{
    for (uint32_t i = 0; i < bl_gguf_n_tensors(g); i++) {
        const struct bl_tensor_info *t = bl_gguf_tensor(g, i);
        int layer;
        const enum fate fate = fate_of(g, t->name, &layer);
        if (fate == SAME) {
            float *x = tensor(g, t->name);
            assert_int_equal(bl_gguf_write_data(w, x, t->bytes), BL_OK);
            free(x);
        }
        if (fate == INPUTS)
            write_inputs(w, g, layer);
        for (uint32_t half = 0; fate == GATES && half < 2; half++)
            write_gates(w, g, layer, half);
    }
}

static void layouts_of_the_first_files(void **state)
{
    (void)state;
    char path[] = "/tmp/ballast-hybrid-XXXXXX";
    struct bl_options opt = small();
    struct bl_gguf_writer *w;
    struct bl_gguf *g;
    struct bl_engine *e;

    close(mkstemp(path));
    assert_int_equal(bl_gguf_open(&g, MODELS "qwen3next-f32.gguf"), BL_OK);
    assert_int_equal(bl_gguf_writer_create(&w, path, 32), BL_OK);
    for (uint32_t i = 0; i < bl_gguf_n_kv(g); i++)
        assert_int_equal(bl_gguf_put_kv(w, bl_gguf_kv(g, i)), BL_OK);
    put_infos(w, g);
    put_data(w, g);
    assert_int_equal(bl_gguf_writer_finish(w), BL_OK);
    bl_gguf_close(g);
    if (bl_open(&e, path, &opt))
        fail_msg("%s", bl_error());
    assert_true(e->parts.model->layer[0].role[BL_W_SSM_IN].w >= 0);
    float *first = last_logits(e);
    bl_close(e);
    e = opened("qwen3next-f32", &opt);
    float *now = last_logits(e);
    assert_same(e, first, now);
    bl_close(e);
    free(first);
    free(now);
    unlink(path);
}

static uint64_t state_bytes(const struct bl_engine *e)
{
    struct bl_memory_line line;
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < bl_engine_memory(e, i, &line); i++)
        if (!strcmp(line.purpose, "state") || !strcmp(line.purpose, "ring slack")) {
            assert_int_equal(line.planned_bytes, line.measured_bytes);
            bytes += line.planned_bytes;
        }
    assert_true(bytes > 0);
    return bytes;
}

static void copies_are_in_the_ledger(void **state)
{
    (void)state;
    struct bl_engine *none = with_slack(models[1], 0), *four = with_slack(models[1], 4);
    const struct bl_delta_hparams *d = &none->parts.model->hp.delta;
    const uint64_t heads = d->n_head_v * d->dv, row = 2 * d->n_head_k * d->dk + heads * (1 + d->dk);
    const uint64_t more = state_bytes(four) - state_bytes(none), want = 4 * 3 * row * sizeof(float);

    assert_true(more + 8192 > want && more < want + 8192); /* whole pages */
    bl_close(none);
    bl_close(four);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_do_not_mix),
        cmocka_unit_test(slots_are_used_again),
        cmocka_unit_test(recurrent_state_does_not_go_back),
        cmocka_unit_test(rewinds_within_the_kept_copies),
        cmocka_unit_test(a_spoiled_session_starts_anew),
        cmocka_unit_test(a_split_plan_equals_the_one_device_plan),
        cmocka_unit_test(layouts_of_the_first_files),
        cmocka_unit_test(copies_are_in_the_ledger),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
