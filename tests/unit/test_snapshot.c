/* SPDX-License-Identifier: MIT */
/* Sessions forked, rewound, saved and restored, in any order, against sessions that were fed the
 * same tokens and nothing else; and files that are not what they should be. */
#include "engine_rig.h"
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    CTX = 72,
    SESSIONS = 4,
    SEQUENCES = 100,
    STEPS = 12, /* of one sequence */
    PATH_BYTES = 300,
    HEADER_BYTES = 80
};

/* One of every law, and of several in one model. */
static const char *const models[] = {"llama-f32", "gemma3-f32", "gpt-oss-mxfp4", "qwen3next-f32",
                                     "deepseek4-f32"};

/* One of every family. */
static const char *const families[] = {
    "llama-f32",         "qwen2-f32",        "qwen3-f32",         "qwen3moe-iq3",
    "phi4mini-long-f32", "gemma3-f32",       "gpt-oss-mxfp4",     "glm4moe-f32",
    "minimax-m2-f32",    "ernie4_5-moe-f32", "qwen3next-f32",     "qwen35-q4_k",
    "qwen35moe-f32",     "deepseek2-f32",    "deepseek2lite-f32", "deepseek4-f32"};

static char folder[] = "/tmp/ballast-snapshot-XXXXXX";

static int enter_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int leave_folder(void **state)
{
    (void)state;
    DIR *d = opendir(folder);
    char path[2 * PATH_BYTES];
    for (struct dirent *f; d && (f = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        unlink(path);
    }
    if (d)
        closedir(d);
    return rmdir(folder);
}

static const char *in_folder(const char *name)
{
    static char path[2][PATH_BYTES];
    static unsigned turn;
    turn = !turn;
    snprintf(path[turn], PATH_BYTES, "%s/%s", folder, name);
    return path[turn];
}

static struct bl_options options(void)
{
    return (struct bl_options){.ctx_tokens = CTX,
                               .batch_tokens = 64,
                               .ubatch_tokens = 8,
                               .out_tokens = 64,
                               .threads = 1,
                               .max_sessions = SESSIONS + 1,
                               .exact = true};
}

static void good(enum bl_status st)
{
    if (st)
        fail_msg("%s", bl_error());
}

static unsigned char *read_whole(const char *path, size_t *n)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &st), 0);
    unsigned char *bytes = malloc((size_t)st.st_size + 1);
    *n = fread(bytes, 1, (size_t)st.st_size, f);
    assert_int_equal(*n, st.st_size);
    fclose(f);
    return bytes;
}

