/* SPDX-License-Identifier: MIT */
/* Token ids against recordings of another implementation: every pre-tokeniser kind, its aliases,
 * and, where BALLAST_REFERENCE names the folder, real vocabularies and the prompts of the reference
 * models. */
#include "support.h"

#include "gguf.h"
#include "vocab_bytes.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <unistd.h>

#define DATA BL_TEST_DATA "/tokenizer"

/* ---- files ---- */

static cJSON *read_json(const char *folder, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.json", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s: cannot be read", path);
    struct gb b = {0};
    char part[4096];
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;)
        gb_bytes(&b, part, n);
    fclose(f);
    cJSON *j = cJSON_ParseWithLength((const char *)b.p, b.n);
    gb_finish(&b);
    if (!j)
        fail_msg("%s: not JSON", path);
    return j;
}

static struct bl_gguf *open_file(const char *folder, const char *name)
{
    char path[1024];
    struct bl_gguf *g = NULL;
    snprintf(path, sizeof path, "%s/%s.gguf", folder, name);
    if (bl_gguf_open(&g, path))
        fail_msg("%s", bl_error());
    return g;
}

/* The tiny vocabulary under another tokenizer.ggml.pre. */
static enum bl_status open_tiny(struct bl_vocab **out, const char *pre)
{
    struct bl_gguf *g = open_file(DATA, "tiny"), *copy = NULL;
    struct bl_gguf_writer *w = NULL;
    char path[] = "/tmp/ballast-tiny-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(bl_gguf_writer_create(&w, path, 32), BL_OK);
    for (uint32_t i = 0; i < bl_gguf_n_kv(g); i++) {
        const struct bl_kv *kv = bl_gguf_kv(g, i);
        enum bl_status st = strcmp(kv->key, "tokenizer.ggml.pre")
                                ? bl_gguf_put_kv(w, kv)
                                : bl_gguf_put_str(w, kv->key, pre, strlen(pre));
        assert_int_equal(st, BL_OK);
    }
    assert_int_equal(bl_gguf_writer_finish(w), BL_OK);
    assert_int_equal(bl_gguf_open(&copy, path), BL_OK);
    unlink(path);
    enum bl_status st = bl_vocab_open(out, copy);
    bl_gguf_close(copy);
    bl_gguf_close(g);
    return st;
}

/* ---- where the recording is not what is right ---- */

struct deviation {
    const char *vocabulary, *text, *reason;
    int ids[64]; /* ours; -1 ends */
};
#define MARKS "the recording cuts words at combining marks; the pattern counts \\p{M} as letters"
#define CASE "the recording does not cut between lower and upper case; the pattern does"
#define ONE_BOS "a text that begins with BOS does not get a second one"
#define HINDI                                                                                      \
    "\xE0\xA4\xA8\xE0\xA4\xAE\xE0\xA4\xB8\xE0\xA5\x8D\xE0\xA4\xA4\xE0\xA5\x87 "                    \
    "\xE0\xA4\xA6\xE0\xA5\x81\xE0\xA4\xA8\xE0\xA4\xBF\xE0\xA4\xAF\xE0\xA4\xBE "                    \
    "\xE0\xA5\xA7\xE0\xA5\xA8\xE0\xA5\xA9"
#define THAI                                                                                       \
    "\xE0\xB8\xAA\xE0\xB8\xA7\xE0\xB8\xB1\xE0\xB8\xAA\xE0\xB8\x94\xE0\xB8\xB5"                     \
    "\xE0\xB8\x8A\xE0\xB8\xB2\xE0\xB8\xA7\xE0\xB9\x82\xE0\xB8\xA5\xE0\xB8\x81"
#define KHMER                                                                                      \
    "\xE1\x9E\x87\xE1\x9F\x86\xE1\x9E\x9A\xE1\x9E\xB6\xE1\x9E\x94\xE1\x9E\x9F\xE1\x9E\xBD\xE1\x9E" \
    "\x9A"
