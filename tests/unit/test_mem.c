/* SPDX-License-Identifier: MIT */
/* Sizes that wrap, page blocks, the arena; files, since they are the other half of the base. */
#include "support.h"

#include "alloc_fail.h"
#include "file.h"
#include "mem.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

static void test_sizes(void **state)
{
    uint64_t v = 5;
    (void)state;
    assert_true(bl_size_mul(UINT32_MAX, UINT32_MAX, &v));
    assert_true(v == 0xfffffffe00000001u);
    assert_true(bl_size_mul(0, UINT64_MAX, &v) && v == 0);
    assert_true(bl_size_mul(UINT64_MAX, 1, &v) && v == UINT64_MAX);
    assert_true(bl_size_add(UINT64_MAX - 1, 1, &v) && v == UINT64_MAX);
    v = 5;
    assert_false(bl_size_mul((uint64_t)1 << 32, (uint64_t)1 << 32, &v));
    assert_false(bl_size_mul(UINT64_MAX, 2, &v));
    assert_false(bl_size_mul(3, UINT64_MAX / 3 + 1, &v));
    assert_false(bl_size_add(UINT64_MAX, 1, &v));
    assert_int_equal(v, 5);
    assert_int_equal(bl_align_up(0, 32), 0);
    assert_int_equal(bl_align_up(1, 32), 32);
    assert_int_equal(bl_align_up(32, 32), 32);
}

static void test_checked_calloc(void **state)
{
    (void)state;
    assert_null(bl_calloc(SIZE_MAX / 2, 3));
    assert_null(bl_calloc(SIZE_MAX, 1));
    unsigned char *p = bl_calloc(3, 5);
    assert_non_null(p);
    for (int i = 0; i < 15; i++)
        assert_int_equal(p[i], 0);
    free(p);
    p = bl_calloc(0, 5); /* NULL means out of memory, never "nothing" */
    assert_non_null(p);
    free(p);
    alloc_fail_at(1);
    assert_null(bl_calloc(1, 1));
    assert_true(alloc_fail_stop());
}

/* ---- pages
 * -------------------------------------------------------------------------------------------- */

static bool mapped(void *p)
{
    unsigned char core;
    return mincore(p, 1, &core) == 0;
}

static void test_pages(void **state)
{
    size_t page = bl_page_bytes();
    const size_t size[] = {0, 1, page - 1, page, page + 1, 2 << 20, (2 << 20) + 1};
    (void)state;
    for (size_t i = 0; i < BL_COUNT(size); i++) {
        void *out = NULL;
        assert_int_equal(bl_pages_alloc(size[i], &out), BL_OK);
        unsigned char *p = out, *last = p + bl_align_up(size[i] ? size[i] : 1, page) - page;
        assert_int_equal((uintptr_t)p % page, 0);
        for (size_t k = 0; k < size[i]; k += page)
            assert_int_equal(p[k], 0);
        last[page - 1] = 1;
        assert_true(mapped(last));
        bl_pages_free(p, size[i]);
        assert_false(mapped(p));
        assert_false(mapped(last));
    }
    bl_pages_free(NULL, 5);
}

static void test_pages_out_of_memory(void **state)
{
    void *p = &p;
    (void)state;
    assert_int_equal(bl_pages_alloc(SIZE_MAX, &p), BL_ENOMEM);
    assert_int_equal(bl_pages_alloc(PTRDIFF_MAX, &p), BL_ENOMEM);
    assert_int_equal(bl_pages_alloc((size_t)1 << 60, &p), BL_ENOMEM);
    assert_non_null(strstr(bl_error(), "out of memory"));
    alloc_fail_at(1);
    assert_int_equal(bl_pages_alloc(1, &p), BL_ENOMEM);
    assert_true(alloc_fail_stop());
    assert_ptr_equal(p, &p);
}

/* ---- arena
 * -------------------------------------------------------------------------------------------- */

enum { CHUNK = 64 << 10 };

static void test_arena_pieces(void **state)
{
    struct bl_arena a = {0};
    unsigned char *piece[200];
    (void)state;
    for (size_t i = 0; i < BL_COUNT(piece); i++) {
        size_t n = i * 7;
        piece[i] = bl_arena_alloc(&a, n);
        assert_int_equal((uintptr_t)piece[i] % 16, 0);
        for (size_t k = 0; k < n; k++)
            assert_int_equal(piece[i][k], 0);
        memset(piece[i], (int)i + 1, n);
    }
    for (size_t i = 0; i < BL_COUNT(piece); i++) /* nobody wrote over a neighbour */
        for (size_t k = 0; k < i * 7; k++)
            assert_int_equal(piece[i][k], (unsigned char)(i + 1));
    assert_int_equal(a.taken_bytes % CHUNK, 0);
    assert_true(a.taken_bytes >= 7 * 199 * 200 / 2);
    bl_arena_finish(&a);
    assert_null(a.last);
    assert_int_equal(a.taken_bytes, 0);
    bl_arena_finish(&a);
}

