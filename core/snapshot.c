/* SPDX-License-Identifier: MIT */
/* Copies of a sequence: to another session of the engine, to a file and back. A state's rows are
 * one run of memory per sequence whatever its law, so that copying needs to know no more of a law
 * than how many of them are in use.
 *
 * A file is a header, the runs in the order of the model's states, and a checksum of them. Before
 * the first row is touched the header has to fit this engine and the checksum the rows. */
#include "engine.h"

#include "file.h"
#include "mem.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

enum {
    PIECE_BYTES = 256 << 10, /* on its way between file and device */
    VERSION = 1
};
#define COPY_TIMEOUT_NS (600ull * 1000000000ull)

struct header { /* as in the file; little-endian like everything else */
    char magic[8];
    uint32_t version, header_bytes;
    uint64_t model, layout; /* hashes */
    uint64_t ctx_tokens;
    uint32_t ubatch_tokens;
    uint8_t type_k, type_v, unused[2];
    uint64_t n_tok, high;
    uint64_t rows_bytes;
    uint64_t check; /* hash of all before it */
};
static const char magic[8] = "blstate\n";
static_assert(sizeof(struct header) == 80, "no gaps: it is written and hashed as it is");

/* ---- hash ---- */

/* One word changed always changes the result: every step is a bijection. */
static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

static uint64_t hash(uint64_t h, const void *p, size_t n)
{
    const unsigned char *at = p;
    uint64_t word, bytes = n;
    for (; n >= sizeof word; at += sizeof word, n -= sizeof word) {
        memcpy(&word, at, sizeof word);
        h = mix(h, word);
    }
    word = 0;
    memcpy(&word, at, n);
    return mix(mix(h, word), bytes);
}

/* Of everything but the weights themselves: other files of the same model differ in their types. */
static uint64_t hash_model(const struct bl_gguf *g)
{
    uint64_t h = VERSION;
    for (uint32_t i = 0; i < bl_gguf_n_kv(g); i++) {
        const struct bl_kv *kv = bl_gguf_kv(g, i);
        h = hash(h, kv->key, strlen(kv->key));
        h = hash(mix(h, kv->type), kv->data, (size_t)kv->data_bytes);
    }
    for (uint32_t i = 0; i < bl_gguf_n_tensors(g); i++) {
        const struct bl_tensor_info *t = bl_gguf_tensor(g, i);
        h = hash(h, t->name, strlen(t->name));
        h = hash(mix(h, t->type), t->ne, sizeof t->ne);
    }
    return h;
}

static struct bl_shape shape_of(const struct bl_engine *e)
{
    return bl_plan_bucket(&e->parts.plan, 1, 1);
}

/* Of all that decides where a row lies and what is in it; angles count, for keys are kept rotated.
 */
static uint64_t hash_layout(const struct bl_engine *e)
{
    const struct bl_model *m = e->parts.model;
    const struct bl_angles_attr angles = bl_model_angles(m);
    const struct bl_shape shape = shape_of(e);
    uint64_t h = mix(hash(m->n_states, &angles, sizeof angles), m->hp.rope_ctx_orig);
    h = mix(h, m->opt.round_kv + 2u * m->opt.round_index);
    for (uint32_t i = 0; i < m->n_states; i++) {
        const struct bl_state_desc *d = &m->state[i];
        h = hash(h, d->name, strlen(d->name));
        h = mix(mix(h, d->law), d->type);
        h = mix(mix(h, d->row_elems), bl_state_rows(d, &shape));
    }
    return h;
}

/* ---- what a sequence holds ---- */

struct run {
    uint16_t device;
    uint64_t off, bytes; /* in the device's blocks of states */
};

/* Rows in use: a ring that has not come round holds nothing behind the last token. */
static uint64_t used_rows(const struct bl_state_desc *d, uint64_t rows, uint64_t n_tok)
{
    uint64_t used = n_tok;
    if (d->law == BL_PER_GROUP)
        used = (n_tok + d->group - 1) / d->group;
    if (d->law == BL_FIXED && n_tok)
        used = rows;
    return used < rows ? used : rows;
}

