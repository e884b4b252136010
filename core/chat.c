/* SPDX-License-Identifier: MIT */
#include "chat.h"

#include <stdio.h>
#include <stdlib.h>

#include "answer.h"
#include "jinja_eval.h"

/* What is done to a conversation before a render. */
struct fit {
    bool text_arguments; /* of tool calls: JSON text, else objects */
    bool plain;          /* contents: text, else as given */
    bool parts;          /* contents: lists of parts */
    bool system_text;    /* but that of a system message is text */
    bool merge_system;   /* a leading system message goes into the first user message */
};

/* What a conversation has that may be in the way, and what a render did with it. */
struct findings {
    bool arguments, argument_texts, odd_contents, system;
    bool failed, user_lost; /* the last user message is not in the output */
};

struct chat {
    const struct bl_jinja *template;
    const struct bl_chat_input *in;
    struct fit fit;
    struct findings found;
    uint8_t printed, tested; /* of the run: BL_JWATCH bits */
};

static struct bl_jv get(struct bl_jinja_run *r, struct bl_jv of, const char *key)
{
    const struct bl_jentry *e = of.kind == BL_J_MAP ? bl_jmap_find_text(r, of.map, key) : NULL;
    return e ? e->value : (struct bl_jv){0};
}

static void set(struct bl_jinja_run *r, struct bl_jv of, const char *key, struct bl_jv value)
{
    bl_jmap_set(r, of.map, bl_jv_text(r, key), value);
}

static bool has_role(struct bl_jinja_run *r, struct bl_jv message, const char *role)
{
    return bl_jv_is_text(get(r, message, "role"), role);
}

/* ---- tool calls ------------------------------------------------------------------------------ */

static struct bl_jv dump(struct bl_jinja_run *r, struct bl_jv v)
{
    struct bl_jdump how = bl_jdump_default(r);
    struct bl_jbuf *b = bl_jbuf_new(r, 64);
    bl_jv_dump(r, b, v, &how);
    return bl_jbuf_string(b);
}

/* OpenAI's interface gives arguments as JSON text; most templates want the object. */
static void fit_arguments(struct bl_jinja_run *r, struct chat *c, struct bl_jv call)
{
    struct bl_jv args = get(r, call, "arguments"), object;
    bool is_text = bl_jv_try_json(r, args, &object) && object.kind == BL_J_MAP;
    if (!is_text && args.kind != BL_J_MAP)
        return;
    c->found.arguments = true;
    c->found.argument_texts |= is_text;
    if (c->fit.text_arguments) {
        if (!is_text)
            set(r, call, "arguments", dump(r, args));
        return;
    }
    if (!is_text)
        object = args;
    object.map->watch = BL_JWATCH_ARGUMENTS;
    set(r, call, "arguments", object);
}

static void fit_calls(struct bl_jinja_run *r, struct chat *c, struct bl_jv message)
{
    struct bl_jv calls = get(r, message, "tool_calls");
    for (uint32_t i = 0; calls.kind == BL_J_LIST && i < calls.list->n && !r->status; i++) {
        struct bl_jv call = calls.list->item[i], function = get(r, call, "function");
        if (call.kind == BL_J_MAP)
            fit_arguments(r, c, function.kind == BL_J_MAP ? function : call);
    }
}

/* ---- contents -------------------------------------------------------------------------------- */

static struct bl_jv joined_parts(struct bl_jinja_run *r, const struct bl_jlist *parts)
{
    struct bl_jbuf *b = bl_jbuf_new(r, 64);
    for (uint32_t i = 0; i < parts->n && !r->status; i++) {
        struct bl_jv part = parts->item[i];
        struct bl_jv text = part.kind == BL_J_STRING ? part : get(r, part, "text");
        if (text.kind != BL_J_STRING)
            continue; /* an image, say, which a template for text has no place for */
        bl_jbuf_puts(r, b, b->used ? "\n" : "");
        bl_jbuf_add(r, b, text);
    }
    return bl_jbuf_string(b);
}

static struct bl_jv one_part(struct bl_jinja_run *r, struct bl_jv text)
{
    struct bl_jv part = bl_jmap_value(bl_jmap_new(r));
    struct bl_jlist *l = bl_jlist_new(r, 1);
    set(r, part, "type", bl_jv_text(r, "text"));
    set(r, part, "text", text);
    bl_jlist_push(r, l, part);
    l->watch = BL_JWATCH_PARTS;
    return bl_jlist_value(BL_J_LIST, l);
}

static void fit_content(struct bl_jinja_run *r, struct chat *c, struct bl_jv message)
{
    struct bl_jv content = get(r, message, "content");
    bool list = content.kind == BL_J_LIST, text = content.kind == BL_J_STRING;
    c->found.odd_contents |= list || !text;
    if (c->fit.parts && text && !(c->fit.system_text && has_role(r, message, "system")))
        set(r, message, "content", one_part(r, content));
    else if (c->fit.plain && !text)
        set(r, message, "content", list ? joined_parts(r, content.list) : bl_jv_text(r, ""));
    else if (list)
        content.list->watch = BL_JWATCH_PARTS;
}

