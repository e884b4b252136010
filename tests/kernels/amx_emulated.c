/* SPDX-License-Identifier: MIT */
/* The AMX panels as they are in the library, but on tiles in plain C. */
#include "amx_emulate.h"

#define bl_cpu_amx bl_cpu_amx_emulated
#define bl_cpu_amx_works bl_cpu_amx_works_emulated
#include "x86/amx_panel.c"
