/* SPDX-License-Identifier: MIT */
#include "file.h"
#include "mem.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    READ_BYTES = 16 << 20
}; /* one system call's worth: large enough for any disk, small enough to interrupt */

struct bl_file {
    int fd;
    uint64_t bytes;
    void *map; /* NULL until asked for */
    char *path;
};

static enum bl_status refuse_kind(const char *path, mode_t mode)
{
    const char *kind = S_ISDIR(mode)    ? "a directory"
                       : S_ISFIFO(mode) ? "a pipe"
                       : S_ISSOCK(mode) ? "a socket"
                                        : "a device";
    return bl_fail(BL_EFORMAT, "%s: is %s; a regular file is needed", bl_path_tail(path), kind);
}

static enum bl_status open_fd(struct bl_file *f, const char *path)
{
    struct stat st;
    do
        f->fd =
            open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* a pipe must not block */
    while (f->fd < 0 && errno == EINTR);
    if (f->fd < 0)
        return bl_fail(BL_EIO, "%s: cannot open: %s", *path ? bl_path_tail(path) : "''",
                       strerror(errno));
    if (fstat(f->fd, &st))
        return bl_fail(BL_EIO, "%s: cannot get its size: %s", bl_path_tail(path), strerror(errno));
    if (!S_ISREG(st.st_mode))
        return refuse_kind(path, st.st_mode);
    f->bytes = (uint64_t)st.st_size;
    return BL_OK;
}

enum bl_status bl_file_open(struct bl_file **out, const char *path)
{
    struct bl_file *f = bl_calloc(1, sizeof *f);
    if (!f)
        return bl_fail(BL_ENOMEM, "%s: out of memory", bl_path_tail(path));
    f->fd = -1;
    f->path = strdup(path);
    enum bl_status st =
        f->path ? open_fd(f, path) : bl_fail(BL_ENOMEM, "%s: out of memory", bl_path_tail(path));
    if (st) {
        bl_file_close(f);
        return st;
    }
    *out = f;
    return BL_OK;
}

/* From the end of the file to the end of its last page: reads as zeros, and hides reads past the
 * end. */
static size_t tail_bytes(const struct bl_file *f)
{
    return (size_t)(bl_align_up(f->bytes, bl_page_bytes()) - f->bytes);
}

void bl_file_close(struct bl_file *f)
{
    if (!f)
        return;
    if (f->map) {
        BL_UNPOISON((char *)f->map + f->bytes, tail_bytes(f));
        munmap(f->map, (size_t)f->bytes);
    }
    if (f->fd >= 0)
        close(f->fd);
    free(f->path);
    free(f);
}

const char *bl_file_path(const struct bl_file *f)
{
    return f->path;
}

const char *bl_path_tail(const char *path)
{
    enum { MOST = 160 };
    size_t n = strlen(path);
    if (n <= MOST)
        return path;
    const char *tail = path + n - MOST;
    const char *slash = strchr(tail, '/');
    return slash && slash[1] ? slash + 1 : tail;
}

uint64_t bl_file_bytes(const struct bl_file *f)
{
    return f->bytes;
}

enum bl_status bl_file_map(struct bl_file *f, const void **out)
{
    if (!f->bytes)
        return bl_fail(BL_EFORMAT, "%s: file is empty", bl_path_tail(f->path));
    if (!f->map) {
        void *p = f->bytes > SIZE_MAX
                      ? (errno = EFBIG, MAP_FAILED)
                      : mmap(NULL, (size_t)f->bytes, PROT_READ, MAP_PRIVATE, f->fd, 0);
        if (p == MAP_FAILED)
            return bl_fail(errno == ENOMEM ? BL_ENOMEM : BL_EIO,
                           "%s: cannot map %" PRIu64 " bytes: %s", bl_path_tail(f->path), f->bytes,
                           strerror(errno));
        f->map = p;
        BL_POISON((char *)f->map + f->bytes, tail_bytes(f));
    }
    *out = f->map;
    return BL_OK;
}

enum bl_status bl_file_check(const struct bl_file *f)
{
    struct stat st;
    if (fstat(f->fd, &st))
        return bl_fail(BL_EIO, "%s: cannot get its size: %s", bl_path_tail(f->path),
                       strerror(errno));
    if ((uint64_t)st.st_size >= f->bytes)
        return BL_OK;
    return bl_fail(BL_EIO,
                   "%s: the file has %" PRIu64 " bytes now, it had %" PRIu64
                   " when it was opened; a model in use must not be changed",
                   bl_path_tail(f->path), (uint64_t)st.st_size, f->bytes);
}

void bl_file_will_need(struct bl_file *f, uint64_t off, uint64_t bytes)
{
    if (!f->map || off >= f->bytes)
        return;
    if (bytes > f->bytes - off)
        bytes = f->bytes - off;
    uint64_t into_page = off % bl_page_bytes();
    madvise((char *)f->map + (off - into_page), (size_t)(bytes + into_page), MADV_WILLNEED);
}

enum bl_status bl_file_read(struct bl_file *f, uint64_t off, uint64_t bytes, void *dst)
{
    char *p = dst;
    if (off > f->bytes || bytes > f->bytes - off)
        return bl_fail(BL_EIO,
                       "%s: file is %" PRIu64 " bytes; %" PRIu64 " wanted from offset %" PRIu64,
                       bl_path_tail(f->path), f->bytes, bytes, off);
    while (bytes) {
        ssize_t n = pread(f->fd, p, bytes < READ_BYTES ? (size_t)bytes : READ_BYTES, (off_t)off);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return bl_fail(BL_EIO, "%s: cannot read at offset %" PRIu64 ": %s",
                           bl_path_tail(f->path), off, strerror(errno));
        if (n == 0)
            return bl_fail(BL_EIO,
                           "%s: file ends at offset %" PRIu64 "; it had %" PRIu64
                           " bytes when it was opened",
                           bl_path_tail(f->path), off, f->bytes);
        p += n;
        off += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return BL_OK;
}
