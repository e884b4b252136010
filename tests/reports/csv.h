/* SPDX-License-Identifier: MIT */
/* csv.h — files of comma-separated values with a header line, for the checks of the cost model.
 *
 * Purpose   columns by name; quotes and doubled quotes are understood.
 * Ownership the file owns its text; cells point into it.
 * Units     none.
 * Errors    false and a line on stderr.
 * Threads   any.
 */
#ifndef BL_TEST_CSV_H
#define BL_TEST_CSV_H

#include <stdbool.h>
#include <stddef.h>

struct csv {
    char *text;
    char **cell; /* [n_rows + 1][n_columns]; row 0 is the header */
    size_t n_rows, n_columns;
};
bool csv_read(struct csv *, const char *path);
void csv_finish(struct csv *);
bool csv_has(const struct csv *, const char *column);
/* Of row 0..n_rows-1; "" where there is no such column. */
const char *csv_get(const struct csv *, size_t row, const char *column);
double csv_number(const struct csv *, size_t row, const char *column); /* NAN: empty or none */

#endif
