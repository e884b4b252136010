/* SPDX-License-Identifier: MIT */
#include "constraints.h"

#include "machine_file.h"
#include "mem.h"
#include "search_impl.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_RULES = 128, RULE_BYTES = 256 };
#define EXPERT_TENSORS "\\.ffn_(up|down|gate|gate_up)_(ch|)exps"

struct rule {
    char pattern[RULE_BYTES], said[RULE_BYTES]; /* said: as the command line has it */
    pcre2_code *code;
    uint16_t device;
    uint32_t matched, taken; /* tensors; taken: of them by this rule */
};
struct constrain {
    const struct bl_model *model;
    const struct bl_machine *machine;
    const struct bl_placement_rules *say;
    struct bl_plan *plan;
    struct rule *rule; /* [MOST_RULES] */
    uint32_t n_rules;
    uint16_t card[BL_MAX_DEVICES]; /* in the order of -dev, or of the machine */
    uint32_t n_cards;
};

/* ---- devices ---- */

/* "CPU", "CUDA1" and the like: a kind and a number among the cards; or a device's own name. */
static uint16_t find_device(const struct constrain *c, const char *name)
{
    static const char *const kinds[] = {"CUDA", "ROCm", "HIP", "Vulkan", "Metal", "GPU"};

    if (!strcasecmp(name, "CPU") || !strcasecmp(name, "CPU_Mapped") || !strcasecmp(name, "none"))
        return 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const size_t n = strlen(kinds[i]);
        char *end;
        if (strncasecmp(name, kinds[i], n) || name[n] < '0' || name[n] > '9')
            continue;
        const unsigned long at = strtoul(name + n, &end, 10);
        return !*end && at < c->n_cards ? c->card[at] : BL_NO_DEVICE;
    }
    return bl_machine_find(c->machine, name);
}

static enum bl_status unknown_device(const struct constrain *c, const char *option,
                                     const char *name)
{
    return bl_fail(BL_EINVAL,
                   "%s: '%.60s' is no device of %s, which has CPU and %u cards from CUDA0 on",
                   option, name, c->machine->name, c->n_cards);
}

static enum bl_status list_cards(struct constrain *c)
{
    char names[RULE_BYTES], *save = NULL;
    uint16_t wanted[BL_MAX_DEVICES];
    uint32_t n = 0;

    for (uint16_t d = 1; d < c->machine->n_devices; d++)
        if (c->machine->device[d].kind == BL_KIND_GPU)
            c->card[c->n_cards++] = d;
    if (!c->say->devices)
        return BL_OK;
    snprintf(names, sizeof names, "%s", c->say->devices);
    for (char *s = strtok_r(names, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
        const uint16_t d = find_device(c, s);
        if (d == BL_NO_DEVICE)
            return unknown_device(c, "-dev", s);
        if (d && n < BL_MAX_DEVICES)
            wanted[n++] = d;
    }
    memcpy(c->card, wanted, n * sizeof *wanted);
    c->n_cards = n;
    return BL_OK;
}

/* ---- layers over cards ---- */

static enum bl_status read_shares(const struct constrain *c, double *share)
{
    const char *s = c->say->tensor_split;
    double sum = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n_cards; i++)
        share[i] = s ? 0 : (double)c->machine->device[c->card[i]].usable_bytes;
    while (s && *s) {
        char *end;
        const double v = strtod(s, &end);
        if (end == s || v < 0 || (*end && *end != ',' && *end != '/'))
            return bl_fail(BL_EINVAL, "-ts %s: must be a share for each card, such as 3,1",
                           c->say->tensor_split);
        if (n >= c->n_cards)
            return bl_fail(BL_EINVAL, "-ts %s: has more shares than the %u cards there are",
                           c->say->tensor_split, c->n_cards);
        share[n++] = v;
        s = *end ? end + 1 : end;
    }
    for (uint32_t i = 0; i < c->n_cards; i++)
        sum += share[i];
    if (c->n_cards && !(sum > 0))
        return bl_fail(BL_EINVAL, "-ts %s: gives nothing to any card", c->say->tensor_split);
    for (uint32_t i = 0; i < c->n_cards; i++)
        share[i] = share[i] / sum + (i ? share[i - 1] : 0);
    return BL_OK;
}

