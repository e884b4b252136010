/* SPDX-License-Identifier: MIT */
/* bench.h — the parts of `ballast bench`: cases, measuring one, printing it.
 *
 * Purpose   a case is one row; its result holds everything that any output format shows.
 * Ownership texts of a case point into argv or into the lists made from it; a result owns its samples.
 * Units     nanoseconds, tokens per second, bytes, GB/s with 1 GB = 10^9 bytes.
 * Errors    measuring: enum bl_status with bl_error(). Printing: none, into a stream in memory.
 * Threads   the thread that runs the verb.
 */
#ifndef BL_BENCH_H
#define BL_BENCH_H

#include "common/ranges.h"
#include "common/report.h"

#include <stdio.h>

struct bl_bench_case {
    const char *model, *type_k, *type_v;
    uint32_t batch, ubatch, threads;
    uint32_t threads_batch;          /* of steps of many tokens, 0: threads */
    uint32_t prompt, gen, depth; /* tokens */
};

/* ---- cases: bench_cases.c ---- */

struct bl_bench_words {
    const char **item; /* owned, and so is each */
    size_t n;
};
struct bl_bench_lists { /* of each parameter the values to try */
    struct bl_bench_words model, type_k, type_v;
    struct bl_ranges batch, ubatch, threads, threads_batch, depth, prompt, gen; /* threads_batch: none is as 0 */
    struct {
        uint32_t prompt, gen;
    } pair[64];
    size_t n_pairs;
};
/* Splits at commas and appends; false: out of memory. */
bool bl_bench_words_add(struct bl_bench_words *, const char *text);
void bl_bench_lists_finish(struct bl_bench_lists *);
/* "512,128" */
bool bl_bench_pair_add(struct bl_bench_lists *, const char *text, char error[160]);
/* Every combination; prompts, then generations, then pairs innermost. malloc'ed; false: out of memory. */
bool bl_bench_cases(const struct bl_bench_lists *, struct bl_bench_case **out, size_t *n);
void bl_bench_name(const struct bl_bench_case *, char name[64]); /* "pp512+tg128 @ d4096" */

/* ---- measuring: bench_run.c ---- */

struct bl_bench_model { /* what is said of the file */
    char type[96];      /* "llama 135M Q4_1" */
    uint64_t bytes, n_params;
};
struct bl_bench_result {
    struct bl_bench_case c;
    struct bl_bench_model model;
    bool no_mmap, exact;
    int64_t cpu_mask;            /* as the option */
    uint64_t ctx_tokens, planned_bytes;
    char time[24];               /* when it began, "2026-01-31T12:00:00Z" */
    uint64_t *ns;                /* [n_samples] */
    uint32_t n_samples;
    double machine_gbs;          /* read test, 0: none */
    double *test_gbs;            /* [n_samples + 1] read tests before, between and behind the samples; NULL: none */
    /* from the samples: tokens per second of each, and their */
    double avg_ns, stddev_ns, avg_ts, stddev_ts, median_ts, best_ts;
    /* of rows that only generate: what a token reads, its state at the middle of the row */
    uint64_t weight_bytes, state_bytes;
    double read_gbs, read_share; /* by the median; share of machine_gbs, or the median of the samples' shares of the
                                  * tests around them */
    double weight_gmacs;         /* 10^9 multiply-adds with weights per second, by the median */
};
struct bl_bench_how {
    uint32_t repetitions;
    bool no_warmup, profile;
    bool read_tests;             /* around every sample */
    bool (*stopped)(void);       /* asked between steps */
};
void bl_bench_describe(const struct bl_gguf *, struct bl_bench_model *);
/* Fills ns, n_samples and what follows from them. BL_ECANCELLED when stopped. */
enum bl_status bl_bench_measure(struct bl_bench_result *, struct bl_engine *, const struct bl_bench_how *);
/* The figures from the samples and from the read tests. */
void bl_bench_figures(struct bl_bench_result *, const struct bl_token_cost *);
void bl_bench_result_finish(struct bl_bench_result *);
/* Where the time of the timed repetitions went. */
void bl_bench_print_profile(const struct bl_report *, const struct bl_bench_result *, const struct bl_engine *);

/* ---- printing: bench_print.c ---- */

#define BL_BENCH_FORMATS "csv|json|jsonl|md|sql"
enum bl_bench_format {
    BL_BENCH_CSV,
    BL_BENCH_JSON,
    BL_BENCH_JSONL,
    BL_BENCH_MD,
    BL_BENCH_SQL,
    BL_BENCH_SILENT
};
struct bl_bench_table {
    enum bl_bench_format format;
    bool batch, ubatch, threads_batch, type_k, type_v, load, exact, mask; /* md: columns for what is not as usual */
    uint32_t n_rows;
};
void bl_bench_print_head(FILE *, struct bl_bench_table *);
void bl_bench_print_row(FILE *, struct bl_bench_table *, const struct bl_bench_result *);
void bl_bench_print_foot(FILE *, struct bl_bench_table *, uint32_t samples);
/* Markdown: bench_table.c. Which columns the cases want; the head; a row. */
void bl_bench_columns(struct bl_bench_table *, const struct bl_bench_case *, size_t n);
void bl_bench_md_head(FILE *, const struct bl_bench_table *);
void bl_bench_md_row(FILE *, const struct bl_bench_table *, const struct bl_bench_result *);

#endif
