/* SPDX-License-Identifier: MIT */
/* Predicted beside measured for every row of a file of public measurements, and how good the
 * predictions are. */
#include "fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: reports_check [FILE.csv] [--models FILE --hardware FILE] [--hold-out machine|source]\n"
    "                     [--fit] [--terms] [--require D25,D50,P25,P50]\n"
    "  FILE.csv    with the columns of reports.csv; default: of $BALLAST_REPORTS, a folder\n"
    "  --models, --hardware   facts; default: models.csv and hardware.csv beside FILE\n"
    "  --hold-out  predict each machine's (source's) rows with constants fitted to the others\n"
    "  --fit       fit the constants to all scored rows and print them\n"
    "  --terms     print what each prediction is made of, ms per token\n"
    "  --require   fail unless these percentages of the scored rows are within 25 % and 1.5x\n";

static const char *const phase_name[N_REPORT_PHASES] = {"decode", "prefill"};
static const char *const term_name[BL_N_COST_TERMS] = {"gpu",   "ram", "stream", "layers",
                                                       "cross", "hop", "context"};
static const double need_none[4];

struct options {
    char file[4096], models[4096], hardware[4096];
    const char *hold_out;
    double need[4];
    bool fit, terms;
};
struct check {
    struct facts facts;
    struct report *report;
    bool *use;
    size_t n;
    double *error[N_REPORT_PHASES]; /* of ln(speed); NAN: nothing to compare */
    struct bl_cost_table table;
};

static bool scored(const struct check *c, size_t i, enum report_phase p)
{
    return !isnan(c->error[p][i]) && !report_unscored(&c->report[i], p);
}

/* ---- summaries ---- */

struct summary {
    size_t n;
    double median, mean, in25, in50,
        in80; /* in80: share of rows inside the interval that should hold 80 % */
};

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double sd_of(struct check *c, size_t i, enum report_phase p)
{
    const struct bl_cost_run *run = report_run(&c->report[i]);
    return p == REPORT_DECODE ? bl_cost_decode_sd(&c->table, run)
                              : bl_cost_prefill_sd(&c->table, run);
}

static bool summarize(struct check *c, enum report_phase p, const char *class, struct summary *out)
{
    struct summary s = {0};
    double *e = calloc(c->n + 1, sizeof *e);
    if (!e)
        return false;
    for (size_t i = 0; i < c->n; i++) {
        if (!scored(c, i, p) || (class && strcmp(class, c->report[i].class)))
            continue;
        double x = fabs(c->error[p][i]);
        e[s.n++] = x;
        s.mean += x;
        s.in25 += x <= log(1.25);
        s.in50 += x <= log(1.5);
        s.in80 += x <= 1.2816 * sd_of(c, i, p);
    }
    if (s.n) {
        double n = (double)s.n;
        qsort(e, s.n, sizeof *e, by_size);
        s.median = exp((e[(s.n - 1) / 2] + e[s.n / 2]) / 2) - 1;
        s.mean /= n;
        s.in25 *= 100 / n;
        s.in50 *= 100 / n;
        s.in80 *= 100 / n;
    }
    free(e);
    *out = s;
    return true;
}

static bool print_summary(struct check *c, enum report_phase p, const char *class)
{
    struct summary s;
    if (!summarize(c, p, class, &s))
        return false;
    if (s.n)
        printf("  %-14s %4zu rows: median error %3.0f %%, mean |ln| %.3f, within 25 %%: %5.1f %%, "
               "within 1.5x: %5.1f %%, in the 80 %% interval: %3.0f %%\n",
               class ? class : "all", s.n, s.median * 100, s.mean, s.in25, s.in50, s.in80);
    return true;
}

static bool print_summaries(struct check *c, enum report_phase p)
{
    printf("%s, scored rows\n", phase_name[p]);
    bool ok = print_summary(c, p, NULL);
    for (size_t i = 0; ok && i < c->n; i++) {
        bool first = true;
        for (size_t j = 0; j < i && first; j++)
            first = strcmp(c->report[i].class, c->report[j].class) != 0;
        if (first)
            ok = print_summary(c, p, c->report[i].class);
    }
    return ok;
}

/* ---- rows ---- */

static void print_terms(const struct check *c, struct report *r, enum report_phase p)
{
    struct bl_cost_time t;
    if (p == REPORT_DECODE)
        bl_cost_decode(&c->table, report_run(r), &t);
    else
        bl_cost_prefill(&c->table, report_run(r), &t);
    printf("   ");
    for (int k = 0; k < BL_N_COST_TERMS; k++)
        if (t.term[k] > 0)
            printf(" %s %.3g", term_name[k], t.term[k] * 1e-6);
    printf("\n");
}

