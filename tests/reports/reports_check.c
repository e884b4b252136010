/* SPDX-License-Identifier: MIT */
#include "fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const phase_name[N_REPORT_PHASES] = {"decode", "prefill"};
static const char *const term_name[BL_N_COST_TERMS] = {"gpu",   "ram", "stream", "layers",
                                                       "cross", "hop", "context"};

struct options {
    const char *file, *models, *hardware, *hold_out;
    bool fit, terms;
};
struct check {
    struct facts facts;
    struct report *report;
    size_t n;
    double *error[N_REPORT_PHASES];
    struct bl_cost_table table;
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct summary {
    size_t n;
    double median, mean, in25, in50;
};
static struct summary summarize(const struct check *c, enum report_phase p, const char *class)
{
    struct summary s = {0};
    double *e = calloc(c->n + 1, sizeof *e);
    for (size_t i = 0; e && i < c->n; i++) {
        if (report_unscored(&c->report[i], p) || !isfinite(c->error[p][i]) ||
            (class && strcmp(class, c->report[i].class)))
            continue;
        double x = fabs(c->error[p][i]);
        e[s.n++] = x;
        s.mean += x;
        s.in25 += x <= log(1.25);
        s.in50 += x <= log(1.5);
    }
    if (s.n) {
        qsort(e, s.n, sizeof *e, by_size);
        s.median = exp((e[(s.n - 1) / 2] + e[s.n / 2]) / 2) - 1;
        s.mean /= (double)s.n;
        s.in25 /= (double)s.n;
        s.in50 /= (double)s.n;
    }
    free(e);
    return s;
}

static void print_summary(const char *what, struct summary s)
{
    if (s.n)
        printf(
            "  %-16s %4zu rows  median %3.0f %%  mean |ln| %.3f  within 25 %%: %3.0f %%  within 1.5x: %3.0f %%\n",
            what, s.n, s.median * 100, s.mean, s.in25 * 100, s.in50 * 100);
}

static void print_rows(const struct check *c, enum report_phase p)
{
    for (size_t i = 0; i < c->n; i++) {
        struct report *r = &c->report[i];
        if (!(r->measured[p] > 0))
            continue;
        double e = fit_error(&c->table, r, p);
        if (isfinite(c->error[p][i]))
            e = c->error[p][i];
        printf("%-18s %-7s measured %8.2f ", r->id, phase_name[p], r->measured[p]);
        if (isfinite(e))
            printf("predicted %8.2f  x%5.2f", r->measured[p] * exp(e), exp(e));
        else
            printf("predicted        -        ");
        printf("  %s", report_unscored(r, p) ? report_unscored(r, p) : "scored");
        if (isfinite(e)) {
            struct bl_cost_time t;
            if (p == REPORT_DECODE)
                bl_cost_decode(&c->table, report_run(r), &t);
            else
                bl_cost_prefill(&c->table, report_run(r), &t);
            printf(" |");
            for (int k = 0; k < BL_N_COST_TERMS; k++)
                if (t.term[k] > 0)
                    printf(" %s %.3g", term_name[k], t.term[k] * 1e-6);
        }
        printf(" | %s\n", r->machine);
    }
}

static void print_summaries(const struct check *c, enum report_phase p)
{
    printf("%s\n", phase_name[p]);
    print_summary("all", summarize(c, p, NULL));
    for (size_t i = 0; i < c->n; i++) {
        bool first = true;
        for (size_t j = 0; j < i; j++)
            first = first && strcmp(c->report[i].class, c->report[j].class);
        if (first)
            print_summary(c->report[i].class, summarize(c, p, c->report[i].class));
    }
}

static const char *group(const struct report *r, const char *by)
{
    return !strcmp(by, "source") ? r->source : r->machine;
}

static void hold_out(struct check *c, enum report_phase p, const char *by)
{
    bool *use = calloc(c->n + 1, sizeof *use);
    if (!use)
        return;
    for (size_t i = 0; i < c->n; i++)
        use[i] = true;
    struct bl_cost_table all = c->table;
    for (size_t i = 0; i < c->n; i++) {
        bool first = !report_unscored(&c->report[i], p) && isfinite(c->error[p][i]);
        for (size_t j = 0; j < i && first; j++)
            first = report_unscored(&c->report[j], p) || !isfinite(c->error[p][j]) ||
                    strcmp(group(&c->report[i], by), group(&c->report[j], by));
        if (!first)
            continue;
        struct bl_cost_table fold = all;
        for (size_t j = 0; j < c->n; j++)
            use[j] = strcmp(group(&c->report[i], by), group(&c->report[j], by));
        if (p == REPORT_PREFILL)
            fit_constants(&fold, c->report, c->n, use, REPORT_DECODE, 3);
        fit_constants(&fold, c->report, c->n, use, p, 5);
        for (size_t j = 0; j < c->n; j++)
            if (!use[j])
                c->error[p][j] = fit_error(&fold, &c->report[j], p);
    }
    free(use);
}

int main(int argc, char **argv)
{
    struct options o = {0};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--models") && i + 1 < argc)
            o.models = argv[++i];
        else if (!strcmp(argv[i], "--hardware") && i + 1 < argc)
            o.hardware = argv[++i];
        else if (!strcmp(argv[i], "--hold-out") && i + 1 < argc)
            o.hold_out = argv[++i];
        else if (!strcmp(argv[i], "--fit"))
            o.fit = true;
        else
            o.file = argv[i];
    }
    struct check c = {0};
    char path[2][4096];
    const char *slash = strrchr(o.file, '/');
    int dir = slash ? (int)(slash - o.file + 1) : 0;
    snprintf(path[0], sizeof path[0], "%.*smodels.csv", dir, o.file);
    snprintf(path[1], sizeof path[1], "%.*shardware.csv", dir, o.file);
    if (!csv_read(&c.facts.reports, o.file) ||
        !csv_read(&c.facts.models, o.models ? o.models : path[0]) ||
        !csv_read(&c.facts.hardware, o.hardware ? o.hardware : path[1]))
        return 2;
    c.n = c.facts.reports.n_rows;
    c.report = calloc(c.n + 1, sizeof *c.report);
    bl_cost_table_init(&c.table);
    for (size_t i = 0; i < c.n; i++)
        report_read(&c.report[i], &c.facts, i);
    bool *use = calloc(c.n + 1, sizeof *use);
    memset(use, 1, c.n);
    if (o.fit || o.hold_out) {
        fit_priors(&c.table);
        fit_constants(&c.table, c.report, c.n, use, REPORT_DECODE, 15);
        fit_constants(&c.table, c.report, c.n, use, REPORT_PREFILL, 15);
    }
    for (int p = 0; p < N_REPORT_PHASES; p++) {
        c.error[p] = calloc(c.n + 1, sizeof(double));
        for (size_t i = 0; i < c.n; i++)
            c.error[p][i] = fit_error(&c.table, &c.report[i], p);
        if (o.fit)
            print_summary("fitted", summarize(&c, p, NULL));
        if (o.hold_out)
            hold_out(&c, p, o.hold_out);
        print_rows(&c, p);
    }
    for (int p = 0; p < N_REPORT_PHASES; p++)
        print_summaries(&c, p);
    if (o.fit)
        for (int i = 0; i < BL_N_COST_CONSTANTS; i++)
            printf("%-18s %10.4g +- %4.2f   prior %10.4g +- %4.2f\n", bl_cost_constants[i].name,
                   c.table.value[i], c.table.sd[i], bl_cost_constants[i].prior,
                   bl_cost_constants[i].prior_sd);
    return 0;
}
