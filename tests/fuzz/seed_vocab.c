/* SPDX-License-Identifier: MIT */
/* seed_vocab FOLDER: writes the seed corpus of fuzz_vocab: a small vocabulary of each kind, each
 * with texts. */
#include "gguf_bytes.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const char *folder;

struct token {
    const char *text;
    int type;
};

static void put_tokens(struct gb *b, const struct token *extra, unsigned n_extra, int byte_tokens)
{
    char s[8];
    gb_array(b, "tokenizer.ggml.tokens", GB_STRING, 256 + n_extra);
    for (unsigned i = 0, moved = 256; i < 256; i++) {
        unsigned c = (i > ' ' && i < 0x7F) || (i > 0xA0 && i != 0xAD) ? i : moved++;
        if (byte_tokens)
            snprintf(s, sizeof s, "<0x%02X>", i);
        else if (c < 0x80)
            snprintf(s, sizeof s, "%c", (int)c);
        else
            snprintf(s, sizeof s, "%c%c", (int)(0xC0 | c >> 6), (int)(0x80 | (c & 0x3F)));
        gb_str(b, s);
    }
    for (unsigned i = 0; i < n_extra; i++)
        gb_str(b, extra[i].text);
    gb_array(b, "tokenizer.ggml.token_type", GB_I32, 256 + n_extra);
    for (unsigned i = 0; i < 256; i++)
        gb_int(b, 4, byte_tokens ? 6 : 1);
    for (unsigned i = 0; i < n_extra; i++)
        gb_int(b, 4, (unsigned)extra[i].type);
}

static const struct token extra[] = {{"ab", 1},
                                     {"bc", 1},
                                     {"abc", 1},
                                     {"a", 1},
                                     {"b", 5},
                                     {"\xE2\x96\x81", 1},
                                     {"\xE2\x96\x81"
                                      "a",
                                      1},
                                     {"<s>", 3},
                                     {"</s>", 3},
                                     {"<unk>", 2},
                                     {"<|im_end|>", 3},
                                     {"<user>", 4},
                                     {"<user><", 4},
                                     {"\n\n", 1},
                                     {"", 1},
                                     {"<|return|>", 3},
                                     {"<|call|>", 3},
                                     {"<|end|>", 3}};
enum { N_EXTRA = sizeof extra / sizeof extra[0] };

static void put_file(struct gb *b, const char *model, const char *pre)
{
    int spm = strcmp(model, "llama") == 0, bytes = strcmp(model, "gpt2") != 0;
    gb_header(b, 0, 9);
    gb_kv_str(b, "tokenizer.ggml.model", model);
    gb_kv_str(b, "tokenizer.ggml.pre", pre);
    put_tokens(b, extra, N_EXTRA, bytes);
    if (spm) {
        gb_array(b, "tokenizer.ggml.scores", GB_F32, 256 + N_EXTRA);
        for (unsigned i = 0; i < 256 + N_EXTRA; i++)
            gb_int(b, 4, 0xC0000000u + (i % 7 << 20)); /* -2 and below */
    } else {
        gb_array(b, "tokenizer.ggml.merges", GB_STRING, 3);
        gb_str(b, "b c");
        gb_str(b, "a b");
        gb_str(b, "a bc");
    }
    gb_kv_int(b, "tokenizer.ggml.bos_token_id", GB_U32, 263);
    gb_kv_int(b, "tokenizer.ggml.eos_token_id", GB_U32, 264);
    gb_kv_int(b, "tokenizer.ggml.add_bos_token", GB_BOOL, 1);
    gb_kv_str(b, "general.name", spm ? "phi-3" : "");
}

static void save(const char *name, unsigned flags, const char *text, const char *model,
                 const char *pre)
{
    char path[4096];
    struct gb b = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    gb_int(&b, 1, flags);
    gb_int(&b, 2, strlen(text));
    gb_bytes(&b, text, strlen(text));
    put_file(&b, model, pre);
    gb_save(&b, path);
    gb_finish(&b);
}

int main(int argc, char **argv)
{
    static const char *const pres[] = {
        "default",   "deepseek-llm", "deepseek-v3", "gpt-2",  "gpt-4o", "jais-2", "kimi-k2",
        "llama-bpe", "minicpm5",     "qwen2",       "qwen35", "smollm", "tekken"};
    static const char text[] =
        "abc <s>A b\n\n12345 don't  \xE4\xB8\xAD\xE6\x96\x87\xE3\x80\x82\xF0\x9F\x98\x80\xFF"
        "\xE0\xA4\xA8\xE0\xA5\x8D <user><user>< !?\t \r\n\xC2\xA0</s>  x ";
    if (argc != 2)
        return 2;
    folder = argv[1];
    mkdir(folder, 0777);
    for (size_t i = 0; i < sizeof pres / sizeof pres[0]; i++)
        save(pres[i], (unsigned)i % 4, text, "gpt2", pres[i]);
    save("spm", 3, text, "llama", "default");
    save("spm-plain", 0, text, "llama", "default");
    save("gemma4", 3, text, "gemma4", "gemma4");
    save("bert", 0, text, "bert", "default");
    return 0;
}
