/* SPDX-License-Identifier: MIT */
#include "gguf_impl.h"

#include <inttypes.h>
#include <stdlib.h>

/* Every length is compared with the bytes that remain before it is used, and every table is sized
 * by a count that the remaining bytes could really hold, so a small file cannot ask for a large
 * block. */

enum {
    HEADER_BYTES = 24,
    MIN_KV_BYTES = 14,     /* 8 length + 1 key + 4 type + 1 value */
    MIN_TENSOR_BYTES = 33, /* 8 length + 1 name + 4 dims + 8 dim + 4 type + 8 offset */
    MAX_DIMS = 4
};

struct cursor {
    const unsigned char *base;
    uint64_t off, end;
    const char *path;
    /* what is being read, for messages */
    const char *kind;
    uint64_t index;
    const char *name;
};

const char *bl_gguf_show(char out[BL_SHOWN_BYTES], const char *name)
{
    size_t n = 0;
    for (; name[n] && n < BL_SHOWN_BYTES - 4; n++)
        out[n] = (unsigned char)name[n] < 0x20 || name[n] == 0x7f ? '?' : name[n];
    memcpy(out + n, name[n] ? "..." : "", name[n] ? 4 : 1);
    return out;
}

/* Puts file and item before the message just set. */
static enum bl_status place(const struct cursor *c, enum bl_status st)
{
    char shown[BL_SHOWN_BYTES];
    if (!c->kind)
        return bl_fail_in(st, "%s", c->path);
    if (!c->name)
        return bl_fail_in(st, "%s: %s %" PRIu64, c->path, c->kind, c->index);
    return bl_fail_in(st, "%s: %s %" PRIu64 " '%s'", c->path, c->kind, c->index,
                      bl_gguf_show(shown, c->name));
}

/* ---- primitives
 * --------------------------------------------------------------------------------------- */

static enum bl_status need(const struct cursor *c, uint64_t n, const char *what)
{
    if (n <= c->end - c->off)
        return BL_OK;
    return place(c,
                 bl_fail(BL_EFORMAT,
                         "truncated in its %s at offset %" PRIu64 ": file is %" PRIu64
                         " bytes, at least %" PRIu64 " needed",
                         what, c->off, c->end, n > UINT64_MAX - c->off ? UINT64_MAX : c->off + n));
}

static enum bl_status take_u32(struct cursor *c, const char *what, uint32_t *out)
{
    BL_TRY(need(c, 4, what));
    *out = bl_load_u32(c->base + c->off);
    c->off += 4;
    return BL_OK;
}

static enum bl_status take_u64(struct cursor *c, const char *what, uint64_t *out)
{
    BL_TRY(need(c, 8, what));
    *out = bl_load_u64(c->base + c->off);
    c->off += 8;
    return BL_OK;
}

/* Moves past a string; its bytes are the n ones before the new offset. */
static enum bl_status skip_string(struct cursor *c, const char *what, uint64_t most, uint64_t *n)
{
    uint64_t len;
    BL_TRY(take_u64(c, what, &len));
    if (len > most)
        return place(c, bl_fail(BL_EFORMAT,
                                "%s at offset %" PRIu64 " claims %" PRIu64
                                " bytes; the most is %" PRIu64,
                                what, c->off - 8, len, most));
    BL_TRY(need(c, len, what));
    c->off += len;
    *n = len;
    return BL_OK;
}

/* A key or tensor name: copied, so that it ends in NUL, and refused where that would change its
 * meaning. */
static enum bl_status take_name(struct cursor *c, const char *what, uint64_t most,
                                struct bl_arena *names, const char **out)
{
    uint64_t n = 0;
    BL_TRY(skip_string(c, what, most, &n));
    const char *s = (const char *)c->base + (c->off - n);
    if (n == 0)
        return place(c, bl_fail(BL_EFORMAT, "empty %s at offset %" PRIu64, what, c->off));
    if (memchr(s, 0, (size_t)n))
        return place(
            c, bl_fail(BL_EFORMAT, "NUL byte inside the %s at offset %" PRIu64, what, c->off - n));
    *out = bl_arena_string(names, s, (size_t)n);
    if (!*out)
        return place(c, bl_fail(BL_ENOMEM, "out of memory"));
    c->name = *out;
    return BL_OK;
}

/* ---- header
 * ------------------------------------------------------------------------------------------- */

