/* SPDX-License-Identifier: MIT */
#include "info_json.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_ITEMS = 8, SHORT_ARRAY = 16 };

static const struct {
    const char *name;
    size_t bytes; /* of one value in the file; 0: varies */
} value_type[] = {
    [BL_VAL_U8] = {"u8", 1},       [BL_VAL_I8] = {"i8", 1},     [BL_VAL_U16] = {"u16", 2},
    [BL_VAL_I16] = {"i16", 2},     [BL_VAL_U32] = {"u32", 4},   [BL_VAL_I32] = {"i32", 4},
    [BL_VAL_F32] = {"f32", 4},     [BL_VAL_BOOL] = {"bool", 1}, [BL_VAL_STRING] = {"string", 0},
    [BL_VAL_ARRAY] = {"array", 0}, [BL_VAL_U64] = {"u64", 8},   [BL_VAL_I64] = {"i64", 8},
    [BL_VAL_F64] = {"f64", 8},
};

/* ---- values --------------------------------------------------------------------------------- */

const struct bl_kv *bl_info_find(const struct bl_gguf *g, const char *key)
{
    for (uint32_t i = 0; i < bl_gguf_n_kv(g); i++)
        if (!strcmp(bl_gguf_kv(g, i)->key, key))
            return bl_gguf_kv(g, i);
    return NULL;
}

static int64_t read_signed(enum bl_value_type type, const void *p)
{
    int8_t a;
    int16_t b;
    int32_t c;
    int64_t d;

    switch (type) {
    case BL_VAL_I8:
        return memcpy(&a, p, sizeof a), a;
    case BL_VAL_I16:
        return memcpy(&b, p, sizeof b), b;
    case BL_VAL_I32:
        return memcpy(&c, p, sizeof c), c;
    default:
        return memcpy(&d, p, sizeof d), d;
    }
}

static bool is_signed(enum bl_value_type type)
{
    return type == BL_VAL_I8 || type == BL_VAL_I16 || type == BL_VAL_I32 || type == BL_VAL_I64;
}

static bool is_unsigned(enum bl_value_type type)
{
    return type == BL_VAL_U8 || type == BL_VAL_U16 || type == BL_VAL_U32 || type == BL_VAL_U64;
}

bool bl_info_integer(const struct bl_kv *kv, uint64_t i, uint64_t *out)
{
    size_t bytes = value_type[kv->item].bytes;
    uint64_t v = 0;

    if (!bytes || i >= kv->data_bytes / bytes)
        return false;
    const char *p = (const char *)kv->data + i * bytes;
    if (is_signed(kv->item)) {
        int64_t s = read_signed(kv->item, p);
        *out = (uint64_t)s;
        return s >= 0;
    }
    if (!is_unsigned(kv->item))
        return false;
    memcpy(&v, p, bytes); /* little-endian, as this machine is */
    *out = v;
    return true;
}

static int by_bytes(const void *a, const void *b)
{
    const struct bl_info_type *x = a, *y = b;

    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : 0;
}

void bl_info_types(struct bl_info_types *t, const struct bl_gguf *g)
{
    const size_t cap = sizeof t->row / sizeof t->row[0];

    memset(t, 0, sizeof *t);
    for (uint32_t i = 0; i < bl_gguf_n_tensors(g); i++) {
        const struct bl_tensor_info *x = bl_gguf_tensor(g, i);
        size_t k = 0;
        t->parameters += x->ne[0] * x->ne[1] * x->ne[2] * x->ne[3];
        t->bytes += x->bytes;
        while (k < t->n && t->row[k].type != x->type)
            k++;
        if (k == cap)
            continue;
        t->n += k == t->n;
        t->row[k].name = x->type_name;
        t->row[k].type = x->type;
        t->row[k].tensors++;
        t->row[k].bytes += x->bytes;
    }
    qsort(t->row, t->n, sizeof t->row[0], by_bytes);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

/* Takes the item; false when it or the object is missing (out of memory). */
static bool put(cJSON *object, const char *key, cJSON *item)
{
    if (object && item && cJSON_AddItemToObject(object, key, item))
        return true;
    cJSON_Delete(item);
    return false;
}

static bool append(cJSON *array, cJSON *item)
{
    if (array && item && cJSON_AddItemToArray(array, item))
        return true;
    cJSON_Delete(item);
    return false;
}

/* malloc'ed; NULL: out of memory. */
static char *clean_text(const char *s, size_t n)
{
    size_t cap = n <= (SIZE_MAX - 1) / 3 ? 3 * n + 1 : 0;
    char *clean = cap ? malloc(cap) : NULL;

    if (clean)
        bl_clean_text(clean, cap, s, n, false);
    return clean;
}

static cJSON *json_text(const char *s, size_t n)
{
    char *clean = clean_text(s, n);
    cJSON *item = clean ? cJSON_CreateString(clean) : NULL;

    free(clean);
    return item;
}

static cJSON *json_u64(uint64_t v)
{
    char text[24];

    /* cJSON's own numbers are doubles, exact to 2^53 only. */
    snprintf(text, sizeof text, "%" PRIu64, v);
    return cJSON_CreateRaw(text);
}

static cJSON *json_float(double v, bool single)
{
    char text[32];

    if (!isfinite(v))
        return cJSON_CreateNull();
    /* The shortest form that reads back the same. */
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (single ? strtof(text, NULL) == (float)v : strtod(text, NULL) == v)
            break;
    }
    return cJSON_CreateRaw(text);
}

