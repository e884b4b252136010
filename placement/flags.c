/* SPDX-License-Identifier: MIT */
/* flags.c — a placement as the command line of another program: the inverse of constraints.c. */
#include "constraints.h"
#include "flags_text.h"
#include "machine_file.h"
#include "mem.h"
#include "numa.h"
#include "placement.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- layers over cards ---- */

struct inverse {
    const struct bl_placement *p;
    const struct bl_plan *plan;
    enum bl_peer peer;
    uint16_t base[BL_MOST_FLAG_LAYERS +
                  1];               /* device of a layer by -ngl and -ts; the last: of the head */
    uint16_t order[BL_MAX_DEVICES]; /* cards as -dev lists them */
    uint32_t count[BL_MAX_DEVICES]; /* layers of each, for -ts */
    uint32_t n_cards, n_used, n_on_cards;
    bool sorted; /* order is the machine's */
    char ts[512], dev[512];
    struct bl_text_list args, overrides, notes;
    struct bl_placement_rules rules; /* what the arguments say */
    struct bl_plan back;             /* where they put everything */
    uint32_t stream_from;            /* steps that the peer gains in by sending experts to cards */
};

static uint16_t home(const struct inverse *v, uint32_t l)
{
    return bl_plan_device(v->plan, l < v->plan->n_layers ? (int)l : -1,
                          l < v->plan->n_layers ? BL_PART_ATTN : BL_PART_HEAD);
}

/* What -ngl and -ts decide alone: cached state does not follow -ot. */
static uint16_t state_of(const struct inverse *v, uint32_t l)
{
    return l < v->plan->n_layers ? bl_plan_device(v->plan, (int)l, BL_PART_STATE) : home(v, l);
}

static bool is_card(const struct inverse *v, uint16_t d)
{
    return v->p->machine.device[d].kind == BL_KIND_GPU;
}

/* "CUDA1": its number among the cards. */
static void name_device(const struct inverse *v, uint16_t d, char name[32])
{
    static const char *const kinds[][2] = {
        {"cuda", "CUDA"}, {"hip", "ROCm"}, {"rocm", "ROCm"}, {"metal", "Metal"}};
    const struct bl_machine *m = &v->p->machine;
    const char *kind = "Vulkan";
    uint32_t n = 0;

    if (!is_card(v, d)) {
        snprintf(name, 32, "CPU");
        return;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(m->device[d].backend_name, kinds[i][0]))
            kind = kinds[i][1];
    for (uint16_t k = 0; k < d; k++)
        n += m->device[k].kind == BL_KIND_GPU;
    snprintf(name, 32, "%s%u", kind, n);
}

struct run {
    uint32_t first, n;
    uint16_t device;
};

/* A card's place in the order is that of its longest run; other layers on it are overridden. */
static uint32_t list_runs(const struct inverse *v, uint32_t from, struct run *run)
{
    const uint32_t all = v->plan->n_layers + 1;
    uint32_t n = 0;

    for (uint32_t l = from, e; l < all; l = e) {
        const uint16_t d = state_of(v, l);
        for (e = l + 1; e < all && state_of(v, e) == d; e++)
            ;
        if (!is_card(v, d))
            continue;
        uint32_t at = 0;
        while (at < n && run[at].device != d)
            at++;
        if (at < n && run[at].n >= e - l)
            continue;
        if (at < n) { /* shorter: the longer one comes later */
            memmove(&run[at], &run[at + 1], (n - at - 1) * sizeof *run);
            n--;
        }
        run[n++] = (struct run){l, e - l, d};
    }
    return n;
}

static void lay_out(struct inverse *v)
{
    const uint32_t all = v->plan->n_layers + 1;
    struct run run[BL_MAX_DEVICES];
    uint32_t from = 0;

    while (from < all && !is_card(v, state_of(v, from)))
        from++;
    v->n_on_cards = all - from;
    v->n_used = list_runs(v, from, run);
    for (uint32_t l = 0; l < from; l++)
        v->base[l] = 0;
    for (uint32_t l = from, i = 0; l < all; l++) {
        while (i + 1 < v->n_used && l >= run[i + 1].first)
            i++;
        v->base[l] = run[i].device;
        v->count[i]++;
    }
    for (uint32_t i = 0; i < v->n_used; i++)
        v->order[i] = run[i].device;
}