/* Files that people open by mistake, by their first four bytes. */
static const char *mistaken_for(const unsigned char *p)
{
    static const struct {
        char magic[5];
        const char *remark;
    } row[] = {
        {"vers", " (a Git LFS pointer? fetch the file itself)"},
        {"PK\3\4", " (a ZIP archive, perhaps a PyTorch checkpoint)"},
        {"tjgg", " (a GGML file from before GGUF; convert it again)"},
        {"fmgg", " (a GGML file from before GGUF; convert it again)"},
        {"lmgg", " (a GGML file from before GGUF; convert it again)"},
        {"<!DO", " (a web page)"},
        {"<htm", " (a web page)"},
        {"FUGG", " (the magic is byte-swapped)"},
    };
    for (size_t i = 0; i < BL_COUNT(row); i++)
        if (!memcmp(p, row[i].magic, 4))
            return row[i].remark;
    return "";
}

static enum bl_status check_version(const struct cursor *c, uint32_t v)
{
    if (v == 2 || v == 3)
        return BL_OK;
    if (v && !(v & 0xffff))
        return place(c, bl_fail(BL_EUNSUPPORTED,
                                "big-endian GGUF file (version field %#" PRIx32
                                " at offset 4); little-endian is needed",
                                v));
    if (v == 1)
        return place(
            c, bl_fail(BL_EUNSUPPORTED, "GGUF version 1 at offset 4; convert the model again"));
    return place(c, bl_fail(BL_EUNSUPPORTED,
                            "GGUF version %" PRIu32 " at offset 4; versions 2 and 3 are known", v));
}

static enum bl_status check_count(const struct cursor *c, uint64_t n, uint64_t most,
                                  uint64_t min_bytes, uint64_t taken, const char *what, unsigned at)
{
    if (n > most)
        return place(c,
                     bl_fail(BL_EFORMAT, "claims %" PRIu64 " %s at offset %u; the most is %" PRIu64,
                             n, what, at, most));
    if (n * min_bytes + taken > c->end)
        return place(c, bl_fail(BL_EFORMAT,
                                "claims %" PRIu64 " %s at offset %u: file is %" PRIu64
                                " bytes, at least %" PRIu64 " needed",
                                n, what, at, c->end, n * min_bytes + taken));
    return BL_OK;
}

static enum bl_status parse_header(struct cursor *c, uint32_t *n_tensors, uint32_t *n_kv)
{
    uint32_t version;
    uint64_t tensors, kvs;
    if (c->end >= 4 && memcmp(c->base, "GGUF", 4))
        return place(c, bl_fail(BL_EFORMAT, "not a GGUF file: begins with %02x %02x %02x %02x%s",
                                c->base[0], c->base[1], c->base[2], c->base[3],
                                mistaken_for(c->base)));
    BL_TRY(need(c, HEADER_BYTES, "header"));
    c->off = 4;
    BL_TRY(take_u32(c, "version", &version));
    BL_TRY(check_version(c, version));
    BL_TRY(take_u64(c, "tensor count", &tensors));
    BL_TRY(take_u64(c, "metadata count", &kvs));
    BL_TRY(check_count(c, kvs, BL_GGUF_MAX_KV, MIN_KV_BYTES, HEADER_BYTES, "metadata keys", 16));
    BL_TRY(check_count(c, tensors, BL_GGUF_MAX_TENSORS, MIN_TENSOR_BYTES,
                       HEADER_BYTES + kvs * MIN_KV_BYTES, "tensors", 8));
    *n_tensors = (uint32_t)tensors;
    *n_kv = (uint32_t)kvs;
    return BL_OK;
}

/* ---- metadata
 * ----------------------------------------------------------------------------------------- */

uint64_t bl_gguf_item_bytes(enum bl_value_type type)
{
    switch (type) {
    case BL_VAL_U8:
    case BL_VAL_I8:
    case BL_VAL_BOOL:
        return 1;
    case BL_VAL_U16:
    case BL_VAL_I16:
        return 2;
    case BL_VAL_U32:
    case BL_VAL_I32:
    case BL_VAL_F32:
        return 4;
    case BL_VAL_U64:
    case BL_VAL_I64:
    case BL_VAL_F64:
        return 8;
    default:
        return 0;
    }
}

uint64_t bl_gguf_most_items(enum bl_value_type type)
{
    bool visited = type == BL_VAL_STRING || type == BL_VAL_BOOL;
    return visited ? BL_GGUF_MAX_VISITED : BL_GGUF_MAX_ITEMS;
}

