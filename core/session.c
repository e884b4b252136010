/* SPDX-License-Identifier: MIT */
/* One step over any mix of sequences: checks, cuts into physical batches, writes params, runs. */
#include "engine.h"

#include "args.h"
#include "mem.h"

#include <stdlib.h>

enum bl_status bl_session_create(struct bl_session **out, struct bl_engine *e)
{
    uint32_t slot = 0;

    while (slot < e->parts.plan.max_sessions && e->session[slot])
        slot++;
    if (slot == e->parts.plan.max_sessions)
        return bl_fail(BL_ELIMIT, "all %u sessions of the engine are in use", slot);
    struct bl_session *s = bl_calloc(1, sizeof *s);
    if (!s)
        return bl_fail(BL_ENOMEM, "out of memory for a session");
    s->engine = e;
    s->slot = slot;
    e->session[slot] = s;
    *out = s;
    return BL_OK;
}

void bl_session_destroy(struct bl_session *s)
{
    if (!s)
        return;
    s->engine->session[s->slot] = NULL;
    free(s);
}

uint64_t bl_session_n_tokens(const struct bl_session *s)
{
    return s->n_tok;
}

/* A ring still holds what a token at position `to` looks back on. */
static bool ring_reaches(const struct bl_engine *e, const struct bl_state_desc *d, uint64_t to,
                         uint64_t high)
{
    struct bl_shape shape = bl_plan_bucket(&e->parts.plan, 1, 1);
    uint64_t rows = bl_state_rows(d, &shape);
    uint64_t back = d->law == BL_FIXED ? 1 : d->window - 1;
    if (d->group) /* what a group needs begins with one */
        back -= d->group - 1 - to % d->group;
    uint64_t oldest = to > back ? to - back : 0;

    return high <= rows || oldest >= high - rows;
}

/* BL_ELIMIT when a token at position n cannot be computed: what it needs was overwritten, by tokens
 * that were taken back since or by a step that failed. */
static enum bl_status stand_at(const struct bl_session *s, uint64_t n, const char *what)
{
    const struct bl_model *m = s->engine->parts.model;

    for (uint32_t i = 0; n && n < s->high && i < m->n_states; i++) {
        const struct bl_state_desc *d = &m->state[i];
        bool ring = d->law == BL_WINDOW || d->law == BL_FIXED;
        if (!ring || ring_reaches(s->engine, d, n, s->high))
            continue;
        if (d->law == BL_WINDOW && !d->tail)
            return bl_fail(BL_ELIMIT,
                           "cannot %s %llu tokens: %s keeps only the last %u; feed them again",
                           what, (unsigned long long)n, d->name, d->window);
        return bl_fail(BL_ELIMIT,
                       "cannot %s %llu tokens: recurrent state (%s) goes back %u from %llu;"
                       " rewind to 0 and feed them again",
                       what, (unsigned long long)n, d->name, d->slack_rows,
                       (unsigned long long)s->high);
    }
    return BL_OK;
}

enum bl_status bl_session_rewind(struct bl_session *s, uint64_t n_tokens)
{
    if (n_tokens > s->n_tok)
        return bl_fail(BL_EINVAL, "cannot rewind to %llu tokens: the session holds %llu",
                       (unsigned long long)n_tokens, (unsigned long long)s->n_tok);
    BL_TRY(stand_at(s, n_tokens, "rewind to"));
    s->n_tok = n_tokens;
    if (!n_tokens)
        s->high = 0;
    return BL_OK;
}

/* ---- checks before anything runs ---- */

static enum bl_status check_token(const struct bl_engine *e, const struct bl_batch *b, uint32_t i)
{
    if (b->token[i] < 0 || (uint32_t)b->token[i] >= e->parts.model->hp.n_vocab)
        return bl_fail(BL_EINVAL, "token %u of the batch is %d; the vocabulary has %u", i,
                       b->token[i], e->parts.model->hp.n_vocab);
    if (!b->session[i] || b->session[i]->engine != e)
        return bl_fail(BL_EINVAL, "token %u of the batch belongs to no session of this engine", i);
    return BL_OK;
}

static enum bl_status check_session(const struct bl_engine *e, const struct bl_session *s)
{
    uint64_t ctx = e->parts.plan.ctx_tokens;

    BL_TRY(stand_at(s, s->n_tok, "go on from"));
    if (s->n_tok + s->n_batch > ctx)
        return bl_fail(BL_ELIMIT,
                       "context full: %llu tokens held, %u more asked for, room for %llu",
                       (unsigned long long)s->n_tok, s->n_batch, (unsigned long long)ctx);
    return BL_OK;
}

/* Notes for each session how many entries are its own and which is the last. */
static enum bl_status count_entries(struct bl_engine *e, const struct bl_batch *b)
{
    for (uint32_t s = 0; s < e->parts.plan.max_sessions; s++)
        if (e->session[s])
            e->session[s]->n_batch = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        BL_TRY(check_token(e, b, i));
        b->session[i]->n_batch++;
        b->session[i]->last_entry = i;
    }
    return BL_OK;
}

static enum bl_status check_batch(struct bl_engine *e, const struct bl_batch *b)
{
    const struct bl_plan *p = &e->parts.plan;
    uint32_t rows = 0;

