/* SPDX-License-Identifier: MIT */
/* The simulated device through the contract: budget, times, order, faults. */
#include "alloc_fail.h"
#include "support.h"

#include "args.h"
#include "mem.h"
#include "pace.h"
#include "sim/sim.h"
#include "thread.h"

enum { N = 256, KIB = 1024 };

/* ---- a pace of round figures: 1 us per node, a copy 100 ns and 1 ns a byte, 5 us to cross ---- */

struct round_pace {
    struct bl_pace base;
    double node_ns, link_ns; /* link: free from then on */
    int *n_open;
    uint32_t n_tok;
    uint64_t depth;
};

static double round_run(struct bl_pace *p, const struct bl_graph *g, const struct bl_node *first,
                        uint32_t n, uint32_t n_tok, uint64_t depth)
{
    struct round_pace *r = (struct round_pace *)p;
    assert_ptr_equal(first, g->nodes + 1);
    r->n_tok = n_tok;
    r->depth = depth;
    return n * r->node_ns;
}

static struct bl_copy_time round_copy(struct bl_pace *p, double ready_ns, uint64_t bytes,
                                      bool to_device)
{
    struct round_pace *r = (struct round_pace *)p;
    struct bl_copy_time t = {r->link_ns > ready_ns ? r->link_ns : ready_ns, 0};
    (void)to_device;
    t.end_ns = t.begin_ns + 100 + (double)bytes;
    r->link_ns = t.end_ns;
    return t;
}

static double round_cross(struct bl_pace *p, const struct bl_device *from)
{
    (void)p;
    assert_non_null(from);
    return 5000;
}

static void round_close(struct bl_pace *p)
{
    --*((struct round_pace *)p)->n_open;
    free(p);
}

static const struct bl_pace_ops round_ops = {round_run, round_copy, round_cross, round_close};
static int n_open;

static struct bl_pace *round_pace(double node_ns, struct bl_virtual_clock *clock)
{
    struct round_pace *r = calloc(1, sizeof *r);
    *r = (struct round_pace){.base = {&round_ops, clock}, .node_ns = node_ns, .n_open = &n_open};
    n_open++;
    return &r->base;
}

/* ---- a device that doubles N numbers ---- */

struct rig {
    struct bl_device *dev;
    const struct bl_device_ops *ops;
    struct bl_stream *stream;
    struct bl_graph g;
    struct bl_mem x, y, params, scratch;
    struct bl_segment *segment;
    float host_x[N], host_y[N];
    struct bl_mem mem_x, mem_y;
    uint64_t src[2], dst[1];
    struct bl_bound bound;
};

static void ok(enum bl_status st)
{
    if (st)
        fail_msg("%s: %s", bl_status_name(st), bl_error());
}

static enum bl_status open_sim(uint32_t index, const struct bl_simulated *sim,
                               struct bl_device **out)
{
    const struct bl_device_config c = {.threads = 1, .exact = true, .sim = sim};
    return bl_sim_backend.open(index, &c, out);
}

static void fill_params(struct bl_mem *m)
{
    struct bl_params *p = m->host;
    *p = (struct bl_params){.n_tok = 2, .n_seq = 1, .n_bytes = sizeof *p + 256};
    p->token_off = sizeof *p;
    p->pos_off = p->token_off + 64;
    p->seq_off = p->pos_off + 64;
    p->out_off = p->table_off = p->seq_off + 64;
    BL_PARAMS_ARRAY(uint32_t, p, p->pos_off)[0] = 7;
    BL_PARAMS_ARRAY(uint32_t, p, p->pos_off)[1] = 8;
    BL_PARAMS_ARRAY(struct bl_seq_params, p, p->table_off)[0] = (struct bl_seq_params){9, 0};
}

