/* SPDX-License-Identifier: MIT */
/* What the system says of a host, and that measuring gives figures that a machine file takes. */
#include "support.h"

#include "machine_file.h"
#include "planner.h"
#include "probe.h"
#include "thread.h"

#include <sys/stat.h>
#include <unistd.h>

static void cpuinfo(void **state)
{
    static const struct {
        const char *text, *name;
        enum bl_isa isa;
    } host[] = {
        {"vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel name\t: AMD EPYC 9654\nflags\t\t: "
         "avx2 "
         "avx512bw avx512_vnni\n",
         "AMD EPYC 9654", BL_ISA_VNNI},
        {"vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel name\t: AMD EPYC\nflags\t\t: avx512bw "
         "avx512_vnni avx2",
         "AMD EPYC", BL_ISA_VNNI_WIDE},
        {"vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel name\t: Xeon\nflags\t\t: avx2 avx512bw "
         "avx512_vnni amx_int8\n",
         "Xeon", BL_ISA_AMX},
        {"model name\t: i7\nflags\t\t: avx2 avx512bw\n", "i7", BL_ISA_AVX512},
        {"model name\t: i7\nflags\t\t: avx avx2\n", "i7", BL_ISA_AVX2},
        {"model name\t: old\nflags\t\t: sse2 avx\n", "old", BL_ISA_NONE},
        {"processor\t: 0\nFeatures\t: fp asimd asimddp i8mm bf16\n", "CPU", BL_ISA_I8MM},
        {"processor\t: 0\nFeatures\t: fp asimd asimddp\n", "CPU", BL_ISA_NEON},
        {"", "CPU", BL_ISA_NONE},
    };
    char name[16];
    (void)state;
    for (size_t i = 0; i < BL_COUNT(host); i++) {
        assert_int_equal(bl_probe_cpuinfo(host[i].text, name, sizeof name), host[i].isa);
        assert_string_equal(name, host[i].name);
    }
    assert_int_equal(bl_probe_cpuinfo("model name\t: 0123456789abcdefgh\n", name, sizeof name), 0);
    assert_string_equal(name, "0123456789abcde");
}

static void judged(void **state)
{
    struct bl_memory_reading r[3] = {
        {.source = "a", .bytes = 0}, {.source = "b", .bytes = 50}, {.source = "c", .bytes = 20}};
    uint64_t usable = 7;
    uint32_t chosen = 9;
    (void)state;
    assert_true(bl_memory_judge(r, 3, 60, &usable, &chosen));
    assert_int_equal(usable, 20);
    assert_int_equal(chosen, 2);
    assert_true(r[0].refused && !r[1].refused && !r[2].refused);
    assert_true(bl_memory_judge(r, 3, 30, &usable, &chosen));
    assert_true(r[1].refused);
    assert_false(bl_memory_judge(r, 2, 30, &usable, &chosen));
    assert_false(bl_memory_judge(r, 0, 30, &usable, &chosen));
    assert_int_equal(usable, 20);
}

static void median(void **state)
{
    double v[] = {5, 1, 4, 2, 3};
    (void)state;
    assert_true(bl_median(v, 5) == 3);
    assert_true(bl_median((double[]){1, 9, 2, 4}, 4) == 3);
    assert_true(bl_median(v, 0) == 0);
    assert_true(bl_undisturbed((double[]){4, 5, 6, 1, 90, 91}, 3, 6) == 5);
    assert_true(bl_undisturbed((double[]){50, 60, 9, 8, 70, 80, 7}, 2, 7) == 8);
    assert_true(bl_undisturbed((double[]){50}, 0, 1) == 50);
}

static void count_notes(void *arg, const char *text)
{
    (void)text;
    ++*(unsigned *)arg;
}

/* A fraction of the time: what is measured is whole, the rest is left out. */
static void measured_here(void **state)
{
    const struct bl_options opt = {.threads = 2, .threads_prefill = 2, .no_calibrate = true};
    struct bl_machine m, again;
    unsigned notes = 0;
    char *text, *twice;
    size_t n, n_twice;
    (void)state;
    assert_int_equal(bl_machine_probe(&m, &opt), BL_OK);
    const struct bl_probe_plan plan = {
        .quick = true, .budget_ns = 300000000, .note = count_notes, .arg = &notes};
    const enum bl_status st = bl_probe_measure(&m, &plan);
    if (st == BL_EUNAVAILABLE) {
        print_message("skipped: %s\n", bl_error());
        bl_machine_finish(&m);
        exit(77);
    }
    assert_int_equal(st, BL_OK);
    const struct bl_machine_device *d = &m.device[0];
    assert_true(notes >= 4);
    assert_true(d->launch_ns > 0);
    for (uint32_t i = 0; i < d->n_read_rates; i++)
        assert_true(d->read_rate[i].bps > 1e7 && d->read_rate[i].bps < 1e13);
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        if (d->rate[t].decode_bps > 0)
            for (unsigned i = 0; i < BL_N_RATE_TOKENS; i++)
                assert_true(d->rate[t].macs_per_s[i] > 1e6 && d->rate[t].macs_per_s[i] < 1e16);
    assert_true(d->usable_bytes > 0 && d->usable_bytes <= d->mem_bytes);
    assert_int_equal(bl_machine_write(&m, &text, &n), BL_OK);
    assert_int_equal(bl_machine_parse(&again, "again", text, n), BL_OK);
    assert_int_equal(bl_machine_write(&again, &twice, &n_twice), BL_OK);
    assert_int_equal(n, n_twice);
    assert_memory_equal(text, twice, n);
    free(text);
    free(twice);
    bl_machine_finish(&again);
    bl_machine_finish(&m);
}

