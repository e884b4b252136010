/* SPDX-License-Identifier: MIT */
#include "csv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *read_all(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    size_t n = 0, room = 0;
    if (!f)
        return NULL;
    for (;;) {
        if (room - n < 4096) {
            char *more = realloc(text, room = room * 2 + 65536);
            if (!more)
                break;
            text = more;
        }
        size_t got = fread(text + n, 1, room - n - 1, f);
        n += got;
        if (got == 0)
            break;
    }
    fclose(f);
    if (text)
        text[n] = 0;
    return text;
}

/* Unquotes the cell at *at in place; *at moves behind its separator. True at the end of a line or
 * of the file. */
static bool take_cell(char **at, char **cell)
{
    char *from = *at, *to = *at;
    bool quoted = false;
    *cell = to;
    while (*from && (quoted || (*from != ',' && *from != '\n'))) {
        if (*from == '"' && quoted && from[1] == '"')
            *to++ = *from++;
        else if (*from == '"')
            quoted = !quoted;
        else if (*from != '\r')
            *to++ = *from;
        from++;
    }
    char stop = *from;
    *at = stop ? from + 1 : from;
    *to = 0;
    return stop != ',';
}

static bool add_cell(struct csv *c, size_t *n, char *cell)
{
    if ((*n & (*n - 1)) == 0) {
        char **more = realloc(c->cell, (*n ? *n * 2 : 1) * sizeof *more);
        if (!more)
            return false;
        c->cell = more;
    }
    c->cell[(*n)++] = cell;
    return true;
}

bool csv_read(struct csv *c, const char *path)
{
    *c = (struct csv){.text = read_all(path)};
    if (!c->text) {
        fprintf(stderr, "%s: cannot be read\n", path);
        return false;
    }
    size_t n = 0, column = 0, lines = 0;
    for (char *at = c->text; *at;) {
        char *cell;
        bool last = take_cell(&at, &cell);
        if (last && column == 0 && !*cell)
            continue;
        if (!add_cell(c, &n, cell))
            return csv_finish(c), false;
        column++;
        if (!last)
            continue;
        if (lines++ == 0)
            c->n_columns = column;
        if (column != c->n_columns) {
            fprintf(stderr, "%s: line %zu has %zu columns, the header %zu\n", path, lines, column,
                    c->n_columns);
            return csv_finish(c), false;
        }
        column = 0;
    }
    c->n_rows = lines ? lines - 1 : 0;
    return true;
}

void csv_finish(struct csv *c)
{
    free(c->text);
    free(c->cell);
    *c = (struct csv){0};
}

bool csv_has(const struct csv *c, const char *column)
{
    for (size_t i = 0; i < c->n_columns; i++)
        if (!strcmp(c->cell[i], column))
            return true;
    return false;
}

const char *csv_get(const struct csv *c, size_t row, const char *column)
{
    for (size_t i = 0; i < c->n_columns; i++)
        if (!strcmp(c->cell[i], column))
            return c->cell[(row + 1) * c->n_columns + i];
    return "";
}

double csv_number(const struct csv *c, size_t row, const char *column)
{
    const char *s = csv_get(c, row, column);
    char *end;
    double v = strtod(s, &end);
    return end == s ? NAN : v;
}
