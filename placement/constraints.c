/* SPDX-License-Identifier: MIT */
#include "constraints.h"

#include "machine_file.h"
#include "mem.h"
#include "search_impl.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <math.h>
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
    uint32_t matched, taken,
        moved; /* tensors; taken: of them by this rule; moved: not of the state */
};
struct constrain {
    const struct bl_model *model;
    const struct bl_machine *machine;
    const struct bl_placement_rules *say;
    struct bl_pins *pins;
    struct rule *rule;   /* [MOST_RULES] */
    uint64_t *all, *hit; /* [n_layers + 1][BL_N_PARTS] bytes; those that rules match */
    uint32_t n_rules;
    uint16_t named[BL_MAX_DEVICES],
        card[BL_MAX_DEVICES]; /* all cards; those of -dev in its order */
    uint32_t n_named, n_cards;
};

static uint32_t n_layers(const struct constrain *c)
{
    return c->model->hp.n_layer;
}

/* ---- devices ---- */

/* Kinds of cards as llama.cpp calls them, and the backends that they are; NULL: any. */
static const struct {
    const char *kind, *backend;
} card_kinds[] = {{"CUDA", "cuda"},     {"ROCm", "hip"},    {"HIP", "hip"},
                  {"Vulkan", "vulkan"}, {"Metal", "metal"}, {"GPU", NULL}};

/* The one that --devices named so; else the at-th of that backend, or of all cards where none is of
 * it. */
static uint16_t find_card(const struct constrain *c, const char *backend, unsigned long at)
{
    unsigned long n = 0;
    uint16_t nth = BL_NO_DEVICE;

    for (uint32_t i = 0; backend && i < c->n_named; i++) {
        const struct bl_machine_device *d = &c->machine->device[c->named[i]];
        if (strcmp(d->backend_name, backend))
            continue;
        if (!d->described && d->index == at)
            return c->named[i];
        nth = n++ == at ? c->named[i] : nth;
    }
    return n ? nth : at < c->n_named ? c->named[at] : BL_NO_DEVICE;
}

/* "CPU", "CUDA1" and the like; or a device's own name. */
static uint16_t find_device(const struct constrain *c, const char *name)
{
    const uint16_t own = bl_machine_find(c->machine, name);

    if (own != BL_NO_DEVICE)
        return own;
    if (!strcasecmp(name, "CPU") || !strcasecmp(name, "CPU_Mapped") || !strcasecmp(name, "none"))
        return 0;
    for (size_t i = 0; i < BL_COUNT(card_kinds); i++) {
        const size_t n = strlen(card_kinds[i].kind);
        char *end;
        if (strncasecmp(name, card_kinds[i].kind, n) || name[n] < '0' || name[n] > '9')
            continue;
        const unsigned long at = strtoul(name + n, &end, 10);
        return *end ? BL_NO_DEVICE : find_card(c, card_kinds[i].backend, at);
    }
    return BL_NO_DEVICE;
}

static enum bl_status unknown_device(const struct constrain *c, const char *option,
                                     const char *name)
{
    char all[320] = "";
    size_t n = 0;

    for (uint16_t d = 1; d < c->machine->n_devices && n < sizeof all; d++)
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s",
                              d + 1U < c->machine->n_devices ? ", " : " and ",
                              c->machine->device[d].id);
    return bl_fail(BL_EINVAL, "%s: '%.60s' is no device of %s, which has %s%s", option, name,
                   c->machine->name, c->machine->n_devices > 1 ? "CPU" : "the CPU alone", all);
}

static enum bl_status list_cards(struct constrain *c)
{
    uint16_t wanted[BL_MAX_DEVICES];
    uint32_t n = 0;
    bool any = false;

    for (uint16_t d = 1; d < c->machine->n_devices; d++)
        if (c->machine->device[d].kind == BL_KIND_GPU)
            c->named[c->n_named++] = d;
    memcpy(c->card, c->named, sizeof c->card);
    c->n_cards = c->n_named;
    if (!c->say->devices)
        return BL_OK;
    for (const char *s = c->say->devices; *s; s += *s == ',') {
        char name[RULE_BYTES]; /* longer than any device's */
        const int length = (int)strcspn(s, ",");
        snprintf(name, sizeof name, "%.*s", length, s);
        s += length;
        if (!length)
            continue;
        const uint16_t d = find_device(c, name);
        if (d == BL_NO_DEVICE)
            return unknown_device(c, "-dev", name);
        for (uint32_t i = 0; d && i < n; i++)
            if (wanted[i] == d)
                return bl_fail(BL_EINVAL, "-dev %.200s: names %s twice", c->say->devices,
                               c->machine->device[d].id);
        if (d && n < BL_MAX_DEVICES)
            wanted[n++] = d;
        any = true;
    }
    if (!any)
        return bl_fail(BL_EINVAL, "-dev wants names of devices, or none, not '%.200s'",
                       c->say->devices);
    memcpy(c->card, wanted, n * sizeof *wanted);
    c->n_cards = n;
    c->pins->left_out = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++)
        c->pins->left_out &= ~((uint64_t)1 << c->card[i]);
    return BL_OK;
}

