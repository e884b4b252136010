/* SPDX-License-Identifier: MIT */
#include "gguf_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Metadata and tensor records are collected in memory, because their counts come first in the file.
 * Bytes go to a file beside the wanted one, which takes its place only when all of them are on the
 * disk. */

enum { VERSION = 3, HEADER_BYTES = 24, OUT_BYTES = 256 << 10, WHY_BYTES = 512 };

struct buffer {
    unsigned char *p;
    size_t n, cap;
};

struct pending_tensor {
    const char *name;
    uint64_t bytes;
};

struct bl_gguf_writer {
    struct bl_file_out file;
    uint32_t alignment;
    bool header_done, alignment_put;
    struct bl_arena names;
    struct buffer kvs, infos;    /* records as they will stand in the file */
    struct buffer keys, tensors; /* const char *, struct pending_tensor: one for each record */
    struct buffer out;           /* small writes are gathered here */
    uint64_t next_off;           /* of the next tensor put, from the data start */
    uint64_t written;            /* bytes of the file so far, those in `out` included */
    uint32_t current;            /* tensor that gets data, */
    uint64_t current_bytes;      /* and how much of it came */
    enum bl_status failed;       /* the first failure: later calls repeat it */
    char why[WHY_BYTES];
};

static const char *shown_path(const struct bl_gguf_writer *w)
{
    return bl_path_tail(w->file.path);
}

static uint32_t n_keys(const struct bl_gguf_writer *w)
{
    return (uint32_t)(w->keys.n / sizeof(const char *));
}

static uint32_t n_tensors(const struct bl_gguf_writer *w)
{
    return (uint32_t)(w->tensors.n / sizeof(struct pending_tensor));
}

static const struct pending_tensor *tensor_at(const struct bl_gguf_writer *w, uint32_t i)
{
    return (const struct pending_tensor *)(const void *)w->tensors.p + i;
}

/* ---- failures and buffers
 * ----------------------------------------------------------------------------- */

/* Remembers a failure that left records or file incomplete. */
static enum bl_status stick(struct bl_gguf_writer *w, enum bl_status st)
{
    if (st && !w->failed) {
        w->failed = st;
        snprintf(w->why, sizeof w->why, "%s", bl_error());
    }
    return st;
}

static enum bl_status check_open(const struct bl_gguf_writer *w, bool for_records)
{
    if (w->failed)
        return bl_fail(w->failed, "%s", w->why);
    if (for_records && w->header_done)
        return bl_fail(BL_EINVAL, "%s: metadata and tensors must be put before the first data",
                       shown_path(w));
    return BL_OK;
}

static enum bl_status append(struct bl_gguf_writer *w, struct buffer *b, const void *src, size_t n)
{
    if (n > b->cap - b->n) {
        size_t cap = b->cap ? b->cap : 1024;
        while (cap - b->n < n && cap < PTRDIFF_MAX)
            cap *= 2;
        unsigned char *p = cap < PTRDIFF_MAX ? realloc(b->p, cap) : NULL;
        if (!p)
            return stick(w, bl_fail(BL_ENOMEM, "%s: out of memory", shown_path(w)));
        b->p = p;
        b->cap = cap;
    }
    if (n)
        memcpy(b->p + b->n, src, n);
    b->n += n;
    return BL_OK;
}

static enum bl_status append_u32(struct bl_gguf_writer *w, struct buffer *b, uint32_t v)
{
    return append(w, b, &v, sizeof v);
}

static enum bl_status append_u64(struct bl_gguf_writer *w, struct buffer *b, uint64_t v)
{
    return append(w, b, &v, sizeof v);
}

static enum bl_status append_string(struct bl_gguf_writer *w, struct buffer *b, const char *s,
                                    uint64_t n)
{
    BL_TRY(append_u64(w, b, n));
    return append(w, b, s, (size_t)n);
}

/* ---- create and abandon
 * ------------------------------------------------------------------------------- */

