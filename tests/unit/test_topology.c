/* SPDX-License-Identifier: MIT */
/* Thread counts on described machines and on this one. */
#include "support.h"

#include <fcntl.h>
#include <hwloc.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "topology.h"

static struct bl_cpus choose(const char *topology)
{
    struct bl_cpus c;
    memset(&c, 0x55, sizeof c);
    if (bl_topology_cpus(&c, topology, NULL) != BL_OK)
        fail_msg("%s: %s", topology ? topology : "this machine", bl_error());
    return c;
}

/* Every processor of threads lies on one node, in a list of that node's own. */
static void processors_are_known_by_node(void **state)
{
    (void)state;
    const struct bl_cpus c = choose(NULL);
    uint32_t n = 0;

    for (uint32_t k = 0; k < c.n_nodes; k++) {
        assert_int_equal(c.node[k].first_cpu, n);
        for (uint32_t i = 0; i < c.node[k].n_cpus; i++, n++) {
            bool known = false;
            for (uint32_t j = 0; j < c.n_cpus; j++)
                known = known || c.cpu[j] == c.by_node[n];
            assert_true(known);
        }
    }
    if (c.n_nodes)
        assert_int_equal(n, c.n_cpus);
}

/* ---- synthetic machines ---------------------------------------------------------------------- */

static void described_machines(void **state)
{
    static const struct {
        const char *text;
        uint32_t n, n_prefill, n_physical, n_logical, n_nodes;
        const char *reason;
    } machine[] = {
        {"pack:1 core:16 pu:2", 16, 16, 16, 32, 1, "16 physical cores"},
        {"pack:2 core:8 pu:2", 16, 16, 16, 32, 1, "16 physical cores"},
        {"pack:2 [numa] core:8 pu:2", 8, 16, 16, 32, 2,
         "8 of 16 physical cores, those of one of 2 memory nodes"},
        {"pack:2 numa:2 l3:2 core:4 pu:1", 8, 32, 32, 32, 4,
         "8 of 32 physical cores, those of one of 4 memory nodes"},
        {"core:1 pu:4", 1, 1, 1, 4, 1, "1 physical core"},
        {"core:8 [numa(memory=10737418240)] pu:1", 1, 8, 8, 8, 8,
         "1 of 8 physical cores, those of one of 8 memory nodes"},
        /* memory of another sort beside the same cores is no node for threads */
        {"pack:1 [numa] [numa] core:8 pu:1", 8, 8, 8, 8, 1, "8 physical cores"},
        {"pu:4", 4, 4, 4, 4, 1, "4 logical CPUs, cores unknown"},
        {"pack:16 core:128 pu:1", 1024, 1024, 2048, 2048, 1,
         "2048 physical cores; at most 1024 threads"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof machine / sizeof machine[0]; i++) {
        struct bl_cpus c = choose(machine[i].text);
        assert_int_equal(c.threads.n, machine[i].n);
        assert_int_equal(c.threads.n_prefill, machine[i].n_prefill);
        assert_int_equal(c.threads.n_nodes, machine[i].n_nodes);
        assert_int_equal(c.n_nodes, machine[i].n_nodes);
        assert_int_equal(c.n_home, machine[i].n);
        assert_int_equal(c.n_cpus, machine[i].n_prefill);
        assert_true(c.described);
        assert_false(c.whole);
        assert_int_equal(c.threads.n_physical, machine[i].n_physical);
        assert_int_equal(c.threads.n_logical, machine[i].n_logical);
        assert_true(c.threads.quota == 0);
        assert_string_equal(c.threads.reason, machine[i].reason);
        for (int j = 0; j < BL_MAX_CPUS; j++) /* nothing to bind to here */
            assert_int_equal(c.cpu[j], -1);
    }
}

/* The node with most cores is decode's; the first of equals. */
static void memory_nodes(void **state)
{
    (void)state;
    struct bl_cpus c = choose("pack:2 [numa(memory=8GiB)] l3:2(size=16MiB) core:4 pu:2");
    assert_int_equal(c.home, 0);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(c.node[i].id, i);
        assert_int_equal(c.node[i].n_cores, 8);
        assert_int_equal(c.node[i].bytes, (uint64_t)8 << 30);
        assert_int_equal(c.node[i].free_bytes, c.node[i].bytes);
    }
    assert_int_equal(c.cache_bytes, 4 * 16 << 20);
}