static enum bl_status rig_try(struct rig *r, uint32_t index, const struct bl_simulated *sim)
{
    memset(r, 0, sizeof *r);
    BL_TRY(open_sim(index, sim, &r->dev));
    r->ops = r->dev->ops;
    bl_graph_init(&r->g);
    BL_TRY(r->ops->stream_open(r->dev, &r->stream));
    BL_TRY(r->ops->mem_alloc(r->dev, sizeof r->host_x, false, &r->x));
    BL_TRY(r->ops->mem_alloc(r->dev, sizeof r->host_x, false, &r->y));
    BL_TRY(r->ops->mem_alloc(r->dev, sizeof(struct bl_params) + 256, true, &r->params));
    fill_params(&r->params);
    const bl_val table = bl_graph_weight(&r->g, 0, BL_F32, (uint32_t[]){N / 2, 3, 1});
    const bl_val x = bl_graph_embed(&r->g, table, bl_graph_param(&r->g, BL_PARAM_TOKENS, 2), 1);
    (void)bl_graph_add(&r->g, x, x);
    BL_TRY(bl_graph_check(&r->g));
    r->src[0] = r->src[1] = r->x.addr;
    r->dst[0] = r->y.addr;
    r->bound = (struct bl_bound){&r->g.nodes[1], r->src, r->dst};
    for (int i = 0; i < N; i++)
        r->host_x[i] = (float)i;
    r->mem_x = (struct bl_mem){.host = r->host_x, .bytes = sizeof r->host_x};
    r->mem_y = (struct bl_mem){.host = r->host_y, .bytes = sizeof r->host_y};
    return r->ops->segment_build(r->dev, &r->g, &r->bound, 1, &r->scratch, &r->params, &r->segment);
}

static void rig_open(struct rig *r, uint32_t index, const struct bl_simulated *sim)
{
    ok(rig_try(r, index, sim));
}

static void rig_close(struct rig *r)
{
    if (!r->dev)
        return;
    r->ops->stream_close(r->stream);
    if (r->segment)
        r->ops->segment_free(r->segment);
    r->ops->mem_free(&r->x);
    r->ops->mem_free(&r->y);
    r->ops->mem_free(&r->params);
    assert_int_equal(bl_sim_taken_bytes(r->dev), 0);
    bl_graph_finish(&r->g);
    r->ops->close(r->dev);
}

/* There, doubled, and back. */
static enum bl_status rig_enqueue(struct rig *r)
{
    BL_TRY(r->ops->copy(r->stream, &r->x, 0, &r->mem_x, 0, sizeof r->host_x));
    BL_TRY(r->ops->segment_run(r->stream, r->segment));
    return r->ops->copy(r->stream, &r->mem_y, 0, &r->y, 0, sizeof r->host_y);
}

static enum bl_status rig_join(struct rig *r, uint64_t timeout_ns)
{
    struct bl_point end;
    BL_TRY(r->ops->signal(r->stream, &end));
    return r->ops->join(end, timeout_ns);
}

static bool doubled(const struct rig *r)
{
    for (int i = 0; i < N; i++)
        if (r->host_y[i] != 2 * (float)i)
            return false;
    return true;
}

/* ---- memory ---- */

static void budget_is_exact(void **state)
{
    (void)state;
    const struct bl_simulated sim = {.mem_bytes = 4 * 64 * KIB};
    struct bl_device *d;
    struct bl_mem m[4] = {{0}}, more;

    ok(open_sim(0, &sim, &d));
    for (int i = 0; i < 3; i++)
        ok(d->ops->mem_alloc(d, 1 + (size_t)i, false, &m[i]));
    assert_null(m[0].host);
    assert_int_equal(m[0].granted_bytes, d->caps.granule_bytes);
    assert_int_equal(d->ops->mem_alloc(d, 64 * KIB + 1, false, &more), BL_ENOMEM);
    assert_non_null(strstr(bl_error(), "65536 of 262144 are left"));
    ok(d->ops->mem_alloc(d, 64 * KIB, true, &m[3]));
    assert_non_null(m[3].host);
    assert_int_equal(bl_sim_taken_bytes(d), sim.mem_bytes);
    assert_int_equal(d->ops->mem_alloc(d, 1, false, &more), BL_ENOMEM);
    assert_int_equal(d->ops->mem_alloc(d, SIZE_MAX, false, &more), BL_ENOMEM);
    d->ops->mem_free(&m[1]);
    ok(d->ops->mem_alloc(d, 64 * KIB, false, &m[1]));
    for (int i = 0; i < 4; i++)
        d->ops->mem_free(&m[i]);
    d->ops->close(d);
}

