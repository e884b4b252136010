/* SPDX-License-Identifier: MIT */
#include "cache_type.h"

#include "search_impl.h"

#include <stdio.h>
#include <string.h>

#define LONGER 1.25 /* a context that is worth a smaller type */
#define FASTER 1.1  /* likewise a speed */

static const uint8_t smaller_type[] = {BL_Q8_0, BL_Q4_0};

enum bl_cache_why bl_cache_compare(const struct bl_cache_outcome *larger,
                                   const struct bl_cache_outcome *smaller, uint64_t asked_tokens,
                                   bool nearly_exact)
{
    if (!smaller->fits)
        return BL_CACHE_KEEP;
    if (!larger->fits)
        return BL_CACHE_ROOM;
    if (!nearly_exact || smaller->ctx_tokens < larger->ctx_tokens)
        return BL_CACHE_KEEP;
    if (larger->ctx_tokens < asked_tokens && smaller->ctx_tokens >= asked_tokens)
        return BL_CACHE_CONTEXT;
    if ((double)smaller->ctx_tokens >= LONGER * (double)larger->ctx_tokens)
        return BL_CACHE_CONTEXT;
    return smaller->score > 0 && larger->score >= FASTER * smaller->score ? BL_CACHE_SPEED
                                                                          : BL_CACHE_KEEP;
}

static bool is_auto(const char *type)
{
    return type && !strcmp(type, "auto");
}

bool bl_cache_is_auto(const struct bl_options *opt)
{
    return is_auto(opt->type_k) || is_auto(opt->type_v);
}

void bl_cache_attempt_finish(struct bl_cache_attempt *a)
{
    bl_choice_finish(&a->choice);
    bl_model_close(a->model);
    *a = (struct bl_cache_attempt){0};
}

/* ---- choosing ---- */

struct choosing {
    const struct bl_gguf *gguf;
    const struct bl_options *opt;
    bl_cache_try_fn *try;
    void *arg;
    char no_room[512]; /* of the largest type */
};

static enum bl_status attempt(const struct choosing *c, const struct bl_model_options *mo,
                              struct bl_cache_attempt *out)
{
    *out = (struct bl_cache_attempt){0};
    BL_TRY(bl_model_open(&out->model, c->gguf, mo));
    const enum bl_status st = c->try(c->arg, out);
    out->outcome.fits = !st;
    return st == BL_ENOFIT ? BL_OK : st;
}

static bool lower(struct bl_model_options *mo, const struct bl_options *opt, uint8_t type)
{
    const uint64_t bytes = bl_dtype_row_bytes(type, 256);
    bool any = false;

    if (is_auto(opt->type_k) && bytes < bl_dtype_row_bytes(mo->type_k, 256)) {
        mo->type_k = type;
        any = true;
    }
    if (is_auto(opt->type_v) && bytes < bl_dtype_row_bytes(mo->type_v, 256)) {
        mo->type_v = type;
        any = true;
    }
    return any;
}

static const char *subject(const struct bl_options *opt)
{
    return !is_auto(opt->type_v)   ? "cached keys"
           : !is_auto(opt->type_k) ? "cached values"
                                   : "a cache";
}

static const char *type_of(const struct bl_options *opt, const struct bl_model *m)
{
    return bl_dtypes[is_auto(opt->type_k) ? m->opt.type_k : m->opt.type_v].name;
}

static enum bl_status explain(struct choosing *c, struct bl_cache_attempt *best,
                              const struct bl_cache_attempt *other, enum bl_cache_why why)
{
    const struct bl_reason about = {.first = -1, .last = -1, .part = BL_PART_STATE};
    const char *what = subject(c->opt), *type = type_of(c->opt, best->model);
    const char *was = other->model ? type_of(c->opt, other->model) : "";
    const struct bl_choice *a = &best->choice, *b = &other->choice;

    switch (why) {
    case BL_CACHE_ROOM:
        return bl_add_reason(&best->choice, &about, "%s of %s: %s does not fit", what, type, was);
    case BL_CACHE_CONTEXT:
        return bl_add_reason(&best->choice, &about,
                             "%s of %s: a context of %llu tokens fits, with %s one of %llu", what,
                             type, (unsigned long long)best->outcome.ctx_tokens, was,
                             (unsigned long long)other->outcome.ctx_tokens);
    case BL_CACHE_SPEED:
        return bl_add_reason(&best->choice, &about,
                             "%s of %s: decode %.1f, prefill %.0f tokens/s, with %s %.1f and %.0f",
                             what, type, a->decode.tok_per_s, a->prefill.tok_per_s, was,
                             b->decode.tok_per_s, b->prefill.tok_per_s);
    default:
        return bl_add_reason(&best->choice, &about, "%s of %s: it fits, and less would gain little",
                             what, type);
    }
}

/* best holds the largest type. On failure it is left to the caller. */
static enum bl_status look_further(struct choosing *c, struct bl_model_options *mo,
                                   struct bl_cache_attempt *best)
{
    const uint64_t asked = c->opt->ctx_tokens == BL_CTX_MAX ? 0 : best->model->opt.ctx_tokens;
    struct bl_cache_attempt other = {0}, next;
    enum bl_cache_why why = BL_CACHE_KEEP;
    enum bl_status st = BL_OK;

    for (size_t i = 0; !st && i < BL_COUNT(smaller_type) && (!i || !best->outcome.fits); i++) {
        if (!lower(mo, c->opt, smaller_type[i]))
            continue;
        st = attempt(c, mo, &next);
        if (st && !next.model) { /* the family keeps no such cache */
            st = BL_OK;
            continue;
        }
        const enum bl_cache_why better =
            st ? BL_CACHE_KEEP : bl_cache_compare(&best->outcome, &next.outcome, asked, !i);
        if (!better) {
            bl_cache_attempt_finish(&next);
            continue;
        }
        why = better;
        bl_cache_attempt_finish(&other);
        other = *best;
        *best = next;
    }
    if (!st && !best->outcome.fits)
        st = bl_fail(BL_ENOFIT, "%s", c->no_room);
    if (!st)
        st = explain(c, best, &other, why);
    bl_cache_attempt_finish(&other);
    return st;
}

enum bl_status bl_cache_choose(struct bl_cache_attempt *out, const struct bl_gguf *gguf,
                               const struct bl_options *opt, bl_cache_try_fn *try, void *arg)
{
    struct choosing c = {.gguf = gguf, .opt = opt, .try = try, .arg = arg};
    struct bl_model_options mo;
    struct bl_cache_attempt best;

    BL_TRY(bl_model_choose(&mo, opt));
    enum bl_status st = attempt(&c, &mo, &best);
    if (!st && !best.outcome.fits)
        snprintf(c.no_room, sizeof c.no_room, "%s", bl_error());
    if (!st && !opt->exact)
        st = look_further(&c, &mo, &best);
    else if (!st && !best.outcome.fits)
        st = bl_fail(BL_ENOFIT, "%s", c.no_room);
    if (st)
        bl_cache_attempt_finish(&best);
    else
        *out = best;
    return st;
}
