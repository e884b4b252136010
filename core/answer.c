/* SPDX-License-Identifier: MIT */
#include "answer.h"

#include <stdlib.h>

#include "mem.h"
#include "vocab.h"

/* Where in an answer we are. */
enum place {
    AT_START, /* only white space so far */
    IN_REASONING,
    AFTER, /* the reasoning, and only white space since */
    IN_TEXT,
    IN_HEADER /* between <|start|> or <|channel|> and <|message|> */
};
enum {
    START = 1 << AT_START,
    REASONING = 1 << IN_REASONING,
    BETWEEN = 1 << AFTER,
    TEXT = 1 << IN_TEXT,
    HEADER = 1 << IN_HEADER,
    ANYWHERE = START | REASONING | BETWEEN | TEXT | HEADER
};
enum effect {
    NO_MARK,
    OPENS,   /* reasoning begins */
    CLOSES,  /* it ends */
    WRAPS,   /* the answer proper begins; its end has a mark too */
    UNWRAPS, /* which is this one */
    STARTS,  /* a header begins */
    CHANNEL, /* the channel's name follows, in a header that may have begun before */
    BODY     /* the header ends and decides what follows */
};

enum { MARKS = 6, LONGEST_MARK = 24, PENDING = 128, OUT = 256 };

struct mark {
    const char *text;
    enum effect effect;
    unsigned where; /* elsewhere it is plain text */
};

/* Marks of reasoning count only before the answer proper: later they are what the answer is about.
 */
struct bl_answer_form {
    const char
        *key; /* a template that mentions it, or the first mark of reasoning, has this form */
    struct mark mark[MARKS];
};
static const struct bl_answer_form forms[] = {
    {"<|channel|>", /* harmony: the first row, see bl_answer_is_mark */
     {{"<|start|>", STARTS, ANYWHERE},
      {"<|end|>", STARTS, REASONING | TEXT},
      {"<|channel|>", CHANNEL, ANYWHERE},
      {"<|message|>", BODY, HEADER}}},
    {"<|END_THINKING|>",
     {{"<|START_THINKING|>", OPENS, START},
      {"<|END_THINKING|>", CLOSES, START | REASONING},
      {"<|START_RESPONSE|>", WRAPS, START | BETWEEN},
      {"<|END_RESPONSE|>", UNWRAPS, TEXT}}},
    {"[/THINK]", {{"[THINK]", OPENS, START}, {"[/THINK]", CLOSES, START | REASONING}}},
    {"</seed:think>",
     {{"<seed:think>", OPENS, START}, {"</seed:think>", CLOSES, START | REASONING}}},
    {"<channel|>",
     {{"<|channel>thought\n", OPENS, START}, {"<channel|>", CLOSES, START | REASONING}}},
    {"</think>",
     {{"<think>", OPENS, START},
      {"</think>", CLOSES, START | REASONING},
      {"<response>", WRAPS, BETWEEN},
      {"</response>", UNWRAPS, TEXT}}},
};

/* ---- which form ------------------------------------------------------------------------------ */

static bool has_token(const struct bl_vocab *v, const char *text)
{
    return v && bl_vocab_find(v, &v->by_special, text, strlen(text)) >= 0;
}

const struct bl_answer_form *bl_answer_form_of(const struct bl_jinja *template,
                                               const struct bl_vocab *vocab)
{
    for (size_t i = 0; i < BL_COUNT(forms); i++)
        if (bl_jinja_mentions(template, forms[i].key) ||
            (forms[i].mark[0].effect == OPENS &&
             bl_jinja_mentions(template, forms[i].mark[0].text)))
            return &forms[i];
    for (size_t i = 0; i < BL_COUNT(forms); i++)
        if (has_token(vocab, forms[i].key))
            return &forms[i];
    return NULL;
}

bool bl_answer_form_marks(const struct bl_answer_form *f, const char **open, const char **close)
{
    if (!f || f->mark[0].effect != OPENS)
        return false;
    *open = f->mark[0].text;
    *close = f->mark[1].text;
    return true;
}

/* Harmony's marks are left to the vocabulary, which knows where <|end|> is one. A mark may go on
 * behind its token. */
