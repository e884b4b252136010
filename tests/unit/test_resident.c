/* SPDX-License-Identifier: MIT */
/* What an engine takes of the machine: memory as its ledger says, no processor time when nothing is
 * asked of it. */
#include "support.h"

#include "engine_rig.h"
#include "thread.h"

#include <time.h>
#include <unistd.h>

static uint64_t status_bytes(const char *key)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0)
            sscanf(line + strlen(key), " %llu", &kib);
    fclose(f);
    return (uint64_t)kib * 1024;
}

static uint64_t process_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void take_and_rest(bool no_mmap)
{
    const uint64_t margin = (uint64_t)24 << 20;
    struct bl_options opt = small();
    struct bl_memory_line m;
    struct bl_engine *e;
    uint64_t all = 0, weights = 0;

    opt.no_mmap = no_mmap;
    opt.ctx_tokens = 4096;
    e = opened("llama-f32", &opt);
    free(last_logits(e));
    for (uint32_t i = 0; i < bl_engine_memory(e, i, &m); i++) {
        all += m.planned_bytes;
        weights += strcmp(m.purpose, "weights") == 0 ? m.planned_bytes : 0;
    }
#ifndef BL_ASAN
    if (no_mmap)
        assert_in_range(status_bytes("VmRSS:"), 0, all + margin);
    assert_in_range(status_bytes("RssAnon:"), 0, all - (no_mmap ? 0 : weights) + margin);
#else
    (void)margin;
#endif
    usleep(100000);
    const uint64_t before = process_ns();
    usleep(2000000);
    const uint64_t used = process_ns() - before;
    print_message("idle for 2 s: %.2f ms of processor time\n", (double)used * 1e-6);
    assert_true(used < 20000000); /* 1 % */
    bl_close(e);
}

static void mapped(void **state)
{
    (void)state;
    take_and_rest(false);
}

static void read_into_memory(void **state)
{
    (void)state;
    take_and_rest(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mapped),
                                       cmocka_unit_test(read_into_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
