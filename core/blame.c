/* SPDX-License-Identifier: MIT */
#include "blame.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum bl_status bl_blame(enum bl_status st, const char *name)
{
    const char *line = bl_error();
    const size_t n = strlen(name);

    if (!strncmp(line, name, n) && !isalnum((unsigned char)line[n]))
        return st;
    return bl_fail_in(st, "%s", name);
}

enum bl_status bl_blame_at(enum bl_status st, const char *name, const char *at)
{
    char line[512];

    (void)bl_blame(st, name);
    snprintf(line, sizeof line, "%s", bl_error());
    return bl_fail(st, "%s (%s)", line, at);
}