static void test_arena_large_pieces(void **state)
{
    struct bl_arena a = {0};
    (void)state;
    char *p = bl_arena_alloc(&a, 10 * CHUNK);
    assert_non_null(p);
    p[10 * CHUNK - 1] = 1;
    assert_true(a.taken_bytes >= 10 * CHUNK && a.taken_bytes < 11 * CHUNK);
    assert_null(bl_arena_alloc(&a, SIZE_MAX));
    assert_null(bl_arena_alloc(&a, SIZE_MAX - 8));
    assert_null(bl_arena_alloc(&a, PTRDIFF_MAX));
    assert_null(bl_arena_string(&a, "", SIZE_MAX));
    assert_non_null(bl_arena_alloc(&a, 1));
    bl_arena_finish(&a);
}

static void test_arena_strings(void **state)
{
    struct bl_arena a = {0};
    (void)state;
    char *one = bl_arena_string(&a, "abcdef", 3), *none = bl_arena_string(&a, NULL, 0);
    assert_string_equal(one, "abc");
    assert_string_equal(none, "");
    bl_arena_finish(&a);
}

static void test_arena_out_of_memory(void **state)
{
    struct bl_arena a = {0};
    (void)state;
    alloc_fail_at(1);
    assert_null(bl_arena_alloc(&a, 1));
    assert_true(alloc_fail_stop());
    assert_null(a.last);
    assert_int_equal(a.taken_bytes, 0);
    assert_non_null(bl_arena_alloc(&a, 1));
    alloc_fail_at(1);
    assert_null(bl_arena_alloc(&a, CHUNK));
    assert_true(alloc_fail_stop());
    assert_non_null(bl_arena_alloc(&a, 1)); /* the first chunk still serves */
    assert_int_equal(a.taken_bytes, CHUNK);
    bl_arena_finish(&a);
}

static void test_arena_gaps_are_poisoned(void **state)
{
    (void)state;
#ifdef BL_ASAN
    struct bl_arena a = {0};
    char *p = bl_arena_alloc(&a, 5), *q = bl_arena_alloc(&a, 16);
    assert_false(__asan_address_is_poisoned(p + 4));
    assert_true(__asan_address_is_poisoned(p + 5));
    assert_true(q - p == 32 && __asan_address_is_poisoned(q - 1));
    assert_false(__asan_address_is_poisoned(q + 15));
    assert_true(__asan_address_is_poisoned(q + 16));
    bl_arena_finish(&a);
#else
    print_message("skipped: poisoning needs the address sanitizer\n");
    skip();
#endif
}

/* ---- files
 * -------------------------------------------------------------------------------------------- */

static char path[32];

static int make_file(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/ballast-file-XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0)
        return -1;
    bool good = write(fd, "0123456789", 10) == 10;
    return close(fd) || !good ? -1 : 0;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static void test_file_map_and_read(void **state)
{
    struct bl_file *f = NULL;
    const void *one = NULL, *two = NULL;
    char got[11] = {0};
    (void)state;
    assert_int_equal(bl_file_open(&f, path), BL_OK);
    assert_int_equal(bl_file_bytes(f), 10);
    assert_string_equal(bl_file_path(f), path);
    bl_file_will_need(f, 0, 10); /* before it is mapped: nothing to do */
    assert_int_equal(bl_file_map(f, &one), BL_OK);
    assert_int_equal(bl_file_map(f, &two), BL_OK);
    assert_ptr_equal(one, two);
    assert_memory_equal(one, "0123456789", 10);
    bl_file_will_need(f, 3, UINT64_MAX);
    bl_file_will_need(f, UINT64_MAX, 1);
    assert_int_equal(bl_file_read(f, 0, 10, got), BL_OK);
    assert_string_equal(got, "0123456789");
    assert_int_equal(bl_file_read(f, 7, 2, got), BL_OK);
    assert_memory_equal(got, "782", 3);
    assert_int_equal(bl_file_read(f, 10, 0, NULL), BL_OK);
    bl_file_close(f);
    bl_file_close(NULL);
}