static void write_whole(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* ---- sessions with a record of their tokens ---- */

struct told {
    struct bl_session *s; /* NULL: not open */
    int32_t id[CTX];
    uint32_t n;
};
struct cast {
    struct bl_engine *e;
    struct told of[SESSIONS], saved;
    uint64_t random;
    unsigned n_rewinds, n_forks, n_restores, n_refused;
};

static uint32_t roll(struct cast *c, uint32_t n)
{
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((c->random >> 33) % n);
}

static void feed_some(struct cast *c, struct told *t)
{
    int32_t ids[N_PROMPT];
    uint32_t n = 1 + roll(c, N_PROMPT);
    n = n < CTX - 1 - t->n ? n : CTX - 1 - t->n;
    for (uint32_t i = 0; i < n; i++)
        t->id[t->n + i] = ids[i] = (int32_t)roll(c, bl_engine_n_vocab(c->e));
    if (!n)
        return;
    good(feed(c->e, t->s, ids, n));
    t->n += n;
}

static void rewind_some(struct cast *c, struct told *t)
{
    /* mostly not far, or windows would always refuse */
    uint32_t back = roll(c, 4) ? roll(c, 6) : roll(c, CTX), to = back < t->n ? t->n - back : 0;
    enum bl_status st = bl_session_rewind(t->s, to);
    if (st != BL_ELIMIT)
        good(st);
    c->n_refused += st != 0;
    c->n_rewinds += !st;
    t->n = st ? t->n : to;
    assert_int_equal(bl_session_n_tokens(t->s), t->n);
}

static void fork_or_close(struct cast *c, struct told *t)
{
    struct told *to = &c->of[roll(c, SESSIONS)];
    if (to == t)
        return;
    bl_session_destroy(to->s);
    *to = *t;
    good(bl_session_fork(&to->s, t->s));
    assert_int_equal(bl_session_n_tokens(to->s), t->n);
    c->n_forks++;
}

static void save_or_restore(struct cast *c, struct told *t)
{
    if (!c->saved.n || roll(c, 2)) {
        good(bl_session_save(t->s, in_folder("cast")));
        c->saved = *t;
        return;
    }
    struct bl_session *s = t->s;
    good(bl_session_restore(s, in_folder("cast")));
    *t = c->saved;
    t->s = s;
    assert_int_equal(bl_session_n_tokens(s), t->n);
    c->n_restores++;
}

static void step(struct cast *c)
{
    struct told *t = &c->of[roll(c, SESSIONS)];
    if (!t->s) {
        t->n = 0;
        good(bl_session_create(&t->s, c->e));
    }
    switch (roll(c, 6)) {
    case 0:
        rewind_some(c, t);
        break;
    case 1:
        fork_or_close(c, t);
        break;
    case 2:
        save_or_restore(c, t);
        break;
    default:
        feed_some(c, t);
    }
}

/* One more token gives what it gives after all of them at once. */
static void check(struct cast *c, struct told *t)
{
    uint32_t n_vocab = bl_engine_n_vocab(c->e);
    int32_t ids[CTX], last = (int32_t)roll(c, n_vocab);
    struct bl_session *fresh, *of[CTX];
    float *now = malloc(n_vocab * sizeof *now);

    good(feed(c->e, t->s, &last, 1));
    memcpy(now, bl_logits(c->e, 0), n_vocab * sizeof *now);
    t->id[t->n++] = last;
    good(bl_session_create(&fresh, c->e));
    for (uint32_t at = 0, n; at < t->n; at += n) {
        n = t->n - at < 64 ? t->n - at : 64;
        for (uint32_t i = 0; i < n; i++) {
            ids[i] = t->id[at + i];
            of[i] = fresh;
        }
        good(bl_decode(c->e, &(struct bl_batch){n, ids, of, NULL}));
        if (at + n == t->n && !(nmse(now, bl_logits(c->e, n - 1), n_vocab) < 1e-12))
            fail_msg("NMSE %g after %u tokens", nmse(now, bl_logits(c->e, n - 1), n_vocab), t->n);
    }
    bl_session_destroy(fresh);
    free(now);
}

static void any_order_equals_fresh_evaluation(void **state)
{
    (void)state;
    for (size_t m = 0; m < BL_COUNT(models); m++) {
        struct bl_options opt = options();
        struct cast c = {.random = 7 + m};
        c.e = opened(models[m], &opt);
        for (unsigned i = 0; i < SEQUENCES; i++) {
            for (unsigned k = 0; k < STEPS; k++)
                step(&c);
            for (unsigned k = 0; k < SESSIONS; k++) {
                if (k % 2 == i % 2 && c.of[k].s && c.of[k].n < CTX)
                    check(&c, &c.of[k]);
                bl_session_destroy(c.of[k].s);
                c.of[k].s = NULL;
            }
        }
        print_message("%s: %u forks, %u restores, %u rewinds, %u refused\n", models[m], c.n_forks,
                      c.n_restores, c.n_rewinds, c.n_refused);
        assert_true(c.n_forks > 50 && c.n_restores > 20 && c.n_rewinds > 20);
        bl_close(c.e);
    }
}

/* ---- files ---- */

static void a_restored_session_saves_the_same_bytes(void **state)
{
    (void)state;
    for (size_t m = 0; m < BL_COUNT(models); m++) {
        struct bl_options opt = options();
        struct bl_session *a, *b;
        size_t n, k;
        struct bl_engine *e = opened(models[m], &opt);
        good(bl_session_create(&a, e));
        good(bl_session_create(&b, e));
        for (unsigned i = 0; i < 3; i++) {
            good(bl_session_save(a, in_folder("first"))); /* empty the first time */
            good(bl_session_restore(b, in_folder("first")));
            good(bl_session_save(b, in_folder("second")));
            unsigned char *x = read_whole(in_folder("first"), &n),
                          *y = read_whole(in_folder("second"), &k);
            assert_int_equal(n, k);
            assert_memory_equal(x, y, n);
            free(x);
            free(y);
            good(feed(e, a, prompt, N_PROMPT));
        }
        bl_session_destroy(a);
        bl_session_destroy(b);
        bl_close(e);
    }
}

static int32_t best(const float *x, uint32_t n)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        at = x[i] > x[at] ? i : at;
    return (int32_t)at;
}

