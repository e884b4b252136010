/* SPDX-License-Identifier: MIT */
/* progress.h — how loading, and writing of large files, looks.
 *
 * Purpose   a bar with percent, GB/s and time left on a terminal, a few plain lines elsewhere, JSON lines for
 *           programs.
 * Ownership the view is embedded in its user and borrows the report.
 * Units     bytes in powers of ten (1 GB = 10^9), seconds.
 * Errors    none.
 * Threads   the thread that loads.
 */
#ifndef BL_PROGRESS_H
#define BL_PROGRESS_H

#include "report.h"

/* In the order of --progress's words. */
#define BL_PROGRESS_WORDS "auto|bar|plain|json|none"
enum bl_progress_mode {
    BL_PROGRESS_AUTO, /* bar on a terminal that can move its cursor, else plain */
    BL_PROGRESS_BAR,
    BL_PROGRESS_PLAIN,
    BL_PROGRESS_JSON,
    BL_PROGRESS_NONE
};

struct bl_progress_view {
    const struct bl_report *report;
    enum bl_progress_mode mode;
    bool colour, shown;
    bool bar;                /* one stands on the screen */
    bool writing;            /* set after begin: a file is written, not loaded */
    uint64_t shown_ns;       /* elapsed time at the last line or bar */
    struct bl_progress seen; /* the last report */
};
void bl_progress_begin(struct bl_progress_view *, const struct bl_report *, enum bl_progress_mode);
void bl_progress_update(void *view, const struct bl_progress *); /* bl_options.progress */
/* A bl_log_fn for the time of loading: the line takes the place of the bar, which comes again below it. */
void bl_progress_log(void *view, enum bl_log_level, const char *line);
void bl_progress_end(struct bl_progress_view *, bool loaded);    /* removes the bar, says how it went */

#endif
