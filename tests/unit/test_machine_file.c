/* SPDX-License-Identifier: MIT */
/* Machine files: the ones that come with the library, everything that can be wrong with one,
 * assignments, ways between devices, memory by several sources. */
#include "schema_rig.h"

#include "alloc_fail.h"
#include "backends.h"
#include "file.h"
#include "json.h"
#include "machine_fields.h"
#include "machine_file.h"

#include <dirent.h>
#include <time.h>

#define CPU                                                                                        \
    "{\"id\": \"cpu0\", \"kind\": \"cpu\", \"cores\": 8, \"mem_bytes\": \"64GiB\", "               \
    "\"read_rated_bps\": \"80GB/s\"}"
#define GPU(n) "{\"id\": \"pci-0000:0" n ":00.0\", \"kind\": \"gpu\", \"mem_bytes\": \"24GiB\"}"
#define LINK(n)                                                                                    \
    "{\"a\": \"cpu0\", \"b\": \"gpu" n "\", \"ab_rated_bps\": 16e9, \"ba_rated_bps\": 8e9}"
#define MACHINE(devices, rest)                                                                     \
    "{\"ballast_machine\": 1, \"name\": \"m\", \"devices\": [" devices "]" rest "}"

static enum bl_status parse(struct bl_machine *m, const char *text)
{
    memset(m, 0, sizeof *m);
    return bl_machine_parse(m, "machine m", text, strlen(text));
}

static void good(enum bl_status st)
{
    if (st)
        fail_msg("%s", bl_error());
}

static void two_cards(struct bl_machine *m)
{
    good(parse(m, MACHINE(CPU "," GPU("1") "," GPU("2"),
                          ",\"hubs\": [{\"id\": \"s\", \"kind\": \"switch\", \"up\": \"r\", "
                          "\"bps\": \"10GB/s\"}, {\"id\": \"r\", \"kind\": \"root\"}],"
                          "\"links\": [" LINK(
                              "0") ", {\"a\": \"cpu0\", \"b\": \"gpu1\", \"via\": "
                                   "\"s\", \"ab_rated_bps\": 16e9, \"ba_rated_bps\": 16e9, "
                                   "\"latency_ns\": \"2us\"}]")));
}

/* Every file reads and is canonical: written again it is the same. */
static void shipped_machines(void **state)
{
    DIR *dir = opendir(BL_TEST_MACHINES);
    unsigned n = 0;
    (void)state;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[600], *text;
        size_t n_bytes;
        struct bl_machine m;
        struct bl_file *f;
        const void *bytes;
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", BL_TEST_MACHINES, e->d_name);
        good(bl_machine_load(&m, path));
        assert_true(m.source[0] != 0);
        for (uint32_t d = 0; d < m.n_devices; d++)
            assert_true(bl_device_read_bps(&m.device[d]) > 0);
        good(bl_machine_write(&m, &text, &n_bytes));
        good(bl_file_open(&f, path));
        good(bl_file_map(f, &bytes));
        assert_int_equal(bl_file_bytes(f), n_bytes);
        assert_memory_equal(bytes, text, n_bytes);
        bl_file_close(f);
        free(text);
        bl_machine_finish(&m);
        n++;
    }
    closedir(dir);
    assert_true(n >= 16);
    assert_int_equal(n, bl_machine_n_sources); /* all are in the library */
}

static void known_machines(void **state)
{
    struct bl_machine_title t;
    struct bl_machine m;
    uint32_t n = 0;
    (void)state;
    for (; bl_machine_known(n, &t) == BL_OK; n++) {
        good(bl_machine_load(&m, t.name));
        assert_string_equal(m.name, t.about);
        bl_machine_finish(&m);
    }
    assert_int_equal(n, bl_machine_n_sources);
    assert_int_equal(bl_machine_load(&m, "turin-81"), BL_EIO);
    assert_string_equal(bl_error(),
                        "turin-81: no such file or known machine; the nearest is 'turin-80'");
}