/* Cards of the machine that no layer is on stand last. */
static void order_cards(struct inverse *v)
{
    v->n_cards = v->n_used;
    v->sorted = true;
    for (uint16_t d = 1; d < v->p->machine.n_devices; d++) {
        bool listed = !is_card(v, d);
        for (uint32_t i = 0; i < v->n_used; i++)
            listed = listed || v->order[i] == d;
        if (!listed)
            v->order[v->n_cards++] = d;
    }
    for (uint32_t i = 1; i < v->n_cards; i++)
        v->sorted = v->sorted && v->order[i - 1] < v->order[i];
}

/* In the machine's order where that says the same. */
static void sort_cards(struct inverse *v)
{
    bool ascending = true;

    for (uint32_t i = 1; i < v->n_used; i++)
        ascending = ascending && v->order[i - 1] < v->order[i];
    for (uint32_t i = 1; ascending && i < v->n_cards; i++)
        for (uint32_t k = i; k > 0 && v->order[k - 1] > v->order[k]; k--) {
            const uint16_t d = v->order[k];
            const uint32_t n = v->count[k];
            v->order[k] = v->order[k - 1];
            v->count[k] = v->count[k - 1];
            v->order[k - 1] = d;
            v->count[k - 1] = n;
        }
    v->sorted = ascending;
}

static void say_cards(struct inverse *v)
{
    size_t n = 0, k = 0;
    char name[32];

    for (uint32_t i = 0; i < v->n_cards; i++) {
        name_device(v, v->order[i], name);
        n += (size_t)snprintf(v->ts + n, sizeof v->ts - n, i ? ",%u" : "%u", v->count[i]);
        k += (size_t)snprintf(v->dev + k, sizeof v->dev - k, i ? ",%s" : "%s", name);
    }
    if (v->n_cards) {
        bl_list_add(&v->args, "-ngl");
        bl_list_add(&v->args, "%u", v->n_on_cards);
    }
    v->rules.n_gpu_layers = (int32_t)v->n_on_cards;
    if (v->n_cards < 2 || !v->n_used)
        return;
    if (!v->sorted) {
        bl_list_add(&v->args, "-dev");
        bl_list_add(&v->args, "%s", v->dev);
        v->rules.devices = v->dev;
    }
    bl_list_add(&v->args, "-ts");
    bl_list_add(&v->args, "%s", v->ts);
    v->rules.tensor_split = v->ts;
}

/* ---- what lies elsewhere ---- */

static void override(struct inverse *v, const struct bl_layer_set *s, const char *tensors,
                     uint16_t d)
{
    struct bl_growing g = {.n = 0};
    char name[32];

    name_device(v, d, name);
    bl_put_layers(&g, s);
    const bool alone = !strpbrk(g.text, "|");
    if (g.full)
        v->overrides.failed = true;
    bl_list_add(&v->overrides, alone ? "blk\\.%s\\.%s=%s" : "blk\\.(%s)\\.%s=%s", g.text, tensors,
                name);
}

/* The layers for which `where` is on d while it would be elsewhere. */
static bool collect(const struct inverse *v, struct bl_layer_set *s, bool experts, uint16_t d)
{
    bool any = false;

    *s = (struct bl_layer_set){.n = v->plan->n_layers};
    for (uint32_t l = 0; l < s->n; l++) {
        const uint16_t is =
            bl_plan_device(v->plan, (int)l, experts ? BL_PART_EXPERTS : BL_PART_ATTN);
        s->in[l] = is == d && is != (experts ? home(v, l) : v->base[l]) &&
                   (!experts || v->p->model->layer[l].moe);
        any = any || s->in[l];
    }
    return any;
}

