/* SPDX-License-Identifier: MIT */
#include "generate.h"

#include "io.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int failed(const struct bl_generator *g, enum bl_status st)
{
    return bl_report_status(g->report, BL_STAGE_RUN, st);
}

int bl_generator_init(struct bl_generator *g, const struct bl_sampling *sampling)
{
    enum bl_status st = bl_session_create(&g->session, g->engine);

    if (!st)
        st = bl_sampler_create(&g->sampler, sampling, bl_engine_n_vocab(g->engine));
    return st ? failed(g, st) : bl_generator_start(g);
}

void bl_generator_finish(struct bl_generator *g)
{
    bl_text_destroy(g->text);
    bl_sampler_destroy(g->sampler);
    bl_session_destroy(g->session);
    free(g->held);
    g->text = NULL;
    g->sampler = NULL;
    g->session = NULL;
    g->held = NULL;
}

int bl_generator_start(struct bl_generator *g)
{
    g->n_fed = g->n_generated = g->n_steps = 0;
    g->feed_ns = g->decode_ns = 0;
    g->stopped = "interrupted";
    bl_text_destroy(g->text);
    g->text = NULL;
    enum bl_status st = bl_text_create(&g->text, bl_engine_vocab(g->engine), false);
    return st ? failed(g, st) : BL_EXIT_OK;
}

/* ---- what the session holds ---- */

static bool note_held(struct bl_generator *g, const int32_t *ids, size_t n)
{
    while (g->n_held + n > g->cap_held) {
        size_t cap = g->cap_held ? 2 * g->cap_held : 256;
        int32_t *bigger = realloc(g->held, cap * sizeof *bigger);
        if (!bigger) {
            bl_report_error(g->report, "out of memory");
            return false;
        }
        g->held = bigger;
        g->cap_held = cap;
    }
    for (size_t i = 0; i < n; i++)
        g->held[g->n_held++] = ids[i];
    return true;
}

/* Physical batches one by one, so that an interruption waits for no more than one of them. */
static int feed(struct bl_generator *g, const int32_t *ids, size_t n)
{
    uint32_t cap = n < g->chunk_tokens ? (uint32_t)n : g->chunk_tokens;
    struct bl_session **session = malloc(cap * sizeof *session);
    uint8_t *no_logits = calloc(cap, 1);
    uint64_t start = now_ns();
    int code = BL_EXIT_FAILURE;

    if (!session || !no_logits) {
        bl_report_error(g->report, "out of memory");
        goto out;
    }
    for (uint32_t i = 0; i < cap; i++)
        session[i] = g->session;
    code = BL_EXIT_OK;
    for (size_t done = 0; done < n && !code && !bl_interrupt_code();) {
        size_t left = n - done;
        struct bl_batch b = {.n = left < cap ? (uint32_t)left : cap,
                             .token = ids + done,
                             .session = session,
                             .want_logits = left > cap ? no_logits : NULL};
        enum bl_status st = bl_decode(g->engine, &b);
        if (st)
            code = failed(g, st);
        else if (!note_held(g, b.token, b.n))
            code = BL_EXIT_FAILURE;
        else
            g->n_fed += b.n;
        done += b.n;
        g->last_row = b.n - 1;
    }
    g->feed_ns += now_ns() - start;
out:
    free(session);
    free(no_logits);
    return code ? code : bl_interrupt_code();
}

/* The last token is always fed anew: its logits are wanted. A state that cannot be taken back is
 * built again from the beginning. */
int bl_generator_hold(struct bl_generator *g, const int32_t *ids, size_t n)
{
    size_t same = 0;

    while (same + 1 < n && same < g->n_held && g->held[same] == ids[same])
        same++;
    enum bl_status st = bl_session_rewind(g->session, same);
    if (st == BL_ELIMIT)
        st = bl_session_rewind(g->session, same = 0);
    if (st)
        return failed(g, st);
    g->n_held = same;
    for (size_t i = same; i < n; i++)
        bl_sampler_accept(g->sampler, ids[i]);
    return feed(g, ids + same, n - same);
}

/* ---- sampling ---- */

static bool write_token(struct bl_generator *g, int32_t id, int *code)
{
    const char *bytes;
    size_t n;
    enum bl_status st = bl_text_push(g->text, id, &bytes, &n);

    *code = st ? failed(g, st) : g->write(g->arg, bytes, n) ? BL_EXIT_OK : BL_EXIT_FAILURE;
    return !*code;
}

static int step(struct bl_generator *g, int32_t id)
{
    struct bl_batch one = {.n = 1, .token = &id, .session = &g->session};
    uint64_t start = now_ns();
    enum bl_status st = bl_decode(g->engine, &one);

    if (st)
        return failed(g, st);
    g->decode_ns += now_ns() - start;
    g->n_steps++;
    g->last_row = 0;
    return note_held(g, &id, 1) ? BL_EXIT_OK : BL_EXIT_FAILURE;
}

int bl_generator_run(struct bl_generator *g, uint64_t n_most)
{
    const struct bl_vocab *vocab = bl_engine_vocab(g->engine);
    int code;

    for (;;) {
        g->stopped = "interrupted";
        if (bl_interrupt_code())
            return bl_interrupt_code();
        g->stopped = "-n reached";
        if (g->n_generated >= n_most)
            return BL_EXIT_OK;
        int32_t id = bl_sampler_pick(g->sampler, bl_logits(g->engine, g->last_row));
        g->stopped = "end token";
        if (bl_vocab_is_end(vocab, id))
            return BL_EXIT_OK;
        bl_sampler_accept(g->sampler, id);
        g->n_generated++;
        if (!write_token(g, id, &code))
            return code;
        g->stopped = "context full";
        if (bl_session_n_tokens(g->session) >= bl_engine_ctx(g->engine))
            return BL_EXIT_OK;
        g->stopped = "interrupted"; /* where the step ends early */
        if (g->n_generated < n_most && (code = step(g, id)))
            return code;
    }
}

int bl_generator_flush(struct bl_generator *g)
{
    const char *bytes;
    size_t n;
    enum bl_status st = bl_text_flush(g->text, &bytes, &n);

    if (st)
        return failed(g, st);
    return g->write(g->arg, bytes, n) ? BL_EXIT_OK : BL_EXIT_FAILURE;
}

/* ---- speeds ---- */

static double per_second(size_t n, uint64_t ns)
{
    return ns ? (double)n * 1e9 / (double)ns : 0;
}

void bl_generator_report(const struct bl_generator *g)
{
    double prompt = per_second(g->n_fed, g->feed_ns);
    double decode = per_second(g->n_steps, g->decode_ns);

    if (g->report->json) {
        fprintf(stderr,
                "{\"event\":\"done\",\"prompt_tokens\":%zu,\"prompt_tokens_per_s\":%.2f,"
                "\"generated_tokens\":%zu,\"decode_tokens_per_s\":%.2f,\"stopped\":\"%s\"}\n",
                g->n_fed, prompt, g->n_generated, decode, g->stopped);
        return;
    }
    bl_report_note(
        g->report,
        "prompt %zu token%s, %.1f tokens/s; decode %zu token%s, %.1f tokens/s; stopped: %s",
        g->n_fed, bl_report_plural(g->n_fed), prompt, g->n_generated,
        bl_report_plural(g->n_generated), decode, g->stopped);
}
