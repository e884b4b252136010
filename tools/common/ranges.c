/* SPDX-License-Identifier: MIT */
#include "ranges.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct range {
    int64_t first, last, step, factor;
};

static bool read_number(const char **p, int64_t *out)
{
    char *end;

    if (!isdigit((unsigned char)**p))
        return false;
    errno = 0;
    *out = strtoll(*p, &end, 10);
    *p = end;
    return !errno;
}

/* One item, up to the comma or the end. */
static bool read_range(const char *p, struct range *r)
{
    r->step = 1;
    r->factor = 1;
    if (!read_number(&p, &r->first))
        return false;
    r->last = r->first;
    if (*p == '-') {
        p++;
        if (!read_number(&p, &r->last) || r->last < r->first)
            return false;
        if (*p == '+') {
            p++;
            if (!read_number(&p, &r->step) || r->step < 1)
                return false;
        } else if (*p == '*') {
            p++;
            if (!read_number(&p, &r->factor) || r->factor < 2 || r->first < 1)
                return false;
        }
    }
    return !*p || *p == ',';
}

static bool append(struct bl_ranges *list, const struct range *r)
{
    /* The bounds were checked against a maximum far below what could wrap here. */
    for (int64_t v = r->first; v <= r->last; v = r->factor > 1 ? v * r->factor : v + r->step) {
        if (list->n == BL_RANGES_MAX)
            return false;
        list->item[list->n++] = v;
        if (v > r->last / r->factor || v > r->last - r->step)
            break;
    }
    return true;
}

bool bl_ranges_add(struct bl_ranges *list, const char *text, int64_t min, int64_t max,
                   char error[160])
{
    for (const char *p = text;; p++) {
        const size_t n = strcspn(p, ",");
        const int shown = (int)(n < 40 ? n : 40);
        struct range r;
        if (!read_range(p, &r)) {
            snprintf(error, 160, "'%.*s' is no number and no range such as 8-64*2 or 10-40+10",
                     shown, p);
            return false;
        }
        if (r.first < min || r.last > max) {
            snprintf(error, 160, "'%.*s' must be from %lld to %lld", shown, p, (long long)min,
                     (long long)max);
            return false;
        }
        if (!append(list, &r)) {
            snprintf(error, 160, "more than %d values with '%.*s'", BL_RANGES_MAX, shown, p);
            return false;
        }
        p += n;
        if (!*p)
            return true;
    }
}
