/* SPDX-License-Identifier: MIT */
/* Devices of CUDA and HIP through the contract, over an emulated driver: order, failures, times. */
#include "contract_rig.h"

#include "thread.h"

#include <pthread.h>
#include <time.h>

/* ---- order ---- */

/* A number goes round: the CPU raises it, two cards pass it on, through host memory. Nobody who
 * enqueues waits. */
struct round {
    struct bl_device *dev[3]; /* CPU and two cards */
    struct bl_stream *stream[3];
    struct bl_mem host, there[3];
};

static void round_open(struct round *r)
{
    *r = (struct round){.dev = {open_cpu(), rig_open(0), rig_open(1)}};
    r->host = block(r->dev[0], BYTES, true);
    for (unsigned d = 0; d < 3; d++) {
        ok(r->dev[d]->ops->stream_open(r->dev[d], &r->stream[d]));
        r->there[d] = block(r->dev[d], BYTES, d == 0);
    }
}

static void round_close(struct round *r)
{
    for (unsigned d = 3; d-- > 0;)
        r->dev[d]->ops->stream_close(r->stream[d]); /* who may wait for others first */
    r->dev[0]->ops->mem_free(&r->host);
    for (unsigned d = 0; d < 3; d++) {
        r->dev[d]->ops->mem_free(&r->there[d]);
        r->dev[d]->ops->close(r->dev[d]);
    }
}

static void hand_over(struct round *r, unsigned from, unsigned to)
{
    struct bl_point p;

    ok(r->dev[from]->ops->signal(r->stream[from], &p));
    ok(r->dev[to]->ops->wait(r->stream[to], p));
}

static void pass_on(struct round *r, unsigned d)
{
    ok(r->dev[d]->ops->copy(r->stream[d], &r->there[d], 0, &r->host, 0, BYTES));
    ok(r->dev[d]->ops->copy(r->stream[d], &r->host, 0, &r->there[d], 0, BYTES));
}

static void streams_wait_for_each_other(void **state)
{
    enum { ROUNDS = 12 };
    struct round r;
    (void)state;

    round_open(&r);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        ok(r.dev[0]->ops->fill(r.stream[0], &r.host, 0, i, BYTES));
        hand_over(&r, 0, 1);
        ok(r.dev[1]->ops->copy(r.stream[1], &r.there[1], 0, &r.host, 0, BYTES));
        hand_over(&r, 1, 0);
        ok(r.dev[0]->ops->fill(r.stream[0], &r.host, 0, 0xdead,
                               BYTES)); /* in case somebody reads too late */
        hand_over(&r, 0, 1);
        ok(r.dev[1]->ops->copy(r.stream[1], &r.host, 0, &r.there[1], 0, BYTES));
        hand_over(&r, 1, 2);
        pass_on(&r, 2);
        hand_over(&r, 2, 0);
        ok(r.dev[0]->ops->copy(r.stream[0], &r.there[0], 4 * i, &r.host, 4 * i, 4));
    }
    finish(r.stream[0]);
    const uint32_t *w = r.there[0].host;
    for (uint32_t i = 1; i <= ROUNDS; i++)
        assert_int_equal(w[i], i);
    assert_int_equal(rig_counts().pageable_copies, 0);
    round_close(&r);
    assert_true(rig_cards(&two));
}

static void a_card_waits_without_who_enqueues(void **state)
{
    struct round r;
    struct bl_point late, end;
    (void)state;

    if (rig.is_old) /* it cannot */
        return;
    round_open(&r);
    ok(r.dev[1]->ops->signal(r.stream[1], &late));
    ok(r.dev[1]->ops->join(late, LONG_NS));
    for (int i = 0; i < 50; i++)
        ok(r.dev[0]->ops->fill(r.stream[0], &r.there[0], 0, 1, BYTES));
    ok(r.dev[0]->ops->signal(r.stream[0], &late));
    const uint64_t before = bl_now_ns();
    for (int i = 0; i < 20; i++)
        ok(r.dev[1]->ops->wait(r.stream[1], late));
    ok(r.dev[1]->ops->signal(r.stream[1], &end));
    assert_true(bl_now_ns() - before < LONG_NS);
    ok(r.dev[1]->ops->join(end, LONG_NS));
    assert_true(r.dev[0]->ops->poll(late));
    round_close(&r);
    assert_true(rig_cards(&two));
}