bool bl_answer_is_mark(const char *piece, size_t n_bytes)
{
    if (!n_bytes || (piece[n_bytes - 1] != '>' && piece[n_bytes - 1] != ']'))
        return false;
    for (size_t i = 1; i < BL_COUNT(forms); i++)
        for (const struct mark *m = forms[i].mark; m < forms[i].mark + MARKS && m->text; m++)
            if (n_bytes <= strlen(m->text) && !memcmp(m->text, piece, n_bytes))
                return true;
    return false;
}

/* ---- the machine ----------------------------------------------------------------------------- */

struct bl_answer {
    const struct bl_answer_form *form;
    enum place place;
    bool wrapped;
    bool marked;             /* the answer itself brought a mark */
    bool thought;            /* some reasoning was handed out */
    bool any;                /* something was */
    char held[LONGEST_MARK]; /* the beginning of a mark, perhaps */
    size_t n_held;
    char pending[PENDING];     /* a header, or white space that may be none of the text */
    size_t n_pending, n_given; /* given: of a header, what the prompt brought */
    char out[OUT];
    size_t n_out;
    enum bl_answer_part part; /* of out */
    bl_answer_fn *fn;         /* of the call that runs */
    void *arg;
    bool stopped;
};

static void flush(struct bl_answer *a)
{
    if (a->n_out && a->fn && !a->stopped)
        a->stopped = !a->fn(a->arg, a->part, a->out, a->n_out);
    a->n_out = 0;
}

static void emit(struct bl_answer *a, enum bl_answer_part part, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (a->n_out == OUT || part != a->part)
            flush(a);
        a->part = part;
        a->any = true;
        a->out[a->n_out++] = bytes[i];
    }
}

