/* SPDX-License-Identifier: MIT */
/* Valid GGUF files: contents, odd shapes, split models, accessors, and what happens when memory
 * runs out. */
#include "support.h"

#include "alloc_fail.h"
#include "gguf.h"
#include "gguf_bytes.h"

#include <dirent.h>
#include <unistd.h>

enum { PATH_BYTES = 512 };
static char folder[] = "/tmp/ballast-gguf-XXXXXX";

static int enter_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int empty_folder(void **state)
{
    DIR *d = opendir(folder);
    struct dirent *e;
    char path[PATH_BYTES];
    (void)state;
    while (d && (e = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.')
            unlink(path);
    }
    if (d)
        closedir(d);
    return 0;
}

static int leave_folder(void **state)
{
    empty_folder(state);
    return rmdir(folder);
}

static const char *in_folder(char path[PATH_BYTES], const char *name)
{
    snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    return path;
}

static void save(struct gb *b, const char *name)
{
    char path[PATH_BYTES];
    gb_save(b, in_folder(path, name));
    gb_finish(b);
}

static struct bl_gguf *open_good(const char *name)
{
    char path[PATH_BYTES];
    struct bl_gguf *g = NULL;
    if (bl_gguf_open(&g, in_folder(path, name)))
        fail_msg("%s", bl_error());
    return g;
}

static struct bl_gguf *open_small(void)
{
    struct gb b = {0};
    struct gb_marks m;
    gb_small(&b, &m);
    save(&b, "small.gguf");
    return open_good("small.gguf");
}

static void check_refused(const char *name, const char *what, const char *where)
{
    char path[PATH_BYTES];
    struct bl_gguf *g = NULL;
    assert_int_equal(bl_gguf_open(&g, in_folder(path, name)), BL_EFORMAT);
    if (!strstr(bl_error(), what) || !strstr(bl_error(), where))
        fail_msg("%s: \"%s\" lacks \"%s\" or \"%s\"", name, bl_error(), what, where);
    assert_null(g);
}

/* ---- contents
 * ----------------------------------------------------------------------------------------- */

static void test_contents(void **state)
{
    struct bl_gguf *g = open_small();
    (void)state;
    assert_int_equal(bl_gguf_n_kv(g), 8);
    assert_string_equal(bl_gguf_kv(g, 0)->key, "general.architecture");
    assert_int_equal(bl_gguf_kv(g, 0)->type, BL_VAL_STRING);
    assert_int_equal(bl_gguf_kv(g, 0)->n, 1);
    assert_int_equal(bl_gguf_kv(g, 0)->data_bytes, 8 + 5);
    const struct bl_kv *numbers = bl_gguf_find(g, "test.numbers");
    assert_ptr_equal(numbers, bl_gguf_kv(g, 4));
    assert_int_equal(numbers->type, BL_VAL_ARRAY);
    assert_int_equal(numbers->item, BL_VAL_U32);
    assert_int_equal(numbers->n, 3);
    assert_int_equal(numbers->data_bytes, 12);
    assert_int_equal(bl_load_u32((const char *)numbers->data + 8), 3);
    assert_null(bl_gguf_find(g, "test.number"));
    assert_null(bl_gguf_find(g, ""));
    assert_true(bl_gguf_heap_bytes(g) > 64 << 10);
    assert_true(bl_gguf_heap_bytes(g) < 80 << 10);
    bl_gguf_close(g);
    bl_gguf_close(NULL);
}

static void test_tensors(void **state)
{
    static const struct {
        const char *name, *type;
        uint32_t n_dims;
        uint64_t ne[4], bytes, off;
    } want[] = {{"t.a", "f32", 2, {32, 2, 1, 1}, 256, 0},
                {"t.b", "q4_k", 2, {256, 1, 1, 1}, 144, 256},
                {"t.c", "f32", 1, {5, 1, 1, 1}, 20, 416}};
    struct gb b = {0};
    struct gb_marks m;
    const void *map;
    (void)state;
    gb_small(&b, &m);
    gb_finish(&b);
    struct bl_gguf *g = open_small();
    assert_int_equal(bl_gguf_n_tensors(g), BL_COUNT(want));
    assert_int_equal(bl_file_map(bl_gguf_file(g, 0), &map), BL_OK);
    for (uint32_t i = 0; i < BL_COUNT(want); i++) {
        uint32_t at = 99;
        const struct bl_tensor_info *t = bl_gguf_find_tensor(g, want[i].name, &at);
        assert_ptr_equal(t, bl_gguf_tensor(g, i));
        assert_int_equal(at, i);
        assert_string_equal(t->type_name, want[i].type);
        assert_int_equal(t->n_dims, want[i].n_dims);
        assert_memory_equal(t->ne, want[i].ne, sizeof t->ne);
        assert_int_equal(t->bytes, want[i].bytes);
        assert_int_equal(t->file_off, m.data + want[i].off);
        assert_int_equal(t->shard, 0);
        assert_int_equal(((const unsigned char *)map)[t->file_off], want[i].off & 255);
    }
    assert_null(bl_gguf_find_tensor(g, "t.d", NULL));
    bl_gguf_close(g);
}

/* ---- odd but valid
 * ------------------------------------------------------------------------------------ */

static void test_trailing_bytes(void **state)
{
    static const char *const tail[] = {"", "x", "GGUF", "GGUF\3\0\0\0 and more of the same"};
    (void)state;
    for (size_t i = 0; i < BL_COUNT(tail); i++) {
        struct gb b = {0};
        struct gb_marks m;
        gb_small(&b, &m);
        gb_pad(&b, i % 2 ? 1 : 32);
        gb_bytes(&b, tail[i], strlen(tail[i]));
        save(&b, "tail.gguf");
        bl_gguf_close(open_good("tail.gguf"));
    }
}

static void test_smallest_files(void **state)
{
    struct gb b = {0};
    (void)state;
    gb_header(&b, 0, 0);
    save(&b, "nothing.gguf");
    struct bl_gguf *g = open_good("nothing.gguf");
    assert_int_equal(bl_gguf_n_kv(g), 0);
    assert_int_equal(bl_gguf_n_tensors(g), 0);
    assert_null(bl_gguf_find(g, "general.architecture"));
    assert_null(bl_gguf_find_tensor(g, "t", NULL));
    bl_gguf_close(g);
    gb_header(&b, 1, 0);
    gb_tensor(&b, "t", 1, (uint64_t[]){1}, GB_TENSOR_F32, 0);
    gb_pad(&b, 32);
    gb_zeros(&b, 4);
    save(&b, "one.gguf");
    g = open_good("one.gguf");
    assert_int_equal(bl_gguf_tensor(g, 0)->file_off, 64);
    bl_gguf_close(g);
}

static void test_version_2_and_alignments(void **state)
{
    static const uint32_t align[] = {1, 8, 64, 65536};
    (void)state;
    for (size_t i = 0; i < BL_COUNT(align); i++) {
        struct gb b = {0};
        gb_header(&b, 2, 1);
        gb_set(&b, 4, 4, 2);
        gb_kv_int(&b, "general.alignment", GB_U32, align[i]);
        gb_tensor(&b, "b", 1, (uint64_t[]){1}, GB_TENSOR_F32, align[i] < 4 ? 4 : align[i]);
        gb_tensor(&b, "a", 1, (uint64_t[]){1}, GB_TENSOR_I32, 0);
        gb_pad(&b, align[i]);
        size_t start = b.n;
        gb_zeros(&b, (align[i] < 4 ? 4 : align[i]) + 4);
        save(&b, "v2.gguf");
        struct bl_gguf *g = open_good("v2.gguf");
        assert_int_equal(bl_gguf_tensor(g, 1)->file_off, start); /* order in the file is free */
        bl_gguf_close(g);
    }
}

static void test_gaps_between_tensors(void **state)
{
    struct gb b = {0};
    (void)state;
    gb_header(&b, 2, 0);
    gb_tensor(&b, "late", 1, (uint64_t[]){1}, GB_TENSOR_F32, 1024);
    gb_tensor(&b, "early", 1, (uint64_t[]){1}, GB_TENSOR_F32, 96);
    gb_pad(&b, 32);
    gb_zeros(&b, 1028);
    save(&b, "gaps.gguf");
    bl_gguf_close(open_good("gaps.gguf"));
}

static void test_longest_name(void **state)
{
    struct gb b = {0};
    char name[257] = {0};
    (void)state;
    memset(name, 'n', 256);
    gb_header(&b, 1, 0);
    gb_tensor(&b, name, 4, (uint64_t[]){1, 1, 1, 2}, GB_TENSOR_F32, 0);
    gb_pad(&b, 32);
    gb_zeros(&b, 8);
    save(&b, "long.gguf");
    struct bl_gguf *g = open_good("long.gguf");
    assert_string_equal(bl_gguf_tensor(g, 0)->name, name);
    bl_gguf_close(g);
}

/* Many names that differ late: an index that compared all pairs would not end within the test's
 * time. */
static void test_many_tensors(void **state)
{
    enum { N = 1 << 18 }; /* the most */
    struct gb b = {0};
    char name[64];
    (void)state;
    gb_header(&b, N, 0);
    for (uint32_t i = 0; i < N; i++) {
        snprintf(name, sizeof name, "blk.0.some.rather.long.name.of.a.tensor.%u", N - i);
        gb_tensor(&b, name, 1, (uint64_t[]){1}, GB_TENSOR_F32, 32 * (uint64_t)i);
    }
    gb_pad(&b, 32);
    gb_zeros(&b, 32 * N);
    save(&b, "many.gguf");
    struct bl_gguf *g = open_good("many.gguf");
    uint32_t at = 0;
    assert_non_null(bl_gguf_find_tensor(g, "blk.0.some.rather.long.name.of.a.tensor.1", &at));
    assert_int_equal(at, N - 1);
    bl_gguf_close(g);
}

/* ---- split models
 * ------------------------------------------------------------------------------------- */

static void shard_name(char name[64], uint32_t no, uint32_t count)
{
    snprintf(name, 64, "m-%05u-of-%05u.gguf", no + 1, count);
}

/* Three shards: no tensors but the metadata, then two, then three. */
static const struct gb_shard three[] = {{0, 3, 5, 0, 0}, {1, 3, 5, 0, 2}, {2, 3, 5, 2, 3}};

static void save_shard(const struct gb_shard *s, uint32_t no)
{
    struct gb b = {0};
    char name[64];
    gb_shard(&b, s);
    shard_name(name, no, 3);
    save(&b, name);
}

static void save_three(void)
{
    for (uint32_t i = 0; i < 3; i++)
        save_shard(&three[i], i);
}

static void test_any_shard_opens_all(void **state)
{
    (void)state;
    save_three();
    for (uint32_t no = 0; no < 3; no++) {
        char name[64], path[PATH_BYTES];
        shard_name(name, no, 3);
        struct bl_gguf *g = open_good(name);
        assert_int_equal(bl_gguf_n_shards(g), 3);
        assert_int_equal(bl_gguf_n_tensors(g), 5);
        assert_non_null(bl_gguf_find(g, "general.architecture"));
        for (uint32_t i = 0; i < 3; i++) {
            shard_name(name, i, 3);
            assert_string_equal(bl_gguf_shard_path(g, i), in_folder(path, name));
        }
        assert_string_equal(bl_gguf_path(g), bl_gguf_shard_path(g, 0));
        uint32_t at;
        const struct bl_tensor_info *t = bl_gguf_find_tensor(g, "t3", &at);
        assert_int_equal(t->shard, 2);
        assert_int_equal(at, 3);
        assert_int_equal(t->file_off + t->bytes + 128, bl_gguf_shard_bytes(g, 2));
        bl_gguf_close(g);
    }
}

static void test_missing_shard(void **state)
{
    char name[64], path[PATH_BYTES];
    struct bl_gguf *g = NULL;
    (void)state;
    for (uint32_t gone = 0; gone < 3; gone++) {
        save_three();
        shard_name(name, gone, 3);
        unlink(in_folder(path, name));
        shard_name(name, gone ? 0 : 2, 3);
        assert_int_equal(bl_gguf_open(&g, in_folder(path, name)), BL_EIO);
        shard_name(name, gone, 3);
        assert_non_null(strstr(bl_error(), name));
        assert_non_null(strstr(bl_error(), "No such file"));
    }
}

/* Wrong in shard `no` only; opened through the first. */
static void check_bad_shard(uint32_t no, struct gb_shard bad, const char *what, const char *where)
{
    save_three();
    save_shard(&bad, no);
    check_refused("m-00001-of-00003.gguf", what, where);
}

static void test_inconsistent_shards(void **state)
{
    (void)state;
    check_bad_shard(0, (struct gb_shard){0, 3, 6, 0, 0}, "split.tensors.count is 6", "m-00001");
    check_bad_shard(0, (struct gb_shard){0, 4, 5, 0, 0}, "split.count", "the name says");
    check_bad_shard(0, (struct gb_shard){3, 3, 5, 0, 0}, "split.no is 3", "m-00001");
    check_bad_shard(0, (struct gb_shard){1, 3, 5, 0, 0}, "the name says shard 1", "2 of 3");
    check_bad_shard(1, (struct gb_shard){2, 3, 5, 0, 2}, "say shard 3 of 3", "m-00002");
    check_bad_shard(1, (struct gb_shard){1, 4, 5, 0, 2}, "say shard 2 of 4", "m-00002");
    check_bad_shard(1, (struct gb_shard){1, 1, 5, 0, 2}, "say shard 1 of 1", "m-00002");
    check_bad_shard(2, (struct gb_shard){2, 3, 5, 1, 3}, "occurs twice", "'t1'");
    check_bad_shard(2, (struct gb_shard){2, 3, 5, 2, 2}, "hold 4 tensors", "m-00001");
    struct gb b = {0};
    gb_shard(&b, &(struct gb_shard){0, 1001, 5, 0, 0});
    save(&b, "m-00001-of-01001.gguf");
    check_refused("m-00001-of-01001.gguf", "the most is 1000", "split.count");
    save_three();
    gb_shard(&b, &three[2]);
    b.n -= 1;
    save(&b, "m-00003-of-00003.gguf");
    check_refused("m-00001-of-00003.gguf", "truncated", "m-00003");
}

/* Shards that are good each, but more than the most together. */
static void test_too_many_tensors_in_shards(void **state)
{
    enum { N = (1 << 17) + 1 };
    (void)state;
    for (uint32_t no = 0; no < 2; no++) {
        struct gb b = {0};
        gb_shard(&b, &(struct gb_shard){no, 2, 2 * N, no * N, N});
        save(&b, no ? "m-00002-of-00002.gguf" : "m-00001-of-00002.gguf");
    }
    check_refused("m-00001-of-00002.gguf", "262146 tensors; the most is 262144", "m-00002");
}

static void test_split_keys(void **state)
{
    struct gb b = {0};
    (void)state;
    gb_header(&b, 0, 1);
    gb_kv_int(&b, "split.count", GB_U16, 2);
    save(&b, "m-00001-of-00002.gguf");
    check_refused("m-00001-of-00002.gguf", "split.no", "missing");
    gb_header(&b, 0, 1);
    gb_kv_str(&b, "split.count", "2");
    save(&b, "m-00001-of-00002.gguf");
    check_refused("m-00001-of-00002.gguf", "split.count", "integer");
    gb_header(&b, 0, 1);
    gb_kv_int(&b, "split.count", GB_I32, UINT32_MAX);
    save(&b, "m-00001-of-00002.gguf");
    check_refused("m-00001-of-00002.gguf", "split.count", "fit");
}

static void test_renamed_shard(void **state)
{
    struct gb b = {0};
    (void)state;
    gb_shard(&b, &three[1]);
    save(&b, "model.gguf");
    check_refused("model.gguf", "shard 2 of 3", "-00002-of-00003.gguf");
}

static void test_shard_like_names(void **state)
{
    static const char *const name[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                       "-00000-of-00000.gguf", "m-99999-of-00001.gguf"};
    struct gb_marks m;
    (void)state;
    for (size_t i = 0; i < BL_COUNT(name); i++) {
        struct gb b = {0};
        gb_small(&b, &m); /* no split keys */
        save(&b, name[i]);
        bl_gguf_close(open_good(name[i]));
        for (uint32_t count = 0; count < 2; count++) { /* keys that say: not split */
            gb_shard(&b, &(struct gb_shard){0, count, 1, 0, 1});
            save(&b, name[i]);
            struct bl_gguf *g = open_good(name[i]);
            assert_int_equal(bl_gguf_n_shards(g), 1);
            bl_gguf_close(g);
        }
    }
}

static void test_glued_shards(void **state)
{
    static const char *const name[] = {"glued.gguf", "m-00001-of-00003.gguf"};
    static const struct gb_shard with_data[] = {{0, 3, 3, 0, 1}, {1, 3, 3, 1, 1}, {2, 3, 3, 2, 1}};
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        const struct gb_shard *s = i & 1 ? with_data : three;
        struct gb b = {0};
        gb_shard(&b, &s[i & 2 ? 2 : 0]); /* in whatever order */
        if (i & 1)
            gb_pad(&b, 32);
        gb_shard(&b, &s[1]);
        save(&b, name[i >> 2]);
        check_refused(name[i >> 2], "glued together", "offset");
    }
}

