/* SPDX-License-Identifier: MIT */
/* Model files made up: the shapes are those of the published models, whatever is cut off them; what
 * is written runs; the weights of every type keep to their size. */
#include "support.h"

#include "alloc_fail.h"
#include "model.h"
#include "synth.h"

#include <dirent.h>
#include <math.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define GOOD(expr)                                                                                 \
    do {                                                                                           \
        if (expr)                                                                                  \
            fail_msg("%s: %s", #expr, bl_error());                                                 \
    } while (0)

static char folder[] = "/tmp/ballast-synth-XXXXXX";
static char path[sizeof folder + 16];
static uint64_t disk_bytes = UINT64_MAX; /* what the file system says it has left */

int __wrap_fstatvfs(int fd, struct statvfs *out);
int __wrap_fstatvfs(int fd, struct statvfs *out)
{
    (void)fd;
    *out = (struct statvfs){.f_frsize = 1, .f_bavail = disk_bytes};
    return 0;
}

static int enter_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    return 0;
}

static int leave_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static unsigned n_files(void)
{
    unsigned n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void write_model(const struct bl_synth_options *o)
{
    struct bl_synth *s;
    GOOD(bl_synth_open(&s, o));
    GOOD(bl_synth_write(s, path));
    bl_synth_close(s);
}

/* ---- shapes ---- */

static void test_parameters_are_those_published(void **state)
{
    (void)state;
    struct bl_synth *s;
    struct bl_synth_info info;
    for (uint32_t i = 0; bl_synth_shape(i); i++) {
        struct bl_model *m;
        GOOD(bl_synth_open(&s, &(struct bl_synth_options){.shape = bl_synth_shape(i)}));
        bl_synth_describe(s, &info);
        GOOD(bl_model_open(&m, bl_synth_gguf(s), NULL));
        bl_model_close(m);
        double off = (double)info.params / (double)info.published_params - 1;
        if (!(fabs(off) < 0.01))
            fail_msg("%s has %g parameters, published are %g", info.shape, (double)info.params,
                     (double)info.published_params);
        bl_synth_close(s);
    }
    assert_null(bl_synth_shape(bl_synth_n_sources));
}

static void test_cut_headers_open(void **state)
{
    (void)state;
    for (uint32_t i = 0; bl_synth_shape(i); i++) {
        struct bl_synth_options o = {
            .shape = bl_synth_shape(i), .layers = 2 + i % 3, .vocab = 1000, .no_data = true};
        struct bl_gguf *g;
        struct bl_model *m;
        struct bl_engine *e;
        write_model(&o);
        GOOD(bl_gguf_open_header(&g, path));
        GOOD(bl_model_open(&m, g, NULL));
        assert_int_equal(m->hp.n_layer, 2 + i % 3);
        assert_int_equal(m->hp.n_layer_nextn, 0);
        assert_int_equal(m->hp.n_vocab, 1000);
        assert_true(bl_gguf_missing_bytes(g) > 0);
        assert_int_equal(bl_open(&e, path, NULL), BL_EFORMAT);
        assert_non_null(strstr(bl_error(), "truncated"));
        bl_model_close(m);
        bl_gguf_close(g);
    }
}

/* Element i of a per-layer key. */
static int32_t item(const struct bl_gguf *g, const char *key, uint64_t i)
{
    int32_t v = -1;
    GOOD(bl_gguf_i32_array(g, key, i, &v));
    return v;
}

static void test_patterns_are_cut_and_continued(void **state)
{
    (void)state;
    static const char *const ratios = "deepseek4.attention.compress_ratios";
    static const int32_t want[] = {0, 0, 4, 128, 4, 128};
    static const uint32_t layers[] = {1, 2, 6, 60};
    for (unsigned k = 0; k < BL_COUNT(layers); k++) {
        struct bl_synth_options o = {.shape = "deepseek-v4-flash", .layers = layers[k]};
        struct bl_synth *s;
        uint32_t hashed = 0;
        GOOD(bl_synth_open(&s, &o));
        const struct bl_gguf *g = bl_synth_gguf(s);
        assert_int_equal(bl_gguf_find(g, ratios)->n, layers[k]);
        for (uint32_t i = 0; i < layers[k]; i++)
            assert_int_equal(item(g, ratios, i), want[i < 6 ? i : 4 + i % 2]);
        GOOD(bl_gguf_u32(g, "deepseek4.hash_layer_count", true, &hashed));
        assert_int_equal(hashed, layers[k] < 3 ? layers[k] : 3);
        bl_synth_close(s);
    }
}

static uint32_t dense_layers(uint32_t layers)
{
    struct bl_synth *s;
    uint32_t n = 99;
    GOOD(bl_synth_open(&s, &(struct bl_synth_options){.shape = "deepseek-v3", .layers = layers}));
    GOOD(bl_gguf_u32(bl_synth_gguf(s), "deepseek2.leading_dense_block_count", true, &n));
    bl_synth_close(s);
    return n;
}

static void test_dense_layers_leave_one_of_experts(void **state)
{
    (void)state;
    assert_int_equal(dense_layers(1), 0);
    assert_int_equal(dense_layers(2), 1);
    assert_int_equal(dense_layers(3), 2);
    assert_int_equal(dense_layers(4), 3);
    assert_int_equal(dense_layers(0), 3);
}

static void test_drafting_blocks_are_written(void **state)
{
    (void)state;
    struct bl_synth *s;
    struct bl_model *m;
    GOOD(bl_synth_open(&s, &(struct bl_synth_options){.shape = "glm-4.5-air"}));
    const struct bl_gguf *g = bl_synth_gguf(s);
    GOOD(bl_model_open(&m, g, NULL));
    assert_int_equal(m->hp.n_layer, 46);
    assert_int_equal(m->hp.n_layer_nextn, 1);
    const struct bl_tensor_info *t = bl_gguf_find_tensor(g, "blk.46.nextn.eh_proj.weight", NULL);
    assert_non_null(t);
    assert_int_equal(t->ne[0], 8192);
    assert_int_equal(t->ne[1], 4096);
    assert_non_null(bl_gguf_find_tensor(g, "blk.46.ffn_down_exps.weight", NULL));
    bl_model_close(m);
    bl_synth_close(s);
}

/* ---- types ---- */

static uint32_t count_type(const struct bl_gguf *g, enum bl_dtype type)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < bl_gguf_n_tensors(g); i++)
        n += bl_gguf_tensor(g, i)->type == type;
    return n;
}

