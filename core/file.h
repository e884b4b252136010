/* SPDX-License-Identifier: MIT */
/* file.h — files: mapping and ranged reads of those that are there, writing of new ones.
 *
 * Purpose   one place that opens, sizes (fstat after open), maps and reads files, so that no path outruns its file.
 * Ownership the file owns its mapping.
 * Units     bytes, absolute offsets.
 * Errors    BL_EIO with path and the system's reason; BL_EFORMAT for a directory or special file.
 * Threads   reads of different ranges may run in parallel.
 */
#ifndef BL_FILE_H
#define BL_FILE_H

#include "status.h"

struct bl_file;
enum bl_status bl_file_open(struct bl_file **out, const char *path);
void bl_file_close(struct bl_file *);
const char *bl_file_path(const struct bl_file *);
/* The last 160 bytes or so of a path: what messages show, so that the reason behind it is not cut off. */
const char *bl_path_tail(const char *path);
uint64_t bl_file_bytes(const struct bl_file *);
/* Whole file, read-only; the same address on every call. */
enum bl_status bl_file_map(struct bl_file *, const void **out);
/* BL_EIO when the file has become shorter than it was at open. Reading what is gone of a mapping ends the process
 * (SIGBUS), so whoever uses one asks before each piece of work; a file cut within it cannot be helped. */
enum bl_status bl_file_check(const struct bl_file *);
/* Tells the system to fetch [off, off + bytes) of the mapping soon. */
void bl_file_will_need(struct bl_file *, uint64_t off, uint64_t bytes);
/* Exactly `bytes` from `off`; short files are BL_EIO. Large reads, no page-cache games. */
enum bl_status bl_file_read(struct bl_file *, uint64_t off, uint64_t bytes, void *dst);

/* A file that appears whole or not at all: its bytes go to PATH.ballast-partial, locked, which takes its name at commit.
 * What a killed writer left there the next one takes over. */
struct bl_file_out {
    int fd;
    char *path, *partial;
};
enum bl_status bl_file_out_create(struct bl_file_out *, const char *path); /* nothing to abandon on failure */
enum bl_status bl_file_out_expect(const struct bl_file_out *, uint64_t n_bytes); /* BL_EIO: the disk has less left */
enum bl_status bl_file_out_write(struct bl_file_out *, const void *bytes, uint64_t n_bytes);
enum bl_status bl_file_out_commit(struct bl_file_out *); /* all is on the disk, then renamed; abandon it afterwards */
void bl_file_out_abandon(struct bl_file_out *);          /* removes what is not committed; zeroed is fine */

#endif