static void test_glue_in_a_later_shard(void **state)
{
    struct gb b = {0};
    (void)state;
    save_three();
    gb_shard(&b, &three[1]);
    gb_shard(&b, &three[2]);
    save(&b, "m-00002-of-00003.gguf");
    check_refused("m-00001-of-00003.gguf", "glued together", "m-00002");
}

static void test_unpadded_glue(void **state)
{
    struct gb b = {0};
    (void)state;
    gb_header(&b, 1, 2);
    gb_kv_int(&b, "split.no", GB_U16, 0);
    gb_kv_int(&b, "split.count", GB_U16, 2);
    gb_tensor(&b, "t0", 1, (uint64_t[]){1}, GB_TENSOR_F32, 0);
    gb_pad(&b, 32);
    gb_zeros(&b, 4); /* ends with its last tensor byte */
    gb_shard(&b, &three[1]);
    save(&b, "glued.gguf");
    check_refused("glued.gguf", "glued together", "offset");
}

/* ---- accessors
 * ---------------------------------------------------------------------------------------- */

static void put_f64(struct gb *b, const char *key, double v)
{
    gb_key(b, key, GB_F64);
    gb_bytes(b, &v, sizeof v);
}

static void put_f32(struct gb *b, const char *key, float v)
{
    gb_key(b, key, GB_F32);
    gb_bytes(b, &v, sizeof v);
}

