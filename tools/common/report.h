/* SPDX-License-Identifier: MIT */
/* report.h — exit codes, and lines on standard error.
 *
 * Purpose   one place that decides which number a verb ends with and how its messages look, so that
 *           people and wrapping programs can rely on both.
 * Ownership a report is plain data that outlives the calls it is given to.
 * Units     none.
 * Errors    none: a message that cannot be written is lost.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_REPORT_H
#define BL_REPORT_H

#include "ballast.h"

#if defined(__GNUC__) || defined(__clang__)
#define BL_REPORT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define BL_REPORT_PRINTF(fmt, args)
#endif

enum bl_exit {
    BL_EXIT_OK = 0,
    BL_EXIT_FAILURE = 1,
    BL_EXIT_USAGE = 2,
    BL_EXIT_NOFIT = 3,  /* the plan needs more memory than there is */
    BL_EXIT_MODEL = 4,  /* bad or missing model file */
    BL_EXIT_DEVICE = 5, /* a device failed */
    BL_EXIT_INTERRUPT = 130,
    BL_EXIT_TERMINATED = 143
};
enum bl_stage {
    BL_STAGE_OPEN, /* reading the model file and building the engine */
    BL_STAGE_RUN   /* everything after that */
};

struct bl_report {
    const char *verb; /* "run"; NULL: no verb */
    bool json;        /* one JSON object per line instead of text, for programs */
};

/* Behind a noun of which there are so many. */
static inline const char *bl_report_plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

int bl_exit_code(enum bl_stage, enum bl_status);

/* "ballast VERB: message". Control characters and malformed UTF-8 in it are replaced. */
void bl_report_error(const struct bl_report *, const char *fmt, ...) BL_REPORT_PRINTF(2, 3);
/* The line alone; as JSON {"event":"note","message":…}. */
void bl_report_note(const struct bl_report *, const char *fmt, ...) BL_REPORT_PRINTF(2, 3);
/* bl_error() as an error line; returns the exit code for `status` at `stage`. What a signal cancelled needs no line: its
 * code. */
int bl_report_status(const struct bl_report *, enum bl_stage, enum bl_status);
void bl_report_level(const struct bl_report *, enum bl_log_level, const char *line);
void bl_report_log(void *report, enum bl_log_level, const char *line); /* a bl_log_fn */

/* Copies n bytes of untrusted text as valid UTF-8 with a NUL: malformed bytes and NULs become U+FFFD,
 * and with one_line control characters become '?'. Needs 3n + 1 bytes at most; cuts at cap. */
void bl_clean_text(char *dst, size_t cap, const char *src, size_t n, bool one_line);
void bl_format_bytes(char text[24], double bytes); /* "98.4 MB" */

#endif
