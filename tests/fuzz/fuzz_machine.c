/* SPDX-License-Identifier: MIT */
/* Any machine file, any assignment to what it describes.
 *
 * Input: an assignment, a NUL, and the file; without a NUL all is the file.
 */
#include <stdio.h>
#include <stdlib.h>

#include "machine_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static void check_failure(enum bl_status st, enum bl_status expected)
{
    must(st == expected, "a machine fails in one way");
    must(!strpbrk(bl_error(), "\n\r"), "a message is one line");
}

static void check_machine(const struct bl_machine *m)
{
    for (uint16_t d = 0; d < m->n_devices; d++) {
        const struct bl_machine_device *v = &m->device[d];
        must(v->usable_bytes > 0 && v->usable_bytes <= v->mem_bytes, "memory is there");
        must(v->backend && v->caps.granule_bytes, "a device can be planned for");
        must(bl_machine_find(m, v->id) == d, "a device is found by its id");
        must(d == 0 || v->mem_kind == BL_MEMORY_UNIFIED || bl_machine_path_bps(m, 0, d, NULL) > 0,
             "a device can be reached");
    }
}

static void ignore(void *arg, const char *text)
{
    must(!strchr(text, '\n'), "a line of the table is one");
    (void)arg;
}

/* Written and read again it is the same. */
static void round_trip(const struct bl_machine *m)
{
    struct bl_machine again;
    char *text, *twice;
    size_t n, n_twice;
    must(bl_machine_write(m, &text, &n) == BL_OK, "a machine can be written");
    const enum bl_status st = bl_machine_parse(&again, "again", text, n);
    if (st)
        fprintf(stderr, "%s\n%s", bl_error(), text);
    must(st == BL_OK, "what was written can be read");
    must(bl_machine_write(&again, &twice, &n_twice) == BL_OK, "and written");
    must(n == n_twice && !memcmp(text, twice, n), "the same as before");
    bl_machine_table(&again, ignore, NULL);
    bl_machine_finish(&again);
    free(text);
    free(twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
    const size_t n_set = nul ? (size_t)(nul - data) + 1 : 0;
    struct bl_machine m;
    enum bl_status st = bl_machine_parse(&m, "fuzz", (const char *)data + n_set, n - n_set);
    if (st) {
        check_failure(st, BL_EFORMAT);
        return 0;
    }
    check_machine(&m);
    round_trip(&m);
    if (nul && (st = bl_machine_set(&m, (const char *)data)))
        check_failure(st, BL_EINVAL);
    else if (nul) {
        check_machine(&m);
        round_trip(&m);
    }
    bl_machine_finish(&m);
    return 0;
}