static struct bl_gguf *open_values(void)
{
    static const uint8_t type[] = {GB_U8, GB_I8, GB_U16, GB_I16, GB_U32, GB_I32, GB_U64, GB_I64};
    static const char *const name[] = {"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"};
    struct gb b = {0};
    char key[16];
    gb_header(&b, 0, 3 * 8 + 12);
    for (unsigned i = 0; i < 8; i++) {
        gb_kv_int(&b, name[i], type[i], 100);
        snprintf(key, sizeof key, "%s.ones", name[i]);
        gb_kv_int(&b, key, type[i], UINT64_MAX);
        snprintf(key, sizeof key, "%s.one", name[i]);
        gb_kv_int(&b, key, type[i], 1);
    }
    put_f32(&b, "f32", 0.5f);
    put_f64(&b, "f64", 1e-5);
    put_f64(&b, "f64.large", 1e300);
    gb_kv_int(&b, "yes", GB_BOOL, 1);
    gb_kv_str(&b, "text", "abc");
    gb_kv_str(&b, "none", "");
    gb_array(&b, "layers", GB_U16, 3);
    gb_int(&b, 6, 0x000300020001);
    gb_array(&b, "flags", GB_BOOL, 3);
    gb_int(&b, 3, 0x010001);
    gb_array(&b, "floats", GB_F32, 2);
    gb_bytes(&b, (float[]){1.5f, -2}, 8);
    gb_array(&b, "signed", GB_I64, 3);
    gb_int(&b, 8, (uint64_t)-1);
    gb_int(&b, 8, (uint64_t)INT32_MIN);
    gb_int(&b, 8, (uint64_t)INT32_MAX + 1);
    gb_array(&b, "late", GB_I8, 3); /* the last does not fit u32 */
    gb_int(&b, 3, 0xff0908);
    gb_array(&b, "words", GB_STRING, 3);
    gb_str(&b, "x");
    gb_str(&b, "");
    gb_int(&b, 8, 3);
    gb_bytes(&b, "\0\377\n", 3); /* any bytes */
    save(&b, "values.gguf");
    return open_good("values.gguf");
}