/* As in the published file of that name. */
static void test_q4_k_m_is_the_mix_people_have(void **state)
{
    (void)state;
    struct bl_synth *s;
    GOOD(bl_synth_open(&s, &(struct bl_synth_options){.shape = "llama-3-8b", .recipe = "q4_k_m"}));
    const struct bl_gguf *g = bl_synth_gguf(s);
    assert_int_equal(count_type(g, BL_F32), 65);
    assert_int_equal(count_type(g, BL_Q4_K), 193);
    assert_int_equal(count_type(g, BL_Q6_K), 33);
    bl_synth_close(s);
}

static void test_rules_name_tensors(void **state)
{
    (void)state;
    struct bl_synth_options o = {.shape = "gpt-oss-20b",
                                 .layers = 8,
                                 .recipe = "q4_k,*_exps=mxfp4,ffn_down_exps@more=q8_0,head=bf16"};
    struct bl_synth *s;
    GOOD(bl_synth_open(&s, &o));
    const struct bl_gguf *g = bl_synth_gguf(s);
    assert_int_equal(count_type(g, BL_MXFP4), 2 * 8 + 4); /* layers 0, 3, 6 and 7 get more */
    assert_int_equal(count_type(g, BL_Q8_0), 4);
    assert_int_equal(bl_gguf_find_tensor(g, "output.weight", NULL)->type, BL_BF16);
    /* rows of 2880 are no whole blocks of 256 */
    assert_int_equal(bl_gguf_find_tensor(g, "blk.0.attn_q.weight", NULL)->type, BL_Q5_0);
    assert_int_equal(bl_gguf_find_tensor(g, "blk.0.attn_output.weight", NULL)->type, BL_Q4_K);
    assert_int_equal(bl_gguf_find_tensor(g, "blk.0.ffn_gate_inp.weight", NULL)->type, BL_F32);
    bl_synth_close(s);
}

