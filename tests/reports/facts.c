/* SPDX-License-Identifier: MIT */
#include "facts_text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Rows of the collection that its README explains by what the model does not describe: paging,
 * throttling, figures that were assumed, first ports. They are predicted and printed, not scored.
 */
static const char *const outliers[] = {
    "gpu1-cpu-076",   "gpu1-cpu-077",   "gpu1-cpu-078",   "gpu1-cpu-049",   "cpu-arm-012",
    "cpu-arm-013",    "gpu1-cpu-083",   "mac-043",        "mac-044",        "gpu1-full-027",
    "gpuN-full-009",  "gpu1-full-018",  "cpu-x86-1s-040", "gpu1-full-026",  "gpuN-full-010",
    "gpu1-cpu-067",   "cpu-x86-1s-041", "cpu-x86-1s-005", "cpu-x86-1s-006", "cpu-x86-1s-007",
    "cpu-x86-1s-008", "cpu-x86-1s-009", "cpu-x86-1s-010", "cpu-x86-1s-011", "cpu-x86-1s-012",
    "gpu1-cpu-054",   "cpu-arm-045",    "cpu-arm-048",    "gpu1-cpu-080",
};

/* ---- model ---- */

static bool is_alias(const char *aliases, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = aliases; (at = strstr(at, name)); at += n)
        if ((at == aliases || at[-1] == ' ' || at[-1] == ';') && (!at[n] || at[n] == ';'))
            return true;
    return false;
}

static bool find_model(const struct facts *f, const char *name, size_t *row)
{
    for (size_t i = 0; i < f->models.n_rows; i++)
        if (!strcmp(csv_get(&f->models, i, "model"), name) ||
            is_alias(csv_get(&f->models, i, "aliases"), name)) {
            *row = i;
            return true;
        }
    return false;
}

