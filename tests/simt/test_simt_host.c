/* SPDX-License-Identifier: MIT */
/* Devices of CUDA and HIP through the contract, over an emulated driver: opening, memory, copies.
 */
#include "contract_rig.h"

#include "copy_check.h"
#include "mem.h"
#include "simt/simt_api.h"

/* ---- opening ---- */

static void cards_are_found_as_the_driver_shows_them(void **state)
{
    const struct bl_device_config c = {.threads = 1};
    struct bl_device *dev;
    uint32_t n;
    (void)state;

    assert_true(
        rig_cards(&(struct emu_config){.n_cards = 3, .mem_bytes = {64 << 20, 32 << 20, 16 << 20}}));
    ok(rig.backend->count(&n));
    assert_int_equal(n, 3);
    must_fail(rig.backend->open(3, &c, &dev), BL_EUNAVAILABLE, "only 3 cards");

    rig_visible("2,0");
    assert_true(
        rig_cards(&(struct emu_config){.n_cards = 3, .mem_bytes = {64 << 20, 32 << 20, 16 << 20}}));
    ok(rig.backend->count(&n));
    assert_int_equal(n, 2);
    dev = rig_open(0);
    assert_int_equal(dev->caps.copies_from, BL_COPIES_FROM_BLOCKS); /* files go in pieces */
    struct bl_mem m;
    must_fail(dev->ops->mem_alloc(dev, 20 << 20, false, &m), BL_ENOMEM, "16 of 16 MiB are free");
    dev->ops->close(dev);
    dev = rig_open(1);
    ok(dev->ops->mem_alloc(dev, 60 << 20, false, &m));
    dev->ops->mem_free(&m);
    dev->ops->close(dev);
    rig_visible(NULL);
    assert_true(rig_cards(&two));
}

static void facts_name_the_card(void **state)
{
    struct bl_device_facts f, g;
    (void)state;

    assert_true(rig_cards(&(struct emu_config){.n_cards = 2, .mem_bytes = {64 << 20, 32 << 20}}));
    ok(rig.backend->facts(0, &f));
    ok(rig.backend->facts(1, &g));
    assert_int_equal(f.mem_bytes, 64 << 20);
    assert_int_equal(g.free_bytes, 32 << 20);
    assert_memory_equal(f.id, "pci-0000:", 9);
    assert_string_not_equal(f.id, g.id);
    for (const char *c = f.id; *c; c++)
        assert_false(*c >= 'A' && *c <= 'Z'); /* the same however a driver spells it */
    assert_string_equal(g.name, "Emulated card 1");
    assert_non_null(strstr(g.kernels, "matrix units"));
    assert_non_null(strstr(g.kernels, "kernels from ")); /* the rig names a folder */
    must_fail(rig.backend->facts(2, &f), BL_EUNAVAILABLE, "only 2 cards");
    rig_visible("1");
    assert_true(rig_cards(&two));
    ok(rig.backend->facts(0, &f));
    assert_string_equal(f.id, g.id);
    rig_visible(NULL);
    assert_true(rig_cards(&two));
}

/* Such a card is passed over, so that another driver may run it. */
static void facts_want_kernels(void **state)
{
    const struct bl_simt_images *images =
        strcmp(rig.backend->name, "cuda") ? &bl_hip_images : &bl_cuda_images;
    struct bl_device_facts f;
    uint32_t n;
    (void)state;

    rig_environment("KERNELS", NULL);
    ok(rig.backend->count(&n));
    assert_int_equal(n, 2);
    if (!images->image->unit) {
        must_fail(rig.backend->facts(0, &f), BL_EUNAVAILABLE, "this build has no kernels for");
        assert_memory_equal(f.id, "pci-0000:", 9); /* said all the same */
    }
    rig_environment("KERNELS", BL_TEST_IMAGES);
    ok(rig.backend->facts(0, &f));
}

static void drivers_that_are_not_there_are_no_error(void **state)
{
    uint32_t n;
    (void)state;

    rig_environment("LIBRARY", "/nowhere/libnone.so");
    must_fail(rig.backend->count(&n), BL_EUNAVAILABLE, "cannot be used");
    assert_int_equal(n, 0);
    rig_environment("LIBRARY", "libm.so.6");
    must_fail(rig.backend->count(&n), BL_EDEVICE, "lacks");
    rig_environment("LIBRARY", rig.path);
    rig_visible("");
    assert_true(rig_cards(&two));
    must_fail(rig.backend->count(&n), BL_EUNAVAILABLE, "without cards");
    rig_visible(NULL);
    assert_true(rig_cards(&two));
}

static void write_images(const char *folder, const char *text)
{
    char command[1024];

    snprintf(command, sizeof command,
             "mkdir -p %s && for f in %s/*; do printf '%s\\n' >%s/$(basename $f); done", folder,
             BL_TEST_IMAGES, text, folder);
    assert_int_equal(system(command), 0);
}

