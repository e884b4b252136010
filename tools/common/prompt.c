/* SPDX-License-Identifier: MIT */
#include "prompt.h"

#include "io.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

static const struct bl_arg prompt_rows[] = {
    {"--raw", BL_ARG_FLAG, offsetof(struct bl_prompt_args, raw),
     .help = "no chat template: the text is continued as it is"},
    {"-sys,--system", BL_ARG_TEXT, offsetof(struct bl_prompt_args, system), "TEXT",
     .help = "system message before the conversation"},
    {"--chat-template", BL_ARG_TEXT, offsetof(struct bl_prompt_args, template_file), "FILE",
     .help = "Jinja template to use in place of the model's own"},
};

struct bl_arg_group bl_prompt_group(struct bl_prompt_args *a)
{
    return (struct bl_arg_group){"Chat template", prompt_rows,
                                 sizeof prompt_rows / sizeof prompt_rows[0], a};
}

int bl_prompt_args_check(const struct bl_command *command, const struct bl_prompt_args *a)
{
    if (a->raw && (a->template_file || a->system))
        return bl_args_fail(command, "--raw uses no chat template and excludes %s",
                            a->template_file ? "--chat-template" : "--system");
    return BL_EXIT_OK;
}

int bl_prompt_template(const struct bl_report *report, const char *file, const struct bl_gguf *gguf,
                       const struct bl_vocab *vocab, struct bl_chat **out)
{
    char *source = NULL;
    size_t n = 0;

    if (file && !bl_io_read(report, file, &source, &n))
        return BL_EXIT_USAGE;
    enum bl_status st = bl_chat_open(out, gguf, vocab, source, n);
    free(source);
    if (!st || st == BL_EUNAVAILABLE)
        return BL_EXIT_OK;
    if (!file)
        return bl_report_status(report, BL_STAGE_OPEN, st);
    bl_report_error(report, "%s: %s", file, bl_error());
    return BL_EXIT_FAILURE;
}

/* ---- dialogue ---- */

static int out_of_memory(const struct bl_dialogue *d)
{
    bl_report_error(d->report, "out of memory");
    return BL_EXIT_FAILURE;
}

int bl_dialogue_init(struct bl_dialogue *d, const struct bl_prompt_args *args,
                     struct bl_engine *engine)
{
    d->vocab = bl_engine_vocab(engine);
    if (!d->vocab) {
        bl_report_error(d->report, "the model file has no tokenizer; 'ballast logits' takes ids");
        return BL_EXIT_MODEL;
    }
    if (!args->raw) {
        int code = bl_prompt_template(d->report, args->template_file, bl_engine_gguf(engine),
                                      d->vocab, &d->chat);
        if (code)
            return code;
    }
    if (args->system && !d->chat) {
        bl_report_error(d->report, "--system needs a chat template; the model has none, "
                                   "--chat-template gives one");
        return BL_EXIT_FAILURE;
    }
    if (args->system && !(d->system = strdup(args->system)))
        return out_of_memory(d);
    return bl_dialogue_clear(d) ? BL_EXIT_OK : out_of_memory(d);
}

void bl_dialogue_finish(struct bl_dialogue *d)
{
    bl_chat_close(d->chat);
    bl_answer_destroy(d->answer);
    cJSON_Delete(d->messages);
    free(d->system);
    *d = (struct bl_dialogue){0};
}

bool bl_dialogue_clear(struct bl_dialogue *d)
{
    cJSON_Delete(d->messages);
    d->messages = cJSON_CreateArray();
    return d->messages &&
           (!d->system || bl_dialogue_add(d, "system", d->system, strlen(d->system)));
}

static bool put_text(cJSON *message, const char *key, const char *text, size_t n)
{
    char *clean = malloc(3 * n + 1);
    bool good = false;

    if (clean) {
        bl_clean_text(clean, 3 * n + 1, text, n, false);
        good = cJSON_AddStringToObject(message, key, clean);
    }
    free(clean);
    return good;
}

static bool add_message(struct bl_dialogue *d, const char *role, const char *text, size_t n,
                        const char *reasoning, size_t n_reasoning)
{
    cJSON *message = cJSON_CreateObject();

    if (message && cJSON_AddStringToObject(message, "role", role) &&
        put_text(message, "content", text, n) &&
        (!n_reasoning || put_text(message, "reasoning_content", reasoning, n_reasoning)) &&
        cJSON_AddItemToArray(d->messages, message))
        return true;
    cJSON_Delete(message);
    return false;
}

bool bl_dialogue_add(struct bl_dialogue *d, const char *role, const char *text, size_t n)
{
    return add_message(d, role, text, n, NULL, 0);
}

bool bl_dialogue_add_answer(struct bl_dialogue *d, const struct bl_reply *r)
{
    return add_message(d, "assistant", r->text.bytes ? r->text.bytes : "", r->text.n,
                       r->reasoning.bytes, r->reasoning.n);
}

void bl_dialogue_drop_last(struct bl_dialogue *d)
{
    int n = cJSON_GetArraySize(d->messages);

    if (n)
        cJSON_DeleteItemFromArray(d->messages, n - 1);
}

/* Without a template: the last message's text alone. */
static int plain_ids(struct bl_dialogue *d, int32_t **ids, size_t *n)
{
    int last = cJSON_GetArraySize(d->messages) - 1;
    const char *text =
        cJSON_GetStringValue(cJSON_GetObjectItem(cJSON_GetArrayItem(d->messages, last), "content"));
    enum bl_status st = bl_tokenize(d->vocab, text ? text : "", text ? strlen(text) : 0,
                                    BL_TOK_ADD_SPECIAL | BL_TOK_PARSE_SPECIAL, ids, n);
    return st ? bl_report_status(d->report, BL_STAGE_RUN, st) : BL_EXIT_OK;
}

int bl_dialogue_ids(struct bl_dialogue *d, int32_t **ids, size_t *n)
{
    struct bl_prompt prompt = {0};

    if (!d->chat)
        return plain_ids(d, ids, n);
    char *messages = cJSON_PrintUnformatted(d->messages);
    if (!messages)
        return out_of_memory(d);
    enum bl_status st =
        bl_chat_prompt(d->chat, &(struct bl_conversation){.messages = messages}, &prompt);
    bl_answer_destroy(d->answer);
    d->answer = NULL;
    if (!st)
        st = bl_answer_create(&d->answer, d->chat, &prompt);
    if (!st)
        st = bl_tokenize_chat(d->vocab, prompt.text, prompt.n_bytes, prompt.user, prompt.n_user,
                              BL_TOK_ADD_SPECIAL | BL_TOK_PARSE_SPECIAL | BL_TOK_NO_EOS, ids, n);
    bl_prompt_finish(&prompt);
    free(messages);
    return st ? bl_report_status(d->report, BL_STAGE_RUN, st) : BL_EXIT_OK;
}
