/* SPDX-License-Identifier: MIT */
/* Opens any bytes as a GGUF file and, when they are accepted, uses everything that the reader
 * promises.
 *
 * One source, two programs: with BL_LIBFUZZER clang's fuzzer drives it; without, main() replays
 * files and folders. Input that begins with "SPLT", u32 n is two shards, the first n bytes long, in
 * two files with shard names. */
#include "gguf.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* What the fuzzer must notice even where the sanitizers do not. */
static void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

/* ---- use
 * ---------------------------------------------------------------------------------------------- */

static volatile unsigned sink; /* keeps the reads */

static void touch(const void *p, uint64_t n)
{
    const unsigned char *b = p;
    for (uint64_t i = 0; i < n; i++)
        sink += b[i];
}

static void use_strings(const struct bl_kv *kv)
{
    const char *s;
    uint64_t at = 0, n, count = 0;
    while (bl_gguf_next_string(kv, &at, &s, &n)) {
        touch(s, n);
        count++;
    }
    must(count == (kv->item == BL_VAL_STRING ? kv->n : 0), "a string walk visits every string");
}

static void use_accessors(const struct bl_gguf *g, const struct bl_kv *kv)
{
    uint32_t u, layers[8];
    int64_t i;
    int32_t element;
    float f;
    bool y;
    const char *s;
    uint64_t n;
    bool number = !bl_gguf_u32(g, kv->key, true, &u);
    must(!number || !bl_gguf_i64(g, kv->key, true, &i), "what fits u32 fits i64");
    must(!number || i == u, "widths agree");
    if (!bl_gguf_str(g, kv->key, true, &s, &n))
        touch(s, n);
    if (!bl_gguf_u32_per_layer(g, kv->key, true, 8, layers, NULL))
        touch(layers, sizeof layers);
    if (!bl_gguf_bool(g, kv->key, true, &y))
        sink += y;
    bl_gguf_f32(g, kv->key, true, &f);
    for (n = 0; n < 4; n++) {
        bl_gguf_i32_array(g, kv->key, n ? kv->n - n : 0, &element);
        bl_gguf_f32_array(g, kv->key, n ? kv->n - n : 0, &f);
    }
}

static void use_metadata(const struct bl_gguf *g)
{
    for (uint32_t i = 0; i < bl_gguf_n_kv(g); i++) {
        const struct bl_kv *kv = bl_gguf_kv(g, i);
        must(bl_gguf_find(g, kv->key) == kv, "a key is found");
        touch(kv->data, kv->data_bytes);
        use_strings(kv);
        use_accessors(g, kv);
    }
}

static void use_tensors(const struct bl_gguf *g)
{
    const void *map;
    for (uint32_t i = 0; i < bl_gguf_n_tensors(g); i++) {
        const struct bl_tensor_info *t = bl_gguf_tensor(g, i);
        uint32_t at;
        uint64_t rows = t->ne[1] * t->ne[2] * t->ne[3];
        must(bl_gguf_find_tensor(g, t->name, &at) == t && at == i, "a tensor is found");
        must(t->shard < bl_gguf_n_shards(g), "a tensor has a file");
        uint64_t end = bl_gguf_shard_bytes(g, t->shard);
        must(t->bytes && t->file_off <= end && t->bytes <= end - t->file_off,
             "a tensor lies in it");
        must(t->bytes == rows * bl_dtype_row_bytes((enum bl_dtype)t->type, t->ne[0]),
             "sizes agree");
        must(!bl_file_map(bl_gguf_file(g, t->shard), &map), "an open file is mapped");
        touch((const char *)map + t->file_off, 1);
        touch((const char *)map + t->file_off + t->bytes - 1, 1);
    }
}

/* Headers may promise any data; what they say of the model may be looked at all the same. */
static void use_header(const char *path)
{
    struct bl_gguf *g = NULL;
    struct bl_state_info info = {0};
    if (bl_gguf_open_header(&g, path)) {
        must(!g, "a refused header gives no object");
        return;
    }
    use_metadata(g);
    if (!bl_state_info_make(&info, g, NULL))
        must(info.n_lines && info.ubatch_tokens <= info.ctx_tokens, "state has kinds");
    bl_state_info_finish(&info);
    bl_gguf_close(g);
}

