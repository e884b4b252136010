/* SPDX-License-Identifier: MIT */
#include "plan.h"

#include "args.h"
#include "mem.h"
#include "program.h"
#include "vocab.h"

#include <stdio.h>
#include <stdlib.h>

enum { BLOCK_ALIGN = 64 }; /* of tensors and states inside their blocks: a cache line, a vector */

enum bl_status bl_plan_init(struct bl_plan *p, const struct bl_model *m)
{
    *p = (struct bl_plan){.n_layers = m->hp.n_layer};
    p->slot = bl_calloc((size_t)(m->hp.n_layer + 1) * BL_N_PARTS, sizeof *p->slot);
    return p->slot ? BL_OK : bl_fail(BL_ENOMEM, "out of memory for the plan's table");
}

void bl_plan_finish(struct bl_plan *p)
{
    free(p->slot);
    free(p->range);
    free(p->slots);
    bl_ledger_finish(&p->ledger);
    *p = (struct bl_plan){0};
}

/* Between devices values pass through host memory. */
bool bl_plan_uses(const struct bl_plan *p, uint16_t device)
{
    for (uint32_t i = 0; i < (p->n_layers + 1) * BL_N_PARTS; i++)
        if (p->slot[i] == device || (device == 0 && p->slot[i] != p->slot[0]))
            return true;
    for (uint32_t i = 0; i < p->n_ranges; i++)
        if (p->range[i].device == device || (device == 0 && p->range[i].device != p->slot[0]))
            return true;
    for (uint32_t i = 0; bl_plan_has_slots(p) && i < p->n_slot_sets; i++)
        if (p->slots[i].device == device || device == 0)
            return true;
    return false;
}

static enum bl_status check_ranges(const struct bl_plan *p, const struct bl_model *m,
                                   const struct bl_machine *machine)
{
    for (uint32_t i = 0; i < p->n_ranges; i++) {
        const struct bl_expert_range *r = &p->range[i], *before = i ? r - 1 : NULL;
        const uint32_t last = r->first + (r->n - 1);
        if (r->layer >= p->n_layers || !m->layer[r->layer].moe)
            return bl_fail(BL_EINVAL, "plan: experts %u-%u of layer %u, which has none", r->first,
                           last, r->layer);
        if (!r->n || r->n > m->hp.n_expert || r->first > m->hp.n_expert - r->n)
            return bl_fail(BL_EINVAL, "plan: layer %u experts %u-%u, the model has %u", r->layer,
                           r->first, last, m->hp.n_expert);
        if (r->device >= machine->n_devices)
            return bl_fail(BL_EINVAL,
                           "plan: layer %u experts %u-%u are on device %u, the machine has %u",
                           r->layer, r->first, last, r->device, machine->n_devices);
        if (before && (before->layer > r->layer ||
                       (before->layer == r->layer && r->first < before->first + before->n)))
            return bl_fail(BL_EINVAL, "plan: layer %u experts %u-%u are out of order or twice",
                           r->layer, r->first, last);
    }
    return BL_OK;
}

static enum bl_status check_slots(const struct bl_plan *p, const struct bl_model *m,
                                  const struct bl_machine *machine)
{
    for (uint32_t i = 0; i < p->n_slot_sets; i++) {
        const struct bl_slot_set *s = &p->slots[i];
        if (s->layer >= p->n_layers || !m->layer[s->layer].moe)
            return bl_fail(BL_EINVAL, "plan: %u slot%s for experts of layer %u, which has none",
                           s->n, bl_plural(s->n), s->layer);
        if (!s->device)
            return bl_fail(BL_EINVAL,
                           "plan: layer %u has slots on %s; they hold copies of experts that are "
                           "there, so it must be another device",
                           s->layer, machine->device[0].id);
        if (s->device >= machine->n_devices)
            return bl_fail(BL_EINVAL, "plan: layer %u has slots on device %u, the machine has %u",
                           s->layer, s->device, machine->n_devices);
        const uint32_t most = bl_plan_experts_on(p, s->layer, m->hp.n_expert, 0);
        if (!s->n || s->n > most)
            return bl_fail(BL_EINVAL,
                           "plan: layer %u has %u slot%s on %s; must be 1 to %u, the experts that "
                           "are on %s",
                           s->layer, s->n, bl_plural(s->n), machine->device[s->device].id, most,
                           machine->device[0].id);
    }
    return p->expert_policy < BL_N_EXPERT_POLICIES
               ? BL_OK
               : bl_fail(BL_EINVAL, "plan: %u is no policy for slots", p->expert_policy);
}