/* Not even where a driver cannot wait for a number: cards of one vendor know each other's events.
 */
static void cards_of_a_kind_wait_for_each_other(void **state)
{
    struct bl_point late, end, good;
    uint32_t enqueued, done;
    (void)state;

    assert_true(rig_cards(&(struct emu_config){.n_cards = 2, .late_us = 900000, .seed = 5}));
    struct bl_device *a = rig_open(0), *b = rig_open(1);
    struct bl_mem m = block(a, BYTES, false);
    struct bl_stream *s, *t, *u;
    ok(a->ops->stream_open(a, &s));
    ok(b->ops->stream_open(b, &t));
    ok(b->ops->stream_open(b, &u));
    ok(b->ops->signal(u, &good));
    ok(b->ops->join(good, LONG_NS));
    b->ops->patience(t, 1);
    ok(a->ops->fill(s, &m, 0, 1, BYTES));
    ok(a->ops->signal(s, &late));
    ok(b->ops->wait(t, late));
    b->ops->progress(t, &enqueued, &done);
    assert_int_equal(enqueued, 1);
    ok(b->ops->signal(t, &end));
    ok(b->ops->join(end, LONG_NS));
    assert_true(a->ops->poll(late));
    const struct bl_point never = {s, late.value + 1};
    a->ops->cancel(s);
    must_fail(b->ops->wait(t, never), BL_ECANCELLED, "waits for another device");
    must_fail(b->ops->wait(t, good), BL_ECANCELLED,
              "waits for another device"); /* whatever it is */
    b->ops->stream_close(u);
    b->ops->stream_close(t);
    a->ops->stream_close(s);
    a->ops->mem_free(&m);
    a->ops->close(a);
    b->ops->close(b);
    assert_true(rig_cards(&two));
}

/* Whichever card the thread used last. */
static void what_was_handed_over_is_done_before_a_stream_closes(void **state)
{
    (void)state;
    assert_true(rig_cards(&(struct emu_config){.n_cards = 2, .late_us = 30000, .seed = 3}));
    struct bl_device *a = rig_open(0), *b = rig_open(1);
    struct bl_mem m = block(a, BYTES, false), h = block(a, BYTES, true);
    struct bl_stream *s, *t;
    struct bl_point p;

    ok(a->ops->stream_open(a, &s));
    ok(b->ops->stream_open(b, &t));
    memset(h.host, 0, BYTES);
    for (uint32_t i = 0; i < 5; i++)
        ok(a->ops->fill(s, &m, 0, 7, BYTES));
    ok(a->ops->copy(s, &h, 0, &m, 0, BYTES));
    ok(b->ops->signal(t, &p));
    a->ops->stream_close(s);
    assert_int_equal(*(uint32_t *)h.host, 7);
    b->ops->stream_close(t);
    a->ops->mem_free(&m);
    a->ops->mem_free(&h);
    a->ops->close(a);
    b->ops->close(b);
    assert_true(rig_cards(&two));
}

static void points_are_many(void **state)
{
    enum { MANY = 1500 };
    (void)state;
    assert_true(rig_cards(&(struct emu_config){.n_cards = 1, .late_us = 5}));
    struct bl_device *dev = rig_open(0);
    struct bl_stream *s;
    struct bl_point p[MANY];
    uint32_t enqueued, done;

    ok(dev->ops->stream_open(dev, &s));
    for (int i = 0; i < MANY; i++)
        ok(dev->ops->signal(s, &p[i]));
    ok(dev->ops->join(p[MANY - 1], LONG_NS));
    for (int i = 0; i < MANY; i++)
        assert_true(dev->ops->poll(p[i]));
    ok(dev->ops->join(p[0], 0));
    dev->ops->progress(s, &enqueued, &done);
    assert_int_equal(enqueued, MANY);
    assert_int_equal(done, MANY);
    dev->ops->stream_close(s);
    dev->ops->close(dev);
    assert_true(rig_cards(&two));
}

/* ---- what goes wrong ---- */

