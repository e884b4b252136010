/* SPDX-License-Identifier: MIT */
/* The seed corpus of fuzz_machine: the machines that come with the program, each with an
 * assignment; one with every member. */
#include <stdio.h>
#include <string.h>

static const char *const files[] = {"4x-rtx-3060-ddr4-4ch", "strix-halo-128", "granite-rapids-2s",
                                    "cobalt-100-96", "rtx-pro-5000-72-48"};
static const char *const sets[] = {"gpu0.mem=24GiB", "cpu0.mem=64GiB", "cpu0.read=1TB/s",
                                   "cpu0.layer_ns=5us", "link1.bps=3GB/s"};
static const char whole[] =
    "{\"ballast_machine\": 1, \"name\": \"n\", \"source\": \"s\", \"devices\": [{\"id\": \"cpu0\", "
    "\"kind\": \"cpu\", \"mem_bytes\": 8e9, \"cores\": 4, \"isa\": \"amx\", \"clock_hz\": "
    "\"3GHz\", \"cache_bytes\": \"2MiB\", \"domains\": [{\"node\": 1, \"cores\": 2, \"mem_bytes\": "
    "4e9, \"far_bps\": 1e9}], \"read_rates\": [{\"threads\": 2, \"domains\": 1, \"bps\": 1e9}], "
    "\"barriers\": [{\"threads\": 2, \"ns\": 70}], \"rates\": {\"default\": {\"decode_bps\": 1e9}, "
    "\"q4_k\": {\"macs_per_s_8\": 1e9}}, \"caps\": {\"granule_bytes\": 4096, \"threads\": 2, "
    "\"tiles\": {\"q8_0\": {\"part_bytes\": 300, \"from\": 3, \"same_as\": \"q4_0\"}}}}, {\"id\": "
    "\"g\", \"kind\": \"gpu\", \"mem_kind\": \"unified\", \"shares\": \"cpu0\", \"mem_readings\": "
    "[{\"source\": \"hip\", \"bytes\": 0}, {\"source\": \"vulkan\", \"bytes\": 5e9}]}], \"hubs\": "
    "[{\"id\": \"h\", \"kind\": \"dram\", \"bps\": 1e9}], \"links\": [{\"a\": \"cpu0\", \"b\": "
    "\"gpu0\", \"via\": \"h\", \"ab_rated_bps\": 1e9, \"ba_rated_bps\": 1e9}]}";

static int write_seed(const char *dir, size_t i, const char *set, const char *text, size_t n)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/machine-%02zu", dir, i);
    FILE *f = fopen(path, "wb");
    if (!f)
        return 0;
    const int good = fwrite(set, 1, strlen(set) + 1, f) && fwrite(text, 1, n, f) == n;
    return fclose(f) == 0 && good;
}

int main(int argc, char **argv)
{
    static char text[1 << 16];
    if (argc != 2)
        return 2;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s.json", BL_MACHINES, files[i]);
        FILE *f = fopen(path, "rb");
        if (!f)
            return 1;
        const size_t n = fread(text, 1, sizeof text, f);
        fclose(f);
        if (!write_seed(argv[1], i, sets[i], text, n))
            return 1;
    }
    return write_seed(argv[1], 90, "gpu0.usable=6GB", whole, strlen(whole)) ? 0 : 1;
}
