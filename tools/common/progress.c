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
    bool screen = isatty(STDERR_FILENO) && !environment_says("TERM", "dumb");

    memset(v, 0, sizeof *v);
    v->report = report;
    v->mode = mode;
    if (mode == BL_PROGRESS_AUTO)
        v->mode = screen ? BL_PROGRESS_BAR : BL_PROGRESS_PLAIN;
    v->colour = screen && !environment_says("NO_COLOR", NULL);
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

/* Asked each time: windows change. */
static size_t columns(void)
{
    struct winsize size;

    return !ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col ? size.ws_col : 80;
}

/* A full last column would wrap the line, so it stays free. The bar gives way first, then the text
 * is cut. */
static void draw_bar(struct bl_progress_view *v, const struct bl_progress *p)
{
    char done[24], total[24], head[24], text[160], bar[MAX_BAR + 1];
    double part = (double)p->done_bytes / (double)p->total_bytes;
    unsigned left = (unsigned)(seconds_left(p) + 0.5);
    size_t room = columns() - 1;

    bl_format_bytes(done, (double)p->done_bytes);
    bl_format_bytes(total, (double)p->total_bytes);
    snprintf(head, sizeof head, "%s %3.0f%% ", v->writing ? "Writing" : "Loading", part * 100);
    snprintf(text, sizeof text, " %s of %s  %.2f GB/s  ETA %u:%02u", done, total, rate(p) * 1e-9,
             left / 60, left % 60);

    size_t used = strlen(head) + strlen(text) + 2; /* "[" and "]" stand around the bar */
    size_t width = room > used + 4 ? room - used : 0;
    width = width > MAX_BAR ? MAX_BAR : width;
    size_t full = (size_t)(part * (double)width);
    memset(bar, '#', full);
    memset(bar + full, '-', width - full);
    bar[width] = 0;

    fprintf(stderr, "\r%.*s", (int)room, head);
    if (width)
        fprintf(stderr, "[%s%.*s%s%s]", v->colour ? "\033[32m" : "", (int)full, bar,
                v->colour ? "\033[0m" : "", bar + full);
    if (room > strlen(head))
        fprintf(stderr, "%.*s", (int)(room - strlen(head)), text + !width);
    fprintf(stderr, "\033[K");
    fflush(stderr);
    v->bar = true;
}

static void remove_bar(struct bl_progress_view *v)
{
    if (v->bar)
        fprintf(stderr, "\r\033[K");
    v->bar = false;
}

void bl_progress_log(void *view, enum bl_log_level level, const char *line)
{
    struct bl_progress_view *v = view;

    remove_bar(v);
    bl_report_level(v->report, level, line);
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
    bl_report_note(v->report, "%s: %.0f %% of %s, %.2f GB/s, %.0f s left",
                   v->writing ? "writing" : "loading",
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
        print_json(v->writing ? "writing" : "loading", p);
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

    remove_bar(v);
    if (!loaded || !v->seen.total_bytes || v->mode == BL_PROGRESS_NONE)
        return;
    if (v->mode == BL_PROGRESS_JSON) {
        print_json(v->writing ? "written" : "loaded", &v->seen);
        return;
    }
    bl_format_bytes(total, (double)v->seen.done_bytes);
    bl_report_note(v->report, "%s %s in %.2f s (%.2f GB/s)", v->writing ? "wrote" : "loaded", total,
                   (double)v->seen.elapsed_ns * NS, rate(&v->seen) * 1e-9);
}