/* -ncmoe and -cmoe say it shorter. */
static bool say_cpu_moe(struct inverse *v, const struct bl_layer_set *in_ram)
{
    uint32_t first = 0, n = 0, all = 0, moe = 0;

    for (uint32_t l = 0; l < in_ram->n; l++) {
        if (in_ram->in[l])
            n = l + 1;
        all += in_ram->in[l];
        moe += v->p->model->layer[l].moe;
    }
    while (first < n && (in_ram->in[first] || !v->p->model->layer[first].moe))
        first++;
    if (first < n ||
        v->peer != BL_PEER_LLAMACPP) /* elsewhere -ncmoe takes layers from every card */
        return false;
    if (all == moe) {
        bl_list_add(&v->args, "-cmoe");
        v->rules.cpu_moe = true;
    } else {
        bl_list_add(&v->args, "-ncmoe");
        bl_list_add(&v->args, "%u", n);
        v->rules.n_cpu_moe = n;
    }
    return true;
}

/* Cached state is where -ngl and -ts put its layer, whatever -ot says. */
static void note_state(struct inverse *v, uint16_t d)
{
    struct bl_growing g = {.n = 0};
    struct bl_layer_set s = {.n = v->plan->n_layers};
    bool any = false;

    for (uint32_t l = 0; l < s.n; l++) {
        s.in[l] = state_of(v, l) == d && v->base[l] != d;
        any = any || s.in[l];
    }
    if (!any)
        return;
    bl_name_layers(&g, &s);
    bl_list_add(
        &v->notes,
        "the cached state of layers %s stays where -ts puts those layers; the plan has it on %s",
        g.text, v->p->machine.device[d].id);
}

static void say_overrides(struct inverse *v)
{
    struct bl_layer_set s;

    for (uint16_t d = 0; d < v->p->machine.n_devices; d++) {
        /* experts first: the first rule that matches wins */
        if (collect(v, &s, true, d) && (d || !say_cpu_moe(v, &s)))
            override(v, &s, "ffn_.*_exps", d);
    }
    for (uint16_t d = 0; d < v->p->machine.n_devices; d++)
        if (collect(v, &s, false, d))
            override(v, &s, "", d);
    for (uint16_t d = 0; d < v->p->machine.n_devices; d++)
        note_state(v, d);
    if (!v->overrides.n)
        return;
    size_t n = 1;
    for (uint32_t i = 0; i < v->overrides.n; i++)
        n += strlen(v->overrides.text[i]) + 1;
    char *all = bl_calloc(n, 1);
    if (!all) {
        v->args.failed = true;
        return;
    }
    for (uint32_t i = 0, at = 0; i < v->overrides.n; i++)
        at += (uint32_t)snprintf(all + at, n - at, i ? ",%s" : "%s", v->overrides.text[i]);
    bl_list_add(&v->args, "-ot");
    bl_list_add(&v->args, "%s", all);
    free(all);
    v->rules.override = (const char *const *)v->overrides.text;
    v->rules.n_overrides = v->overrides.n;
}

/* ---- what flags cannot say ---- */

static void note_ranges(struct inverse *v)
{
    const struct bl_plan *p = v->plan;

    for (uint32_t i = 0; i < p->n_ranges; i++)
        bl_list_add(
            &v->notes, "experts %u-%u of layer %u go with the layer's others to %s, not to %s",
            p->range[i].first, p->range[i].first + p->range[i].n - 1, p->range[i].layer,
            v->p->machine.device[bl_plan_device(p, (int)p->range[i].layer, BL_PART_EXPERTS)].id,
            v->p->machine.device[p->range[i].device].id);
}

static void note_differences(struct inverse *v)
{
    const struct bl_plan *p = v->plan;

    for (uint32_t l = 0; l <= p->n_layers; l++)
        for (unsigned part = 0; part < BL_N_PARTS; part++) {
            const uint16_t is = v->back.slot[l * BL_N_PARTS + part],
                           wanted = p->slot[l * BL_N_PARTS + part];
            const bool used = l == p->n_layers
                                  ? part == BL_PART_EMBED || part == BL_PART_HEAD
                                  : part != BL_PART_EMBED && part != BL_PART_HEAD &&
                                        (part != BL_PART_EXPERTS || v->p->model->layer[l].moe);
            if (is == wanted || !used)
                continue;
            if (l == p->n_layers)
                bl_list_add(&v->notes, "%s goes to %s, not to %s", bl_part_name((enum bl_part)part),
                            v->p->machine.device[is].id, v->p->machine.device[wanted].id);
            else
                bl_list_add(&v->notes, "%s of layer %u goes to %s, not to %s",
                            bl_part_name((enum bl_part)part), l, v->p->machine.device[is].id,
                            v->p->machine.device[wanted].id);
        }
}

