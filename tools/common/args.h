/* SPDX-License-Identifier: MIT */
/* args.h — command lines by table.
 *
 * Purpose   one row per option serves parsing, range checks, conflicts, help text and the nearest match for
 *           a misspelt name.
 * Ownership tables are static; text values point into argv.
 * Units     ranges are inclusive.
 * Errors    one line on standard error that names the option, what is wrong and what is allowed.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_ARGS_H
#define BL_ARGS_H

#include "report.h"

#include <stdio.h>

enum bl_arg_kind {
    BL_ARG_FLAG,  /* bool, becomes true */
    BL_ARG_TEXT,  /* const char * */
    BL_ARG_TEXTS, /* struct bl_arg_texts: one more each time it is given */
    BL_ARG_INT,   /* int64_t; decimal or 0x */
    BL_ARG_FLOAT, /* double */
    BL_ARG_CHOICE /* int: index of the word in `value` */
};

enum bl_arg_out { /* whether BL_ARG_TEXT names what is written: tried before anything else is done */
    BL_ARG_IN,
    BL_ARG_OUT,        /* a file, a pipe or a device */
    BL_ARG_OUT_STDOUT, /* those, or standard output, as - */
    BL_ARG_OUT_FILE    /* a file and nothing else */
};
struct bl_arg_texts {
    const char *item[64];
    size_t n;
};
struct bl_arg {
    const char *names; /* "-n,--predict,--n-predict": short ones, the long one shown, then others */
    enum bl_arg_kind kind;
    size_t at;         /* offset of the target in its group's base */
    const char *value; /* what the help calls the value; BL_ARG_CHOICE: its words, "table|json" */
    double min, max;
    uint8_t instead;   /* 1 to 7: rows of one command with the same number exclude each other; 0: none */
    bool required;     /* one row of its `instead` number must be given */
    bool excuses;      /* given: nothing is required */
    uint8_t out;       /* enum bl_arg_out */
    bool goes_on;      /* of an output: what is there is read first; a command that `only_reads` reads it alone */
    const char *renews; /* of an output: the option whose file it may replace; NULL: none */
    uint8_t words;     /* of BL_ARG_TEXTS: so many follow each time; 0: one */
    const char *words_for; /* of BL_ARG_INT: "auto|all" stand for -1 and -2; NULL: no word does */
    const char *help;  /* with unit and default */
};
struct bl_arg_group {
    const char *title;
    const struct bl_arg *rows;
    size_t n_rows;
    void *base; /* the struct that holds the targets */
};
struct bl_command {
    struct bl_report report;
    const char *usage, *about; /* usage without "ballast VERB" */
    const struct bl_arg_group *groups;
    size_t n_groups;
    const char *more; /* examples and exit codes, printed last */
    bool only_reads;  /* options that go on from a file do not write it here */
};

enum bl_parsed { BL_PARSED, BL_PARSED_HELP, BL_PARSED_BAD };
/* argv[0] is the verb. Targets keep what they hold unless their option is given; the last one given wins. Files that will
 * be written are tried (outputs.h). */
enum bl_parsed bl_args_parse(struct bl_command *, int argc, char **argv); /* --progress json: report.json, at once */
bool bl_args_want_json(int argc, char **argv); /* --progress json is among them */
int bl_args_code(const struct bl_command *, enum bl_parsed); /* prints the help asked for; exit code */
/* A usage error that only the verb can see; returns BL_EXIT_USAGE. */
int bl_args_fail(const struct bl_command *, const char *fmt, ...) BL_REPORT_PRINTF(2, 3);

/* A list such as "7,1 32": *list is malloc'ed and the caller's. False: `error` says what is wrong. */
bool bl_args_numbers(const char *text, int64_t min, int64_t max, int32_t **list, size_t *n, char error[160]);

/* The closest of the names offered, by edits; best is empty when none is close. */
struct bl_nearest {
    const char *word;
    size_t distance;
    char best[40];
};
void bl_nearest_begin(struct bl_nearest *, const char *word);
void bl_nearest_offer(struct bl_nearest *, const char *name, size_t n);

#endif
