/* SPDX-License-Identifier: MIT */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static _Atomic int caught; /* threads of the library ask, too */

void bl_io_init(void)
{
    /* Read-only, so that a write to a closed stdout still fails instead of vanishing. */
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) < 0)
            return;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a write past the limit fails with a reason instead */
}

static bool stdout_failed(const struct bl_report *r, int error)
{
    if (error != EPIPE)
        bl_report_error(r, "cannot write to standard output: %s", strerror(error));
    return false;
}

bool bl_out_write(const struct bl_report *r, const void *bytes, size_t n)
{
    if (fwrite(bytes, 1, n, stdout) != n || fflush(stdout))
        return stdout_failed(r, errno);
    return true;
}

int bl_out_close(const struct bl_report *r)
{
    /* Some file systems report a full disk only here. */
    if (fclose(stdout)) {
        stdout_failed(r, errno);
        return BL_EXIT_FAILURE;
    }
    return BL_EXIT_OK;
}

FILE *bl_out_page_begin(struct bl_out_page *page)
{
    memset(page, 0, sizeof *page);
    page->file = open_memstream(&page->text, &page->n);
    return page->file;
}

int bl_out_page_end(const struct bl_report *r, struct bl_out_page *page)
{
    bool whole = page->file && !ferror(page->file);
    int code = BL_EXIT_FAILURE;

    if (page->file && fclose(page->file))
        whole = false;
    if (!whole)
        bl_report_error(r, "out of memory");
    else if (bl_out_write(r, page->text, page->n))
        code = bl_out_close(r);
    free(page->text);
    memset(page, 0, sizeof *page);
    return code;
}

void bl_out_page_drop(struct bl_out_page *page)
{
    if (page->file)
        fclose(page->file);
    free(page->text);
    memset(page, 0, sizeof *page);
}

static bool read_all(FILE *f, char **bytes, size_t *n)
{
    size_t cap = 1 << 16, used = 0;
    char *buf = malloc(cap);

    while (buf) {
        used += fread(buf + used, 1, cap - 1 - used, f);
        if (used < cap - 1)
            break;
        char *more = cap <= SIZE_MAX / 2 ? realloc(buf, cap * 2) : NULL;
        if (!more) {
            free(buf);
            errno = ENOMEM;
            return false;
        }
        buf = more;
        cap *= 2;
    }
    if (!buf || ferror(f)) {
        free(buf);
        return false;
    }
    buf[used] = 0;
    *bytes = buf;
    *n = used;
    return true;
}

bool bl_io_read(const struct bl_report *r, const char *path, char **bytes, size_t *n)
{
    bool is_stdin = !strcmp(path, "-");
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    bool good = f && read_all(f, bytes, n);

    if (!good)
        bl_report_error(r, "cannot read %s: %s", is_stdin ? "standard input" : path,
                        strerror(errno));
    if (f && !is_stdin)
        fclose(f);
    return good;
}