static void host_may_not_reach_in(void **state)
{
    (void)state;
    struct rig a, b;
    rig_open(&a, 0, NULL);
    rig_open(&b, 1, NULL);
    /* neither side is the host's */
    assert_int_equal(a.ops->copy(a.stream, &a.x, 0, &b.x, 0, 4), BL_EINVAL);
    assert_int_equal(a.ops->copy(a.stream, &b.x, 0, &b.y, 0, 4), BL_EINVAL);
    assert_int_equal(a.ops->copy(a.stream, &a.x, sizeof a.host_x, &a.mem_x, 0, 4), BL_EINVAL);
    assert_int_equal(a.ops->fill(a.stream, &b.x, 0, 0, 4), BL_EINVAL);
    ok(rig_enqueue(&a));
    ok(rig_join(&a, UINT64_MAX));
    assert_true(doubled(&a));
    rig_close(&a);
    rig_close(&b);
}

/* ---- time ---- */

static void virtual_times_are_exact(void **state)
{
    (void)state;
    struct bl_virtual_clock clock = {0};
    const double copy_ns = 100 + sizeof(float) * N, one = 2 * copy_ns + 1000;
    struct rig a, b;
    struct bl_point p;

    rig_open(&a, 0, &(struct bl_simulated){.pace = round_pace(1000, &clock)});
    rig_open(&b, 1, &(struct bl_simulated){.pace = round_pace(3000, &clock)});
    ok(rig_enqueue(&a));
    ok(a.ops->signal(a.stream, &p));
    assert_true(clock.now_ns == 0); /* nobody has waited yet */
    assert_true(doubled(&a));
    ok(b.ops->segment_run(b.stream, b.segment)); /* beside a, until 3000 */
    ok(b.ops->wait(b.stream, p));                /* one + 5000 */
    ok(b.ops->segment_run(b.stream, b.segment));
    ok(rig_join(&a, 0));
    assert_true(clock.now_ns == one);
    ok(rig_join(&b, 0));
    assert_true(clock.now_ns == one + 5000 + 3000);
    ok(a.ops->segment_run(a.stream, a.segment)); /* begins when it is enqueued */
    ok(rig_join(&a, 0));
    assert_true(clock.now_ns == one + 5000 + 3000 + 1000);
    rig_close(&a);
    rig_close(&b);
    assert_int_equal(n_open, 0);
}

/* A wait is for the point, not for what its stream has done since. */
static void waits_are_for_points(void **state)
{
    (void)state;
    struct bl_virtual_clock clock = {0};
    struct rig a, b;
    struct bl_point p;

    rig_open(&a, 0, &(struct bl_simulated){.pace = round_pace(1000, &clock)});
    rig_open(&b, 1, &(struct bl_simulated){.pace = round_pace(1000, &clock)});
    ok(a.ops->segment_run(a.stream, a.segment));
    ok(a.ops->signal(a.stream, &p));
    for (int i = 0; i < 10; i++)
        ok(a.ops->segment_run(a.stream, a.segment));
    ok(b.ops->wait(b.stream, p));
    ok(rig_join(&b, 0));
    assert_true(clock.now_ns == 1000 + 5000);
    rig_close(&b);
    rig_close(&a);
}

static void step_numbers_reach_the_pace(void **state)
{
    (void)state;
    struct bl_virtual_clock clock = {0};
    struct bl_pace *pace = round_pace(1, &clock);
    struct rig r;
    rig_open(&r, 0, &(struct bl_simulated){.pace = pace});
    ok(r.ops->segment_run(r.stream, r.segment));
    assert_int_equal(((struct round_pace *)pace)->n_tok, 2);
    assert_int_equal(((struct round_pace *)pace)->depth, 7);
    rig_close(&r);
}