static void kernels_that_do_not_fit_are_named(void **state)
{
    const struct bl_device_config c = {.threads = 1};
    struct bl_device *dev;
    char folder[64] = "/tmp/ballast-images-XXXXXX", command[128];
    (void)state;

    assert_non_null(mkdtemp(folder));
    rig_environment("KERNELS", folder);
    assert_int_not_equal(rig.backend->open(0, &c, &dev), BL_OK);
    write_images(folder, "EMULATED none");
    must_fail(rig.backend->open(0, &c, &dev), BL_EUNAVAILABLE, "_ARCHS=");
    write_images(folder, "EMULATED newer");
    assert_true(rig_cards(&(struct emu_config){.n_cards = 1, .driver_version = 11040}));
    must_fail(rig.backend->open(0, &c, &dev), BL_EUNAVAILABLE, "version 11.4");
    assert_true(rig_cards(&two));
    write_images(folder, "something else");
    must_fail(rig.backend->open(0, &c, &dev), BL_EDEVICE, "cannot be loaded");
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    rig_environment("KERNELS", BL_TEST_IMAGES);
}

/* ---- memory and copies ---- */

static void memory_is_taken_as_planned(void **state)
{
    (void)state;
    struct bl_device *dev = rig_open(0);
    struct bl_mem a = block(dev, 1, false), b = block(dev, 5 << 20, false),
                  h = block(dev, 100, true);

    assert_int_equal(a.granted_bytes, dev->caps.granule_bytes);
    assert_int_equal(b.granted_bytes, bl_align_up(5 << 20, dev->caps.granule_bytes));
    assert_int_equal(rig_counts().mem_bytes, a.granted_bytes + b.granted_bytes);
    assert_null(a.host);
    assert_non_null(h.host);
    assert_true(h.addr);
    dev->ops->mem_free(&a);
    dev->ops->mem_free(&b);
    dev->ops->mem_free(&h);
    dev->ops->mem_free(&(struct bl_mem){0});
    dev->ops->close(dev);
    assert_true(rig_cards(&two));
}

/* Host memory of the CPU's: registered where it can be, otherwise moved by the host. */
static void there_and_back(size_t bytes, bool mapped)
{
    struct bl_device *cpu = open_cpu(), *dev = rig_open(0);
    struct bl_mem from = block(cpu, bytes, true), to = block(cpu, bytes, true),
                  m = block(dev, bytes, false), n = block(dev, bytes, false);
    struct bl_stream *s;

    const size_t granted = from.granted_bytes;
    from.granted_bytes = mapped ? 0 : granted; /* as what lies in a file */
    count_up(&from, 5);
    ok(dev->ops->stream_open(dev, &s));
    ok(dev->ops->copy(s, &m, 0, &from, 0, bytes));
    ok(dev->ops->copy(s, &n, 64, &m, 64, bytes - 64));
    ok(dev->ops->copy(s, &n, 0, &m, 0, 64));
    ok(dev->ops->copy(s, &to, 0, &n, 0, bytes));
    finish(s);
    check_counts_up(&to, 5);
    must_fail(dev->ops->copy(s, &m, 4, &from, 0, bytes), BL_EINVAL, "over the end");
    must_fail(dev->ops->copy(s, &to, 0, &from, 0, 4), BL_EINVAL, "neither");
    ok(dev->ops->copy(s, &m, 0, &from, 0, 0));
    dev->ops->stream_close(s);
    dev->ops->mem_free(&m);
    dev->ops->mem_free(&n);
    from.granted_bytes = granted;
    cpu->ops->mem_free(&from);
    cpu->ops->mem_free(&to);
    dev->ops->close(dev);
    cpu->ops->close(cpu);
    assert_int_equal(rig_counts().pageable_copies, 0);
}

static void copies_keep_their_order(void **state)
{
    (void)state;
    there_and_back(BYTES, false);
    there_and_back(BYTES, true);
    there_and_back(10 << 20, true);
    assert_true(
        rig_cards(&(struct emu_config){.n_cards = 1, .late_us = LATE_US, .no_register = true}));
    there_and_back(BYTES, false);
    there_and_back(9 << 20, false);
    assert_true(rig_cards(&two));
}

/* A copy of more pieces than may be in flight: the room of a piece is used again only once the
 * stream has come past it. */