enum bl_status bl_gguf_writer_create(struct bl_gguf_writer **out, const char *path,
                                     uint32_t alignment)
{
    if (!alignment || (alignment & (alignment - 1)) || alignment > BL_GGUF_MAX_ALIGNMENT)
        return bl_fail(BL_EINVAL, "%s: alignment %" PRIu32 " is no power of two up to %d",
                       bl_path_tail(path), alignment, BL_GGUF_MAX_ALIGNMENT);
    struct bl_gguf_writer *w = bl_calloc(1, sizeof *w);
    if (!w)
        return bl_fail(BL_ENOMEM, "%s: out of memory", bl_path_tail(path));
    w->alignment = alignment;
    w->out.p = malloc(OUT_BYTES);
    enum bl_status st =
        w->out.p ? BL_OK : bl_fail(BL_ENOMEM, "%s: out of memory", bl_path_tail(path));
    if (st || (st = bl_file_out_create(&w->file, path))) {
        bl_gguf_writer_abandon(w);
        return st;
    }
    w->out.cap = OUT_BYTES;
    *out = w;
    return BL_OK;
}

void bl_gguf_writer_abandon(struct bl_gguf_writer *w)
{
    if (!w)
        return;
    bl_file_out_abandon(&w->file);
    free(w->kvs.p);
    free(w->infos.p);
    free(w->keys.p);
    free(w->tensors.p);
    free(w->out.p);
    bl_arena_finish(&w->names);
    free(w);
}

/* ---- records
 * ------------------------------------------------------------------------------------------ */

static enum bl_status keep_name(struct bl_gguf_writer *w, const char *name, uint64_t most,
                                const char **kept)
{
    char shown[BL_SHOWN_BYTES];
    size_t n = strlen(name);
    if (!n || n > most)
        return bl_fail(BL_EINVAL, "%s: name '%s' has %zu bytes; 1 to %" PRIu64 " are allowed",
                       shown_path(w), bl_gguf_show(shown, name), n, most);
    *kept = bl_arena_string(&w->names, name, n);
    return *kept ? BL_OK : stick(w, bl_fail(BL_ENOMEM, "%s: out of memory", shown_path(w)));
}

static bool is_alignment(const char *key)
{
    return !strcmp(key, "general.alignment");
}

/* The record up to its value; array: item and n count. */
static enum bl_status put_head(struct bl_gguf_writer *w, const struct bl_kv *kv)
{
    const char *key;
    BL_TRY(check_open(w, true));
    if (n_keys(w) == BL_GGUF_MAX_KV)
        return bl_fail(BL_EINVAL, "%s: more than %d metadata keys", shown_path(w), BL_GGUF_MAX_KV);
    BL_TRY(keep_name(w, kv->key, BL_GGUF_MAX_KEY_BYTES, &key));
    BL_TRY(append(w, &w->keys, &key, sizeof key));
    BL_TRY(append_string(w, &w->kvs, key, strlen(key)));
    BL_TRY(append_u32(w, &w->kvs, (uint32_t)kv->type));
    if (kv->type != BL_VAL_ARRAY)
        return BL_OK;
    BL_TRY(append_u32(w, &w->kvs, (uint32_t)kv->item));
    return append_u64(w, &w->kvs, kv->n);
}

static bool is_alignment_value(const struct bl_gguf_writer *w, const struct bl_kv *kv)
{
    return kv->type == BL_VAL_U32 && bl_load_u32(kv->data) == w->alignment;
}

/* Whether n strings end exactly where the data ends. */
static bool strings_fit(const struct bl_kv *kv)
{
    uint64_t off = 0;
    for (uint64_t i = 0; i < kv->n; i++) {
        if (kv->data_bytes - off < 8)
            return false;
        uint64_t n = bl_load_u64((const char *)kv->data + off);
        off += 8;
        if (n > BL_GGUF_MAX_STRING_BYTES || n > kv->data_bytes - off)
            return false;
        off += n;
    }
    return off == kv->data_bytes;
}

