/* SPDX-License-Identifier: MIT */
/* Malformed GGUF files: one spoiled field at a time, every truncation, random damage, and what
 * refusing costs. */
#include "support.h"

#include "gguf.h"
#include "gguf_bytes.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/ballast-reject-XXXXXX";
static char path[sizeof folder + 16];

static int enter_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/bad.gguf", folder);
    return 0;
}

static int leave_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static enum bl_status open_bytes(const struct gb *b)
{
    struct bl_gguf *g = NULL;
    gb_save(b, path);
    enum bl_status st = bl_gguf_open(&g, path);
    bl_gguf_close(g);
    return st;
}

/* Every refusal names the file and says what and where. */
static void check_message(const char *row, const char *what, const char *where)
{
    const char *said = bl_error();
    if (strstr(said, "bad.gguf") && strstr(said, what) && strstr(said, where) &&
        !strchr(said, '\n'))
        return;
    fail_msg("%s: \"%s\" lacks \"%s\" or \"%s\"", row, said, what, where);
}

/* ---- one spoiled field
 * -------------------------------------------------------------------------------- */

struct spoil {
    const char *row; /* of the reject list in the format notes: number and variant */
    size_t mark;     /* offset in struct gb_marks of the field */
    unsigned n_bytes;
    uint64_t value;
    enum bl_status status;
    const char *what, *where;
};
#define AT(field) offsetof(struct gb_marks, field)
#define POW(n) ((uint64_t)1 << (n))
static const struct spoil spoils[] = {
    {"1 version 0", AT(version), 4, 0, BL_EUNSUPPORTED, "version 0", "offset 4"},
    {"1 version 1", AT(version), 4, 1, BL_EUNSUPPORTED, "version 1", "offset 4"},
    {"1 version 4", AT(version), 4, 4, BL_EUNSUPPORTED, "version 4", "offset 4"},
    {"1 big-endian", AT(version), 4, 0x03000000, BL_EUNSUPPORTED, "big-endian", "offset 4"},
    {"2 keys 2^63", AT(n_kv), 8, POW(63), BL_EFORMAT, "metadata keys", "offset 16"},
    {"2 keys 2^64-1", AT(n_kv), 8, UINT64_MAX, BL_EFORMAT, "metadata keys", "offset 16"},
    {"2 keys wrap", AT(n_kv), 8, UINT64_MAX / 14 + 1, BL_EFORMAT, "metadata keys", "offset 16"},
    {"2 keys too many", AT(n_kv), 8, POW(16) + 1, BL_EFORMAT, "the most is", "offset 16"},
    {"2 keys for file", AT(n_kv), 8, POW(16), BL_EFORMAT, "917528 needed", "offset 16"},
    {"2 keys plus one", AT(n_kv), 8, 9, BL_EFORMAT, "name", "tensor 0"},
    {"2 tensors 2^63", AT(n_tensors), 8, POW(63), BL_EFORMAT, "tensors", "offset 8"},
    {"2 tensors 2^64-1", AT(n_tensors), 8, UINT64_MAX, BL_EFORMAT, "tensors", "offset 8"},
    {"2 tensors many", AT(n_tensors), 8, POW(18) + 1, BL_EFORMAT, "the most is", "offset 8"},
    {"2 tensors for file", AT(n_tensors), 8, POW(18), BL_EFORMAT, "needed", "offset 8"},
    {"3 key 2^64-1", AT(arch_len), 8, UINT64_MAX, BL_EFORMAT, "key", "offset 24"},
    {"3 key 2^63", AT(arch_len), 8, POW(63), BL_EFORMAT, "the most is 65536", "offset 24"},
    {"3 key 64 KiB + 1", AT(arch_len), 8, 65537, BL_EFORMAT, "the most is 65536", "offset 24"},
    {"3 key past end", AT(arch_len), 8, 65536, BL_EFORMAT, "65568 needed", "offset 32"},
    {"3 value 2^64-1", AT(arch_value), 8, UINT64_MAX, BL_EFORMAT, "string", "general.arch"},
    {"3 value wraps", AT(arch_value), 8, UINT64_MAX - 40, BL_EFORMAT, "the most", "general.arch"},
    {"3 value 1 GiB", AT(arch_value), 8, POW(30), BL_EFORMAT, "needed", "general.arch"},
    {"3 value 1 GiB + 1", AT(arch_value), 8, POW(30) + 1, BL_EFORMAT, "the most", "general.arch"},
    {"3 name 2^64-1", AT(a_len), 8, UINT64_MAX, BL_EFORMAT, "name", "tensor 0"},
    {"3 element 2^64-8", AT(words_len), 8, UINT64_MAX - 7, BL_EFORMAT, "string", "test.words"},
    {"3 last element", AT(words_last), 8, 4096, BL_EFORMAT, "string", "test.words"},
    {"4 array 2^64-1", AT(numbers_n), 8, UINT64_MAX, BL_EFORMAT, "the most", "test.numbers"},
    {"4 array wraps", AT(numbers_n), 8, POW(62), BL_EFORMAT, "the most", "test.numbers"},
    {"4 array 2^30 + 1", AT(numbers_n), 8, POW(30) + 1, BL_EFORMAT, "the most", "test.numbers"},
    {"4 array 2^30", AT(numbers_n), 8, POW(30), BL_EFORMAT, "needed", "test.numbers"},
    {"4 array past end", AT(numbers_n), 8, 4096, BL_EFORMAT, "needed", "test.numbers"},
    {"4 strings wrap", AT(words_n), 8, POW(61), BL_EFORMAT, "the most", "test.words"},
    {"4 strings 2^24 + 1", AT(words_n), 8, POW(24) + 1, BL_EFORMAT, "the most", "test.words"},
    {"4 strings 2^24", AT(words_n), 8, POW(24), BL_EFORMAT, "needed", "test.words"},
    {"4 one string more", AT(words_n), 8, 4, BL_EFORMAT, "", "offset"},
    {"5 value type 13", AT(arch_type), 4, 13, BL_EFORMAT, "value type 13", "general.arch"},
    {"5 value type -1", AT(arch_type), 4, UINT32_MAX, BL_EFORMAT, "value type", "general.arch"},
    {"5 element type 13", AT(words_item), 4, 13, BL_EFORMAT, "element type 13", "test.words"},
    {"5 array of arrays", AT(words_item), 4, 9, BL_EFORMAT, "array of arrays", "test.words"},
    {"6 empty key", AT(arch_len), 8, 0, BL_EFORMAT, "empty key", "offset 32"},
    {"6 duplicate key", AT(twin_text), 1, 'b', BL_EFORMAT, "occurs twice", "test.ab"},
    {"6 NUL in key", AT(arch_text), 1, 0, BL_EFORMAT, "NUL", "offset 32"},
    {"7 bool 2", AT(bool_value), 1, 2, BL_EFORMAT, "is 2, not 0 or 1", "test.bool"},
    {"7 bools 255", AT(flags_value), 1, 255, BL_EFORMAT, "is 255", "test.flags"},
    {"8 alignment i32", AT(align_type), 4, GB_I32, BL_EFORMAT, "u32", "general.alignment"},
    {"8 alignment f32", AT(align_type), 4, GB_F32, BL_EFORMAT, "u32", "general.alignment"},
    {"8 alignment 0", AT(align_value), 4, 0, BL_EFORMAT, "power of two", "general.alignment"},
    {"8 alignment 24", AT(align_value), 4, 24, BL_EFORMAT, "power of two", "general.alignment"},
    {"8 alignment 2^17", AT(align_value), 4, POW(17), BL_EFORMAT, "65536", "general.alignment"},
    {"8 alignment 2^30", AT(align_value), 4, POW(30), BL_EFORMAT, "65536", "general.alignment"},
    {"9 empty name", AT(a_len), 8, 0, BL_EFORMAT, "empty name", "tensor 0"},
    {"9 name 257", AT(a_len), 8, 257, BL_EFORMAT, "the most is 256", "tensor 0"},
    {"9 NUL in name", AT(a_text), 1, 0, BL_EFORMAT, "NUL", "tensor 0"},
    {"9 duplicate name", AT(b_text), 1, 'a', BL_EFORMAT, "occurs twice", "t.a"},
    {"10 no dims", AT(a_n_dims), 4, 0, BL_EFORMAT, "0 dimensions", "t.a"},
    {"10 five dims", AT(a_n_dims), 4, 5, BL_EFORMAT, "5 dimensions", "t.a"},
    {"10 dims -1", AT(a_n_dims), 4, UINT32_MAX, BL_EFORMAT, "dimensions", "t.a"},
    {"11 row 0", AT(a_ne0), 8, 0, BL_EFORMAT, "dimension 0 is 0", "t.a"},
    {"11 no rows", AT(a_ne1), 8, 0, BL_EFORMAT, "dimension 1 is 0", "t.a"},
    {"11 row 2^63", AT(a_ne0), 8, POW(63), BL_EFORMAT, "2^63", "t.a"},
    {"11 row 2^64-1", AT(a_ne0), 8, UINT64_MAX, BL_EFORMAT, "2^63", "t.a"},
    {"11 row 2^63-1", AT(a_ne0), 8, POW(63) - 1, BL_EFORMAT, "2^63", "t.a"},
    {"11 product 2^63", AT(a_ne1), 8, POW(58), BL_EFORMAT, "2^63", "t.a"},
    {"11 product wraps", AT(a_ne1), 8, POW(59) + 1, BL_EFORMAT, "2^63", "t.a"},
    {"11 blocks wrap", AT(b_ne1), 8, POW(56) + 1, BL_EFORMAT, "2^63", "t.b"},
    {"11 2^42+1 rows", AT(a_ne1), 8, POW(42) + 1, BL_EFORMAT, "needed", "t.a"},
    {"12 type 4", AT(a_type), 4, 4, BL_EFORMAT, "4", "t.a"},
    {"12 type 36", AT(a_type), 4, 36, BL_EFORMAT, "36", "t.a"},
    {"12 type 1000", AT(a_type), 4, 1000, BL_EFORMAT, "1000", "t.a"},
    {"12 type -1", AT(a_type), 4, UINT32_MAX, BL_EFORMAT, "type", "t.a"},
    {"12 type 2^31", AT(a_type), 4, POW(31), BL_EFORMAT, "type", "t.a"},
    {"13 row 255", AT(b_ne0), 8, 255, BL_EFORMAT, "multiple of 256", "t.b"},
    {"13 row 128", AT(b_ne0), 8, 128, BL_EFORMAT, "multiple of 256", "t.b"},
    {"13 type", AT(a_type), 4, GB_TENSOR_Q4_K, BL_EFORMAT, "multiple of 256", "t.a"},
    {"14 bytes wrap", AT(a_ne1), 8, POW(57), BL_EFORMAT, "2^63 - 1 bytes", "t.a"},
    {"14 bytes 2^63", AT(a_ne1), 8, POW(56), BL_EFORMAT, "2^63 - 1 bytes", "t.a"},
    {"15 unaligned", AT(b_off), 8, 257, BL_EFORMAT, "alignment", "t.b"},
    {"15 half aligned", AT(b_off), 8, 256 + 16, BL_EFORMAT, "alignment", "t.b"},
    {"15 past end", AT(b_off), 8, POW(20), BL_EFORMAT, "needed", "t.b"},
    {"15 2^63", AT(b_off), 8, POW(63), BL_EFORMAT, "needed", "t.b"},
    {"15 last 32 bytes", AT(c_off), 8, 448, BL_EFORMAT, "needed", "t.c"},
    {"16 same place", AT(b_off), 8, 0, BL_EFORMAT, "overlap", "t.b"},
    {"16 tail", AT(b_off), 8, 224, BL_EFORMAT, "overlap", "t.a"},
    {"16 last", AT(c_off), 8, 256 + 128, BL_EFORMAT, "overlap", "t.c"},
    {"17 offset wraps", AT(b_off), 8, UINT64_MAX - 31, BL_EFORMAT, "2^64", "t.b"},
    {"17 end wraps", AT(a_off), 8, UINT64_MAX - 511, BL_EFORMAT, "2^64", "t.a"},
    {"18 one more row", AT(a_ne1), 8, 8, BL_EFORMAT, "needed", "t.a"},
};

