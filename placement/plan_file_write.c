/* SPDX-License-Identifier: MIT */
/* Plan files out: from a plan, in one form whatever it was made by. */
#include "plan_fields.h"
#include "plan_file.h"

#include "machine_file.h"
#include "mem.h"
#include "vocab.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- the model ------------------------------------------------------------------------------- */

static uint64_t hash_bytes(uint64_t h, const void *bytes, size_t n)
{
    const unsigned char *b = bytes;

    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
    return h;
}

/* In the bytes' own order, so that every machine finds the same. */
static uint64_t hash_number(uint64_t h, uint64_t v)
{
    unsigned char bytes[8];

    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(v >> 8 * i);
    return hash_bytes(h, bytes, sizeof bytes);
}

static uint64_t hash_tensor(const struct bl_tensor_info *t)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    h = hash_bytes(h, t->name, strlen(t->name) + 1);
    h = hash_bytes(h, t->type_name, strlen(t->type_name) + 1);
    for (unsigned i = 0; i < 4; i++)
        h = hash_number(h, t->ne[i]);
    h = (h ^ h >> 32) * UINT64_C(0xd6e8feb86659fd93); /* sums of them must not cancel out */
    return h ^ h >> 32;
}

/* Files that were split or joined anew list their tensors in another order: the sum does not mind.
 */
static void describe_tensors(struct bl_plan_file_model *out, const struct bl_gguf *gguf)
{
    uint64_t sum = 0;

    out->n_tensors = bl_gguf_n_tensors(gguf);
    out->tensor_bytes = 0;
    for (uint32_t i = 0; i < out->n_tensors; i++) {
        const struct bl_tensor_info *t = bl_gguf_tensor(gguf, i);
        sum += hash_tensor(t);
        out->tensor_bytes += t->bytes;
    }
    snprintf(out->digest, sizeof out->digest, "%016llx", (unsigned long long)sum);
}

/* Others must be able to read the file, whatever the model calls itself. */
static void copy_name(char *to, size_t cap, const char *from, uint64_t n)
{
    size_t used = 0;

    for (size_t i = 0; i < n;) {
        enum bl_utf8 what;
        size_t k = bl_utf8_next(from + i, (size_t)n - i, &what);
        if (!k || used + k >= cap)
            break;
        if (what == BL_UTF8_OK)
            memcpy(to + used, from + i, k);
        else
            memset(to + used, '?', k);
        used += k;
        i += k;
    }
    to[used] = 0;
    bl_one_line(to);
}

void bl_plan_file_describe(struct bl_plan_file_model *out, const struct bl_model *m)
{
    const char *name = m->family->arch;
    uint64_t n = strlen(name);

    (void)bl_gguf_str(m->gguf, "general.name", false, &name, &n);
    copy_name(out->name, sizeof out->name, name, n);
    snprintf(out->arch, sizeof out->arch, "%s", m->family->arch);
    out->n_layers = m->hp.n_layer;
    describe_tensors(out, m->gguf);
}

/* ---- the machine ----------------------------------------------------------------------------- */

static void describe_device(struct bl_plan_file_device *out, const struct bl_machine *m, uint16_t d)
{
    const struct bl_machine_device *md = &m->device[d];

    *out = (struct bl_plan_file_device){
        .kind = md->kind,
        .mem_kind = md->mem_kind,
        .cores = md->cores,
        .mem_bytes = md->mem_bytes,
        .usable_bytes = md->usable_bytes,
        .read_bps = bl_device_read_bps(md),
        .macs_per_s = md->f16_macs_per_s,
        .from_host_bps = d && md->shares != 0 ? bl_machine_path_bps(m, 0, d, NULL) : 0,
        .to_host_bps = d && md->shares != 0 ? bl_machine_path_bps(m, d, 0, NULL) : 0};
    memcpy(out->id, md->id, sizeof out->id);
    snprintf(out->name, sizeof out->name, "%s", md->name[0] ? md->name : md->id);
    bl_one_line(out->name);
}

static enum bl_status describe_machine(struct bl_plan_file *f, const struct bl_machine *m)
{
    f->device = bl_calloc((size_t)m->n_devices + 1, sizeof *f->device);
    if (!f->device)
        return bl_fail(BL_ENOMEM, "out of memory for a plan file");
    f->n_devices = m->n_devices;
    for (uint16_t d = 0; d < m->n_devices; d++)
        describe_device(&f->device[d], m, d);
    snprintf(f->machine_name, sizeof f->machine_name, "%s", m->name);
    bl_one_line(f->machine_name);
    return BL_OK;
}