static bool bools_fit(const struct bl_kv *kv)
{
    for (uint64_t i = 0; i < kv->n; i++)
        if (((const unsigned char *)kv->data)[i] > 1)
            return false;
    return true;
}

static bool value_fits(const struct bl_kv *kv)
{
    uint64_t size = bl_gguf_item_bytes(kv->item);
    if (kv->type != BL_VAL_ARRAY && (kv->type != kv->item || kv->n != 1))
        return false;
    if (kv->n > bl_gguf_most_items(kv->item))
        return false;
    if (kv->item == BL_VAL_STRING)
        return strings_fit(kv);
    if (!size || kv->data_bytes != kv->n * size)
        return false;
    return kv->item != BL_VAL_BOOL || bools_fit(kv);
}

/* What the reader would refuse must not be written. */
static enum bl_status check_value(const struct bl_gguf_writer *w, const struct bl_kv *kv)
{
    if (!value_fits(kv))
        return bl_fail(BL_EINVAL, "%s: value of key '%s' is malformed", shown_path(w), kv->key);
    if (is_alignment(kv->key) && !is_alignment_value(w, kv))
        return bl_fail(BL_EINVAL, "%s: general.alignment is %" PRIu32 " in this file",
                       shown_path(w), w->alignment);
    return BL_OK;
}

enum bl_status bl_gguf_put_kv(struct bl_gguf_writer *w, const struct bl_kv *kv)
{
    BL_TRY(check_value(w, kv));
    BL_TRY(put_head(w, kv));
    BL_TRY(append(w, &w->kvs, kv->data, (size_t)kv->data_bytes));
    w->alignment_put |= is_alignment(kv->key);
    return BL_OK;
}

static enum bl_status put_scalar(struct bl_gguf_writer *w, const char *key, enum bl_value_type type,
                                 const void *v, uint64_t bytes)
{
    return bl_gguf_put_kv(w, &(struct bl_kv){key, type, type, 1, v, bytes});
}

enum bl_status bl_gguf_put_u32(struct bl_gguf_writer *w, const char *key, uint32_t v)
{
    return put_scalar(w, key, BL_VAL_U32, &v, sizeof v);
}

enum bl_status bl_gguf_put_u64(struct bl_gguf_writer *w, const char *key, uint64_t v)
{
    return put_scalar(w, key, BL_VAL_U64, &v, sizeof v);
}

enum bl_status bl_gguf_put_f32(struct bl_gguf_writer *w, const char *key, float v)
{
    return put_scalar(w, key, BL_VAL_F32, &v, sizeof v);
}

enum bl_status bl_gguf_put_bool(struct bl_gguf_writer *w, const char *key, bool v)
{
    unsigned char byte = v;
    return put_scalar(w, key, BL_VAL_BOOL, &byte, 1);
}

enum bl_status bl_gguf_put_str(struct bl_gguf_writer *w, const char *key, const char *s,
                               uint64_t n_bytes)
{
    if (n_bytes > BL_GGUF_MAX_STRING_BYTES || is_alignment(key))
        return bl_fail(BL_EINVAL, "%s: value of key '%s' is malformed", shown_path(w), key);
    BL_TRY(put_head(w, &(struct bl_kv){.key = key, .type = BL_VAL_STRING, .item = BL_VAL_STRING}));
    return append_string(w, &w->kvs, s, n_bytes);
}

static enum bl_status put_info(struct bl_gguf_writer *w, const char *name, enum bl_dtype type,
                               uint32_t n_dims, const uint64_t *ne)
{
    BL_TRY(append_string(w, &w->infos, name, strlen(name)));
    BL_TRY(append_u32(w, &w->infos, n_dims));
    BL_TRY(append(w, &w->infos, ne, n_dims * sizeof *ne));
    BL_TRY(append_u32(w, &w->infos, bl_dtypes[type].gguf_id));
    return append_u64(w, &w->infos, w->next_off);
}