static void spoil_bytes(struct gb *b, const struct spoil *s)
{
    struct gb_marks m;
    size_t at;
    gb_small(b, &m);
    memcpy(&at, (const char *)&m + s->mark, sizeof at);
    gb_set(b, at, s->n_bytes, s->value);
}

static void test_spoiled_fields(void **state)
{
    (void)state;
    for (size_t i = 0; i < BL_COUNT(spoils); i++) {
        const struct spoil *s = &spoils[i];
        struct gb b = {0};
        spoil_bytes(&b, s);
        enum bl_status st = open_bytes(&b);
        gb_finish(&b);
        if (st != s->status)
            fail_msg("%s: %s, said \"%s\"", s->row, bl_status_name(st), bl_error());
        check_message(s->row, s->what, s->where);
    }
}

static void test_overlap_by_a_byte(void **state)
{
    (void)state;
    for (uint64_t off = 7; off <= 8; off++) {
        struct gb b = {0};
        gb_header(&b, 2, 1);
        gb_kv_int(&b, "general.alignment", GB_U32, 1);
        gb_tensor(&b, "two", 1, (uint64_t[]){1}, GB_TENSOR_F32, off);
        gb_tensor(&b, "one", 1, (uint64_t[]){2}, GB_TENSOR_F32, 0);
        gb_zeros(&b, 12);
        assert_int_equal(open_bytes(&b), off == 8 ? BL_OK : BL_EFORMAT);
        if (off < 8)
            check_message("16 one byte", "'one' and 'two'", "overlap");
        gb_finish(&b);
    }
}

