/* SPDX-License-Identifier: MIT */
#include "variables.h"

#include "json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum kind {
    SWITCH,  /* 0 or 1 */
    LIBRARY, /* a name that the loader looks for, or a path */
    FOLDER
};

static const struct variable {
    const char *name;
    enum kind kind;
} variables[] = {
    {"BALLAST_CUDA_KERNELS", FOLDER},   {"BALLAST_CUDA_LIBRARY", LIBRARY},
    {"BALLAST_HIP_KERNELS", FOLDER},    {"BALLAST_HIP_LIBRARY", LIBRARY},
    {"BALLAST_VULKAN_INT_DOT", SWITCH},
};

const char *bl_variable(const char *name)
{
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

static enum bl_status wrong(const struct variable *v, const char *value, const char *what)
{
    char shown[200];

    snprintf(shown, sizeof shown, "%s", value);
    bl_one_line(shown);
    return bl_fail(BL_EINVAL, "the variable %s is '%s'; %s", v->name, shown, what);
}

static enum bl_status check(const struct variable *v, const char *value)
{
    struct stat st;
    char text[120];

    switch (v->kind) {
    case SWITCH:
        return strcmp(value, "0") && strcmp(value, "1") ? wrong(v, value, "it must be 0 or 1")
                                                        : BL_OK;
    case LIBRARY:
        if (!strchr(value, '/') || !access(value, R_OK))
            return BL_OK;
        snprintf(text, sizeof text, "that library cannot be read: %s", strerror(errno));
        return wrong(v, value, text);
    case FOLDER:
        if (!stat(value, &st) && S_ISDIR(st.st_mode))
            return BL_OK;
        return wrong(v, value, "it must be a folder with kernels");
    }
    return BL_OK;
}

enum bl_status bl_variables_check(void)
{
    for (size_t i = 0; i < BL_COUNT(variables); i++) {
        const char *value = bl_variable(variables[i].name);
        if (value)
            BL_TRY(check(&variables[i], value));
    }
    return BL_OK;
}