enum bl_status bl_gguf_put_tensor(struct bl_gguf_writer *w, const char *name, enum bl_dtype type,
                                  uint32_t n_dims, const uint64_t *ne)
{
    char shown[BL_SHOWN_BYTES];
    struct pending_tensor t;
    uint64_t all[4] = {1, 1, 1, 1}, end;
    BL_TRY(check_open(w, true));
    if (n_tensors(w) == BL_GGUF_MAX_TENSORS || n_dims < 1 || n_dims > 4 || type >= BL_N_DTYPES)
        return bl_fail(BL_EINVAL,
                       "%s: tensor '%s': type, dimensions or place %" PRIu32 " is out of range",
                       shown_path(w), bl_gguf_show(shown, name), n_tensors(w));
    memcpy(all, ne, n_dims * sizeof *ne);
    if (bl_gguf_tensor_bytes(type, all, &t.bytes))
        return bl_fail_in(BL_EINVAL, "%s: tensor '%s'", shown_path(w), bl_gguf_show(shown, name));
    if (!bl_size_add(w->next_off, t.bytes, &end) || end > INT64_MAX - BL_GGUF_MAX_ALIGNMENT)
        return bl_fail(BL_EINVAL, "%s: more than 2^63 bytes of tensors", shown_path(w));
    BL_TRY(keep_name(w, name, BL_GGUF_MAX_NAME_BYTES, &t.name));
    BL_TRY(put_info(w, name, type, n_dims, ne));
    BL_TRY(append(w, &w->tensors, &t, sizeof t));
    w->next_off = bl_align_up(end, w->alignment);
    return BL_OK;
}

/* ---- output
 * ------------------------------------------------------------------------------------------- */

static enum bl_status write_all(struct bl_gguf_writer *w, const void *p, uint64_t bytes)
{
    return stick(w, bl_file_out_write(&w->file, p, bytes));
}

static enum bl_status flush(struct bl_gguf_writer *w)
{
    BL_TRY(write_all(w, w->out.p, w->out.n));
    w->out.n = 0;
    return BL_OK;
}

static enum bl_status emit(struct bl_gguf_writer *w, const void *p, uint64_t bytes)
{
    if (bytes > w->out.cap - w->out.n)
        BL_TRY(flush(w));
    if (bytes > w->out.cap)
        BL_TRY(write_all(w, p, bytes));
    else
        BL_TRY(append(w, &w->out, p, (size_t)bytes));
    w->written += bytes;
    return BL_OK;
}

static enum bl_status pad(struct bl_gguf_writer *w)
{
    static const unsigned char zero[512];
    uint64_t left = bl_align_up(w->written, w->alignment) - w->written;
    while (left) {
        uint64_t n = left < sizeof zero ? left : sizeof zero;
        BL_TRY(emit(w, zero, n));
        left -= n;
    }
    return BL_OK;
}