static void test_wrong_magic(void **state)
{
    static const char *const start[][2] = {{"GGUX", "not a GGUF file"}, {"FUGG", "byte-swapped"},
                                           {"vers", "Git LFS"},         {"PK\3\4", "ZIP"},
                                           {"tjgg", "before GGUF"},     {"<!DO", "web page"}};
    struct gb_marks m;
    (void)state;
    for (size_t i = 0; i < BL_COUNT(start); i++) {
        struct gb b = {0};
        gb_small(&b, &m);
        memcpy(b.p, start[i][0], 4);
        assert_int_equal(open_bytes(&b), BL_EFORMAT);
        check_message(start[i][0], start[i][1], "begins with");
        b.n = 5; /* a short file of another kind is not called truncated */
        assert_int_equal(open_bytes(&b), BL_EFORMAT);
        check_message(start[i][0], start[i][1], "begins with");
        gb_finish(&b);
    }
}

/* A key made of escape sequences must not reach a terminal through a message. */
static void test_message_is_clean(void **state)
{
    struct gb b = {0};
    (void)state;
    gb_header(&b, 0, 1);
    gb_key(&b, "\33[2Jred\n\177", 77);
    gb_zeros(&b, 64);
    assert_int_equal(open_bytes(&b), BL_EFORMAT);
    check_message("escape", "value type 77",
                  "'?[2Jred?"
                  "?'");
    gb_finish(&b);
}

