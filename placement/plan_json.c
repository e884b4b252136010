/* SPDX-License-Identifier: MIT */
/* A placement as a plan file: what it is, then what follows from it. */
#include "placement.h"

#include <math.h>
#include <stdlib.h>

static const char *id_of(const struct bl_placement *p, unsigned part)
{
    return p->machine.device[bl_plan_device(&p->choice.plan, -1, part)].id;
}

/* Of a machine without figures nothing is known. */
static void put_speed(struct bl_json_out *o, const char *name, const struct bl_speed *s)
{
    if (!isfinite(s->tok_per_s) || !(s->tok_per_s > 0))
        return;
    bl_json_open(o, name, '{', true);
    bl_json_put_number(o, "tok_per_s", s->tok_per_s);
    if (isfinite(s->sd))
        bl_json_put_number(o, "sd", s->sd);
    bl_json_close(o, '}');
}

static void put_prediction(struct bl_json_out *o, const struct bl_choice *c)
{
    bl_json_open(o, "prediction", '{', false);
    put_speed(o, "decode", &c->decode);
    put_speed(o, "prefill", &c->prefill);
    bl_json_put_number(o, "stream_from_tok", c->stream_from_tok);
    bl_json_close(o, '}');
}

static void put_devices(struct bl_json_out *o, const struct bl_placement *p)
{
    struct bl_placement_device d;

    bl_json_open(o, "devices", '[', false);
    for (uint32_t i = 0; i < bl_placement_device(p, i, &d); i++) {
        bl_json_open(o, NULL, '{', true);
        bl_json_put_text(o, "id", d.id);
        bl_json_put_number(o, "usable_bytes", (double)d.usable_bytes);
        bl_json_put_number(o, "budget_bytes", (double)d.budget_bytes);
        bl_json_put_number(o, "planned_bytes", (double)d.planned_bytes);
        if (d.sends)
            bl_json_put_number(o, "sent_from_tok", d.sent_from_tok);
        bl_json_close(o, '}');
    }
    bl_json_close(o, ']');
}

static enum bl_status put_peers(struct bl_json_out *o, const struct bl_placement *p)
{
    static const enum bl_peer peers[] = {BL_PEER_LLAMACPP, BL_PEER_IK};

    bl_json_open(o, "peers", '[', false);
    for (size_t i = 0; i < BL_COUNT(peers); i++) {
        struct bl_peer_speed s = {0};
        const enum bl_status st = bl_placement_peer(p, peers[i], &s);
        if (st && st != BL_EUNSUPPORTED)
            return st;
        bl_json_open(o, NULL, '{', false);
        bl_json_put_text(o, "name", bl_peer_name(peers[i]));
        if (st)
            bl_json_put_text(o, "why_not", bl_error());
        put_speed(o, "decode", &s.decode);
        put_speed(o, "prefill", &s.prefill);
        if (!st)
            bl_json_put_number(o, "stream_from_tok", s.stream_from_tok);
        bl_json_close(o, '}');
    }
    bl_json_close(o, ']');
    return BL_OK;
}

static void put_memory(struct bl_json_out *o, const struct bl_placement *p)
{
    struct bl_memory_line l;

    bl_json_open(o, "memory", '[', false);
    for (uint32_t i = 0; i < bl_placement_memory(p, i, &l); i++) {
        bl_json_open(o, NULL, '{', true);
        bl_json_put_text(o, "device", l.device);
        bl_json_put_text(o, "purpose", l.purpose);
        bl_json_put_number(o, "planned_bytes", (double)l.planned_bytes);
        bl_json_close(o, '}');
    }
    bl_json_close(o, ']');
}

static void put_groups(struct bl_json_out *o, const struct bl_placement *p)
{
    struct bl_placement_group g;

    bl_json_open(o, "groups", '[', false);
    for (uint32_t i = 0; i < bl_placement_group(p, i, &g); i++) {
        bl_json_open(o, NULL, '{', false);
        bl_json_put_number(o, "first", g.first);
        bl_json_put_number(o, "last", g.last);
        bl_json_put_text(o, "attention", g.attention);
        bl_json_put_text(o, "why_attention", g.why_attention);
        if (g.experts) {
            bl_json_put_text(o, "experts", g.experts);
            bl_json_put_text(o, "why_experts", g.why_experts);
        }
        bl_json_close(o, '}');
    }
    bl_json_close(o, ']');
    bl_json_put_text(o, "embed", id_of(p, BL_PART_EMBED));
    bl_json_put_text(o, "head", id_of(p, BL_PART_HEAD));
}

/* Not what is said of another file: that would change each time. */
static void put_notes(struct bl_json_out *o, const struct bl_placement *p)
{
    bl_json_open(o, "notes", '[', false);
    for (uint32_t i = 0; i < p->choice.n_reasons; i++)
        if (p->choice.reason[i].first < 0)
            bl_json_put_text(o, NULL, p->choice.reason[i].text);
    bl_json_close(o, ']');
}

enum bl_status bl_placement_json(const struct bl_placement *p, char **text, size_t *n_bytes)
{
    const struct bl_choice *c = &p->choice;
    const struct bl_plan_file_settings settings = {.asked_ctx_tokens =
                                                       (uint32_t)c->asked_ctx_tokens,
                                                   .exact = p->exact,
                                                   .placed_by = p->placed_by,
                                                   .depth_tokens = (uint32_t)c->depth_tokens,
                                                   .reserve_bytes = p->reserve_bytes,
                                                   .prefill_weight = p->prefill_weight};
    struct bl_json_out o = {0};
    struct bl_plan_file file;

    BL_TRY(bl_plan_file_make(&file, &c->plan, p->model, &p->machine, &settings));
    bl_json_open(&o, NULL, '{', false);
    bl_plan_file_put(&o, &file);
    bl_plan_file_finish(&file);
    bl_json_open(&o, "derived", '{', false);
    put_prediction(&o, c);
    put_devices(&o, p);
    put_memory(&o, p);
    put_groups(&o, p);
    put_notes(&o, p);
    const enum bl_status peers = p->with_peers ? put_peers(&o, p) : BL_OK;
    bl_json_close(&o, '}');
    bl_json_close(&o, '}');
    const enum bl_status st = bl_json_out_end(&o);
    if (!st && peers)
        free(o.text);
    BL_TRY(st ? st : peers);
    *text = o.text;
    *n_bytes = o.n;
    return BL_OK;
}

enum bl_status bl_plan_settings_read(struct bl_plan_settings *out, const char *plan_file)
{
    struct bl_plan_file f;

    BL_TRY(bl_plan_file_load(&f, plan_file));
    const struct bl_plan_file_settings *s = &f.settings;
    *out = (struct bl_plan_settings){.ctx_tokens = s->ctx_tokens,
                                     .batch_tokens = s->batch_tokens,
                                     .ubatch_tokens = s->ubatch_tokens,
                                     .threads = s->threads,
                                     .threads_prefill = s->threads_prefill,
                                     .exact = s->exact,
                                     .no_mmap = !s->mmap};
    memcpy(out->type_k, s->type_k, sizeof out->type_k);
    memcpy(out->type_v, s->type_v, sizeof out->type_v);
    bl_plan_file_finish(&f);
    return BL_OK;
}