static bool is_left_out(const struct constrain *c, uint16_t d)
{
    return d && c->pins->left_out >> d & 1;
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
        if (end == s || !(v >= 0 && v < 1e30) || (*end && *end != ',' && *end != '/'))
            return bl_fail(BL_EINVAL, "-ts %s: must be a share for each card, such as 3,1",
                           c->say->tensor_split);
        if (n >= c->n_cards)
            return bl_fail(BL_EINVAL, "-ts %s: has more shares than cards, of which there are %u",
                           c->say->tensor_split, c->n_cards);
        share[n++] = v;
        s = *end ? end + 1 : end;
    }
    for (uint32_t i = 0; i < c->n_cards; i++)
        sum += share[i];
    if (c->n_cards && !(sum > 0))
        return bl_fail(BL_EINVAL, "-ts %s: gives nothing to any card", c->say->tensor_split);
    /* summed before divided, in floats: layers change cards where llama.cpp's do */
    double so_far = 0;
    for (uint32_t i = 0; i < c->n_cards; i++) {
        so_far += share[i];
        share[i] = (double)((float)so_far / (float)sum);
    }
    return BL_OK;
}

static enum bl_status one_card(const struct constrain *c, double *share)
{
    const uint32_t at = c->say->main_gpu > 0 ? (uint32_t)c->say->main_gpu : 0;

    if (c->say->tensor_split)
        return bl_fail(BL_EINVAL, "-sm none and -ts contradict each other: one card, or several");
    if (at >= c->n_cards)
        return bl_fail(BL_EINVAL, "-mg %u: cards are counted from 0, and their number is %u", at,
                       c->n_cards);
    for (uint32_t i = 0; i < c->n_cards; i++)
        share[i] = i >= at;
    return BL_OK;
}

static enum bl_status shares(const struct constrain *c, double *share)
{
    const char *mode = c->say->split_mode;
    const bool one = mode && !strcmp(mode, "none");

    if (one && (c->n_cards || c->say->main_gpu > 0))
        return one_card(c, share);
    if (mode && !one && strcmp(mode, "layer"))
        return bl_fail(BL_EINVAL, "-sm %s: plans divide models by layers, not inside matrices",
                       mode);
    if (c->say->main_gpu > 0)
        return bl_fail(BL_EINVAL, "-mg %d has no effect without -sm none", c->say->main_gpu);
    return read_shares(c, share);
}

static bool divides_layers(const struct bl_placement_rules *say)
{
    return say->n_gpu_layers >= 0 || say->tensor_split || say->split_mode || say->main_gpu > 0;
}

/* The last -ngl of the layers, the head counting as one, go to cards; -ts divides them. */
static enum bl_status lay_layers(const struct constrain *c)
{
    double share[BL_MAX_DEVICES] = {0};
    const uint32_t layers = n_layers(c), all = layers + 1;
    const uint32_t n = c->say->n_gpu_layers < 0 || (uint32_t)c->say->n_gpu_layers > all
                           ? all
                           : (uint32_t)c->say->n_gpu_layers;