#define HINDI_IDS                                                                                  \
    {                                                                                              \
        469, 174, 283, 184, 305, 804, 32, 283, 166, 305, 129, 469, 191, 283, 175, 283, 190, 32,    \
            305, 167, 305, 168, 305, 169, -1                                                       \
    }
#define THAI_IDS                                                                                   \
    {                                                                                              \
        467, 167, 274, 177, 467, 776, -1                                                           \
    }
#define KHMER_IDS                                                                                  \
    {                                                                                              \
        296, 135, 225, 650, -1                                                                     \
    }

/* clang-format off */
static const struct deviation deviations[] = {
    {"pre-gpt-4o", HINDI, MARKS, HINDI_IDS},
    {"pre-gpt-4o", THAI, MARKS, THAI_IDS},
    {"pre-gpt-4o", KHMER, MARKS, KHMER_IDS},
    {"pre-tekken", HINDI, MARKS, HINDI_IDS},
    {"pre-tekken", THAI, MARKS, THAI_IDS},
    {"pre-tekken", KHMER, MARKS, KHMER_IDS},
    {"pre-kimi-k2", HINDI, MARKS, HINDI_IDS},
    {"pre-kimi-k2", THAI, MARKS, THAI_IDS},
    {"pre-kimi-k2", KHMER, MARKS, KHMER_IDS},
    {"pre-kimi-k2", "camelCase PascalCase snake_case SCREAMING_CASE HTTPServer iPhone15Pro", CASE,
     {99, 547, 108, 67, 278, 101, 32, 80, 278, 545, 108, 67, 278, 101, 293, 110, 97, 107, 101, 95, 99, 278, 101, 32, 83,
      67, 396, 65, 77, 73, 78, 71, 95, 67, 65, 551, 446, 268, 32, 105, 80, 104, 524, 566, 80, 339, -1}},
    {"llama-spm", "<s>", ONE_BOS, {1, -1}},
    {"llama-spm", "<s>Hello</s>", ONE_BOS, {1, 15043, 2, -1}},
};
/* clang-format on */

static const struct deviation *find_deviation(const char *vocabulary, const char *text,
                                              unsigned flags)
{
    for (size_t i = 0; i < BL_COUNT(deviations); i++) {
        const struct deviation *d = &deviations[i];
        bool when = strcmp(d->reason, ONE_BOS) != 0 || flags;
        if (when && strcmp(d->vocabulary, vocabulary) == 0 && strcmp(d->text, text) == 0)
            return d;
    }
    return NULL;
}

static bool same_ids(const int32_t *id, size_t n, const cJSON *want)
{
    size_t i = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, want) if (i >= n || id[i++] != item->valueint) return false;
    return i == n;
}

static bool as_listed(const int32_t *id, size_t n, const struct deviation *d)
{
    size_t i = 0;
    while (i < n && id[i] == d->ids[i])
        i++;
    return i == n && d->ids[i] == -1;
}

/* Checks one text; returns 1 where it deviates as listed. */
static int check_text(const struct bl_vocab *v, const char *name, const cJSON *text,
                      const cJSON *want)
{
    const char *s = cJSON_GetObjectItem(text, "text")->valuestring;
    unsigned flags = 0;
    int32_t *id;
    size_t n;
    if (cJSON_IsTrue(cJSON_GetObjectItem(text, "add_special")))
        flags |= BL_TOK_ADD_SPECIAL;
    if (cJSON_IsTrue(cJSON_GetObjectItem(text, "parse_special")))
        flags |= BL_TOK_PARSE_SPECIAL;
    assert_int_equal(bl_tokenize(v, s, strlen(s), flags, &id, &n), BL_OK);
    const struct deviation *d = find_deviation(name, s, flags);
    bool same = same_ids(id, n, want);
    if (d && (same || !as_listed(id, n, d)))
        fail_msg("%s: \"%s\" %s (%s)", name, s,
                 same ? "is listed as a deviation but does not deviate" : "deviates otherwise",
                 d->reason);
    if (!d && !same)
        fail_msg("%s: \"%s\" gives other ids", name, s);
    free(id);
    return d != NULL;
}

