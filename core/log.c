/* SPDX-License-Identifier: MIT */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>

static bl_log_fn *sink;
static void *sink_arg;
static enum bl_log_level sink_most;

void bl_log_set(bl_log_fn *fn, void *arg, enum bl_log_level most)
{
    sink = fn;
    sink_arg = arg;
    sink_most = most;
}

void bl_log(enum bl_log_level level, const char *fmt, ...)
{
    char line[1000];
    va_list ap;

    if (!sink || level > sink_most)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    sink(sink_arg, level, line);
}