static double rms_of(enum bl_dtype type, uint64_t n_in)
{
    struct bl_tensor_info t = {.name = "blk.0.attn_q.weight", .type = type, .ne = {n_in, 64, 1, 1}};
    struct bl_synth_fill *f;
    const void *bytes;
    double sum = 0;
    uint64_t got, elems = 0;
    t.bytes = 64 * bl_dtype_row_bytes(type, n_in);
    GOOD(bl_synth_fill_create(&f, &t, 7, 0));
    while ((got = bl_synth_fill_next(f, &bytes))) {
        uint64_t k = got / bl_dtypes[type].block_bytes * bl_dtypes[type].block_elems;
        float *x = calloc(k, sizeof *x);
        assert_non_null(x);
        bl_dtype_decode(type, k, x, bytes);
        for (uint64_t i = 0; i < k; i++) {
            assert_true(isfinite(x[i]));
            sum += (double)x[i] * (double)x[i];
        }
        elems += k;
        free(x);
    }
    bl_synth_fill_destroy(f);
    assert_int_equal(elems, 64 * n_in);
    return sqrt(sum / (double)elems);
}

static void test_weights_have_their_size(void **state)
{
    (void)state;
    static const uint64_t n_in[] = {256, 2048, 18432};
    for (unsigned type = 0; type < BL_N_DTYPES; type++)
        for (unsigned k = 0; k < BL_COUNT(n_in) && bl_dtypes[type].act != BL_ACT_NONE; k++) {
            double relative = rms_of((enum bl_dtype)type, n_in[k]) * sqrt((double)n_in[k]);
            if (!(relative > 0.6 && relative < 1.6))
                fail_msg("%s of %u inputs: %g of the size wanted", bl_dtypes[type].name,
                         (unsigned)n_in[k], relative);
        }
}

/* ---- running ---- */

#define TINY_HEADS                                                                                 \
    "\"embedding_length\":256,\"attention.head_count\":4,\"attention.head_count_kv\":2,"           \
    "\"attention.key_length\":64,\"attention.value_length\":64,\"rope.dimension_count\":64"
#define TINY_FFN ",\"feed_forward_length\":256"
#define TINY_EXPERTS                                                                               \
    ",\"expert_count\":8,\"expert_used_count\":2,\"expert_feed_forward_length\":256"
#define TINY_DELTA                                                                                 \
    ",\"ssm.state_size\":32,\"ssm.group_count\":2,\"ssm.time_step_rank\":4,\"ssm.inner_size\":128"
#define TINY_SHARED ",\"expert_shared_feed_forward_length\":256"