/* The value at p of at most `left` bytes; *used gets its size. NULL: out of memory or out of bytes.
 */
static cJSON *json_value(enum bl_value_type type, const char *p, uint64_t left, uint64_t *used)
{
    char text[24];
    uint64_t n = 0;
    float f;
    double d;

    *used = type == BL_VAL_STRING ? sizeof n : value_type[type].bytes;
    if (!*used || left < *used)
        return NULL;
    switch (type) {
    case BL_VAL_STRING:
        memcpy(&n, p, sizeof n);
        if (n > left - sizeof n)
            return NULL;
        *used += n;
        return json_text(p + sizeof n, (size_t)n);
    case BL_VAL_BOOL:
        return cJSON_CreateBool(*p);
    case BL_VAL_F32:
        memcpy(&f, p, sizeof f);
        return json_float((double)f, true);
    case BL_VAL_F64:
        memcpy(&d, p, sizeof d);
        return json_float(d, false);
    default:
        break;
    }
    if (is_signed(type)) {
        snprintf(text, sizeof text, "%" PRId64, read_signed(type, p));
        return cJSON_CreateRaw(text);
    }
    memcpy(&n, p, *used);
    return json_u64(n);
}

static cJSON *json_items(const struct bl_kv *kv, uint64_t n)
{
    cJSON *array = cJSON_CreateArray();
    const char *p = kv->data;
    uint64_t left = kv->data_bytes, used;

    for (uint64_t i = 0; i < n && array; i++) {
        if (!append(array, json_value(kv->item, p, left, &used))) {
            cJSON_Delete(array);
            return NULL;
        }
        p += used;
        left -= used;
    }
    return array;
}

static cJSON *json_kv(const struct bl_kv *kv, bool full)
{
    uint64_t used;

    if (kv->type != BL_VAL_ARRAY)
        return json_value(kv->type, kv->data, kv->data_bytes, &used);
    if (full || kv->n <= SHORT_ARRAY)
        return json_items(kv, kv->n);
    cJSON *o = cJSON_CreateObject();
    if (put(o, "array_of", cJSON_CreateString(value_type[kv->item].name)) &&
        put(o, "count", json_u64(kv->n)) && put(o, "first", json_items(kv, FIRST_ITEMS)))
        return o;
    cJSON_Delete(o);
    return NULL;
}

static bool put_metadata(cJSON *root, const struct bl_gguf *g, bool full)
{
    cJSON *o = cJSON_CreateObject();
    bool good = o;

    for (uint32_t i = 0; good && i < bl_gguf_n_kv(g); i++) {
        const struct bl_kv *kv = bl_gguf_kv(g, i);
        char *key = clean_text(kv->key, strlen(kv->key));
        good = key && put(o, key, json_kv(kv, full));
        free(key);
    }
    return put(root, "metadata", o) && good;
}

static bool put_files(cJSON *root, const struct bl_gguf *g)
{
    cJSON *array = cJSON_CreateArray();
    bool good = array;

    for (uint32_t i = 0; good && i < bl_gguf_n_shards(g); i++) {
        const char *path = bl_gguf_shard_path(g, i);
        cJSON *o = cJSON_CreateObject();
        good = put(o, "path", json_text(path, strlen(path))) &&
               put(o, "bytes", json_u64(bl_gguf_shard_bytes(g, i)));
        good = append(array, o) && good;
    }
    return put(root, "files", array) && good;
}

static bool put_types(cJSON *root, const struct bl_gguf *g)
{
    struct bl_info_types t;
    cJSON *array = cJSON_CreateArray();
    bool good = array;

    bl_info_types(&t, g);
    for (size_t i = 0; good && i < t.n; i++) {
        cJSON *o = cJSON_CreateObject();
        good = put(o, "type", cJSON_CreateString(t.row[i].name)) &&
               put(o, "tensors", json_u64(t.row[i].tensors)) &&
               put(o, "bytes", json_u64(t.row[i].bytes));
        good = append(array, o) && good;
    }
    return put(root, "parameters", json_u64(t.parameters)) &&
           put(root, "tensor_bytes", json_u64(t.bytes)) && put(root, "types", array) && good;
}

