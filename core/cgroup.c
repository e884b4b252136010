/* SPDX-License-Identifier: MIT */
#include "cgroup.h"

#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, TEXT_BYTES = 4 << 20, LINE_BYTES = 2 * PATH_BYTES };

/* v1 writes "no limit" as the largest page-aligned long, which depends on the page size. */
static const uint64_t no_limit_from = UINT64_C(1) << 60;

/* ---- reading --------------------------------------------------------------------------------- */

/* All of fd up to TEXT_BYTES; such files report no size, so the buffer grows. */
static enum bl_status read_all(int fd, const char *path, char **out)
{
    size_t room = 4096, n = 0;
    char *text = malloc(room + 1);
    while (text) {
        ssize_t got = read(fd, text + n, room - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            bl_warn("%s: %s; ignored", path, strerror(errno));
            free(text);
            return BL_OK;
        }
        n += (size_t)got;
        if (got == 0 || n == TEXT_BYTES) {
            text[n] = '\0';
            *out = text;
            return BL_OK;
        }
        if (n < room)
            continue;
        room *= 2;
        char *more = realloc(text, room + 1);
        if (!more)
            free(text);
        text = more;
    }
    return bl_fail(BL_ENOMEM, "%s: no memory to read it", path);
}

enum bl_status bl_cgroup_text(char **out, const char *root, const char *path)
{
    char full[2 * PATH_BYTES];
    int len = snprintf(full, sizeof full, "%s/%s", root ? root : "", path + (*path == '/'));