static const struct {
    const char *arch, *keys;
} tiny[] = {
    {"llama", TINY_HEADS TINY_FFN},
    {"qwen2", TINY_HEADS TINY_FFN},
    {"qwen3", TINY_HEADS TINY_FFN},
    {"phi3", TINY_HEADS TINY_FFN},
    {"gemma3", TINY_HEADS TINY_FFN},
    {"ernie4_5", TINY_HEADS TINY_FFN},
    {"qwen3moe", TINY_HEADS TINY_FFN TINY_EXPERTS},
    {"gpt-oss", TINY_HEADS TINY_FFN TINY_EXPERTS},
    {"glm4moe", TINY_HEADS TINY_FFN TINY_EXPERTS},
    {"minimax-m2", TINY_HEADS TINY_FFN TINY_EXPERTS},
    {"ernie4_5-moe", TINY_HEADS TINY_FFN TINY_EXPERTS TINY_SHARED},
    {"qwen3next", TINY_HEADS TINY_FFN TINY_EXPERTS TINY_SHARED TINY_DELTA},
    {"qwen35moe", TINY_HEADS TINY_EXPERTS TINY_SHARED TINY_DELTA},
    {"qwen35", TINY_HEADS TINY_FFN TINY_DELTA},
    {"deepseek2",
     "\"embedding_length\":256,\"attention.head_count\":4,\"attention.key_length\":96,"
     "\"attention.value_length\":64,\"rope.dimension_count\":32,\"attention.q_lora_rank\":64,"
     "\"attention.kv_lora_rank\":64,\"attention.key_length_mla\":64,"
     "\"attention.value_length_mla\":32,\"expert_group_count\":4,\"expert_group_used_count\":"
     "2" TINY_FFN TINY_EXPERTS},
    {"deepseek4",
     "\"embedding_length\":256,\"attention.head_count\":4,\"attention.key_length\":128,"
     "\"attention.value_length\":128,\"rope.dimension_count\":32,\"attention.q_lora_rank\":64,"
     "\"attention.output_group_count\":2,\"attention.output_lora_rank\":64,"
     "\"attention.indexer.head_count\":4,\"attention.indexer.key_length\":64,"
     "\"attention.indexer.top_k\":16" TINY_EXPERTS},
};

static const char *tiny_keys(const char *arch)
{
    for (unsigned i = 0; i < BL_COUNT(tiny); i++)
        if (!strcmp(tiny[i].arch, arch))
            return tiny[i].keys;
    fail_msg("no tiny widths for %s", arch);
    return NULL;
}

/* A shape's kind of model with small widths, written to `path`. */
static void write_tiny(const char *shape, uint32_t layers, const char *recipe)
{
    char json[2048];
    struct bl_synth *s;
    struct bl_synth_info info;
    GOOD(bl_synth_open(&s, &(struct bl_synth_options){.shape = shape}));
    bl_synth_describe(s, &info);
    int n = snprintf(json, sizeof json, "{\"like\":\"%s\",\"metadata\":{%s}}", shape,
                     tiny_keys(info.arch));
    bl_synth_close(s);
    write_model(&(struct bl_synth_options){.shape = shape,
                                           .json = json,
                                           .json_bytes = (size_t)n,
                                           .layers = layers,
                                           .vocab = 1000,
                                           .recipe = recipe});
}

/* Sixteen tokens at once and one more: finite logits that differ, of a size that training gives. */
static void check_run(const char *what)
{
    enum { N = 16, VOCAB = 1000 };
    struct bl_engine *e;
    struct bl_session *s, *of[N];
    int32_t token[N];
    double sum = 0;
    GOOD(bl_open(&e, path, &(struct bl_options){.ctx_tokens = 64, .threads = 1}));
    GOOD(bl_session_create(&s, e));
    for (int32_t i = 0; i < N; i++) {
        of[i] = s;
        token[i] = i * 61 % VOCAB;
    }
    GOOD(bl_decode(e, &(struct bl_batch){.n = N, .token = token, .session = of}));
    GOOD(bl_decode(e, &(struct bl_batch){.n = 1, .token = token, .session = of}));
    const float *logits = bl_logits(e, 0);
    assert_non_null(logits);
    for (uint32_t i = 0; i < VOCAB; i++)
        sum += (double)logits[i] * (double)logits[i];
    double rms = sqrt(sum / VOCAB);
    if (!(rms > 0.2 && rms < 5)) /* not for NaN either */
        fail_msg("%s: logits of size %g", what, rms);
    assert_true(bl_logits(e, 0)[1] < bl_logits(e, 0)[0] || bl_logits(e, 0)[1] > bl_logits(e, 0)[0]);
    bl_session_destroy(s);
    bl_close(e);
}

static void test_every_shape_runs(void **state)
{
    (void)state;
    for (uint32_t i = 0; bl_synth_shape(i); i++) {
        bool groups = !strcmp(bl_synth_shape(i), "deepseek-v4-flash");
        write_tiny(bl_synth_shape(i), groups ? 5 : 4, NULL);
        check_run(bl_synth_shape(i));
    }
}