static void wrong_files(void **state)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"{}", "machine m: no machine: its first member must be \"ballast_machine\": 1"},
        {"{\"ballast_machine\": 2}", "machine m: ballast_machine is 2; this build reads format 1"},
        {MACHINE("", ""), "machine m: devices[0] must be the cpu that runs the program"},
        {MACHINE(GPU("1"), ""), "machine m: devices[0] must be the cpu that runs the program"},
        {MACHINE(CPU ", 7", ""), "machine m: devices[1] must be a JSON object"},
        {MACHINE(CPU "," CPU, ""), "machine m: devices[1].id 'cpu0' is also that of devices[0]"},
        {MACHINE("{\"id\": \"a b\", \"kind\": \"cpu\", \"mem_bytes\": 1}", ""),
         "machine m: devices[0].id 'a b': letters, digits, '-', '_', ':' and '.' only"},
        {MACHINE("{\"id\": \"cpu0\", \"kind\": \"cpu\", \"mem_bites\": 1}", ""),
         "machine m: devices[0].mem_bites is not known; the nearest is 'mem_bytes'"},
        {MACHINE("{\"id\": \"cpu0\", \"kind\": \"cpu\", \"mem_bytes\": -5}", ""),
         "machine m: devices[0].mem_bytes is -5; it must lie between 1 and 1.1259e+15"},
        {MACHINE("{\"id\": \"cpu0\", \"kind\": \"cpu\", \"mem_bytes\": 5, \"usable_bytes\": 6}",
                 ""),
         "machine m: device cpu0: usable_bytes 6 of mem_bytes 5 is more than there is"},
        {MACHINE("{\"id\": \"cpu0\", \"kind\": \"cpu\"}", ""),
         "machine m: device cpu0 has no memory: give mem_bytes"},
        {MACHINE("{\"id\": \"cpu0\", \"kind\": \"cpu\", \"mem_bytes\": 5, \"read_rated_bps\": 0}",
                 ""),
         "machine m: devices[0].read_rated_bps is 0; it must lie between 1000 and 1e+16"},
        {MACHINE("{\"id\": \"cpu0\", \"kind\": \"cpu\", \"mem_bytes\": 5, \"rates\": {\"q4_x\": "
                 "{\"decode_bps\": 1e9}}}",
                 ""),
         NULL}, /* names near types */
        {MACHINE("{\"id\": \"cpu0\", \"kind\": \"cpu\", \"mem_bytes\": 8, \"domains\": [{\"node\": "
                 "0, \"cores\": 1, \"mem_bytes\": 9}]}",
                 ""),
         "machine m: device cpu0: its domains have more memory than it has"},
        {MACHINE(CPU "," GPU("1"), ""), "machine m: no link joins cpu0 and pci-0000:01:00.0"},
        {MACHINE(CPU "," GPU("1"), ",\"links\": [{\"a\": \"cpu0\", \"b\": \"gpu7\"}]"),
         "machine m: links[0].b must be the id of a device"},
        {MACHINE(CPU "," GPU("1"), ",\"links\": [{\"a\": \"cpu0\", \"b\": \"pci-0000:07:00.0\"}]"),
         "machine m: links[0].b 'pci-0000:07:00.0' is no device here; the nearest is "
         "'pci-0000:01:00.0'"},
        {MACHINE(CPU "," GPU("1"), ",\"links\": [{\"a\": \"cpu0\", \"b\": \"gpu0\"}]"),
         "machine m: links[0] from cpu0 to pci-0000:01:00.0 needs a bandwidth each way: "
         "ab_rated_bps and ba_rated_bps, or measured ones"},
        {MACHINE(CPU "," GPU("1"), ",\"links\": [" LINK("0") "," LINK("0") "]"),
         "machine m: links[0] and links[1] both join cpu0 and pci-0000:01:00.0"},
        {MACHINE(CPU, ",\"links\": [{\"a\": \"cpu0\", \"b\": \"cpu0\", \"ab_rated_bps\": 1e9}]"),
         "machine m: links[0] goes from cpu0 to itself"},
        {MACHINE(CPU, ",\"hubs\": [{\"id\": \"a\", \"kind\": \"root\", \"up\": \"b\"}, {\"id\": "
                      "\"b\", \"kind\": \"root\", \"up\": \"a\"}]"),
         "machine m: hub 'a' is above itself: the ups go in a circle"},
        {MACHINE(CPU, ",\"hubs\": [{\"id\": \"a\", \"kind\": \"root\", \"up\": \"zzzzzz\"}]"),
         "machine m: hubs[0].up must be the id of a hub"},
        {MACHINE(CPU ",{\"id\": \"g\", \"kind\": \"gpu\", \"mem_kind\": \"unified\", "
                     "\"mem_bytes\": 5}",
                 ""),
         "machine m: device g: unified memory and shares, the id of the cpu whose memory it is, go "
         "together"},
        {MACHINE(CPU ",{\"id\": \"g\", \"kind\": \"gpu\", \"mem_kind\": \"unified\", \"shares\": "
                     "\"cpu0\", \"mem_bytes\": \"65GiB\"}",
                 ""),
         "machine m: device g: usable_bytes 69793218560 of mem_bytes 69793218560, which it shares, "
         "is more than there is"},
        {MACHINE(CPU ",{\"id\": \"g\", \"kind\": \"gpu\", \"mem_kind\": \"unified\", \"shares\": "
                     "\"g\"}",
                 ""),
         "machine m: device g shares the memory of g, which is no cpu"},
        {MACHINE("{\"id\": \"cpu0\", \"kind\": \"cpu\", \"mem_bytes\": 5, \"mem_kind\": "
                 "\"dedicated\"}",
                 ""),
         "machine m: device cpu0: a cpu has mem_kind host, a gpu dedicated or unified"},
        {MACHINE("{\"id\": \"cpu0\", \"kind\": \"cpu\", \"mem_bytes\": 5, \"caps\": "
                 "{\"granule_bytes\": 3, \"threads\": 1}}",
                 ""),
         "machine m: devices[0].caps must have a power of two as granule_bytes"},
        {MACHINE("{\"id\": \"cpu0\", \"kind\": \"cpu\", \"mem_bytes\": 5, \"mem_readings\": "
                 "[{\"source\": \"hip\", \"bytes\": 0}]}",
                 ""),
         "machine m: device cpu0: no source of mem_readings says a possible number of bytes; give "
         "usable_bytes"},
    };
    struct bl_machine m;
    (void)state;
    for (size_t i = 0; i < BL_COUNT(bad); i++) {
        const enum bl_status st = parse(&m, bad[i].text);
        if (st != BL_EFORMAT)
            fail_msg("taken: %s", bad[i].text);
        if (bad[i].message)
            assert_string_equal(bl_error(), bad[i].message);
        assert_null(strchr(bl_error(), '\n'));
    }
    assert_int_equal(bl_machine_load(&m, "/nowhere/rig.json"), BL_EIO);
}