enum bl_status bl_plan_check(const struct bl_plan *p, const struct bl_model *m,
                             const struct bl_machine *machine)
{
    if (p->n_layers != m->hp.n_layer)
        return bl_fail(BL_EINVAL, "the plan is for %u layers, the model has %u", p->n_layers,
                       m->hp.n_layer);
    for (uint32_t l = 0; l <= p->n_layers; l++)
        for (unsigned part = 0; part < BL_N_PARTS; part++)
            if (p->slot[l * BL_N_PARTS + part] >= machine->n_devices)
                return bl_fail(BL_EINVAL, "plan: layer %u %s is on device %u, the machine has %u",
                               l, bl_part_name(part), p->slot[l * BL_N_PARTS + part],
                               machine->n_devices);
    BL_TRY(check_ranges(p, m, machine));
    return check_slots(p, m, machine);
}

/* ---- buckets ---- */

static uint32_t pow2_at_least(uint32_t n, uint32_t most)
{
    uint32_t b = 1;
    while (b < n && b < most)
        b *= 2;
    return b < most ? b : most;
}

static uint32_t out_most(const struct bl_plan *p, uint32_t n_tok)
{
    return p->out_tokens < n_tok ? p->out_tokens : n_tok;
}

struct bl_shape bl_plan_bucket(const struct bl_plan *p, uint32_t n_tok, uint32_t n_out)
{
    uint32_t tok = pow2_at_least(n_tok, p->ubatch_tokens);
    return (struct bl_shape){.n_tok = tok,
                             .n_out = n_out <= 1 ? n_out : out_most(p, tok),
                             .max_sequences = p->max_sessions,
                             .ubatch_tokens = p->ubatch_tokens,
                             .ctx_tokens = p->ctx_tokens};
}

enum bl_status bl_plan_buckets(const struct bl_plan *p,
                               enum bl_status (*fn)(void *arg, const struct bl_shape *), void *arg)
{
    for (uint32_t tok = 1;; tok = pow2_at_least(tok + 1, p->ubatch_tokens)) {
        for (uint32_t out = 0; out < 3; out++) {
            if (out == 2 && out_most(p, tok) < 2)
                break;
            struct bl_shape s = bl_plan_bucket(p, tok, out);
            BL_TRY(fn(arg, &s));
        }
        if (tok >= p->ubatch_tokens)
            return BL_OK;
    }
}

/* ---- memory ---- */

uint64_t bl_params_bytes(const struct bl_plan *p)
{
    return bl_align_up(sizeof(struct bl_params) +
                           4 * sizeof(uint32_t) * (uint64_t)p->ubatch_tokens +
                           sizeof(struct bl_seq_params) * (uint64_t)p->max_sessions,
                       BLOCK_ALIGN);
}

uint64_t bl_output_bytes(const struct bl_plan *p, const struct bl_model *m)
{
    return (uint64_t)p->out_tokens * m->hp.n_vocab * sizeof(float);
}

void bl_plan_tensor_bytes(const struct bl_plan *p, const struct bl_model *m, uint16_t device,
                          uint64_t *bytes)
{
    memset(bytes, 0, bl_gguf_n_tensors(m->gguf) * sizeof *bytes);
    for (uint32_t i = 0; i < m->n_weights; i++) {
        const struct bl_weight *w = &m->weight[i];
        if (bl_weight_has_table(w))
            bytes[w->tensor] =
                bl_weight_expert_stride(w) *
                bl_plan_experts_on(p, (uint32_t)w->layer, bl_weight_n_experts(w), device);
        else if (bl_plan_device(p, w->layer, w->part) == device)
            bytes[w->tensor] = bl_gguf_tensor(m->gguf, w->tensor)->bytes;
    }
}

