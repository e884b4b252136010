/* SPDX-License-Identifier: MIT */
/* What would fit where this does not: a context, a type of cache, memory. */
#include "search_impl.h"

#include <stdio.h>
#include <string.h>

enum bl_status bl_search_fits(const struct bl_search_state *s, const struct bl_model *m,
                              uint64_t ctx, bool *fits)
{
    struct bl_search_state t = {
        .model = m, .machine = s->machine, .opt = s->opt, .plan = s->plan, .on_cards = s->on_cards};
    const uint64_t was = s->plan->ctx_tokens;

    s->plan->ctx_tokens = ctx;
    enum bl_status st = bl_search_open(&t);
    if (!st)
        st = bl_search_guess(&t);
    if (!st)
        st = bl_search_any(&t, fits);
    bl_search_close(&t);
    s->plan->ctx_tokens = was;
    return st;
}

enum bl_status bl_search_nearest(const struct bl_search_state *s, uint64_t *ctx)
{
    enum { STEP = 256 };
    uint64_t low = 0, high = (s->plan->ctx_tokens + STEP - 1) / STEP;
    bool fits;

    while (high - low > 1) {
        const uint64_t mid = (low + high) / 2;
        BL_TRY(bl_search_fits(s, s->model, mid * STEP, &fits));
        *(fits ? &low : &high) = mid;
    }
    *ctx = low * STEP;
    return BL_OK;
}

/* The first of smaller types with which the context fits; BL_N_DTYPES: none. */
static enum bl_status nearest_type(const struct bl_search_state *s, uint8_t *type)
{
    static const uint8_t smaller[] = {BL_Q8_0, BL_Q4_0};
    const struct bl_model *m = s->model;
    const uint64_t row =
        bl_dtype_row_bytes(m->opt.type_k, 256) + bl_dtype_row_bytes(m->opt.type_v, 256);

    *type = BL_N_DTYPES;
    for (size_t i = 0; i < sizeof smaller && *type == BL_N_DTYPES; i++) {
        struct bl_model_options opt = m->opt;
        struct bl_model *other;
        bool fits;
        if (2 * bl_dtype_row_bytes(smaller[i], 256) >= row)
            continue;
        opt.type_k = opt.type_v = smaller[i];
        if (bl_model_open(&other, m->gguf, &opt))
            continue; /* the family does not keep its cache so */
        const enum bl_status st = bl_search_fits(s, other, s->plan->ctx_tokens, &fits);
        bl_model_close(other);
        BL_TRY(st);
        *type = fits ? smaller[i] : BL_N_DTYPES;
    }
    return BL_OK;
}

enum bl_status bl_search_no_room(const struct bl_search_state *s, uint64_t nearest)
{
    const struct bl_machine_device *d = &s->machine->device[s->missing_on];
    char lacks[BL_SIZE_TEXT], has[BL_SIZE_TEXT], context[80] = "", cache[96] = "";
    uint8_t type;

    if (s->opt->lack) {
        snprintf(s->opt->lack->device, sizeof s->opt->lack->device, "%s", d->id);
        s->opt->lack->bytes = s->least_missing;
        return bl_fail(BL_ENOFIT, "the model does not fit: %s are missing on %s",
                       bl_size_text(s->least_missing, lacks), d->id);
    }
    BL_TRY(nearest_type(s, &type));
    if (nearest)
        snprintf(context, sizeof context, "a context of %llu tokens would fit (-c %llu); ",
                 (unsigned long long)nearest, (unsigned long long)nearest);
    if (type != BL_N_DTYPES)
        snprintf(cache, sizeof cache, "a cache of %s would fit (-ctk %s -ctv %s); ",
                 bl_dtypes[type].name, bl_dtypes[type].name, bl_dtypes[type].name);
    bl_size_text(s->least_missing, lacks);
    bl_size_text(s->costs.budget[s->missing_on], has);
    return bl_fail(BL_ENOFIT,
                   "the model does not fit with a context of %llu tokens: the nearest plan lacks "
                   "%s on %s, of which %s can be planned with (%s); %s%s%s%s more "
                   "memory there%s would%s",
                   (unsigned long long)s->plan->ctx_tokens, lacks, d->id, has, d->mem_source,
                   nearest ? "" : "no context fits; ", context, cache, lacks,
                   nearest ? "" : ", or a smaller quantisation,",
                   nearest || type != BL_N_DTYPES ? ", too" : "");
}