static void brackets(void **state)
{
    enum { N = 10 << 20 };
    char *text = malloc(N);
    struct bl_machine m;
    const clock_t start = clock();
    (void)state;
    assert_non_null(text);
    memset(text, '[', N);
    assert_int_equal(bl_machine_parse(&m, "machine m", text, N), BL_EFORMAT);
    assert_int_equal(bl_machine_parse(&m, "machine m", text, 1 << 20), BL_EFORMAT);
    assert_string_equal(bl_error(), "machine m: nested deeper than 16 at byte 16");
    assert_true(clock() - start < 2 * CLOCKS_PER_SEC);
    free(text);
}

static void names(void **state)
{
    struct bl_machine m;
    (void)state;
    two_cards(&m);
    assert_int_equal(bl_machine_find(&m, "pci-0000:02:00.0"), 2);
    assert_int_equal(bl_machine_find(&m, "gpu0"), 1);
    assert_int_equal(bl_machine_find(&m, "gpu1"), 2);
    assert_int_equal(bl_machine_find(&m, "cpu0"), 0);
    assert_int_equal(bl_machine_find(&m, "gpu2"), BL_NO_DEVICE);
    assert_int_equal(bl_machine_find(&m, "gpu"), BL_NO_DEVICE);
    assert_int_equal(bl_machine_find(&m, "gpu0x"), BL_NO_DEVICE);
    bl_machine_finish(&m);
}

