/* SPDX-License-Identifier: MIT */
#include "engine_args.h"
#include "io.h"
#include "progress.h"
#include "projector.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define AT(member) offsetof(struct bl_engine_args, member)

/* A bit that names no CPU feature: a mask of it alone allows none of them. */
static const unsigned MASK_SCALAR = 1u << 31;

#define ROUND_WORDS "none|rows|index|all" /* enum bl_round_cache */
#define REWIND_HELP                                                                                \
    "keep enough to take back N tokens at any time, as drafts need: a copy of recurrent state "    \
    "and "                                                                                         \
    "a row of windows for each (default 0)"
#define ROPE_SCALINGS "none|linear|yarn"
#define EXPERT_POLICIES "off|fixed|lru"
static const char *const expert_policy_name[] = {"off", "fixed", "lru"};
static const char *const rope_scaling_name[] = {"none", "linear", "yarn"};

static const struct bl_arg model_rows[] = {
    {"-m,--model", BL_ARG_TEXT, AT(model), "FILE", .instead = BL_INSTEAD_OF_MODEL, .required = true,
     .help = "GGUF file; of a split model, any of its files"},
    {"-mm,--mmproj", BL_ARG_TEXT, AT(projector), "FILE",
     .help = "a projector for pictures or sound; none is supported, the file is named and refused"},
};

static const struct bl_arg engine_rows[] = {
    {"--plan", BL_ARG_TEXT, AT(plan_file), "FILE",
     .help = "place everything as this plan of 'ballast plan -o FILE' says; its context, batches, "
             "types and "
             "threads hold where no option is given, and options that ask for other memory are "
             "refused"},
    {"-c,--ctx-size", BL_ARG_INT, AT(ctx_tokens), "N|max", 0, 1 << 30, .words_for = "max",
     .help =
         "context, in tokens (default: what the model was trained with, at most 4096); max: the "
         "longest that fits, at most what it was trained with"},
    {"-b,--batch-size", BL_ARG_INT, AT(batch_tokens), "N", 1, 1 << 20,
     .help = "most tokens of one step (default 2048)"},
    {"-ub,--ubatch-size", BL_ARG_INT, AT(ubatch_tokens), "N", 1, 1 << 20,
     .help = "tokens computed at a time within a step (default 512)"},
    {"-ctk,--cache-type-k", BL_ARG_TEXT, AT(type_k), "TYPE",
     .help =
         "type of cached keys, such as f16, f32, q8_0 (default f16; f32 with --exact); auto: f16, "
         "unless only a smaller one fits or q8_0 gains much"},
    {"-ctv,--cache-type-v", BL_ARG_TEXT, AT(type_v), "TYPE",
     .help = "type of cached values, likewise"},
    {"--expert-stats", BL_ARG_TEXT, AT(expert_file), "FILE", .out = BL_ARG_OUT_FILE,
     .goes_on = true,
     .help = "count how often experts are used: go on from FILE, if there is one, and write it at "
             "the end; plan places the most used by it"},
    {"--expert-policy", BL_ARG_CHOICE, AT(expert_policy), EXPERT_POLICIES,
     .help = "which experts sit in a plan's slots: the last used (lru), always the most used that "
             "are known (fixed), none (off) (default: as the plan says)"},
    {"--rewind", BL_ARG_INT, AT(rewind_tokens), "N", 0, 1 << 16, .help = REWIND_HELP},
    {"--round-cache", BL_ARG_CHOICE, AT(round_cache), ROUND_WORDS,
     .help = "deepseek4: round what is cached as in its training: the rows attended to (8 bits), "
             "those of the index (4 bits), or both (default: none)"},
    {"--no-mmap", BL_ARG_FLAG, AT(no_mmap),
     .help = "read the weights into memory instead of mapping the file"},
    {"--mlock", BL_ARG_FLAG, AT(mlock), .help = "keep the weights from being paged out"},
    {"--exact", BL_ARG_FLAG, AT(exact),
     .help = "the float reference: decoded weights, float activations and cache; slow"},
};

