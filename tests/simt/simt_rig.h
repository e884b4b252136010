/* SPDX-License-Identifier: MIT */
/* simt_rig.h — a backend over the emulated driver, or over this machine's.
 *
 *     rig_load(argv[1]);  rig_cards(&(struct emu_config){.n_cards = 2});  rig_open(0)
 *
 * Purpose   finds the library's own functions, points the backend to it and to images that it takes. "cuda" and "hip" in
 *           place of a library: the driver and the kernels that programs find here; there is nothing to configure then.
 * Ownership the library stays loaded.
 * Units     none.
 * Errors    fail the test.
 * Threads   one.
 */
#ifndef BL_TEST_SIMT_RIG_H
#define BL_TEST_SIMT_RIG_H

#include "support.h"

#include "backends.h"
#include "emu.h"
#include "status.h"

#include <dlfcn.h>

#ifndef BL_TEST_IMAGES
#define BL_TEST_IMAGES "images"
#endif

static struct simt_rig {
    const struct bl_backend *backend;
    emu_configure_fn *configure;
    emu_read_fn *read;
    const char *path, *upper; /* "CUDA" */
    bool is_old, is_real;
} rig;

static inline void ok(enum bl_status st)
{
    if (st)
        fail_msg("%s: %s", bl_status_name(st), bl_error());
}

static inline void rig_environment(const char *what, const char *value)
{
    char name[64];

    snprintf(name, sizeof name, "BALLAST_%s_%s", rig.upper, what);
    if (value)
        assert_int_equal(setenv(name, value, 1), 0);
    else
        assert_int_equal(unsetenv(name), 0);
}

static inline void rig_visible(const char *mask)
{
    const char *name = strcmp(rig.upper, "HIP") ? "CUDA_VISIBLE_DEVICES" : "HIP_VISIBLE_DEVICES";

    if (mask)
        assert_int_equal(setenv(name, mask, 1), 0);
    else
        assert_int_equal(unsetenv(name), 0);
}

/* True: `name` is a backend's, not a library's. */
static inline bool rig_real(const char *name)
{
    if (strcmp(name, "cuda") && strcmp(name, "hip"))
        return false;
    rig.path = name;
    rig.upper = strcmp(name, "hip") ? "CUDA" : "HIP";
    rig.backend = bl_backend_find(name);
    rig.is_real = true;
    return true;
}

static inline void rig_load(const char *path)
{
    if (rig_real(path))
        return;
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol;

    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    symbol = dlsym(library, "emu_configure");
    memcpy(&rig.configure, &symbol, sizeof symbol);
    symbol = dlsym(library, "emu_read");
    memcpy(&rig.read, &symbol, sizeof symbol);
    rig.path = path;
    rig.upper = strstr(name, "hip") ? "HIP" : "CUDA";
    rig.is_old = strstr(name, "old") != NULL;
    rig.backend = bl_backend_find(strstr(name, "hip") ? "hip" : "cuda");
    if (!rig.configure || !rig.read || !rig.backend) {
        fprintf(stderr, "%s is not the emulated driver, or this build lacks the backend\n", path);
        exit(1);
    }
    rig_environment("LIBRARY", path);
    rig_environment("KERNELS", BL_TEST_IMAGES);
    rig_visible(NULL);
}

/* True: nothing of what was there before is left. */
static inline bool rig_cards(const struct emu_config *c)
{
    return rig.configure(c);
}

static inline struct emu_counts rig_counts(void)
{
    struct emu_counts c;

    rig.read(&c);
    return c;
}

static inline struct bl_device *rig_open(uint32_t index)
{
    const struct bl_device_config c = {.threads = 1, .exact = true, .number = (uint16_t)(index + 1)};
    struct bl_device *dev = NULL;

    ok(rig.backend->open(index, &c, &dev));
    return dev;
}

#endif
