/* SPDX-License-Identifier: MIT */
#include "args.h"
#include "io.h"
#include "outputs.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORD = 39, N_INSTEAD = 8, HELP_COLUMN = 28, HELP_WIDTH = 80 };

/* ---- names ---- */

/* Next of the comma-separated names, NULL at the end. */
static const char *next_name(const char **rest, size_t *n)
{
    const char *name = *rest;

    if (!*name)
        return NULL;
    *n = strcspn(name, ",");
    *rest = name + *n + (name[*n] == ',');
    return name;
}

static bool has_name(const struct bl_arg *row, const char *word, size_t word_n)
{
    const char *rest = row->names, *name;
    size_t n;

    while ((name = next_name(&rest, &n)))
        if (n == word_n && !memcmp(name, word, n))
            return true;
    return false;
}

static const struct bl_arg *find_row(const struct bl_command *c, const char *word, size_t n,
                                     const struct bl_arg_group **group)
{
    for (size_t g = 0; g < c->n_groups; g++)
        for (size_t i = 0; i < c->groups[g].n_rows; i++)
            if (has_name(&c->groups[g].rows[i], word, n)) {
                *group = &c->groups[g];
                return &c->groups[g].rows[i];
            }
    return NULL;
}

/* Edits (insert, drop, change, swap of neighbours) that turn a into b; both at most MAX_WORD long.
 */
static size_t edits(const char *a, size_t na, const char *b, size_t nb)
{
    size_t d[3][MAX_WORD + 1] = {{0}};

    for (size_t j = 0; j <= nb; j++)
        d[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *row = d[i % 3], *above = d[(i + 2) % 3], *above2 = d[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = above[j - 1] + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < best)
                best = above[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                above2[j - 2] + 1 < best)
                best = above2[j - 2] + 1;
            row[j] = best;
        }
    }
    return d[na % 3][nb];
}

void bl_nearest_begin(struct bl_nearest *s, const char *word)
{
    memset(s, 0, sizeof *s);
    s->word = word;
    /* More slips than a third of the letters make another word; one letter is no clue at all. */
    size_t letters = strlen(word + strspn(word, "-"));
    s->distance = letters < 2 ? 1 : letters < 5 ? 2 : (letters + 1) / 3 + 1;
}

void bl_nearest_offer(struct bl_nearest *s, const char *name, size_t n)
{
    size_t word_n = strlen(s->word);

    if (word_n > MAX_WORD || n > MAX_WORD)
        return;
    size_t d = edits(s->word, word_n, name, n);
    /* --batch for --batch-size is one slip, not five. */
    if (word_n >= 4 && word_n < n && !memcmp(s->word, name, word_n))
        d = 1;
    if (d >= s->distance)
        return;
    s->distance = d;
    memcpy(s->best, name, n);
    s->best[n] = 0;
}

/* ---- errors ---- */

static void usage_error(const struct bl_command *c, const char *fmt, va_list ap)
{
    char text[800];

    vsnprintf(text, sizeof text, fmt, ap);
    bl_report_error(&c->report, "%s; see 'ballast %s --help'", text, c->report.verb);
}

int bl_args_fail(const struct bl_command *c, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    usage_error(c, fmt, ap);
    va_end(ap);
    return BL_EXIT_USAGE;
}

static bool BL_REPORT_PRINTF(2, 3) bad(const struct bl_command *c, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    usage_error(c, fmt, ap);
    va_end(ap);
    return false;
}

static bool unknown_option(const struct bl_command *c, const char *word, size_t n)
{
    char name[128];
    struct bl_nearest near;

    snprintf(name, sizeof name, "%.*s", (int)(n < 120 ? n : 120), word);
    bl_nearest_begin(&near, name);
    for (size_t g = 0; g < c->n_groups; g++)
        for (size_t i = 0; i < c->groups[g].n_rows; i++) {
            const char *rest = c->groups[g].rows[i].names, *candidate;
            size_t len;
            while ((candidate = next_name(&rest, &len)))
                bl_nearest_offer(&near, candidate, len);
        }
    if (near.best[0])
        return bad(c, "unknown option %s; the nearest is %s", name, near.best);
    return bad(c, "unknown option %s", name);
}

