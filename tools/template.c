/* SPDX-License-Identifier: MIT */
/* template.c — `ballast template`: the prompt that a chat template makes of a conversation. */
#include "common/engine_args.h"
#include "common/io.h"
#include "common/prompt.h"
#include "verbs.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

struct template_args {
    const char *model, *template_file, *messages, *tools;
    struct bl_arg_texts set;
    bool no_generation_prompt;
};
#define AT(member) offsetof(struct template_args, member)

static const struct bl_arg rows[] = {
    {"-m,--model", BL_ARG_TEXT, AT(model), "FILE", .instead = 1, .required = true,
     .help = "GGUF file whose template and begin and end tokens are used"},
    {"--chat-template", BL_ARG_TEXT, AT(template_file), "FILE", .instead = 1,
     .help = "Jinja template; it gets no begin and end tokens"},
    {"--messages", BL_ARG_TEXT, AT(messages), "FILE", .instead = 2, .required = true,
     .help = "JSON array of messages with role and content (- is standard input)"},
    {"--tools", BL_ARG_TEXT, AT(tools), "FILE", .help = "JSON array of tools"},
    {"--set", BL_ARG_TEXTS, AT(set), "NAME=VALUE",
     .help = "a template variable, JSON or else text; may be given again"},
    {"--no-generation-prompt", BL_ARG_FLAG, AT(no_generation_prompt),
     .help = "do not ask for an answer at the end"},
};

/* The --set options as one JSON object; NULL: *code says why. */
static char *variables_of(const struct bl_command *c, const struct bl_arg_texts *set, int *code)
{
    cJSON *all = cJSON_CreateObject();
    char *text = NULL;

    for (size_t i = 0; all && i < set->n; i++) {
        const char *equals = strchr(set->item[i], '=');
        if (!equals || equals == set->item[i]) {
            *code = bl_args_fail(c, "--set wants NAME=VALUE, not '%s'", set->item[i]);
            goto out;
        }
        char *name = strndup(set->item[i], (size_t)(equals - set->item[i]));
        cJSON *value = cJSON_ParseWithOpts(equals + 1, NULL, true);
        value = value ? value : cJSON_CreateString(equals + 1);
        if (name)
            cJSON_DeleteItemFromObjectCaseSensitive(all, name); /* the last one counts */
        bool good = name && value && cJSON_AddItemToObject(all, name, value);
        free(name);
        if (!good) {
            cJSON_Delete(value);
            goto no_memory;
        }
    }
    text = all ? cJSON_PrintUnformatted(all) : NULL;
no_memory:
    if (!text)
        bl_report_error(&c->report, "out of memory");
out:
    cJSON_Delete(all);
    return text;
}

static int print_prompt(const struct bl_report *r, const struct bl_chat *chat,
                        const struct bl_conversation *conversation)
{
    struct bl_prompt prompt = {0};

    if (bl_chat_prompt(chat, conversation, &prompt)) {
        bl_report_error(r, "%s", bl_error()); /* says which of the files */
        return BL_EXIT_FAILURE;
    }
    bool good = bl_out_write(r, prompt.text, prompt.n_bytes);
    bl_prompt_finish(&prompt);
    return good ? bl_out_close(r) : BL_EXIT_FAILURE;
}

static int open_template(const struct bl_report *r, const struct template_args *a,
                         struct bl_gguf **gguf, struct bl_vocab **vocab, struct bl_chat **chat)
{
    enum bl_status st = a->model ? bl_gguf_open(gguf, a->model) : BL_OK;

    if (!st && *gguf)
        st = bl_vocab_open(vocab, *gguf);
    if (st && st != BL_EUNAVAILABLE)
        return bl_report_status(r, BL_STAGE_OPEN, st);
    int code = bl_prompt_template(r, a->template_file, *gguf, *vocab, chat);
    if (!code && !*chat) {
        bl_report_error(r, "%s has no chat template", a->model);
        return BL_EXIT_MODEL;
    }
    return code;
}

static int render(const struct bl_report *r, const struct template_args *a, const char *variables)
{
    struct bl_conversation conversation = {
        .variables = variables, .as_given = true, .no_generation_prompt = a->no_generation_prompt};
    struct bl_gguf *gguf = NULL;
    struct bl_vocab *vocab = NULL;
    struct bl_chat *chat = NULL;
    char *messages = NULL, *tools = NULL;
    size_t n;
    int code = open_template(r, a, &gguf, &vocab, &chat);

    if (!code && (!bl_io_read(r, a->messages, &messages, &n) ||
                  (a->tools && !bl_io_read(r, a->tools, &tools, &n))))
        code = BL_EXIT_USAGE;
    conversation.messages = messages;
    conversation.tools = tools;
    if (!code)
        code = print_prompt(r, chat, &conversation);
    free(messages);
    free(tools);
    bl_chat_close(chat);
    bl_vocab_close(vocab);
    bl_gguf_close(gguf);
    return code;
}

int bl_verb_template(int argc, char **argv)
{
    struct template_args args = {0};
    const struct bl_arg_group groups[] = {{"Conversation", rows, COUNT(rows), &args}};
    struct bl_command command = {
        .report = {.verb = "template"},
        .usage = "(-m FILE | --chat-template FILE) --messages FILE [options]",
        .about = "Prints the prompt that a chat template makes of a conversation, byte for byte.",
        .groups = groups,
        .n_groups = COUNT(groups),
        .more = "Example:\n"
                "  ballast template -m model.gguf --messages chat.json --set enable_thinking=false",
    };
    enum bl_parsed parsed = bl_args_parse(&command, argc, argv);
    if (parsed != BL_PARSED)
        return bl_args_code(&command, parsed);
    int code = BL_EXIT_FAILURE;
    char *variables = variables_of(&command, &args.set, &code);
    if (variables)
        code = render(&command.report, &args, variables);
    free(variables);
    return code;
}
