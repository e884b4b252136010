/* SPDX-License-Identifier: MIT */
#include "ballast.h"

#include "version.h"

const char *bl_version(void)
{
    return BL_VERSION " (" BL_COMMIT ")";
}