/* As many sleeps as that would be late by seconds if each began when the last woke up. */
static void real_time_passes(void **state)
{
    (void)state;
    enum { RUNS = 200 };
    const double node_ns = 500e3;
    struct rig r;
    struct bl_lapse lapse[RUNS + 1];
    struct bl_lapse_log log = {.lapse = lapse, .cap = RUNS + 1};

    rig_open(&r, 0, &(struct bl_simulated){.pace = round_pace(node_ns, NULL)});
    r.ops->trace(r.stream, &log);
    const uint64_t begin = bl_now_ns();
    for (int i = 0; i < RUNS; i++)
        ok(r.ops->segment_run(r.stream, r.segment));
    ok(rig_join(&r, UINT64_MAX));
    const double took = (double)(bl_now_ns() - begin);
    assert_true(took >= RUNS * node_ns);
    assert_int_equal(log.n, RUNS + 1);
    assert_true(lapse[0].begin_ns >= begin);
    uint32_t gaps = 0; /* of the model; the queue may have run dry once or twice */
    for (int i = 1; i < RUNS; i++) {
        assert_true(lapse[i].end_ns - lapse[i].begin_ns + 2 >= (uint64_t)node_ns);
        assert_true(lapse[i].begin_ns + 2 >= lapse[i - 1].end_ns);
        gaps += lapse[i].begin_ns > lapse[i - 1].end_ns + 2;
    }
    assert_true(gaps <= RUNS / 10);
    r.ops->trace(r.stream, NULL);
    ok(rig_enqueue(&r));
    ok(rig_join(&r, UINT64_MAX));
    assert_int_equal(log.n, RUNS + 1);
    rig_close(&r);
}

static void too_much_work_is_marked(void **state)
{
    (void)state;
    struct bl_lapse lapse[8];
    struct bl_lapse_log log = {.lapse = lapse, .cap = 8};
    struct rig r;

    rig_open(&r, 0, &(struct bl_simulated){.pace = round_pace(1e-3, NULL)});
    r.ops->trace(r.stream, &log);
    ok(rig_enqueue(&r));
    ok(rig_join(&r, UINT64_MAX));
    assert_int_equal(log.n, 4);
    assert_true(lapse[1].host_bound);
    assert_true(lapse[1].end_ns > lapse[1].begin_ns);
    assert_false(lapse[3].host_bound);
    rig_close(&r);

    rig_open(&r, 0, &(struct bl_simulated){.pace = round_pace(100e6, NULL)});
    log.n = 0;
    r.ops->trace(r.stream, &log);
    ok(rig_enqueue(&r));
    ok(rig_join(&r, UINT64_MAX));
    assert_false(lapse[1].host_bound);
    rig_close(&r);
}

/* ---- faults ---- */

static enum bl_status with_fault(struct rig *r, enum bl_fault_kind kind, uint32_t nth,
                                 struct bl_virtual_clock *clock)
{
    const struct bl_simulated sim = {.pace = round_pace(1000, clock),
                                     .fault = {(uint8_t)kind, nth}};
    enum bl_status st = rig_try(r, 0, &sim);
    if (!st)
        st = rig_enqueue(r);
    return r->stream ? (st ? (rig_join(r, UINT64_MAX), st) : rig_join(r, UINT64_MAX)) : st;
}

static void faults_are_told(void **state)
{
    (void)state;
    static const struct {
        enum bl_fault_kind kind;
        uint32_t most; /* calls of the kind */
        enum bl_status st;
    } faults[] = {{BL_FAULT_ALLOC, 3, BL_ENOMEM},
                  {BL_FAULT_COPY, 2, BL_EDEVICE},
                  {BL_FAULT_SUBMIT, 1, BL_EDEVICE},
                  {BL_FAULT_LOST, 4, BL_EDEVICE}};
    for (size_t i = 0; i < BL_COUNT(faults); i++)
        for (uint32_t n = 1; n <= faults[i].most + 1; n++)
            for (int is_virtual = 0; is_virtual < 2; is_virtual++) {
                struct bl_virtual_clock clock = {0};
                struct rig r;
                const enum bl_status st =
                    with_fault(&r, faults[i].kind, n, is_virtual ? &clock : NULL);
                assert_int_equal(st, n <= faults[i].most ? faults[i].st : BL_OK);
                if (st)
                    assert_true(strlen(bl_error()) > 0);
                else
                    assert_true(doubled(&r));
                rig_close(&r);
            }
    assert_int_equal(n_open, 0);
}