/* No flag says on which memory nodes blocks lie. */
static void note_nodes(struct inverse *v)
{
    const struct bl_machine_device *host = &v->p->machine.device[0];
    struct bl_growing g = {.n = 0};
    uint32_t n = 0;

    for (uint32_t i = 0; i < BL_MAX_NODES; i++)
        if (v->plan->nodes >> i & 1)
            bl_grow(&g, n++ ? ",%u" : "%u", i);
    if (n && n < host->n_domains)
        bl_list_add(
            &v->notes,
            "that blocks lie on memory node %s and decoding threads run there: numactl -N %s -m %s "
            "does, and keeps those of prompts there",
            g.text, g.text, g.text);
}

/* Only then does it matter who computes experts of a prompt. */
static bool experts_in_ram(const struct inverse *v)
{
    bool any = false;

    for (uint32_t l = 0; v->n_used && l < v->plan->n_layers; l++)
        any = any || (v->p->model->layer[l].moe &&
                      !is_card(v, bl_plan_device(v->plan, (int)l, BL_PART_EXPERTS)));
    return any;
}

static void note_peer(struct inverse *v)
{
    const struct bl_machine *m = &v->p->machine;
    const uint32_t from = v->p->choice.stream_from_tok;
    bool other = false;

    if (v->peer != BL_PEER_IK)
        return;
    for (uint32_t d = 0; d < m->n_devices; d++)
        other = other ||
                (m->device[d].kind == BL_KIND_GPU && strcmp(m->device[d].backend_name, "cuda"));
    if (other)
        bl_list_add(&v->notes, "it supports the CPU and CUDA, not these cards");
    if (experts_in_ram(v) && from)
        bl_list_add(&v->notes,
                    "that experts in RAM are sent to the cards for steps of %u tokens or more",
                    from);
    else if (experts_in_ram(v))
        bl_list_add(&v->notes, "that experts in RAM are never sent to the cards");
}

/* ---- the other flags ---- */

static void say_number(struct inverse *v, const char *flag, uint64_t n)
{
    bl_list_add(&v->args, "%s", flag);
    bl_list_add(&v->args, "%llu", (unsigned long long)n);
}

static void say_settings(struct inverse *v)
{
    struct bl_placement_info i;

    bl_placement_describe(v->p, &i);
    say_number(v, "-c", i.ctx_tokens);
    say_number(v, "-b", i.batch_tokens);
    say_number(v, "-ub", i.ubatch_tokens);
    bl_list_add(&v->args, "-ctk");
    bl_list_add(&v->args, "%s", i.type_k);
    bl_list_add(&v->args, "-ctv");
    bl_list_add(&v->args, "%s", i.type_v);
    bl_list_add(&v->args, "-fa");
    bl_list_add(&v->args, "on");
    say_number(v, "-t", i.threads);
    say_number(v, "-tb", i.threads_prefill);
}

static void say_own(struct inverse *v)
{
    const bool mla = v->p->model->n_weights && v->p->model->layer[0].role[BL_W_ATTN_K_B].w >= 0;
    const bool moe = v->p->model->hp.n_expert > 0;

    if (v->peer == BL_PEER_LLAMACPP) {
        if (experts_in_ram(v) && !v->stream_from)
            bl_list_add(&v->args, "--no-op-offload");
        if (v->n_used) {
            bl_list_add(&v->args, "--fit");
            bl_list_add(&v->args, "off");
        }
        return;
    }
    if (mla) {
        say_number(v, "-mla", 3);
        say_number(v, "-amb", 512);
    }
    if (moe)
        bl_list_add(&v->args, "-fmoe");
    if (!v->n_used) /* with cards it would repack what is to be sent to them */
        bl_list_add(&v->args, "-rtr");
}