/* ---- values ---- */

/* -1 for the first of the words "auto|all", -2 for the second; 0: none of them. */
static int word_number(const char *words, const char *text)
{
    const size_t n = strlen(text);

    for (int i = -1; words && *words; i--) {
        const size_t len = strcspn(words, "|");
        if (len == n && !memcmp(words, text, n))
            return i;
        words += len + (words[len] == '|');
    }
    return 0;
}

static bool set_int(const struct bl_command *c, const struct bl_arg *row, const char *name,
                    const char *text, int64_t *out)
{
    char *end;
    bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');

    if (word_number(row->words_for, text)) {
        *out = word_number(row->words_for, text);
        return true;
    }
    errno = 0;
    long long v = strtoll(text, &end, hex ? 16 : 10);
    if (end == text || *end || text[0] == ' ')
        return bad(c, "%s wants a whole number%s%s, not '%s'", name, row->words_for ? " or " : "",
                   row->words_for ? row->words_for : "", text);
    if (errno || (double)v < row->min || (double)v > row->max)
        return bad(c, "%s is %s but must be from %.0f to %.0f", name, text, row->min, row->max);
    *out = v;
    return true;
}

static bool set_float(const struct bl_command *c, const struct bl_arg *row, const char *name,
                      const char *text, double *out)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || text[0] == ' ' || !isfinite(v))
        return bad(c, "%s wants a number, not '%s'", name, text);
    if (v < row->min || v > row->max)
        return bad(c, "%s is %s but must be from %g to %g", name, text, row->min, row->max);
    *out = v;
    return true;
}

static bool set_choice(const struct bl_command *c, const struct bl_arg *row, const char *name,
                       const char *text, int *out)
{
    const char *word = row->value;

    for (int i = 0; *word; i++) {
        size_t n = strcspn(word, "|");
        if (strlen(text) == n && !memcmp(word, text, n)) {
            *out = i;
            return true;
        }
        word += n + (word[n] == '|');
    }
    return bad(c, "%s is '%s' but must be one of %s", name, text, row->value);
}

static bool add_text(const struct bl_command *c, const char *name, const char *text,
                     struct bl_arg_texts *out)
{
    if (out->n == sizeof out->item / sizeof out->item[0])
        return bad(c, "%s is given more than %zu times", name, out->n);
    out->item[out->n++] = text;
    return true;
}

static bool set_value(const struct bl_command *c, const struct bl_arg *row, void *base,
                      const char *name, const char *text)
{
    void *target = (char *)base + row->at;

    switch (row->kind) {
    case BL_ARG_FLAG:
        *(bool *)target = true;
        return true;
    case BL_ARG_TEXT:
        *(const char **)target = text;
        return true;
    case BL_ARG_TEXTS:
        return add_text(c, name, text, target);
    case BL_ARG_INT:
        return set_int(c, row, name, text, target);
    case BL_ARG_FLOAT:
        return set_float(c, row, name, text, target);
    case BL_ARG_CHOICE:
        return set_choice(c, row, name, text, target);
    }
    return false;
}

#define SEPARATORS ", \n\t\r"

static bool is_separator(char ch)
{
    return ch && strchr(SEPARATORS, ch);
}

/* Of a list's item, as much as a message wants to show. */
static int item_bytes(const char *item)
{
    size_t n = strcspn(item, SEPARATORS);

    return (int)(n < 20 ? n : 20);
}

bool bl_args_numbers(const char *text, int64_t min, int64_t max, int32_t **list, size_t *n,
                     char error[160])
{
    int32_t *v = malloc((strlen(text) / 2 + 1) * sizeof *v);
    size_t count = 0;

    *error = 0;
    for (const char *p = text; v && *p;) {
        char *end;
        if (is_separator(*p)) {
            p++;
            continue;
        }
        errno = 0;
        long long x = strtoll(p, &end, 10);
        if (end == p || (*end && !is_separator(*end)))
            snprintf(error, 160, "'%.*s' at item %zu is no whole number", item_bytes(p), p,
                     count + 1);
        else if (errno || x < min || x > max)
            snprintf(error, 160, "item %zu is %.*s but must be from %lld to %lld", count + 1,
                     item_bytes(p), p, (long long)min, (long long)max);
        if (*error)
            break;
        v[count++] = (int32_t)x;
        p = end;
    }
    if (!v)
        snprintf(error, 160, "out of memory");
    else if (!*error && !count)
        snprintf(error, 160, "no numbers in it");
    if (*error) {
        free(v);
        return false;
    }
    *list = v;
    *n = count;
    return true;
}

