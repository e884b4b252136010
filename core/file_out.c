/* SPDX-License-Identifier: MIT */
#include "file.h"
#include "mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
    WRITE_BYTES = 16 << 20, /* one system call's worth */
    PARTIAL_TRIES = 100
};

/* The rename at the end would replace a device by a file, or a link instead of what it leads to. */
static enum bl_status set_target(struct bl_file_out *o, const char *path, mode_t *mode)
{
    struct stat st;
    const bool exists = !stat(path, &st);

    if (exists && !S_ISREG(st.st_mode))
        return bl_fail(BL_EINVAL, "%s: exists and is no regular file", bl_path_tail(path));
    *mode = exists ? st.st_mode & 0777 : 0;
    o->path = exists ? realpath(path, NULL) : strdup(path);
    if (o->path)
        return BL_OK;
    return errno == ENOMEM
               ? bl_fail(BL_ENOMEM, "%s: out of memory", bl_path_tail(path))
               : bl_fail(BL_EIO, "%s: cannot create: %s", bl_path_tail(path), strerror(errno));
}

static bool is_still_at(int fd, const char *name)
{
    struct stat ours, there;
    return !fstat(fd, &ours) && !lstat(name, &there) && S_ISREG(ours.st_mode) &&
           ours.st_nlink == 1 && ours.st_uid == geteuid() && ours.st_ino == there.st_ino &&
           ours.st_dev == there.st_dev;
}

/* What a writer of this user left that was killed: nobody holds its lock. One who lives keeps it
 * until his file has its own name or is gone, so that a lock on what the name still means is a lock
 * on a leftover.
 */
static int take_over(const char *name)
{
    int fd = open(name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB) && is_still_at(fd, name) && !ftruncate(fd, 0))
        return fd;
    if (fd >= 0)
        close(fd);
    errno = EEXIST;
    return -1;
}

/* -1 with EEXIST: another writer has it. Where the system knows no locks nothing is taken over. */
static int open_one(const char *name, mode_t mode)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0)
        return errno == EEXIST ? take_over(name) : -1;
    if (!flock(fd, LOCK_EX | LOCK_NB) || errno != EWOULDBLOCK)
        return fd;
    close(fd); /* someone was faster and took it for a leftover */
    errno = EEXIST;
    return -1;
}

/* replaces: nobody opens what may be private before it has the mode of what it replaces. */
static enum bl_status open_partial(struct bl_file_out *o, bool replaces)
{
    size_t n = strlen(o->path) + sizeof ".ballast-partial.99";
    char *name = bl_calloc(n, 1);
    if (!name)
        return bl_fail(BL_ENOMEM, "%s: out of memory", bl_path_tail(o->path));
    for (int i = 0; i < PARTIAL_TRIES && o->fd < 0; i++) {
        snprintf(name, n, i ? "%s.ballast-partial.%d" : "%s.ballast-partial", o->path, i);
        o->fd = open_one(name, replaces ? 0600 : 0666);
        if (o->fd < 0 && errno != EEXIST && errno != EINTR)
            break;
    }
    if (o->fd >= 0) {
        o->partial = name;
        return BL_OK;
    }
    enum bl_status st =
        bl_fail(BL_EIO, "%s: cannot create: %s", bl_path_tail(name), strerror(errno));
    free(name);
    return st;
}

enum bl_status bl_file_out_create(struct bl_file_out *o, const char *path)
{
    mode_t mode = 0;

    *o = (struct bl_file_out){.fd = -1};
    enum bl_status st = set_target(o, path, &mode);
    if (st || (st = open_partial(o, mode != 0)))
        bl_file_out_abandon(o);
    else if (mode)
        fchmod(o->fd, mode); /* where there are no modes the file is as good */
    return st;
}

enum bl_status bl_file_out_expect(const struct bl_file_out *o, uint64_t n_bytes)
{
    struct statvfs fs;
    uint64_t left;
    /* Where the system cannot tell, the write itself will. */
    if (fstatvfs(o->fd, &fs) || !bl_size_mul(fs.f_bavail, fs.f_frsize, &left) || left >= n_bytes)
        return BL_OK;
    return bl_fail(BL_EIO, "%s: needs %" PRIu64 " bytes; the disk has %" PRIu64 " left",
                   bl_path_tail(o->path), n_bytes, left);
}

enum bl_status bl_file_out_write(struct bl_file_out *o, const void *bytes, uint64_t n_bytes)
{
    const unsigned char *p = bytes;
    while (n_bytes) {
        ssize_t n = write(o->fd, p, n_bytes < WRITE_BYTES ? (size_t)n_bytes : WRITE_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return bl_fail(BL_EIO, "%s: cannot write %" PRIu64 " more bytes: %s",
                           bl_path_tail(o->path), n_bytes, n ? strerror(errno) : "no reason given");
        p += n;
        n_bytes -= (uint64_t)n;
    }
    return BL_OK;
}

enum bl_status bl_file_out_commit(struct bl_file_out *o)
{
    if (fsync(o->fd))
        return bl_fail(BL_EIO, "%s: cannot sync: %s", bl_path_tail(o->path), strerror(errno));
    if (rename(o->partial, o->path)) /* before close, which gives up the lock */
        return bl_fail(BL_EIO, "%s: cannot rename %s to it: %s", bl_path_tail(o->path),
                       bl_path_tail(o->partial), strerror(errno));
    close(o->fd); /* fsync has said all there is to say */
    o->fd = -1;
    free(o->partial);
    o->partial = NULL; /* nothing left to remove */
    return BL_OK;
}

void bl_file_out_abandon(struct bl_file_out *o)
{
    if (!o->path)
        return;
    if (o->partial)
        unlink(o->partial); /* before close, which gives up the lock */
    if (o->fd >= 0)
        close(o->fd);
    free(o->partial);
    free(o->path);
    *o = (struct bl_file_out){.fd = -1};
}