enum { MORE = 16 };

static void continue_greedily(struct bl_engine *e, struct bl_session *s, int32_t ids[MORE])
{
    int32_t id = 5;
    for (unsigned i = 0; i < MORE; i++) {
        good(feed(e, s, &id, 1));
        ids[i] = id = best(bl_logits(e, 0), bl_engine_n_vocab(e));
    }
}

static void save_and_die(const char *model, const struct bl_options *opt)
{
    struct bl_session *s;
    struct bl_engine *e = opened(model, opt);
    good(bl_session_create(&s, e));
    good(feed(e, s, prompt, N_PROMPT));
    good(bl_session_save(s, in_folder("dying")));
    kill(getpid(), SIGKILL);
}

static void killed_and_restored_continues_alike(void **state)
{
    (void)state;
    for (size_t m = 0; m < BL_COUNT(families); m++) {
        struct bl_options opt = options();
        struct bl_session *a, *b;
        int32_t through[MORE], after[MORE];
        int how = 0;
        opt.exact = false;
        pid_t child = fork();
        if (!child)
            save_and_die(families[m], &opt);
        assert_true(child > 0 && waitpid(child, &how, 0) == child);
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        struct bl_engine *e = opened(families[m], &opt);
        good(bl_session_create(&a, e));
        good(bl_session_create(&b, e));
        good(feed(e, a, prompt, N_PROMPT));
        good(bl_session_restore(b, in_folder("dying")));
        continue_greedily(e, a, through);
        continue_greedily(e, b, after);
        assert_memory_equal(through, after, sizeof through);
        bl_session_destroy(a);
        bl_session_destroy(b);
        bl_close(e);
    }
}

static void devices_do_not_matter_to_a_file(void **state)
{
    (void)state;
    struct bl_options opt = small();
    struct bl_engine *one = opened("gemma3-f32", &opt),
                     *two = split_engine("gemma3-f32", 2, 1, &opt);
    struct bl_session *a, *b, *c;
    int32_t here[MORE], there[MORE], forked[MORE];
    good(bl_session_create(&a, one));
    good(bl_session_create(&b, two));
    good(feed(one, a, prompt, N_PROMPT));
    good(bl_session_save(a, in_folder("plan")));
    good(bl_session_restore(b, in_folder("plan")));
    good(bl_session_fork(&c, b));
    continue_greedily(one, a, here);
    continue_greedily(two, b, there);
    continue_greedily(two, c, forked);
    assert_memory_equal(here, there, sizeof here);
    assert_memory_equal(here, forked, sizeof here);
    bl_session_destroy(a);
    bl_session_destroy(b);
    bl_session_destroy(c);
    bl_close(one);
    bl_close(two);
}

static void recurrent_state_kept_for_a_rewind_is_copied(void **state)
{
    (void)state;
    struct bl_options opt = small();
    struct bl_session *fed, *taken_back, *restored;
    int32_t want[MORE], got[MORE];
    struct bl_engine *e = split_engine("qwen3next-f32", 2, 1, &opt);
    good(bl_session_create(&fed, e));
    good(feed(e, fed, prompt, N_PROMPT));
    good(bl_session_save(fed, in_folder("slack")));
    good(bl_session_fork(&taken_back, fed));
    good(bl_session_create(&restored, e));
    good(bl_session_restore(restored, in_folder("slack")));
    good(bl_session_rewind(fed, 0));
    good(feed(e, fed, prompt, N_PROMPT - SPLIT_SLACK));
    continue_greedily(e, fed, want);
    good(bl_session_rewind(taken_back, N_PROMPT - SPLIT_SLACK));
    continue_greedily(e, taken_back, got);
    assert_memory_equal(want, got, sizeof want);
    good(bl_session_rewind(restored, N_PROMPT - SPLIT_SLACK));
    continue_greedily(e, restored, got);
    assert_memory_equal(want, got, sizeof want);
    bl_session_destroy(fed);
    bl_session_destroy(taken_back);
    bl_session_destroy(restored);
    bl_close(e);
}

