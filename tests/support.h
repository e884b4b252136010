/* SPDX-License-Identifier: MIT */
/* support.h — what every unit test includes: cmocka with the headers it wants first. */
#ifndef BL_TEST_SUPPORT_H
#define BL_TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#endif
