/* SPDX-License-Identifier: MIT */
#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { MAX_BAR = 40 };
static const uint64_t BAR_NS = 100000000;   /* ten redraws a second are smooth enough */
static const uint64_t LINE_NS = 2000000000; /* a log wants fewer lines than a screen */
static const double NS = 1e-9;

static bool environment_says(const char *name, const char *value)
{
    const char *v = getenv(name);

    return v && (value ? !strcmp(v, value) : *v != 0);
}

void bl_progress_begin(struct bl_progress_view *v, const struct bl_report *report,
                       enum bl_progress_mode mode)
{
    struct winsize size;
    bool screen = isatty(STDERR_FILENO) && !environment_says("TERM", "dumb");

    memset(v, 0, sizeof *v);
    v->report = report;
    v->mode = mode;
    if (mode == BL_PROGRESS_AUTO)
        v->mode = screen ? BL_PROGRESS_BAR : BL_PROGRESS_PLAIN;
    v->colour = screen && !environment_says("NO_COLOR", NULL);
    v->columns = 80;
    if (!ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col)
        v->columns = size.ws_col;
}

static double rate(const struct bl_progress *p)
{
    return p->elapsed_ns ? (double)p->done_bytes / ((double)p->elapsed_ns * NS) : 0;
}

static double seconds_left(const struct bl_progress *p)
{
    double r = rate(p);

    return r > 0 ? (double)(p->total_bytes - p->done_bytes) / r : 0;
}

static void draw_bar(const struct bl_progress_view *v, const struct bl_progress *p)
{
    char done[24], total[24], text[160];
    double part = (double)p->done_bytes / (double)p->total_bytes;
    unsigned left = (unsigned)(seconds_left(p) + 0.5);

    bl_format_bytes(done, (double)p->done_bytes);
    bl_format_bytes(total, (double)p->total_bytes);
    snprintf(text, sizeof text, " %s of %s  %.2f GB/s  ETA %u:%02u", done, total, rate(p) * 1e-9,
             left / 60, left % 60);

    /* "Loading 100% [" and "]" stand around the bar; a full last column would wrap the line. */
    size_t used = 15 + strlen(text) + 1;
    size_t width = v->columns > used + 4 ? v->columns - used : 0;
    width = width > MAX_BAR ? MAX_BAR : width;
    size_t full = (size_t)(part * (double)width);
    char bar[MAX_BAR + 1];
    memset(bar, '#', full);
    memset(bar + full, '-', width - full);
    bar[width] = 0;

    fprintf(stderr, "\rLoading %3.0f%% ", part * 100);
    if (width)
        fprintf(stderr, "[%s%.*s%s%s]", v->colour ? "\033[32m" : "", (int)full, bar,
                v->colour ? "\033[0m" : "", bar + full);
    fprintf(stderr, "%s\033[K", text);
    fflush(stderr);
}

static void print_json(const char *event, const struct bl_progress *p)
{
    fprintf(stderr,
            "{\"event\":\"%s\",\"done_bytes\":%llu,\"total_bytes\":%llu,\"elapsed_s\":%.3f,"
            "\"bytes_per_s\":%.0f,\"eta_s\":%.1f}\n",
            event, (unsigned long long)p->done_bytes, (unsigned long long)p->total_bytes,
            (double)p->elapsed_ns * NS, rate(p), seconds_left(p));
}

static void print_line(const struct bl_progress_view *v, const struct bl_progress *p)
{
    char total[24];

    bl_format_bytes(total, (double)p->total_bytes);
    bl_report_note(v->report, "loading: %.0f %% of %s, %.2f GB/s, %.0f s left",
                   100.0 * (double)p->done_bytes / (double)p->total_bytes, total, rate(p) * 1e-9,
                   seconds_left(p));
}

void bl_progress_update(void *view, const struct bl_progress *p)
{
    struct bl_progress_view *v = view;
    bool whole = p->done_bytes >= p->total_bytes; /* has a line of its own at the end */
    uint64_t since = p->elapsed_ns - v->shown_ns;

    v->seen = *p;
    if (!p->total_bytes)
        return;
    if (v->mode == BL_PROGRESS_BAR && (!v->shown || since >= BAR_NS))
        draw_bar(v, p);
    else if (v->mode == BL_PROGRESS_JSON && !whole && (!v->shown || since >= BAR_NS))
        print_json("loading", p);
    else if (v->mode == BL_PROGRESS_PLAIN && !whole && since >= LINE_NS)
        print_line(v, p);
    else
        return;
    v->shown = true;
    v->shown_ns = p->elapsed_ns;
}

void bl_progress_end(struct bl_progress_view *v, bool loaded)
{
    char total[24];

    if (v->mode == BL_PROGRESS_BAR && v->shown)
        fprintf(stderr, "\r\033[K");
    if (!loaded || !v->seen.total_bytes || v->mode == BL_PROGRESS_NONE)
        return;
    if (v->mode == BL_PROGRESS_JSON) {
        print_json("loaded", &v->seen);
        return;
    }
    bl_format_bytes(total, (double)v->seen.done_bytes);
    bl_report_note(v->report, "loaded %s in %.2f s (%.2f GB/s)", total,
                   (double)v->seen.elapsed_ns * NS, rate(&v->seen) * 1e-9);
}
