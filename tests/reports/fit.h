/* SPDX-License-Identifier: MIT */
/* fit.h — constants of the cost model fitted to measurements.
 *
 * Purpose   damped Gauss-Newton on logarithms; priors keep what the rows do not speak about; large errors count less.
 *           Deterministic.
 * Ownership none.
 * Units     as cost.h.
 * Errors    none.
 * Threads   any.
 */
#ifndef BL_TEST_FIT_H
#define BL_TEST_FIT_H

#include "facts.h"

/* ln(predicted speed / measured speed); NAN where either is missing. */
double fit_error(const struct bl_cost_table *, struct report *, enum report_phase);
/* Fits the phase's constants to the scored rows that use[] has, from the values in the table; sd becomes what is left
 * open. */
void fit_constants(struct bl_cost_table *, struct report *, size_t n, const bool *use, enum report_phase, int steps);
void fit_priors(struct bl_cost_table *); /* the values before any row was seen */

#endif
