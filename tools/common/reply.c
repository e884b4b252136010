/* SPDX-License-Identifier: MIT */
#include "reply.h"

#include "io.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void bl_reply_init(struct bl_reply *r, const struct bl_report *report, bool keep)
{
    const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");

    *r = (struct bl_reply){.report = report,
                           .keep = keep,
                           .colour = isatty(STDOUT_FILENO) && !(no_colour && *no_colour) &&
                                     !(term && !strcmp(term, "dumb"))};
}

void bl_reply_finish(struct bl_reply *r)
{
    free(r->text.bytes);
    free(r->reasoning.bytes);
    r->text = r->reasoning = (struct bl_kept){0};
}

void bl_reply_begin(struct bl_reply *r, struct bl_answer *answer)
{
    r->answer = answer;
    r->reasoning_shown = r->any = false;
    r->text.n = r->reasoning.n = 0;
}

static bool keep(const struct bl_reply *r, struct bl_kept *k, const char *bytes, size_t n)
{
    if (!r->keep)
        return true;
    if (k->n + n > k->cap) {
        size_t cap = 2 * k->cap + n + 256;
        char *bigger = realloc(k->bytes, cap);
        if (!bigger) {
            bl_report_error(r->report, "out of memory");
            return false;
        }
        k->bytes = bigger;
        k->cap = cap;
    }
    if (n)
        memcpy(k->bytes + k->n, bytes, n);
    k->n += n;
    return true;
}

static bool show(struct bl_reply *r, const char *bytes, size_t n)
{
    if (!r->broken)
        r->broken = !bl_out_write(r->report, bytes, n);
    return !r->broken;
}

/* What stands between text and reasoning. */
static bool turn_to(struct bl_reply *r, bool reasoning)
{
    const char *gap = reasoning && r->any ? "\n\n" : "";
    const char *open = r->colour ? "\033[2m" : "<think>\n";
    const char *close = r->colour ? "\033[22m\n\n" : "\n</think>\n\n";
    const char *mark = reasoning ? open : close;

    if (reasoning == r->reasoning_shown)
        return true;
    r->reasoning_shown = reasoning;
    return show(r, gap, strlen(gap)) && show(r, mark, strlen(mark));
}

static bool take(void *reply, enum bl_answer_part part, const char *bytes, size_t n)
{
    struct bl_reply *r = reply;
    bool reasoning = part == BL_ANSWER_REASONING;

    if (!keep(r, reasoning ? &r->reasoning : &r->text, bytes, n) || !turn_to(r, reasoning))
        return false;
    r->any = true;
    return show(r, bytes, n);
}

bool bl_reply_write(void *reply, const char *bytes, size_t n)
{
    struct bl_reply *r = reply;

    if (!n)
        return true;
    return r->answer ? bl_answer_push(r->answer, bytes, n, take, r)
                     : take(r, BL_ANSWER_TEXT, bytes, n);
}

bool bl_reply_end(struct bl_reply *r, bool newline)
{
    bool good = !r->answer || bl_answer_end(r->answer, take, r);

    if (r->reasoning_shown && r->colour)
        good = show(r, "\033[22m", 5) && good;
    r->reasoning_shown = false;
    return (!newline || show(r, "\n", 1)) && good;
}