static const struct bl_arg state_rows[] = {
    {"-c,--ctx-size", BL_ARG_INT, AT(ctx_tokens), "N", 0, 1 << 30,
     .help = "for a context of N tokens (default: what the model was trained with, at most 4096)"},
    {"-ub,--ubatch-size", BL_ARG_INT, AT(ubatch_tokens), "N", 1, 1 << 20,
     .help = "for N tokens computed at a time (default 512)"},
    {"-ctk,--cache-type-k", BL_ARG_TEXT, AT(type_k), "TYPE",
     .help = "type of cached keys, such as f16, f32, q8_0 (default f16)"},
    {"-ctv,--cache-type-v", BL_ARG_TEXT, AT(type_v), "TYPE",
     .help = "type of cached values, likewise"},
    {"--rewind", BL_ARG_INT, AT(rewind_tokens), "N", 0, 1 << 16, .help = REWIND_HELP},
};

static const struct bl_arg rope_rows[] = {
    {"--rope-scaling", BL_ARG_CHOICE, AT(rope_scaling), ROPE_SCALINGS,
     .help = "how positions are stretched over a longer context (default: as the file says)"},
    {"--rope-scale", BL_ARG_FLOAT, AT(rope_scale), "N", 1e-3, 1e6,
     .instead = BL_INSTEAD_OF_ROPE_SCALE, .help = "by how much: 4 for a context 4 times as long"},
    {"--rope-freq-scale", BL_ARG_FLOAT, AT(rope_freq_scale), "N", 1e-6, 1e3,
     .instead = BL_INSTEAD_OF_ROPE_SCALE,
     .help = "the same as 1/N: 0.25 for a context 4 times as long"},
    {"--rope-freq-base", BL_ARG_FLOAT, AT(rope_freq_base), "N", 2, 1e15,
     .help = "base of the rotations' frequencies"},
    {"--yarn-orig-ctx", BL_ARG_INT, AT(yarn_orig_ctx), "N", 0, 1 << 30,
     .help = "context that the model was trained with before it was stretched (default 0: as the "
             "file says)"},
};

static const struct bl_arg machine_rows[] = {
    {"-t,--threads", BL_ARG_INT, AT(threads), "N", 0, 1024,
     .help = "threads for steps of few tokens (default 0: physical cores of one memory node, "
             "limited by affinity and cgroup quota)"},
    {"-tb,--threads-batch,--threads-prefill", BL_ARG_INT, AT(threads_prefill), "N", 0, 1024,
     .help = "threads for steps of many tokens (default: as -t; without -t all physical cores)"},
    {"--calibrate", BL_ARG_FLAG, AT(calibrate),
     .help =
         "choose threads by timing how fast memory is read, which takes a quarter of a second "
         "(default: on several memory nodes, with more than 8 cores, or when cores are shared)"},
    {"--no-calibrate", BL_ARG_FLAG, AT(no_calibrate), .help = "never do that"},
    {"--no-bind", BL_ARG_FLAG, AT(no_bind),
     .help = "leave threads and memory wherever the system puts them"},
    {"--cpu-mask", BL_ARG_INT, AT(cpu_mask), "MASK", 0, 4294967295.0,
     .help = "CPU features that kernels may use: " BL_CPU_MASKS_HELP " (default: all there are)"},
    {"--machine", BL_ARG_TEXT, AT(machine_file), "FILE",
     .help = "this machine as 'ballast probe -o FILE' wrote it; info also shows other machines, "
             "those of 'info --machines' by name"},
    {"--device-set", BL_ARG_TEXTS, AT(device_set), "DEVICE.MEMBER=VALUE",
     .help = "take one figure to be another, such as cpu0.usable=8GiB or cpu0.read=40GB/s; may be "
             "repeated"},
    {"--devices", BL_ARG_TEXT, AT(devices), "NAME,...",
     .help = "devices besides the CPU, which is always the first: sim0:12GiB@16GB/s is simulated, "
             "with that memory and link; +stuck=40 makes its 40th command never end, likewise "
             "alloc, copy, submit, lost and corrupt, +memory=8GiB has less than it promises; "
             "vulkan0, cuda0, hip0 or pci-0000:01:00.0 is a card, vulkan0:shared one in the host's "
             "memory, all every card that drivers tell of"},
    {"--watchdog", BL_ARG_INT, AT(watchdog_s), "SECONDS", 0, 1 << 20,
     .help = "give up a step when no device finishes anything for so long (default 0: 120, 3600 "
             "with the CPU alone)"},
    {"--topology", BL_ARG_TEXT, AT(topology), "TEXT",
     .help = "count cores of this hwloc XML file or synthetic machine (\"pack:2 core:8 pu:2\") "
             "instead of the real one"},
    {"--cgroup-root", BL_ARG_TEXT, AT(cgroup_root), "DIR",
     .help = "read cgroup limits below DIR, which holds proc/ and sys/ as / does"},
};