static void check_error(enum bl_status st, const char *key, const char *what)
{
    assert_int_equal(st, BL_EFORMAT);
    if (!strstr(bl_error(), key) || !strstr(bl_error(), what) || !strstr(bl_error(), ".gguf"))
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", bl_error(), key, what);
}

static void test_integer_widths(void **state)
{
    static const char *const name[] = {"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64"};
    static const int64_t ones[] = {255, -1, 65535, -1, UINT32_MAX, -1, 0 /* overflows */, -1};
    struct bl_gguf *g = open_values();
    char key[16];
    (void)state;
    for (int i = 0; i < 8; i++) {
        int64_t v = 0;
        uint32_t u = 0;
        assert_int_equal(bl_gguf_i64(g, name[i], true, &v), BL_OK);
        assert_int_equal(v, 100);
        assert_int_equal(bl_gguf_u32(g, name[i], true, &u), BL_OK);
        assert_int_equal(u, 100);
        snprintf(key, sizeof key, "%s.ones", name[i]);
        v = 7;
        if (i == 6) {
            check_error(bl_gguf_i64(g, key, false, &v), key, "fit i64");
            assert_int_equal(v, 7);
        } else {
            assert_int_equal(bl_gguf_i64(g, key, true, &v), BL_OK);
            assert_true(v == ones[i]);
        }
        if (ones[i] > 0) {
            assert_int_equal(bl_gguf_u32(g, key, true, &u), BL_OK);
            assert_true(u == ones[i]);
        } else {
            check_error(bl_gguf_u32(g, key, false, &u), key, "fit u32");
            assert_int_equal(u, 100);
        }
    }
    bl_gguf_close(g);
}