static void lost_devices_stay_lost(void **state)
{
    (void)state;
    struct rig r;
    struct bl_mem m;
    assert_int_equal(with_fault(&r, BL_FAULT_LOST, 2, NULL), BL_EDEVICE);
    assert_non_null(strstr(bl_error(), "sim0 is lost"));
    assert_int_equal(r.ops->mem_alloc(r.dev, 1, false, &m), BL_EDEVICE);
    assert_int_equal(r.ops->segment_run(r.stream, r.segment), BL_EDEVICE);
    assert_int_equal(rig_join(&r, UINT64_MAX), BL_EDEVICE);
    rig_close(&r);
}

static void stuck_devices_can_be_cancelled(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        const struct bl_simulated sim = {.fault = {BL_FAULT_STUCK, n}};
        struct rig r, other;
        struct bl_point end;
        uint32_t enqueued, done;

        rig_open(&r, 0, &sim);
        rig_open(&other, 1, NULL);
        ok(rig_enqueue(&r));
        ok(r.ops->signal(r.stream, &end));
        ok(other.ops->wait(other.stream, end));
        assert_int_equal(rig_join(&other, 200000000), BL_ETIMEDOUT); /* time for all before it */
        assert_int_equal(r.ops->join(end, 1000000), BL_ETIMEDOUT);
        r.ops->progress(r.stream, &enqueued, &done);
        assert_int_equal(enqueued, 4);
        assert_int_equal(done, n - 1);
        r.ops->cancel(r.stream);
        other.ops->cancel(other.stream);
        assert_int_equal(r.ops->join(end, UINT64_MAX), BL_ECANCELLED);
        assert_int_not_equal(rig_join(&other, UINT64_MAX), BL_OK);
        rig_close(&other);
        rig_close(&r);
    }
}

/* The queue is full: whoever enqueues learns of it and may ask again. */
static void full_queues_are_told(void **state)
{
    (void)state;
    const struct bl_simulated sim = {.fault = {BL_FAULT_STUCK, 1}};
    enum bl_status st = BL_OK;
    struct rig r;

    rig_open(&r, 0, &sim);
    r.ops->patience(r.stream, 1000000);
    for (int i = 0; i < 1000 && !st; i++)
        st = r.ops->segment_run(r.stream, r.segment);
    assert_int_equal(st, BL_ETIMEDOUT);
    r.ops->cancel(r.stream);
    while ((st = rig_join(&r, UINT64_MAX)) == BL_ETIMEDOUT)
        ;
    assert_int_equal(st, BL_ECANCELLED);
    rig_close(&r);
}

static void stuck_on_a_virtual_clock(void **state)
{
    (void)state;
    struct bl_virtual_clock clock = {0};
    struct rig r;
    assert_int_equal(with_fault(&r, BL_FAULT_STUCK, 2, &clock), BL_EDEVICE);
    rig_close(&r);
}

static void corrupted_copies(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++) {
        struct rig r;
        ok(with_fault(&r, BL_FAULT_CORRUPT, n, NULL));
        assert_int_equal(doubled(&r), n == 3);
        rig_close(&r);
    }
}

static void memory_may_run_out(void **state)
{
    (void)state;
    bool done = false;
    for (uint64_t n = 1; !done; n++) {
        const struct bl_simulated sim = {.pace = round_pace(1, NULL)};
        struct rig r;
        alloc_fail_at(n);
        const enum bl_status st = rig_try(&r, 0, &sim);
        done = !alloc_fail_stop();
        assert_int_equal(st, done ? BL_OK : BL_ENOMEM);
        rig_close(&r);
    }
    assert_int_equal(n_open, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budget_is_exact),
        cmocka_unit_test(host_may_not_reach_in),
        cmocka_unit_test(virtual_times_are_exact),
        cmocka_unit_test(waits_are_for_points),
        cmocka_unit_test(step_numbers_reach_the_pace),
        cmocka_unit_test(real_time_passes),
        cmocka_unit_test(too_much_work_is_marked),
        cmocka_unit_test(faults_are_told),
        cmocka_unit_test(lost_devices_stay_lost),
        cmocka_unit_test(stuck_devices_can_be_cancelled),
        cmocka_unit_test(full_queues_are_told),
        cmocka_unit_test(stuck_on_a_virtual_clock),
        cmocka_unit_test(corrupted_copies),
        cmocka_unit_test(memory_may_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
