/* SPDX-License-Identifier: MIT */
/* The seed corpus of fuzz_jinja: our templates, each with its variables under "v". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

static char *read_all(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    char *text = n > 0 ? calloc((size_t)n + 1, 1) : NULL;
    if (text && fread(text, 1, (size_t)n, f) != (size_t)n)
        text[0] = 0;
    fclose(f);
    return text;
}

/* A case's variables are taken from v by name, so that the template's names mean something. */
static const char from_v[] =
    "{% set messages, tools, rows, d = v.messages, v.tools, v.rows, v.d %}";

static int write_seed(const char *dir, int i, const char *before, const char *source,
                      const char *json)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/case-%03d", dir, i);
    FILE *f = fopen(path, "wb");
    if (!f)
        return 0;
    fprintf(f, "%s%s%c%s", before, source, 0, json);
    return fclose(f) == 0;
}

/* One seed with the case's variables, one more with its messages as a conversation. */
static int write_case(const char *dir, int *n, const cJSON *e)
{
    const char *source = cJSON_GetStringValue(cJSON_GetObjectItem(e, "template"));
    const cJSON *context = cJSON_GetObjectItem(e, "context");
    const cJSON *messages = cJSON_GetObjectItem(context, "messages");
    char *all = cJSON_PrintUnformatted(context), *some = cJSON_PrintUnformatted(messages);
    int good = source && all && write_seed(dir, (*n)++, from_v, source, all);
    if (messages)
        good = good && some && write_seed(dir, (*n)++, "", source, some);
    cJSON_free(all);
    cJSON_free(some);
    return good;
}

int main(int argc, char **argv)
{
    char *text = argc == 2 ? read_all(BL_CASES) : NULL;
    cJSON *cases = cJSON_Parse(text ? text : "");
    const cJSON *e;
    int n = 0, good = 1;
    cJSON_ArrayForEach(e, cases) good = good && write_case(argv[1], &n, e);
    cJSON_Delete(cases);
    free(text);
    return n && good ? 0 : 1;
}