static void print_row(struct check *c, size_t i, enum report_phase p, bool terms)
{
    struct report *r = &c->report[i];
    const char *why = report_unscored(r, p);
    double e = c->error[p][i];
    printf("%-18s %-7s measured %8.2f  predicted ", r->id, phase_name[p], r->measured[p]);
    if (isfinite(e))
        printf("%8.2f  x%-6.2f 80 %%: %.2f-%.2f", r->measured[p] * exp(e), exp(e),
               r->measured[p] * exp(e - 1.2816 * sd_of(c, i, p)),
               r->measured[p] * exp(e + 1.2816 * sd_of(c, i, p)));
    else
        printf("       -         ");
    printf("  %s%s  [%s]\n", why ? "not scored: " : "scored", why ? why : "", r->machine);
    if (terms && isfinite(e))
        print_terms(c, r, p);
}

static void print_rows(struct check *c, bool terms)
{
    for (size_t i = 0; i < c->n; i++) {
        bool any = false;
        for (int p = 0; p < N_REPORT_PHASES; p++)
            if (c->report[i].measured[p] > 0) {
                print_row(c, i, p, terms);
                any = true;
            }
        if (!any)
            printf("%-18s not scored: no speed stated\n", c->report[i].id);
    }
}

static void print_constants(const struct check *c)
{
    printf("constants\n");
    for (int i = 0; i < BL_N_COST_CONSTANTS; i++) {
        const struct bl_cost_constant *k = &bl_cost_constants[i];
        printf("  %-16s %10.4g +- %4.2f  prior %10.4g +- %4.2f  %s\n", k->name, c->table.value[i],
               c->table.sd[i], k->prior, k->prior_sd, bl_cost_quantity_unit[k->quantity]);
    }
}

/* ---- left out ---- */

static const char *group(const struct check *c, size_t i, const char *by)
{
    return !strcmp(by, "source") ? c->report[i].source : c->report[i].machine;
}

static void predict(struct check *c)
{
    for (int p = 0; p < N_REPORT_PHASES; p++)
        for (size_t i = 0; i < c->n; i++)
            c->error[p][i] = fit_error(&c->table, &c->report[i], p);
}

/* Predicts the rows of i's group with constants fitted to all others; starts from the fit to all,
 * which is near. */
static void leave_out(struct check *c, size_t i, const char *by)
{
    struct bl_cost_table fold = c->table;
    const char *name = group(c, i, by);
    for (size_t j = 0; j < c->n; j++)
        c->use[j] = strcmp(name, group(c, j, by)) != 0;
    for (int p = 0; p < N_REPORT_PHASES; p++)
        fit_constants(&fold, c->report, c->n, c->use, p, 5);
    for (int p = 0; p < N_REPORT_PHASES; p++)
        for (size_t j = 0; j < c->n; j++)
            if (!c->use[j])
                c->error[p][j] = fit_error(&fold, &c->report[j], p);
}

static void hold_out(struct check *c, const char *by)
{
    size_t groups = 0;
    for (size_t i = 0; i < c->n; i++) {
        bool first = true;
        for (size_t j = 0; j < i && first; j++)
            first = strcmp(group(c, i, by), group(c, j, by)) != 0;
        if (!first)
            continue;
        leave_out(c, i, by);
        groups++;
    }
    printf("predictions with each of %zu %ss left out\n", groups, by);
}

/* ---- the program ---- */

static bool set_path(char *to, size_t n, const char *folder, size_t folder_len, const char *name)
{
    return snprintf(to, n, "%.*s%s", (int)folder_len, folder, name) < (int)n;
}

/* The collection where none is named: of the environment, or beside the checkout. */
static bool default_file(struct options *o)
{
    const char *folder = getenv("BALLAST_REPORTS");
#ifdef BL_REPORTS_DIR
    folder = folder ? folder : BL_REPORTS_DIR;
#endif
    if (!folder)
        return false;
    snprintf(o->file, sizeof o->file, "%s/reports.csv", folder);
    FILE *f = fopen(o->file, "rb");
    if (f)
        fclose(f);
    return f != NULL;
}