static enum bl_status one_card(const struct constrain *c, double *share)
{
    const uint32_t at = c->say->main_gpu > 0 ? (uint32_t)c->say->main_gpu : 0;

    if (c->say->tensor_split)
        return bl_fail(BL_EINVAL, "-sm none and -ts contradict each other: one card, or several");
    if (at >= c->n_cards)
        return bl_fail(BL_EINVAL, "-mg %u: there are %u cards, counted from 0", at, c->n_cards);
    for (uint32_t i = 0; i < c->n_cards; i++)
        share[i] = i >= at;
    return BL_OK;
}

static enum bl_status shares(const struct constrain *c, double *share)
{
    const char *mode = c->say->split_mode;

    if (mode && !strcmp(mode, "none") && c->n_cards)
        return one_card(c, share);
    if (mode && strcmp(mode, "layer") && strcmp(mode, "none"))
        return bl_fail(BL_EUNSUPPORTED,
                       "-sm %s: plans divide models by layers, not inside matrices", mode);
    if (c->say->main_gpu > 0)
        return bl_fail(BL_EINVAL, "-mg %d has no effect without -sm none", c->say->main_gpu);
    return read_shares(c, share);
}

/* The last -ngl of the layers, the head counting as one, go to cards; -ts divides them. */
static enum bl_status lay_layers(const struct constrain *c)
{
    struct bl_plan *p = c->plan;
    double share[BL_MAX_DEVICES] = {0};
    const uint32_t all = p->n_layers + 1;
    const uint32_t n = c->say->n_gpu_layers < 0 || (uint32_t)c->say->n_gpu_layers > all
                           ? all
                           : (uint32_t)c->say->n_gpu_layers;

    BL_TRY(shares(c, share));
    if (c->n_cards == 0 && c->say->n_gpu_layers > 0)
        return bl_fail(BL_EINVAL, "-ngl %d: there is no card", c->say->n_gpu_layers);
    for (uint32_t l = all - n; c->n_cards && l < all; l++) {
        uint32_t i = 0;
        while (i + 1 < c->n_cards && share[i] <= (double)(l - (all - n)) / n)
            i++;
        for (unsigned part = 0; part < BL_N_PARTS; part++)
            if (l < p->n_layers || part == BL_PART_HEAD)
                p->slot[l * BL_N_PARTS + part] = c->card[i];
    }
    return BL_OK;
}

/* ---- rules ---- */

static enum bl_status add_rule(struct constrain *c, const char *said, const char *pattern, size_t n,
                               uint16_t device)
{
    struct rule *r = &c->rule[c->n_rules];
    PCRE2_SIZE at;
    int why;

    if (c->n_rules == MOST_RULES || n >= RULE_BYTES)
        return bl_fail(BL_EINVAL, "%.60s: more or longer rules than the %u of %u bytes allowed",
                       said, MOST_RULES, RULE_BYTES);
    memcpy(r->pattern, pattern, n);
    snprintf(r->said, sizeof r->said, "%s", said);
    r->device = device;
    r->code = pcre2_compile((PCRE2_SPTR)r->pattern, n, 0, &why, &at, NULL);
    if (!r->code)
        return bl_fail(BL_EINVAL, "%.120s: no regular expression from its byte %zu on", said, at);
    c->n_rules++;
    return BL_OK;
}

static enum bl_status add_override(struct constrain *c, const char *text, size_t n)
{
    char said[RULE_BYTES];
    const char *eq = NULL;

    snprintf(said, sizeof said, "-ot %.*s", (int)(n < 200 ? n : 200), text);
    for (size_t i = 0; i < n; i++)
        if (text[i] == '=')
            eq = text + i;
    if (!eq)
        return bl_fail(BL_EINVAL, "%s: must be PATTERN=DEVICE", said);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(text + n - eq - 1), eq + 1);
    const uint16_t d = find_device(c, name);
    if (d == BL_NO_DEVICE)
        return unknown_device(c, said, name);
    return add_rule(c, said, text, (size_t)(eq - text), d);
}