static enum bl_status take_type(struct cursor *c, const char *what, enum bl_value_type *out)
{
    uint32_t id;
    BL_TRY(take_u32(c, what, &id));
    if (id > BL_VAL_F64)
        return place(c, bl_fail(BL_EFORMAT,
                                "%s %" PRIu32 " at offset %" PRIu64 "; the types are 0 to 12", what,
                                id, c->off - 4));
    *out = (enum bl_value_type)id;
    return BL_OK;
}

static enum bl_status check_bools(const struct cursor *c, uint64_t off, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (c->base[off + i] > 1)
            return place(c, bl_fail(BL_EFORMAT, "bool at offset %" PRIu64 " is %u, not 0 or 1",
                                    off + i, c->base[off + i]));
    return BL_OK;
}

static enum bl_status skip_strings(struct cursor *c, uint64_t n)
{
    uint64_t len;
    for (uint64_t i = 0; i < n; i++)
        BL_TRY(skip_string(c, "string", BL_GGUF_MAX_STRING_BYTES, &len));
    return BL_OK;
}

static enum bl_status check_items(const struct cursor *c, const struct bl_kv *kv)
{
    bool text = kv->item == BL_VAL_STRING;
    uint64_t most = bl_gguf_most_items(kv->item);
    if (kv->n > most)
        return place(c, bl_fail(BL_EFORMAT,
                                "array claims %" PRIu64 " elements at offset %" PRIu64
                                "; the most is %" PRIu64,
                                kv->n, c->off - 8, most));
    return need(c, kv->n * (text ? 8 : bl_gguf_item_bytes(kv->item)), "array");
}

/* The elements of an array, or the one of a scalar. */
static enum bl_status take_items(struct cursor *c, struct bl_kv *kv)
{
    uint64_t start = c->off;
    BL_TRY(check_items(c, kv));
    if (kv->item == BL_VAL_STRING)
        BL_TRY(skip_strings(c, kv->n));
    else
        c->off += kv->n * bl_gguf_item_bytes(kv->item);
    if (kv->item == BL_VAL_BOOL)
        BL_TRY(check_bools(c, start, kv->n));
    kv->data = c->base + start;
    kv->data_bytes = c->off - start;
    return BL_OK;
}

static enum bl_status take_kv(struct cursor *c, struct bl_arena *names, struct bl_kv *kv)
{
    BL_TRY(take_name(c, "key", BL_GGUF_MAX_KEY_BYTES, names, &kv->key));
    BL_TRY(take_type(c, "value type", &kv->type));
    kv->item = kv->type;
    kv->n = 1;
    if (kv->type == BL_VAL_ARRAY) {
        BL_TRY(take_type(c, "element type", &kv->item));
        if (kv->item == BL_VAL_ARRAY)
            return place(c, bl_fail(BL_EFORMAT, "array of arrays at offset %" PRIu64, c->off - 4));
        BL_TRY(take_u64(c, "array length", &kv->n));
    }
    return take_items(c, kv);
}

static enum bl_status parse_metadata(struct cursor *c, struct bl_gguf *g, uint32_t n)
{
    g->kv = bl_calloc(n, sizeof *g->kv);
    if (!g->kv)
        return bl_fail(BL_ENOMEM, "%s: out of memory for %" PRIu32 " metadata keys", c->path, n);
    c->kind = "metadata key";
    for (c->index = 0; c->index < n; c->index++) {
        c->name = NULL;
        BL_TRY(take_kv(c, &g->names, &g->kv[c->index]));
        g->n_kv++;
    }
    c->kind = NULL;
    return BL_OK;
}