static void test_long_key_is_cut(void **state)
{
    struct gb b = {0};
    char key[2000] = {0};
    (void)state;
    memset(key, 'k', sizeof key - 1);
    gb_header(&b, 0, 1);
    gb_key(&b, key, 77);
    gb_zeros(&b, 64);
    assert_int_equal(open_bytes(&b), BL_EFORMAT);
    check_message("long key", "value type 77", "kkk...'");
    gb_finish(&b);
}

/* ---- truncation and damage
 * ---------------------------------------------------------------------------- */

static void test_every_prefix(void **state)
{
    struct gb b = {0};
    struct gb_marks m;
    char bytes[48];
    (void)state;
    gb_small(&b, &m);
    assert_int_equal(b.n, m.end);
    for (size_t n = 0; n < m.end; n++) {
        struct gb cut = {b.p, n, 0};
        assert_int_equal(open_bytes(&cut), BL_EFORMAT);
        snprintf(bytes, sizeof bytes, "file is %zu bytes", n);
        check_message("18 truncated", n ? bytes : "file is empty", n ? "needed" : "");
        if (n < m.data)
            continue;
        snprintf(bytes, sizeof bytes, "%zu needed", m.end); /* the header is whole: exact */
        check_message("18 truncated data", bytes, "t.");
    }
    assert_int_equal(open_bytes(&b), BL_OK);
    gb_finish(&b);
}

/* Any outcome but a crash, and a message with every refusal. */
static void test_random_damage(void **state)
{
    struct gb b = {0}, bad = {0};
    struct gb_marks m;
    uint32_t seed = 1;
    (void)state;
    gb_small(&b, &m);
    gb_bytes(&bad, b.p, b.n);
    for (int round = 0; round < 4000; round++) {
        memcpy(bad.p, b.p, b.n);
        for (int hit = 0; hit <= round % 3; hit++) {
            seed = seed * 1664525u + 1013904223u;
            bad.p[(seed >> 8) % m.data] = (unsigned char)(seed >> 24);
        }
        if (open_bytes(&bad))
            check_message("damage", "", "");
    }
    gb_finish(&bad);
    gb_finish(&b);
}

/* ---- what is no regular file
 * -------------------------------------------------------------------------- */

static void test_no_regular_file(void **state)
{
    struct bl_gguf *g = NULL;
    (void)state;
    unlink(path);
    assert_int_equal(bl_gguf_open(&g, path), BL_EIO);
    check_message("absent", "No such file", "cannot open");
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(bl_gguf_open(&g, path), BL_EFORMAT);
    check_message("directory", "a directory", "regular file");
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not wait for a writer */
    assert_int_equal(bl_gguf_open(&g, path), BL_EFORMAT);
    check_message("pipe", "a pipe", "regular file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/zero", path), 0);
    assert_int_equal(bl_gguf_open(&g, path), BL_EFORMAT);
    check_message("device", "a device", "regular file");
    assert_int_equal(unlink(path), 0);
    assert_null(g);
}