static void open_and_use(const char *path)
{
    struct bl_gguf *g = NULL;
    use_header(path);
    if (bl_gguf_open(&g, path)) {
        must(!g, "a refused file gives no object");
        must(strlen(bl_error()) > 10, "a refusal has a reason");
        return;
    }
    must(bl_gguf_heap_bytes(g) > 0, "an object takes memory");
    must(!bl_gguf_missing_bytes(g), "nothing of it is missing");
    use_metadata(g);
    use_tensors(g);
    bl_gguf_close(g);
}

/* ---- input
 * -------------------------------------------------------------------------------------------- */

static void write_whole(int fd, const uint8_t *p, size_t n)
{
    while (n) {
        ssize_t k = write(fd, p, n);
        must(k > 0, "the harness can write");
        p += k;
        n -= (size_t)k;
    }
}

static void run_single(const uint8_t *data, size_t n)
{
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    must(fd >= 0, "the harness has a memory file");
    write_whole(fd, data, n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    open_and_use(path);
    close(fd);
}

static void save(const char *path, const uint8_t *data, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    must(fd >= 0, "the harness can create a file");
    write_whole(fd, data, n);
    close(fd);
}

static char shard_folder[32];

static void remove_shard_folder(void)
{
    rmdir(shard_folder);
}

static void run_shards(const uint8_t *one, size_t n_one, const uint8_t *two, size_t n_two)
{
    char first[64], second[64];
    if (!shard_folder[0]) {
        snprintf(shard_folder, sizeof shard_folder, "%s/ballast-fuzz-XXXXXX",
                 access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
        must(mkdtemp(shard_folder) != NULL, "the harness has a folder");
        atexit(remove_shard_folder);
    }
    snprintf(first, sizeof first, "%s/x-00001-of-00002.gguf", shard_folder);
    snprintf(second, sizeof second, "%s/x-00002-of-00002.gguf", shard_folder);
    save(first, one, n_one);
    save(second, two, n_two);
    open_and_use(first);
    open_and_use(second);
    unlink(first);
    unlink(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 8 || memcmp(data, "SPLT", 4)) {
        run_single(data, n);
        return 0;
    }
    size_t n_one = bl_load_u32(data + 4);
    data += 8;
    n -= 8;
    if (n_one > n)
        n_one = n;
    run_shards(data, n_one, data + n_one, n - n_one);
    return 0;
}

/* ---- replay
 * ------------------------------------------------------------------------------------------- */

#ifndef BL_LIBFUZZER
static bool replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    uint8_t *p = NULL;
    size_t n = 0, cap = 0;
    for (;;) {
        if (n == cap) {
            cap = cap ? 2 * cap : 1 << 16;
            uint8_t *more = realloc(p, cap);
            must(more != NULL, "the harness has memory");
            p = more;
        }
        size_t k = fread(p + n, 1, cap - n, f);
        if (!k)
            break;
        n += k;
    }
    fclose(f);
    p = realloc(p, n ? n : 1); /* exact, so that the address sanitizer sees reads past the end */
    LLVMFuzzerTestOneInput(p, n);
    free(p);
    return true;
}

static int replay_folder(const char *path)
{
    char name[4096];
    struct dirent *e;
    int n = 0;
    DIR *d = opendir(path);
    while (d && (e = readdir(d))) {
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.')
            n += replay_file(name);
    }
    if (d)
        closedir(d);
    return n;
}

int main(int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++) {
        struct stat st;
        n += !stat(argv[i], &st) && S_ISDIR(st.st_mode) ? replay_folder(argv[i])
                                                        : replay_file(argv[i]);
    }
    printf("%d inputs\n", n);
    return n ? 0 : 1;
}
#endif