/* More than goes through one buffer. */
static void long_sessions_go_in_pieces(void **state)
{
    (void)state;
    enum { TOKENS = 1200 };
    struct bl_options opt = small();
    struct bl_session *a, *b;
    int32_t want[MORE], got[MORE];
    opt.ctx_tokens = TOKENS + MORE;
    struct bl_engine *e = opened("llama-f32", &opt);
    good(bl_session_create(&a, e));
    good(bl_session_create(&b, e));
    for (uint32_t i = 0; i < TOKENS / N_PROMPT; i++)
        good(feed(e, a, prompt, N_PROMPT));
    good(bl_session_save(a, in_folder("long")));
    good(bl_session_restore(b, in_folder("long")));
    continue_greedily(e, a, want);
    continue_greedily(e, b, got);
    assert_memory_equal(want, got, sizeof want);
    bl_session_destroy(a);
    bl_session_destroy(b);
    bl_close(e);
}

static void forks_need_a_free_place(void **state)
{
    (void)state;
    struct bl_options opt = options();
    struct bl_session *s[SESSIONS + 1], *more = NULL;
    struct bl_engine *e = opened("llama-f32", &opt);
    good(bl_session_create(&s[0], e));
    for (unsigned i = 1; i <= SESSIONS; i++)
        good(bl_session_fork(&s[i], s[0]));
    assert_int_equal(bl_session_fork(&more, s[0]), BL_ELIMIT);
    assert_null(more);
    for (unsigned i = 0; i <= SESSIONS; i++)
        bl_session_destroy(s[i]);
    bl_close(e);
}

/* ---- files that are refused ---- */

struct victim {
    struct bl_engine *e;
    struct bl_session *s;
    unsigned char *file; /* as it was saved */
    size_t n;
    int32_t next[MORE]; /* what the session says if it is not harmed */
};

/* The file holds 8 tokens, the session 24 others. */
static struct victim victim_of(const char *model, const struct bl_options *opt)
{
    struct victim v = {.e = opened(model, opt)};
    struct bl_session *copy;
    good(bl_session_create(&v.s, v.e));
    good(feed(v.e, v.s, prompt, 8));
    good(bl_session_save(v.s, in_folder("good")));
    v.file = read_whole(in_folder("good"), &v.n);
    good(bl_session_rewind(v.s, 0));
    good(feed(v.e, v.s, prompt, N_PROMPT));
    good(bl_session_fork(&copy, v.s));
    continue_greedily(v.e, copy, v.next);
    bl_session_destroy(copy);
    return v;
}

static void check_refused(struct victim *v, const char *path, enum bl_status status,
                          const char *message)
{
    int32_t next[MORE];
    struct bl_session *copy;
    enum bl_status st = bl_session_restore(v->s, path);
    if (st != status || !strstr(bl_error(), message) || strchr(bl_error(), '\n'))
        fail_msg("\"%s\" wanted; %s: %s", message, bl_status_name(st), st ? bl_error() : "taken");
    assert_int_equal(bl_session_n_tokens(v->s), N_PROMPT);
    good(bl_session_fork(&copy, v->s));
    continue_greedily(v->e, copy, next);
    assert_memory_equal(next, v->next, sizeof next);
    bl_session_destroy(copy);
}

static void close_victim(struct victim *v)
{
    bl_session_destroy(v->s);
    bl_close(v->e);
    free(v->file);
}

