/* SPDX-License-Identifier: MIT */
/* facts_text.h — words and numbers in the free text of reports, and the two readers of facts.
 *
 * Purpose   what facts.c and facts_devices.c share.
 * Ownership none.
 * Units     none.
 * Errors    none: 0 where there is no such number.
 * Threads   any.
 */
#ifndef BL_TEST_FACTS_TEXT_H
#define BL_TEST_FACTS_TEXT_H

#include "facts.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void report_read_cpu(struct report *, const struct facts *, size_t row);
void report_read_gpus(struct report *, const struct facts *, size_t row);

static inline bool has(const char *text, const char *word)
{
    return strstr(text, word) != NULL;
}

/* The number before or after a word; 0: none. */
static inline double number_before(const char *text, const char *word)
{
    const char *at = strstr(text, word);
    if (!at)
        return 0;
    while (at > text && at[-1] == ' ')
        at--;
    while (at > text && (isdigit((unsigned char)at[-1]) || at[-1] == '.' || at[-1] == ','))
        at--;
    double v = 0;
    for (; isdigit((unsigned char)*at) || *at == ','; at++)
        if (*at != ',')
            v = v * 10 + (*at - '0');
    return v;
}

static inline double number_after(const char *text, const char *word)
{
    const char *at = strstr(text, word);
    return at ? strtod(at + strlen(word), NULL) : 0;
}

static inline uint32_t count(double n)
{
    return n >= 1 ? (uint32_t)fmin(n, 65536) : 0;
}

static inline double either(double a, double b)
{
    return isfinite(a) && a > 0 ? a : b;
}

/* The chip's name: less "2x " before it, and less what follows in brackets or behind a comma. */
static inline size_t chip_name(const char **name)
{
    const char *x = strstr(*name, "x ");
    if (x && x - *name <= 2 && isdigit((unsigned char)**name))
        *name = x + 2;
    size_t n = strcspn(*name, "(,");
    while (n > 0 && (*name)[n - 1] == ' ')
        n--;
    return n;
}

#endif
