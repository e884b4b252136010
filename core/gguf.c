/* SPDX-License-Identifier: MIT */
#include "gguf_impl.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- one file
 * ----------------------------------------------------------------------------------------- */

static const char *first_path(const struct bl_gguf *g)
{
    return bl_path_tail(bl_gguf_path(g));
}

static enum bl_status open_one(struct bl_gguf **out, const char *path, bool header_only)
{
    struct bl_gguf *g = bl_calloc(1, sizeof *g);
    enum bl_status st = BL_OK;
    if (g)
        g->file = bl_calloc(1, sizeof *g->file);
    if (!g || !g->file)
        st = bl_fail(BL_ENOMEM, "%s: out of memory", bl_path_tail(path));
    else if (!(st = bl_file_open(&g->file[0], path))) {
        g->n_files = 1;
        g->header_only = header_only;
        st = bl_gguf_parse(g);
    }
    if (st) {
        bl_gguf_close(g);
        return st;
    }
    *out = g;
    return BL_OK;
}

/* ---- shards
 * ------------------------------------------------------------------------------------------- */

enum { SHARD_DIGITS = 5, SUFFIX_BYTES = sizeof "-00001-of-00003.gguf" - 1 };

struct split {
    uint32_t no, count; /* count <= 1: not split */
};

static enum bl_status read_split(const struct bl_gguf *g, struct split *s)
{
    *s = (struct split){0, 1};
    BL_TRY(bl_gguf_u32(g, "split.count", false, &s->count));
    if (s->count <= 1)
        return BL_OK;
    if (s->count > BL_GGUF_MAX_SHARDS)
        return bl_fail(BL_EFORMAT, "%s: split.count is %" PRIu32 "; the most is %d", first_path(g),
                       s->count, BL_GGUF_MAX_SHARDS);
    BL_TRY(bl_gguf_u32(g, "split.no", true, &s->no));
    if (s->no >= s->count)
        return bl_fail(BL_EFORMAT, "%s: split.no is %" PRIu32 ", but split.count is %" PRIu32,
                       first_path(g), s->no, s->count);
    return BL_OK;
}

static bool read_digits(const char *p, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < SHARD_DIGITS; i++) {
        if (p[i] < '0' || p[i] > '9')
            return false;
        v = v * 10 + (uint32_t)(p[i] - '0');
    }
    *out = v;
    return true;
}

/* Number (from 1) and total in a name such as x-00001-of-00003.gguf; false for other names. */
static bool read_shard_name(const char *path, uint32_t *number, uint32_t *total)
{
    size_t n = strlen(path);
    if (n < SUFFIX_BYTES)
        return false;
    const char *p = path + n - SUFFIX_BYTES;
    return p[0] == '-' && read_digits(p + 1, number) && !memcmp(p + 6, "-of-", 4) &&
           read_digits(p + 10, total) && !strcmp(p + 15, ".gguf");
}

/* Two shards put into one file with `cat` look like a shard with bytes behind its end; a GGUF
 * header is found where the first one ends, padded or not. Files that claim no shards may carry
 * what they like there. */
static enum bl_status refuse_glued(const struct bl_gguf *g)
{
    const void *map;
    BL_TRY(bl_file_map(g->file[0], &map));
    uint64_t at[] = {g->content_bytes, bl_align_up(g->content_bytes, g->alignment)};
    for (size_t i = 0; i < BL_COUNT(at); i++)
        if (bl_file_bytes(g->file[0]) >= at[i] + 4 && !memcmp((const char *)map + at[i], "GGUF", 4))
            return bl_fail(
                BL_EFORMAT,
                "%s: two shards glued together: a second GGUF file begins at offset %" PRIu64
                "; cut it there and open the shards under their own names",
                first_path(g), at[i]);
    return BL_OK;
}

static enum bl_status check_shard_name(const struct bl_gguf *g, const struct split *s)
{
    uint32_t number, total;
    if (!read_shard_name(bl_gguf_path(g), &number, &total))
        return bl_fail(BL_EFORMAT,
                       "%s: shard %" PRIu32 " of %" PRIu32 " by its split.no and split.count; its"
                       " name must end in -%05" PRIu32 "-of-%05" PRIu32 ".gguf",
                       first_path(g), s->no + 1, s->count, s->no + 1, s->count);
    if (number != s->no + 1 || total != s->count)
        return bl_fail(BL_EFORMAT,
                       "%s: the name says shard %" PRIu32 " of %" PRIu32 ", but split.no and"
                       " split.count say %" PRIu32 " of %" PRIu32,
                       first_path(g), number, total, s->no + 1, s->count);
    return BL_OK;
}

static enum bl_status check_shard(const struct bl_gguf *g, const struct split *s)
{
    BL_TRY(refuse_glued(g));
    return check_shard_name(g, s);
}

