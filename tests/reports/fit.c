/* SPDX-License-Identifier: MIT */
#include "fit.h"

#include <math.h>
#include <string.h>

enum { N = BL_N_COST_CONSTANTS };
static const double row_sd =
    0.2; /* of ln(speed): near-repeats of one set-up differ by 13 % in the median */
static const double huber = 1.2; /* errors beyond so many row_sd pull with constant force */

double fit_error(const struct bl_cost_table *t, struct report *r, enum report_phase phase)
{
    struct bl_cost_time time;
    if (r->unknown[phase] || !(r->measured[phase] > 0))
        return NAN;
    if (phase == REPORT_DECODE)
        bl_cost_decode(t, report_run(r), &time);
    else
        bl_cost_prefill(t, report_run(r), &time);
    return log(1e9 / time.ns / r->measured[phase]);
}

void fit_priors(struct bl_cost_table *t)
{
    for (int i = 0; i < N; i++) {
        t->value[i] = bl_cost_constants[i].prior;
        t->sd[i] = bl_cost_constants[i].prior_sd;
    }
}

struct normal {
    double a[N][N], b[N];
    int id[N], n;
};

static void add_row(struct normal *m, const struct bl_cost_table *t, struct report *r,
                    enum report_phase phase)
{
    struct bl_cost_table moved = *t;
    double e = fit_error(t, r, phase), slope[N], h = 0.01;
    if (!isfinite(e))
        return;
    for (int i = 0; i < m->n; i++) {
        moved.value[m->id[i]] *= exp(h);
        slope[i] = (fit_error(&moved, r, phase) - e) / h;
        moved.value[m->id[i]] = t->value[m->id[i]];
    }
    double weight = 1 / (row_sd * row_sd);
    if (fabs(e) > huber * row_sd)
        weight *= huber * row_sd / fabs(e);
    for (int i = 0; i < m->n; i++) {
        m->b[i] -= weight * slope[i] * e;
        for (int j = 0; j <= i; j++)
            m->a[i][j] += weight * slope[i] * slope[j];
    }
}

/* Cholesky in place: the lower triangle of a becomes its factor. */
static void factor(struct normal *m)
{
    for (int i = 0; i < m->n; i++)
        for (int j = 0; j <= i; j++) {
            double sum = m->a[i][j];
            for (int k = 0; k < j; k++)
                sum -= m->a[i][k] * m->a[j][k];
            m->a[i][j] = i == j ? sqrt(sum) : sum / m->a[j][j];
        }
}

static void solve(const struct normal *m, double *x)
{
    for (int i = 0; i < m->n; i++) {
        for (int k = 0; k < i; k++)
            x[i] -= m->a[i][k] * x[k];
        x[i] /= m->a[i][i];
    }
    for (int i = m->n - 1; i >= 0; i--) {
        for (int k = i + 1; k < m->n; k++)
            x[i] -= m->a[k][i] * x[k];
        x[i] /= m->a[i][i];
    }
}

void fit_constants(struct bl_cost_table *t, struct report *r, size_t n, const bool *use,
                   enum report_phase phase, int steps)
{
    struct normal m = {0};
    for (int step = 0; step <= steps; step++) {
        memset(&m, 0, sizeof m);
        for (int i = 0; i < N; i++) {
            enum bl_cost_phase p = bl_cost_constants[i].phase;
            if (p == BL_COST_IN_PREFILL ? phase == REPORT_PREFILL : phase == REPORT_DECODE)
                m.id[m.n++] = i;
        }
        for (size_t i = 0; i < n; i++)
            if (use[i] && !report_unscored(&r[i], phase))
                add_row(&m, t, &r[i], phase);
        for (int i = 0; i < m.n; i++) {
            const struct bl_cost_constant *c = &bl_cost_constants[m.id[i]];
            double w = 1 / (c->prior_sd * c->prior_sd);
            m.a[i][i] += w;
            m.b[i] -= w * log(t->value[m.id[i]] / c->prior);
        }
        factor(&m);
        if (step == steps)
            break;
        solve(&m, m.b);
        for (int i = 0; i < m.n; i++)
            t->value[m.id[i]] *= exp(fmax(-0.3, fmin(0.3, m.b[i])));
    }
    for (int i = 0; i < m.n; i++) {
        double unit[N] = {0};
        unit[i] = 1;
        solve(&m, unit);
        t->sd[m.id[i]] = sqrt(unit[i]);
    }
}