static struct run run_of(const struct bl_session *s, uint32_t state)
{
    const struct bl_engine *e = s->engine;
    const struct bl_state_desc *d = &e->parts.model->state[state];
    const struct bl_shape shape = shape_of(e);
    const uint64_t row_bytes = bl_dtype_row_bytes(d->type, d->row_elems),
                   rows = bl_state_rows(d, &shape);
    const uint16_t device = bl_plan_device(&e->parts.plan, d->layer, BL_PART_STATE);
    return (struct run){device, e->state_off[state] + s->slot * rows * row_bytes,
                        used_rows(d, rows, s->n_tok) * row_bytes};
}

/* A state lies in one block. */
static const struct bl_mem *state_at(const struct bl_engine *e, const struct run *r, uint64_t *at)
{
    return bl_blocks_at(&e->state_mem[r->device], r->off, at);
}

static uint64_t all_bytes(const struct bl_session *s)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->engine->parts.model->n_states; i++)
        bytes += run_of(s, i).bytes;
    return bytes;
}

static enum bl_status join(struct bl_place *p)
{
    struct bl_point done;
    BL_TRY(p->dev->ops->signal(p->stream, &done));
    return p->dev->ops->join(done, COPY_TIMEOUT_NS);
}

/* ---- fork ---- */

static enum bl_status copy_runs(const struct bl_session *from, const struct bl_session *to)
{
    struct bl_engine *e = to->engine;
    for (uint32_t i = 0; i < e->parts.model->n_states; i++) {
        const struct run src = run_of(from, i), dst = run_of(to, i);
        const struct bl_place *p = &e->place[src.device];
        uint64_t there, at;
        const struct bl_mem *mem = state_at(e, &dst, &there);
        (void)state_at(e, &src, &at);
        BL_TRY(
            p->dev->ops->copy(p->stream, mem, (size_t)there, mem, (size_t)at, (size_t)src.bytes));
    }
    for (uint32_t d = 0; d < e->parts.machine.n_devices; d++)
        if (e->place[d].stream)
            BL_TRY(join(&e->place[d]));
    return BL_OK;
}

enum bl_status bl_session_fork(struct bl_session **out, const struct bl_session *from)
{
    struct bl_session *s;

    BL_TRY(bl_engine_whole(from->engine));
    BL_TRY(bl_session_create(&s, from->engine));
    s->n_tok = from->n_tok;
    s->high = from->high;
    enum bl_status st = copy_runs(from, s);
    if (st) {
        bl_session_destroy(s);
        return st;
    }
    *out = s;
    return BL_OK;
}

/* ---- pieces between device and host ---- */

/* Walks the rows of a session in file order, a piece at a time. */
struct walk {
    const struct bl_session *s;
    struct bl_mem piece; /* host memory */
    struct bl_place
        *place; /* [n_devices] with streams of its own, as they outlive no host memory */
    uint64_t hash;
};
typedef enum bl_status piece_fn(struct walk *, void *arg, const struct run *piece);

static void walk_close(struct walk *w)
{
    for (uint32_t d = 0; w->place && d < w->s->engine->parts.machine.n_devices; d++)
        if (w->place[d].stream)
            w->place[d].dev->ops->stream_close(w->place[d].stream);
    free(w->place);
    if (w->piece.dev)
        w->piece.dev->ops->mem_free(&w->piece);
}

static enum bl_status walk_open(struct walk *w, const struct bl_session *s)
{
    struct bl_device *host = s->engine->parts.device[0];
    *w = (struct walk){.s = s};
    w->place = bl_calloc(s->engine->parts.machine.n_devices, sizeof *w->place);
    if (!w->place)
        return bl_fail(BL_ENOMEM, "out of memory for a saved session");
    const enum bl_status st = host->ops->mem_alloc(host, PIECE_BYTES, true, &w->piece);
    if (st)
        walk_close(w);
    return st;
}

static enum bl_status walk_place(struct walk *w, uint32_t d, struct bl_place **out)
{
    struct bl_place *p = *out = &w->place[d];
    if (p->stream)
        return BL_OK;
    p->dev = w->s->engine->place[d].dev;
    return p->dev->ops->stream_open(p->dev, &p->stream);
}

static enum bl_status walk_pieces(struct walk *w, piece_fn *fn, void *arg)
{
    w->hash = VERSION;
    for (uint32_t i = 0; i < w->s->engine->parts.model->n_states; i++)
        for (struct run left = run_of(w->s, i), piece = left; left.bytes;
             left.bytes -= piece.bytes) {
            piece.off = left.off;
            piece.bytes = left.bytes < PIECE_BYTES ? left.bytes : PIECE_BYTES;
            BL_TRY(fn(w, arg, &piece));
            left.off += piece.bytes;
        }
    return BL_OK;
}