/* The path of shard `no` next to `path`, which is a shard of the same split; the caller frees it.
 */
static char *sibling_path(const char *path, uint32_t no, uint32_t count)
{
    size_t n = strlen(path);
    char *p = bl_calloc(n + 1, 1);
    if (!p)
        return NULL;
    memcpy(p, path, n - SUFFIX_BYTES);
    snprintf(p + n - SUFFIX_BYTES, SUFFIX_BYTES + 1, "-%05u-of-%05u.gguf", (no + 1) % 100000u,
             count % 100000u);
    return p;
}

static enum bl_status open_sibling(struct bl_gguf **out, const struct bl_gguf *of,
                                   const struct split *want)
{
    const char *path = bl_gguf_path(of);
    struct bl_gguf *g = NULL;
    struct split s;
    char *name = sibling_path(path, want->no, want->count);
    enum bl_status st = name ? open_one(&g, name, of->header_only)
                             : bl_fail(BL_ENOMEM, "%s: out of memory", bl_path_tail(path));
    if (st) {
        st = bl_fail_in(st, "shard %" PRIu32 " of %" PRIu32, want->no + 1, want->count);
        goto out;
    }
    if ((st = read_split(g, &s)) || (st = refuse_glued(g)))
        goto out;
    if (s.no != want->no || s.count != want->count) {
        st = bl_fail(BL_EFORMAT,
                     "%s: split.no and split.count say shard %" PRIu32 " of %" PRIu32 "; %" PRIu32
                     " of %" PRIu32 " is needed here",
                     first_path(g), s.no + 1, s.count, want->no + 1, want->count);
        goto out;
    }
    *out = g;
    g = NULL;
out:
    bl_gguf_close(g);
    free(name);
    return st;
}

/* Appends the tensors and the file of `part` to g. */
static enum bl_status adopt(struct bl_gguf *g, struct bl_gguf *part)
{
    uint32_t n = g->n_tensors + part->n_tensors;
    if (n > BL_GGUF_MAX_TENSORS)
        return bl_fail(BL_EFORMAT,
                       "%s: the shards up to this one hold %" PRIu32 " tensors; the most is %d",
                       first_path(part), n, BL_GGUF_MAX_TENSORS);
    struct bl_tensor_info *t = realloc(g->tensor, (n ? n : 1) * sizeof *t);
    if (!t)
        return bl_fail(BL_ENOMEM, "%s: out of memory", first_path(part));
    g->tensor = t;
    for (uint32_t i = 0; i < part->n_tensors; i++) {
        t = &g->tensor[g->n_tensors];
        *t = part->tensor[i];
        t->shard = g->n_files;
        t->name = bl_arena_string(&g->names, t->name, strlen(t->name));
        if (!t->name)
            return bl_fail(BL_ENOMEM, "%s: out of memory", first_path(part));
        g->n_tensors++;
    }
    if (!bl_size_add(g->missing_bytes, part->missing_bytes, &g->missing_bytes))
        g->missing_bytes = UINT64_MAX;
    g->file[g->n_files++] = part->file[0];
    part->n_files = 0;
    return BL_OK;
}

static enum bl_status join_shards(struct bl_gguf *g, uint32_t count)
{
    uint32_t total = 0;
    struct bl_file **file = realloc(g->file, count * sizeof *file);
    if (!file)
        return bl_fail(BL_ENOMEM, "%s: out of memory", first_path(g));
    g->file = file;
    for (uint32_t no = 1; no < count; no++) {
        struct bl_gguf *part = NULL;
        BL_TRY(open_sibling(&part, g, &(struct split){no, count}));
        enum bl_status st = adopt(g, part);
        bl_gguf_close(part);
        BL_TRY(st);
    }
    BL_TRY(bl_gguf_u32(g, "split.tensors.count", true, &total));
    if (total != g->n_tensors)
        return bl_fail(BL_EFORMAT,
                       "%s: split.tensors.count is %" PRIu32 ", but the %" PRIu32
                       " shards hold %" PRIu32 " tensors",
                       first_path(g), total, count, g->n_tensors);
    return BL_OK;
}

/* Replaces *g, any shard of a split model, by the whole of it. */
static enum bl_status gather_shards(struct bl_gguf **g, struct split s)
{
    BL_TRY(check_shard(*g, &s));
    if (s.no) {
        struct bl_gguf *first = NULL;
        BL_TRY(open_sibling(&first, *g, &(struct split){0, s.count}));
        bl_gguf_close(*g);
        *g = first;
    }
    return join_shards(*g, s.count);
}

