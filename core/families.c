/* SPDX-License-Identifier: MIT */
#include "model.h"

const struct bl_family *const bl_families[] = {
#define X(family) &family,
#include "families.def"
#undef X
    NULL,
};
