/* SPDX-License-Identifier: MIT */
/* Limits read from trees of files that this test writes: every rule on any machine. */
#include "support.h"

#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "cgroup.h"
#include "topology.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static char root[64]; /* a fresh folder for each test */
static int warnings;
static char last_warning[1024];

static void count_warning(void *arg, enum bl_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    warnings++;
    snprintf(last_warning, sizeof last_warning, "%s", line);
}

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/ballast-cgroup-XXXXXX");
    warnings = 0;
    bl_log_set(count_warning, NULL, BL_LOG_WARN);
    return mkdtemp(root) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info;
    (void)type;
    (void)at;
    return remove(path);
}

static int remove_root(void **state)
{
    (void)state;
    bl_log_set(NULL, NULL, BL_LOG_ERROR);
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Writes root/path, making the folders on the way. */
static void put_bytes(const char *path, const void *bytes, size_t n)
{
    char full[4096];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        mkdir(full, 0777);
        *p = '/';
    }
    remove(full); /* a new file: some file systems flush an old one that is cut and written again */
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void put(const char *path, const char *text)
{
    put_bytes(path, text, strlen(text));
}

static void assert_quota(double quota, const char *source)
{
    struct bl_cgroup_cpu got = {.quota = -1};
    assert_int_equal(bl_cgroup_cpu(&got, root), BL_OK);
    if (got.quota != quota || strcmp(got.source, source) != 0)
        fail_msg("quota %g from \"%s\", not %g from \"%s\"", got.quota, got.source, quota, source);
}

static void assert_memory(uint64_t limit, uint64_t room, const char *source)
{
    struct bl_cgroup_memory got = {0};
    assert_int_equal(bl_cgroup_memory(&got, root), BL_OK);
    if (got.limit_bytes != limit || got.room_bytes != room || strcmp(got.source, source) != 0)
        fail_msg("limit %llu room %llu from \"%s\", not %llu %llu \"%s\"",
                 (unsigned long long)got.limit_bytes, (unsigned long long)got.room_bytes,
                 got.source, (unsigned long long)limit, (unsigned long long)room, source);
}

static void assert_no_memory_limit(void)
{
    assert_memory(UINT64_MAX, UINT64_MAX, "");
}

/* ---- CPU quota ------------------------------------------------------------------------------- */

static void v2_quota(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_quota(0, "");
    put("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
    assert_quota(4, "cgroup v2 cpu.max of /a/b");
    put("sys/fs/cgroup/a/b/cpu.max", "25000 50000\n");
    assert_quota(0.5, "cgroup v2 cpu.max of /a/b");
    put("sys/fs/cgroup/a/b/cpu.max", "150000");
    assert_quota(1.5, "cgroup v2 cpu.max of /a/b");
    assert_int_equal(warnings, 0);
}

static void strictest_of_the_chain(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/a/b/c\n");
    put("sys/fs/cgroup/a/b/c/cpu.max", "400000 100000\n");
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
    assert_quota(2.5, "cgroup v2 cpu.max of /a");
    put("sys/fs/cgroup/cpu.max", "100000 100000\n");
    assert_quota(1, "cgroup v2 cpu.max of /");
    put("sys/fs/cgroup/a/b/c/cpu.max", "20000 100000\n");
    assert_quota(0.2, "cgroup v2 cpu.max of /a/b/c");
    /* a sibling is not in the chain */
    put("sys/fs/cgroup/a/x/cpu.max", "1000 100000\n");
    assert_quota(0.2, "cgroup v2 cpu.max of /a/b/c");
}

static void v1_quota(void **state)
{
    (void)state;
    put("proc/self/cgroup", "9:name=systemd:/x\n5:memory:/m\n4:cpu,cpuacct:/a/b\n3:cpuset:/s\n");
    put("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpuset/s/cpu.cfs_quota_us", "1000\n");
    assert_quota(0, "");
    put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "150000\n");
    put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "50000\n");
    assert_quota(3, "cgroup v1 cpu.cfs_quota_us of /a");
    put("sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "200000\n"); /* no period: the default */
    assert_quota(2, "cgroup v1 cpu.cfs_quota_us of /a/b");
    assert_int_equal(warnings, 0);
}

static void hybrid_quota(void **state)
{
    (void)state;
    put("proc/self/cgroup", "4:cpu:/one\n0::/two\n");
    put("sys/fs/cgroup/cpu/one/cpu.cfs_quota_us", "300000\n");
    put("sys/fs/cgroup/cpu/one/cpu.cfs_period_us", "100000\n");
    assert_quota(3, "cgroup v1 cpu.cfs_quota_us of /one");
    put("sys/fs/cgroup/unified/two/cpu.max", "200000 100000\n");
    assert_quota(2, "cgroup v2 cpu.max of /two");
}

static void senseless_quotas_warn(void **state)
{
    static const char *const bad[] = {"",        "banana\n",     "100000 0\n", "0 100000\n",
                                      "max x\n", "-5 100000\n",  "4e5 1e5\n",  "1 2 3\n",
                                      "\n",      "400000,10000", "maximum\n"};
    (void)state;
    put("proc/self/cgroup", "0::/a\n");
    put("sys/fs/cgroup/cpu.max", "700000 100000\n");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        put("sys/fs/cgroup/a/cpu.max", bad[i]);
        warnings = 0;
        assert_quota(7, "cgroup v2 cpu.max of /"); /* the others of the chain still count */
        assert_int_equal(warnings, 1);
        assert_non_null(strstr(last_warning, "/a/cpu.max"));
    }
    put("proc/self/cgroup", "1:cpu:/\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "0\n");
    warnings = 0;
    assert_quota(0, "");
    assert_int_equal(warnings, 1);
}

/* ---- finding the group ----------------------------------------------------------------------- */

static void container_without_namespace(void **state)
{
    (void)state;
    /* the path of the host, of which the container's mount shows the lower part */
    put("proc/self/cgroup", "4:cpu,cpuacct:/docker/abc/sub\n");
    put("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
    put("sys/fs/cgroup/cpu,cpuacct/sub/cpu.cfs_quota_us", "100000\n");
    assert_quota(2,
                 "cgroup v1 cpu.cfs_quota_us of /"); /* all that can be known without mountinfo */
    put("proc/self/mountinfo", "30 20 0:1 / / rw - ext4 /dev/sda rw\n"
                               "31 30 0:2 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro shared:9 - "
                               "cgroup cgroup rw,cpu,cpuacct\n");
    assert_quota(1, "cgroup v1 cpu.cfs_quota_us of /sub");
}

static void mounts_elsewhere(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/slice/job\n");
    put("sys/fs/cgroup/slice/job/cpu.max", "100000 100000\n");
    put("other/cpu.max", "200000 100000\n");
    put("my groups/slice/cpu.max", "300000 100000\n");
    put("proc/self/mountinfo", "31 30 0:2 /slice/jo /other rw - cgroup2 cgroup2 rw\n"
                               "bad line\n"
                               "32 30 0:2 / /my\\040groups rw - cgroup2 cgroup2 rw\n");
    assert_quota(3, "cgroup v2 cpu.max of /slice");
    /* nothing shows the group: the mount there is shows the container */
    put("proc/self/mountinfo", "31 30 0:2 /slice/jo /other rw - cgroup2 cgroup2 rw\n"
                               "32 30 0:2 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put("sys/fs/cgroup/cpu.max", "100000 100000\n");
    assert_quota(2, "cgroup v2 cpu.max of /");
}

static void paths_out_of_the_namespace(void **state)
{
    static const char *const out[] = {"0::/../..\n", "0::/../sibling\n", "0::/a/..\n", "0::/..\n"};
    (void)state;
    put("sys/fs/cgroup/cpu.max", "500000 100000\n");
    put("sys/fs/cgroup/sibling/cpu.max", "100000 100000\n");
    put("sys/fs/cpu.max", "100000 100000\n");
    for (size_t i = 0; i < sizeof out / sizeof out[0]; i++) {
        put("proc/self/cgroup", out[i]);
        assert_quota(5, "cgroup v2 cpu.max of /");
    }
    put("proc/self/cgroup", "0::/..sibling/a..\n"); /* dots inside a name are just a name */
    put("sys/fs/cgroup/..sibling/a../cpu.max", "300000 100000\n");
    assert_quota(3, "cgroup v2 cpu.max of /..sibling/a..");
}

static void trailing_and_deleted(void **state)
{
    (void)state;
    put("sys/fs/cgroup/a/cpu.max", "300000 100000\n");
    put("proc/self/cgroup", "0::/a/\n");
    assert_quota(3, "cgroup v2 cpu.max of /a");
    put("proc/self/cgroup", "0::/a/gone (deleted)\n");
    assert_quota(3, "cgroup v2 cpu.max of /a");
    assert_int_equal(warnings, 0);
}

static void long_names_keep_their_end(void **state)
{
    struct bl_cgroup_cpu got;
    char path[400], line[500], file[500];
    (void)state;
    snprintf(path, sizeof path, "/kubepods.slice/%0150d/cri-%060d.scope", 1, 2);
    snprintf(line, sizeof line, "0::%s\n", path);
    snprintf(file, sizeof file, "sys/fs/cgroup%s/cpu.max", path);
    put("proc/self/cgroup", line);
    put(file, "100000 100000\n");
    assert_int_equal(bl_cgroup_cpu(&got, root), BL_OK);
    assert_int_equal(strlen(got.source), sizeof got.source - 1);
    assert_memory_equal(got.source, "cgroup v2 cpu.max of ...", 24);
    assert_non_null(strstr(got.source, "0002.scope"));
}

static void lines_without_meaning(void **state)
{
    static const char *const bad[] = {"hello",          "::",   ":cpu:/", "1:cpu", "x:cpu:/",
                                      "4:cpu:relative", "7::/", "0:cpu:"};
    (void)state;
    put("sys/fs/cgroup/cpu.max", "500000 100000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[80];
        snprintf(text, sizeof text, "%s\n\n0::/\n%s", bad[i], bad[i]);
        put("proc/self/cgroup", text);
        warnings = 0;
        assert_quota(5, "cgroup v2 cpu.max of /");
        assert_int_equal(warnings, 1);
    }
}

static void absent_files_are_no_limit(void **state)
{
    (void)state;
    assert_quota(0, "");
    assert_no_memory_limit();
    put("proc/self/cgroup", "");
    assert_quota(0, "");
    put("proc/self/cgroup", "0::/a\n4:memory:/b\n3:cpu:/c\n");
    assert_quota(0, "");
    assert_no_memory_limit();
    assert_int_equal(warnings, 0);
}

static void folders_in_the_place_of_files(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/a\n");
    put("sys/fs/cgroup/a/cpu.max/x", "");
    assert_quota(0, "");
    assert_int_equal(warnings, 1);
}

static void bad_roots_are_refused(void **state)
{
    struct bl_cgroup_cpu cpu = {.quota = 9};
    struct bl_host_memory memory;
    struct bl_threads threads;
    char path[128];
    (void)state;
    put("file", "");
    snprintf(path, sizeof path, "%s/file", root);
    assert_int_equal(bl_cgroup_cpu(&cpu, path), BL_EIO);
    snprintf(path, sizeof path, "%s/none", root);
    assert_int_equal(bl_cgroup_cpu(&cpu, path), BL_EIO);
    assert_non_null(strstr(bl_error(), path));
    assert_true(cpu.quota == 9); /* untouched */
    assert_int_equal(bl_topology_memory(&memory, path), BL_EIO);
    assert_int_equal(bl_threads_choose(&threads, NULL, path), BL_EIO);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void v2_memory(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.max", "max\n");
    put("sys/fs/cgroup/a/b/memory.current", "123456\n");
    assert_no_memory_limit();
    put("sys/fs/cgroup/a/b/memory.max", "2147483648\n");
    put("sys/fs/cgroup/a/b/memory.current", "1073741824\n");
    assert_memory(2 * GIB, GIB, "cgroup v2 memory.max of /a/b");
    /* cache that the kernel drops first is not in the way */
    put("sys/fs/cgroup/a/b/memory.stat", "anon 5\nactive_file 7\ninactive_file 536870912\n");
    assert_memory(2 * GIB, GIB + GIB / 2, "cgroup v2 memory.max of /a/b");
    put("sys/fs/cgroup/a/b/memory.stat", "inactive_file 99999999999\n");
    assert_memory(2 * GIB, 2 * GIB, "cgroup v2 memory.max of /a/b");
    put("sys/fs/cgroup/a/b/memory.max", "0\n");
    assert_memory(0, 0, "cgroup v2 memory.max of /a/b");
    assert_int_equal(warnings, 0);
}

static void least_room_of_the_chain(void **state)
{
    (void)state;
    /* the parent's limit is larger, but its other children hold nearly all of it */
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.max", "1073741824\n");
    put("sys/fs/cgroup/a/b/memory.current", "0\n");
    put("sys/fs/cgroup/a/memory.max", "4294967296\n");
    put("sys/fs/cgroup/a/memory.current", "4026531840\n");
    assert_memory(GIB, 256 * MIB, "cgroup v2 memory.max of /a");
    put("sys/fs/cgroup/a/memory.current", "5026531840\n"); /* a limit lowered under use */
    assert_memory(GIB, 0, "cgroup v2 memory.max of /a");
}

static void v1_memory(void **state)
{
    (void)state;
    put("proc/self/cgroup", "4:memory:/a/b\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854710272\n"); /* 64 KiB pages */
    put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "18446744073709551615\n");
    assert_no_memory_limit();
    put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "1073741824\n");
    put("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "805306368\n");
    assert_memory(GIB, 256 * MIB, "cgroup v1 memory.limit_in_bytes of /a/b");
    put("sys/fs/cgroup/memory/a/b/memory.stat", "inactive_file 1048576\n");
    assert_memory(GIB, 257 * MIB, "cgroup v1 memory.limit_in_bytes of /a/b");
    put("sys/fs/cgroup/memory/a/b/memory.stat",
        "inactive_file 1048576\ntotal_inactive_file 268435456\n");
    assert_memory(GIB, 512 * MIB, "cgroup v1 memory.limit_in_bytes of /a/b");
    /* an ancestor out of sight */
    put("sys/fs/cgroup/memory/a/b/memory.stat", "hierarchical_memory_limit 872415232\n");
    assert_memory(832 * MIB, 64 * MIB, "cgroup v1 memory.limit_in_bytes of /a/b");
    assert_int_equal(warnings, 0);
}

static void senseless_memory_warns(void **state)
{
    static const char *const bad[] = {"", "lots\n", "12 34\n", "1.5\n", "0x10\n", "1G\n"};
    (void)state;
    put("proc/self/cgroup", "0::/\n");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        put("sys/fs/cgroup/memory.max", bad[i]);
        warnings = 0;
        assert_no_memory_limit();
        assert_int_equal(warnings, 1);
    }
    put("sys/fs/cgroup/memory.max", "18446744073709551617\n"); /* no machine has that */
    assert_no_memory_limit();
    put("sys/fs/cgroup/memory.max", "1048576\n");
    put("sys/fs/cgroup/memory.current", "99999999999999999999\n");
    assert_memory(MIB, MIB, "cgroup v2 memory.max of /");
    put("sys/fs/cgroup/memory.current", "rather full\n");
    put("sys/fs/cgroup/memory.stat", "inactive_file\ninactive_file many\n\n");
    assert_memory(MIB, MIB, "cgroup v2 memory.max of /");
}

static struct bl_host_memory host_memory(void)
{
    struct bl_host_memory m;
    memset(&m, 0xff, sizeof m);
    assert_int_equal(bl_topology_memory(&m, root), BL_OK);
    return m;
}

static void available_not_free(void **state)
{
    (void)state;
    put("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:          1024 kB\n"
                        "MemAvailable:   12582912 kB\nCached: 12000000 kB\n");
    struct bl_host_memory m = host_memory();
    assert_int_equal(m.total_bytes, 16 * GIB);
    assert_int_equal(m.available_bytes, 12 * GIB);
    assert_int_equal(m.limit_bytes, UINT64_MAX);
    assert_int_equal(m.usable_bytes, 12 * GIB);
    assert_string_equal(m.source, "MemAvailable");

    /* before MemAvailable */
    put("proc/meminfo", "MemTotal: 4194304 kB\nMemFree: 1048576 kB\nBuffers: 1024 kB\n"
                        "Cached: 1047552 kB\nSwapCached: 9 kB\n");
    m = host_memory();
    assert_int_equal(m.usable_bytes, 2 * GIB);
    assert_string_equal(m.source, "MemFree + Cached + Buffers");
    assert_int_equal(warnings, 0);
}

static void least_of_machine_and_group(void **state)
{
    (void)state;
    put("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n");
    put("proc/self/cgroup", "0::/job\n");
    put("sys/fs/cgroup/job/memory.max", "2147483648\n");
    put("sys/fs/cgroup/job/memory.current", "104857600\n");
    struct bl_host_memory m = host_memory();
    assert_int_equal(m.limit_bytes, 2 * GIB);
    assert_int_equal(m.usable_bytes, 2 * GIB - 100 * MIB);
    assert_string_equal(m.source, "cgroup v2 memory.max of /job");
    /* a limit above what the machine has left */
    put("sys/fs/cgroup/job/memory.max", "16106127360\n");
    m = host_memory();
    assert_int_equal(m.limit_bytes, 15 * GIB);
    assert_int_equal(m.usable_bytes, 12 * GIB);
    assert_string_equal(m.source, "MemAvailable");
    put("sys/fs/cgroup/job/memory.current", "5368709120\n");
    m = host_memory();
    assert_int_equal(m.usable_bytes, 10 * GIB);
    assert_string_equal(m.source, "cgroup v2 memory.max of /job");
}

static void unusable_meminfo_asks_the_system(void **state)
{
    static const char *const bad[] = {
        "",
        "MemTotal: lots\n",
        "MemTotal: 0 kB\nMemAvailable: 0 kB\n",
        "MemTotal: 1024 kB\n",
        "MemTotal: 1024 kB\nMemAvailable: 99999999 kB\n",
        "MemTotal: -5 kB\nMemAvailable: -9 kB\n",
        "MemTotal: 99999999999999999999 kB\nMemAvailable: 1 kB\n",
    };
    struct bl_host_memory here, m;
    (void)state;
    assert_int_equal(bl_topology_memory(&here, NULL), BL_OK);
    assert_true(here.total_bytes >= 64 * MIB);
    assert_true(here.usable_bytes > 0 && here.usable_bytes <= here.available_bytes);
    assert_int_equal(host_memory().total_bytes, here.total_bytes); /* absent */
    assert_int_equal(warnings, 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        put("proc/meminfo", bad[i]);
        warnings = 0;
        m = host_memory();
        assert_int_equal(m.total_bytes, here.total_bytes);
        assert_int_equal(warnings, 1);
    }
}

/* ---- threads --------------------------------------------------------------------------------- */

static void assert_threads(const char *quota, uint32_t n, const char *reason)
{
    struct bl_threads t;
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/cpu.max", quota);
    assert_int_equal(bl_threads_choose(&t, "pack:1 core:8 pu:2", root), BL_OK);
    assert_int_equal(t.n, n);
    assert_string_equal(t.reason, reason);
    assert_int_equal(t.n_physical, 8);
    assert_int_equal(t.n_logical, 16);
}

static void quota_limits_threads(void **state)
{
    struct bl_threads t;
    (void)state;
    assert_threads("400000 100000\n", 4, "8 physical cores; cgroup quota 4.00 CPUs");
    assert_threads("399999 100000\n", 3, "8 physical cores; cgroup quota 3.99 CPUs");
    assert_threads("29000 100000\n", 1, "8 physical cores; cgroup quota 0.29 CPUs");
    assert_threads("750000 100000\n", 7, "8 physical cores; cgroup quota 7.50 CPUs");
    assert_threads("50000 100000\n", 1, "8 physical cores; cgroup quota 0.50 CPUs");
    assert_threads("1600000 100000\n", 8, "8 physical cores");
    assert_threads("max 100000\n", 8, "8 physical cores");
    put("sys/fs/cgroup/cpu.max", "150000 100000\n");
    assert_int_equal(bl_threads_choose(&t, "pu:2", root), BL_OK);
    assert_true(t.quota == 1.5);
    assert_int_equal(t.n, 1);
    /* this process's own quota says nothing about a machine that is only described */
    assert_int_equal(bl_threads_choose(&t, "core:500 pu:1", NULL), BL_OK);
    assert_int_equal(t.n, 500);
}

static void quota_on_this_machine(void **state)
{
    struct bl_cpus all, c;
    (void)state;
    put("proc/self/cgroup", "0::/\n");
    assert_int_equal(bl_topology_cpus(&all, NULL, root), BL_OK);
    for (uint32_t n = 1; n <= all.threads.n; n++) {
        char text[40];
        snprintf(text, sizeof text, "%u00000 100000\n", n);
        put("sys/fs/cgroup/cpu.max", text);
        assert_int_equal(bl_topology_cpus(&c, NULL, root), BL_OK);
        assert_int_equal(c.threads.n, n);
        assert_int_equal(c.n_cpus, all.n_cpus);
        for (uint32_t i = 0; i < BL_MAX_CPUS; i++) /* a beginning of the same list */
            assert_int_equal(c.cpu[i], all.cpu[i]);
        if (n < all.threads.n_logical)
            assert_false(c.whole);
    }
}

/* ---- hostile contents ------------------------------------------------------------------------ */

static uint64_t seed;

static uint32_t next_random(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 32);
}

/* Pieces of the real grammar in a random row, some of them damaged: further in than plain noise
 * gets. */
static void put_noise(const char *path)
{
    static const char *const piece[] = {
        "0::/",
        "4:cpu,cpuacct:/",
        "3:memory:/",
        "a",
        "/../..",
        "/",
        "\n",
        "max",
        " ",
        "-1",
        "100000",
        "99999999999999999999",
        "31 30 0:2 / /sys/fs/cgroup rw - cgroup2 c rw\n",
        "\\040",
        " - cgroup c rw,cpu,memory",
        "MemTotal: ",
        "MemAvailable: ",
        "inactive_file ",
        "kB\n",
        "hierarchical_memory_limit ",
    };
    char text[6000];
    size_t n = 0, want = next_random() % 4 ? next_random() % 60 : next_random() % 5000;
    while (n < want) {
        const char *p = piece[next_random() % (sizeof piece / sizeof piece[0])];
        size_t len = strlen(p);
        memcpy(text + n, p, len);
        n += len;
        if (next_random() % 8 == 0)
            text[n++] = (char)next_random();
    }
    put_bytes(path, text, n);
}

static void noise_is_survived(void **state)
{
    static const char *const file[] = {
        "proc/self/cgroup",
        "proc/self/mountinfo",
        "proc/meminfo",
        "sys/fs/cgroup/cpu.max",
        "sys/fs/cgroup/memory.max",
        "sys/fs/cgroup/memory.current",
        "sys/fs/cgroup/memory.stat",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us",
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
    };
    enum { N = sizeof file / sizeof file[0] };
    (void)state;
    seed = 5;
    for (int i = 0; i < N; i++)
        put_noise(file[i]);
    for (int round = 0; round < 800; round++) {
        struct bl_cgroup_cpu cpu;
        struct bl_threads t;
        put_noise(file[next_random() % N]);
        put_noise(file[next_random() % N]);
        if (round % 4 == 0)
            put("proc/self/cgroup", "4:cpu:/\n3:memory:/\n0::/\n");
        assert_int_equal(bl_cgroup_cpu(&cpu, root), BL_OK);
        assert_true(cpu.quota >= 0 && cpu.quota < 2e19);
        if (round % 16 == 0) { /* building a topology takes hwloc a millisecond */
            assert_int_equal(bl_threads_choose(&t, "core:8 pu:1", root), BL_OK);
            assert_in_range(t.n, 1, 8);
        }
        struct bl_host_memory m = host_memory();
        assert_true(m.usable_bytes <= m.available_bytes && m.available_bytes <= m.total_bytes);
    }
}

/* A file longer than is read, one without end of line, one full of NUL. */
static void large_files_are_cut(void **state)
{
    const size_t n = 5 << 20;
    char *text = malloc(n);
    (void)state;
    assert_non_null(text);
    memset(text, '/', n);
    memcpy(text, "0::", 3);
    put("sys/fs/cgroup/cpu.max", "200000 100000\n");
    put_bytes("proc/self/cgroup", text, n);
    assert_quota(0, ""); /* a path of megabytes is no path */
    memset(text, '\n', n);
    memcpy(text + (1 << 20), "0::/", 4);
    put_bytes("proc/self/cgroup", text, n);
    assert_quota(2, "cgroup v2 cpu.max of /");
    memset(text, '\n', n);
    memcpy(text + (4 << 20), "0::/", 4);
    put_bytes("proc/self/cgroup", text, n);
    assert_quota(0, "");
    memset(text, 0, n);
    put_bytes("proc/self/cgroup", text, n);
    assert_quota(0, "");
    free(text);
}

static void no_memory_is_reported(void **state)
{
    struct bl_host_memory m;
    struct bl_cgroup_cpu cpu;
    uint64_t n = 1;
    (void)state;
    put("proc/self/cgroup", "0::/a\n4:memory:/b\n");
    put("proc/self/mountinfo", "31 30 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n");
    put("sys/fs/cgroup/a/cpu.max", "100000 100000\n");
    put("sys/fs/cgroup/a/memory.max", "1048576\n");
    put("sys/fs/cgroup/memory/b/memory.stat", "inactive_file 5\n");
    for (; n < 100; n++) {
        alloc_fail_at(n);
        enum bl_status cpu_st = bl_cgroup_cpu(&cpu, root);
        enum bl_status memory_st = bl_topology_memory(&m, root);
        if (!alloc_fail_stop())
            break;
        assert_true(cpu_st == BL_ENOMEM || memory_st == BL_ENOMEM);
    }
    assert_in_range(n, 7, 99);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(v2_quota),
        CASE(strictest_of_the_chain),
        CASE(v1_quota),
        CASE(hybrid_quota),
        CASE(senseless_quotas_warn),
        CASE(container_without_namespace),
        CASE(mounts_elsewhere),
        CASE(paths_out_of_the_namespace),
        CASE(trailing_and_deleted),
        CASE(long_names_keep_their_end),
        CASE(lines_without_meaning),
        CASE(absent_files_are_no_limit),
        CASE(folders_in_the_place_of_files),
        CASE(bad_roots_are_refused),
        CASE(v2_memory),
        CASE(least_room_of_the_chain),
        CASE(v1_memory),
        CASE(senseless_memory_warns),
        CASE(available_not_free),
        CASE(least_of_machine_and_group),
        CASE(unusable_meminfo_asks_the_system),
        CASE(quota_limits_threads),
        CASE(quota_on_this_machine),
        CASE(noise_is_survived),
        CASE(large_files_are_cut),
        CASE(no_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