static void test_absent_and_wrong_type(void **state)
{
    struct bl_gguf *g = open_values();
    int64_t i = 42;
    uint32_t u = 42;
    float f = 42;
    bool y = true, found = true;
    const char *s = "42";
    uint64_t n = 42;
    (void)state;
    assert_int_equal(bl_gguf_i64(g, "absent", false, &i), BL_OK);
    assert_int_equal(bl_gguf_u32(g, "absent", false, &u), BL_OK);
    assert_int_equal(bl_gguf_f32(g, "absent", false, &f), BL_OK);
    assert_int_equal(bl_gguf_bool(g, "absent", false, &y), BL_OK);
    assert_int_equal(bl_gguf_str(g, "absent", false, &s, &n), BL_OK);
    assert_int_equal(bl_gguf_u32_per_layer(g, "absent", false, 1, &u, &found), BL_OK);
    assert_false(found);
    check_error(bl_gguf_i64(g, "absent", true, &i), "absent", "missing");
    check_error(bl_gguf_u32(g, "absent", true, &u), "absent", "missing");
    check_error(bl_gguf_f32(g, "absent", true, &f), "absent", "missing");
    check_error(bl_gguf_bool(g, "absent", true, &y), "absent", "missing");
    check_error(bl_gguf_str(g, "absent", true, &s, &n), "absent", "missing");
    check_error(bl_gguf_u32_per_layer(g, "absent", true, 1, &u, NULL), "absent", "missing");
    check_error(bl_gguf_f32_array(g, "absent", 0, &f), "absent", "missing");
    check_error(bl_gguf_i64(g, "f32", false, &i), "f32", "integer");
    check_error(bl_gguf_i64(g, "yes", false, &i), "yes", "integer");
    check_error(bl_gguf_i64(g, "layers", false, &i), "layers", "u16[]");
    check_error(bl_gguf_u32(g, "text", false, &u), "text", "is string");
    check_error(bl_gguf_u32(g, "layers", false, &u), "layers", "u16[]");
    check_error(bl_gguf_f32(g, "u32", false, &f), "u32", "f32 or f64");
    check_error(bl_gguf_f32(g, "floats", false, &f), "floats", "f32[]");
    check_error(bl_gguf_bool(g, "f32", false, &y), "f32", "bool");
    check_error(bl_gguf_bool(g, "flags", false, &y), "flags", "bool[]");
    check_error(bl_gguf_bool(g, "u8", false, &y), "u8", "fit a bool");
    check_error(bl_gguf_bool(g, "i8.ones", false, &y), "i8.ones", "fit a bool");
    check_error(bl_gguf_bool(g, "u64.ones", false, &y), "u64.ones", "fit a bool");
    check_error(bl_gguf_str(g, "u8", false, &s, &n), "u8", "string");
    check_error(bl_gguf_str(g, "words", false, &s, &n), "words", "string[]");
    assert_true(i == 42 && u == 42 && f == 42 && y && n == 42 && !strcmp(s, "42"));
    bl_gguf_close(g);
}