static int compare_keys(const void *a, const void *b)
{
    const struct bl_kv *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

/* A sorted index rather than a hash table: no input can make it quadratic. */
static enum bl_status index_keys(const struct cursor *c, struct bl_gguf *g)
{
    char shown[BL_SHOWN_BYTES];
    g->by_key = bl_calloc(g->n_kv, sizeof *g->by_key);
    if (!g->by_key)
        return bl_fail(BL_ENOMEM, "%s: out of memory for %" PRIu32 " keys", c->path, g->n_kv);
    for (uint32_t i = 0; i < g->n_kv; i++)
        g->by_key[i] = &g->kv[i];
    qsort(g->by_key, g->n_kv, sizeof *g->by_key, compare_keys);
    for (uint32_t i = 1; i < g->n_kv; i++)
        if (!strcmp(g->by_key[i - 1]->key, g->by_key[i]->key))
            return bl_fail(BL_EFORMAT, "%s: metadata key '%s' occurs twice, as %td and %td",
                           c->path, bl_gguf_show(shown, g->by_key[i]->key),
                           g->by_key[i - 1] - g->kv, g->by_key[i] - g->kv);
    return BL_OK;
}

static enum bl_status read_alignment(const struct cursor *c, struct bl_gguf *g)
{
    const struct bl_kv *kv = bl_gguf_find(g, "general.alignment");
    g->alignment = 32;
    if (!kv)
        return BL_OK;
    if (kv->type != BL_VAL_U32)
        return bl_fail(BL_EFORMAT, "%s: general.alignment has value type %d; u32 is needed",
                       c->path, (int)kv->type);
    uint32_t a = bl_load_u32(kv->data);
    if (!a || (a & (a - 1)) || a > BL_GGUF_MAX_ALIGNMENT)
        return bl_fail(BL_EFORMAT,
                       "%s: general.alignment is %" PRIu32 "; a power of two up to %d is needed",
                       c->path, a, BL_GGUF_MAX_ALIGNMENT);
    g->alignment = a;
    return BL_OK;
}

/* ---- tensors
 * ------------------------------------------------------------------------------------------ */

static enum bl_status take_dims(struct cursor *c, struct bl_tensor_info *t)
{
    BL_TRY(take_u32(c, "dimension count", &t->n_dims));
    if (t->n_dims < 1 || t->n_dims > MAX_DIMS)
        return place(c, bl_fail(BL_EFORMAT,
                                "%" PRIu32 " dimensions at offset %" PRIu64 "; 1 to 4 are allowed",
                                t->n_dims, c->off - 4));
    for (uint32_t i = 0; i < MAX_DIMS; i++)
        t->ne[i] = 1;
    for (uint32_t i = 0; i < t->n_dims; i++)
        BL_TRY(take_u64(c, "dimensions", &t->ne[i]));
    return BL_OK;
}

static enum bl_status take_tensor_type(struct cursor *c, struct bl_tensor_info *t)
{
    uint32_t id;
    enum bl_dtype type;
    BL_TRY(take_u32(c, "type", &id));
    enum bl_status st = bl_dtype_by_gguf_id(id, &type);
    if (st)
        return place(c, st);
    t->type = type;
    t->type_name = bl_dtypes[type].name;
    return BL_OK;
}

enum bl_status bl_gguf_tensor_bytes(enum bl_dtype type, const uint64_t ne[4], uint64_t *out)
{
    const struct bl_dtype_info *d = &bl_dtypes[type];
    uint64_t elems = 1, bytes;
    for (uint32_t i = 0; i < MAX_DIMS; i++) {
        if (!ne[i])
            return bl_fail(BL_EFORMAT, "dimension %" PRIu32 " is 0", i);
        if (!bl_size_mul(elems, ne[i], &elems) || elems > INT64_MAX)
            return bl_fail(BL_EFORMAT,
                           "dimension %" PRIu32 " = %" PRIu64 ": more than 2^63 - 1 elements", i,
                           ne[i]);
    }
    if (ne[0] % d->block_elems)
        return bl_fail(BL_EFORMAT, "rows of %" PRIu64 " elements; type %s needs a multiple of %u",
                       ne[0], d->name, d->block_elems);
    if (!bl_size_mul(elems / d->block_elems, d->block_bytes, &bytes) || bytes > INT64_MAX)
        return bl_fail(BL_EFORMAT, "%" PRIu64 " elements of %s: more than 2^63 - 1 bytes", elems,
                       d->name);
    *out = bytes;
    return BL_OK;
}

/* Leaves file_off relative to the data start, which is known only after the last record. */
static enum bl_status take_tensor(struct cursor *c, struct bl_gguf *g, struct bl_tensor_info *t)
{
    BL_TRY(take_name(c, "name", BL_GGUF_MAX_NAME_BYTES, &g->names, &t->name));
    BL_TRY(take_dims(c, t));
    BL_TRY(take_tensor_type(c, t));
    enum bl_status st = bl_gguf_tensor_bytes(t->type, t->ne, &t->bytes);
    if (st)
        return place(c, st);
    BL_TRY(take_u64(c, "data offset", &t->file_off));
    if (t->file_off % g->alignment)
        return place(c, bl_fail(BL_EFORMAT,
                                "data offset %" PRIu64 " at offset %" PRIu64
                                " is not a multiple of the alignment %" PRIu32,
                                t->file_off, c->off - 8, g->alignment));
    return BL_OK;
}

/* Makes offsets absolute and finds where the content ends; what it sums cannot wrap unnoticed. */
static enum bl_status locate_tensors(struct cursor *c, struct bl_gguf *g)
{
    uint64_t start = bl_align_up(c->off, g->alignment), end;
    uint32_t past = g->n_tensors; /* the first that lies beyond the end */
    g->content_bytes = c->off;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        struct bl_tensor_info *t = &g->tensor[i];
        c->index = i;
        c->name = t->name;
        if (!bl_size_add(t->file_off, start, &t->file_off) ||
            !bl_size_add(t->file_off, t->bytes, &end))
            return place(
                c, bl_fail(BL_EFORMAT, "data offset + %" PRIu64 " bytes overflows 2^64", t->bytes));
        if (end > c->end && past == g->n_tensors)
            past = i;
        if (end > g->content_bytes)
            g->content_bytes = end;
    }
    if (past == g->n_tensors)
        return BL_OK;
    if (g->header_only && g->content_bytes <= INT64_MAX) { /* no file can be longer */
        g->missing_bytes = g->content_bytes - c->end;
        return BL_OK;
    }
    c->index = past;
    c->name = g->tensor[past].name;
    return place(c, bl_fail(BL_EFORMAT,
                            "data at offset %" PRIu64 " reaches past the end"
                            " (truncated?): file is %" PRIu64 " bytes, %" PRIu64 " needed",
                            g->tensor[past].file_off, c->end, g->content_bytes));
}