static void what_is_stuck_is_given_up(void **state)
{
    (void)state;
    assert_true(rig_cards(&(struct emu_config){.n_cards = 1, .stuck_nth = 2}));
    struct bl_device *dev = rig_open(0);
    struct bl_mem m = block(dev, BYTES, false);
    struct bl_stream *s;
    struct bl_point p, q;
    struct bl_lapse lapse[2];
    struct bl_lapse_log log = {.lapse = lapse, .cap = 2};
    uint32_t enqueued, done;

    ok(dev->ops->stream_open(dev, &s));
    dev->ops->patience(s, SHORT_NS);
    ok(dev->ops->signal(s, &p));
    ok(dev->ops->fill(s, &m, 0, 1, 16));
    ok(dev->ops->signal(s, &q));
    ok(dev->ops->join(p, LONG_NS));
    must_fail(dev->ops->join(q, SHORT_NS), BL_ETIMEDOUT, "no answer");
    assert_false(dev->ops->poll(q));
    dev->ops->progress(s, &enqueued, &done);
    assert_int_equal(enqueued, 3);
    assert_int_equal(done, 1);
    enum bl_status st = BL_OK;
    for (int i = 0; i < 1000 && !st; i++)
        st = dev->ops->signal(s, &q);
    must_fail(st, BL_ETIMEDOUT, "are waited for");
    dev->ops->cancel(s);
    must_fail(dev->ops->join(q, LONG_NS), BL_ECANCELLED, "cancelled");
    must_fail(dev->ops->fill(s, &m, 0, 1, 16), BL_ECANCELLED, "cancelled");
    dev->ops->trace(s, &log); /* waits for nothing */
    dev->ops->trace(s, NULL);
    assert_int_equal(log.n, 0);
    dev->ops->stream_close(s); /* gives the card up */
    dev->ops->mem_free(&m);
    dev->ops->close(dev);
    assert_false(rig_cards(&two)); /* the driver kept it all */
}

static void copies_in_flight_are_so_many(void **state)
{
    static struct bl_stream *s; /* outlives its closing: a stuck driver may still call for it */
    enum bl_status st = BL_OK;
    int n = 0;
    (void)state;
    assert_true(rig_cards(&(struct emu_config){.n_cards = 1, .stuck_nth = 1, .no_register = true}));
    struct bl_device *cpu = open_cpu(), *dev = rig_open(0);
    struct bl_mem host = block(cpu, BYTES, true), m = block(dev, BYTES, false);

    ok(dev->ops->stream_open(dev, &s));
    dev->ops->patience(s, SHORT_NS);
    while (!st && n++ < 1000)
        st = dev->ops->copy(s, &m, 0, &host, 0, BYTES);
    must_fail(st, BL_ETIMEDOUT, "pieces of copies have not been moved");
    dev->ops->cancel(s);
    dev->ops->stream_close(s);
    dev->ops->mem_free(&m);
    dev->ops->close(dev);
    assert_false(rig_cards(&two)); /* the driver kept it all */
    cpu->ops->mem_free(&host);
    cpu->ops->close(cpu);
}

static void a_wait_that_never_ends_can_be_cancelled(void **state)
{
    struct round r;
    struct bl_stream *other;
    struct bl_point never, end;
    enum bl_status st = BL_OK;
    uint32_t enqueued, done;
    int n = 0;
    (void)state;

    if (rig.is_old)
        return;
    round_open(&r);
    struct bl_mem m = block(r.dev[1], BYTES, false);
    ok(r.dev[0]->ops->stream_open(r.dev[0], &other));
    /* a point that the other will only reach much later */
    never = (struct bl_point){other, 1};
    ok(r.dev[1]->ops->wait(r.stream[1], never));
    ok(r.dev[1]->ops->signal(r.stream[1], &end));
    must_fail(r.dev[1]->ops->join(end, SHORT_NS), BL_ETIMEDOUT, "no answer");
    r.dev[1]->ops->patience(r.stream[1], SHORT_NS);
    while (!st && n++ < 1000) /* as many as may be in flight */
        st = r.dev[1]->ops->wait(r.stream[1], never);
    must_fail(st, BL_ETIMEDOUT, "waits for other devices have not ended");
    r.dev[1]->ops->cancel(r.stream[1]);
    r.dev[1]->ops->progress(r.stream[1], &enqueued, &done);
    assert_int_equal(done, 0); /* given up is not done */
    must_fail(r.dev[1]->ops->join(end, LONG_NS), BL_ECANCELLED, "cancelled");
    r.dev[1]->ops->mem_free(&m); /* waits for all that the card does */
    r.dev[1]->ops->stream_close(r.stream[1]);
    ok(r.dev[1]->ops->stream_open(r.dev[1], &r.stream[1])); /* the card is as good as before */
    finish(r.stream[1]);
    r.dev[0]->ops->stream_close(other);
    round_close(&r);
    assert_true(rig_cards(&two));
}