static int listed(const char *name)
{
    int n = 0;
    for (size_t i = 0; i < BL_COUNT(deviations); i++)
        n += strcmp(deviations[i].vocabulary, name) == 0;
    return n;
}

static void check_recording(const struct bl_vocab *v, const char *folder, const char *name)
{
    cJSON *texts = read_json(folder, "texts"), *recording = read_json(folder, name);
    const cJSON *want = cJSON_GetObjectItem(recording, "ids"), *text;
    int i = 0, n_deviations = 0;
    assert_int_equal(cJSON_GetArraySize(texts), 129);
    assert_int_equal(cJSON_GetArraySize(want), 129);
    cJSON_ArrayForEach(text, texts) n_deviations +=
        check_text(v, name, text, cJSON_GetArrayItem(want, i++));
    assert_int_equal(n_deviations, listed(name));
    cJSON_Delete(texts);
    cJSON_Delete(recording);
}

/* ---- the tiny vocabulary ---- */

static const char *const kinds[] = {"default", "deepseek-llm", "deepseek-v3", "glm4",
                                    "gpt-2",   "gpt-4o",       "kimi-k2",     "llama-bpe",
                                    "qwen2",   "qwen35",       "starcoder",   "tekken"};

static void check_kind(const char *pre, const char *like)
{
    struct bl_vocab *v = NULL;
    char name[64];
    if (open_tiny(&v, pre))
        fail_msg("%s: %s", pre, bl_error());
    snprintf(name, sizeof name, "pre-%s", like);
    check_recording(v, DATA, name);
    bl_vocab_close(v);
}

static void test_kinds(void **state)
{
    (void)state;
    for (size_t i = 0; i < BL_COUNT(kinds); i++)
        check_kind(kinds[i], kinds[i]);
}

static bool is_recorded(const char *kind)
{
    for (size_t i = 0; i < BL_COUNT(kinds); i++)
        if (strcmp(kinds[i], kind) == 0)
            return true;
    return false;
}

static void check_refused(const char *pre)
{
    struct bl_vocab *v = NULL;
    assert_int_equal(open_tiny(&v, pre), BL_EUNSUPPORTED);
    assert_null(v);
    assert_non_null(strstr(bl_error(), pre));
    assert_non_null(strstr(bl_error(), "llama-bpe, qwen2"));
    assert_null(strchr(bl_error(), '\n'));
}

static void test_aliases(void **state)
{
    cJSON *j = read_json(DATA, "pre-aliases");
    const cJSON *alias;
    int n = 0, n_refused = 0;
    (void)state;
    cJSON_ArrayForEach(alias, cJSON_GetObjectItem(j, "same_ids_as"))
    {
        bool known = is_recorded(alias->valuestring);
        if (known)
            check_kind(alias->string, alias->valuestring);
        else
            check_refused(alias->string);
        n++;
        n_refused += !known;
    }
    assert_int_equal(n, 28);
    assert_int_equal(n_refused, 2); /* bloom and gpt3-finnish */
    cJSON_Delete(j);
}

/* Names of the table that no recording mentions mean what their kind's own name means. */
static void test_other_names(void **state)
{
    (void)state;
    check_kind("llama-v3", "llama-bpe");
    check_kind("pixtral", "llama-bpe");
    check_kind("chatglm-bpe", "glm4");
    check_kind("deepseek-r1-qwen", "qwen2");
    check_kind("llama4", "gpt-4o");
    check_kind("phi-2", "gpt-2");
}