uint64_t bl_plan_window(const struct bl_machine *machine, uint16_t device)
{
    const struct bl_caps *c = &machine->device[device].caps;
    const uint64_t granule = c->granule_bytes > BLOCK_ALIGN ? c->granule_bytes : BLOCK_ALIGN;

    if (!device || !c->block_bytes)
        return 0;
    return c->block_bytes < granule ? granule : c->block_bytes / granule * granule;
}

uint64_t bl_layout_add(struct bl_layout *at, uint64_t each, uint64_t n)
{
    const uint64_t first = bl_unit_begin(at->end, each, at->window);
    const uint64_t last = bl_unit_at(first, each, n - 1, at->window);

    at->end = bl_align_up(last + each, BLOCK_ALIGN);
    at->largest = each > at->largest ? each : at->largest;
    return first;
}

#define BY_EXPERT (UINT64_C(1) << 63) /* beside bytes: each expert is a unit */

static void mark_experts(const struct bl_model *m, uint64_t *bytes)
{
    for (uint32_t i = 0; i < m->n_weights; i++)
        if (bl_weight_has_table(&m->weight[i]) && bytes[m->weight[i].tensor])
            bytes[m->weight[i].tensor] |= BY_EXPERT;
}

void bl_plan_tensor_offsets(const struct bl_plan *p, const struct bl_model *m, uint16_t device,
                            struct bl_layout *at, uint64_t *off)
{
    bl_plan_tensor_bytes(p, m, device, off);
    mark_experts(m, off);
    for (uint32_t t = 0; t < bl_gguf_n_tensors(m->gguf); t++) { /* reading is one sweep */
        const uint64_t bytes = off[t] & ~BY_EXPERT;
        const uint64_t each =
            off[t] & BY_EXPERT ? bl_gguf_tensor(m->gguf, t)->bytes / m->hp.n_expert : bytes;
        off[t] = bytes ? bl_layout_add(at, each, bytes / each) : BL_NO_HOME;
    }
}

void bl_plan_state_offsets(const struct bl_plan *p, const struct bl_model *m, uint16_t device,
                           struct bl_layout *at, uint64_t *off)
{
    struct bl_shape s = bl_plan_bucket(p, p->ubatch_tokens, 1);

    for (uint32_t i = 0; i < m->n_states; i++)
        off[i] = bl_plan_device(p, m->state[i].layer, BL_PART_STATE) == device
                     ? bl_layout_add(at, bl_state_bytes(&m->state[i], &s), 1)
                     : BL_NO_HOME;
}

static uint64_t slack_bytes(const struct bl_plan *p, const struct bl_model *m, uint16_t device)
{
    struct bl_shape s = bl_plan_bucket(p, p->ubatch_tokens, 1);
    uint64_t sum = 0;

    for (uint32_t i = 0; i < m->n_states; i++)
        if (bl_plan_device(p, m->state[i].layer, BL_PART_STATE) == device)
            sum += bl_state_slack_bytes(&m->state[i], &s);
    return sum;
}

struct sizing {
    struct bl_plan *plan;
    const struct bl_model *model;
    const struct bl_machine *machine;
    struct bl_block_bytes *blocks;
    uint64_t *arena;
    uint64_t program_heap;
};

static enum bl_status size_program(void *arg, const struct bl_shape *shape)
{
    struct sizing *z = arg;
    struct bl_program prog = {0};
    enum bl_status st = bl_program_lower(&prog, z->model, z->plan, z->machine, shape);

    for (uint32_t d = 0; !st && d < z->machine->n_devices; d++) {
        if (prog.arena_bytes[d] > z->arena[d])
            z->arena[d] = prog.arena_bytes[d];
        if (prog.scratch_bytes[d] > z->blocks[d].scratch)
            z->blocks[d].scratch = prog.scratch_bytes[d];
    }
    uint64_t heap = bl_program_heap_bytes(&prog);
    if (!st && heap > z->program_heap)
        z->program_heap = heap;
    bl_program_finish(&prog);
    return st;
}