static void damaged_files_are_refused(void **state)
{
    (void)state;
    struct bl_options opt = options();
    struct victim v = victim_of("gemma3-f32", &opt);
    const size_t cuts[] = {
        0, 1, 8, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, v.n / 2, v.n - 8, v.n - 1};
    const char *bad = in_folder("bad");
    for (size_t i = 0; i < BL_COUNT(cuts); i++) {
        write_whole(bad, v.file, cuts[i]);
        check_refused(&v, bad, BL_EFORMAT,
                      cuts[i] < 8              ? "is no saved session"
                      : cuts[i] < HEADER_BYTES ? "ends within its header"
                                               : "are needed for 8 tokens");
    }
    for (size_t at = 0; at < v.n; at += at < HEADER_BYTES ? 1 : v.n / 50) {
        v.file[at] ^= 1 << at % 8;
        write_whole(bad, v.file, v.n);
        check_refused(&v, bad, at >= 8 && at < 12 ? BL_EUNSUPPORTED : BL_EFORMAT,
                      at < 8              ? "is no saved session"
                      : at < 12           ? "is of version"
                      : at < HEADER_BYTES ? "header is damaged"
                                          : "checksum does not match");
        v.file[at] ^= 1 << at % 8;
    }
    unsigned char *longer = calloc(1, v.n + 1);
    memcpy(longer, v.file, v.n);
    write_whole(bad, longer, v.n + 1);
    check_refused(&v, bad, BL_EFORMAT, "are needed for 8 tokens");
    free(longer);
    check_refused(&v, in_folder("nothing"), BL_EIO, "cannot open");
    check_refused(&v, folder, BL_EFORMAT, "is a directory");
    check_refused(&v, MODELS "gemma3-f32.gguf", BL_EFORMAT, "is no saved session");
    write_whole(bad, v.file, v.n);
    good(bl_session_restore(v.s, bad));
    assert_int_equal(bl_session_n_tokens(v.s), 8);
    close_victim(&v);
}

/* The header's hash, so that counts which no session has can be given one. */
static uint64_t hash_words(const unsigned char *p, size_t n)
{
    uint64_t h = 0, word;
    for (size_t at = 0; at <= n + 8; at += 8) { /* then the empty rest, then the length */
        word = at == n ? 0 : n;
        if (at < n)
            memcpy(&word, p + at, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return h;
}

static void counts_are_checked(void **state)
{
    (void)state;
    enum { N_TOK = 48, HIGH = 56, ROWS = 64, CHECK = 72 };
    static const struct {
        uint64_t n_tok, high, rows_more;
        const char *message;
    } row[] = {
        {9, 8, 0, "holds 9 tokens, once 8, of 72"},    {8, 73, 0, "holds 8 tokens, once 73, of 72"},
        {UINT64_MAX, UINT64_MAX, 0, "of 72"},          {9, 9, 0, "are needed for 9 tokens"},
        {0, 8, 0, "are needed for 0 tokens"},          {8, 8, 1, "are needed for 8 tokens"},
        {8, 8, UINT64_MAX, "are needed for 8 tokens"},
    };
    struct bl_options opt = options();
    struct victim v = victim_of("gemma3-f32", &opt);
    uint64_t check, rows;
    memcpy(&check, v.file + CHECK, 8);
    memcpy(&rows, v.file + ROWS, 8);
    assert_int_equal(check, hash_words(v.file, CHECK));
    for (size_t i = 0; i < BL_COUNT(row); i++) {
        memcpy(v.file + N_TOK, &row[i].n_tok, 8);
        memcpy(v.file + HIGH, &row[i].high, 8);
        memcpy(v.file + ROWS, &(uint64_t){rows + row[i].rows_more}, 8);
        memcpy(v.file + CHECK, &(uint64_t){hash_words(v.file, CHECK)}, 8);
        write_whole(in_folder("counts"), v.file, v.n);
        check_refused(&v, in_folder("counts"), BL_EFORMAT, row[i].message);
    }
    close_victim(&v);
}

static void foreign_files_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *model, *message;
        struct bl_options opt; /* what differs */
    } row[] = {
        {"llama-f32", "was saved with another model", {0}},
        {"gemma3-f32", "with a context of 64 tokens; this one is 72", {.ctx_tokens = 64}},
        {"gemma3-f32", "with a ubatch of 16 tokens", {.ubatch_tokens = 16}},
        {"gemma3-f32", "K and V of types f16 and f32; here f32 and f32", {.type_k = "f16"}},
        {"gemma3-f32", "K and V of types f32 and bf16; here f32 and f32", {.type_v = "bf16"}},
        {"gemma3-f32", "with other rope options", {.rope_freq_base = 5000}},
    };
    struct bl_options opt = options();
    struct victim v = victim_of("gemma3-f32", &opt);
    for (size_t i = 0; i < BL_COUNT(row); i++) {
        struct bl_options other = options();
        struct bl_session *s;
        other.ctx_tokens = row[i].opt.ctx_tokens ? row[i].opt.ctx_tokens : other.ctx_tokens;
        other.ubatch_tokens =
            row[i].opt.ubatch_tokens ? row[i].opt.ubatch_tokens : other.ubatch_tokens;
        other.type_k = row[i].opt.type_k;
        other.type_v = row[i].opt.type_v;
        other.rope_freq_base = row[i].opt.rope_freq_base;
        struct bl_engine *e = opened(row[i].model, &other);
        good(bl_session_create(&s, e));
        good(feed(e, s, prompt, 8));
        good(bl_session_save(s, in_folder("foreign")));
        bl_session_destroy(s);
        bl_close(e);
        check_refused(&v, in_folder("foreign"), BL_EFORMAT, row[i].message);
    }
    close_victim(&v);
}