static void test_refused_kinds(void **state)
{
    static const char *const others[] = {
        "afmoe",      "chameleon", "deepseek-coder", "exaone-moe", "falcon", "poro-chat",
        "seed-coder", "superbpe",  "tiny_aya",       "viking",     "youtu",  "new-kind",
    };
    (void)state;
    for (size_t i = 0; i < BL_COUNT(others); i++)
        check_refused(others[i]);
}

/* ---- what cannot be kept here ---- */

static const char *reference(const char *what)
{
    const char *folder = getenv("BALLAST_REFERENCE");
    if (!folder)
        print_message("skipped: BALLAST_REFERENCE is not set: %s not compared\n", what);
    return folder;
}

static void check_file(const char *folder, const char *name)
{
    struct bl_gguf *g = open_file(folder, name);
    struct bl_vocab *v = NULL;
    enum bl_status st = bl_vocab_open(&v, g);
    uint64_t plan = bl_vocab_plan_bytes(g);
    if (st == BL_EUNSUPPORTED) {
        const char *pre = strncmp(name, "pre-", 4) ? name : name + 4;
        assert_null(bl_pretok_rule_find(pre, strlen(pre)));
        assert_non_null(strstr(bl_error(), pre));
        bl_gguf_close(g);
        return;
    }
    if (st)
        fail_msg("%s: %s", name, bl_error());
    check_recording(v, folder, name);
    assert_true(bl_vocab_heap_bytes(v) <= plan);
    assert_true(plan <= 2 * bl_vocab_heap_bytes(v) + (1 << 20));
    bl_vocab_close(v);
    bl_gguf_close(g);
}

/* Every vocabulary of the folder, the real ones among them. */
static void test_reference_vocabularies(void **state)
{
    const char *root = reference("real vocabularies (llama-spm, gpt-2)");
    char folder[400];
    int n = 0;
    (void)state;
    if (!root)
        return;
    snprintf(folder, sizeof folder, "%s/tokenizer", root);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char *dot = strrchr(e->d_name, '.');
        if (!dot || strcmp(dot, ".gguf") != 0)
            continue;
        *dot = 0;
        check_file(folder, e->d_name);
        n++;
    }
    closedir(dir);
    assert_true(n >= 24);
}

static int check_case(const char *root, const char *name)
{
    char folder[400];
    snprintf(folder, sizeof folder, "%s/cases", root);
    cJSON *j = read_json(folder, name);
    const cJSON *text = cJSON_GetObjectItem(cJSON_GetObjectItem(j, "prompts"), "text");
    if (!text) {
        cJSON_Delete(j);
        return 0;
    }
    snprintf(folder, sizeof folder, "%s/models", root);
    struct bl_gguf *g = open_file(folder, name);
    struct bl_vocab *v = NULL;
    const char *s = cJSON_GetObjectItem(text, "text")->valuestring;
    int32_t *id;
    size_t n;
    if (bl_vocab_open(&v, g))
        fail_msg("%s: %s", name, bl_error());
    assert_int_equal(bl_tokenize(v, s, strlen(s), BL_TOK_ADD_SPECIAL, &id, &n), BL_OK);
    if (!same_ids(id, n, cJSON_GetObjectItem(text, "ids")))
        fail_msg("%s: \"%s\" gives other ids", name, s);
    free(id);
    bl_vocab_close(v);
    bl_gguf_close(g);
    cJSON_Delete(j);
    return 1;
}

static void test_reference_prompts(void **state)
{
    const char *root = reference("prompts of the reference models");
    char folder[400];
    int n = 0;
    (void)state;
    if (!root)
        return;
    snprintf(folder, sizeof folder, "%s/cases", root);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char *dot = strrchr(e->d_name, '.');
        if (!dot || strcmp(dot, ".json") != 0)
            continue;
        *dot = 0;
        n += check_case(root, e->d_name);
    }
    closedir(dir);
    assert_true(n > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_aliases),
        cmocka_unit_test(test_other_names),
        cmocka_unit_test(test_refused_kinds),
        cmocka_unit_test(test_reference_vocabularies),
        cmocka_unit_test(test_reference_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