    if (!b->n || b->n > p->batch_tokens)
        return bl_fail(BL_EINVAL, "a batch of %u tokens; 1 to %u are possible", b->n,
                       p->batch_tokens);
    BL_TRY(count_entries(e, b));
    for (uint32_t i = 0; i < b->n; i++) {
        bool wanted = b->want_logits ? b->want_logits[i] : b->session[i]->last_entry == i;
        e->out_row[i] = wanted ? rows++ : UINT32_MAX;
    }
    if (rows > p->out_tokens)
        return bl_fail(BL_ELIMIT, "logits of %u tokens are wanted, the engine was opened for %u",
                       rows, p->out_tokens);
    for (uint32_t s = 0; s < p->max_sessions; s++)
        if (e->session[s] && e->session[s]->n_batch)
            BL_TRY(check_session(e, e->session[s]));
    return BL_OK;
}

/* ---- one physical batch ---- */

static struct bl_params *lay_out(struct bl_engine *e, uint32_t n_tok)
{
    const struct bl_plan *p = &e->parts.plan;
    uint32_t array = p->ubatch_tokens * (uint32_t)sizeof(uint32_t);
    struct bl_params *h = e->params.host;

    *h = (struct bl_params){
        .n_tok = n_tok, .n_seq = p->max_sessions, .n_bytes = (uint32_t)bl_params_bytes(p)};
    h->token_off = sizeof *h;
    h->pos_off = h->token_off + array;
    h->seq_off = h->pos_off + array;
    h->out_off = h->seq_off + array;
    h->table_off = h->out_off + array;
    return h;
}

/* Writes the block for batch entries [first, first + n) and moves the sessions' counts on; *row:
 * first output row. */
static void write_params(struct bl_engine *e, const struct bl_batch *b, uint32_t first, uint32_t n,
                         uint32_t *row)
{
    struct bl_params *h = lay_out(e, n);
    int32_t *token = BL_PARAMS_ARRAY(int32_t, h, h->token_off);
    uint32_t *pos = BL_PARAMS_ARRAY(uint32_t, h, h->pos_off);
    uint32_t *seq = BL_PARAMS_ARRAY(uint32_t, h, h->seq_off);
    uint32_t *out = BL_PARAMS_ARRAY(uint32_t, h, h->out_off);
    struct bl_seq_params *table = BL_PARAMS_ARRAY(struct bl_seq_params, h, h->table_off);

    for (uint32_t i = 0; i < n; i++) {
        struct bl_session *s = b->session[first + i];
        token[i] = b->token[first + i];
        pos[i] = (uint32_t)s->n_tok++;
        seq[i] = s->slot;
        if (e->out_row[first + i] == UINT32_MAX)
            continue;
        if (!h->n_out)
            *row = e->out_row[first + i];
        out[h->n_out++] = i;
    }
    for (uint32_t s = 0; s < h->n_seq; s++)
        table[s] = (struct bl_seq_params){e->session[s] ? (uint32_t)e->session[s]->n_tok : 0, s};
}

/* From here on the rows of these tokens count as overwritten, even if the step fails. */
static void note_high(const struct bl_batch *b, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct bl_session *s = b->session[first + i];
        if (s->n_tok > s->high)
            s->high = s->n_tok;
    }
}

static enum bl_status run_piece(struct bl_engine *e, const struct bl_batch *b, uint32_t first,
                                uint32_t n)
{
    const struct bl_params *h = e->params.host;
    const struct bl_program *program;
    uint64_t row_bytes = e->parts.model->hp.n_vocab * sizeof(float);
    uint32_t row = 0;

    write_params(e, b, first, n, &row);
    BL_TRY(bl_residency_arrive(&e->residency, e->sched.trace, false));
    BL_TRY(bl_weights_check(&e->weights, e->parts.model));
    struct bl_shape shape = bl_plan_bucket(&e->parts.plan, n, h->n_out);
    BL_TRY(bl_engine_program(e, &shape, &program));
    note_high(b, first, n);
    BL_TRY(bl_stage_begin(&e->stage, program, n));
    struct bl_step_io io = {&e->params,           h->n_bytes, &e->output, row * row_bytes,
                            h->n_out * row_bytes, &e->stage,  &e->stop};
    const enum bl_status st = bl_sched_run(&e->sched, program, e->place, &io, e->patience_ns);
    e->broken = e->broken || st == BL_ETIMEDOUT; /* what is stuck still has programs and memory */
    BL_TRY(st);
    return bl_residency_learn(&e->residency, program, &e->place[0].arena, n, e->sched.trace);
}

static void take_back(const struct bl_batch *b, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        b->session[first + i]->n_tok--;
}

enum bl_status bl_decode(struct bl_engine *e, const struct bl_batch *b)
{
    enum bl_status st;

    e->n_last = 0;
    BL_TRY(bl_engine_whole(e));
    BL_TRY(check_batch(e, b));
    for (uint32_t first = 0; first < b->n; first += e->parts.plan.ubatch_tokens) {
        uint32_t left = b->n - first;
        uint32_t n = left < e->parts.plan.ubatch_tokens ? left : e->parts.plan.ubatch_tokens;
        st = run_piece(e, b, first, n);
        if (st) {
            take_back(b, first, n);
            if (st == BL_ECANCELLED)
                bl_engine_renew(e);
            return st;
        }
    }
    e->n_last = b->n;
    return BL_OK;
}

const float *bl_logits(const struct bl_engine *e, uint32_t i)
{
    if (i >= e->n_last || e->out_row[i] == UINT32_MAX)
        return NULL;
    return (const float *)e->output.host + (size_t)e->out_row[i] * e->parts.model->hp.n_vocab;
}