    BL_TRY(shares(c, share));
    if (c->n_cards == 0 && c->say->n_gpu_layers > 0)
        return bl_fail(BL_EINVAL, "-ngl %d: there is no card; --devices names those to use",
                       c->say->n_gpu_layers);
    memset(c->pins->at, 0, (size_t)all * BL_N_PARTS * sizeof *c->pins->at);
    for (uint32_t l = all - n; c->n_cards && l < all; l++) {
        uint32_t i = 0;
        while (i + 1 < c->n_cards && share[i] <= (double)((float)(l - (all - n)) / (float)n))
            i++;
        for (unsigned part = 0; part < BL_N_PARTS; part++)
            if (l < layers || part == BL_PART_HEAD)
                c->pins->at[l * BL_N_PARTS + part] = c->card[i];
    }
    c->pins->complete = true;
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
    if (is_left_out(c, d))
        return bl_fail(BL_EINVAL,
                       "%s and -dev %s contradict each other: the card is not among those", said,
                       c->say->devices);
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

static bool is_of_first_layers(const struct rule *r)
{
    return !strncmp(r->said, "-ncmoe", 6);
}

static bool matches(const struct constrain *c, struct rule *r, const struct bl_weight *w,
                    const char *name, pcre2_match_data *data)
{
    if (is_of_first_layers(r) && (w->layer < 0 || (uint32_t)w->layer >= c->say->n_cpu_moe))
        return false;
    return pcre2_match(r->code, (PCRE2_SPTR)name, strlen(name), 0, 0, data, NULL) >= 0;
}

/* A plan places parts whole. What attention itself reads stays with the cached state. */
static enum bl_status move_part(struct constrain *c, uint32_t rule, const struct bl_weight *w,
                                const char *name)
{
    const struct rule *r = &c->rule[rule];
    const size_t at = (w->layer < 0 ? n_layers(c) : (size_t)w->layer) * BL_N_PARTS + w->part;
    const uint8_t by = c->pins->by[at];

    if (w->part == BL_PART_STATE)
        return BL_OK;
    if (by && c->rule[by - 1].device != r->device)
        return bl_fail(BL_EINVAL,
                       "%s and %s contradict each other: %s goes to %s, others of its part, %s, to "
                       "%s, and parts of a layer are placed whole",
                       r->said, c->rule[by - 1].said, name, c->machine->device[r->device].id,
                       bl_part_name((enum bl_part)w->part),
                       c->machine->device[c->rule[by - 1].device].id);
    c->pins->by[at] = (uint8_t)(rule + 1);
    c->hit[at] += bl_gguf_tensor(c->model->gguf, w->tensor)->bytes;
    return BL_OK;
}

static enum bl_status match_tensor(struct constrain *c, const struct bl_weight *w,
                                   pcre2_match_data *data)
{
    const struct bl_tensor_info *t = bl_gguf_tensor(c->model->gguf, w->tensor);
    const size_t row = w->layer < 0 ? n_layers(c) : (size_t)w->layer;
    bool taken = false;

    c->all[row * BL_N_PARTS + w->part] += t->bytes;
    for (uint32_t k = 0; k < c->n_rules; k++) {
        struct rule *r = &c->rule[k];
        if (!matches(c, r, w, t->name, data))
            continue;
        r->matched++;
        r->moved += w->part != BL_PART_STATE;
        r->taken += !taken;
        if (!taken)
            BL_TRY(move_part(c, k, w, t->name));
        taken = true;
    }
    return BL_OK;
}

static enum bl_status check_rules(const struct constrain *c)
{
    for (uint32_t k = 0; k < c->n_rules; k++) {
        const struct rule *r = &c->rule[k];
        if (!r->matched && is_of_first_layers(r) && c->model->hp.n_expert)
            continue; /* layers are counted, not those with experts: the first may have none */
        if (!r->matched)
            return bl_fail(BL_EINVAL, "%s: matches no tensor of the model", r->said);
        if (!r->taken)
            return bl_fail(BL_EINVAL,
                           "%s: earlier rules took every tensor that it matches; put it first",
                           r->said);
        if (!r->moved)
            return bl_fail(BL_EINVAL,
                           "%s: matches only what attention itself reads, which stays with the "
                           "cached state; -nkvo moves both to RAM",
                           r->said);
    }
    return BL_OK;
}

static const char *unmatched_name(const struct constrain *c, size_t at, pcre2_match_data *data)
{
    for (uint32_t i = 0; i < c->model->n_weights; i++) {
        const struct bl_weight *w = &c->model->weight[i];
        const char *name = bl_gguf_tensor(c->model->gguf, w->tensor)->name;
        const size_t row = w->layer < 0 ? n_layers(c) : (size_t)w->layer;
        bool any = row * BL_N_PARTS + w->part != at;
        for (uint32_t k = 0; k < c->n_rules && !any; k++)
            any = matches(c, &c->rule[k], w, name, data);
        if (!any)
            return name;
    }
    return "others";
}

/* What rules leave of a part follows if it is little: a router beside its shared experts, norms. */
static enum bl_status move_parts(struct constrain *c, pcre2_match_data *data)
{
    enum { LITTLE = 8 };
    const size_t n = (size_t)(n_layers(c) + 1) * BL_N_PARTS;