static void long_copies_use_their_room_again(void **state)
{
    enum { LONG_BYTES = 65 * (4 << 20) + 4096 };
    (void)state;
    assert_true(rig_cards(&(struct emu_config){.n_cards = 1,
                                               .mem_bytes = {LONG_BYTES + (8 << 20)},
                                               .late_us = LATE_US,
                                               .no_register = true}));
    struct bl_device *cpu = open_cpu(), *dev = rig_open(0);
    struct bl_mem host = block(cpu, LONG_BYTES, true), m = block(dev, LONG_BYTES, false);
    struct bl_stream *s;

    count_up(&host, 3);
    ok(dev->ops->stream_open(dev, &s));
    ok(dev->ops->copy(s, &m, 0, &host, 0, LONG_BYTES));
    finish(s);
    memset(host.host, 0, LONG_BYTES);
    ok(dev->ops->copy(s, &host, 0, &m, 0, LONG_BYTES));
    finish(s);
    check_counts_up(&host, 3);
    dev->ops->stream_close(s);
    dev->ops->mem_free(&m);
    cpu->ops->mem_free(&host);
    dev->ops->close(dev);
    cpu->ops->close(cpu);
    assert_true(rig_cards(&two));
}

static void blocks_of_the_host_can_be_imported(void **state)
{
    (void)state;
    struct bl_device *cpu = open_cpu(), *dev = rig_open(0);
    struct bl_mem h = block(cpu, BYTES, true), m;

    ok(dev->ops->mem_import(dev, h.host, h.bytes, &m));
    assert_int_equal(rig_counts().registered, 1);
    assert_int_equal(m.granted_bytes, 0);
    dev->ops->mem_free(&m);
    assert_int_equal(rig_counts().registered, 0);
    must_fail(dev->ops->mem_import(dev, (char *)h.host + 1, 100, &m), BL_EINVAL, "whole pages");
    cpu->ops->mem_free(&h);
    dev->ops->close(dev);
    cpu->ops->close(cpu);
    assert_true(rig_cards(&two));
}

/* Two cards copy with one block of the host's: whichever closes first, the other's copies are as
 * good as before. */
static void close_in_turn(unsigned first)
{
    struct bl_device *cpu = open_cpu(), *dev[2] = {rig_open(0), rig_open(1)};
    struct bl_mem h = block(cpu, BYTES, true), back = block(cpu, BYTES, true), m[2];
    struct bl_stream *s[2];

    count_up(&h, 7);
    for (unsigned d = 0; d < 2; d++) {
        m[d] = block(dev[d], BYTES, false);
        ok(dev[d]->ops->stream_open(dev[d], &s[d]));
        ok(dev[d]->ops->copy(s[d], &m[d], 0, &h, 0, BYTES));
    }
    assert_int_equal(rig_counts().registered, 1);
    for (unsigned k = 0; k < 2; k++) {
        const unsigned d = first ^ k;
        ok(dev[d]->ops->copy(s[d], &m[d], 0, &h, 0, BYTES));
        ok(dev[d]->ops->copy(s[d], &back, 0, &m[d], 0, BYTES));
        finish(s[d]);
        check_counts_up(&back, 7);
        dev[d]->ops->stream_close(s[d]);
        assert_int_equal(rig_counts().registered, k ? 0 : 1);
        dev[d]->ops->mem_free(&m[d]);
        dev[d]->ops->close(dev[d]);
    }
    assert_int_equal(rig_counts().pageable_copies, 0);
    cpu->ops->mem_free(&h);
    cpu->ops->mem_free(&back);
    cpu->ops->close(cpu);
    assert_true(rig_cards(&two));
}

static void cards_close_in_any_order(void **state)
{
    (void)state;
    close_in_turn(0);
    close_in_turn(1);
}

/* Most of the host's memory may be one block: it is held down as copies come to it, and those over
 * a border are two. */
static void large_blocks_are_held_in_windows(void **state)
{
    enum { APART = 1 << 30 };
    (void)state;
    struct bl_device *cpu = open_cpu(), *dev = rig_open(0);
    struct bl_mem h = block(cpu, (size_t)3 << 30, true), m = block(dev, BYTES, false);
    struct bl_stream *s;
    uint32_t n = 0;

    ok(dev->ops->stream_open(dev, &s));
    for (size_t at = 0; at < h.bytes; at += APART, n++) {
        const size_t off = at + APART - BYTES / 2 < h.bytes - BYTES ? at + APART - BYTES / 2 //
                                                                    : h.bytes - BYTES;
        uint32_t *w = (uint32_t *)(void *)((char *)h.host + off);
        for (uint32_t i = 0; i < WORDS; i++)
            w[i] = n + i;
        ok(dev->ops->copy(s, &m, 0, &h, off, BYTES));
        finish(s);
        memset(w, 0, BYTES);
        ok(dev->ops->copy(s, &h, off, &m, 0, BYTES));
        finish(s);
        for (uint32_t i = 0; i < WORDS; i++)
            assert_int_equal(w[i], n + i);
        assert_int_equal(rig_counts().registered, n < 2 ? n + 2 : 3);
    }
    assert_int_equal(rig_counts().pageable_copies, 0);
    assert_int_equal(rig_counts().copies, 2 * 4 + 2);
    dev->ops->stream_close(s);
    assert_int_equal(rig_counts().registered, 0);
    dev->ops->mem_free(&m);
    cpu->ops->mem_free(&h);
    dev->ops->close(dev);
    cpu->ops->close(cpu);
    assert_true(rig_cards(&two));
}

