/* SPDX-License-Identifier: MIT */
#include "facts_text.h"

#include <stdio.h>

static bool same_chip(const char *a, const char *b)
{
    size_t n = chip_name(&a), m = chip_name(&b);
    return n > 0 && n == m && !strncmp(a, b, n);
}

/* The machine of that very description, else one with the same chip. */
static bool find_cpu(const struct facts *f, const char *cpu, size_t *row, bool *exact)
{
    for (int loose = 0; loose < 2; loose++)
        for (size_t i = 0; i < f->hardware.n_rows; i++) {
            const char *device = csv_get(&f->hardware, i, "device");
            if (strncmp(csv_get(&f->hardware, i, "kind"), "CPU", 3) != 0 ||
                !*csv_get(&f->hardware, i, "isa") ||
                !(loose ? same_chip(device, cpu) : !strcmp(device, cpu)))
                continue;
            *row = i;
            *exact = !loose;
            return true;
        }
    return false;
}

/* By family, where no table knows the chip. */
static enum bl_cost_isa guess_isa(const char *cpu)
{
    static const struct {
        const char *word;
        enum bl_cost_isa isa;
    } families[] = {
        {"Apple", BL_COST_APPLE},    {"Graviton", BL_COST_NEON},    {"Neoverse", BL_COST_NEON},
        {"Cobalt", BL_COST_NEON},    {"Ampere", BL_COST_NEON},      {"Grace", BL_COST_NEON},
        {"Turin", BL_COST_WIDE},     {"Genoa", BL_COST_VNNI},       {"Ryzen 9 9", BL_COST_WIDE},
        {"Ryzen 7 9", BL_COST_WIDE}, {"Ryzen 9 7", BL_COST_VNNI},   {"Ryzen 7 7", BL_COST_VNNI},
        {"Ryzen AI", BL_COST_VNNI},  {"PRO 79", BL_COST_VNNI},      {"PRO 99", BL_COST_WIDE},
        {"Rapids", BL_COST_AMX},     {"Xeon 6", BL_COST_AMX},       {"Gold 64", BL_COST_AMX},
        {"Gold 65", BL_COST_AMX},    {"Platinum 84", BL_COST_AMX},  {"Platinum 85", BL_COST_AMX},
        {"Gold 63", BL_COST_WIDE},   {"Platinum 83", BL_COST_WIDE}, {"Gold 61", BL_COST_AVX512},
        {"Gold 62", BL_COST_WIDE},   {"Xeon W", BL_COST_WIDE},      {"Xeon w", BL_COST_AMX},
    };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (has(cpu, families[i].word))
            return families[i].isa;
    const char *epyc = strstr(cpu, "EPYC 9"); /* 9004: Zen 4, 9005: Zen 5 */
    if (epyc && strlen(epyc) > 8)
        return epyc[8] == '5' ? BL_COST_WIDE : BL_COST_VNNI;
    return BL_COST_AVX2;
}

static enum bl_cost_isa isa_of(const char *isa, double ops)
{
    if (has(isa, "AMX INT8"))
        return BL_COST_AMX;
    if (has(isa, "Apple"))
        return BL_COST_APPLE;
    if (has(isa, "Neoverse") || has(isa, "Armv8"))
        return BL_COST_NEON;
    if (has(isa, "without VNNI"))
        return BL_COST_AVX512;
    if (has(isa, "AVX-512"))
        return ops >= 256 ? BL_COST_WIDE : BL_COST_VNNI;
    return BL_COST_AVX2;
}

static bool few_channels(const char *cpu)
{
    return has(cpu, "Ryzen") || has(cpu, "Core") || has(cpu, "i7-") || has(cpu, "i9-") ||
           has(cpu, "4344P") || has(cpu, "desktop");
}

static double clock_of(const char *cpu)
{
    if (has(cpu, "Threadripper") || has(cpu, "W5-") || has(cpu, "i9-7980XE"))
        return 1.2;
    return few_channels(cpu) ? 1.4 : 1;
}

static uint32_t sockets_of(const char *cpu)
{
    const char *name = cpu;
    chip_name(&name);
    uint32_t n = name > cpu ? count(strtod(cpu, NULL)) : count(number_before(cpu, " sockets"));
    return n > 1 && n <= 16 ? n : has(cpu, "dual-socket") ? 2 : 1;
}

static void read_threads(struct bl_cost_run *r, const char *threads, double cores)
{
    double decode, prefill, a = strtod(threads, NULL);
    decode = prefill = a > 0 ? a : cores;
    const char *slash = strstr(threads, "/ ");
    if (slash && has(threads, "tg"))
        decode = strtod(slash + 2, NULL);
    else if (slash)
        prefill = strtod(slash + 2, NULL);
    r->decode_team.threads = count(decode);
    r->prefill_team.threads = count(prefill);
    r->cpu.cores = count(cores);
}