static void hash_piece(struct walk *w, const struct run *piece)
{
    w->hash = hash(w->hash, w->piece.host, (size_t)piece->bytes);
}

/* ---- save ---- */

static struct header header_of(const struct bl_session *s)
{
    const struct bl_engine *e = s->engine;
    struct header h = {.version = VERSION,
                       .header_bytes = sizeof h,
                       .model = hash_model(e->parts.gguf),
                       .layout = hash_layout(e),
                       .ctx_tokens = e->parts.plan.ctx_tokens,
                       .ubatch_tokens = e->parts.plan.ubatch_tokens,
                       .type_k = e->parts.model->opt.type_k,
                       .type_v = e->parts.model->opt.type_v,
                       .n_tok = s->n_tok,
                       .high = s->high,
                       .rows_bytes = all_bytes(s)};
    memcpy(h.magic, magic, sizeof magic);
    h.check = hash(0, &h, offsetof(struct header, check));
    return h;
}

static enum bl_status save_piece(struct walk *w, void *arg, const struct run *piece)
{
    struct bl_place *p;
    uint64_t at;
    const struct bl_mem *mem = state_at(w->s->engine, piece, &at);
    BL_TRY(walk_place(w, piece->device, &p));
    BL_TRY(p->dev->ops->copy(p->stream, &w->piece, 0, mem, (size_t)at, (size_t)piece->bytes));
    BL_TRY(join(p));
    hash_piece(w, piece);
    return bl_file_out_write(arg, w->piece.host, piece->bytes);
}

static enum bl_status write_session(struct walk *w, struct bl_file_out *file)
{
    const struct header h = header_of(w->s);
    BL_TRY(bl_file_out_write(file, &h, sizeof h));
    BL_TRY(walk_pieces(w, save_piece, file));
    BL_TRY(bl_file_out_write(file, &w->hash, sizeof w->hash));
    return bl_file_out_commit(file);
}

enum bl_status bl_session_save(const struct bl_session *s, const char *path)
{
    struct bl_file_out file;
    struct walk w;
    BL_TRY(walk_open(&w, s));
    enum bl_status st = bl_file_out_create(&file, path);
    if (!st) {
        st = write_session(&w, &file);
        bl_file_out_abandon(&file);
    }
    walk_close(&w);
    return st;
}

/* ---- restore ---- */

struct source {
    struct bl_file *file;
    uint64_t at;
};

static enum bl_status read_header(struct bl_file *file, struct header *h)
{
    const char *path = bl_path_tail(bl_file_path(file));
    const uint64_t bytes = bl_file_bytes(file);
    *h = (struct header){.version = 0};
    BL_TRY(bl_file_read(file, 0, bytes < sizeof *h ? bytes : sizeof *h, h));
    if (memcmp(h->magic, magic, sizeof magic))
        return bl_fail(BL_EFORMAT, "%s: is no saved session", path);
    if (bytes < sizeof *h)
        return bl_fail(BL_EFORMAT, "%s: ends within its header", path);
    if (h->version != VERSION)
        return bl_fail(BL_EUNSUPPORTED, "%s: is of version %u; this build reads %d", path,
                       h->version, VERSION);
    if (h->header_bytes != sizeof *h || h->check != hash(0, h, offsetof(struct header, check)))
        return bl_fail(BL_EFORMAT, "%s: its header is damaged", path);
    return BL_OK;
}

/* What differs, by the option that decides it where there is one. */
static enum bl_status refuse_layout(const char *path, const struct header *h,
                                    const struct header *mine)
{
    if (h->ctx_tokens != mine->ctx_tokens)
        return bl_fail(BL_EFORMAT,
                       "%s: was saved with a context of %" PRIu64 " tokens; this one is %" PRIu64,
                       path, h->ctx_tokens, mine->ctx_tokens);
    if (h->type_k != mine->type_k || h->type_v != mine->type_v)
        return bl_fail(BL_EFORMAT, "%s: was saved with K and V of types %s and %s; here %s and %s",
                       path, bl_dtypes[h->type_k % BL_N_DTYPES].name,
                       bl_dtypes[h->type_v % BL_N_DTYPES].name, bl_dtypes[mine->type_k].name,
                       bl_dtypes[mine->type_v].name);
    if (h->ubatch_tokens != mine->ubatch_tokens)
        return bl_fail(BL_EFORMAT,
                       "%s: was saved with a ubatch of %u tokens, which decides what windows "
                       "keep; this one is %u",
                       path, h->ubatch_tokens, mine->ubatch_tokens);
    return bl_fail(BL_EFORMAT,
                   "%s: was saved with other rope options, rewinding or rounding, or another "
                   "layout of state",
                   path);
}