    for (size_t at = 0; at < n; at++) {
        const struct rule *r = c->pins->by[at] ? &c->rule[c->pins->by[at] - 1] : NULL;
        if (!r)
            continue;
        if (c->pins->at[at] != r->device && c->all[at] - c->hit[at] > c->all[at] / LITTLE)
            return bl_fail(BL_EINVAL,
                           "%s: leaves %s where it is, which is placed with what the rule moves: "
                           "parts of a layer (%s) are placed whole",
                           r->said, unmatched_name(c, at, data),
                           bl_part_name((enum bl_part)(at % BL_N_PARTS)));
        c->pins->at[at] = r->device;
    }
    return BL_OK;
}

static enum bl_status apply_rules(struct constrain *c, pcre2_match_data *data)
{
    for (uint32_t i = 0; i < c->model->n_weights; i++)
        BL_TRY(match_tensor(c, &c->model->weight[i], data));
    BL_TRY(check_rules(c));
    BL_TRY(move_parts(c, data));
    for (uint32_t k = 0; k < c->n_rules; k++)
        snprintf(c->pins->said[k], sizeof *c->pins->said, "%.63s", c->rule[k].said);
    c->pins->n_said = c->n_rules;
    return BL_OK;
}

static void keep_state_home(struct constrain *c)
{
    struct bl_pins *p = c->pins;

    snprintf(p->said[p->n_said++], sizeof *p->said, "-nkvo");
    for (uint32_t l = 0; l < n_layers(c); l++) {
        p->at[l * BL_N_PARTS + BL_PART_STATE] = 0;
        p->by[l * BL_N_PARTS + BL_PART_STATE] = (uint8_t)p->n_said;
    }
}

static enum bl_status constrain(struct constrain *c, bool whole)
{
    BL_TRY(list_cards(c));
    if (whole || divides_layers(c->say))
        BL_TRY(lay_layers(c));
    BL_TRY(add_rules(c));
    pcre2_match_data *data = pcre2_match_data_create(8, NULL);
    if (!data)
        return bl_fail(BL_ENOMEM, "out of memory for the rules of a placement");
    const enum bl_status st = apply_rules(c, data);
    pcre2_match_data_free(data);
    if (!st && c->say->no_kv_offload)
        keep_state_home(c);
    return st;
}

void bl_pins_finish(struct bl_pins *p)
{
    free(p->at);
    free(p->by);
    free(p->said);
    *p = (struct bl_pins){0};
}

/* whole: what rules leave open is as llama.cpp has it. */
static enum bl_status read_pins(struct bl_pins *out, const struct bl_model *m,
                                const struct bl_machine *machine,
                                const struct bl_placement_rules *say, bool whole)
{
    const size_t n = (size_t)(m->hp.n_layer + 1) * BL_N_PARTS;
    struct bl_pins pins = {.at = bl_calloc(n, sizeof *pins.at),
                           .by = bl_calloc(n, sizeof *pins.by),
                           .said = bl_calloc(MOST_RULES + 1, sizeof *pins.said)};
    struct constrain c = {.model = m,
                          .machine = machine,
                          .say = say,
                          .pins = &pins,
                          .rule = bl_calloc(MOST_RULES, sizeof *c.rule),
                          .all = bl_calloc(n, sizeof *c.all),
                          .hit = bl_calloc(n, sizeof *c.hit)};
    enum bl_status st = BL_ENOMEM;

    if (!pins.at || !pins.by || !pins.said || !c.rule || !c.all || !c.hit) {
        bl_fail(st, "out of memory for the rules of a placement");
    } else {
        memset(pins.at, 0xff, n * sizeof *pins.at);
        st = constrain(&c, whole);
    }
    for (uint32_t i = 0; i < c.n_rules; i++)
        pcre2_code_free(c.rule[i].code);
    free(c.rule);
    free(c.all);
    free(c.hit);
    if (st)
        bl_pins_finish(&pins);
    else
        *out = pins;
    return st;
}

enum bl_status bl_pins_read(struct bl_pins *out, const struct bl_model *m,
                            const struct bl_machine *machine, const struct bl_placement_rules *say)
{
    return read_pins(out, m, machine, say, false);
}

enum bl_status bl_constrain(struct bl_plan *p, const struct bl_model *m,
                            const struct bl_machine *machine, const struct bl_placement_rules *say)
{
    struct bl_pins pins = {0};

    BL_TRY(read_pins(&pins, m, machine, say, true));
    memcpy(p->slot, pins.at, (size_t)(p->n_layers + 1) * BL_N_PARTS * sizeof *p->slot);
    bl_pins_finish(&pins);
    return BL_OK;
}
