/* SPDX-License-Identifier: MIT */
#include "chat.h"

#include "common/io.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the answer on its way out: kept for the history, reasoning dimmed on a terminal ---- */

static const char open_mark[] = "<think>", close_mark[] = "</think>";

struct answer {
    const struct bl_report *report;
    char *text; /* all of it */
    size_t n, cap;
    bool colour, dim;
    char pending[sizeof close_mark]; /* the beginning of a mark, perhaps */
    size_t n_pending;
    char shown[256]; /* on its way to stdout */
    size_t n_shown;
    bool broken; /* nobody takes it; that has been said */
};

static bool show(struct answer *a)
{
    size_t n = a->n_shown;

    a->n_shown = 0;
    if (n && !a->broken)
        a->broken = !bl_out_write(a->report, a->shown, n);
    return !a->broken;
}

static bool put(struct answer *a, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (a->n_shown == sizeof a->shown && !show(a))
            return false;
        a->shown[a->n_shown++] = bytes[i];
    }
    return true;
}

static bool set_dim(struct answer *a, bool dim)
{
    const char *code = dim ? "\033[2m" : "\033[22m";

    if (!a->colour || a->dim == dim)
        return true;
    a->dim = dim;
    return put(a, code, strlen(code));
}

/* One byte further in the mark that is being looked for; a whole mark switches. */
static bool put_byte(struct answer *a, char byte)
{
    const char *mark = a->dim ? close_mark : open_mark;

    a->pending[a->n_pending++] = byte;
    while (a->n_pending && memcmp(a->pending, mark, a->n_pending)) {
        if (!put(a, a->pending, 1))
            return false;
        memmove(a->pending, a->pending + 1, --a->n_pending);
    }
    if (a->n_pending < strlen(mark))
        return true;
    bool good = a->dim ? put(a, mark, a->n_pending) && set_dim(a, false)
                       : set_dim(a, true) && put(a, mark, a->n_pending);
    a->n_pending = 0;
    return good;
}

static bool keep(struct answer *a, const char *bytes, size_t n)
{
    if (a->n + n > a->cap) {
        size_t cap = 2 * a->cap + n + 256;
        char *bigger = realloc(a->text, cap);
        if (!bigger) {
            bl_report_error(a->report, "out of memory");
            return false;
        }
        a->text = bigger;
        a->cap = cap;
    }
    if (n)
        memcpy(a->text + a->n, bytes, n);
    a->n += n;
    return true;
}

static bool write_answer(void *arg, const char *bytes, size_t n)
{
    struct answer *a = arg;

    if (!keep(a, bytes, n))
        return false;
    if (!a->colour)
        return put(a, bytes, n) && show(a);
    for (size_t i = 0; i < n; i++)
        if (!put_byte(a, bytes[i]))
            return false;
    return show(a);
}

static bool end_answer(struct answer *a)
{
    bool good = put(a, a->pending, a->n_pending) && set_dim(a, false) && put(a, "\n", 1);

    a->n_pending = 0;
    return show(a) && good;
}

/* ---- input ---- */

struct chat {
    struct bl_generator *g;
    struct bl_dialogue *d;
    uint64_t n_most;
    bool terminal; /* a person types */
    struct answer answer;
    char *line;
    size_t line_cap;
    bool failed; /* input that could not be read or kept; it has been reported */
};

static void prompt_for(const struct chat *c, const char *mark)
{
    if (c->terminal)
        fputs(mark, stderr);
}

static bool end_of_input(struct chat *c)
{
    c->failed = !feof(stdin);
    if (c->failed)
        bl_report_error(c->g->report, "cannot read standard input: %s", strerror(errno));
    else
        prompt_for(c, "\n"); /* what follows on the terminal begins a line */
    return false;
}

/* Appends one line to the message; a backslash at its end asks for another. False: no more input.
 */
static bool read_part(struct chat *c, char **text, size_t *n, bool *more)
{
    ssize_t got = getline(&c->line, &c->line_cap, stdin);

    if (got < 0)
        return end_of_input(c);
    got -= got && c->line[got - 1] == '\n';
    *more = got && c->line[got - 1] == '\\';
    got -= *more;
    char *bigger = realloc(*text, *n + (size_t)got + 2);
    if (!bigger) {
        bl_report_error(c->g->report, "out of memory");
        c->failed = true;
        return false;
    }
    *text = bigger;
    memcpy(bigger + *n, c->line, (size_t)got);
    *n += (size_t)got;
    if (*more)
        bigger[(*n)++] = '\n';
    bigger[*n] = 0;
    return true;
}

static bool read_message(struct chat *c, char **text, size_t *n)
{
    bool more = true;

    *n = 0;
    for (const char *mark = "> "; more; mark = ". ") {
        prompt_for(c, mark);
        if (!read_part(c, text, n, &more))
            return *n > 0 && !c->failed;
    }
    return true;
}

