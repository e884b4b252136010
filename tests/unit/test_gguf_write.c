/* SPDX-License-Identifier: MIT */
/* The GGUF writer: what is written reads back the same; whatever fails leaves no file behind. */
#include "support.h"

#include "alloc_fail.h"
#include "gguf.h"
#include "gguf_bytes.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- system calls that fail on demand (linked with --wrap)
 * -------------------------------------------- */

static struct {
    int write_in, fsync_in, rename_in,
        close_in; /* the n-th call from now fails with `error`; 0: none */
    int error;
    int calls;        /* of write */
    bool short_write; /* every write takes at most 1000 bytes */
} fault;

static bool fails(int *left)
{
    if (!*left || --*left)
        return false;
    errno = fault.error;
    return true;
}

ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n)
{
    fault.calls++;
    if (fails(&fault.write_in))
        return -1;
    return __real_write(fd, p, fault.short_write && n > 1000 ? 1000 : n);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    return fails(&fault.fsync_in) ? -1 : __real_fsync(fd);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    return fails(&fault.rename_in) ? -1 : __real_rename(from, to);
}

int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
    bool bad = fails(&fault.close_in);
    int rc = __real_close(fd);
    if (bad)
        errno = fault.error;
    return bad ? -1 : rc;
}

/* ---- the folder
 * --------------------------------------------------------------------------------------- */

static char folder[] = "/tmp/ballast-write-XXXXXX";
static char path[sizeof folder + 16], other[sizeof folder + 16];

static int enter_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/out.gguf", folder);
    snprintf(other, sizeof other, "%s/other.gguf", folder);
    return 0;
}