static void test_unreadable(void **state)
{
    struct bl_gguf *g = NULL;
    struct gb b = {0};
    struct gb_marks m;
    uid_t user = geteuid();
    (void)state;
    gb_small(&b, &m);
    gb_save(&b, path);
    gb_finish(&b);
    assert_int_equal(chmod(path, 0), 0);
    if (user == 0)
        assert_int_equal(seteuid(65534), 0); /* root may read everything */
    enum bl_status st = bl_gguf_open(&g, path);
    assert_int_equal(seteuid(user), 0);
    assert_int_equal(st, BL_EIO);
    check_message("unreadable", "Permission denied", "cannot open");
    unlink(path);
}

/* ---- memory
 * ------------------------------------------------------------------------------------------- */

enum { MOST_KIB = 64 << 10 };

static long peak_kib(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

/* Opens `path` in a child; fails unless it is refused and the child's peak, heap and touched
 * mapping, stays low. */
static void check_cheap_refusal(const char *row)
{
    int status = 0;
    pid_t pid = fork();
    assert_int_not_equal(pid, -1);
    if (!pid) {
        struct bl_gguf *g = NULL;
        long before = peak_kib();
        enum bl_status st = bl_gguf_open(&g, path);
        _exit(!st ? 1 : peak_kib() - before >= MOST_KIB ? 2 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (status)
        fail_msg("%s: %s", row,
                 WIFEXITED(status) && WEXITSTATUS(status) == 2 ? "took 64 MiB" : "opened");
}

static void test_refusals_are_cheap(void **state)
{
    (void)state;
    for (size_t i = 0; i < BL_COUNT(spoils); i++) {
        struct gb b = {0};
        spoil_bytes(&b, &spoils[i]);
        gb_save(&b, path);
        gb_finish(&b);
        check_cheap_refusal(spoils[i].row);
    }
}

/* A header that claims much, in a sparse file that is really that large: nothing but the header may
 * be touched. */
static void check_sparse(const char *row, const struct gb *b)
{
    gb_save(b, path);
    if (truncate(path, (off_t)POW(33))) {
        print_message("skipped: %s: no sparse files of 8 GiB here\n", row);
        return;
    }
    check_cheap_refusal(row);
}

static void test_large_claims_are_cheap(void **state)
{
    struct gb b = {0};
    (void)state;
    gb_header(&b, POW(18), POW(16)); /* most tensors and keys; all records are zeros */
    check_sparse("counts", &b);
    gb_finish(&b);
    gb_header(&b, 0, 2);
    gb_key(&b, "text", GB_STRING);
    gb_int(&b, 8, POW(30)); /* is there, is skipped; the next key is empty */
    check_sparse("string of 1 GiB", &b);
    gb_finish(&b);
    gb_header(&b, 0, 2);
    gb_array(&b, "numbers", GB_U64, POW(29));
    check_sparse("array of 4 GiB", &b);
    gb_finish(&b);
    gb_header(&b, 0, 2);
    gb_array(&b, "bools", GB_BOOL, POW(30));
    check_sparse("1 GiB of bools", &b);
    gb_finish(&b);
    gb_header(&b, 0, 2);
    gb_array(&b, "strings", GB_STRING, POW(30));
    check_sparse("2^30 strings", &b);
    gb_finish(&b);
    gb_header(&b, 2, 0);
    gb_tensor(&b, "large", 2, (uint64_t[]){POW(20), POW(10)}, GB_TENSOR_F32, 0);
    gb_tensor(&b, "inside", 1, (uint64_t[]){32}, GB_TENSOR_F32, POW(31)); /* overlaps */
    check_sparse("tensor of 4 GiB", &b);
    gb_finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spoiled_fields),
        cmocka_unit_test(test_overlap_by_a_byte),
        cmocka_unit_test(test_wrong_magic),
        cmocka_unit_test(test_message_is_clean),
        cmocka_unit_test(test_long_key_is_cut),
        cmocka_unit_test(test_every_prefix),
        cmocka_unit_test(test_random_damage),
        cmocka_unit_test(test_no_regular_file),
        cmocka_unit_test(test_unreadable),
        cmocka_unit_test(test_refusals_are_cheap),
        cmocka_unit_test(test_large_claims_are_cheap),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