/* Two memory nodes, of which this machine may have one: each way of reading has its figures. */
static void measured_over_nodes(void **state)
{
    const struct bl_options opt = {.threads = 2, .threads_prefill = 2, .no_calibrate = true};
    const struct bl_probe_plan plan = {.quick = true, .budget_ns = 120000000000};
    struct bl_machine m;
    (void)state;
    assert_int_equal(bl_machine_probe(&m, &opt), BL_OK);
    struct bl_machine_device *d = &m.device[0];
    for (uint32_t i = 0; i < 2; i++)
        d->domain[i] = (struct bl_domain){.node = i, .n_cores = 1, .mem_bytes = d->mem_bytes / 2};
    d->n_domains = 2;
    if (bl_probe_measure(&m, &plan) == BL_EUNAVAILABLE) {
        print_message("skipped: %s\n", bl_error());
        bl_machine_finish(&m);
        return;
    }
    assert_int_equal(d->n_read_rates, 3); /* one thread on one node; one and two over both */
    assert_true(d->read_rate[0].threads == 1 && d->read_rate[0].domains == 1);
    assert_true(d->read_rate[1].threads == 1 && d->read_rate[1].domains == 2);
    assert_true(d->read_rate[2].threads == 2 && d->read_rate[2].domains == 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(d->domain[i].read_measured_bps == d->read_rate[0].bps);
        assert_true(d->domain[i].far_bps > 1e7);
    }
    assert_true(d->read_measured_bps > 1e7);
    assert_int_equal(d->n_barriers, 1);
    assert_true(d->rate[BL_Q4_K].decode_bps > 0 && d->rate_default.decode_bps > 0);
    for (unsigned i = 0; i < BL_N_STEP_TEAMS; i++) {
        const struct bl_step_rate *r = &d->step_rate[i];
        const struct bl_kv_rate *kv = &d->kv_rate[i][BL_F16];
        assert_true(r->state_values_per_s > 1e6 && r->moved_bps > 1e7);
        assert_true(kv->macs_per_s > 1e6 && kv->latent_macs_per_s > 1e6);
    }
    assert_true(d->layer_ns >= d->step_ns);
    bl_machine_finish(&m);
}

/* A system whose free memory is small and whose available memory is not. */
static void memory_that_can_be_reclaimed(void **state)
{
    char root[] = "/tmp/bl-root-XXXXXX", path[64];
    struct bl_machine m;
    (void)state;
    assert_non_null(mkdtemp(root));
    snprintf(path, sizeof path, "%s/proc", root);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("MemTotal: 67108864 kB\nMemFree: 1024 kB\nMemAvailable: 41943040 kB\n", f);
    fclose(f);
    const struct bl_options opt = {.threads = 1, .no_calibrate = true, .cgroup_root = root};
    assert_int_equal(bl_machine_probe(&m, &opt), BL_OK);
    assert_int_equal(m.device[0].mem_bytes, 64ull << 30);
    assert_int_equal(m.device[0].usable_bytes, 40ull << 30);
    assert_string_equal(m.device[0].mem_source, "MemAvailable");
    bl_machine_finish(&m);
    unlink(path);
    snprintf(path, sizeof path, "%s/proc", root);
    rmdir(path);
    rmdir(root);
}

static void put_file(const char *path, const struct bl_machine *m)
{
    char *text;
    size_t n;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(bl_machine_write(m, &text, &n), BL_OK);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
    free(text);
}

/* Of a file of this machine speeds are taken, memory only where the file allows less; another
 * machine's is refused, but can be planned for. */
static void machine_files(void **state)
{
    char path[] = "/tmp/bl-machine-XXXXXX";
    const char *const sets[] = {"cpu0.read=3GB/s", "cpu0.layer_ns=5us"};
    struct bl_options opt = {.threads = 1, .no_calibrate = true};
    struct bl_machine m, now;
    (void)state;
    close(mkstemp(path));
    assert_int_equal(bl_machine_probe(&m, &opt), BL_OK);
    m.device[0].read_measured_bps = 2e9;
    m.device[0].usable_bytes = 1 << 20;
    put_file(path, &m);
    opt.machine_file = path;
    assert_int_equal(bl_machine_probe(&now, &opt), BL_OK);
    assert_true(bl_device_read_bps(&now.device[0]) == 2e9);
    assert_int_equal(now.device[0].usable_bytes, 1 << 20);
    assert_false(now.device[0].described);
    assert_int_equal(now.device[0].config.threads, 1);
    bl_machine_finish(&now);
    opt.device_set = sets;
    opt.n_device_set = 2;
    assert_int_equal(bl_machine_probe(&now, &opt), BL_OK);
    assert_true(bl_device_read_bps(&now.device[0]) == 3e9 && now.device[0].layer_ns == 5000);
    bl_machine_finish(&now);
    m.device[0].cores += 1000;
    put_file(path, &m);
    assert_int_equal(bl_machine_probe(&now, &opt), BL_EINVAL);
    assert_int_equal(bl_machine_choose(&now, &opt), BL_OK);
    assert_true(now.device[0].described);
    bl_machine_finish(&now);
    unlink(path);
    assert_int_equal(bl_machine_choose(&now, &opt), BL_EINVAL);
    bl_machine_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpuinfo),
        cmocka_unit_test(judged),
        cmocka_unit_test(median),
        cmocka_unit_test(measured_over_nodes),
        cmocka_unit_test(memory_that_can_be_reclaimed),
        cmocka_unit_test(measured_here),
        cmocka_unit_test(machine_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
