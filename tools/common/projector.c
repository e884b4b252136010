/* SPDX-License-Identifier: MIT */
#include "projector.h"

#include <string.h>

enum { NAME_CAP = 64 };

/* The text of a key, cut to what a message can show. False: absent or no text. */
static bool read_text(const struct bl_gguf *g, const char *key, char out[NAME_CAP])
{
    for (uint32_t i = 0; i < bl_gguf_n_kv(g); i++) {
        const struct bl_kv *kv = bl_gguf_kv(g, i);
        if (strcmp(kv->key, key) != 0)
            continue;
        if (kv->type != BL_VAL_STRING || kv->data_bytes < sizeof(uint64_t))
            return false;
        bl_clean_text(out, NAME_CAP, (const char *)kv->data + sizeof(uint64_t),
                      kv->data_bytes - sizeof(uint64_t), true);
        return true;
    }
    return false;
}

static void read_kind(const struct bl_gguf *g, char out[NAME_CAP])
{
    if (!read_text(g, "clip.projector_type", out) &&
        !read_text(g, "clip.vision.projector_type", out) &&
        !read_text(g, "clip.audio.projector_type", out))
        strcpy(out, "unnamed");
}

int bl_projector_refuse(const struct bl_report *r, const char *path)
{
    struct bl_gguf *g;
    enum bl_status st = bl_gguf_open_header(&g, path);
    if (st)
        return bl_report_status(r, BL_STAGE_OPEN, st);
    char arch[NAME_CAP] = "unnamed", kind[NAME_CAP];
    (void)read_text(g, "general.architecture", arch);
    read_kind(g, kind);
    const bool is = strcmp(arch, "clip") == 0;

    if (is)
        bl_report_error(r,
                        "--mmproj %s: projectors are not supported, this one is '%s'; leave the "
                        "option away to use the model for text",
                        path, kind);
    else
        bl_report_error(r, "--mmproj %s: no projector but a file of architecture '%s'", path, arch);
    bl_gguf_close(g);
    return is ? BL_EXIT_USAGE : BL_EXIT_MODEL;
}
