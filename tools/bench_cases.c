/* SPDX-License-Identifier: MIT */
/* Which rows a command line asks for. */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TOKENS = 1 << 30 };

/* ---- lists of words ---- */

static bool add_word(struct bl_bench_words *w, const char *text, size_t n)
{
    const char **grown = realloc(w->item, (w->n + 1) * sizeof *grown);

    if (!grown)
        return false;
    w->item = grown;
    char *copy = malloc(n + 1);
    if (!copy)
        return false;
    memcpy(copy, text, n);
    copy[n] = 0;
    w->item[w->n++] = copy;
    return true;
}

bool bl_bench_words_add(struct bl_bench_words *w, const char *text)
{
    /* A file may have a comma in its name. */
    if (!access(text, F_OK))
        return add_word(w, text, strlen(text));
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, ",");
        if (!add_word(w, p, n))
            return false;
        p += n;
        if (!*p)
            return true;
    }
}

static void free_words(struct bl_bench_words *w)
{
    for (size_t i = 0; i < w->n; i++)
        free((void *)(uintptr_t)w->item[i]);
    free(w->item);
}

void bl_bench_lists_finish(struct bl_bench_lists *l)
{
    free_words(&l->model);
    free_words(&l->type_k);
    free_words(&l->type_v);
}

bool bl_bench_pair_add(struct bl_bench_lists *l, const char *text, char error[160])
{
    struct bl_ranges two = {.n = 0};

    if (!bl_ranges_add(&two, text, 0, MAX_TOKENS, error))
        return false;
    if (two.n != 2 || strchr(text, '-') || !(two.item[0] + two.item[1])) {
        snprintf(error, 160, "'%.40s' is not PROMPT,GENERATED such as 512,128", text);
        return false;
    }
    if (l->n_pairs == sizeof l->pair / sizeof l->pair[0]) {
        snprintf(error, 160, "more than %zu pairs", l->n_pairs);
        return false;
    }
    l->pair[l->n_pairs].prompt = (uint32_t)two.item[0];
    l->pair[l->n_pairs++].gen = (uint32_t)two.item[1];
    return true;
}

/* ---- combinations ---- */

struct maker {
    const struct bl_bench_lists *lists;
    struct bl_bench_case *out; /* NULL: count only */
    size_t n;
};

static void add_case(struct maker *m, struct bl_bench_case c, uint32_t prompt, uint32_t gen)
{
    c.prompt = prompt;
    c.gen = gen;
    if (c.ubatch > c.batch)
        c.ubatch = c.batch;
    if (!prompt && !gen)
        return;
    if (m->out)
        m->out[m->n] = c;
    m->n++;
}

static void add_tests(struct maker *m, struct bl_bench_case c)
{
    const struct bl_bench_lists *l = m->lists;

    for (size_t i = 0; i < l->prompt.n; i++)
        add_case(m, c, (uint32_t)l->prompt.item[i], 0);
    for (size_t i = 0; i < l->gen.n; i++)
        add_case(m, c, 0, (uint32_t)l->gen.item[i]);
    for (size_t i = 0; i < l->n_pairs; i++)
        add_case(m, c, l->pair[i].prompt, l->pair[i].gen);
}

static void add_depths(struct maker *m, struct bl_bench_case c)
{
    const struct bl_bench_lists *l = m->lists;

    for (size_t d = 0; d < l->depth.n; d++) {
        c.depth = (uint32_t)l->depth.item[d];
        add_tests(m, c);
    }
}

static void add_threads(struct maker *m, struct bl_bench_case c)
{
    const struct bl_bench_lists *l = m->lists;

    for (size_t t = 0; t < l->threads.n; t++)
        for (size_t p = 0; p < (l->threads_batch.n ? l->threads_batch.n : 1); p++) {
            c.threads = (uint32_t)l->threads.item[t];
            c.threads_batch = l->threads_batch.n ? (uint32_t)l->threads_batch.item[p] : 0;
            add_depths(m, c);
        }
}

static void add_types(struct maker *m, struct bl_bench_case c)
{
    const struct bl_bench_lists *l = m->lists;

    for (size_t k = 0; k < l->type_k.n; k++)
        for (size_t v = 0; v < l->type_v.n; v++) {
            c.type_k = l->type_k.item[k];
            c.type_v = l->type_v.item[v];
            add_threads(m, c);
        }
}

static void add_all(struct maker *m)
{
    const struct bl_bench_lists *l = m->lists;

    m->n = 0;
    for (size_t i = 0; i < l->model.n; i++)
        for (size_t b = 0; b < l->batch.n; b++)
            for (size_t u = 0; u < l->ubatch.n; u++)
                add_types(m, (struct bl_bench_case){.model = l->model.item[i],
                                                    .batch = (uint32_t)l->batch.item[b],
                                                    .ubatch = (uint32_t)l->ubatch.item[u]});
}

bool bl_bench_cases(const struct bl_bench_lists *l, struct bl_bench_case **out, size_t *n)
{
    struct maker m = {.lists = l};

    add_all(&m);
    m.out = calloc(m.n + 1, sizeof *m.out);
    if (!m.out)
        return false;
    add_all(&m);
    *out = m.out;
    *n = m.n;
    return true;
}

void bl_bench_name(const struct bl_bench_case *c, char name[64])
{
    char test[40];

    if (c->prompt && c->gen)
        snprintf(test, sizeof test, "pp%u+tg%u", c->prompt, c->gen);
    else
        snprintf(test, sizeof test, "%s%u", c->prompt ? "pp" : "tg", c->prompt + c->gen);
    if (c->depth)
        snprintf(name, 64, "%s @ d%u", test, c->depth);
    else
        snprintf(name, 64, "%s", test);
}