static bool put_tensors(cJSON *root, const struct bl_gguf *g)
{
    cJSON *array = cJSON_CreateArray();
    bool good = array;

    for (uint32_t i = 0; good && i < bl_gguf_n_tensors(g); i++) {
        const struct bl_tensor_info *t = bl_gguf_tensor(g, i);
        cJSON *o = cJSON_CreateObject(), *shape = cJSON_CreateArray();
        for (uint32_t d = 0; good && d < t->n_dims; d++)
            good = append(shape, json_u64(t->ne[d]));
        good = put(o, "shape", shape) && good;
        good = good && put(o, "name", json_text(t->name, strlen(t->name))) &&
               put(o, "type", cJSON_CreateString(t->type_name)) &&
               put(o, "bytes", json_u64(t->bytes)) && put(o, "file", json_u64(t->shard)) &&
               put(o, "offset", json_u64(t->file_off));
        good = append(array, o) && good;
    }
    return put(root, "tensors", array) && good;
}

static void append_line(void *array, const char *text)
{
    append(array, json_text(text, strlen(text)));
}

static int put_cpu(cJSON *root, const struct bl_report *r, const struct bl_engine_args *e,
                   bool *good)
{
    struct bl_threads t;
    cJSON *o = cJSON_CreateObject(), *kernels = cJSON_CreateArray();
    enum bl_status st = bl_threads_choose(&t, e->topology, e->cgroup_root);

    if (!st)
        st = bl_cpu_describe(append_line, kernels, bl_engine_args_mask(e));
    if (!st)
        *good = put(o, "threads", json_u64(t.n)) &&
                put(o, "threads_prefill", json_u64(t.n_prefill)) &&
                put(o, "memory_nodes", json_u64(t.n_nodes)) &&
                put(o, "physical_cores", json_u64(t.n_physical)) &&
                put(o, "logical_processors", json_u64(t.n_logical)) &&
                put(o, "quota_cpus", json_float(t.quota, false)) &&
                put(o, "reason", json_text(t.reason, strlen(t.reason)));
    *good = put(o, "kernels", kernels) && *good;
    *good = put(root, "cpu", o) && *good;
    return bl_engine_args_machine_code(r, st);
}

static cJSON *json_state_line(const struct bl_state_line *l)
{
    cJSON *o = cJSON_CreateObject();

    if (put(o, "name", cJSON_CreateString(l->name)) && put(o, "law", cJSON_CreateString(l->law)) &&
        put(o, "type", cJSON_CreateString(l->type_name)) &&
        put(o, "span_tokens", json_u64(l->span_tokens)) && put(o, "layers", json_u64(l->layers)) &&
        put(o, "row_bytes", json_u64(l->row_bytes)) && put(o, "rows", json_u64(l->rows)) &&
        put(o, "slack_rows", json_u64(l->slack_rows)) && put(o, "bytes", json_u64(l->bytes)) &&
        put(o, "slack_bytes", json_u64(l->slack_bytes)))
        return o;
    cJSON_Delete(o);
    return NULL;
}

static bool put_state(cJSON *root, const struct bl_state_info *s)
{
    if (!s)
        return put(root, "state", cJSON_CreateNull());
    cJSON *lines = cJSON_CreateArray(), *o = cJSON_CreateObject();
    bool good = lines;

    for (uint32_t i = 0; good && i < s->n_lines; i++)
        good = append(lines, json_state_line(&s->line[i]));
    good = put(o, "kinds", lines) && good;
    good = good && put(o, "ctx_tokens", json_u64(s->ctx_tokens)) &&
           put(o, "ubatch_tokens", json_u64(s->ubatch_tokens)) &&
           put(o, "bytes", json_u64(s->bytes)) && put(o, "slack_bytes", json_u64(s->slack_bytes));
    return put(root, "state", o) && good;
}

int bl_info_json(FILE *f, const struct bl_report *r, const struct bl_info_source *s)
{
    cJSON *root = cJSON_CreateObject();
    bool good = root;
    int code = BL_EXIT_OK;

    if (s->gguf)
        good = put_files(root, s->gguf) &&
               put(root, "missing_bytes", json_u64(bl_gguf_missing_bytes(s->gguf))) &&
               put_types(root, s->gguf) && put_state(root, s->state) &&
               put_metadata(root, s->gguf, s->full) && put_tensors(root, s->gguf);
    if (s->cpu && good)
        code = put_cpu(root, r, s->cpu, &good);
    char *text = good && !code ? cJSON_Print(root) : NULL;
    if (text) {
        fprintf(f, "%s\n", text);
    } else if (!code) {
        bl_report_error(r, "out of memory");
        code = BL_EXIT_FAILURE;
    }
    cJSON_free(text);
    cJSON_Delete(root);
    return code;
}