/* Whole files are mapped, those only that hold a tensor of the device. */
static uint64_t mapped_bytes(const struct bl_model *m, const uint64_t *off)
{
    uint64_t sum = 0;
    for (uint32_t s = 0; s < bl_gguf_n_shards(m->gguf); s++)
        for (uint32_t t = 0; t < bl_gguf_n_tensors(m->gguf); t++)
            if (off[t] != BL_NO_HOME && bl_gguf_tensor(m->gguf, t)->shard == s) {
                sum += bl_gguf_shard_bytes(m->gguf, s);
                break;
            }
    return sum;
}

/* The first that one block cannot hold is told of. */
static void note_excess(const struct sizing *z, uint16_t d, enum bl_purpose purpose, uint64_t bytes)
{
    const uint64_t most = z->blocks[d].window;

    if (most && bytes > most && !z->plan->ledger.excess.bytes)
        z->plan->ledger.excess = (struct bl_excess){d, (uint8_t)purpose, bytes, most};
}

static void size_weights(const struct sizing *z, uint16_t d, uint64_t *off)
{
    struct bl_block_bytes *b = &z->blocks[d];
    struct bl_layout weights = {.window = b->window}, slots = weights;

    bl_plan_tensor_offsets(z->plan, z->model, d, &weights, off);
    if (z->plan->mmap && z->machine->device[d].caps.import_host)
        b->mapped = mapped_bytes(z->model, off);
    else
        b->weights = weights.end;
    if (b->weights)
        note_excess(z, d, BL_MEM_WEIGHTS, weights.largest);
    for (uint32_t i = 0; i < z->model->n_weights; i++) {
        const struct bl_weight *w = &z->model->weight[i];
        const uint32_t n = bl_weight_n_experts(w);
        if (n && (bl_plan_experts_on(z->plan, (uint32_t)w->layer, n, d) ||
                  bl_plan_slots_on(z->plan, (uint32_t)w->layer, d)))
            b->tables += sizeof(uint64_t) * n;
    }
    bl_plan_slot_offsets(z->plan, z->model, d, &slots, off);
    b->slots = slots.end;
    note_excess(z, d, BL_MEM_SLOTS, slots.largest);
}

static void size_state(const struct sizing *z, uint16_t d, uint64_t *off)
{
    struct bl_block_bytes *b = &z->blocks[d];
    struct bl_layout state = {.window = b->window};

    bl_plan_state_offsets(z->plan, z->model, d, &state, off);
    b->state = state.end;
    b->slack = slack_bytes(z->plan, z->model, d);
    note_excess(z, d, BL_MEM_STATE, state.largest);
}

static uint64_t granted(const struct sizing *z, uint16_t d, uint64_t bytes)
{
    return bytes ? bl_align_up(bytes, z->machine->device[d].caps.granule_bytes) : 0;
}

/* Of a card, and what it takes on the host. */
static enum bl_status plan_ring(struct bl_plan *p, const struct sizing *z, uint16_t d)
{
    struct bl_ring_bytes b;

    bl_plan_ring(p, z->model, d, &b);
    const uint64_t ring = BL_RING_PARTS * b.part;
    note_excess(z, d, BL_MEM_STAGING, ring);
    BL_TRY(bl_ledger_plan(&p->ledger, d, BL_MEM_STAGING, granted(z, d, ring)));
    if (!ring)
        return BL_OK;
    BL_TRY(bl_ledger_plan(&p->ledger, 0, BL_MEM_STAGING, granted(z, 0, b.tables)));
    return bl_plan_stages(p, z->machine, d)
               ? bl_ledger_plan(&p->ledger, 0, BL_MEM_STAGING, granted(z, 0, ring))
               : BL_OK;
}

/* What the driver takes; and, so that a ledger shows it, what may take nothing: rings for experts
 * that are sent to cards, and layers for drafting, which are not loaded. */
static enum bl_status plan_others(struct bl_plan *p, const struct sizing *z, uint16_t d)
{
    const struct bl_machine_device *md = &z->machine->device[d];