static void test_depth_does_not_blow_up(void **state)
{
    (void)state;
    write_tiny("qwen3-235b-a22b", 94, "q4_k_m");
    check_run("94 layers");
}

static void test_every_type_runs(void **state)
{
    (void)state;
    for (unsigned type = 0; type < BL_N_DTYPES; type++) {
        if (bl_dtypes[type].act == BL_ACT_NONE)
            continue;
        write_tiny("qwen3-30b-a3b", 2, bl_dtypes[type].name);
        check_run(bl_dtypes[type].name);
    }
}

static void test_every_recipe_runs(void **state)
{
    (void)state;
    const char *name, *types;
    for (uint32_t i = 0; (name = bl_synth_recipe(i, &types)); i++) {
        write_tiny("qwen3-30b-a3b", 8, name);
        check_run(name);
    }
}

static uint64_t hash_file(void)
{
    uint64_t h = 1;
    int c;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    while ((c = getc(f)) != EOF)
        h = h * 1099511628211u + (uint64_t)c;
    fclose(f);
    return h;
}

static void test_seeds_decide(void **state)
{
    (void)state;
    uint64_t hash[3];
    for (unsigned i = 0; i < 3; i++) {
        write_model(&(struct bl_synth_options){
            .shape = "smollm2-135m", .layers = 1, .vocab = 300, .seed = i / 2});
        hash[i] = hash_file();
    }
    assert_true(hash[0] == hash[1]);
    assert_true(hash[0] != hash[2]);
}

static void test_expert_ids_are_valid(void **state)
{
    (void)state;
    struct bl_tensor_info t = {
        .name = "x", .type = BL_I32, .ne = {6, 100000, 1, 1}, .bytes = 6 * 100000 * 4};
    struct bl_synth_fill *f;
    const void *bytes;
    uint64_t n, seen = 0;
    int32_t id[6];
    GOOD(bl_synth_fill_create(&f, &t, 0, 256));
    while ((n = bl_synth_fill_next(f, &bytes)))
        for (uint64_t i = 0; i < n; i += 4, seen++) {
            memcpy(&id[seen % 6], (const char *)bytes + i, 4);
            assert_in_range(id[seen % 6], 0, 255);
            for (uint64_t j = 0; j < seen % 6; j++)
                assert_int_not_equal(id[j], id[seen % 6]);
        }
    assert_int_equal(seen, 600000);
    bl_synth_fill_destroy(f);
}

/* ---- refusals ---- */

static void refuse(const char *json, const char *want)
{
    struct bl_synth *s;
    struct bl_synth_options o = {.shape = "mine", .json = json, .json_bytes = strlen(json)};
    if (!bl_synth_open(&s, &o))
        fail_msg("accepted: %s", json);
    if (!strstr(bl_error(), want))
        fail_msg("'%s' does not say '%s'", bl_error(), want);
}

static void test_bad_shapes_are_refused(void **state)
{
    (void)state;
    refuse("", "no JSON");
    refuse("[1]", "must be a JSON object");
    refuse("{\"layers\":1", "no JSON");
    refuse("{\"like\":\"nobody\"}", "'like'");
    refuse("{\"like\":\"llama-3-8b\",\"colour\":1}", "'colour'");
    refuse("{\"like\":\"llama-3-8b\",\"layers\":0}", "'layers'");
    refuse("{\"like\":\"llama-3-8b\",\"layers\":1.5}", "'layers'");
    refuse("{\"like\":\"llama-3-8b\",\"vocab\":10}", "'vocab'");
    refuse("{\"like\":\"llama-3-8b\",\"architecture\":\"unheard\"}", "'unheard'");
    refuse("{\"like\":\"llama-3-8b\",\"tensors\":[\"attn_z.weight\"]}", "'attn_z.weight'");
    refuse("{\"like\":\"llama-3-8b\",\"tensors\":7}", "'tensors'");
    refuse("{\"like\":\"llama-3-8b\",\"metadata\":{\"context_length\":[\"a\"]}}", "context_length");
    refuse("{\"like\":\"llama-3-8b\",\"metadata\":{\"x\":{\"i32\":[],\"repeat\":[]}}}", "llama.x");
    refuse("{\"like\":\"llama-3-8b\",\"metadata\":{\"embedding_length\":null}}",
           "embedding_length");
    refuse("{\"like\":\"llama-3-8b\",\"recipe\":\"q4_k,attn_z=q6_k\"}", "attn_z");
    refuse("{\"like\":\"llama-3-8b\",\"recipe\":\"i32\"}", "i32");
    refuse("{\"like\":\"llama-3-8b\",\"recipe\":\"q4_k,attn_q@few=q6_k\"}", "@few");
    refuse("{\"like\":\"llama-3-8b\",\"recipe\":\"q4_k,=q6_k\"}", "PATTERN=TYPE");
}