static void *cancel_soon(void *arg)
{
    struct round *r = arg;

    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    r->dev[1]->ops->cancel(r->stream[1]);
    return NULL;
}

/* Where a driver cannot wait for a number, who enqueues does, no longer than it has patience. */
static void waits_of_old_drivers_end(void **state)
{
    struct round r;
    struct bl_stream *other;
    pthread_t thread;
    (void)state;

    if (!rig.is_old)
        return;
    round_open(&r);
    ok(r.dev[0]->ops->stream_open(r.dev[0], &other));
    const struct bl_point never = {other, 1};
    r.dev[1]->ops->patience(r.stream[1], SHORT_NS);
    assert_int_equal(r.dev[1]->ops->wait(r.stream[1], never), BL_ETIMEDOUT);
    finish(r.stream[1]); /* as good as it was */
    r.dev[1]->ops->patience(r.stream[1], UINT64_MAX);
    assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &r), 0);
    assert_int_not_equal(r.dev[1]->ops->wait(r.stream[1], never), BL_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    r.dev[0]->ops->stream_close(other);
    round_close(&r);
    assert_true(rig_cards(&two));
}

/* After a while, as good as it was. */
static void a_wait_that_never_ends_does_not_keep_a_stream_open(void **state)
{
    struct round r;
    struct bl_stream *other;
    (void)state;

    if (rig.is_old)
        return;
    round_open(&r);
    ok(r.dev[0]->ops->stream_open(r.dev[0], &other));
    ok(r.dev[1]->ops->wait(r.stream[1], (struct bl_point){other, 1}));
    r.dev[1]->ops->stream_close(r.stream[1]);
    ok(r.dev[1]->ops->stream_open(r.dev[1], &r.stream[1]));
    finish(r.stream[1]);
    r.dev[0]->ops->stream_close(other);
    round_close(&r);
    assert_true(rig_cards(&two));
}

static void failures_of_others_are_told(void **state)
{
    struct round r;
    struct bl_point p, end;
    (void)state;

    round_open(&r);
    ok(r.dev[0]->ops->fill(r.stream[0], &r.there[0], 0, 1, BYTES));
    r.dev[0]->ops->cancel(r.stream[0]);
    ok(r.dev[0]->ops->signal(r.stream[0], &p));
    enum bl_status st = r.dev[1]->ops->wait(r.stream[1], p);
    if (!st)
        st = r.dev[1]->ops->signal(r.stream[1], &end);
    if (!st)
        st = r.dev[1]->ops->join(end, LONG_NS);
    must_fail(st, BL_ECANCELLED, "waits for another device");
    round_close(&r);
    assert_true(rig_cards(&two));
}

/* ---- every call fails once ---- */

static enum bl_status some_of_everything(struct bl_device *cpu, struct bl_mem *host)
{
    const struct bl_device_config c = {.threads = 1};
    struct bl_device *dev;
    struct bl_stream *s = NULL, *other = NULL;
    struct bl_mem m = {0}, h = {0}, file = {.host = host->host, .bytes = host->bytes};
    struct bl_point p, q;
    enum bl_status st;

    BL_TRY(rig.backend->open(0, &c, &dev));
    (void)((st = dev->ops->mem_alloc(dev, BYTES, false, &m)) ||
           (st = dev->ops->mem_alloc(dev, BYTES, true, &h)) ||
           (st = dev->ops->stream_open(dev, &s)) || (st = cpu->ops->stream_open(cpu, &other)) ||
           (st = cpu->ops->fill(other, host, 0, 3, BYTES)) || (st = cpu->ops->signal(other, &q)) ||
           (st = dev->ops->wait(s, q)) || (st = dev->ops->copy(s, &m, 0, host, 0, BYTES)) ||
           (st = dev->ops->copy(s, &h, 0, &m, 0, BYTES)) ||
           (st = dev->ops->copy(s, &m, 0, &file, 0, BYTES)) ||
           (st = dev->ops->fill(s, &m, 0, 1, 16)) || (st = dev->ops->signal(s, &p)) ||
           (st = dev->ops->join(p, LONG_NS)));
    if (s)
        dev->ops->stream_close(s);
    if (other)
        cpu->ops->stream_close(other);
    if (m.dev)
        dev->ops->mem_free(&m);
    if (h.dev)
        dev->ops->mem_free(&h);
    dev->ops->close(dev);
    return st;
}