static enum bl_cost_quant quant_of(const char *q, double bits)
{
    static const struct {
        const char *word;
        enum bl_cost_quant quant;
    } words[] = {{"MXFP4", BL_COST_NIBBLE}, {"IQ1", BL_COST_CODEBOOK}, {"IQ2_K", BL_COST_LOWBIT},
                 {"IQ2", BL_COST_CODEBOOK}, {"IQ3", BL_COST_CODEBOOK}, {"q2-", BL_COST_CODEBOOK},
                 {"Q2_K", BL_COST_LOWBIT},  {"Q3_K", BL_COST_LOWBIT},  {"IQ4", BL_COST_NIBBLE},
                 {"IQ5", BL_COST_NIBBLE},   {"Q4", BL_COST_NIBBLE},    {"q4", BL_COST_NIBBLE},
                 {"IQ6", BL_COST_BYTE},     {"Q6", BL_COST_BYTE}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (has(q, words[i].word))
            return words[i].quant;
    return bits > 12    ? BL_COST_HALF
           : bits > 5.5 ? BL_COST_BYTE
           : bits > 3.4 ? BL_COST_NIBBLE
                        : BL_COST_LOWBIT;
}

static enum bl_cost_quant by_bits(double bits)
{
    return bits > 10    ? BL_COST_HALF
           : bits > 5.5 ? BL_COST_BYTE
           : bits > 3.4 ? BL_COST_NIBBLE
                        : BL_COST_LOWBIT;
}

/* Bytes of a file that are not routed experts. Files of few bits keep more of them for the rest;
 * logs that name the split are believed. */
static double rest_bytes(const struct facts *f, size_t row, size_t model, double file)
{
    const char *notes = csv_get(&f->reports, row, "notes"),
               *name = csv_get(&f->models, model, "model");
    const char *quant = csv_get(&f->reports, row, "quant");
    double all = csv_number(&f->models, model, "file_params_b") * 1e9;
    double routed = csv_number(&f->models, model, "routed_params_b") * 1e9, rest = all - routed;
    if (routed <= 0)
        return file;
    if (has(name, "V4-Flash"))
        return has(quant, "Q4_K_XL") ? rest * 1.25 : fmin(file * 0.3, rest * 1.27);
    if (has(name, "gpt-oss"))
        return fmax(file - routed * 4.25 / 8, rest * 0.55);
    double logged = number_after(notes, "CUDA0 ") > 0 ? number_before(notes, " MiB weights") : 0;
    if (!logged && csv_number(&f->reports, row, "experts_on_gpu_fraction") == 0 &&
        has(notes, "CUDA0 "))
        logged = number_before(notes, " MiB");
    if (logged > 3000 && logged < 30000)
        return logged * 1048576;
    double bits = file * 8 / all;
    if (has(name, "R1") && (has(quant, "_R4") || has(quant, "IQ")))
        return rest * (bits > 2.2 ? 1.09 : 0.7);
    return rest * fmax(bits, bits < 4.6 ? 4.9 : bits) / 8;
}

static void read_layers(struct bl_cost_run *r, const struct csv *m, size_t i)
{
    const char *attention = csv_get(m, i, "attention"), *name = csv_get(m, i, "model");
    double layers = csv_number(m, i, "layers"), delta = number_before(attention, "gated-delta");
    bool mla = !strcmp(csv_get(m, i, "head_dim"), "MLA");
    enum bl_cost_kind kind = has(name, "V4-Flash") ? BL_COST_V4 : mla ? BL_COST_MLA : BL_COST_GQA;
    r->layers[kind] = layers - delta;
    r->layers[BL_COST_DELTA] = delta;
    r->moe_layers =
        csv_number(m, i, "experts") > 0 ? layers - either(csv_number(m, i, "dense_layers"), 0) : 0;
    r->heads = csv_number(m, i, "q_heads");
    r->experts = either(csv_number(m, i, "experts"), 0);
    r->experts_per_token = either(csv_number(m, i, "experts_per_token"), 0);
    r->expert_ffn = either(csv_number(m, i, "expert_ffn"), 0);
    double full = has(name, "gpt-oss") ? layers / 2 : layers - delta;
    double head_dim = either(csv_number(m, i, "head_dim"), 128);
    r->attend_macs_per_tok = full * r->heads * (mla ? 192 + 128 : 2 * head_dim);
    if (kind == BL_COST_V4) {
        /* Entries of 512 for 64 heads, keys and values: one for each 4 tokens, scored by 64 indexer
         * heads of 128 and of which 512 are read, in 21 layers; one for each 128 tokens in 20; 128
         * tokens in all. */
        r->attend_macs_per_tok = 21 * 64 * 128 / 4.0 + 20 * 64 * 1024 / 128.0;
        r->attend_fixed_macs = (layers * 128 + 21 * 512.0) * 64 * 1024;
    }
    if (has(name, "gpt-oss"))
        r->attend_fixed_macs = layers / 2 * 128 * r->heads * 2 * head_dim;
}

static void read_cache(struct bl_cost_run *r, const struct csv *m, size_t i, const char *kv)
{
    double bytes = has(kv, "q8") ? 0.53125 : has(kv, "q4") ? 0.28125 : 1;
    if (r->layers[BL_COST_V4] > 0)
        return; /* a few bytes; what costs is choosing among entries */
    r->cache_bytes_per_tok = csv_number(m, i, "kv_read_bytes_per_ctx_token_f16") * bytes;
    r->cache_fixed_bytes = either(csv_number(m, i, "kv_read_window_bytes_f16"), 0) * bytes;
    r->state_bytes = either(csv_number(m, i, "state_bytes_f32"), 0) * 2;
}

/* ---- the run ---- */

static bool read_engine(struct bl_cost_run *r, const char *e)
{
    r->engine = !strncmp(e, "ds4", 3)     ? BL_COST_DS4
                : has(e, "ik_llama")      ? BL_COST_IK
                : has(e, "ktransformers") ? BL_COST_KTRANSFORMERS
                                          : BL_COST_LLAMACPP;
    return !strcmp(e, "llama.cpp") || !strcmp(e, "ik_llama.cpp") || !strcmp(e, "ds4");
}

static void read_backend(struct bl_cost_run *r, const char *b, const char *pcie, const char *gpus)
{
    r->backend = has(b, "CUDA")     ? BL_COST_CUDA
                 : has(b, "ROCm")   ? BL_COST_ROCM
                 : has(b, "Vulkan") ? BL_COST_VULKAN
                 : has(b, "Metal")  ? BL_COST_METAL
                                    : BL_COST_CPU;
    r->unified = has(pcie, "unified") || has(gpus, "unified");
}

static void read_step(struct bl_cost_run *r, const struct csv *c, size_t row)
{
    double depth = either(csv_number(c, row, "context_depth"), 0),
           n = csv_number(c, row, "n_prompt");
    bool server = depth > 0 && fabs(depth - n) < 0.02 * depth,
         sweep = r->engine == BL_COST_DS4 && depth > 0;
    r->prompt = either(n, depth > 0 && !sweep ? depth : 512);
    r->ubatch = either(csv_number(c, row, "ubatch"), r->engine == BL_COST_DS4 ? 2048 : 512);
    r->depth = depth + either(csv_number(c, row, "n_gen"), 128) / 2;
    r->prompt_depth = server  ? depth / 2
                      : sweep ? fmax(depth - r->prompt / 2, depth / 2)
                              : depth + r->prompt / 2;
    if (!isfinite(n) && depth > 0)
        r->prompt_depth = depth / 2;
}

static void read_loads(struct bl_cost_run *r, const struct facts *f, size_t row, size_t m,
                       double on_gpu)
{
    double file = csv_number(&f->reports, row, "weight_gib") * 1073741824;
    double all = csv_number(&f->models, m, "file_params_b") * 1e9;
    double routed = either(csv_number(&f->models, m, "routed_params_b"), 0) * 1e9;
    double active = either(csv_number(&f->models, m, "routed_active_params_b"), 0) * 1e9;
    double other = csv_number(&f->models, m, "other_read_params_b") * 1e9;
    double rest = rest_bytes(f, row, m, file), per_rest = rest / (all - routed);
    double per_routed = routed > 0 ? (file - rest) / routed : 0;
    const char *placement = csv_get(&f->reports, row, "placement");
    double fewer = number_after(placement, "-ser ");
    if (fewer > 0) {
        active *= fewer / r->experts_per_token;
        r->experts_per_token = fewer;
    }
    enum bl_cost_where home = r->backend == BL_COST_CPU ? BL_COST_IN_RAM : BL_COST_ON_GPU;
    r->dense[home] = (struct bl_cost_load){other * per_rest, other};
    for (int w = 0; w < BL_N_COST_PLACES; w++) {
        double share = home == BL_COST_IN_RAM ? w == BL_COST_IN_RAM
                       : w == BL_COST_ON_GPU  ? on_gpu
                                              : 1 - on_gpu;
        r->expert[w] = (struct bl_cost_load){active * per_routed * share, active * share};
        r->held[w] = (struct bl_cost_load){routed * per_routed * share, routed * share};
    }
    const char *quant = csv_get(&f->reports, row, "quant");
    r->dense_quant = routed > 0 ? by_bits(per_rest * 8) : quant_of(quant, per_rest * 8);
    r->expert_quant = routed > 0 ? quant_of(quant, per_routed * 8) : r->dense_quant;
    if (per_routed * 8 > 3.4 && r->expert_quant <= BL_COST_LOWBIT)
        r->expert_quant = BL_COST_NIBBLE;
}

static void name_machine(struct report *out, const char *cpu, const char *gpus)
{
    const char *from = *cpu && *cpu != '(' && !has(cpu, "host") ? cpu : *gpus ? gpus : cpu;
    size_t n = chip_name(&from);
    snprintf(out->machine, sizeof out->machine, "%.*s", (int)(n ? n : strlen(from)), from);
}

static void name_class(struct report *out)
{
    size_t n = strlen(out->id);
    while (n > 0 && (isdigit((unsigned char)out->id[n - 1]) || out->id[n - 1] == '-'))
        n--;
    snprintf(out->class, sizeof out->class, "%.*s", (int)n, out->id);
}

static const char *why_unknown(const struct report *out, double file, double on_gpu, bool model,
                               enum report_phase phase)
{
    const struct bl_cost_run *r = &out->run;
    bool gpu = r->backend != BL_COST_CPU,
         by_cpu = !gpu || (on_gpu < 1 && (phase == REPORT_DECODE || !isfinite(r->stream_from)));
    if (!model)
        return "model not in the table";
    if (!isfinite(file))
        return "weight size not stated";
    if (gpu && !isfinite(on_gpu) && r->experts > 0)
        return "placement not stated";
    if (gpu && (!r->n_gpus || !(out->gpu[0].bps > 0)))
        return "GPU not stated";
    if (by_cpu && !(r->cpu.domain_bps > 0))
        return "RAM bandwidth not stated";
    return NULL;
}

static const char *why_unscored(const struct report *out, bool engine, const char *speculation)
{
    if (!engine)
        return "engine not scored";
    if (strcmp(speculation, "none") && *speculation)
        return "speculative";
    if (!strncmp(out->class, "cluster", 7) || has(out->class, "-cluster"))
        return "cluster";
    for (size_t i = 0; i < sizeof outliers / sizeof *outliers; i++)
        if (!strcmp(out->id, outliers[i]))
            return "outlier";
    return NULL;
}

/* ik_llama.cpp can multiply codebook types with interleaved rows on GPUs since June 2025; rows that
 * it interleaves when loading it cannot. */
static bool r4_on_gpu(const char *quant, const char *date)
{
    return has(quant, "IQ") && has(quant, "_R4") && strcmp(date, "2025-06") >= 0;
}

void report_read(struct report *out, const struct facts *f, size_t row)
{
    const struct csv *c = &f->reports;
    struct bl_cost_run *r = &out->run;
    *out = (struct report){.id = csv_get(c, row, "id"), .source = csv_get(c, row, "source")};
    out->measured[REPORT_DECODE] = csv_number(c, row, "tg_tok_s");
    out->measured[REPORT_PREFILL] = csv_number(c, row, "pp_tok_s");
    bool engine = read_engine(r, csv_get(c, row, "engine"));
    read_backend(r, csv_get(c, row, "backend"), csv_get(c, row, "pcie"), csv_get(c, row, "gpus"));
    name_machine(out, csv_get(c, row, "cpu"), csv_get(c, row, "gpus"));
    name_class(out);
    report_read_cpu(out, f, row);
    if (r->backend != BL_COST_CPU)
        report_read_gpus(out, f, row);
    read_step(r, c, row);
    const char *placement = csv_get(c, row, "placement"), *quant = csv_get(c, row, "quant");
    r->repacked =
        r->engine == BL_COST_IK &&
        (has(quant, "_R4") || has(placement, "pre-packed") ||
         (has(placement, "-rtr") && !has(placement, "-rtr 0") && !has(placement, "no -rtr")));
    r->tensor_parallel = has(placement, "tensor parallel");
    size_t m = 0;
    bool model = find_model(f, csv_get(c, row, "model"), &m);
    double on_gpu = csv_number(c, row, "experts_on_gpu_fraction");
    if (model) {
        read_layers(r, &f->models, m);
        read_cache(r, &f->models, m, csv_get(c, row, "kv_type"));
        read_loads(r, f, row, m, isfinite(on_gpu) ? on_gpu : 1);
    }
    r->stream_from =
        r->engine == BL_COST_LLAMACPP ? 32
        : r->engine == BL_COST_IK && (!r->repacked || r4_on_gpu(quant, csv_get(c, row, "date")))
            ? 0
            : INFINITY;
    double file = csv_number(c, row, "weight_gib");
    for (int p = 0; p < N_REPORT_PHASES; p++)
        out->unknown[p] = why_unknown(out, file, on_gpu, model, p);
    out->excluded = why_unscored(out, engine, csv_get(c, row, "spec_decoding"));
}
