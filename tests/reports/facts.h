/* SPDX-License-Identifier: MIT */
/* facts.h — a row of published measurements as input of the cost model.
 *
 * Purpose   reads what a row and the tables of models and hardware say, decides what can be predicted and what counts.
 * Ownership a report points into the three files.
 * Units     tokens/s, bytes.
 * Errors    none: a row that cannot be predicted says why.
 * Threads   any.
 */
#ifndef BL_TEST_FACTS_H
#define BL_TEST_FACTS_H

#include "cost.h"
#include "csv.h"

enum { FACTS_GPUS = 32 };
enum report_phase { REPORT_DECODE, REPORT_PREFILL, N_REPORT_PHASES };
struct report {
    const char *id, *source;
    char machine[96], class[32];        /* left out together; printed together */
    double measured[N_REPORT_PHASES];   /* tokens/s; NAN: the row has none */
    const char *unknown[N_REPORT_PHASES]; /* why nothing can be predicted; NULL: it can */
    const char *excluded;               /* why the row does not count; NULL: it does */
    struct bl_cost_gpu gpu[FACTS_GPUS];
    struct bl_cost_run run;             /* run.gpu is set by report_run */
};
struct facts {
    struct csv reports, models, hardware;
};
static inline const char *report_unscored(const struct report *r, enum report_phase p)
{
    return r->excluded ? r->excluded : r->unknown[p];
}
void report_read(struct report *, const struct facts *, size_t row);
/* Points into the report, which may have moved. */
static inline const struct bl_cost_run *report_run(struct report *r)
{
    r->run.gpu = r->gpu;
    return &r->run;
}

#endif
