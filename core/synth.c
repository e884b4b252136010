/* SPDX-License-Identifier: MIT */
#include "synth.h"

#include "mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ALIGNMENT = 32 };

struct bl_synth {
    struct bl_synth_shape shape;
    struct bl_synth_options opt;
    struct bl_gguf *gguf;
};

static enum bl_status open_synth(struct bl_synth *s)
{
    BL_TRY(bl_synth_shape_open(&s->shape, &s->opt));
    BL_TRY(bl_synth_header(&s->shape, &s->gguf));
    return bl_synth_apply_recipe(s->gguf, s->shape.recipe, s->shape.layers);
}

enum bl_status bl_synth_open(struct bl_synth **out, const struct bl_synth_options *o)
{
    struct bl_synth *s = bl_calloc(1, sizeof *s);
    if (!s)
        return bl_fail(BL_ENOMEM, "out of memory");
    s->opt = *o;
    enum bl_status st = open_synth(s);
    if (st) {
        bl_synth_close(s);
        return st;
    }
    *out = s;
    return BL_OK;
}

void bl_synth_close(struct bl_synth *s)
{
    if (!s)
        return;
    bl_gguf_close(s->gguf);
    bl_synth_shape_finish(&s->shape);
    free(s);
}

const struct bl_gguf *bl_synth_gguf(const struct bl_synth *s)
{
    return s->gguf;
}

void bl_synth_describe(const struct bl_synth *s, struct bl_synth_info *out)
{
    const struct bl_synth_shape *shape = &s->shape;
    *out = (struct bl_synth_info){.shape = shape->name,
                                  .about = shape->about,
                                  .arch = shape->arch,
                                  .recipe = shape->recipe,
                                  .layers = shape->layers,
                                  .vocab = shape->vocab,
                                  .tensors = bl_gguf_n_tensors(s->gguf),
                                  .published_params = shape->published_params};
    for (uint32_t i = 0; i < out->tensors; i++) {
        const struct bl_tensor_info *t = bl_gguf_tensor(s->gguf, i);
        out->weight_bytes += t->bytes;
        if (t->type != BL_I32)
            out->params += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    }
}

/* ---- writing ---- */

struct job {
    const struct bl_synth *s;
    struct bl_gguf_writer *w;
    struct bl_progress progress;
    uint64_t begin_ns;
    uint32_t n_expert;
};

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static enum bl_status report(struct job *j, uint64_t n_bytes)
{
    j->progress.done_bytes += n_bytes;
    j->progress.elapsed_ns = now_ns() - j->begin_ns;
    if (!j->s->opt.progress || j->s->opt.progress(j->s->opt.progress_arg, &j->progress))
        return BL_OK;
    return bl_fail(BL_ECANCELLED, "stopped");
}

static enum bl_status write_tensor(struct job *j, const struct bl_tensor_info *t)
{
    struct bl_synth_fill *fill = NULL;
    const void *bytes;
    uint64_t n;
    enum bl_status st = bl_synth_fill_create(&fill, t, j->s->opt.seed, j->n_expert);
    while (!st && (n = bl_synth_fill_next(fill, &bytes))) {
        st = bl_gguf_write_data(j->w, bytes, n);
        if (!st)
            st = report(j, n);
    }
    bl_synth_fill_destroy(fill);
    return st;
}

static enum bl_status put_header(const struct bl_gguf *g, struct bl_gguf_writer *w)
{
    for (uint32_t i = 0; i < bl_gguf_n_kv(g); i++)
        BL_TRY(bl_gguf_put_kv(w, bl_gguf_kv(g, i)));
    for (uint32_t i = 0; i < bl_gguf_n_tensors(g); i++) {
        const struct bl_tensor_info *t = bl_gguf_tensor(g, i);
        BL_TRY(bl_gguf_put_tensor(w, t->name, (enum bl_dtype)t->type, t->n_dims, t->ne));
    }
    return BL_OK;
}

static enum bl_status put_all(struct job *j)
{
    const struct bl_gguf *g = j->s->gguf;
    struct bl_synth_info info;
    char key[96];
    BL_TRY(put_header(g, j->w));
    if (j->s->opt.no_data)
        return BL_OK;
    bl_synth_describe(j->s, &info);
    j->progress.total_bytes = info.weight_bytes;
    snprintf(key, sizeof key, "%.64s.expert_count", info.arch);
    BL_TRY(bl_gguf_u32(g, key, false, &j->n_expert));
    for (uint32_t i = 0; i < bl_gguf_n_tensors(g); i++)
        BL_TRY(write_tensor(j, bl_gguf_tensor(g, i)));
    return BL_OK;
}

enum bl_status bl_synth_write(const struct bl_synth *s, const char *path)
{
    struct job j = {.s = s, .begin_ns = now_ns()};
    BL_TRY(bl_gguf_writer_create(&j.w, path, ALIGNMENT));
    enum bl_status st = put_all(&j);
    if (st) {
        bl_gguf_writer_abandon(j.w);
        return st;
    }
    return s->opt.no_data ? bl_gguf_writer_finish_header(j.w) : bl_gguf_writer_finish(j.w);
}