static void ways(void **state)
{
    struct bl_machine m;
    double ns;
    (void)state;
    two_cards(&m);
    assert_true(bl_machine_path_bps(&m, 0, 1, &ns) == 16e9 && ns == 0);
    assert_true(bl_machine_path_bps(&m, 1, 0, NULL) == 8e9);
    assert_true(bl_machine_path_bps(&m, 0, 2, &ns) == 10e9 && ns == 2000); /* the switch */
    assert_true(bl_machine_path_bps(&m, 1, 2, &ns) == 8e9 && ns == 2000);  /* through the host */
    bl_machine_finish(&m);
}

static void defaults(void **state)
{
    struct bl_machine m;
    (void)state;
    two_cards(&m);
    assert_string_equal(m.device[0].backend->name, "cpu");
    assert_string_equal(m.device[1].backend->name, "null");
    assert_int_equal(m.device[1].mem_kind, BL_MEMORY_DEDICATED);
    assert_int_equal(m.device[1].usable_bytes, 24ull << 30);
    assert_true(m.device[0].caps.import_host && !m.device[1].caps.import_host);
    assert_int_equal(m.device[0].caps.threads, 8);
    bl_machine_finish(&m);
}

static void set(struct bl_machine *m, const char *text)
{
    good(bl_machine_set(m, text));
}

static void assignments(void **state)
{
    struct bl_machine m;
    (void)state;
    good(parse(&m, MACHINE("{\"id\": \"cpu0\", \"kind\": \"cpu\", \"mem_bytes\": \"64GiB\", "
                           "\"usable_bytes\": \"48GiB\", \"read_measured_bps\": 40e9, "
                           "\"read_rates\": [{\"threads\": 4, \"domains\": 1, \"bps\": 40e9}], "
                           "\"rates\": {\"q4_k\": {\"decode_bps\": 30e9}}}," GPU("1"),
                           ",\"links\": [" LINK("0") "]")));
    set(&m, "cpu0.mem=32GiB");
    assert_int_equal(m.device[0].mem_bytes, 32ull << 30);
    assert_int_equal(m.device[0].usable_bytes, 24ull << 30);
    assert_string_equal(m.device[0].mem_source, "set: cpu0.mem=32GiB");
    set(&m, "cpu0.usable=40GiB");
    assert_int_equal(m.device[0].mem_bytes, 40ull << 30);
    set(&m, "cpu0.read=80GB/s");
    assert_true(bl_device_read_bps(&m.device[0]) == 80e9);
    assert_true(m.device[0].read_rate[0].bps == 80e9);
    assert_true(m.device[0].rate[BL_Q4_K].decode_bps == 60e9);
    set(&m, "pci-0000:01:00.0.mem=48GiB");
    assert_int_equal(m.device[1].usable_bytes, 48ull << 30);
    set(&m, "gpu0.launch_ns=5us");
    assert_true(m.device[1].launch_ns == 5000);
    set(&m, "link0.bps=1GB/s");
    assert_true(bl_link_bps(&m.link[0], 0) == 1e9 && bl_link_bps(&m.link[0], 1) == 1e9);
    set(&m, "link0.latency=9us");
    assert_true(m.link[0].latency_ns == 9000);
    bl_machine_finish(&m);
}