static void test_floats_bools_strings(void **state)
{
    struct bl_gguf *g = open_values();
    float f;
    bool y = false;
    const char *s;
    uint64_t n;
    (void)state;
    assert_int_equal(bl_gguf_f32(g, "f32", true, &f), BL_OK);
    assert_true(f == 0.5f);
    assert_int_equal(bl_gguf_f32(g, "f64", true, &f), BL_OK);
    assert_true(f == 1e-5f);
    check_error(bl_gguf_f32(g, "f64.large", true, &f), "f64.large", "fit f32");
    assert_int_equal(bl_gguf_bool(g, "yes", true, &y), BL_OK);
    assert_true(y);
    y = false;
    assert_int_equal(bl_gguf_bool(g, "i64.one", true, &y), BL_OK);
    assert_true(y);
    assert_int_equal(bl_gguf_str(g, "text", true, &s, &n), BL_OK);
    assert_int_equal(n, 3);
    assert_memory_equal(s, "abc", 3);
    assert_int_equal(bl_gguf_str(g, "none", true, &s, &n), BL_OK);
    assert_int_equal(n, 0);
    bl_gguf_close(g);
}

static void test_per_layer(void **state)
{
    struct bl_gguf *g = open_values();
    uint32_t v[4] = {9, 9, 9, 9};
    bool found = false;
    (void)state;
    assert_int_equal(bl_gguf_u32_per_layer(g, "u8", true, 3, v, &found), BL_OK);
    assert_true(found && v[0] == 100 && v[1] == 100 && v[2] == 100 && v[3] == 9);
    assert_int_equal(bl_gguf_u32_per_layer(g, "layers", true, 3, v, NULL), BL_OK);
    assert_true(v[0] == 1 && v[1] == 2 && v[2] == 3 && v[3] == 9);
    assert_int_equal(bl_gguf_u32_per_layer(g, "flags", true, 2, v, NULL), BL_OK);
    assert_true(v[0] == 1 && v[1] == 0 && v[2] == 3);
    check_error(bl_gguf_u32_per_layer(g, "layers", false, 4, v, NULL), "layers", "3 elements; 4");
    check_error(bl_gguf_u32_per_layer(g, "signed", false, 3, v, NULL), "signed", "fit u32");
    check_error(bl_gguf_u32_per_layer(g, "late", false, 3, v, NULL), "late", "fit u32");
    check_error(bl_gguf_u32_per_layer(g, "floats", false, 2, v, NULL), "floats", "f32[]");
    check_error(bl_gguf_u32_per_layer(g, "words", false, 1, v, NULL), "words", "string[]");
    check_error(bl_gguf_u32_per_layer(g, "text", false, 1, v, NULL), "text", "integer");
    assert_true(v[0] == 1 && v[1] == 0 && v[2] == 3);
    bl_gguf_close(g);
}