static enum bl_status check_header(const char *path, const struct header *h,
                                   const struct header *mine)
{
    if (h->model != mine->model)
        return bl_fail(BL_EFORMAT, "%s: was saved with another model", path);
    if (h->layout != mine->layout || h->ctx_tokens != mine->ctx_tokens)
        return refuse_layout(path, h, mine);
    if (h->n_tok > h->high || h->high > mine->ctx_tokens)
        return bl_fail(BL_EFORMAT, "%s: holds %" PRIu64 " tokens, once %" PRIu64 ", of %" PRIu64,
                       path, h->n_tok, h->high, mine->ctx_tokens);
    return BL_OK;
}

static enum bl_status check_bytes(const struct bl_file *file, const struct header *h,
                                  const struct bl_session *s)
{
    const uint64_t rows = all_bytes(s), wanted = sizeof *h + rows + sizeof(uint64_t);
    if (h->rows_bytes == rows && bl_file_bytes(file) == wanted)
        return BL_OK;
    return bl_fail(BL_EFORMAT,
                   "%s: has %" PRIu64 " bytes; %" PRIu64 " are needed for %" PRIu64 " tokens",
                   bl_path_tail(bl_file_path(file)), bl_file_bytes(file), wanted, s->n_tok);
}

static enum bl_status read_piece(struct walk *w, void *arg, const struct run *piece)
{
    struct source *src = arg;
    BL_TRY(bl_file_read(src->file, src->at, piece->bytes, w->piece.host));
    hash_piece(w, piece);
    src->at += piece->bytes;
    return BL_OK;
}

static enum bl_status load_piece(struct walk *w, void *arg, const struct run *piece)
{
    struct bl_place *p;
    uint64_t at;
    const struct bl_mem *mem = state_at(w->s->engine, piece, &at);
    BL_TRY(walk_place(w, piece->device, &p));
    BL_TRY(read_piece(w, arg, piece));
    BL_TRY(p->dev->ops->copy(p->stream, mem, (size_t)at, &w->piece, 0, (size_t)piece->bytes));
    return join(p);
}

static enum bl_status read_rows(struct walk *w, struct bl_file *file, piece_fn *fn)
{
    struct source src = {file, sizeof(struct header)};
    uint64_t sum;
    BL_TRY(walk_pieces(w, fn, &src));
    BL_TRY(bl_file_read(file, src.at, sizeof sum, &sum));
    return sum == w->hash ? BL_OK
                          : bl_fail(BL_EFORMAT, "%s: is damaged: its checksum does not match",
                                    bl_path_tail(bl_file_path(file)));
}

/* s takes the file's counts on success, and is empty if the file changed between the two readings.
 */
static enum bl_status read_session(struct bl_session *s, struct bl_file *file)
{
    const struct header mine = header_of(s);
    struct header h;
    struct walk w = {0};
    BL_TRY(read_header(file, &h));
    BL_TRY(check_header(bl_path_tail(bl_file_path(file)), &h, &mine));
    struct bl_session next = *s;
    next.n_tok = h.n_tok;
    next.high = h.high;
    BL_TRY(check_bytes(file, &h, &next));
    BL_TRY(walk_open(&w, &next));
    enum bl_status st = read_rows(&w, file, read_piece);
    if (!st) {
        s->n_tok = s->high = 0;
        if (!(st = read_rows(&w, file, load_piece)))
            *s = next;
    }
    walk_close(&w);
    return st;
}

enum bl_status bl_session_restore(struct bl_session *s, const char *path)
{
    struct bl_file *file;
    BL_TRY(bl_file_open(&file, path));
    enum bl_status st = read_session(s, file);
    bl_file_close(file);
    return st;
}
