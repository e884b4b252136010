/* SPDX-License-Identifier: MIT */
/* contract_rig.h — one or two cards under the contract of devices, without models.
 *
 *     int main(int argc, char **argv) { contract_load(argc, argv); ... cmocka_unit_test_setup(test, afresh) }
 *
 * Purpose   blocks, patterns and failures that tests of cards ask for; every test finds two fresh cards.
 * Ownership who makes a block or a device gives it back.
 * Units     bytes, microseconds.
 * Errors    fail the test.
 * Threads   one.
 */
#ifndef BL_TEST_CONTRACT_RIG_H
#define BL_TEST_CONTRACT_RIG_H

#include "simt_rig.h"

enum { WORDS = 1 << 16, BYTES = 4 * WORDS, LATE_US = 300 };
#define LONG_NS UINT64_C(20000000000)
#define SHORT_NS UINT64_C(100000000)

static const struct emu_config two = {.n_cards = 2, .late_us = LATE_US, .seed = 1};

static inline struct bl_device *open_cpu(void)
{
    const struct bl_device_config c = {.threads = 1};
    struct bl_device *dev = NULL;

    ok(bl_backend_find("cpu")->open(0, &c, &dev));
    return dev;
}

static inline struct bl_mem block(struct bl_device *dev, size_t bytes, bool host)
{
    struct bl_mem m;

    ok(dev->ops->mem_alloc(dev, bytes, host, &m));
    return m;
}

static inline void count_up(struct bl_mem *m, uint32_t from)
{
    uint32_t *w = m->host;
    for (size_t i = 0; i < m->bytes / 4; i++)
        w[i] = from + (uint32_t)i;
}

static inline void check_counts_up(const struct bl_mem *m, uint32_t from)
{
    const uint32_t *w = m->host;
    for (size_t i = 0; i < m->bytes / 4; i++)
        if (w[i] != from + (uint32_t)i)
            fail_msg("word %zu is %u, not %u", i, w[i], from + (uint32_t)i);
}

static inline void finish(struct bl_stream *s)
{
    struct bl_device *dev;
    struct bl_point p;

    memcpy(&dev, s, sizeof dev);
    ok(dev->ops->signal(s, &p));
    ok(dev->ops->join(p, LONG_NS));
}

static inline void must_fail(enum bl_status got, enum bl_status want, const char *text)
{
    assert_int_equal(got, want);
    if (!strstr(bl_error(), text))
        fail_msg("'%s' does not say '%s'", bl_error(), text);
}

/* Whatever became of the test before. */
static inline int afresh(void **state)
{
    (void)state;
    rig_environment("LIBRARY", rig.path);
    rig_environment("KERNELS", BL_TEST_IMAGES);
    rig_visible(NULL);
    (void)rig_cards(&two);
    return 0;
}

static inline bool contract_load(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s LIBRARY\n", argv[0]);
        return false;
    }
    rig_load(argv[1]);
    rig_cards(&two);
    return true;
}

#endif