static void test_elements(void **state)
{
    struct bl_gguf *g = open_values();
    float f;
    int32_t i;
    (void)state;
    assert_int_equal(bl_gguf_f32_array(g, "floats", 1, &f), BL_OK);
    assert_true(f == -2);
    check_error(bl_gguf_f32_array(g, "floats", 2, &f), "floats", "element 2");
    check_error(bl_gguf_f32_array(g, "floats", UINT64_MAX, &f), "floats", "2 elements");
    check_error(bl_gguf_f32_array(g, "layers", 0, &f), "layers", "f32");
    check_error(bl_gguf_f32_array(g, "f32", 0, &f), "f32", "array");
    assert_int_equal(bl_gguf_i32_array(g, "layers", 2, &i), BL_OK);
    assert_int_equal(i, 3);
    assert_int_equal(bl_gguf_i32_array(g, "signed", 0, &i), BL_OK);
    assert_int_equal(i, -1);
    assert_int_equal(bl_gguf_i32_array(g, "signed", 1, &i), BL_OK);
    assert_int_equal(i, INT32_MIN);
    check_error(bl_gguf_i32_array(g, "signed", 2, &i), "signed", "fit i32");
    check_error(bl_gguf_i32_array(g, "words", 0, &i), "words", "integer");
    bl_gguf_close(g);
}