/* Files in the folder, removed on the way if asked. */
static int count_files(bool remove_them)
{
    DIR *d = opendir(folder);
    struct dirent *e;
    char name[sizeof folder + 256];
    int n = 0;
    assert_non_null(d);
    while ((e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        n++;
        snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
        if (remove_them)
            unlink(name);
    }
    closedir(d);
    return n;
}

static int empty_folder(void **state)
{
    (void)state;
    memset(&fault, 0, sizeof fault);
    count_files(true);
    return 0;
}

static int leave_folder(void **state)
{
    empty_folder(state);
    return rmdir(folder);
}

static void good(enum bl_status st)
{
    if (st)
        fail_msg("%s", bl_error());
}

static void check_failed(enum bl_status st, enum bl_status want, const char *what)
{
    if (st != want || !strstr(bl_error(), what))
        fail_msg("%s, \"%s\": wanted %s, \"%s\"", bl_status_name(st), bl_error(),
                 bl_status_name(want), what);
}

static struct bl_gguf_writer *create(uint32_t alignment)
{
    struct bl_gguf_writer *w = NULL;
    good(bl_gguf_writer_create(&w, path, alignment));
    return w;
}

static struct bl_gguf *reopen(void)
{
    struct bl_gguf *g = NULL;
    good(bl_gguf_open(&g, path));
    return g;
}

static void slurp(struct gb *b, const char *name)
{
    char chunk[4096];
    size_t n;
    FILE *f = fopen(name, "rb");
    assert_non_null(f);
    while ((n = fread(chunk, 1, sizeof chunk, f)))
        gb_bytes(b, chunk, n);
    fclose(f);
}

static void check_same_files(const char *a, const char *b)
{
    struct gb x = {0}, y = {0};
    slurp(&x, a);
    slurp(&y, b);
    assert_int_equal(x.n, y.n);
    assert_memory_equal(x.p, y.p, x.n);
    gb_finish(&x);
    gb_finish(&y);
}

/* ---- round trips
 * -------------------------------------------------------------------------------------- */

static void copy_metadata(struct bl_gguf_writer *w, const struct bl_gguf *g)
{
    for (uint32_t i = 0; i < bl_gguf_n_kv(g); i++)
        good(bl_gguf_put_kv(w, bl_gguf_kv(g, i)));
    for (uint32_t i = 0; i < bl_gguf_n_tensors(g); i++) {
        const struct bl_tensor_info *t = bl_gguf_tensor(g, i);
        good(bl_gguf_put_tensor(w, t->name, (enum bl_dtype)t->type, t->n_dims, t->ne));
    }
}

/* Copies `other` to `path`, tensor data in pieces of the given size (0: whole tensors). */
static void copy_file(uint32_t alignment, uint64_t piece)
{
    struct bl_gguf *g = NULL;
    const void *map;
    good(bl_gguf_open(&g, other));
    struct bl_gguf_writer *w = create(alignment);
    copy_metadata(w, g);
    good(bl_file_map(bl_gguf_file(g, 0), &map));
    for (uint32_t i = 0; i < bl_gguf_n_tensors(g); i++) {
        const struct bl_tensor_info *t = bl_gguf_tensor(g, i);
        uint64_t step = piece ? piece : t->bytes;
        for (uint64_t off = 0; off < t->bytes; off += step)
            good(bl_gguf_write_data(w, (const char *)map + t->file_off + off,
                                    t->bytes - off < step ? t->bytes - off : step));
    }
    good(bl_gguf_writer_finish(w));
    bl_gguf_close(g);
}

/* Every value type, scalar and array, and a key and strings that are odd but allowed. */
static void save_all_types(void)
{
    static const unsigned char n_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    struct gb b = {0};
    char key[32];
    gb_header(&b, 0, 12 * 3);
    for (uint32_t type = 0; type <= GB_F64; type++)
        for (uint64_t n = 0; n < 3 && type != GB_ARRAY; n++) {
            snprintf(key, sizeof key, "key %u.%u\xff", (unsigned)type, (unsigned)n);
            if (n == 1)
                gb_key(&b, key, type);
            else
                gb_array(&b, key, type, n);
            for (uint64_t i = 0; i < n; i++)
                if (type == GB_STRING)
                    gb_str(&b, i ? "" : "two\nlines");
                else
                    gb_int(&b, n_bytes[type], type == GB_BOOL ? i : 0x8180828384858687u + i);
        }
    gb_save(&b, other);
    gb_finish(&b);
}

static void test_all_value_types(void **state)
{
    (void)state;
    save_all_types();
    copy_file(32, 0);
    check_same_files(path, other);
    assert_int_equal(count_files(false), 2);
}

static void test_pieces_of_any_size(void **state)
{
    static const uint64_t piece[] = {0, 1, 7, 256, 100000};
    struct gb b = {0};
    struct gb_marks m;
    (void)state;
    gb_small(&b, &m);
    gb_pad(&b, 32); /* as the writer leaves the last tensor */
    gb_save(&b, other);
    gb_finish(&b);
    for (size_t i = 0; i < BL_COUNT(piece); i++) {
        copy_file(32, piece[i]);
        check_same_files(path, other);
    }
}

static void test_scalars(void **state)
{
    struct bl_gguf_writer *w = create(32);
    uint32_t u = 0;
    int64_t i = 0;
    float f = 0;
    bool y = false;
    const char *s = NULL;
    uint64_t n = 0;
    (void)state;
    good(bl_gguf_put_u32(w, "u32", UINT32_MAX));
    good(bl_gguf_put_u64(w, "u64", INT64_MAX));
    good(bl_gguf_put_f32(w, "f32", -0.25f));
    good(bl_gguf_put_bool(w, "bool", true));
    good(bl_gguf_put_str(w, "str", "a\0b", 3));
    good(bl_gguf_put_str(w, "none", NULL, 0));
    good(bl_gguf_writer_finish(w));
    struct bl_gguf *g = reopen();
    good(bl_gguf_u32(g, "u32", true, &u));
    good(bl_gguf_i64(g, "u64", true, &i));
    good(bl_gguf_f32(g, "f32", true, &f));
    good(bl_gguf_bool(g, "bool", true, &y));
    assert_true(u == UINT32_MAX && i == INT64_MAX && f == -0.25f && y);
    good(bl_gguf_str(g, "str", true, &s, &n));
    assert_int_equal(n, 3);
    assert_memory_equal(s, "a\0b", 3);
    good(bl_gguf_str(g, "none", true, &s, &n));
    assert_int_equal(n, 0);
    bl_gguf_close(g);
}

static void test_alignment(void **state)
{
    static const uint32_t align[] = {1, 8, 64, 65536};
    struct bl_gguf_writer *w = NULL;
    (void)state;
    for (size_t i = 0; i < BL_COUNT(align); i++) {
        uint32_t u = 0;
        w = create(align[i]);
        if (i % 2)
            good(bl_gguf_put_u32(w, "general.alignment", align[i])); /* may be put, need not */
        check_failed(bl_gguf_put_u32(w, "general.alignment", 32), BL_EINVAL, "general.alignment");
        check_failed(bl_gguf_put_str(w, "general.alignment", "32", 2), BL_EINVAL,
                     "general.alignment");
        good(bl_gguf_put_tensor(w, "a", BL_I8, 1, (uint64_t[]){3}));
        good(bl_gguf_put_tensor(w, "b", BL_I8, 1, (uint64_t[]){1}));
        good(bl_gguf_write_data(w, "xyz!", 4)); /* one piece over a tensor's end */
        good(bl_gguf_writer_finish(w));
        struct bl_gguf *g = reopen();
        const void *map;
        good(bl_gguf_u32(g, "general.alignment", true, &u));
        assert_int_equal(u, align[i]);
        good(bl_file_map(bl_gguf_file(g, 0), &map));
        uint64_t a = bl_gguf_tensor(g, 0)->file_off, b = bl_gguf_tensor(g, 1)->file_off;
        assert_int_equal(a % align[i], 0);
        assert_int_equal(b, bl_gguf_tensor(g, 0)->file_off + (align[i] > 3 ? align[i] : 3));
        assert_memory_equal((const char *)map + a, "xyz", 3);
        assert_memory_equal((const char *)map + b, "!", 1);
        assert_int_equal(bl_gguf_shard_bytes(g, 0) % align[i], 0);
        bl_gguf_close(g);
    }
    check_failed(bl_gguf_writer_create(&w, path, 0), BL_EINVAL, "alignment");
    check_failed(bl_gguf_writer_create(&w, path, 24), BL_EINVAL, "alignment");
    check_failed(bl_gguf_writer_create(&w, path, 1 << 17), BL_EINVAL, "alignment");
}

/* ---- misuse
 * ------------------------------------------------------------------------------------------- */

static void test_bad_records(void **state)
{
    static const char bools[] = {0, 2}, text[] = {2, 0, 0, 0, 0, 0, 0, 0, 'a'};
    const struct bl_kv bad[] = {
        {"k", BL_VAL_ARRAY, BL_VAL_BOOL, 2, bools, 2},
        {"k", BL_VAL_ARRAY, BL_VAL_ARRAY, 0, bools, 0},
        {"k", BL_VAL_ARRAY, BL_VAL_STRING, 1, text, 9},
        {"k", BL_VAL_ARRAY, BL_VAL_STRING, 2, text, 9},
        {"k", BL_VAL_ARRAY, BL_VAL_STRING, 0, text, 1},
        {"k", BL_VAL_ARRAY, BL_VAL_STRING, 1, text, 7},
        {"k", BL_VAL_ARRAY, BL_VAL_U16, 2, bools, 2},
        {"k", BL_VAL_ARRAY, BL_VAL_U64, (uint64_t)1 << 61, bools, 0},
        {"k", BL_VAL_U8, BL_VAL_U8, 2, bools, 2},
        {"k", BL_VAL_U8, BL_VAL_I8, 1, bools, 1},
        {"k", (enum bl_value_type)13, (enum bl_value_type)13, 1, bools, 1},
        {"", BL_VAL_U8, BL_VAL_U8, 1, bools, 1},
    };
    static char name[70000];
    struct bl_gguf_writer *w = create(32);
    (void)state;
    for (size_t i = 0; i < BL_COUNT(bad); i++)
        assert_int_equal(bl_gguf_put_kv(w, &bad[i]), BL_EINVAL);
    memset(name, 'n', 65537);
    check_failed(bl_gguf_put_u32(w, name, 1), BL_EINVAL, "65537 bytes");
    check_failed(bl_gguf_put_tensor(w, "", BL_F32, 1, (uint64_t[]){1}), BL_EINVAL, "0 bytes");
    name[257] = 0;
    check_failed(bl_gguf_put_tensor(w, name, BL_F32, 1, (uint64_t[]){1}), BL_EINVAL, "257 bytes");
    check_failed(bl_gguf_put_tensor(w, "t", BL_F32, 0, (uint64_t[]){1}), BL_EINVAL, "'t'");
    check_failed(bl_gguf_put_tensor(w, "t", BL_F32, 5, (uint64_t[]){1, 1, 1, 1, 1}), BL_EINVAL,
                 "'t'");
    check_failed(bl_gguf_put_tensor(w, "t", BL_F32, 1, (uint64_t[]){0}), BL_EINVAL, "'t'");
    check_failed(bl_gguf_put_tensor(w, "t", BL_Q4_K, 1, (uint64_t[]){128}), BL_EINVAL,
                 "multiple of 256");
    check_failed(
        bl_gguf_put_tensor(w, "t", BL_F32, 2, (uint64_t[]){(uint64_t)1 << 40, (uint64_t)1 << 40}),
        BL_EINVAL, "2^63");
    check_failed(bl_gguf_put_tensor(w, "t", BL_N_DTYPES, 1, (uint64_t[]){1}), BL_EINVAL, "'t'");
    good(bl_gguf_put_tensor(w, "t1", BL_I8, 1, (uint64_t[]){(uint64_t)1 << 62}));
    check_failed(bl_gguf_put_tensor(w, "t2", BL_I8, 1, (uint64_t[]){(uint64_t)1 << 62}), BL_EINVAL,
                 "2^63");
    bl_gguf_writer_abandon(w);
}

static void test_refused_records_leave_no_trace(void **state)
{
    struct bl_gguf_writer *w = create(32);
    (void)state;
    assert_int_equal(bl_gguf_put_u32(w, "", 1), BL_EINVAL);
    assert_int_equal(bl_gguf_put_tensor(w, "", BL_F32, 1, (uint64_t[]){1}), BL_EINVAL);
    assert_int_equal(bl_gguf_put_tensor(w, "t", BL_Q4_K, 1, (uint64_t[]){1}), BL_EINVAL);
    good(bl_gguf_writer_finish(w));
    struct bl_gguf *g = reopen();
    assert_int_equal(bl_gguf_shard_bytes(g, 0), 24);
    bl_gguf_close(g);
}

static void test_twice(void **state)
{
    struct bl_gguf_writer *w = create(32);
    (void)state;
    good(bl_gguf_put_u32(w, "b", 1));
    good(bl_gguf_put_u32(w, "a", 1));
    good(bl_gguf_put_bool(w, "b", 1));
    check_failed(bl_gguf_writer_finish(w), BL_EINVAL, "metadata key 'b' was put twice");
    w = create(32);
    good(bl_gguf_put_tensor(w, "t", BL_I8, 1, (uint64_t[]){1}));
    good(bl_gguf_put_tensor(w, "s", BL_I8, 1, (uint64_t[]){1}));
    good(bl_gguf_put_tensor(w, "t", BL_I8, 1, (uint64_t[]){1}));
    check_failed(bl_gguf_write_data(w, "x", 1), BL_EINVAL, "tensor 't' was put twice");
    check_failed(bl_gguf_writer_finish(w), BL_EINVAL, "tensor 't' was put twice");
    assert_int_equal(count_files(false), 0);
}

static void test_wrong_amount_of_data(void **state)
{
    struct bl_gguf_writer *w = create(32);
    (void)state;
    good(bl_gguf_put_tensor(w, "t", BL_I8, 1, (uint64_t[]){4}));
    good(bl_gguf_write_data(w, "abc", 3));
    check_failed(bl_gguf_put_u32(w, "late", 1), BL_EINVAL, "before the first data");
    check_failed(bl_gguf_put_tensor(w, "late", BL_I8, 1, (uint64_t[]){4}), BL_EINVAL,
                 "before the first");
    check_failed(bl_gguf_writer_finish(w), BL_EINVAL, "tensor 't' got 3 of its 4 bytes");
    w = create(32);
    good(bl_gguf_put_tensor(w, "t", BL_I8, 1, (uint64_t[]){4}));
    check_failed(bl_gguf_writer_finish(w), BL_EINVAL, "0 of its 4 bytes");
    w = create(32);
    good(bl_gguf_put_tensor(w, "t", BL_I8, 1, (uint64_t[]){4}));
    check_failed(bl_gguf_write_data(w, "abcdef", 6), BL_EINVAL, "2 bytes of data more");
    check_failed(bl_gguf_writer_finish(w), BL_EINVAL, "2 bytes of data more"); /* stays failed */
    w = create(32);
    check_failed(bl_gguf_write_data(w, "a", 1), BL_EINVAL, "1 bytes of data more");
    bl_gguf_writer_abandon(w);
    assert_int_equal(count_files(false), 0);
}

/* ---- where the file goes
 * ------------------------------------------------------------------------------ */

static void test_bad_targets(void **state)
{
    struct bl_gguf_writer *w = NULL;
    (void)state;
    check_failed(bl_gguf_writer_create(&w, "/nonexistent/x.gguf", 32), BL_EIO, "No such file");
    check_failed(bl_gguf_writer_create(&w, folder, 32), BL_EINVAL, "no regular file");
    check_failed(bl_gguf_writer_create(&w, "/dev/null", 32), BL_EINVAL, "no regular file");
    assert_null(w);
    bl_gguf_writer_abandon(NULL);
}

static void test_old_file_stays_until_finish(void **state)
{
    struct gb b = {0};
    (void)state;
    gb_bytes(&b, "precious", 8);
    gb_save(&b, path);
    gb_save(&b, other);
    gb_finish(&b);
    struct bl_gguf_writer *w = create(32), *w2 = create(32); /* two at once do not meet */
    good(bl_gguf_put_u32(w, "k", 1));
    assert_int_equal(count_files(false), 4);
    check_same_files(path, other);
    bl_gguf_writer_abandon(w2);
    check_same_files(path, other);
    good(bl_gguf_writer_finish(w));
    assert_int_equal(count_files(false), 2);
    bl_gguf_close(reopen());
}

static void test_permissions_follow_umask(void **state)
{
    struct stat st;
    mode_t old = umask(027);
    (void)state;
    good(bl_gguf_writer_finish(create(32)));
    umask(old);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
}

/* ---- failures of the system
 * --------------------------------------------------------------------------- */

/* A file of two tensors, one larger than the writer's buffer, in whole pieces. */
static enum bl_status write_large(void)
{
    static unsigned char data[600001];
    struct bl_gguf_writer *w = NULL;
    BL_TRY(bl_gguf_writer_create(&w, path, 64));
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 31 >> 3);
    enum bl_status st = bl_gguf_put_str(w, "general.architecture", "llama", 5);
    if (!st)
        st = bl_gguf_put_tensor(w, "small", BL_I8, 1, (uint64_t[]){1000});
    if (!st)
        st = bl_gguf_put_tensor(w, "large", BL_I8, 1, (uint64_t[]){sizeof data});
    if (!st)
        st = bl_gguf_write_data(w, data, 1000);
    if (!st)
        st = bl_gguf_write_data(w, data, sizeof data);
    if (!st)
        return bl_gguf_writer_finish(w);
    bl_gguf_writer_abandon(w);
    return st;
}