static bool is_white(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* What was held back in the hope of a mark is text after all, but for the gap behind reasoning. */
static void begin_text(struct bl_answer *a)
{
    if (a->place != AFTER)
        emit(a, BL_ANSWER_TEXT, a->pending + a->n_given, a->n_pending - a->n_given);
    a->n_pending = a->n_given = 0;
    a->place = IN_TEXT;
}

/* White space around the reasoning is dropped, within it is kept. */
static void take_reasoning(struct bl_answer *a, char c)
{
    if (is_white(c) && a->n_pending < PENDING) {
        a->pending[a->n_pending++] = c;
        return;
    }
    if (a->thought)
        emit(a, BL_ANSWER_REASONING, a->pending, a->n_pending);
    a->n_pending = 0;
    a->thought = true;
    emit(a, BL_ANSWER_REASONING, &c, 1);
}

static void take_byte(struct bl_answer *a, char c)
{
    bool room = a->n_pending < PENDING;

    if (a->place == IN_REASONING) {
        take_reasoning(a, c);
        return;
    }
    if (a->place == IN_HEADER && (room || a->marked)) {
        if (room)
            a->pending[a->n_pending++] = c;
        return;
    }
    if ((a->place == AT_START || a->place == AFTER) && room && is_white(c)) {
        a->pending[a->n_pending++] = c;
        return;
    }
    if (a->place != IN_TEXT)
        begin_text(a);
    emit(a, BL_ANSWER_TEXT, &c, 1);
}

/* Two messages in a row for the same reader, such as a remark before a call and the answer. */
static void part_messages(struct bl_answer *a)
{
    enum bl_answer_part next = a->place == IN_REASONING ? BL_ANSWER_REASONING : BL_ANSWER_TEXT;

    if (a->any && a->part == next)
        emit(a, next, "\n\n", 2);
}

static bool header_has(const struct bl_answer *a, const char *word)
{
    return memmem(a->pending, a->n_pending, word, strlen(word)) != NULL;
}

static void put_pending(struct bl_answer *a, char c)
{
    if (a->n_pending < PENDING)
        a->pending[a->n_pending++] = c;
}

static void pass_mark(struct bl_answer *a, enum effect effect)
{
    a->marked = true;
    switch (effect) {
    case OPENS:
        a->place = IN_REASONING;
        break;
    case CLOSES:
        a->place = AFTER;
        break;
    case WRAPS:
        a->wrapped = true;
        a->place = AFTER;
        break;
    case STARTS:
        a->place = IN_HEADER;
        break;
    case CHANNEL: /* a NUL is in no header that a model writes */
        if (a->place != IN_HEADER)
            a->n_pending = 0;
        a->n_given = 0;
        put_pending(a, 0);
        a->place = IN_HEADER;
        return;
    case BODY: /* a call of a tool is not for the reader either; its header has a recipient */
        a->place = !memmem(a->pending, a->n_pending, "\0analysis", 9) && !header_has(a, " to=")
                       ? IN_TEXT
                       : IN_REASONING;
        part_messages(a);
        break;
    case UNWRAPS:
    case NO_MARK:
        break;
    }
    a->n_pending = a->n_given = 0;
}

/* The mark that the held bytes are or, with *whole false, may become; NULL: none. */
static const struct mark *held_mark(const struct bl_answer *a, bool *whole)
{
    for (const struct mark *m = a->form->mark; m < a->form->mark + MARKS && m->text; m++) {
        size_t n = strlen(m->text);
        if (!(m->where & 1u << a->place) || (m->effect == UNWRAPS && !a->wrapped) ||
            a->n_held > n || memcmp(m->text, a->held, a->n_held))
            continue;
        *whole = a->n_held == n;
        return m;
    }
    return NULL;
}

static void push_byte(struct bl_answer *a, char c)
{
    const struct mark *m = NULL;
    bool whole = false;

    a->held[a->n_held++] = c;
    while (a->n_held && !(m = held_mark(a, &whole))) {
        take_byte(a, a->held[0]);
        memmove(a->held, a->held + 1, --a->n_held);
    }
    if (a->n_held && whole) {
        a->n_held = 0;
        pass_mark(a, m->effect);
    }
}

static bool push(struct bl_answer *a, const char *bytes, size_t n)
{
    a->stopped = false;
    for (size_t i = 0; i < n && !a->stopped; i++) {
        if (a->form)
            push_byte(a, bytes[i]);
        else
            emit(a, BL_ANSWER_TEXT, bytes + i, 1);
    }
    flush(a);
    return !a->stopped;
}

bool bl_answer_push(struct bl_answer *a, const char *bytes, size_t n_bytes, bl_answer_fn *fn,
                    void *arg)
{
    a->fn = fn;
    a->arg = arg;
    return push(a, bytes, n_bytes);
}

bool bl_answer_end(struct bl_answer *a, bl_answer_fn *fn, void *arg)
{
    a->fn = fn;
    a->arg = arg;
    a->stopped = false;
    for (size_t i = 0; i < a->n_held; i++)
        take_byte(a, a->held[i]);
    a->n_held = 0;
    if (a->place == AT_START || (a->place == IN_HEADER && !a->marked))
        begin_text(a);
    flush(a);
    return !a->stopped;
}

/* ---- where the prompt leaves off ------------------------------------------------------------- */

/* The template's own bytes after all that came from the conversation. */
static const char *prompt_tail(const struct bl_prompt *p, size_t *n)
{
    size_t from = p->n_user ? p->user[p->n_user - 1].end : 0;

    *n = p->n_bytes - from;
    return p->text + from;
}

static bool ends_with(const char *text, size_t n, const char *mark)
{
    size_t len = strlen(mark);

    while (n && is_white(text[n - 1]))
        n--;
    while (len && is_white(mark[len - 1]))
        len--;
    return n >= len && !memcmp(text + n - len, mark, len);
}

static void read_prompt(struct bl_answer *a, const struct bl_prompt *p)
{
    const char *open, *close, *tail;
    size_t n;

    tail = prompt_tail(p, &n);
    if (bl_answer_form_marks(a->form, &open, &close)) {
        a->place = ends_with(tail, n, open)    ? IN_REASONING
                   : ends_with(tail, n, close) ? AFTER
                                               : AT_START;
        return;
    }
    a->place = IN_TEXT; /* of the conversation; nobody listens */
    push(a, tail, n);
    if (a->place == IN_TEXT && !a->marked)
        a->place = AT_START;
    a->n_given = a->place == IN_HEADER ? a->n_pending : 0;
    a->n_held = 0;
    a->marked = a->any = false;
}

enum bl_status bl_answer_create(struct bl_answer **out, const struct bl_chat *chat,
                                const struct bl_prompt *prompt)
{
    struct bl_answer *a = bl_calloc(1, sizeof *a);

    if (!a)
        return bl_fail(BL_ENOMEM, "out of memory for an answer");
    a->form = bl_chat_form(chat);
    if (a->form && prompt)
        read_prompt(a, prompt);
    *out = a;
    return BL_OK;
}

void bl_answer_destroy(struct bl_answer *a)
{
    free(a);
}

bool bl_answer_is_reasoning(const struct bl_answer *a)
{
    return a->place == IN_REASONING;
}