static void test_string_walk(void **state)
{
    struct bl_gguf *g = open_values();
    const struct bl_kv *words = bl_gguf_find(g, "words");
    uint64_t at = 0, n = 0;
    const char *s;
    (void)state;
    assert_true(bl_gguf_next_string(words, &at, &s, &n));
    assert_true(n == 1 && s[0] == 'x');
    assert_true(bl_gguf_next_string(words, &at, &s, &n));
    assert_int_equal(n, 0);
    assert_true(bl_gguf_next_string(words, &at, &s, &n));
    assert_int_equal(n, 3);
    assert_memory_equal(s, "\0\377\n", 3);
    assert_false(bl_gguf_next_string(words, &at, &s, &n));
    assert_false(bl_gguf_next_string(words, &at, &s, &n));
    at = 0;
    assert_false(bl_gguf_next_string(bl_gguf_find(g, "layers"), &at, &s, &n));
    bl_gguf_close(g);
}

/* ---- out of memory
 * ------------------------------------------------------------------------------------ */

static void open_with_failures(const char *name, uint64_t least)
{
    char path[PATH_BYTES];
    uint64_t n = 1;
    in_folder(path, name);
    for (;; n++) {
        struct bl_gguf *g = NULL;
        alloc_fail_at(n);
        enum bl_status st = bl_gguf_open(&g, path);
        bool hit = alloc_fail_stop();
        if (!hit) {
            assert_int_equal(st, BL_OK);
            bl_gguf_close(g);
            break;
        }
        assert_true(st == BL_ENOMEM || st == BL_EIO); /* EIO: the mapping */
        assert_non_null(strstr(bl_error(), "emory"));
        assert_null(g);
    }
    assert_true(n > least);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    bl_gguf_close(open_small());
    open_with_failures("small.gguf", 8);
    save_three();
    open_with_failures("m-00001-of-00003.gguf", 24);
    open_with_failures("m-00003-of-00003.gguf", 32);
}

/* ---- recorded files
 * ----------------------------------------------------------------------------------- */

static int open_all_in(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int n = 0;
    while (d && (e = readdir(d))) {
        char path[PATH_BYTES];
        struct bl_gguf *g = NULL;
        size_t len = strlen(e->d_name);
        if (len < 5 || strcmp(e->d_name + len - 5, ".gguf"))
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (bl_gguf_open(&g, path))
            fail_msg("%s", bl_error());
        bl_gguf_close(g);
        n++;
    }
    if (d)
        closedir(d);
    return n;
}

static void test_reference_files(void **state)
{
    const char *root = getenv("BALLAST_REFERENCE");
    char dir[PATH_BYTES];
    (void)state;
    if (!root) {
        print_message("skipped: BALLAST_REFERENCE names no folder of recorded models\n");
        skip();
    }
    snprintf(dir, sizeof dir, "%s/models", root);
    assert_true(open_all_in(dir) > 0);
    snprintf(dir, sizeof dir, "%s/tokenizer", root);
    assert_true(open_all_in(dir) > 0);
}

#define IN_FOLDER(f) cmocka_unit_test_teardown(f, empty_folder)
int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_contents),
        IN_FOLDER(test_tensors),
        IN_FOLDER(test_trailing_bytes),
        IN_FOLDER(test_smallest_files),
        IN_FOLDER(test_version_2_and_alignments),
        IN_FOLDER(test_gaps_between_tensors),
        IN_FOLDER(test_longest_name),
        IN_FOLDER(test_many_tensors),
        IN_FOLDER(test_any_shard_opens_all),
        IN_FOLDER(test_missing_shard),
        IN_FOLDER(test_inconsistent_shards),
        IN_FOLDER(test_too_many_tensors_in_shards),
        IN_FOLDER(test_split_keys),
        IN_FOLDER(test_renamed_shard),
        IN_FOLDER(test_shard_like_names),
        IN_FOLDER(test_glued_shards),
        IN_FOLDER(test_glue_in_a_later_shard),
        IN_FOLDER(test_unpadded_glue),
        IN_FOLDER(test_integer_widths),
        IN_FOLDER(test_absent_and_wrong_type),
        IN_FOLDER(test_floats_bools_strings),
        IN_FOLDER(test_per_layer),
        IN_FOLDER(test_elements),
        IN_FOLDER(test_string_walk),
        IN_FOLDER(test_out_of_memory),
        cmocka_unit_test(test_reference_files),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
