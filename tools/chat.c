/* SPDX-License-Identifier: MIT */
#include "chat.h"

#include "common/io.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- input ---- */

struct chat {
    struct bl_generator *g;
    struct bl_dialogue *d;
    uint64_t n_most;
    bool terminal; /* a person types */
    struct bl_reply reply;
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
    struct bl_reply *r = &c->reply;
    int code = bl_generator_start(c->g);

    bl_reply_begin(r, c->d->answer);
    if (!code)
        code = bl_generator_hold(c->g, ids, n_ids);
    if (!code)
        code = bl_generator_run(c->g, c->n_most);
    if (code != BL_EXIT_OK && code != bl_interrupt_code()) {
        (void)bl_reply_end(r, true); /* or the terminal stays dimmed */
        return code;
    }
    if (bl_generator_flush(c->g) || !bl_reply_end(r, true))
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
    if (!code && !bl_dialogue_add_answer(c->d, &c->reply)) {
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
    struct chat c = {
        .g = g,
        .d = d,
        .n_most = n_predict < 0 ? UINT64_MAX : (uint64_t)n_predict,
        .terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO) && !g->report->json,
    };

    if (!d->chat) {
        bl_report_error(g->report, "-i needs a chat template; the model has none, --chat-template "
                                   "gives one");
        return BL_EXIT_FAILURE;
    }
    bl_reply_init(&c.reply, g->report, true);
    g->write = bl_reply_write;
    g->arg = &c.reply;
    int code = loop(&c);
    if (!c.reply.broken && bl_out_close(g->report))
        code = BL_EXIT_FAILURE;
    free(c.line);
    bl_reply_finish(&c.reply);
    return code;
}