static enum bl_status add_overrides(struct constrain *c, const char *text)
{
    while (*text) {
        const size_t n = strcspn(text, ",");
        BL_TRY(add_override(c, text, n));
        text += n + (text[n] == ',');
    }
    return BL_OK;
}

static enum bl_status add_rules(struct constrain *c)
{
    const struct bl_placement_rules *say = c->say;
    char pattern[RULE_BYTES];

    if (say->cpu_moe && say->n_cpu_moe)
        return bl_fail(BL_EINVAL, "-cmoe and -ncmoe %u contradict each other: all layers, or some",
                       say->n_cpu_moe);
    for (uint32_t i = 0; i < say->n_overrides; i++)
        BL_TRY(add_overrides(c, say->override[i]));
    if (say->cpu_moe)
        return add_rule(c, "-cmoe", EXPERT_TENSORS, strlen(EXPERT_TENSORS), 0);
    if (!say->n_cpu_moe)
        return BL_OK;
    char said[48];
    snprintf(said, sizeof said, "-ncmoe %u", say->n_cpu_moe);
    const int n = snprintf(pattern, sizeof pattern, "^blk\\.\\d+" EXPERT_TENSORS);
    return add_rule(c, said, pattern, (size_t)n, 0);
}

static bool matches(const struct constrain *c, struct rule *r, const struct bl_weight *w,
                    const char *name, pcre2_match_data *data)
{
    if (!strncmp(r->said, "-ncmoe", 6) && (w->layer < 0 || (uint32_t)w->layer >= c->say->n_cpu_moe))
        return false;
    return pcre2_match(r->code, (PCRE2_SPTR)name, strlen(name), 0, 0, data, NULL) >= 0;
}

/* A plan places parts whole. */
static enum bl_status move_part(struct constrain *c, const struct rule *r,
                                const struct bl_weight *w, const char *name, uint16_t *by)
{
    const uint32_t l = w->layer < 0 ? c->plan->n_layers : (uint32_t)w->layer;
    const size_t at = l * BL_N_PARTS + w->part;

    if (by[at] != BL_NO_DEVICE && by[at] != r->device)
        return bl_fail(
            BL_EUNSUPPORTED,
            "%s: parts of a layer are placed whole, and others of %s's part, %s, go to %s", r->said,
            name, bl_part_name((enum bl_part)w->part), c->machine->device[by[at]].id);
    by[at] = r->device;
    c->plan->slot[at] = r->device;
    if (w->part == BL_PART_ATTN)
        c->plan->slot[l * BL_N_PARTS + BL_PART_STATE] = r->device;
    return BL_OK;
}

static enum bl_status apply_rules(struct constrain *c, pcre2_match_data *data, uint16_t *by)
{
    for (uint32_t i = 0; i < c->model->n_weights; i++) {
        const struct bl_weight *w = &c->model->weight[i];
        const char *name = bl_gguf_tensor(c->model->gguf, w->tensor)->name;
        bool taken = false;
        for (uint32_t k = 0; k < c->n_rules; k++) {
            struct rule *r = &c->rule[k];
            if (!matches(c, r, w, name, data))
                continue;
            r->matched++;
            r->taken += !taken;
            if (!taken)
                BL_TRY(move_part(c, r, w, name, by));
            taken = true;
        }
    }
    for (uint32_t k = 0; k < c->n_rules; k++)
        if (!c->rule[k].taken)
            return bl_fail(BL_EINVAL,
                           c->rule[k].matched
                               ? "%s: earlier rules took every tensor that it matches; put it first"
                               : "%s: matches no tensor of the model",
                           c->rule[k].said);
    return BL_OK;
}

static enum bl_status constrain(struct constrain *c)
{
    const size_t n = (size_t)(c->plan->n_layers + 1) * BL_N_PARTS;