/* ---- the whole ---- */

static void give(struct bl_peer_flags *out, struct inverse *v)
{
    *out = (struct bl_peer_flags){
        .arg = v->args.text, .note = v->notes.text, .n_args = v->args.n, .n_notes = v->notes.n};
    v->args = v->notes = (struct bl_text_list){0};
    if (v->peer == BL_PEER_LLAMACPP && experts_in_ram(v) && v->stream_from)
        snprintf(out->environment, sizeof out->environment, "GGML_OP_OFFLOAD_MIN_BATCH=%u",
                 v->stream_from);
}

/* Reads the arguments as constraints.c does. Its own kernels decide when the peer should send
 * experts.
 */
static enum bl_status read_back(struct inverse *v)
{
    struct bl_peer_run run;

    BL_TRY(bl_plan_init(&v->back, v->p->model));
    BL_TRY(bl_constrain(&v->back, v->p->model, &v->p->machine, &v->rules));
    BL_TRY(bl_peer_run_fill(&run, v->p, v->peer, &v->back));
    v->stream_from = bl_peer_stream_from(&run);
    return BL_OK;
}

static enum bl_status invert(struct inverse *v)
{
    if (v->plan->n_layers >= BL_MOST_FLAG_LAYERS)
        return bl_fail(BL_EUNSUPPORTED, "%u layers: flags are written for at most %u",
                       v->plan->n_layers, BL_MOST_FLAG_LAYERS - 1);
    lay_out(v);
    order_cards(v);
    sort_cards(v);
    say_settings(v);
    say_cards(v);
    say_overrides(v);
    if (!v->args.failed && !v->notes.failed && !v->overrides.failed)
        BL_TRY(read_back(v));
    say_own(v);
    note_ranges(v);
    note_peer(v);
    note_nodes(v);
    if (v->back.slot)
        note_differences(v);
    return v->args.failed || v->notes.failed || v->overrides.failed
               ? bl_fail(BL_ENOMEM, "out of memory for the flags of a placement")
               : BL_OK;
}

static enum bl_status with_inverse(const struct bl_placement *p, enum bl_peer peer,
                                   struct bl_peer_flags *flags, struct bl_plan *plan)
{
    if (peer != BL_PEER_LLAMACPP && peer != BL_PEER_IK)
        return bl_fail(BL_EUNSUPPORTED, "%s has no flags for where tensors go", bl_peer_name(peer));
    struct inverse *v = bl_calloc(1, sizeof *v);
    if (!v)
        return bl_fail(BL_ENOMEM, "out of memory for the flags of a placement");
    v->p = p;
    v->plan = &p->choice.plan;
    v->peer = peer;
    const enum bl_status st = invert(v);
    if (!st && flags)
        give(flags, v);
    if (!st && plan) {
        *plan = v->back;
        v->back = (struct bl_plan){0};
    }
    bl_plan_finish(&v->back);
    bl_list_drop(&v->args);
    bl_list_drop(&v->notes);
    bl_list_drop(&v->overrides);
    free(v);
    return st;
}

enum bl_status bl_placement_flags(const struct bl_placement *p, enum bl_peer peer,
                                  struct bl_peer_flags *out)
{
    return with_inverse(p, peer, out, NULL);
}

enum bl_status bl_peer_plan(struct bl_plan *out, const struct bl_placement *p, enum bl_peer peer)
{
    return with_inverse(p, peer, NULL, out);
}

void bl_peer_flags_finish(struct bl_peer_flags *f)
{
    struct bl_text_list args = {f->arg, f->n_args, false}, notes = {f->note, f->n_notes, false};

    bl_list_drop(&args);
    bl_list_drop(&notes);
    *f = (struct bl_peer_flags){0};
}

const char *bl_peer_name(enum bl_peer peer)
{
    static const char *const name[BL_N_PEERS] = {"llama.cpp", "ik_llama.cpp", "ds4",
                                                 "ktransformers"};
    return (unsigned)peer < BL_N_PEERS ? name[peer] : NULL;
}
