/* SPDX-License-Identifier: MIT */
/* Cards measured through the device contract, written to a machine file, and found again by it. */
#include "support.h"

#include "backends.h"
#include "devices.h"
#include "machine_file.h"
#include "planner.h"
#include "probe.h"
#include "vulkan_rig.h"

#include <unistd.h>

static void ok(enum bl_status st)
{
    if (st)
        fail_msg("%s: %s", bl_status_name(st), bl_error());
}

static struct bl_options plain(const char *devices)
{
    return (struct bl_options){.threads = 1, .no_calibrate = true, .devices = devices};
}

static void put_file(char *path, const struct bl_machine *m)
{
    char *text;
    size_t n;
    const int fd = mkstemp(path);

    ok(bl_machine_write(m, &text, &n));
    assert_int_equal(write(fd, text, n), n);
    close(fd);
    free(text);
}

/* Times of a simulated card are those of the host's kernels here: figures there are, but no more
 * is said of them. */
static void measure(const char *devices, uint64_t budget_ns)
{
    const struct bl_options opt = plain(devices);
    const struct bl_probe_plan plan = {.quick = true, .budget_ns = budget_ns};
    char path[] = "/tmp/bl-card-XXXXXX";
    struct bl_machine m, again;

    ok(bl_machine_probe(&m, &opt));
    ok(bl_probe_card(&m, 1, &plan));
    const struct bl_machine_device *d = &m.device[1];
    const struct bl_type_rate *q4 = &d->rate[BL_Q4_K];
    assert_true(d->launch_ns > 100 && d->step_ns >= 0 && d->read_measured_bps > 1e6);
    assert_true(q4->decode_bps > 1e6 && q4->macs_per_s[0] > 1e6 && q4->macs_per_s[2] > 1e6);
    assert_true(d->read_rated_bps == 0 && d->f16_macs_per_s == 0); /* nothing is assumed any more */
    assert_true(m.link[0].ab_measured_bps > 1e7 && m.link[0].ba_measured_bps > 1e7);
    assert_true(m.link[0].latency_ns > 0 && m.link[0].ab_measured_bps != 16e9);
    put_file(path, &m);
    struct bl_options by_file = plain(NULL);
    by_file.machine_file = path;
    ok(bl_machine_probe(&again, &by_file));
    assert_int_equal(again.n_devices, 2);
    assert_string_equal(again.device[1].id, d->id);
    assert_false(again.device[1].described);
    assert_ptr_equal(again.device[1].backend, d->backend);
    assert_true(again.device[1].rate[BL_Q4_K].decode_bps == q4->decode_bps);
    assert_int_equal(again.n_links, 1);
    assert_true(again.link[0].ab_measured_bps == m.link[0].ab_measured_bps);
    bl_machine_finish(&again);
    by_file.devices = devices; /* named: figures are the file's all the same */
    ok(bl_machine_probe(&again, &by_file));
    assert_int_equal(again.n_devices, 2);
    assert_true(again.device[1].rate[BL_Q4_K].decode_bps == q4->decode_bps);
    assert_true(again.link[0].ba_measured_bps == m.link[0].ba_measured_bps);
    bl_machine_finish(&again);
    bl_machine_finish(&m);
    unlink(path);
}

static void simulated(void **state)
{
    (void)state;
    measure("sim0:256MiB", 200000000);
}

static void vulkan(void **state)
{
    (void)state;
    if (vulkan_here())
        measure("vulkan0:256MiB", 1);
}

/* A card that is not here any more, between two that are: links keep to their devices. */
static void some_are_gone(void **state)
{
    (void)state;
    const struct bl_options opt = plain("sim2:1GiB@1GB/s,sim0:1GiB@2GB/s,sim1:1GiB@3GB/s");
    struct bl_options by_file = plain(NULL);
    char path[] = "/tmp/bl-card-XXXXXX";
    struct bl_machine m, again;

    ok(bl_machine_probe(&m, &opt));
    snprintf(m.device[2].id, sizeof m.device[2].id, "pci-0000:77:00.0");
    snprintf(m.device[2].backend_name, sizeof m.device[2].backend_name, "vulkan");
    put_file(path, &m);
    by_file.machine_file = path;
    ok(bl_machine_probe(&again, &by_file));
    assert_int_equal(again.n_devices, 3);
    assert_string_equal(again.device[1].id, "sim2");
    assert_string_equal(again.device[2].id, "sim1");
    assert_int_equal(again.n_links, 2);
    assert_true(again.link[0].b == 1 && bl_link_bps(&again.link[0], 0) == 1e9);
    assert_true(again.link[1].b == 2 && bl_link_bps(&again.link[1], 0) == 3e9);
    assert_int_equal(again.device[2].config.number, 2);
    bl_machine_finish(&again);
    bl_machine_finish(&m);
    unlink(path);
}

static void by_number_and_by_id(void **state)
{
    (void)state;
    struct bl_options opt = plain("vulkan0:64MiB,vulkan0:shared:32MiB");
    struct bl_device_facts facts;
    char list[64];
    struct bl_machine m;

    if (!vulkan_here())
        return;
    ok(bl_backend_find("vulkan")->facts(0, &facts));
    ok(bl_machine_probe(&m, &opt));
    assert_int_equal(m.n_devices, 3);
    assert_string_equal(m.device[1].id, facts.id);
    assert_memory_equal(m.device[1].kernels, "products of ", 12); /* bytes or floats */
    assert_non_null(strstr(m.device[1].kernels, ", subgroups of "));
    assert_int_equal(bl_machine_find(&m, "vulkan0"), 1);
    assert_true(m.device[1].usable_bytes == UINT64_C(64) << 20);
    assert_int_equal(m.device[1].mem_kind, BL_MEMORY_DEDICATED);
    assert_int_equal(m.device[2].mem_kind, BL_MEMORY_UNIFIED);
    assert_true(m.device[2].config.unified && !m.device[1].config.unified);
    bl_machine_finish(&m);
    snprintf(list, sizeof list, "%s:64MiB@2GB/s", facts.id);
    opt.devices = "vulkan0:999TiB";
    assert_int_equal(bl_machine_probe(&m, &opt), BL_EINVAL);
    assert_non_null(strstr(bl_error(), "name so much at most"));
    opt.devices = "vulkan63";
    assert_int_equal(bl_machine_probe(&m, &opt), BL_EINVAL);
    assert_non_null(strstr(bl_error(), "of that kind here"));
    opt.devices = list;
    ok(bl_machine_probe(&m, &opt));
    assert_string_equal(m.device[1].id, facts.id);
    assert_true(bl_link_bps(&m.link[0], 0) == 2e9);
    bl_machine_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simulated),
        cmocka_unit_test(vulkan),
        cmocka_unit_test(some_are_gone),
        cmocka_unit_test(by_number_and_by_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