static void wrong_assignments(void **state)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"gpu0", "'gpu0' is no DEVICE.MEMBER=VALUE, such as gpu0.mem=24GiB or link0.bps=12GB/s"},
        {"gpu0.mem=",
         "'gpu0.mem=' is no DEVICE.MEMBER=VALUE, such as gpu0.mem=24GiB or link0.bps=12GB/s"},
        {"gpu9.mem=1GiB", "'gpu9' is neither device nor link of this machine, which has cpu0, "
                          "pci-0000:01:00.0, pci-0000:02:00.0 and links from link0 on"},
        {"link9.bps=1GB/s", "'link9' is neither device nor link of this machine, which has cpu0, "
                            "pci-0000:01:00.0, pci-0000:02:00.0 and links from link0 on"},
        {"gpu0.men=1GiB", "gpu0 has no 'men'; the nearest is 'mem'"},
        {"gpu0.lanch_ns=1us", "gpu0 has no 'lanch_ns'; the nearest is 'launch_ns'"},
        {"gpu0.mem=-1", "gpu0.mem is -1; it must lie between 1 and 1.1259e+15"},
        {"gpu0.mem=0", "gpu0.mem is 0; it must lie between 1 and 1.1259e+15"},
        {"gpu0.mem=lots", "gpu0.mem 'lots': must be bytes, or a text such as \"24GiB\""},
        {"link0.bps=0", "link0.bps is 0; it must lie between 1 and 1e+16"},
        {"gpu0.id=x", "gpu0.id: a device keeps its id"},
        {"gpu0.rates=1", "gpu0.rates cannot be set alone; edit the file"},
        {"gpu0.kind=cpu", "gpu0.kind=cpu: device pci-0000:01:00.0: a cpu has mem_kind host, a gpu "
                          "dedicated or unified"},
    };
    struct bl_machine m;
    (void)state;
    for (size_t i = 0; i < BL_COUNT(bad); i++) {
        two_cards(&m);
        assert_int_equal(bl_machine_set(&m, bad[i].text), BL_EINVAL);
        assert_string_equal(bl_error(), bad[i].message);
        bl_machine_finish(&m);
    }
}

/* What was measured with a rate moves with it, but not out of what can be written and read. */
static void rates_stay_possible(void **state)
{
    struct bl_machine m;
    (void)state;
    good(bl_machine_load(&m, "granite-rapids-2s"));
    struct bl_domain *far = &m.device[0].domain[0];
    far->far_bps = 40 * m.device[0].read_measured_bps;
    assert_int_equal(bl_machine_set(&m, "cpu0.read=1000TB/s"), BL_EINVAL);
    assert_non_null(strstr(bl_error(), "cpu0.read=1000TB/s: a rate that was measured with it"));
    bl_machine_finish(&m);
    good(bl_machine_load(&m, "granite-rapids-2s"));
    m.device[0].domain[0].far_bps = 1e4;
    assert_int_equal(bl_machine_set(&m, "cpu0.read=1MB/s"), BL_EINVAL);
    bl_machine_finish(&m);
}

/* A source that says 0 is refused, of two that disagree the smaller counts, and what was set by
 * hand stands over both. */
static void memory_by_sources(void **state)
{
    struct bl_machine m;
    (void)state;
    good(parse(&m, MACHINE(CPU ",{\"id\": \"g\", \"kind\": \"gpu\", \"mem_kind\": \"unified\", "
                               "\"shares\": \"cpu0\", \"mem_readings\": [{\"source\": "
                               "\"dedicated\", \"bytes\": 0}, {\"source\": \"shared\", \"bytes\": "
                               "\"30GB\"}]}",
                           "")));
    assert_int_equal(m.device[1].usable_bytes, 30000000000);
    assert_string_equal(m.device[1].mem_source, "shared");
    assert_true(m.device[1].reading[0].refused && !m.device[1].reading[1].refused);
    bl_machine_finish(&m);
    good(parse(&m, MACHINE(CPU ",{\"id\": \"g\", \"kind\": \"gpu\", \"mem_kind\": \"unified\", "
                               "\"shares\": \"cpu0\", \"mem_readings\": [{\"source\": "
                               "\"vulkan\", \"bytes\": \"53GB\"}, {\"source\": \"hip\", \"bytes\": "
                               "\"6GB\"}, {\"source\": \"broken\", \"bytes\": \"500GB\"}]}",
                           "")));
    assert_int_equal(m.device[1].usable_bytes, 6000000000);
    assert_string_equal(m.device[1].mem_source, "hip");
    assert_true(m.device[1].reading[2].refused);
    set(&m, "gpu0.usable=53GB");
    assert_int_equal(m.device[1].usable_bytes, 53000000000);
    set(&m, "cpu0.mem=16GiB"); /* less is there to share */
    assert_int_equal(m.device[1].usable_bytes, 16ull << 30);
    bl_machine_finish(&m);
}