static void test_full_disk_at_every_write(void **state)
{
    (void)state;
    good(write_large());
    int n = fault.calls;
    assert_true(n >= 3);
    unlink(path);
    for (int i = 1; i <= n; i++) {
        fault.write_in = i;
        fault.error = ENOSPC;
        check_failed(write_large(), BL_EIO, strerror(ENOSPC));
        assert_non_null(strstr(bl_error(), "out.gguf"));
        assert_int_equal(count_files(false), 0);
    }
}

static void test_failure_sticks(void **state)
{
    static char zeros[300000];
    (void)state;
    struct bl_gguf_writer *w = create(32);
    good(bl_gguf_put_tensor(w, "t", BL_I8, 1, (uint64_t[]){sizeof zeros}));
    fault.write_in = 1;
    fault.error = ENOSPC;
    check_failed(bl_gguf_write_data(w, zeros, sizeof zeros), BL_EIO, strerror(ENOSPC));
    bl_fail(BL_EINVAL, "something else");
    check_failed(bl_gguf_write_data(w, zeros, 1), BL_EIO, strerror(ENOSPC));
    bl_fail(BL_EINVAL, "something else");
    check_failed(bl_gguf_writer_finish(w), BL_EIO, strerror(ENOSPC));
    assert_int_equal(count_files(false), 0);
}