/* ---- parsing ---- */

struct parse {
    const struct bl_command *c;
    int argc, i;
    char **argv;
    const char *given[N_INSTEAD]; /* by `instead` number: the name used */
    bool excused;
};

static bool is_option(const struct bl_command *c, const char *word)
{
    const struct bl_arg_group *group;

    return word[0] == '-' && find_row(c, word, strlen(word), &group);
}

static bool parse_option(struct parse *p, const char *word)
{
    const struct bl_command *c = p->c;
    const char *equals = word[0] == '-' ? strchr(word, '=') : NULL;
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    const struct bl_arg_group *group = NULL;
    const struct bl_arg *row = find_row(c, word, n, &group);
    const char *value = equals ? equals + 1 : NULL;
    char name[MAX_WORD + 1];

    if (!row)
        return unknown_option(c, word, n);
    snprintf(name, sizeof name, "%.*s", (int)n, word);
    if (row->kind == BL_ARG_FLAG && value)
        return bad(c, "%s takes no value", name);
    if (row->kind != BL_ARG_FLAG && !value) {
        if (p->i + 1 >= p->argc)
            return bad(c, "%s needs a value (%s)", name, row->value);
        if (is_option(c, p->argv[p->i + 1]))
            return bad(c, "%s needs a value (%s) but %s follows; if that is meant, write %s=%s",
                       name, row->value, p->argv[p->i + 1], name, p->argv[p->i + 1]);
        value = p->argv[++p->i];
    }
    const char **given = &p->given[row->instead];
    if (row->instead && *given && !has_name(row, *given, strcspn(*given, "=")))
        return bad(c, "%.*s and %s exclude each other", (int)strcspn(*given, "="), *given, name);
    *given = word;
    p->excused = p->excused || row->excuses;
    if (!set_value(c, row, group->base, name, value))
        return false;
    for (unsigned k = 1; k < row->words; k++) {
        if (p->i + 1 >= p->argc || is_option(c, p->argv[p->i + 1]))
            return bad(c, "%s needs %u values (%s)", name, row->words, row->value);
        if (!set_value(c, row, group->base, name, p->argv[++p->i]))
            return false;
    }
    return true;
}

/* "-p TEXT or -f FILE" for a row and those that may stand in for it. */
static void name_alternatives(const struct bl_command *c, const struct bl_arg *want, char *text,
                              size_t cap)
{
    size_t used = 0;

    for (size_t g = 0; g < c->n_groups; g++)
        for (size_t i = 0; i < c->groups[g].n_rows; i++) {
            const struct bl_arg *row = &c->groups[g].rows[i];
            if (row != want && (!row->instead || row->instead != want->instead))
                continue;
            int n = snprintf(text + used, cap - used, "%s%.*s%s%s", used ? " or " : "",
                             (int)strcspn(row->names, ","), row->names, row->value ? " " : "",
                             row->value ? row->value : "");
            used += n > 0 && (size_t)n < cap - used ? (size_t)n : 0;
        }
}

static bool check_required(const struct parse *p)
{
    const struct bl_command *c = p->c;
    char text[160];

    for (size_t g = 0; g < c->n_groups; g++)
        for (size_t i = 0; i < c->groups[g].n_rows; i++) {
            const struct bl_arg *row = &c->groups[g].rows[i];
            if (!row->required || p->given[row->instead] || p->excused)
                continue;
            name_alternatives(c, row, text, sizeof text);
            return bad(c, "missing %s", text);
        }
    return true;
}

bool bl_args_want_json(int argc, char **argv)
{
    static const char name[] = "--progress";
    bool json = false;

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], name) && i + 1 < argc)
            json = !strcmp(argv[++i], "json");
        else if (!strncmp(argv[i], name, sizeof name - 1) && argv[i][sizeof name - 1] == '=')
            json = !strcmp(argv[i] + sizeof name, "json");
    }
    return json;
}