    *out = NULL;
    if (len < 0 || (size_t)len >= sizeof full) {
        bl_warn("a path of %d bytes below %s is too long; ignored", len, root ? root : "/");
        return BL_OK;
    }
    int fd = open(full, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hang us */
    if (fd < 0) {
        if (errno != ENOENT && errno != ENOTDIR)
            bl_warn("%s: %s; ignored", full, strerror(errno));
        return BL_OK;
    }
    enum bl_status st = read_all(fd, full, out);
    close(fd);
    return st;
}

/* ---- words and numbers ----------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits at *p, saturating; false where there are none. */
static bool take_number(const char **p, uint64_t *out)
{
    uint64_t v = 0;
    const char *s = *p;
    for (; is_digit(*s); s++) {
        uint64_t digit = (uint64_t)(*s - '0');
        v = v > (UINT64_MAX - digit) / 10 ? UINT64_MAX : v * 10 + digit;
    }
    if (s == *p)
        return false;
    *p = s;
    *out = v;
    return true;
}

static bool only_space(const char *p)
{
    return p[strspn(p, " \t\n")] == '\0';
}

/* A file's only number; "max" and negative ones are UINT64_MAX, as the kernel means them. */
static bool parse_limit(const char *text, uint64_t *out)
{
    bool negative = *text == '-';
    *out = UINT64_MAX;
    if (strncmp(text, "max", 3) == 0)
        return only_space(text + 3);
    text += negative;
    if (!take_number(&text, out) || !only_space(text))
        return false;
    if (negative)
        *out = UINT64_MAX;
    return true;
}

bool bl_cgroup_value(const char *text, const char *key, uint64_t *out)
{
    size_t len = strlen(key);
    for (const char *next = text; next;) {
        const char *p = next;
        next = strchr(p, '\n');
        next = next ? next + 1 : NULL;
        if (strncmp(p, key, len) != 0 || !strchr(": ", p[len]))
            continue;
        p += len;
        p += strspn(p, ": ");
        return take_number(&p, out);
    }
    return false;
}

/* Is `word` an element of the comma-separated list? */
static bool has_word(const char *list, const char *word)
{
    size_t len = strlen(word);
    while (*list) {
        size_t n = strcspn(list, ",");
        if (n == len && strncmp(list, word, len) == 0)
            return true;
        list += n + (list[n] == ',');
    }
    return false;
}

/* Copies the line at text (cut to fit) and returns the start of the next one. */
static const char *next_line(const char *text, char line[LINE_BYTES])
{
    size_t n = strcspn(text, "\n"), keep = n < LINE_BYTES ? n : LINE_BYTES - 1;
    memcpy(line, text, keep);
    line[keep] = '\0';
    return text + n + (text[n] == '\n');
}

/* ---- from a group to the folders that hold its files ----------------------------------------- */

struct level {
    const char *root;       /* what the caller gave */
    const char *mount;      /* where the hierarchy is mounted, below root */
    char group[PATH_BYTES]; /* below the mount, "" = the top of what can be seen */
    bool v2;
};
typedef enum bl_status visit_fn(void *arg, const struct level *);

struct walk {
    const char *root, *controller;
    char *mounts; /* text of mountinfo, NULL when there is none */
    visit_fn *visit;
    void *arg;
};

static enum bl_status level_text(char **out, const struct level *at, const char *file)
{
    char path[2 * PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s%s/%s", at->mount, at->group, file);
    return bl_cgroup_text(out, at->root, path);
}

/* "cgroup v2 cpu.max of /a/b"; of long names the end is kept, it tells groups apart. */
static void describe(char *out, size_t bytes, const struct level *at, const char *file)
{
    const char *group = *at->group ? at->group : "/";
    int head = snprintf(out, bytes, "cgroup v%d %s of ", at->v2 ? 2 : 1, file);
    size_t room = bytes - (size_t)head, len = strlen(group);
    size_t keep = len < room ? len : room - sizeof "...";
    snprintf(out + head, room, "%s%.*s", keep < len ? "..." : "", (int)keep, group + len - keep);
}

/* A path with ".." leads out of the namespace: the top of the mount is the nearest that can be
 * seen. */
static bool leads_out(const char *path)
{
    for (const char *p = path; (p = strstr(p, "/..")) != NULL; p += 3)
        if (p[3] == '/' || p[3] == '\0')
            return true;
    return false;
}

/* Visits a group and its ancestors. Groups that do not exist here (a container sees only the lower
 * part of its path, a removed group is still named) have no files and so no limits. */
static enum bl_status walk_up(const struct walk *w, bool v2, const char *mount, const char *group)
{
    struct level at = {.root = w->root, .mount = mount, .v2 = v2};
    if (!leads_out(group))
        snprintf(at.group, sizeof at.group, "%s", group);
    for (;;) {
        char *slash = strrchr(at.group, '/');
        if (!slash || slash[1]) /* "/a/" is the same group as "/a" */
            BL_TRY(w->visit(w->arg, &at));
        if (!slash)
            return BL_OK;
        *slash = '\0';
    }
}

/* mountinfo writes blanks and backslashes as three octal digits. */
static void unescape(char *s)
{
    char *to = s;
    while (*s) {
        bool octal = s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
                     s[3] >= '0' && s[3] <= '7';
        *to++ = octal ? (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0')) : *s;
        s += octal ? 4 : 1;
    }
    *to = '\0';
}

struct mount {
    char top[PATH_BYTES]; /* the group at the mount point */
    char point[PATH_BYTES];
};

/* "31 23 0:28 TOP POINT options [tags] - TYPE source options": is it the hierarchy asked for? */
static bool parse_mount(const char *line, bool v2, const char *controller, struct mount *out)
{
    char type[16], options[512];
    const char *tail = strstr(line, " - ");
    if (!tail || sscanf(line, "%*s %*s %*s %4095s %4095s", out->top, out->point) != 2 ||
        sscanf(tail, " - %15s %*s %511s", type, options) != 2)
        return false;
    unescape(out->top);
    unescape(out->point);
    return strcmp(type, v2 ? "cgroup2" : "cgroup") == 0 && (v2 || has_word(options, controller));
}

/* What is left of `group` below `top`; NULL when it lies elsewhere. */
static const char *below(const char *group, const char *top)
{
    size_t len = strcmp(top, "/") == 0 ? 0 : strlen(top);
    return strncmp(group, top, len) == 0 && (group[len] == '/' || !group[len]) ? group + len : NULL;
}

/* The mount that shows `group`; failing that the first of its kind, at its top. */
static bool find_mount(const struct walk *w, bool v2, const char *group, struct mount *out,
                       const char **rest)
{
    char line[LINE_BYTES];
    struct mount m;
    bool found = false;
    for (const char *p = w->mounts; p && *p;) {
        p = next_line(p, line);
        if (!parse_mount(line, v2, w->controller, &m))
            continue;
        const char *tail = below(group, m.top);
        if (!tail && found)
            continue;
        *out = m;
        *rest = tail ? tail : "";
        found = true;
        if (tail)
            break;
    }
    return found;
}

/* One line of /proc/self/cgroup taken apart. */
static enum bl_status walk_group(const struct walk *w, const char *list, const char *group)
{
    bool v2 = *list == '\0';
    struct mount m;
    const char *rest;
    char usual[PATH_BYTES];

    if (!v2 && !has_word(list, w->controller))
        return BL_OK;
    if (find_mount(w, v2, group, &m, &rest))
        return walk_up(w, v2, m.point, rest);
    snprintf(usual, sizeof usual, "/sys/fs/cgroup/%s", v2 ? "unified" : w->controller);
    BL_TRY(walk_up(w, v2, usual, group));
    if (!v2 && strcmp(list, w->controller) == 0)
        return BL_OK;
    snprintf(usual, sizeof usual, "/sys/fs/cgroup%s%s", v2 ? "" : "/", list);
    return walk_up(w, v2, usual, group);
}

/* "4:cpu,cpuacct:/a/b" (v1) or "0::/a/b" (v2), cut in place. */
static bool split_line(char *line, const char **list, const char **group)
{
    uint64_t id;
    const char *p = line;
    if (!take_number(&p, &id) || *p != ':')
        return false;
    char *colon = strchr(p + 1, ':');
    if (!colon || colon[1] != '/' || (colon == p + 1 && id != 0))
        return false;
    *colon = '\0';
    *list = p + 1;
    *group = colon + 1;
    return strlen(*group) < PATH_BYTES;
}

static enum bl_status walk_lines(const struct walk *w, const char *text)
{
    char line[LINE_BYTES];
    const char *list, *group;
    bool warned = false;
    while (*text) {
        text = next_line(text, line);
        if (split_line(line, &list, &group)) {
            BL_TRY(walk_group(w, list, group));
        } else if (*line && !warned) {
            bl_warn("%s/proc/self/cgroup: a line without meaning; ignored", w->root ? w->root : "");
            warned = true;
        }
    }
    return BL_OK;
}

/* Calls visit for every group that can limit this process by `controller`. */
static enum bl_status walk_groups(const char *root, const char *controller, visit_fn *visit,
                                  void *arg)
{
    struct walk w = {.root = root, .controller = controller, .visit = visit, .arg = arg};
    struct stat info;
    char *own = NULL;
    enum bl_status st;

    if (root && stat(root, &info) != 0)
        return bl_fail(BL_EIO, "cgroup root %s: %s", root, strerror(errno));
    if (root && !S_ISDIR(info.st_mode))
        return bl_fail(BL_EIO, "cgroup root %s is not a folder", root);
    if ((st = bl_cgroup_text(&own, root, "proc/self/cgroup")) || !own)
        goto out;
    if ((st = bl_cgroup_text(&w.mounts, root, "proc/self/mountinfo")))
        goto out;
    st = walk_lines(&w, own);
out:
    free(w.mounts);
    free(own);
    return st;
}

static void warn_garbage(const struct level *at, const char *file)
{
    bl_warn("%s%s%s/%s makes no sense; taken as no limit", at->root ? at->root : "", at->mount,
            at->group, file);
}

/* ---- CPU quota ------------------------------------------------------------------------------- */

/* A limit file of one number. Absent or senseless: *value stays. */
static enum bl_status level_limit(const struct level *at, const char *file, uint64_t *value)
{
    char *text;
    uint64_t v;
    BL_TRY(level_text(&text, at, file));
    if (text && parse_limit(text, &v))
        *value = v;
    else if (text)
        warn_garbage(at, file);
    free(text);
    return BL_OK;
}

/* "400000 100000" or "max 100000" */
static bool parse_cpu_max(const char *text, uint64_t *quota_us, uint64_t *period_us)
{
    *quota_us = UINT64_MAX;
    if (strncmp(text, "max", 3) == 0)
        text += 3;
    else if (!take_number(&text, quota_us))
        return false;
    text += strspn(text, " ");
    return only_space(text) || (take_number(&text, period_us) && only_space(text));
}

static enum bl_status visit_cpu(void *arg, const struct level *at)
{
    struct bl_cgroup_cpu *out = arg;
    const char *file = at->v2 ? "cpu.max" : "cpu.cfs_quota_us";
    uint64_t quota_us = UINT64_MAX, period_us = 100000; /* the kernel's default period */
    char *text = NULL;

    if (at->v2) {
        BL_TRY(level_text(&text, at, file));
        if (text && !parse_cpu_max(text, &quota_us, &period_us))
            quota_us = 0;
        free(text);
    } else {
        BL_TRY(level_limit(at, file, &quota_us));
        BL_TRY(level_limit(at, "cpu.cfs_period_us", &period_us));
    }
    if (quota_us == UINT64_MAX)
        return BL_OK;
    if (quota_us == 0 || period_us == 0 || period_us == UINT64_MAX) {
        warn_garbage(at, file);
        return BL_OK;
    }
    double quota = (double)quota_us / (double)period_us;
    if (out->quota == 0 || quota < out->quota) {
        out->quota = quota;
        describe(out->source, sizeof out->source, at, file);
    }
    return BL_OK;
}

enum bl_status bl_cgroup_cpu(struct bl_cgroup_cpu *out, const char *root)
{
    struct bl_cgroup_cpu found = {0};
    BL_TRY(walk_groups(root, "cpu", visit_cpu, &found));
    *out = found;
    return BL_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Page cache that the kernel drops before it refuses memory. v1 counts the subtree under its own
 * name. */
static enum bl_status reclaimable(const struct level *at, uint64_t *limit, uint64_t *bytes)
{
    char *text;
    uint64_t inherited;
    BL_TRY(level_text(&text, at, "memory.stat"));
    *bytes = 0;
    if (text && (at->v2 || !bl_cgroup_value(text, "total_inactive_file", bytes)))
        bl_cgroup_value(text, "inactive_file", bytes);
    /* v1 also tells the limit of ancestors that a container cannot see */
    if (text && !at->v2 && bl_cgroup_value(text, "hierarchical_memory_limit", &inherited) &&
        inherited < *limit)
        *limit = inherited;
    free(text);
    return BL_OK;
}

static enum bl_status visit_memory(void *arg, const struct level *at)
{
    struct bl_cgroup_memory *out = arg;
    const char *file = at->v2 ? "memory.max" : "memory.limit_in_bytes";
    uint64_t limit = UINT64_MAX, used = 0, cache;

    BL_TRY(level_limit(at, file, &limit));
    BL_TRY(reclaimable(at, &limit, &cache));
    if (limit >= no_limit_from)
        return BL_OK;
    BL_TRY(level_limit(at, at->v2 ? "memory.current" : "memory.usage_in_bytes", &used));
    used = used < no_limit_from ? used : 0; /* not a usage */
    used -= cache < used ? cache : used;
    uint64_t room = used < limit ? limit - used : 0;
    if (limit < out->limit_bytes)
        out->limit_bytes = limit;
    if (room < out->room_bytes) {
        out->room_bytes = room;
        describe(out->source, sizeof out->source, at, file);
    }
    return BL_OK;
}

enum bl_status bl_cgroup_memory(struct bl_cgroup_memory *out, const char *root)
{
    struct bl_cgroup_memory found = {.limit_bytes = UINT64_MAX, .room_bytes = UINT64_MAX};
    BL_TRY(walk_groups(root, "memory", visit_memory, &found));
    *out = found;
    return BL_OK;
}
