/* SPDX-License-Identifier: MIT */
/* io.h — results on standard output, files in and out, and interruption.
 *
 * Purpose   nothing a verb writes is lost without a message and a non-zero exit: every write is checked,
 *           files appear whole or not at all.
 * Ownership buffers from bl_io_read are malloc'ed and the caller's; an output file is closed by exactly
 *           one of commit and abandon.
 * Units     bytes.
 * Errors    reported on standard error where they happen; functions return false or an exit code. A
 *           reader that closed its pipe is no news: no line, exit 1.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_IO_H
#define BL_IO_H

#include "report.h"

#include <stdio.h>

/* Once, first thing in main: standard descriptors are open (so that no file takes their number) and a
 * closed pipe is an error code instead of a signal. */
void bl_io_init(void);

bool bl_out_write(const struct bl_report *, const void *bytes, size_t n); /* to stdout, at once */
int bl_out_close(const struct bl_report *);                               /* last: exit code */

/* A result put together in memory and written whole. */
struct bl_out_page {
    FILE *file; /* NULL: out of memory */
    char *text;
    size_t n;
};
FILE *bl_out_page_begin(struct bl_out_page *);
int bl_out_page_end(const struct bl_report *, struct bl_out_page *); /* exit code; frees the page */
void bl_out_page_drop(struct bl_out_page *);                         /* frees it unwritten */

/* Whole contents of a file, "-" for standard input, with a NUL behind them. */
bool bl_io_read(const struct bl_report *, const char *path, char **bytes, size_t *n);

/* Whether that is where a standard stream goes, by any name, such as "-" for stdout or /dev/stderr; /dev/null is not. */
bool bl_out_is_stdout(const char *path);
bool bl_out_is_stderr(const char *path);

/* Written under a temporary name beside `path`; commit renames it there, with the mode of what it replaces. Devices, pipes
 * and stdout are written directly. */
struct bl_out_file {
    FILE *file;
    char *path, *temp; /* temp NULL: direct */
    bool is_stdout;
};
bool bl_out_file_create(const struct bl_report *, struct bl_out_file *, const char *path);
bool bl_out_file_write(const struct bl_report *, struct bl_out_file *, const void *bytes, size_t n);
bool bl_out_file_commit(const struct bl_report *, struct bl_out_file *);
bool bl_out_file_save(const struct bl_report *, const char *path, const void *bytes, size_t n); /* all of that */
void bl_out_file_abandon(struct bl_out_file *); /* takes a zeroed one; removes the temporary file */

/* After this call the first SIGINT or SIGTERM is remembered and the second one kills. */
void bl_interrupt_catch(void);
int bl_interrupt_code(void); /* 0, or the exit code of the signal that came */
void bl_interrupt_release(void); /* signals have their own effect again and none is remembered */

#endif