/* ---- reasoning --------------------------------------------------------------------------------
 */

/* Of earlier answers, given as reasoning_content. A template that knows no name for it but looks
 * for its end in the content gets it there, as the model wrote it; any other one does without. */
static void fit_reasoning(struct bl_jinja_run *r, struct chat *c, struct bl_jv message)
{
    struct bl_jv reasoning = get(r, message, "reasoning_content");
    struct bl_jv content = get(r, message, "content");
    const char *open, *close;

    if (reasoning.kind != BL_J_STRING || bl_jinja_mentions(c->template, "reasoning_content"))
        return;
    if (bl_jinja_mentions(c->template, ".thinking") ||
        bl_jinja_mentions(c->template, "'thinking'") ||
        bl_jinja_mentions(c->template, "\"thinking\"")) {
        set(r, message, "thinking", reasoning);
        return;
    }
    if (!reasoning.len || content.kind != BL_J_STRING ||
        !bl_answer_form_marks(c->in->form, &open, &close) || !bl_jinja_mentions(c->template, close))
        return;
    struct bl_jbuf *b = bl_jbuf_new(r, 64);
    bl_jbuf_puts(r, b, open);
    bl_jbuf_puts(r, b, "\n");
    bl_jbuf_add(r, b, reasoning);
    bl_jbuf_puts(r, b, "\n");
    bl_jbuf_puts(r, b, close);
    bl_jbuf_puts(r, b, "\n\n");
    bl_jbuf_add(r, b, content);
    set(r, message, "content", bl_jbuf_string(b));
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Templates build control tokens from roles ('<|' + role + '|>'), so the known ones are not taken
 * for user data. */
static void trust_role(struct bl_jinja_run *r, struct bl_jv message)
{
    static const char *const known[] = {"system",      "user",           "assistant", "tool",
                                        "developer",   "function",       "ipython",   "model",
                                        "observation", "latest_reminder"};
    struct bl_jv role = get(r, message, "role");
    for (size_t i = 0; i < BL_COUNT(known); i++)
        if (bl_jv_is_text(role, known[i]))
            set(r, message, "role", bl_jv_text(r, known[i]));
}

static void fit_message(struct bl_jinja_run *r, struct chat *c, struct bl_jv message, uint32_t i)
{
    if (get(r, message, "role").kind != BL_J_STRING) {
        bl_jrun_fail(r, BL_EINVAL, "messages: number %u is no object with a role", i);
        return;
    }
    trust_role(r, message);
    if (!c->in->adapt)
        return;
    fit_calls(r, c, message);
    fit_reasoning(r, c, message);
    fit_content(r, c, message);
}

/* For templates without a system role: its text, a blank line, the user's text. */
static void merge_system(struct bl_jinja_run *r, struct bl_jlist *messages)
{
    if (messages->n < 2 || !has_role(r, messages->item[1], "user"))
        return;
    struct bl_jv system = get(r, messages->item[0], "content");
    struct bl_jv user = get(r, messages->item[1], "content");
    if (system.kind != BL_J_STRING || user.kind != BL_J_STRING)
        return;
    struct bl_jv text = bl_jv_concat(r, bl_jv_concat(r, system, bl_jv_text(r, "\n\n")), user);
    set(r, messages->item[1], "content", text);
    messages->item++;
    messages->n--;
    messages->cap--;
}

static struct bl_jv read_messages(struct bl_jinja_run *r, struct chat *c)
{
    struct bl_jv v = bl_jinja_read(r, c->in->messages, true);
    if (r->status)
        bl_fail_in(r->status, "messages");
    else if (v.kind != BL_J_LIST)
        bl_jrun_fail(r, BL_EINVAL, "messages: an array is needed");
    if (r->status)
        return v;
    for (uint32_t i = 0; i < v.list->n && !r->status; i++)
        fit_message(r, c, v.list->item[i], i);
    c->found.system = !r->status && v.list->n && has_role(r, v.list->item[0], "system");
    if (c->fit.merge_system && c->found.system)
        merge_system(r, v.list);
    return v;
}

/* ---- one render ------------------------------------------------------------------------------ */

static bool is_given(struct bl_jinja_json json)
{
    return json.tree || json.text;
}

static void define_more(struct bl_jinja_run *r, struct bl_jinja_json variables)
{
    if (!is_given(variables) || r->status)
        return;
    struct bl_jv v = bl_jinja_read(r, variables, true);
    if (!r->status && v.kind != BL_J_MAP)
        bl_jrun_fail(r, BL_EINVAL, "an object is needed");
    if (r->status)
        bl_fail_in(r->status, "template variables");
    for (uint32_t i = 0; !r->status && i < v.map->n; i++)
        bl_jmap_set(r, &r->scope->vars, v.map->entry[i].key, v.map->entry[i].value);
}

static void define(struct bl_jinja_run *r, struct chat *c)
{
    const struct bl_chat_input *in = c->in;
    struct bl_jv tools = bl_jv_none();
    if (is_given(in->tools))
        tools = bl_jinja_read(r, in->tools, true);
    if (r->status) {
        bl_fail_in(r->status, "tools");
        return;
    }
    bl_jscope_set(r, "tools", tools);
    bl_jscope_set(r, "documents", bl_jv_none());
    bl_jscope_set(r, "add_generation_prompt", bl_jv_bool(!in->no_generation_prompt));
    if (in->bos)
        bl_jscope_set(r, "bos_token", bl_jv_text(r, in->bos));
    if (in->eos)
        bl_jscope_set(r, "eos_token", bl_jv_text(r, in->eos));
    bl_jscope_set(r, "messages", read_messages(r, c));
    define_more(r, in->variables);
}

/* Of several parts the last. */
static struct bl_jv text_of(struct bl_jinja_run *r, struct bl_jv content)
{
    return content.kind == BL_J_LIST && content.list->n
               ? get(r, content.list->item[content.list->n - 1], "text")
               : content;
}

static struct bl_jv last_user_text(struct bl_jinja_run *r, struct bl_jv messages)
{
    for (uint32_t i = messages.kind == BL_J_LIST ? messages.list->n : 0; i; i--) {
        struct bl_jv m = messages.list->item[i - 1], content = text_of(r, get(r, m, "content"));
        if (has_role(r, m, "user") && content.kind == BL_J_STRING)
            return bl_jstr_strip(r, content, bl_jv_none(), true, true);
    }
    return bl_jv_text(r, "");
}

static enum bl_status render_once(struct chat *c, struct bl_jinja_text *out)
{
    struct bl_jinja_run r;
    struct bl_jinja_options o = {
        .limits = c->in->limits, .now = c->in->now, .mutable_values = true};
    bl_jinja_start(&r, &o);
    if (!r.status)
        define(&r, c);
    struct bl_jv asked = {0};
    if (!r.status && c->in->adapt)
        asked = last_user_text(&r, bl_jmap_find_text(&r, &r.scope->vars, "messages")->value);
    enum bl_status st = r.status ? r.status : bl_jinja_execute(&r, c->template, out);
    c->printed = r.printed;
    c->tested = r.tested;
    c->found.failed = st != BL_OK;
    c->found.user_lost =
        !st && asked.len && !memmem(out->bytes, out->n_bytes, bl_jv_bytes(asked), asked.len);
    bl_jrun_finish(&r);
    return st;
}

/* ---- trying ---------------------------------------------------------------------------------- */

/* Did the render print containers as Python would, ask for text where it got an object, or leave
 * the question out? */
static bool is_suspect(const struct chat *c)
{
    bool wants_text = (c->tested & BL_JWATCH_ARGUMENTS) && c->found.argument_texts;
    return c->printed || wants_text || c->found.user_lost;
}

static bool is_worth_trying(const struct chat *first, struct fit f)
{
    return (!f.text_arguments || first->found.arguments) &&
           (!f.plain || f.merge_system || first->found.odd_contents) &&
           (!f.parts || first->found.user_lost || first->found.failed) &&
           (!(f.merge_system || f.system_text) || first->found.system);
}

/* Keeps the first render that worked, unless one works without suspicion: *good then. Only a lack
 * of memory counts as a failure. */
static enum bl_status try_fit(struct chat *c, struct fit f, struct bl_jinja_text *out, bool *good)
{
    struct bl_jinja_text text = {0};
    c->fit = f;
    enum bl_status st = render_once(c, &text);
    *good = !st && !is_suspect(c);
    if (st == BL_ENOMEM || (!st && (*good || !out->bytes))) {
        bl_jinja_text_finish(out);
        *out = text;
    } else {
        bl_jinja_text_finish(&text);
    }
    return st == BL_ENOMEM ? st : BL_OK;
}

static enum bl_status render_adapted(struct chat *c, struct bl_jinja_text *out)
{
    static const struct fit fits[] = {
        {.text_arguments = true},
        {.plain = true},
        {.plain = true, .text_arguments = true},
        {.parts = true},
        {.parts = true, .system_text = true},
        {.plain = true, .merge_system = true},
        {.plain = true, .merge_system = true, .text_arguments = true},
    };
    char message[512];
    enum bl_status st = render_once(c, out);
    snprintf(message, sizeof message, "%s", st ? bl_error() : "");
    if ((!st && !is_suspect(c)) || st == BL_ENOMEM)
        return st;
    struct chat first = *c;
    bool good = false;
    for (size_t i = 0; i < BL_COUNT(fits) && !good; i++)
        if (is_worth_trying(&first, fits[i]) && !(fits[i].merge_system && out->bytes))
            BL_TRY(try_fit(c, fits[i], out, &good));
    return out->bytes ? BL_OK : bl_fail(st, "%s", message); /* what is wrong with the original */
}

enum bl_status bl_chat_render(const struct bl_jinja *template, const struct bl_chat_input *in,
                              struct bl_jinja_text *out)
{
    struct chat c = {.template = template, .in = in};
    *out = (struct bl_jinja_text){0};
    if (!is_given(in->messages))
        return bl_fail(BL_EINVAL, "messages: there are none");
    return in->adapt ? render_adapted(&c, out) : render_once(&c, out);
}