/* ---- one turn ---- */

static int check_room(const struct chat *c, size_t n_ids)
{
    uint64_t ctx = bl_engine_ctx(c->g->engine);

    if (!n_ids) {
        bl_report_error(c->g->report, "the chat template makes nothing of this conversation");
        return BL_EXIT_FAILURE;
    }
    if (n_ids < ctx)
        return BL_EXIT_OK;
    bl_report_error(c->g->report,
                    "the conversation has %zu tokens, the context holds %" PRIu64
                    "; /clear begins anew, -c makes it larger",
                    n_ids, ctx);
    return BL_EXIT_FAILURE;
}

static int answer_to(struct chat *c, const int32_t *ids, size_t n_ids)
{
    struct answer *a = &c->answer;
    int code = bl_generator_start(c->g);

    a->n = a->n_pending = 0;
    if (!code)
        code = bl_generator_hold(c->g, ids, n_ids);
    if (!code && c->d->thinks && !set_dim(a, true))
        code = BL_EXIT_FAILURE;
    if (!code)
        code = bl_generator_run(c->g, c->n_most);
    if (code != BL_EXIT_OK && code != bl_interrupt_code()) {
        (void)end_answer(a); /* or the terminal stays dimmed */
        return code;
    }
    if (bl_generator_flush(c->g) || !end_answer(a))
        return BL_EXIT_FAILURE;
    if (c->g->report->json)
        bl_generator_report(c->g);
    if (!strcmp(c->g->stopped, "context full"))
        bl_report_note(c->g->report, "context full; /clear begins anew");
    return code;
}

/* Of the code only what ends the chat: output that nobody takes, a termination. */
static int turn(struct chat *c, const char *text, size_t n)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int code = BL_EXIT_FAILURE;

    if (!bl_dialogue_add(c->d, "user", text, n)) {
        bl_report_error(c->g->report, "out of memory");
        return code;
    }
    if ((code = bl_dialogue_ids(c->d, &ids, &n_ids)) || (code = check_room(c, n_ids))) {
        bl_dialogue_drop_last(c->d);
        free(ids);
        return BL_EXIT_OK;
    }
    code = answer_to(c, ids, n_ids);
    free(ids);
    if (code == BL_EXIT_INTERRUPT) /* it stopped the answer, the chat goes on */
        code = BL_EXIT_OK;
    if (!code &&
        !bl_dialogue_add(c->d, "assistant", c->answer.text ? c->answer.text : "", c->answer.n)) {
        bl_report_error(c->g->report, "out of memory");
        code = BL_EXIT_FAILURE;
    }
    return code;
}

/* ---- commands ---- */

enum command { NOT_A_COMMAND, DONE, QUIT };

static enum command command(struct chat *c, const char *text)
{
    if (text[0] != '/')
        return NOT_A_COMMAND;
    if (!strcmp(text, "/quit") || !strcmp(text, "/exit"))
        return QUIT;
    if (!strcmp(text, "/clear")) {
        if (!bl_dialogue_clear(c->d))
            bl_report_error(c->g->report, "out of memory");
        return DONE;
    }
    if (strcmp(text, "/help"))
        bl_report_note(c->g->report, "unknown command %s", text);
    bl_report_note(c->g->report,
                   "/clear forgets the conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer; "
                   "a line ending in \\ goes on in the next");
    return DONE;
}

static int loop(struct chat *c)
{
    char *text = NULL;
    size_t n;
    int code = BL_EXIT_OK;

    while (!code) {
        if (!read_message(c, &text, &n))
            break;
        if (!n)
            continue;
        enum command did = command(c, text);
        if (did == QUIT)
            break;
        if (did != NOT_A_COMMAND)
            continue;
        bl_interrupt_catch(); /* not at the prompt: nothing is lost there, Ctrl-C ends the program
                               */
        code = turn(c, text, n);
        bl_interrupt_release();
    }
    free(text);
    return c->failed ? BL_EXIT_FAILURE : code;
}

int bl_chat_loop(struct bl_generator *g, struct bl_dialogue *d, int64_t n_predict)
{
    const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    struct chat c = {
        .g = g,
        .d = d,
        .n_most = n_predict < 0 ? UINT64_MAX : (uint64_t)n_predict,
        .terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO) && !g->report->json,
        .answer = {.report = g->report,
                   .colour = isatty(STDOUT_FILENO) && !(no_colour && *no_colour) &&
                             !(term && !strcmp(term, "dumb"))},
    };

    if (!d->chat) {
        bl_report_error(g->report, "-i needs a chat template; the model has none, --chat-template "
                                   "gives one");
        return BL_EXIT_FAILURE;
    }
    g->write = write_answer;
    g->arg = &c.answer;
    int code = loop(&c);
    if (!c.answer.broken && bl_out_close(g->report))
        code = BL_EXIT_FAILURE;
    free(c.line);
    free(c.answer.text);
    return code;
}