/* ---- placement ------------------------------------------------------------------------------ */

static void add_place(struct bl_plan_file *f, const struct bl_plan_file_place *p)
{
    struct bl_plan_file_place *at = &f->place[f->n_places++];

    *at = *p;
    memcpy(at->device, f->device[p->on].id, sizeof at->device);
}

/* Whether a row of the file says where the part is. The dense part and the state are with attention
 * unless it does. */
static bool is_said(const struct bl_plan *p, const struct bl_model *m, uint32_t l, unsigned part)
{
    if (part == BL_PART_EXPERTS)
        return m->layer[l].moe;
    return part == BL_PART_ATTN ||
           bl_plan_device(p, (int)l, part) != bl_plan_device(p, (int)l, BL_PART_ATTN);
}

/* Runs of layers with the part on one device; layers without experts do not end a run of experts.
 */
static void place_part(struct bl_plan_file *f, const struct bl_plan *p, const struct bl_model *m,
                       unsigned part)
{
    struct bl_plan_file_place run = {.part = (uint8_t)part};
    bool open = false;

    for (uint32_t l = 0; l < p->n_layers; l++) {
        const uint16_t d = bl_plan_device(p, (int)l, part);
        const bool said = is_said(p, m, l, part);
        if (open && ((said && d != run.on) || (!said && part != BL_PART_EXPERTS))) {
            add_place(f, &run);
            open = false;
        }
        if (said && !open)
            run.first = l;
        if (said) {
            run.last = l;
            run.on = d;
            open = true;
        }
    }
    if (open)
        add_place(f, &run);
}

static void place_ranges(struct bl_plan_file *f, const struct bl_plan *p)
{
    for (uint32_t i = 0; i < p->n_ranges; i++) {
        const struct bl_expert_range *r = &p->range[i];
        add_place(f, &(struct bl_plan_file_place){.first = r->layer,
                                                  .last = r->layer,
                                                  .expert_first = r->first,
                                                  .expert_last = r->first + (r->n - 1),
                                                  .part = BL_PART_EXPERTS,
                                                  .some = true,
                                                  .on = r->device});
    }
}

/* Runs of layers with as many slots on one device; layers without experts do not end one. */
static void place_slots(struct bl_plan_file *f, const struct bl_plan *p, const struct bl_model *m,
                        uint16_t device)
{
    struct bl_plan_file_place run = {.part = BL_PART_EXPERTS, .on = device};

    for (uint32_t i = 0; i < p->n_slot_sets; i++) {
        const struct bl_slot_set *s = &p->slots[i];
        if (s->device != device)
            continue;
        uint32_t next = run.last + 1;
        while (run.slots && next < s->layer && !m->layer[next].moe)
            next++;
        if (run.slots && (run.slots != s->n || next != s->layer)) {
            add_place(f, &run);
            run.slots = 0;
        }
        run.first = run.slots ? run.first : s->layer;
        run.slots = s->n;
        run.last = s->layer;
    }
    if (run.slots)
        add_place(f, &run);
}

