/* SPDX-License-Identifier: MIT */
/* Libraries of drivers, and what their answers mean. */
#include "simt_api.h"

#include "variables.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *open_library(const char *name)
{
    return dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

enum bl_status bl_simt_library(const char *vendor, const char *variable, const char *const names[],
                               void **out)
{
    const char *chosen = bl_variable(variable);

    if (chosen) {
        *out = open_library(chosen);
        return *out ? BL_OK
                    : bl_fail(BL_EUNAVAILABLE, "%s: %s names a library that cannot be used: %s",
                              vendor, variable, dlerror());
    }
    for (const char *const *n = names; *n; n++)
        if ((*out = open_library(*n)))
            return BL_OK;
    return bl_fail(BL_EUNAVAILABLE, "%s: no driver: %s", vendor, dlerror());
}

/* POSIX lets a pointer to an object be one to a function; C wants it said byte for byte. */
bool bl_simt_symbol(void *library, const char *name, void *out, size_t bytes)
{
    void *symbol = dlsym(library, name);

    memcpy(out, &symbol, bytes < sizeof symbol ? bytes : sizeof symbol);
    return symbol != NULL;
}

enum bl_status bl_simt_check(const struct bl_simt_driver *d, int code, const char *who,
                             const char *what)
{
    char text[96] = "";

    if (!code)
        return BL_OK;
    d->fns->error_text(d, code, text, sizeof text);
    return bl_fail(code == BL_SIMT_NO_MEMORY ? BL_ENOMEM : BL_EDEVICE, "%s: %s: %s (%d)", who, what,
                   *text ? text : "unknown error", code);
}