    if (c->say->no_kv_offload)
        return bl_fail(
            BL_EUNSUPPORTED,
            "-nkvo: plans keep cached state with its attention; -ot 'attn=CPU' moves both");
    BL_TRY(list_cards(c));
    BL_TRY(lay_layers(c));
    BL_TRY(add_rules(c));
    uint16_t *by = bl_calloc(n, sizeof *by);
    pcre2_match_data *data = pcre2_match_data_create(8, NULL);
    enum bl_status st = BL_OK;
    if (!by || !data)
        st = bl_fail(BL_ENOMEM, "out of memory for the rules of a placement");
    else
        memset(by, 0xff, n * sizeof *by);
    if (!st)
        st = apply_rules(c, data, by);
    pcre2_match_data_free(data);
    free(by);
    return st;
}

enum bl_status bl_constrain(struct bl_plan *p, const struct bl_model *m,
                            const struct bl_machine *machine, const struct bl_placement_rules *say)
{
    struct constrain c = {.model = m, .machine = machine, .say = say, .plan = p};

    c.rule = bl_calloc(MOST_RULES, sizeof *c.rule);
    if (!c.rule)
        return bl_fail(BL_ENOMEM, "out of memory for the rules of a placement");
    const enum bl_status st = constrain(&c);
    for (uint32_t i = 0; i < c.n_rules; i++)
        pcre2_code_free(c.rule[i].code);
    free(c.rule);
    return st;
}

/* ---- judging ---- */

static enum bl_status check_room(const struct bl_plan *p, const struct bl_machine *m,
                                 const struct bl_search_options *opt)
{
    const double gib = 1.0 / (1 << 30);
    uint64_t shared = 0;

    for (uint16_t d = (uint16_t)m->n_devices; d-- > 0;) {
        const struct bl_machine_device *md = &m->device[d];
        const uint64_t has = bl_device_budget(md, opt->reserve_bytes);
        uint64_t need = bl_ledger_planned(&p->ledger, d);
        shared += md->shares == 0 ? need : 0;
        need += d ? 0 : shared;
        if (need > has)
            return bl_fail(BL_ENOFIT,
                           "these rules need %.2f GiB on %s, of which %.2f GiB can be planned with "
                           "(%s): %.2f GiB short",
                           (double)need * gib, md->id, (double)has * gib, md->mem_source,
                           (double)(need - has) * gib);
    }
    return BL_OK;
}

static enum bl_status judge(struct bl_choice *c, struct bl_costs *costs, const struct bl_model *m,
                            const struct bl_machine *machine, const struct bl_options *options,
                            const struct bl_search_options *opt,
                            const struct bl_placement_rules *say)
{
    struct bl_block_bytes *blocks = bl_calloc(machine->n_devices, sizeof *blocks);

    if (!blocks)
        return bl_fail(BL_ENOMEM, "out of memory while planning");
    enum bl_status st = bl_plan_size_steps(&c->plan, m, options);
    if (!st)
        st = bl_constrain(&c->plan, m, machine, say);
    if (!st)
        st = bl_plan_check(&c->plan, m, machine);
    c->plan.mmap = c->plan.mmap && machine->n_devices < 2;
    if (!st)
        st = bl_plan_memory(&c->plan, m, machine, blocks);
    free(blocks);
    BL_TRY(st);
    BL_TRY(check_room(&c->plan, machine, opt));
    c->asked_ctx_tokens = c->plan.ctx_tokens;
    BL_TRY(bl_costs_make(costs, m, machine, &c->plan, opt));
    BL_TRY(bl_explain(c, costs, m, machine));
    return bl_plan_speed(c, m, machine, opt);
}

enum bl_status bl_judge(struct bl_choice *out, const struct bl_model *m,
                        const struct bl_machine *machine, const struct bl_options *options,
                        const struct bl_search_options *opt, const struct bl_placement_rules *say)
{
    struct bl_choice c = {.depth_tokens = opt->depth_tokens, .by_rules = true};
    struct bl_costs costs = {0};

    BL_TRY(bl_plan_init(&c.plan, m));
    const enum bl_status st = judge(&c, &costs, m, machine, options, opt, say);
    bl_costs_finish(&costs);
    if (st)
        bl_choice_finish(&c);
    else
        *out = c;
    return st;
}