static enum bl_status describe_places(struct bl_plan_file *f, const struct bl_plan *p,
                                      const struct bl_model *m)
{
    static const uint8_t order[] = {BL_PART_ATTN, BL_PART_STATE, BL_PART_FFN, BL_PART_EXPERTS};
    static const uint8_t outside[] = {BL_PART_EMBED, BL_PART_HEAD};

    f->place = bl_calloc((size_t)p->n_layers * BL_COUNT(order) + p->n_ranges + p->n_slot_sets +
                             BL_COUNT(outside),
                         sizeof *f->place);
    if (!f->place)
        return bl_fail(BL_ENOMEM, "out of memory for a plan file");
    for (size_t i = 0; i < BL_COUNT(outside); i++)
        add_place(f, &(struct bl_plan_file_place){.part = outside[i],
                                                  .on = bl_plan_device(p, -1, outside[i])});
    for (size_t i = 0; i < BL_COUNT(order); i++)
        place_part(f, p, m, order[i]);
    place_ranges(f, p);
    for (uint16_t d = 1; d < f->n_devices; d++)
        place_slots(f, p, m, d);
    return BL_OK;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static void settle(struct bl_plan_file_settings *s, const struct bl_plan *p,
                   const struct bl_model *m, const struct bl_machine_device *d)
{
    const struct bl_device_config *host = &d->config;

    s->ctx_tokens = (uint32_t)p->ctx_tokens;
    s->batch_tokens = p->batch_tokens;
    s->ubatch_tokens = p->ubatch_tokens;
    s->out_tokens = p->out_tokens;
    s->max_sessions = p->max_sessions;
    s->rewind_tokens = m->opt.slack_tokens;
    s->threads = p->threads ? p->threads : host->threads;
    s->threads_prefill = host->threads_prefill      ? host->threads_prefill
                         : d->described && d->cores ? d->cores /* as predicted with */
                                                    : s->threads;
    s->mmap = p->mmap;
    s->nodes = p->nodes;
    s->expert_policy = p->n_slot_sets ? p->expert_policy : BL_EXPERTS_LRU;
    s->move_bytes = p->n_slot_sets ? p->move_bytes : 0;
    s->stream_from = p->stream_from;
    s->chunk_bytes = p->stream_from ? p->chunk_bytes : 0;
    snprintf(s->type_k, sizeof s->type_k, "%s", bl_dtypes[m->opt.type_k].name);
    snprintf(s->type_v, sizeof s->type_v, "%s", bl_dtypes[m->opt.type_v].name);
    if (s->asked_ctx_tokens <= s->ctx_tokens)
        s->asked_ctx_tokens = 0;
}

enum bl_status bl_plan_file_make(struct bl_plan_file *out, const struct bl_plan *p,
                                 const struct bl_model *m, const struct bl_machine *machine,
                                 const struct bl_plan_file_settings *settings)
{
    struct bl_plan_file f = {.what = "plan", .settings = *settings};

    bl_plan_file_describe(&f.model, m);
    settle(&f.settings, p, m, &machine->device[0]);
    enum bl_status st = describe_machine(&f, machine);
    if (!st)
        st = describe_places(&f, p, m);
    if (st)
        bl_plan_file_finish(&f);
    else
        *out = f;
    return st;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void put_run(struct bl_json_out *o, const char *name, uint32_t first, uint32_t last)
{
    char text[32];

    snprintf(text, sizeof text, first < last ? "%u-%u" : "%u", first, last);
    bl_json_put_text(o, name, text);
}

static void put_place(struct bl_json_out *o, const struct bl_plan_file_place *p)
{
    bl_json_open(o, NULL, '{', true);
    if (p->slots) {
        put_run(o, "layers", p->first, p->last);
        bl_json_put_number(o, "slots", p->slots);
    } else if (p->some) {
        bl_json_put_number(o, "layer", p->first);
        put_run(o, "experts", p->expert_first, p->expert_last);
    } else {
        if (p->part != BL_PART_EMBED && p->part != BL_PART_HEAD)
            put_run(o, "layers", p->first, p->last);
        bl_json_put_text(o, "part", bl_part_words[p->part]);
    }
    bl_json_put_text(o, "device", p->device);
    bl_json_close(o, '}');
}

static bool has_slots(const struct bl_plan_file *f)
{
    for (uint32_t i = 0; i < f->n_places; i++)
        if (f->place[i].slots)
            return true;
    return false;
}

static void put_settings(struct bl_json_out *o, const struct bl_plan_file *f)
{
    const struct bl_plan_file_settings *s = &f->settings;

    bl_json_open(o, "settings", '{', false);
    bl_fields_put(o, &bl_plan_fields_settings, s);
    if (has_slots(f))
        bl_json_put_text(o, "expert_policy",
                         bl_expert_policy_name((enum bl_expert_policy)s->expert_policy));
    if (s->nodes) {
        bl_json_open(o, "nodes", '[', true);
        for (unsigned i = 0; i < 64; i++)
            if (s->nodes >> i & 1)
                bl_json_put_number(o, NULL, i);
        bl_json_close(o, ']');
    }
    bl_json_close(o, '}');
}

void bl_plan_file_put(struct bl_json_out *o, const struct bl_plan_file *f)
{
    bl_json_put_number(o, "ballast_plan", BL_PLAN_FORMAT);
    bl_json_open(o, "model", '{', false);
    bl_fields_put(o, &bl_plan_fields_model, &f->model);
    bl_json_close(o, '}');
    bl_json_open(o, "machine", '{', false);
    bl_fields_put(o, &bl_plan_fields_machine, f);
    bl_json_open(o, "devices", '[', false);
    for (uint32_t d = 0; d < f->n_devices; d++) {
        bl_json_open(o, NULL, '{', false);
        bl_fields_put(o, &bl_plan_fields_device, &f->device[d]);
        bl_json_close(o, '}');
    }
    bl_json_close(o, ']');
    bl_json_close(o, '}');
    put_settings(o, f);
    bl_json_open(o, "placement", '[', false);
    for (uint32_t i = 0; i < f->n_places; i++)
        put_place(o, &f->place[i]);
    bl_json_close(o, ']');
}