static void fills_are_of_words(void **state)
{
    (void)state;
    struct bl_device *dev = rig_open(0);
    struct bl_mem m = block(dev, BYTES, false), h = block(dev, BYTES, true);
    struct bl_stream *s;

    count_up(&h, 0);
    ok(dev->ops->stream_open(dev, &s));
    ok(dev->ops->copy(s, &m, 0, &h, 0, BYTES));
    ok(dev->ops->fill(s, &m, 8, 0x01020304, 16));
    ok(dev->ops->copy(s, &h, 0, &m, 0, BYTES));
    must_fail(dev->ops->fill(s, &m, 2, 0, 16), BL_EINVAL, "whole words");
    must_fail(dev->ops->fill(s, &m, BYTES, 0, 4), BL_EINVAL, "whole words");
    finish(s);
    const uint32_t *w = h.host;
    for (uint32_t i = 0; i < 16; i++)
        assert_int_equal(w[i], i < 2 || i >= 6 ? i : 0x01020304);
    dev->ops->stream_close(s);
    dev->ops->mem_free(&m);
    dev->ops->mem_free(&h);
    dev->ops->close(dev);
    assert_true(rig_cards(&two));
}

static void what_is_copied_comes_back(void **state)
{
    (void)state;
    struct bl_device *cpu = open_cpu(), *dev = rig_open(1);

    ok(bl_copy_check(cpu, dev, 0));
    dev->ops->close(dev);
    cpu->ops->close(cpu);
    assert_true(rig_cards(&two));
}

static void copy_between(bool peers, bool lie)
{
    assert_true(rig_cards(
        &(struct emu_config){.n_cards = 2, .late_us = LATE_US, .peers = peers, .peers_lie = lie}));
    struct bl_device *a = rig_open(0), *b = rig_open(1);
    struct bl_mem h = block(a, BYTES, true), m = block(a, BYTES, false), n = block(b, BYTES, false);
    struct bl_stream *s;

    ok(a->ops->stream_open(a, &s));
    count_up(&h, 9);
    ok(a->ops->copy(s, &m, 0, &h, 0, BYTES));
    assert_int_equal(a->ops->reaches(a, b), peers && !lie);
    assert_false(a->ops->reaches(a, a));
    if (peers && !lie) {
        ok(a->ops->copy(s, &n, 0, &m, 0, BYTES));
        ok(a->ops->fill(s, &m, 0, 0, BYTES));
        ok(a->ops->copy(s, &m, 0, &n, 0, BYTES));
        ok(a->ops->copy(s, &h, 0, &m, 0, BYTES));
        assert_true(rig_counts().peer_copies > 0);
    } else {
        must_fail(a->ops->copy(s, &n, 0, &m, 0, BYTES), BL_EINVAL, "neither");
    }
    finish(s);
    check_counts_up(&h, 9);
    a->ops->stream_close(s);
    a->ops->mem_free(&h);
    a->ops->mem_free(&m);
    b->ops->mem_free(&n);
    a->ops->close(a);
    b->ops->close(b);
    assert_true(rig_cards(&two));
}

static void cards_are_peers_once_a_pattern_came_across(void **state)
{
    (void)state;
    copy_between(true, false);
    copy_between(true, true);
    copy_between(false, false);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(cards_are_found_as_the_driver_shows_them, afresh),
        cmocka_unit_test_setup(facts_name_the_card, afresh),
        cmocka_unit_test_setup(facts_want_kernels, afresh),
        cmocka_unit_test_setup(drivers_that_are_not_there_are_no_error, afresh),
        cmocka_unit_test_setup(kernels_that_do_not_fit_are_named, afresh),
        cmocka_unit_test_setup(memory_is_taken_as_planned, afresh),
        cmocka_unit_test_setup(copies_keep_their_order, afresh),
        cmocka_unit_test_setup(long_copies_use_their_room_again, afresh),
        cmocka_unit_test_setup(blocks_of_the_host_can_be_imported, afresh),
        cmocka_unit_test_setup(cards_close_in_any_order, afresh),
        cmocka_unit_test_setup(large_blocks_are_held_in_windows, afresh),
        cmocka_unit_test_setup(fills_are_of_words, afresh),
        cmocka_unit_test_setup(what_is_copied_comes_back, afresh),
        cmocka_unit_test_setup(cards_are_peers_once_a_pattern_came_across, afresh),
    };

    return contract_load(argc, argv) ? cmocka_run_group_tests(tests, NULL, NULL) : 2;
}
