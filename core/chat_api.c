/* SPDX-License-Identifier: MIT */
/* The public face of chat.h: a template with its model's tokens, conversations as JSON text. */
#include "answer.h"
#include "chat.h"
#include "gguf.h"
#include "mem.h"
#include "vocab.h"

#include <stdlib.h>

struct bl_chat {
    struct bl_jinja *jinja;
    const struct bl_answer_form *form;
    char *bos, *eos; /* texts; NULL: none */
};

static enum bl_status compile_of_file(struct bl_jinja **out, const struct bl_gguf *gguf)
{
    const char *text = NULL, *arch = NULL;
    uint64_t n = 0, n_arch = 0;
    char name[64];

    BL_TRY(bl_gguf_str(gguf, "tokenizer.chat_template", false, &text, &n));
    if (text)
        return bl_jinja_compile(out, text, n, NULL);
    BL_TRY(bl_gguf_str(gguf, "general.architecture", true, &arch, &n_arch));
    if (n_arch >= sizeof name)
        return bl_fail(BL_EUNAVAILABLE, "the model has no chat template");
    memcpy(name, arch, n_arch);
    name[n_arch] = 0;
    return bl_chat_compile_builtin(out, name);
}

static enum bl_status copy_piece(char **out, const struct bl_vocab *v, int32_t id)
{
    uint32_t n;

    if (id < 0)
        return BL_OK;
    const char *piece = bl_vocab_piece(v, id, &n);
    *out = bl_calloc((size_t)n + 1, 1);
    if (!*out)
        return bl_fail(BL_ENOMEM, "out of memory for a chat template");
    memcpy(*out, piece, n);
    return BL_OK;
}

enum bl_status bl_chat_open(struct bl_chat **out, const struct bl_gguf *gguf,
                            const struct bl_vocab *vocab, const char *source, size_t n_bytes)
{
    struct bl_chat *c = bl_calloc(1, sizeof *c);
    enum bl_status st;

    if (!c)
        return bl_fail(BL_ENOMEM, "out of memory for a chat template");
    st = source ? bl_jinja_compile(&c->jinja, source, n_bytes, NULL)
                : compile_of_file(&c->jinja, gguf);
    if (!st && vocab)
        st = copy_piece(&c->bos, vocab, vocab->bos);
    if (!st && vocab)
        st = copy_piece(&c->eos, vocab, vocab->eos);
    if (st) {
        bl_chat_close(c);
        return st;
    }
    c->form = bl_answer_form_of(c->jinja, vocab);
    *out = c;
    return BL_OK;
}

const struct bl_answer_form *bl_chat_form(const struct bl_chat *c)
{
    return c->form;
}

void bl_chat_close(struct bl_chat *c)
{
    if (!c)
        return;
    bl_jinja_destroy(c->jinja);
    free(c->bos);
    free(c->eos);
    free(c);
}

static struct bl_jinja_json json_of(const char *text)
{
    return (struct bl_jinja_json){.text = text, .n_bytes = text ? strlen(text) : 0};
}

static enum bl_status take(struct bl_prompt *out, struct bl_jinja_text *t)
{
    struct bl_span *user = bl_calloc(t->n_user + 1, sizeof *user);

    if (!user)
        return bl_fail(BL_ENOMEM, "out of memory for a prompt");
    for (size_t i = 0; i < t->n_user; i++)
        user[i] = (struct bl_span){t->user[i].begin, t->user[i].end};
    *out = (struct bl_prompt){t->bytes, t->n_bytes, user, t->n_user};
    t->bytes = NULL;
    return BL_OK;
}

enum bl_status bl_chat_prompt(const struct bl_chat *c, const struct bl_conversation *conversation,
                              struct bl_prompt *out)
{
    time_t seconds = time(NULL);
    struct tm now;
    const struct bl_chat_input in = {
        .messages = json_of(conversation->messages),
        .tools = json_of(conversation->tools),
        .variables = json_of(conversation->variables),
        .bos = c->bos,
        .eos = c->eos,
        .no_generation_prompt = conversation->no_generation_prompt,
        .adapt = !conversation->as_given,
        .form = c->form,
        .now = localtime_r(&seconds, &now),
    };
    struct bl_jinja_text text = {0};

    BL_TRY(bl_chat_render(c->jinja, &in, &text));
    enum bl_status st = take(out, &text);
    bl_jinja_text_finish(&text);
    return st;
}

void bl_prompt_finish(struct bl_prompt *p)
{
    free(p->text);
    free(p->user);
    *p = (struct bl_prompt){0};
}