    if (md->driver_bytes)
        BL_TRY(bl_ledger_plan(&p->ledger, d, BL_MEM_DRIVER, md->driver_bytes));
    if (d && z->model->hp.n_expert)
        BL_TRY(plan_ring(p, z, d));
    if (!d && z->machine->n_devices > 1 && z->model->hp.n_layer_nextn)
        BL_TRY(bl_ledger_plan(&p->ledger, d, BL_MEM_DRAFT, 0));
    return BL_OK;
}

static enum bl_status fill_ledger(struct bl_plan *p, const struct sizing *z, uint16_t d)
{
    const struct bl_block_bytes *b = &z->blocks[d];
    BL_TRY(bl_ledger_plan(&p->ledger, d, BL_MEM_WEIGHTS, granted(z, d, b->weights) + b->mapped));
    if (b->slots)
        BL_TRY(bl_ledger_plan(&p->ledger, d, BL_MEM_SLOTS, granted(z, d, b->slots)));
    BL_TRY(bl_ledger_plan(&p->ledger, d, BL_MEM_STATE, granted(z, d, b->state) - b->slack));
    if (b->slack)
        BL_TRY(bl_ledger_plan(&p->ledger, d, BL_MEM_SLACK, b->slack));
    BL_TRY(bl_ledger_plan(&p->ledger, d, BL_MEM_COMPUTE,
                          granted(z, d, b->compute - b->scratch) + granted(z, d, b->scratch)));
    BL_TRY(bl_ledger_plan(&p->ledger, d, BL_MEM_PARAMS, granted(z, d, b->params)));
    BL_TRY(bl_ledger_plan(&p->ledger, z->machine->device[d].caps.visible_on_host ? 0 : d,
                          BL_MEM_PARAMS, granted(z, d, b->tables)));
    BL_TRY(plan_others(p, z, d));
    if (d != 0)
        return BL_OK;
    BL_TRY(bl_ledger_plan(&p->ledger, 0, BL_MEM_PARAMS, granted(z, 0, bl_params_bytes(p))));
    BL_TRY(
        bl_ledger_plan(&p->ledger, 0, BL_MEM_OUTPUT, granted(z, 0, bl_output_bytes(p, z->model))));
    return bl_ledger_plan(&p->ledger, 0, BL_MEM_HOST,
                          bl_gguf_heap_bytes(z->model->gguf) + bl_vocab_plan_bytes(z->model->gguf) +
                              BL_PROGRAM_CAP * z->program_heap +
                              bl_plan_expert_notes_bytes(p, z->model) +
                              bl_plan_stage_notes_bytes(p, z->model));
}

enum bl_status bl_plan_memory(struct bl_plan *p, const struct bl_model *m,
                              const struct bl_machine *machine, struct bl_block_bytes *blocks)
{
    struct sizing z = {p, m, machine, blocks, NULL, 0};
    uint32_t n_off =
        bl_gguf_n_tensors(m->gguf) > m->n_states ? bl_gguf_n_tensors(m->gguf) : m->n_states;
    uint64_t *off = bl_calloc(n_off + 1, sizeof *off);
    enum bl_status st = BL_ENOMEM;

    memset(blocks, 0, machine->n_devices * sizeof *blocks);
    bl_ledger_finish(&p->ledger);
    z.arena = bl_calloc(machine->n_devices, sizeof *z.arena);
    if (!off || !z.arena) {
        bl_fail(st, "out of memory while sizing the plan");
        goto out;
    }
    if ((st = bl_plan_buckets(p, size_program, &z)))
        goto out;
    for (uint16_t d = 0; d < machine->n_devices; d++) {
        if (!bl_plan_uses(p, d) && d) /* the host is always there: a step begins and ends on it */
            continue;
        blocks[d].window = bl_plan_window(machine, d);
        blocks[d].compute = z.arena[d] + blocks[d].scratch;
        blocks[d].params = bl_params_bytes(p);
        size_state(&z, d, off);
        size_weights(&z, d, off);
        note_excess(&z, d, BL_MEM_COMPUTE, z.arena[d]);
        note_excess(&z, d, BL_MEM_COMPUTE, blocks[d].scratch);
        note_excess(&z, d, BL_MEM_PARAMS, blocks[d].tables);
        if ((st = fill_ledger(p, &z, d)))
            goto out;
    }
out:
    free(z.arena);
    free(off);
    return st;
}