static void any_call_may_fail(void **state)
{
    enum { MOST = 5000 };
    struct bl_device *cpu = open_cpu();
    struct bl_mem host = block(cpu, BYTES, true);
    uint32_t n = 1, n_failed = 0;
    (void)state;

    for (enum bl_status st = BL_EDEVICE; n < MOST; n++) {
        if (!rig_cards(&(struct emu_config){.n_cards = 1, .fail_nth = n}))
            fail_msg("call %u failed, and something was kept", n - 1);
        st = some_of_everything(cpu, &host);
        n_failed += st != BL_OK;
        if (st && strlen(bl_error()) < 8)
            fail_msg("call %u: '%s'", n, bl_error());
        if (!st && rig_counts().calls < n)
            break;
    }
    assert_true(n < MOST);
    /* what goes on without: a block that is not registered is staged, a card's place is not known
     */
    if (n - 1 - n_failed > 12)
        fail_msg("%u of %u failing calls were not noticed", n - 1 - n_failed, n - 1);
    cpu->ops->mem_free(&host);
    cpu->ops->close(cpu);
    assert_true(rig_cards(&two));
}

/* ---- times ---- */

static void times_are_kept_in_order(void **state)
{
    struct bl_lapse lapse[8];
    struct bl_lapse_log log = {.lapse = lapse, .cap = 8};
    (void)state;
    struct bl_device *dev = rig_open(0);
    struct bl_mem m = block(dev, BYTES, false), h = block(dev, BYTES, true);
    struct bl_stream *s;
    const uint64_t before = bl_now_ns();

    ok(dev->ops->stream_open(dev, &s));
    for (int round = 0; round < 2; round++) {
        atomic_store(&log.n, 0);
        dev->ops->trace(s, &log);
        ok(dev->ops->copy(s, &m, 0, &h, 0, BYTES));
        ok(dev->ops->fill(s, &m, 0, 1, BYTES));
        finish(s);
        dev->ops->trace(s, NULL);
        finish(s);
        assert_int_equal(log.n, 3);
        for (uint32_t i = 0; i < log.n; i++) {
            assert_true(lapse[i].begin_ns <= lapse[i].end_ns);
            assert_true(i == 0 || lapse[i].begin_ns >= lapse[i - 1].end_ns);
        }
        assert_true(lapse[0].begin_ns >= before);
        assert_true(lapse[2].end_ns <= bl_now_ns() + 1000000);
    }
    dev->ops->stream_close(s);
    dev->ops->mem_free(&m);
    dev->ops->mem_free(&h);
    dev->ops->close(dev);
    assert_true(rig_cards(&two));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(streams_wait_for_each_other, afresh),
        cmocka_unit_test_setup(a_card_waits_without_who_enqueues, afresh),
        cmocka_unit_test_setup(cards_of_a_kind_wait_for_each_other, afresh),
        cmocka_unit_test_setup(what_was_handed_over_is_done_before_a_stream_closes, afresh),
        cmocka_unit_test_setup(points_are_many, afresh),
        cmocka_unit_test_setup(what_is_stuck_is_given_up, afresh),
        cmocka_unit_test_setup(copies_in_flight_are_so_many, afresh),
        cmocka_unit_test_setup(a_wait_that_never_ends_can_be_cancelled, afresh),
        cmocka_unit_test_setup(waits_of_old_drivers_end, afresh),
        cmocka_unit_test_setup(a_wait_that_never_ends_does_not_keep_a_stream_open, afresh),
        cmocka_unit_test_setup(failures_of_others_are_told, afresh),
        cmocka_unit_test_setup(any_call_may_fail, afresh),
        cmocka_unit_test_setup(times_are_kept_in_order, afresh),
    };

    return contract_load(argc, argv) ? cmocka_run_group_tests(tests, NULL, NULL) : 2;
}