static int compare_strings(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* Sorts the names, which nobody needs in order any more. */
static enum bl_status refuse_twice(const struct bl_gguf_writer *w, const char **name, uint32_t n,
                                   const char *kind)
{
    char shown[BL_SHOWN_BYTES];
    if (n)
        qsort(name, n, sizeof *name, compare_strings);
    for (uint32_t i = 1; i < n; i++)
        if (!strcmp(name[i - 1], name[i]))
            return bl_fail(BL_EINVAL, "%s: %s '%s' was put twice", shown_path(w), kind,
                           bl_gguf_show(shown, name[i]));
    return BL_OK;
}

static enum bl_status check_names(struct bl_gguf_writer *w)
{
    uint32_t n = n_tensors(w);
    BL_TRY(refuse_twice(w, (const char **)(void *)w->keys.p, n_keys(w), "metadata key"));
    const char **name = bl_calloc(n, sizeof *name);
    if (!name)
        return bl_fail(BL_ENOMEM, "%s: out of memory", shown_path(w));
    for (uint32_t i = 0; i < n; i++)
        name[i] = tensor_at(w, i)->name;
    enum bl_status st = refuse_twice(w, name, n, "tensor");
    free(name);
    return st;
}

static uint64_t header_bytes(const struct bl_gguf_writer *w)
{
    uint64_t n = HEADER_BYTES + (uint64_t)w->kvs.n + w->infos.n;
    return n_tensors(w) ? bl_align_up(n, w->alignment) : n;
}

uint64_t bl_gguf_writer_bytes(const struct bl_gguf_writer *w)
{
    return header_bytes(w) + w->next_off;
}

static enum bl_status write_header(struct bl_gguf_writer *w, bool with_data)
{
    uint32_t version = VERSION;
    if (w->alignment != 32 && !w->alignment_put)
        BL_TRY(bl_gguf_put_u32(w, "general.alignment", w->alignment));
    BL_TRY(stick(w, check_names(w)));
    BL_TRY(stick(
        w, bl_file_out_expect(&w->file, with_data ? bl_gguf_writer_bytes(w) : header_bytes(w))));
    uint64_t count[2] = {n_tensors(w), n_keys(w)};
    w->header_done = true;
    BL_TRY(emit(w, "GGUF", 4));
    BL_TRY(emit(w, &version, sizeof version));
    BL_TRY(emit(w, count, sizeof count));
    BL_TRY(emit(w, w->kvs.p, w->kvs.n));
    BL_TRY(emit(w, w->infos.p, w->infos.n));
    return n_tensors(w) ? pad(w) : BL_OK;
}

/* As much of the piece as the current tensor takes. */
static enum bl_status write_some(struct bl_gguf_writer *w, const unsigned char *p, uint64_t n,
                                 uint64_t *taken)
{
    uint64_t left = tensor_at(w, w->current)->bytes - w->current_bytes;
    *taken = n < left ? n : left;
    BL_TRY(emit(w, p, *taken));
    w->current_bytes += *taken;
    if (*taken < left)
        return BL_OK;
    w->current++;
    w->current_bytes = 0;
    return pad(w);
}

enum bl_status bl_gguf_write_data(struct bl_gguf_writer *w, const void *bytes, uint64_t n)
{
    const unsigned char *p = bytes;
    uint64_t taken;
    BL_TRY(check_open(w, false));
    if (!w->header_done)
        BL_TRY(write_header(w, true));
    for (; n; p += taken, n -= taken) {
        if (w->current == n_tensors(w))
            return stick(w, bl_fail(BL_EINVAL,
                                    "%s: %" PRIu64 " bytes of data more than the tensors have",
                                    shown_path(w), n));
        BL_TRY(write_some(w, p, n, &taken));
    }
    return BL_OK;
}

/* ---- finish
 * ------------------------------------------------------------------------------------------- */

static enum bl_status check_complete(const struct bl_gguf_writer *w)
{
    char shown[BL_SHOWN_BYTES];
    if (w->current == n_tensors(w))
        return BL_OK;
    const struct pending_tensor *t = tensor_at(w, w->current);
    return bl_fail(BL_EINVAL, "%s: tensor '%s' got %" PRIu64 " of its %" PRIu64 " bytes",
                   shown_path(w), bl_gguf_show(shown, t->name), w->current_bytes, t->bytes);
}

static enum bl_status finish(struct bl_gguf_writer *w, bool with_data)
{
    enum bl_status st = check_open(w, false);
    if (!st && !w->header_done)
        st = write_header(w, with_data);
    if (!st && with_data)
        st = check_complete(w);
    if (!st && !(st = flush(w)))
        st = bl_file_out_commit(&w->file);
    bl_gguf_writer_abandon(w);
    return st;
}

enum bl_status bl_gguf_writer_finish(struct bl_gguf_writer *w)
{
    return finish(w, true);
}

enum bl_status bl_gguf_writer_finish_header(struct bl_gguf_writer *w)
{
    return finish(w, false);
}