enum bl_parsed bl_args_parse(struct bl_command *c, int argc, char **argv)
{
    struct parse p = {.c = c, .argc = argc, .argv = argv};
    const struct bl_arg_group *group;

    /* What is wrong with the line is said as the line asks for it. */
    c->report.json =
        find_row(c, "--progress", strlen("--progress"), &group) && bl_args_want_json(argc, argv);

    /* Help is given whatever else is wrong with the line. */
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help"))
            return BL_PARSED_HELP;
    for (p.i = 1; p.i < argc; p.i++) {
        const char *word = argv[p.i];
        if (word[0] != '-' || !word[1]) {
            bad(c, "unexpected argument '%s'", word);
            return BL_PARSED_BAD;
        }
        if (!parse_option(&p, word))
            return BL_PARSED_BAD;
    }
    return check_required(&p) && bl_outputs_try(c) ? BL_PARSED : BL_PARSED_BAD;
}

/* ---- help ---- */

/* Continues a line that is `column` wide: words wrapped at HELP_WIDTH, further lines indented. */
static void print_wrapped(FILE *f, const char *text, size_t column)
{
    while (*text) {
        size_t n = strcspn(text, " ");
        if (column > HELP_COLUMN && column + 1 + n > HELP_WIDTH) {
            fprintf(f, "\n%*s", (int)HELP_COLUMN, "");
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            fputc(' ', f);
            column++;
        }
        fprintf(f, "%.*s", (int)n, text);
        column += n;
        text += n + (text[n] == ' ');
    }
    fputc('\n', f);
}

/* "  -n, --predict N": one short and one long name; the others are appended to `also`. */
static size_t print_names(const struct bl_arg *row, char *left, size_t cap, char *also,
                          size_t also_cap)
{
    const char *rest = row->names, *name;
    size_t n, used = 0, a = 0;
    bool have_long = false;

    *also = 0;
    while ((name = next_name(&rest, &n))) {
        bool is_long = n > 1 && name[1] == '-';
        if (have_long)
            a += (size_t)snprintf(also + a, also_cap - a, "%s%.*s", a ? ", " : "; also ", (int)n,
                                  name);
        else
            used += (size_t)snprintf(left + used, cap - used, "%s%.*s",
                                     used      ? ", "
                                     : is_long ? "      "
                                               : "  ",
                                     (int)n, name);
        have_long |= is_long;
    }
    if (row->kind != BL_ARG_FLAG)
        used += (size_t)snprintf(left + used, cap - used, " %s", row->value);
    return used;
}

static void print_row(FILE *f, const struct bl_arg *row)
{
    char left[128] = "", also[128], help[600];
    size_t used = print_names(row, left, sizeof left, also, sizeof also);

    fputs(left, f);
    if (used + 1 < HELP_COLUMN)
        fprintf(f, "%*s", (int)(HELP_COLUMN - used), "");
    else
        fprintf(f, "\n%*s", (int)HELP_COLUMN, "");
    snprintf(help, sizeof help, "%s%s", row->help, also);
    print_wrapped(f, help, HELP_COLUMN);
}

static int print_help(const struct bl_command *c)
{
    static const struct bl_arg help_row = {.names = "-h,--help", .help = "this text"};
    struct bl_out_page page;
    FILE *f = bl_out_page_begin(&page);

    if (f) {
        fprintf(f, "Usage: ballast %s %s\n\n%s\n", c->report.verb, c->usage, c->about);
        for (size_t g = 0; g < c->n_groups; g++) {
            fprintf(f, "\n%s:\n", c->groups[g].title);
            for (size_t i = 0; i < c->groups[g].n_rows; i++)
                print_row(f, &c->groups[g].rows[i]);
        }
        print_row(f, &help_row);
        if (c->more)
            fprintf(f, "\n%s\n", c->more);
    }
    return bl_out_page_end(&c->report, &page);
}

int bl_args_code(const struct bl_command *c, enum bl_parsed parsed)
{
    return parsed == BL_PARSED_HELP ? print_help(c) : BL_EXIT_USAGE;
}