/* A device other than a terminal takes whatever comes from either side. */
static bool is_stream(const char *path, int fd)
{
    struct stat a, b;

    return !stat(path, &a) && !fstat(fd, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino &&
           (!S_ISCHR(a.st_mode) || isatty(fd));
}

bool bl_out_is_stdout(const char *path)
{
    return !strcmp(path, "-") || is_stream(path, STDOUT_FILENO);
}

bool bl_out_is_stderr(const char *path)
{
    return is_stream(path, STDERR_FILENO);
}

static bool file_failed(const struct bl_report *r, const struct bl_out_file *o, int error)
{
    if (o->is_stdout)
        return stdout_failed(r, error);
    bl_report_error(r, "cannot write %s: %s", o->path ? o->path : "the output", strerror(error));
    return false;
}

/* A rename would put a file in its place and leave alone what it was meant to lead to. */
static bool is_dangling(const char *path)
{
    struct stat st;

    return !lstat(path, &st) && S_ISLNK(st.st_mode) && stat(path, &st) && errno == ENOENT;
}

static FILE *open_stdout(void)
{
    int fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");

    if (!f && fd >= 0)
        close(fd);
    return f;
}

static FILE *open_temp(struct bl_out_file *o, const struct stat *replaced)
{
    enum { TRIES = 100 };
    const size_t cap = strlen(o->path) + 40;
    /* Nobody opens what may be private before it has the mode of what it replaces. */
    const mode_t mode = replaced ? 0600 : 0666;
    char *name = malloc(cap);
    int fd = -1;

    /* One of that name was left by a process that was killed: containers number theirs alike. */
    for (int i = 0; name && i < TRIES && fd < 0 && (!i || errno == EEXIST); i++) {
        const int n = snprintf(name, cap, "%s.tmp-%ld", o->path, (long)getpid());
        if (i)
            snprintf(name + n, cap - (size_t)n, ".%d", i);
        fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    }
    if (fd < 0) {
        const int error = errno;
        free(name); /* not ours to remove */
        errno = error;
        return NULL;
    }
    o->temp = name;
    if (replaced)
        fchmod(fd, replaced->st_mode & 0777); /* where there are no modes the file is as good */
    FILE *f = fdopen(fd, "wb");
    if (!f)
        close(fd);
    return f;
}

bool bl_out_file_create(const struct bl_report *r, struct bl_out_file *o, const char *path)
{
    struct stat st;
    bool exists = !stat(path, &st);

    memset(o, 0, sizeof *o);
    o->is_stdout = bl_out_is_stdout(path);
    if (!o->is_stdout && is_dangling(path)) {
        bl_report_error(r, "cannot write %s: it is a link to a file that does not exist", path);
        return false;
    }
    /* Links are followed, or the rename would replace the link; /dev/stdout has no real path. */
    bool regular = exists && S_ISREG(st.st_mode);
    o->path = regular ? realpath(path, NULL) : strdup(path);
    if (o->is_stdout)
        o->file = open_stdout();
    else if (o->path && exists && !regular)
        o->file = fopen(o->path, "wb");
    else if (o->path)
        o->file = open_temp(o, exists ? &st : NULL);
    if (o->file)
        return true;
    file_failed(r, o, errno);
    bl_out_file_abandon(o);
    return false;
}

bool bl_out_file_write(const struct bl_report *r, struct bl_out_file *o, const void *bytes,
                       size_t n)
{
    return fwrite(bytes, 1, n, o->file) == n || file_failed(r, o, errno);
}

bool bl_out_file_commit(const struct bl_report *r, struct bl_out_file *o)
{
    bool good = !fflush(o->file) && (!o->temp || !fsync(fileno(o->file)));
    int error = errno;

    if (fclose(o->file) && good) {
        good = false;
        error = errno;
    }
    o->file = NULL;
    if (good && o->temp && rename(o->temp, o->path)) {
        good = false;
        error = errno;
    }
    if (good) {
        free(o->temp);
        o->temp = NULL;
    } else {
        file_failed(r, o, error);
    }
    bl_out_file_abandon(o);
    return good;
}

bool bl_out_file_save(const struct bl_report *r, const char *path, const void *bytes, size_t n)
{
    struct bl_out_file file;

    if (!bl_out_file_create(r, &file, path))
        return false;
    if (bl_out_file_write(r, &file, bytes, n))
        return bl_out_file_commit(r, &file);
    bl_out_file_abandon(&file);
    return false;
}

void bl_out_file_abandon(struct bl_out_file *o)
{
    if (o->file)
        fclose(o->file);
    if (o->temp)
        unlink(o->temp);
    free(o->temp);
    free(o->path);
    memset(o, 0, sizeof *o);
}

static void remember(int sig)
{
    caught = sig;
}

void bl_interrupt_catch(void)
{
    static const int sigs[] = {SIGINT, SIGTERM};
    struct sigaction now, act = {0};

    /* SA_RESETHAND gives the second signal its default effect. A signal the parent had ignored
     * (nohup, a shell's background job) stays ignored. */
    act.sa_handler = remember;
    act.sa_flags = SA_RESTART | (int)SA_RESETHAND;
    sigemptyset(&act.sa_mask);
    for (size_t i = 0; i < sizeof sigs / sizeof sigs[0]; i++)
        if (!sigaction(sigs[i], NULL, &now) && now.sa_handler != SIG_IGN)
            sigaction(sigs[i], &act, NULL);
}

int bl_interrupt_code(void)
{
    const int sig = caught;

    return !sig ? 0 : sig == SIGINT ? BL_EXIT_INTERRUPT : BL_EXIT_TERMINATED;
}

void bl_interrupt_release(void)
{
    static const int sigs[] = {SIGINT, SIGTERM};
    struct sigaction now;

    for (size_t i = 0; i < sizeof sigs / sizeof sigs[0]; i++)
        if (!sigaction(sigs[i], NULL, &now) && now.sa_handler == remember)
            signal(sigs[i], SIG_DFL);
    caught = 0; /* last: one that came in between is not left for the next catch */
}