static void test_full_disk_is_refused_early(void **state)
{
    (void)state;
    struct bl_synth *s;
    struct bl_synth_options o = {.shape = "smollm2-135m", .layers = 1};
    unlink(path);
    GOOD(bl_synth_open(&s, &o));
    disk_bytes = 1000000;
    assert_int_equal(bl_synth_write(s, path), BL_EIO);
    assert_non_null(strstr(bl_error(), "the disk has 1000000 left"));
    bl_synth_close(s);
    o.no_data = true;
    o.vocab = 300;
    write_model(&o); /* a header is small */
    disk_bytes = UINT64_MAX;
    assert_int_equal(n_files(), 1);
}

static bool stop_halfway(void *arg, const struct bl_progress *p)
{
    *(uint64_t *)arg = p->total_bytes;
    return p->done_bytes < p->total_bytes / 2;
}

static void test_a_stopped_write_leaves_nothing(void **state)
{
    (void)state;
    uint64_t total = 0;
    struct bl_synth *s;
    struct bl_synth_info info;
    struct bl_synth_options o = {.shape = "smollm2-135m",
                                 .layers = 2,
                                 .vocab = 300,
                                 .progress = stop_halfway,
                                 .progress_arg = &total};
    unlink(path);
    GOOD(bl_synth_open(&s, &o));
    assert_int_equal(bl_synth_write(s, path), BL_ECANCELLED);
    bl_synth_describe(s, &info);
    assert_int_equal(total, info.weight_bytes);
    assert_int_equal(n_files(), 0);
    bl_synth_close(s);
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    struct bl_synth_options o = {.shape = "deepseek-v4-flash", .layers = 3, .vocab = 300};
    for (uint64_t n = 1;; n++) {
        struct bl_synth *s = NULL;
        alloc_fail_at(n);
        enum bl_status st = bl_synth_open(&s, &o);
        bool failed = alloc_fail_stop();
        bl_synth_close(s);
        if (!failed)
            break;
        assert_true(st == BL_ENOMEM || st == BL_OK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters_are_those_published),
        cmocka_unit_test(test_cut_headers_open),
        cmocka_unit_test(test_patterns_are_cut_and_continued),
        cmocka_unit_test(test_dense_layers_leave_one_of_experts),
        cmocka_unit_test(test_drafting_blocks_are_written),
        cmocka_unit_test(test_q4_k_m_is_the_mix_people_have),
        cmocka_unit_test(test_rules_name_tensors),
        cmocka_unit_test(test_weights_have_their_size),
        cmocka_unit_test(test_every_shape_runs),
        cmocka_unit_test(test_depth_does_not_blow_up),
        cmocka_unit_test(test_every_type_runs),
        cmocka_unit_test(test_every_recipe_runs),
        cmocka_unit_test(test_seeds_decide),
        cmocka_unit_test(test_expert_ids_are_valid),
        cmocka_unit_test(test_bad_shapes_are_refused),
        cmocka_unit_test(test_full_disk_is_refused_early),
        cmocka_unit_test(test_a_stopped_write_leaves_nothing),
        cmocka_unit_test(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