static void a_failed_save_leaves_the_old_file(void **state)
{
    (void)state;
    struct bl_options opt = options();
    struct victim v = victim_of("llama-f32", &opt);
    struct bl_session *s;
    size_t n;
    char nowhere[PATH_BYTES];
    snprintf(nowhere, sizeof nowhere, "%s/none/file", folder);
    assert_int_equal(bl_session_save(v.s, nowhere), BL_EIO);
    assert_int_equal(bl_session_save(v.s, folder), BL_EINVAL);
    good(bl_session_fork(&s, v.s));
    good(bl_session_save(s, in_folder("good")));
    assert_int_not_equal(access(in_folder("good.ballast-partial"), F_OK), 0);
    unsigned char *now = read_whole(in_folder("good"), &n);
    assert_true(n > v.n);
    free(now);
    bl_session_destroy(s);
    close_victim(&v);
}

static void write_text(const char *path, const char *text)
{
    write_whole(path, text, strlen(text));
}

static bool begins_with(const char *path, const char *text)
{
    size_t n;
    unsigned char *bytes = read_whole(path, &n);
    bool same = n >= strlen(text) && !memcmp(bytes, text, strlen(text));
    free(bytes);
    return same;
}

/* Of a killed writer, however often: the next one takes its file. Not of one that lives, and not
 * what has another name too. */
static void only_leftovers_are_written_over(void **state)
{
    (void)state;
    struct bl_options opt = options();
    struct victim v = victim_of("llama-f32", &opt);
    struct bl_file_out living;
    char partial[PATH_BYTES], kept[PATH_BYTES], path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/left", folder);
    snprintf(partial, sizeof partial, "%s/left.ballast-partial", folder);
    snprintf(kept, sizeof kept, "%s/kept", folder);
    write_text(partial, "of a writer who was killed");
    good(bl_session_save(v.s, path));
    assert_true(begins_with(path, "blstate"));
    assert_int_not_equal(access(partial, F_OK), 0);

    good(bl_file_out_create(&living, path));
    good(bl_file_out_write(&living, "alive", 5));
    good(bl_session_save(v.s, path));
    assert_true(begins_with(path, "blstate"));
    assert_true(begins_with(partial, "alive"));
    good(bl_file_out_commit(&living));
    bl_file_out_abandon(&living);
    assert_true(begins_with(path, "alive"));

    write_text(kept, "of someone else");
    assert_int_equal(link(kept, partial), 0);
    good(bl_session_save(v.s, path));
    assert_true(begins_with(kept, "of someone else"));

    assert_int_equal(unlink(partial), 0);
    write_text(partial, "of another user");
    if (!geteuid()) { /* who else may give files away */
        assert_int_equal(chown(partial, 1, (gid_t)-1), 0);
        good(bl_session_save(v.s, path));
        assert_true(begins_with(partial, "of another user"));
    }
    close_victim(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_and_restored_continues_alike),
        cmocka_unit_test(any_order_equals_fresh_evaluation),
        cmocka_unit_test(a_restored_session_saves_the_same_bytes),
        cmocka_unit_test(devices_do_not_matter_to_a_file),
        cmocka_unit_test(recurrent_state_kept_for_a_rewind_is_copied),
        cmocka_unit_test(long_sessions_go_in_pieces),
        cmocka_unit_test(forks_need_a_free_place),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(counts_are_checked),
        cmocka_unit_test(foreign_files_are_refused),
        cmocka_unit_test(a_failed_save_leaves_the_old_file),
        cmocka_unit_test(only_leftovers_are_written_over),
    };
    return cmocka_run_group_tests_name("snapshot", tests, enter_folder, leave_folder);
}