static void differences(void **state)
{
    static const struct {
        const char *set, *text;
    } change[] = {
        {"cpu0.read=7GB/s", NULL},
        {"gpu0.usable=1GiB", NULL},
        {"cpu0.mem=64.5GiB", NULL},
        {"gpu1.mem=12GiB", "pci-0000:02:00.0 has 12.00 GiB there, 24.00 GiB here"},
        {"cpu0.cores=9", "cpu0 has 9 cores and 0 memory nodes there, 8 and 0 here"},
    };
    char text[160];
    (void)state;
    for (size_t i = 0; i < BL_COUNT(change); i++) {
        struct bl_machine a, b;
        two_cards(&a);
        two_cards(&b);
        set(&a, change[i].set);
        assert_int_equal(bl_machine_differs(&a, &b, text, sizeof text), change[i].text != NULL);
        if (change[i].text)
            assert_string_equal(text, change[i].text);
        a.n_links = 1;
        assert_true(bl_machine_differs(&a, &b, text, sizeof text));
        if (!change[i].text)
            assert_string_equal(text, "a link joins cpu0 and pci-0000:02:00.0 only here");
        bl_machine_finish(&a);
        bl_machine_finish(&b);
    }
}

static void schema_names_every_member(void **state)
{
    (void)state;
    schema_tables(BL_TEST_MACHINES "/../schema/machine.schema.json", bl_fields_all,
                  &bl_fields_machine);
}

static void a_described_device_does_not_open(void **state)
{
    struct bl_device *dev = NULL;
    struct bl_machine m;
    (void)state;
    two_cards(&m);
    const struct bl_machine_device *d = &m.device[1];
    assert_int_equal(d->backend->open(d->index, &d->config, &dev), BL_EUNAVAILABLE);
    assert_null(dev);
    uint32_t n = 7;
    assert_int_equal(d->backend->count(&n), BL_OK);
    assert_int_equal(n, 0);
    bl_machine_finish(&m);
}

static void reading_without_memory(void **state)
{
    const char *text = MACHINE(CPU "," GPU("1"), ",\"links\": [" LINK("0") "]");
    uint64_t n = 1;
    (void)state;
    for (;; n++) {
        struct bl_machine m;
        alloc_fail_at(n);
        const enum bl_status st = parse(&m, text);
        if (!alloc_fail_stop()) {
            bl_machine_finish(&m);
            break;
        }
        assert_int_equal(st, BL_ENOMEM);
    }
    assert_true(n > 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shipped_machines),
        cmocka_unit_test(known_machines),
        cmocka_unit_test(wrong_files),
        cmocka_unit_test(brackets),
        cmocka_unit_test(names),
        cmocka_unit_test(ways),
        cmocka_unit_test(defaults),
        cmocka_unit_test(assignments),
        cmocka_unit_test(wrong_assignments),
        cmocka_unit_test(rates_stay_possible),
        cmocka_unit_test(memory_by_sources),
        cmocka_unit_test(differences),
        cmocka_unit_test(schema_names_every_member),
        cmocka_unit_test(a_described_device_does_not_open),
        cmocka_unit_test(reading_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