static const struct bl_arg message_rows[] = {
    {"--progress", BL_ARG_CHOICE, AT(progress), BL_PROGRESS_WORDS,
     .help = "how loading is shown on standard error; json makes every line there a JSON object"},
    {"--trace", BL_ARG_TEXT, AT(trace), "FILE", .out = BL_ARG_OUT,
     .help = "write what each device and link did when, for ui.perfetto.dev, and print a line that "
             "sums it up"},
    {"-v,--verbose", BL_ARG_FLAG, AT(verbose),
     .help = "print threads, kernels, and memory planned and measured"},
};

void bl_engine_args_init(struct bl_engine_args *a)
{
    memset(a, 0, sizeof *a);
    a->cpu_mask = -1;
    a->rope_scaling = -1;
    a->round_cache = -1;
    a->expert_policy = -1;
    bl_rule_args_init(&a->rules);
}

struct bl_arg_group bl_model_group(struct bl_engine_args *a)
{
    return (struct bl_arg_group){"Model", model_rows, COUNT(model_rows), a};
}

struct bl_arg_group bl_engine_group(struct bl_engine_args *a)
{
    return (struct bl_arg_group){"Engine", engine_rows, COUNT(engine_rows), a};
}

struct bl_arg_group bl_state_group(struct bl_engine_args *a)
{
    return (struct bl_arg_group){"Cached state", state_rows, COUNT(state_rows), a};
}

struct bl_arg_group bl_rope_group(struct bl_engine_args *a)
{
    return (struct bl_arg_group){"Rope", rope_rows, COUNT(rope_rows), a};
}

struct bl_arg_group bl_machine_group(struct bl_engine_args *a)
{
    return (struct bl_arg_group){"Machine", machine_rows, COUNT(machine_rows), a};
}

struct bl_arg_group bl_message_group(struct bl_engine_args *a)
{
    return (struct bl_arg_group){"Messages", message_rows, COUNT(message_rows), a};
}

/* Steps are as large as the plan's; whether options agree with it is for the library to judge. */
static int fill_from_plan(struct bl_command *c, struct bl_engine_args *a)
{
    struct bl_plan_settings s;
    const enum bl_status st = bl_plan_settings_read(&s, a->plan_file);

    if (st)
        return bl_report_status(&c->report, BL_STAGE_OPEN, st);
    a->batch_tokens = a->batch_tokens ? a->batch_tokens : s.batch_tokens;
    a->ubatch_tokens = a->ubatch_tokens ? a->ubatch_tokens : s.ubatch_tokens;
    a->asked_ubatch = a->ubatch_tokens;
    return BL_EXIT_OK;
}

int bl_engine_args_check(struct bl_command *c, struct bl_engine_args *a)
{
    c->report.json = a->progress == BL_PROGRESS_JSON;
    if (a->projector)
        return bl_projector_refuse(&c->report, a->projector);
    if (a->cpu_mask > 0 && a->cpu_mask & ~(int64_t)BL_CPU_MASK_ALL)
        return bl_args_fail(c,
                            "--cpu-mask 0x%" PRIx64
                            " has bits that mean nothing here; there are " BL_CPU_MASKS_HELP,
                            (uint64_t)a->cpu_mask);
    if (a->calibrate && a->no_calibrate)
        return bl_args_fail(c, "--calibrate and --no-calibrate contradict each other");
    if (a->batch_tokens && a->ubatch_tokens > a->batch_tokens)
        return bl_args_fail(c, "-ub %" PRId64 " is more than -b %" PRId64, a->ubatch_tokens,
                            a->batch_tokens);
    if (a->plan_file)
        return fill_from_plan(c, a);
    a->asked_ubatch = a->ubatch_tokens;
    /* One of the two alone moves the other's default. */
    int64_t b = a->batch_tokens ? a->batch_tokens : BL_BATCH_TOKENS;
    int64_t ub = a->ubatch_tokens ? a->ubatch_tokens : BL_UBATCH_TOKENS;
    a->batch_tokens = a->batch_tokens ? b : b > ub ? b : ub;
    a->ubatch_tokens = a->ubatch_tokens ? ub : ub < b ? ub : b;
    return BL_EXIT_OK;
}