static void assert_refused(const char *text, enum bl_status want)
{
    struct bl_cpus c = {.threads.n = 77};
    enum bl_status st = bl_topology_cpus(&c, text, NULL);
    if (st != want)
        fail_msg("\"%s\": %s, not %s", text, bl_status_name(st), bl_status_name(want));
    assert_memory_equal(bl_error(), "topology", 8);
    assert_non_null(strstr(bl_error(), text));
    assert_null(strchr(bl_error(), '\n'));
    assert_int_equal(c.threads.n, 77);
}

static void bad_texts_are_refused(void **state)
{
    static const char *const bad[] = {"",
                                      "eight",
                                      "pack:0",
                                      "core:-1",
                                      "pack:2 core:",
                                      "core:4 pack:2",
                                      "pu:2 pu:x",
                                      "core:4 bread:2",
                                      "pack:",
                                      ":::",
                                      "core:100000",
                                      "pack:200 core:200 pu:2",
                                      "core:99999999999999999999 pu:2",
                                      "pack:1 core:16 pu:2 (",
                                      "0",
                                      "\xff\xfe"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_refused(bad[i], BL_EINVAL);
    assert_refused("/no/such/machine.xml", BL_EIO);
    assert_refused("no-such-machine.xml", BL_EIO);
    assert_refused("/", BL_EINVAL);
    assert_refused("/dev/null", BL_EINVAL);
}

/* ---- recorded machines ----------------------------------------------------------------------- */

static char xml_path[64];

static int make_xml_path(void **state)
{
    (void)state;
    snprintf(xml_path, sizeof xml_path, "/tmp/ballast-topology-XXXXXX");
    int fd = mkstemp(xml_path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_xml(void **state)
{
    (void)state;
    return remove(xml_path);
}

struct kind {
    int first, last, forced; /* processors; forced efficiency, -1 = let hwloc rank */
    const char *name, *value;
};

/* A machine of these kinds of processors as XML. */
static void write_machine(const char *synthetic, const struct kind *kind, size_t n)
{
    hwloc_topology_t t;
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    assert_non_null(set);
    assert_int_equal(hwloc_topology_init(&t), 0);
    assert_int_equal(hwloc_topology_set_synthetic(t, synthetic), 0);
    assert_int_equal(hwloc_topology_load(t), 0);
    for (size_t i = 0; i < n; i++) {
        struct hwloc_info_s info = {(char *)(uintptr_t)kind[i].name,
                                    (char *)(uintptr_t)kind[i].value};
        hwloc_bitmap_zero(set);
        hwloc_bitmap_set_range(set, (unsigned)kind[i].first, kind[i].last);
        assert_int_equal(
            hwloc_cpukinds_register(t, set, kind[i].forced, kind[i].name ? 1 : 0, &info, 0), 0);
    }
    assert_int_equal(hwloc_topology_export_xml(t, xml_path, 0), 0);
    hwloc_topology_destroy(t);
    hwloc_bitmap_free(set);
}

static void hybrid_machines(void **state)
{
    static const struct {
        const char *synthetic;
        struct kind kind[3];
        size_t n_kinds;
        uint32_t n, n_physical;
        const char *reason;
    } machine[] = {
        /* types of cores, told by the system */
        {"core:20 pu:1",
         {{0, 7, -1, "CoreType", "IntelCore"}, {8, 19, -1, "CoreType", "IntelAtom"}},
         2,
         8,
         20,
         "8 performance cores, 12 slower ones left out"},
        /* ranked by hand */
        {"core:20 pu:1",
         {{0, 7, 1, NULL, NULL}, {8, 19, 0, NULL, NULL}},
         2,
         8,
         20,
         "8 performance cores, 12 slower ones left out"},
        {"core:9 pu:1",
         {{0, 7, 1, NULL, NULL}, {8, 8, 0, NULL, NULL}},
         2,
         8,
         9,
         "8 performance cores, 1 slower one left out"},
        /* 4 at full speed beat 8 at 0.4 of it; 6 of three sorts beat 1 and 8 */
        {"core:8 pu:1",
         {{0, 3, 0, "LinuxCapacity", "414"}, {4, 7, 1, "LinuxCapacity", "1024"}},
         2,
         4,
         8,
         "4 performance cores, 4 slower ones left out"},
        {"core:8 pu:1",
         {{0, 1, 0, "LinuxCapacity", "300"},
          {2, 6, 1, "LinuxCapacity", "870"},
          {7, 7, 2, "LinuxCapacity", "1024"}},
         3,
         6,
         8,
         "6 performance cores, 2 slower ones left out"},
        /* dense cores of the same design: 12 at 0.65 beat 4 */
        {"core:12 pu:2",
         {{0, 7, -1, "FrequencyMaxMHz", "5100"}, {8, 23, -1, "FrequencyMaxMHz", "3300"}},
         2,
         12,
         12,
         "12 physical cores"},
        /* favoured cores with a higher clock */
        {"core:8 pu:2",
         {{0, 3, -1, "FrequencyMaxMHz", "5800"}, {4, 15, -1, "FrequencyMaxMHz", "5500"}},
         2,
         8,
         8,
         "8 physical cores"},
        /* a kind that covers a part only tells nothing about the rest */
        {"core:8 pu:1", {{0, 3, 0, NULL, NULL}}, 1, 8, 8, "8 physical cores"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof machine / sizeof machine[0]; i++) {
        write_machine(machine[i].synthetic, machine[i].kind, machine[i].n_kinds);
        struct bl_cpus c = choose(xml_path);
        if (c.threads.n != machine[i].n || c.threads.n_physical != machine[i].n_physical ||
            c.threads.n_prefill != c.threads.n_physical ||
            strcmp(c.threads.reason, machine[i].reason) != 0)
            fail_msg("machine %zu: %u of %u, \"%s\"", i, c.threads.n, c.threads.n_physical,
                     c.threads.reason);
        assert_int_equal(c.cpu[0], -1);
    }
}

static void stored_machine(void **state)
{
    (void)state;
    struct bl_cpus c = choose(BL_TEST_DATA "/topology/8p12e.xml");
    assert_int_equal(c.threads.n, 8);
    assert_int_equal(c.threads.n_physical, 20);
    assert_int_equal(c.threads.n_logical, 20);
}

/* A container's XML: of 8 cores 3 may be used. */
static void disallowed_processors_do_not_count(void **state)
{
    hwloc_topology_t t;
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    (void)state;
    assert_non_null(set);
    hwloc_bitmap_set_range(set, 4, 9);
    assert_int_equal(hwloc_topology_init(&t), 0);
    hwloc_topology_set_flags(t, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    assert_int_equal(hwloc_topology_set_synthetic(t, "core:8 pu:2"), 0);
    assert_int_equal(hwloc_topology_load(t), 0);
    assert_int_equal(hwloc_topology_allow(t, set, NULL, HWLOC_ALLOW_FLAG_CUSTOM), 0);
    assert_int_equal(hwloc_topology_export_xml(t, xml_path, 0), 0);
    hwloc_topology_destroy(t);
    hwloc_bitmap_free(set);

    struct bl_cpus c = choose(xml_path);
    assert_int_equal(c.threads.n, 3);
    assert_int_equal(c.threads.n_logical, 6);
}

static void write_xml(const char *text, size_t n)
{
    FILE *f = fopen(xml_path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void damaged_xml_is_refused(void **state)
{
    static const char *const damage[][2] = {
        {"complete_cpuset", "camplete_cpuset"}, /* the library crashes on these if it sees them */
        {"complete_nodeset", "complete_modeset"}, {" cpuset=\"0x", " cpuset=\",x"},
        {" nodeset=\"0x", " nodeset=\",x"},       {"<topology", "<tapology"},
    };
    static char text[1 << 16];
    (void)state;
    FILE *f = fopen(BL_TEST_DATA "/topology/8p12e.xml", "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    assert_in_range(n, 1000, sizeof text - 2);
    const size_t cuts[] = {0, 1, 60, n / 2, n - 20};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        write_xml(text, cuts[i]);
        assert_refused(xml_path, BL_EINVAL);
    }
    for (size_t i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        /* the last place it stands at: in a core or processor */
        size_t len = strlen(damage[i][0]);
        char *at = NULL;
        for (char *p = text; (p = strstr(p, damage[i][0])) != NULL; p++)
            at = p;
        assert_non_null(at);
        memcpy(at, damage[i][1], len);
        write_xml(text, n);
        memcpy(at, damage[i][0], len);
        assert_refused(xml_path, BL_EINVAL);
    }
}

/* ---- this machine ---------------------------------------------------------------------------- */

static void assert_fits_mask(const struct bl_cpus *c, const cpu_set_t *mask)
{
    cpu_set_t seen;
    CPU_ZERO(&seen);
    assert_int_equal(c->threads.n_logical, CPU_COUNT(mask));
    assert_in_range(c->threads.n_physical, 1, c->threads.n_logical);
    assert_in_range(c->threads.n, 1, c->threads.n_prefill);
    assert_in_range(c->threads.n_prefill, 1, c->threads.n_physical);
    assert_in_range(c->n_home, c->threads.n, c->n_cpus);
    assert_in_range(c->n_cpus, c->threads.n_prefill, c->threads.n_physical);
    for (uint32_t i = 0; i < c->n_cpus; i++) {
        assert_in_range(c->cpu[i], 0, CPU_SETSIZE - 1);
        assert_true(CPU_ISSET((size_t)c->cpu[i], mask));
        assert_false(CPU_ISSET((size_t)c->cpu[i], &seen)); /* one each */
        CPU_SET((size_t)c->cpu[i], &seen);
    }
    for (uint32_t i = c->n_cpus; i < BL_MAX_CPUS; i++)
        assert_int_equal(c->cpu[i], -1);
}

static void this_machine(void **state)
{
    struct bl_threads t;
    cpu_set_t mask;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    struct bl_cpus c = choose(NULL);
    assert_fits_mask(&c, &mask);
    assert_int_equal(bl_threads_choose(&t, NULL, NULL), BL_OK);
    assert_memory_equal(&t, &c.threads, sizeof t);
}

/* Runs `check` in a child, whose affinity and environment it may change; a failed assertion ends
 * the child. */
static void in_child(void (*check)(const void *), const void *arg)
{
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        check(arg);
        _exit(42);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

static void check_mask(const void *mask)
{
    const cpu_set_t *set = mask;
    if (sched_setaffinity(0, sizeof *set, set) != 0)
        _exit(1);
    struct bl_cpus c = choose(NULL);
    cpu_set_t now;
    assert_fits_mask(&c, set);
    if (CPU_COUNT(set) == 1)
        assert_int_equal(c.threads.n, 1);
    if (sysconf(_SC_NPROCESSORS_ONLN) > CPU_COUNT(set))
        assert_false(c.whole); /* others may run here, too */
    assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
    assert_true(CPU_EQUAL(&now, set)); /* looking binds nothing */
}

static void affinity_limits_threads(void **state)
{
    cpu_set_t mask, one, first;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    CPU_ZERO(&first);
    for (size_t i = 0, n = 0; i < CPU_SETSIZE && n < 4; i++) {
        if (!CPU_ISSET(i, &mask))
            continue;
        n++;
        CPU_ZERO(&one);
        CPU_SET(i, &one);
        CPU_SET(i, &first);
        in_child(check_mask, &one);
        in_child(check_mask, &first);
    }
}

static void check_reason(const void *arg)
{
    struct bl_cpus c = choose(NULL);
    cpu_set_t set;
    (void)arg;
    CPU_ZERO(&set);
    CPU_SET((size_t)c.cpu[0], &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        _exit(1);
    uint32_t all = c.threads.n_logical;
    c = choose(NULL);
    char want[80];
    snprintf(want, sizeof want, "1 physical core; affinity allows 1 of %u logical CPUs", all);
    if (all > 1 && !strstr(c.threads.reason, "unknown"))
        assert_string_equal(c.threads.reason, want);
}

static void affinity_is_named(void **state)
{
    (void)state;
    in_child(check_reason, NULL);
}

static void check_without_hwloc(const void *arg)
{
    cpu_set_t mask;
    (void)arg;
    if (sched_getaffinity(0, sizeof mask, &mask) != 0 || setenv("HWLOC_COMPONENTS", "stop", 1) != 0)
        _exit(1);
    struct bl_cpus c = choose(NULL);
    assert_fits_mask(&c, &mask);
    assert_non_null(strstr(c.threads.reason, "affinity mask, cores unknown"));
}

static void works_without_hwloc(void **state)
{
    (void)state;
    in_child(check_without_hwloc, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processors_are_known_by_node),
        cmocka_unit_test(described_machines),
        cmocka_unit_test(memory_nodes),
        cmocka_unit_test(bad_texts_are_refused),
        cmocka_unit_test_setup_teardown(hybrid_machines, make_xml_path, remove_xml),
        cmocka_unit_test(stored_machine),
        cmocka_unit_test_setup_teardown(disallowed_processors_do_not_count, make_xml_path,
                                        remove_xml),
        cmocka_unit_test_setup_teardown(damaged_xml_is_refused, make_xml_path, remove_xml),
        cmocka_unit_test(this_machine),
        cmocka_unit_test(affinity_limits_threads),
        cmocka_unit_test(affinity_is_named),
        cmocka_unit_test(works_without_hwloc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