enum bl_status bl_plan_check_blocks(const struct bl_plan *p, const struct bl_machine *machine)
{
    const struct bl_excess *x = &p->ledger.excess;

    if (!x->bytes)
        return BL_OK;
    return bl_fail(BL_ENOFIT,
                   "%s cannot have %s for %s in one piece, its largest allocation is %s; put that "
                   "elsewhere, or lower -ub or -c",
                   machine->device[x->device].id, BL_SIZE(x->bytes),
                   bl_purpose_name((enum bl_purpose)x->purpose), BL_SIZE(x->most_bytes));
}

/* ---- print ---- */

/* "s 3-5", or " 3" */
static const char *range(uint32_t first, uint32_t last, char text[32])
{
    if (first == last)
        snprintf(text, 32, " %u", first);
    else
        snprintf(text, 32, "s %u-%u", first, last);
    return text;
}

static void print_run(const struct bl_plan *p, const struct bl_machine *machine, uint32_t first,
                      uint32_t last, void (*line)(void *, const char *), void *arg)
{
    char text[256], layers[32];
    int n = snprintf(text, sizeof text, "layer%s", range(first, last, layers));

    for (unsigned part = BL_PART_ATTN; part <= BL_PART_EXPERTS && n > 0 && (size_t)n < sizeof text;
         part++)
        n += snprintf(text + n, sizeof text - (size_t)n, "  %s %s", bl_part_name(part),
                      machine->device[bl_plan_device(p, (int)first, part)].id);
    line(arg, text);
}

static void print_ranges(const struct bl_plan *p, const struct bl_machine *machine,
                         void (*line)(void *, const char *), void *arg)
{
    char text[256], experts[32];

    for (uint32_t i = 0; i < p->n_ranges; i++) {
        const struct bl_expert_range *r = &p->range[i];
        snprintf(text, sizeof text, "layer %u  expert%s %s", r->layer,
                 range(r->first, r->first + r->n - 1, experts), machine->device[r->device].id);
        line(arg, text);
    }
}

/* Layers with as many on the same device in one line. */
static void print_slots(const struct bl_plan *p, const struct bl_machine *machine,
                        void (*line)(void *, const char *), void *arg)
{
    char text[256], layers[32];

    for (uint32_t i = 0, next; i < p->n_slot_sets; i = next) {
        const struct bl_slot_set *s = &p->slots[i];
        for (next = i + 1; next < p->n_slot_sets && p->slots[next].n == s->n &&
                           p->slots[next].device == s->device;)
            next++;
        snprintf(text, sizeof text, "layer%s  %u slot%s for experts on %s, %s",
                 range(s->layer, p->slots[next - 1].layer, layers), s->n, s->n == 1 ? "" : "s",
                 machine->device[s->device].id,
                 bl_expert_policy_name((enum bl_expert_policy)p->expert_policy));
        line(arg, text);
    }
}

void bl_plan_print(const struct bl_plan *p, const struct bl_model *m,
                   const struct bl_machine *machine, void (*line)(void *arg, const char *text),
                   void *arg)
{
    char text[256];
    uint32_t first = 0;

    snprintf(text, sizeof text, "%s  context %llu  ubatch %u", m->family->arch,
             (unsigned long long)p->ctx_tokens, p->ubatch_tokens);
    line(arg, text);
    for (uint32_t l = 1; l <= p->n_layers; l++)
        if (l == p->n_layers || memcmp(&p->slot[l * BL_N_PARTS], &p->slot[first * BL_N_PARTS],
                                       BL_N_PARTS * sizeof *p->slot)) {
            print_run(p, machine, first, l - 1, line, arg);
            first = l;
        }
    print_ranges(p, machine, line, arg);
    print_slots(p, machine, line, arg);
    snprintf(text, sizeof text, "embed %s  head %s",
             machine->device[bl_plan_device(p, -1, BL_PART_EMBED)].id,
             machine->device[bl_plan_device(p, -1, BL_PART_HEAD)].id);
    line(arg, text);
}
