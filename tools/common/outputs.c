/* SPDX-License-Identifier: MIT */
#include "outputs.h"

#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* An option that names a file, in and out. */
struct named {
    const struct bl_arg *row;
    const char *path;
    char option[40];
    bool written, exists;
    struct stat st;
    char
        *place; /* of what will be written and is not there: its folder's real path, and its name */
};

struct outputs {
    const struct bl_command *command;
    struct named *file; /* [n]; room for as many as there are options */
    size_t n;
};

static bool refuse(const struct bl_command *c, const struct named *f, const char *why)
{
    bl_args_fail(c, "%s %s: %s", f->option, f->path, why);
    return false;
}

static bool cannot_write(const struct bl_command *c, const struct named *f, int error)
{
    bl_report_error(&c->report, "cannot write %s: %s", f->path, strerror(error));
    return false;
}

/* ---- what the line names ---- */

static char *place_of(const char *path)
{
    char *a = strdup(path), *b = strdup(path), *out = NULL;
    char *dir = a ? realpath(dirname(a), NULL) : NULL;
    const char *base = b ? basename(b) : "";
    const size_t n = dir ? strlen(dir) + strlen(base) + 2 : 0;

    if (n && (out = malloc(n)))
        snprintf(out, n, "%s/%s", dir, base);
    free(a);
    free(b);
    free(dir);
    return out;
}

static void note(struct outputs *o, const struct bl_arg *row, const void *base)
{
    const char *path = *(const char *const *)((const char *)base + row->at);

    if (!path)
        return;
    struct named *f = &o->file[o->n++];
    const char *name = strstr(row->names, ",--"); /* the long one, but for -o and -m */
    name = name && row->names[2] != ',' ? name + 1 : row->names;
    *f = (struct named){.row = row,
                        .path = path,
                        .written =
                            row->out != BL_ARG_IN && !(row->goes_on && o->command->only_reads)};
    snprintf(f->option, sizeof f->option, "%.*s", (int)strcspn(name, ","), name);
    f->exists = *path && !stat(path, &f->st);
    if (f->written && *path && !f->exists)
        f->place = place_of(path);
}

static bool note_all(struct outputs *o)
{
    size_t most = 1;

    for (size_t g = 0; g < o->command->n_groups; g++)
        most += o->command->groups[g].n_rows;
    if (!(o->file = calloc(most, sizeof *o->file))) {
        bl_report_error(&o->command->report, "out of memory");
        return false;
    }
    for (size_t g = 0; g < o->command->n_groups; g++) {
        const struct bl_arg_group *group = &o->command->groups[g];
        for (size_t i = 0; i < group->n_rows; i++)
            if (group->rows[i].kind == BL_ARG_TEXT && group->rows[i].value &&
                !strcmp(group->rows[i].value, "FILE"))
                note(o, &group->rows[i], group->base);
    }
    return true;
}

/* ---- one of them ---- */

static bool is_model(const struct named *f)
{
    char magic[4] = "";
    const int fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool yes = fd >= 0 && read(fd, magic, 4) == 4 && !memcmp(magic, "GGUF", 4);

    if (fd >= 0)
        close(fd);
    return yes;
}

/* Devices and pipes are not opened: that alone can mean something to their other side. */
static bool try_special(const struct bl_command *c, const struct named *f)
{
    if (S_ISDIR(f->st.st_mode))
        return cannot_write(c, f, EISDIR);
    if (f->row->out == BL_ARG_OUT_FILE)
        return refuse(c, f, "must be a file; it appears whole or not at all");
    if (!S_ISCHR(f->st.st_mode) && !S_ISFIFO(f->st.st_mode))
        return refuse(c, f, "is no file, pipe or character device");
    return !access(f->path, W_OK) || cannot_write(c, f, errno);
}

static bool has_name(const struct bl_command *c, const struct named *f)
{
    if (!*f->path)
        bl_args_fail(c, "%s wants the name of a file, not ''", f->option);
    return *f->path;
}

static bool try_one(const struct bl_command *c, const struct named *f)
{
    struct bl_out_file file;

    if (bl_out_is_stdout(f->path)) {
        if (f->row->out == BL_ARG_OUT_FILE)
            return refuse(c, f, "must be a file; it appears whole or not at all");
        return f->row->out == BL_ARG_OUT_STDOUT ||
               refuse(c, f, "standard output has the result; name a file");
    }
    if (bl_out_is_stderr(f->path))
        return refuse(c, f, "standard error has the messages; name a file");
    if (f->exists && !S_ISREG(f->st.st_mode))
        return try_special(c, f);
    if (f->exists && access(f->path, W_OK))
        return cannot_write(c, f, errno);
    if (f->exists && is_model(f) && strcmp(c->report.verb, "synth"))
        return refuse(c, f, "is a model and is not overwritten; name another file");
    if (!bl_out_file_create(&c->report, &file, f->path))
        return false;
    bl_out_file_abandon(&file);
    return true;
}

/* ---- two of them ---- */

static bool are_same(const struct named *a, const struct named *b)
{
    if (a->exists && b->exists)
        return S_ISREG(a->st.st_mode) && a->st.st_ino == b->st.st_ino &&
               a->st.st_dev == b->st.st_dev;
    return a->place && b->place && !strcmp(a->place, b->place);
}

static bool may_share(const struct named *out, const struct named *in)
{
    return !in->written && out->row->renews && !strcmp(out->row->renews, in->option);
}

static bool try_pairs(const struct outputs *o, const struct named *f)
{
    for (const struct named *b = o->file; b < o->file + o->n; b++)
        if (b != f && !may_share(f, b) && are_same(f, b)) {
            bl_args_fail(o->command, "%s would write over %s of %s; name another file", f->option,
                         f->path, b->option);
            return false;
        }
    return true;
}

bool bl_outputs_try(const struct bl_command *c)
{
    struct outputs o = {.command = c};
    bool good = note_all(&o);

    for (size_t i = 0; good && i < o.n; i++)
        good = has_name(c, &o.file[i]);
    for (size_t i = 0; good && i < o.n; i++)
        if (o.file[i].written)
            good = try_one(c, &o.file[i]) && try_pairs(&o, &o.file[i]);
    for (size_t i = 0; i < o.n; i++)
        free(o.file[i].place);
    free(o.file);
    return good;
}