static int compare_offsets(const void *a, const void *b)
{
    const struct bl_tensor_info *const *x = a, *const *y = b;
    return ((*x)->file_off > (*y)->file_off) - ((*x)->file_off < (*y)->file_off);
}

static enum bl_status check_overlap(const struct cursor *c, const struct bl_gguf *g)
{
    char one[BL_SHOWN_BYTES], two[BL_SHOWN_BYTES];
    enum bl_status st = BL_OK;
    const struct bl_tensor_info **t = bl_calloc(g->n_tensors, sizeof *t);
    if (!t)
        return bl_fail(BL_ENOMEM, "%s: out of memory", c->path);
    for (uint32_t i = 0; i < g->n_tensors; i++)
        t[i] = &g->tensor[i];
    qsort(t, g->n_tensors, sizeof *t, compare_offsets);
    for (uint32_t i = 1; i < g->n_tensors && !st; i++)
        if (t[i]->file_off - t[i - 1]->file_off < t[i - 1]->bytes)
            st = bl_fail(BL_EFORMAT, "%s: tensors '%s' and '%s' overlap at offset %" PRIu64,
                         c->path, bl_gguf_show(one, t[i - 1]->name), bl_gguf_show(two, t[i]->name),
                         t[i]->file_off);
    free(t);
    return st;
}

static enum bl_status parse_tensors(struct cursor *c, struct bl_gguf *g, uint32_t n)
{
    g->tensor = bl_calloc(n, sizeof *g->tensor);
    if (!g->tensor)
        return bl_fail(BL_ENOMEM, "%s: out of memory for %" PRIu32 " tensors", c->path, n);
    c->kind = "tensor";
    for (c->index = 0; c->index < n; c->index++) {
        c->name = NULL;
        BL_TRY(take_tensor(c, g, &g->tensor[c->index]));
        g->n_tensors++;
    }
    BL_TRY(locate_tensors(c, g));
    return check_overlap(c, g);
}

enum bl_status bl_gguf_parse(struct bl_gguf *g)
{
    const void *map;
    uint32_t n_tensors = 0, n_kv = 0;
    BL_TRY(bl_file_map(g->file[0], &map));
    struct cursor c = {.base = map,
                       .end = bl_file_bytes(g->file[0]),
                       .path = bl_path_tail(bl_file_path(g->file[0]))};
    BL_TRY(parse_header(&c, &n_tensors, &n_kv));
    BL_TRY(parse_metadata(&c, g, n_kv));
    BL_TRY(index_keys(&c, g));
    BL_TRY(read_alignment(&c, g));
    return parse_tensors(&c, g, n_tensors);
}