const char *bl_engine_args_policy(const struct bl_engine_args *a)
{
    return a->expert_policy < 0 ? NULL : expert_policy_name[a->expert_policy];
}

unsigned bl_engine_args_mask(const struct bl_engine_args *a)
{
    return a->cpu_mask < 0 ? 0 : a->cpu_mask == 0 ? MASK_SCALAR : (unsigned)a->cpu_mask;
}

int bl_engine_args_machine_code(const struct bl_report *r, enum bl_status st)
{
    if (st)
        bl_report_error(r, "%s", bl_error());
    return st == BL_OK                       ? BL_EXIT_OK
           : st == BL_EINVAL || st == BL_EIO ? BL_EXIT_USAGE
                                             : BL_EXIT_FAILURE;
}

struct bl_options bl_engine_args_machine(const struct bl_engine_args *a)
{
    return (struct bl_options){.topology = a->topology,
                               .cgroup_root = a->cgroup_root,
                               .machine_file = a->machine_file,
                               .device_set = a->device_set.item,
                               .devices = a->devices,
                               .n_device_set = (uint32_t)a->device_set.n,
                               .threads = (uint32_t)a->threads,
                               .threads_prefill = (uint32_t)a->threads_prefill,
                               .no_bind = a->no_bind,
                               .calibrate = a->calibrate,
                               .no_calibrate = a->no_calibrate,
                               .cpu_mask = a->cpu_mask > 0 ? (uint32_t)a->cpu_mask : 0,
                               .scalar = a->cpu_mask == 0};
}

int bl_engine_args_describe(const struct bl_report *r, const struct bl_engine_args *a,
                            void (*line)(void *arg, const char *text), void *arg)
{
    const struct bl_options opt = bl_engine_args_machine(a);
    enum bl_status st = bl_machine_describe(line, arg, &opt);

    if (st == BL_OK && !a->machine_file) /* kernels are this processor's */
        st = bl_cpu_describe(line, arg, bl_engine_args_mask(a));
    return bl_engine_args_machine_code(r, st);
}

static void note_line(void *report, const char *text)
{
    bl_report_note(report, "%s", text);
}

void bl_engine_args_memory(const struct bl_report *r, const struct bl_engine *engine)
{
    struct bl_memory_line m;
    uint64_t planned = 0, measured = 0;

    bl_report_note(r, "%-8s %-10s %16s %16s", "memory", "bytes", "planned", "measured");
    for (uint32_t i = 0; i < bl_engine_memory(engine, i, &m); i++) {
        bl_report_note(r, "%-8s %-10s %16" PRIu64 " %16" PRIu64, m.device, m.purpose,
                       m.planned_bytes, m.measured_bytes);
        planned += m.planned_bytes;
        measured += m.measured_bytes;
    }
    bl_report_note(r, "%-8s %-10s %16" PRIu64 " %16" PRIu64, "total", "", planned, measured);
}

uint64_t bl_engine_args_ctx(const struct bl_engine_args *a)
{
    return a->ctx_tokens < 0 ? BL_CTX_MAX : (uint64_t)a->ctx_tokens;
}

static void say_ctx(const struct bl_report *r, const struct bl_engine *engine)
{
    const uint64_t ctx = bl_engine_ctx(engine), trained = bl_engine_trained_ctx(engine);

    if (ctx < trained)
        bl_report_note(r,
                       "context %" PRIu64 " tokens: the longest that fits, of %" PRIu64
                       " that the model was trained with",
                       ctx, trained);
    else
        bl_report_note(r, "context %" PRIu64 " tokens: all that the model was trained with", ctx);
}

int bl_engine_args_experts(const struct bl_report *r, const struct bl_engine_args *a,
                           const struct bl_engine *engine)
{
    char size[BL_SIZE_TEXT];
    struct bl_expert_use u;

    const bool any = a->verbose && bl_engine_expert_use(engine, &u) && u.uses;
    const double hits = any ? 100.0 * (double)u.hits / (double)u.uses : 0;
    if (any && u.slots)
        bl_report_note(r, "experts: %.1f %% of %" PRIu64 " uses in slots; %" PRIu64 " came in, %s",
                       hits, u.uses, u.moves, bl_size_text(u.moved_bytes, size));
    else if (any)
        bl_report_note(r, "experts: %.1f %% of %" PRIu64 " uses on cards", hits, u.uses);
    const enum bl_status st =
        a->expert_file ? bl_engine_save_experts(engine, a->expert_file) : BL_OK;
    return st ? bl_report_status(r, BL_STAGE_RUN, st) : BL_EXIT_OK;
}