static void test_sync_close_rename_fail(void **state)
{
    (void)state;
    fault.error = EIO;
    fault.fsync_in = 1;
    check_failed(write_large(), BL_EIO, "cannot sync");
    assert_int_equal(count_files(false), 0);
    fault.rename_in = 1;
    check_failed(write_large(), BL_EIO, "cannot rename");
    assert_int_equal(count_files(false), 0);
    /* What is synced and has its name is whole, whatever closing says. */
    fault.close_in = 1;
    good(write_large());
    assert_int_equal(fault.close_in, 0);
    assert_int_equal(count_files(true), 1);
}

static void test_short_and_interrupted_writes(void **state)
{
    (void)state;
    good(write_large());
    assert_int_equal(rename(path, other), 0);
    fault.short_write = true;
    fault.write_in = 5;
    fault.error = EINTR;
    good(write_large());
    assert_int_equal(fault.write_in, 0);
    check_same_files(path, other);
}

/* The system itself refuses, half way through a write. */
static void test_file_size_limit(void **state)
{
    struct rlimit old, low;
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = old;
    low.rlim_cur = 300000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    enum bl_status st = write_large();
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    check_failed(st, BL_EIO, strerror(EFBIG));
    assert_int_equal(count_files(false), 0);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        alloc_fail_at(n);
        enum bl_status st = write_large();
        if (!alloc_fail_stop()) {
            good(st);
            assert_true(n > 8);
            return;
        }
        check_failed(st, BL_ENOMEM, "out of memory");
        assert_int_equal(count_files(false), 0);
    }
}

#define IN_FOLDER(f) cmocka_unit_test_teardown(f, empty_folder)
int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_all_value_types),
        IN_FOLDER(test_pieces_of_any_size),
        IN_FOLDER(test_scalars),
        IN_FOLDER(test_alignment),
        IN_FOLDER(test_bad_records),
        IN_FOLDER(test_refused_records_leave_no_trace),
        IN_FOLDER(test_twice),
        IN_FOLDER(test_wrong_amount_of_data),
        IN_FOLDER(test_bad_targets),
        IN_FOLDER(test_old_file_stays_until_finish),
        IN_FOLDER(test_permissions_follow_umask),
        IN_FOLDER(test_full_disk_at_every_write),
        IN_FOLDER(test_failure_sticks),
        IN_FOLDER(test_sync_close_rename_fail),
        IN_FOLDER(test_short_and_interrupted_writes),
        IN_FOLDER(test_file_size_limit),
        IN_FOLDER(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