void report_read_cpu(struct report *out, const struct facts *f, size_t row)
{
    struct bl_cost_run *r = &out->run;
    const struct csv *c = &f->reports;
    const char *cpu = csv_get(c, row, "cpu"), *kind = csv_get(c, row, "ram_bw_kind");
    const char *placement = csv_get(c, row, "placement"), *used = csv_get(c, row, "cpu_cores_used");
    size_t hw = 0;
    bool exact = false, known = find_cpu(f, cpu, &hw, &exact);
    double cores = either(number_before(cpu, " cores"), number_before(cpu, "-core"));
    if (!cores && exact)
        cores = either(csv_number(&f->hardware, hw, "cores"), 0);
    if (!has(used, "pp") && !has(used, "decode"))
        cores = either(cores, strtod(used, NULL));
    if (has(used, "VM,"))
        cores = strtod(used, NULL);
    read_threads(r, csv_get(c, row, "threads"), either(cores, 16));
    r->isa = known ? isa_of(csv_get(&f->hardware, hw, "isa"),
                            csv_number(&f->hardware, hw, "int8_ops_per_core_cycle"))
                   : guess_isa(cpu);
    r->cpu.clock = clock_of(cpu);
    uint32_t sockets = sockets_of(cpu);
    uint32_t nodes = count(fmax(sockets, number_before(cpu, " NUMA nodes")));
    double bps = csv_number(c, row, "ram_bw_gbs") * 1e9;
    r->cpu.domain_bps = has(kind, "one ") || has(kind, "single") ? bps : bps / sockets;
    r->cpu.local = has(placement, "mirror") || has(placement, "dual socket copy") ||
                   has(placement, "sharded") || has(placement, "NUMA tuned");
    r->decode_team.domains =
        has(placement, "on one node") || has(placement, "numactl -N") ? 1 : nodes;
    r->prefill_team.domains = has(placement, "numactl -N") ? 1 : nodes;
    r->figure = has(kind, "theoretical")
                    ? few_channels(cpu) ? BL_COST_RATED_FEW : BL_COST_RATED_MANY
                    : BL_COST_MEASURED;
}

/* Words of a device's name, less sizes and marks that reports leave out, that all occur in the
 * text. */
static int match(const char *device, const char *text)
{
    char word[32];
    int n = 0, used = 0;
    for (const char *at = device; *at && *at != '('; at += used) {
        if (sscanf(at, " %31[^ (]%n", word, &used) != 1)
            break;
        size_t len = strlen(word);
        bool size = len > 2 && !strcmp(word + len - 2, "GB");
        bool mark = size || !strcmp(word, "Blackwell") || !strcmp(word, "/") ||
                    !strcmp(word, "AI") || !strcmp(word, "NVIDIA");
        if (has(text, word))
            n += mark ? 1 : 8;
        else if (!mark)
            return 0;
    }
    const char *cores = strchr(device, '(');
    if (cores && has(cores, "-core GPU")) {
        char want[16];
        snprintf(want, sizeof want, "%.0fc", number_before(cores, "-core GPU"));
        n += has(text, want) ? 2 : 0;
    }
    return n;
}

static size_t find_gpu(const struct facts *f, const char *text, bool *found)
{
    int best = 7;
    size_t row = 0;
    for (size_t i = 0; i < f->hardware.n_rows; i++) {
        const char *kind = csv_get(&f->hardware, i, "kind");
        int n = !strcmp(kind, "GPU") || !strcmp(kind, "APU")
                    ? match(csv_get(&f->hardware, i, "device"), text)
                    : 0;
        if (n > best) {
            best = n;
            row = i;
        }
    }
    *found = best > 7;
    return row;
}

static double link_of(const char *pcie)
{
    double generation = number_after(pcie, "gen"), lanes = number_after(pcie, " x");
    double full = generation >= 5 ? 50e9 : generation >= 4 ? 25e9 : generation >= 3 ? 12e9 : 0;
    return full * (lanes > 0 ? lanes / 16 : 1);
}

/* "2x A 24GB + 1x B 48GB", with "936|1008" for the bandwidths of the cards. */
void report_read_gpus(struct report *out, const struct facts *f, size_t row)
{
    struct bl_cost_run *r = &out->run;
    const char *bps = csv_get(&f->reports, row, "gpu_bw_gbs_each"),
               *pcie = csv_get(&f->reports, row, "pcie");
    char text[192], both[320];
    snprintf(text, sizeof text, "%s", csv_get(&f->reports, row, "gpus"));
    double sizes = 0, last = 0;
    for (char *part = text, *next; part && *part; part = next) {
        next = strstr(part, " + ");
        if (next) {
            *next = 0;
            next += 3;
        }
        uint32_t n = strtod(part, NULL) >= 1 ? count(strtod(part, NULL)) : 1;
        bool found;
        snprintf(both, sizeof both, "%s %s", part,
                 r->unified ? csv_get(&f->reports, row, "cpu") : "");
        size_t hw = find_gpu(f, both, &found);
        for (uint32_t i = 0; i < n && r->n_gpus < FACTS_GPUS; i++) {
            struct bl_cost_gpu *g = &out->gpu[r->n_gpus++];
            char *end;
            double v = strtod(bps, &end);
            last = end > bps ? v : last;
            bps = *end == '|' ? end + 1 : end;
            g->bps = last * 1e9;
            double tflops = found ? csv_number(&f->hardware, hw, "fp16_dense_tflops") : NAN;
            g->macs_per_s =
                either(tflops, last * (r->backend == BL_COST_METAL ? 0.033 : 0.23)) / 2 * 1e12;
            g->link_bps =
                either(link_of(pcie), found ? link_of(csv_get(&f->hardware, hw, "pcie")) : 0);
            g->link_bps = either(g->link_bps, 25e9);
            g->share = either(number_before(part, "GB"), 24);
            sizes += g->share;
        }
    }
    for (uint32_t i = 0; i < r->n_gpus; i++)
        out->gpu[i].share /= sizes;
}