int bl_engine_args_trace(const struct bl_report *r, const struct bl_engine_args *a,
                         const struct bl_engine *engine)
{
    char *text;
    size_t n;

    if (!a->trace || !engine)
        return BL_EXIT_OK;
    const enum bl_status st = bl_engine_trace_json(engine, &text, &n);
    if (st)
        return bl_report_status(r, BL_STAGE_RUN, st);
    const bool good = bl_out_file_save(r, a->trace, text, n);
    free(text);
    bl_engine_trace_describe(engine, note_line, (void *)(uintptr_t)r);
    return good ? BL_EXIT_OK : BL_EXIT_FAILURE;
}

/* Only of verbs that catch signals before. */
static bool interrupted(void *unused)
{
    (void)unused;
    return bl_interrupt_code() != 0;
}

int bl_engine_args_open(struct bl_report *r, const struct bl_engine_args *a, struct bl_engine **out)
{
    struct bl_progress_view view;
    struct bl_placement_rules rules;
    struct bl_options opt = {
        .topology = a->topology,
        .cgroup_root = a->cgroup_root,
        .machine_file = a->machine_file,
        .plan_file = a->plan_file,
        .rules = bl_rule_args_given(&a->rules, &rules) ? &rules : NULL,
        .device_set = a->device_set.item,
        .devices = a->devices,
        .watchdog_s = (uint32_t)a->watchdog_s,
        .n_device_set = (uint32_t)a->device_set.n,
        .ctx_tokens = bl_engine_args_ctx(a),
        .batch_tokens = (uint32_t)a->batch_tokens,
        .ubatch_tokens = (uint32_t)a->asked_ubatch,
        .out_tokens = a->out_tokens,
        .threads = (uint32_t)a->threads,
        .threads_prefill = (uint32_t)a->threads_prefill,
        .no_bind = a->no_bind,
        .calibrate = a->calibrate,
        .no_calibrate = a->no_calibrate,
        .cpu_mask = a->cpu_mask > 0 ? (uint32_t)a->cpu_mask : 0,
        .scalar = a->cpu_mask == 0,
        .exact = a->exact,
        .no_mmap = a->no_mmap,
        .mlock = a->mlock,
        .type_k = a->type_k,
        .type_v = a->type_v,
        .rewind_tokens = (uint32_t)a->rewind_tokens,
        .round_kv = a->round_cache == BL_ROUND_ROWS || a->round_cache == BL_ROUND_ALL,
        .round_index = a->round_cache == BL_ROUND_INDEX || a->round_cache == BL_ROUND_ALL,
        .rope_scaling = a->rope_scaling < 0 ? NULL : rope_scaling_name[a->rope_scaling],
        .rope_freq_base = (float)a->rope_freq_base,
        .rope_freq_scale = (float)(a->rope_scale > 0 ? 1 / a->rope_scale : a->rope_freq_scale),
        .yarn_orig_ctx = (uint32_t)a->yarn_orig_ctx,
        .expert_file = a->expert_file,
        .expert_policy = bl_engine_args_policy(a),
        .progress = bl_progress_update,
        .progress_arg = &view,
        .stop = interrupted,
    };

    if (a->verbose) { /* threads and memory are told while the machine is looked at */
        int code =
            bl_engine_args_machine_code(r, bl_cpu_describe(note_line, r, bl_engine_args_mask(a)));
        if (code)
            return code;
    }
    enum bl_log_level most = a->verbose ? BL_LOG_INFO : BL_LOG_WARN;
    bl_progress_begin(&view, r, (enum bl_progress_mode)a->progress);
    bl_log_set(bl_progress_log, &view, most);
    enum bl_status st = bl_open(out, a->model, &opt);
    bl_log_set(bl_report_log, r, most);
    bl_progress_end(&view, st == BL_OK);
    if (!st && a->ctx_tokens < 0)
        say_ctx(r, *out);
    if (!st && a->trace && (st = bl_engine_trace(*out, true))) {
        bl_close(*out);
        *out = NULL;
    }
    return st ? bl_report_status(r, BL_STAGE_OPEN, st) : BL_EXIT_OK;
}
