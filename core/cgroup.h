/* SPDX-License-Identifier: MIT */
/* cgroup.h — limits that control groups put on this process.
 *
 * Purpose   CPU quota and memory limit, the strictest of a group and all its ancestors; v1, v2 and both at once.
 * Ownership results are plain data; bl_cgroup_text hands a malloc'ed string to the caller.
 * Units     CPUs (quota over period), bytes.
 * Errors    BL_EIO: root is not a folder; BL_ENOMEM. An absent file means no limit; one that makes no sense means
 *           no limit and one warning in the log.
 * Threads   any; nothing is cached.
 */
#ifndef BL_CGROUP_H
#define BL_CGROUP_H

#include "status.h"

/* root everywhere: NULL = this system, otherwise a folder laid out like a system's root. */
struct bl_cgroup_cpu {
    double quota;                 /* CPUs, 0 = no limit */
    char source[96];              /* "cgroup v2 cpu.max of /a/b", empty when there is no limit */
};
enum bl_status bl_cgroup_cpu(struct bl_cgroup_cpu *out, const char *root);

struct bl_cgroup_memory {
    uint64_t limit_bytes;         /* least limit, UINT64_MAX = none */
    uint64_t room_bytes;          /* least of limit - (usage - reclaimable), UINT64_MAX = no limit */
    char source[96];              /* the group with the least room */
};
enum bl_status bl_cgroup_memory(struct bl_cgroup_memory *out, const char *root);

/* The file root/path as a string; *out is NULL when there is no such file or it cannot be read (warned). */
enum bl_status bl_cgroup_text(char **out, const char *root, const char *path);
/* The number of the first line "key 123" or "key:  123 kB" of such a text; saturates. false: there is none. */
bool bl_cgroup_value(const char *text, const char *key, uint64_t *out);

#endif