/* ---- names
 * -------------------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    const struct bl_tensor_info *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static enum bl_status index_names(struct bl_gguf *g)
{
    char shown[BL_SHOWN_BYTES];
    g->by_name = bl_calloc(g->n_tensors, sizeof *g->by_name);
    if (!g->by_name)
        return bl_fail(BL_ENOMEM, "%s: out of memory", first_path(g));
    for (uint32_t i = 0; i < g->n_tensors; i++)
        g->by_name[i] = &g->tensor[i];
    qsort(g->by_name, g->n_tensors, sizeof *g->by_name, compare_names);
    for (uint32_t i = 1; i < g->n_tensors; i++) {
        const struct bl_tensor_info *a = g->by_name[i - 1], *b = g->by_name[i];
        if (!strcmp(a->name, b->name))
            return bl_fail(BL_EFORMAT, "%s: tensor '%s' occurs twice, as %td and %td",
                           bl_path_tail(bl_gguf_shard_path(g, b->shard)),
                           bl_gguf_show(shown, b->name), a - g->tensor, b - g->tensor);
    }
    return BL_OK;
}

static int compare_key_to_kv(const void *key, const void *item)
{
    const struct bl_kv *const *kv = item;
    return strcmp(key, (*kv)->key);
}

const struct bl_kv *bl_gguf_find(const struct bl_gguf *g, const char *key)
{
    const struct bl_kv **kv =
        bsearch(key, g->by_key, g->n_kv, sizeof *g->by_key, compare_key_to_kv);
    return kv ? *kv : NULL;
}

static int compare_name_to_tensor(const void *name, const void *item)
{
    const struct bl_tensor_info *const *t = item;
    return strcmp(name, (*t)->name);
}

const struct bl_tensor_info *bl_gguf_find_tensor(const struct bl_gguf *g, const char *name,
                                                 uint32_t *index)
{
    const struct bl_tensor_info **t =
        bsearch(name, g->by_name, g->n_tensors, sizeof *g->by_name, compare_name_to_tensor);
    if (t && index)
        *index = (uint32_t)(*t - g->tensor);
    return t ? *t : NULL;
}

/* ---- the object
 * --------------------------------------------------------------------------------------- */

static enum bl_status open_whole(struct bl_gguf **out, const char *path, bool header_only)
{
    struct bl_gguf *g = NULL;
    struct split s;
    BL_TRY(open_one(&g, path, header_only));
    enum bl_status st = read_split(g, &s);
    if (!st && s.count > 1)
        st = gather_shards(&g, s);
    if (!st)
        st = index_names(g);
    if (st) {
        bl_gguf_close(g);
        return st;
    }
    *out = g;
    return BL_OK;
}

enum bl_status bl_gguf_open(struct bl_gguf **out, const char *path)
{
    return open_whole(out, path, false);
}

enum bl_status bl_gguf_open_header(struct bl_gguf **out, const char *path)
{
    return open_whole(out, path, true);
}

uint64_t bl_gguf_missing_bytes(const struct bl_gguf *g)
{
    return g->missing_bytes;
}

void bl_gguf_close(struct bl_gguf *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; i < g->n_files; i++)
        bl_file_close(g->file[i]);
    free(g->by_name);
    free(g->tensor);
    free(g->by_key);
    free(g->kv);
    bl_arena_finish(&g->names);
    free(g->file);
    free(g);
}

uint32_t bl_gguf_n_kv(const struct bl_gguf *g)
{
    return g->n_kv;
}

const struct bl_kv *bl_gguf_kv(const struct bl_gguf *g, uint32_t i)
{
    assert(i < g->n_kv);
    return &g->kv[i];
}

uint32_t bl_gguf_n_tensors(const struct bl_gguf *g)
{
    return g->n_tensors;
}

const struct bl_tensor_info *bl_gguf_tensor(const struct bl_gguf *g, uint32_t i)
{
    assert(i < g->n_tensors);
    return &g->tensor[i];
}

uint32_t bl_gguf_n_shards(const struct bl_gguf *g)
{
    return g->n_files;
}

struct bl_file *bl_gguf_file(const struct bl_gguf *g, uint32_t shard)
{
    assert(shard < g->n_files);
    return g->file[shard];
}

const char *bl_gguf_shard_path(const struct bl_gguf *g, uint32_t i)
{
    return bl_file_path(bl_gguf_file(g, i));
}

uint64_t bl_gguf_shard_bytes(const struct bl_gguf *g, uint32_t i)
{
    return bl_file_bytes(bl_gguf_file(g, i));
}

const char *bl_gguf_path(const struct bl_gguf *g)
{
    return g->n_files ? bl_file_path(g->file[0]) : g->label;
}

uint64_t bl_gguf_heap_bytes(const struct bl_gguf *g)
{
    uint64_t n = sizeof *g + g->names.taken_bytes;
    n += g->n_kv * (sizeof *g->kv + sizeof *g->by_key);
    n += g->n_tensors * (sizeof *g->tensor + sizeof *g->by_name);
    for (uint32_t i = 0; i < g->n_files; i++)
        n += sizeof *g->file + strlen(bl_file_path(g->file[i])) + 1;
    return n;
}