static void test_file_tail_is_poisoned(void **state)
{
    (void)state;
#ifdef BL_ASAN
    struct bl_file *f = NULL;
    const void *map = NULL;
    assert_int_equal(bl_file_open(&f, path), BL_OK);
    assert_int_equal(bl_file_map(f, &map), BL_OK);
    const char *p = map;
    assert_false(__asan_address_is_poisoned(p + 9));
    assert_true(__asan_address_is_poisoned(p + 10));
    assert_true(__asan_address_is_poisoned(p + bl_page_bytes() - 1));
    bl_file_close(f);
    assert_false(__asan_address_is_poisoned(p + 10));
#else
    print_message("skipped: poisoning needs the address sanitizer\n");
    skip();
#endif
}

static void test_file_read_past_end(void **state)
{
    struct bl_file *f = NULL;
    char got[16];
    (void)state;
    assert_int_equal(bl_file_open(&f, path), BL_OK);
    assert_int_equal(bl_file_read(f, 5, 6, got), BL_EIO);
    assert_non_null(strstr(bl_error(), "file is 10 bytes"));
    assert_int_equal(bl_file_read(f, 11, 0, got), BL_EIO);
    assert_int_equal(bl_file_read(f, 1, UINT64_MAX, got), BL_EIO);
    assert_non_null(strstr(bl_error(), "wanted from offset 1")); /* refused before reading */
    assert_int_equal(truncate(path, 4), 0);                      /* it shrinks under us */
    assert_int_equal(bl_file_read(f, 0, 10, got), BL_EIO);
    assert_non_null(strstr(bl_error(), "offset 4"));
    assert_non_null(strstr(bl_error(), "had 10 bytes"));
    bl_file_close(f);
}

static void test_file_large_read(void **state)
{
    enum { N = (33 << 20) + 5 }; /* more than two system calls' worth */
    struct bl_file *f = NULL;
    (void)state;
    unsigned char *want = malloc(N), *got = malloc(N);
    assert_true(want && got);
    for (size_t i = 0; i < N; i++)
        want[i] = (unsigned char)(i * 2654435761u >> 13);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(want, 1, N, out), N);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(bl_file_open(&f, path), BL_OK);
    assert_int_equal(bl_file_read(f, 0, N, got), BL_OK);
    assert_memory_equal(got, want, N);
    bl_file_close(f);
    free(want);
    free(got);
}

static void test_file_refusals(void **state)
{
    struct bl_file *f = NULL;
    const void *map = NULL;
    (void)state;
    assert_int_equal(bl_file_open(&f, "/tmp"), BL_EFORMAT);
    assert_non_null(strstr(bl_error(), "directory"));
    assert_int_equal(bl_file_open(&f, "/nonexistent/x"), BL_EIO);
    assert_non_null(strstr(bl_error(), strerror(ENOENT)));
    assert_null(f);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(bl_file_open(&f, path), BL_OK);
    assert_int_equal(bl_file_map(f, &map), BL_EFORMAT);
    assert_non_null(strstr(bl_error(), "file is empty"));
    bl_file_close(f);
}

static void test_path_tail(void **state)
{
    char dirs[400];
    (void)state;
    assert_string_equal(bl_path_tail("/a/b.gguf"), "/a/b.gguf");
    memset(dirs, 'd', sizeof dirs);
    memcpy(dirs + 300, "/model.gguf", sizeof "/model.gguf");
    assert_string_equal(bl_path_tail(dirs), "model.gguf");
    memset(dirs, 'd', 390);
    dirs[390] = 0;
    assert_int_equal(strlen(bl_path_tail(dirs)), 160);
}

static void test_file_out_of_memory(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct bl_file *f = NULL;
        const void *map;
        alloc_fail_at(n);
        enum bl_status st = bl_file_open(&f, path);
        if (!st)
            st = bl_file_map(f, &map);
        bool hit = alloc_fail_stop();
        bl_file_close(f);
        if (!hit) {
            assert_int_equal(st, BL_OK);
            assert_int_equal(n, 4); /* object, path, mapping */
            return;
        }
        assert_true(st == BL_ENOMEM || st == BL_EIO);
    }
}

#define WITH_FILE(f) cmocka_unit_test_setup_teardown(f, make_file, remove_file)
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_checked_calloc),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_pages_out_of_memory),
        cmocka_unit_test(test_arena_pieces),
        cmocka_unit_test(test_arena_large_pieces),
        cmocka_unit_test(test_arena_strings),
        cmocka_unit_test(test_arena_out_of_memory),
        cmocka_unit_test(test_arena_gaps_are_poisoned),
        WITH_FILE(test_file_map_and_read),
        WITH_FILE(test_file_tail_is_poisoned),
        WITH_FILE(test_file_read_past_end),
        WITH_FILE(test_file_large_read),
        WITH_FILE(test_file_refusals),
        WITH_FILE(test_file_out_of_memory),
        cmocka_unit_test(test_path_tail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