static bool read_options(struct options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(a, "--fit"))
            o->fit = true;
        else if (!strcmp(a, "--terms"))
            o->terms = true;
        else if (a[0] != '-' && !o->file[0])
            set_path(o->file, sizeof o->file, a, strlen(a), "");
        else if (!*value)
            return false;
        else if (!strcmp(a, "--models"))
            set_path(o->models, sizeof o->models, argv[++i], strlen(value), "");
        else if (!strcmp(a, "--hardware"))
            set_path(o->hardware, sizeof o->hardware, argv[++i], strlen(value), "");
        else if (!strcmp(a, "--hold-out") &&
                 (!strcmp(value, "machine") || !strcmp(value, "source")))
            o->hold_out = argv[++i];
        else if (!strcmp(a, "--require") && sscanf(value, "%lf,%lf,%lf,%lf", &o->need[0],
                                                   &o->need[1], &o->need[2], &o->need[3]) == 4)
            i++;
        else
            return false;
    }
    return true;
}

static bool open_check(struct check *c, struct options *o)
{
    const char *slash = strrchr(o->file, '/');
    size_t folder = slash ? (size_t)(slash - o->file) + 1 : 0;
    if (!o->models[0])
        set_path(o->models, sizeof o->models, o->file, folder, "models.csv");
    if (!o->hardware[0])
        set_path(o->hardware, sizeof o->hardware, o->file, folder, "hardware.csv");
    if (!csv_read(&c->facts.reports, o->file) || !csv_read(&c->facts.models, o->models) ||
        !csv_read(&c->facts.hardware, o->hardware))
        return false;
    static const char *const columns[] = {"id", "engine", "model", "tg_tok_s", "pp_tok_s"};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        if (!csv_has(&c->facts.reports, columns[i])) {
            fprintf(stderr, "%s: no column %s\n", o->file, columns[i]);
            return false;
        }
    c->n = c->facts.reports.n_rows;
    c->report = calloc(c->n + 1, sizeof *c->report);
    c->use = calloc(c->n + 1, sizeof *c->use);
    for (int p = 0; p < N_REPORT_PHASES; p++)
        c->error[p] = calloc(c->n + 1, sizeof *c->error[p]);
    if (!c->report || !c->use || !c->error[0] || !c->error[1])
        return fprintf(stderr, "out of memory\n"), false;
    for (size_t i = 0; i < c->n; i++) {
        report_read(&c->report[i], &c->facts, i);
        c->use[i] = true;
    }
    bl_cost_table_init(&c->table);
    return true;
}

static void close_check(struct check *c)
{
    csv_finish(&c->facts.reports);
    csv_finish(&c->facts.models);
    csv_finish(&c->facts.hardware);
    free(c->report);
    free(c->use);
    for (int p = 0; p < N_REPORT_PHASES; p++)
        free(c->error[p]);
}

static bool reaches(struct check *c, const double *need)
{
    bool ok = true;
    for (int p = 0; p < N_REPORT_PHASES; p++) {
        struct summary s;
        if (!summarize(c, p, NULL, &s))
            return false;
        const double got[2] = {s.in25, s.in50};
        for (int k = 0; k < 2; k++)
            if (got[k] < need[2 * p + k]) {
                printf("FAILED: %s within %s: %.1f %%, required %.1f %%\n", phase_name[p],
                       k ? "1.5x" : "25 %", got[k], need[2 * p + k]);
                ok = false;
            }
    }
    return ok;
}

static int run(struct check *c, const struct options *o)
{
    if (o->fit || o->hold_out) {
        fit_priors(&c->table);
        for (int p = 0; p < N_REPORT_PHASES; p++)
            fit_constants(&c->table, c->report, c->n, c->use, p, 15);
    }
    predict(c);
    if (o->hold_out)
        hold_out(c, o->hold_out);
    print_rows(c, o->terms);
    for (int p = 0; p < N_REPORT_PHASES; p++)
        if (!print_summaries(c, p))
            return 1;
    if (o->fit)
        print_constants(c);
    return memcmp(o->need, need_none, sizeof need_none) && !reaches(c, o->need);
}

int main(int argc, char **argv)
{
    static struct options o;
    struct check c = {0};
    if (!read_options(&o, argc, argv))
        return fputs(usage, stderr), 2;
    if (!o.file[0] && !default_file(&o)) {
        printf("SKIPPED: no collection of reports (BALLAST_REPORTS names its folder)\n");
        return 77;
    }
    int status = open_check(&c, &o) ? run(&c, &o) : 2;
    close_check(&c);
    return status;
}
