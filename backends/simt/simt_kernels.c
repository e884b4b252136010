/* SPDX-License-Identifier: MIT */
/* Kernels by name, and the images that they come from. */
#include "simt.h"

#include "dtype.h"
#include "file.h"
#include "mem.h"
#include "variables.h"

#include <stdio.h>
#include <stdlib.h>

const struct bl_simt_kernel_row bl_simt_kernels[BL_SIMT_N_KERNELS] = {
#define KERNEL(unit, name) {#unit, #name},
#include "simt/kernels.def"
#undef KERNEL
};

static int compare(const void *key, const void *row)
{
    return strcmp(key, ((const struct bl_simt_kernel_row *)row)->name);
}

uint32_t bl_simt_kernel_find(const char *name, int type)
{
    char full[64];

    if (type == BL_SIMT_NO_TYPE)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "%s__%s", name, bl_dtypes[type].name);
    const struct bl_simt_kernel_row *row =
        bsearch(full, bl_simt_kernels, BL_SIMT_N_KERNELS, sizeof *row, compare);
    return row ? (uint32_t)(row - bl_simt_kernels) : BL_SIMT_N_KERNELS;
}

/* Rows of a unit need not stand together; its first one stands for it. */
static uint32_t first_of_unit(uint32_t row)
{
    uint32_t first = 0;
    while (strcmp(bl_simt_kernels[first].unit, bl_simt_kernels[row].unit))
        first++;
    return first;
}

/* ---- images ---- */

static enum bl_status nothing_for_it(const struct bl_simt_device *d)
{
    const struct bl_simt_vendor *v = d->vendor;
    return bl_fail(BL_EUNAVAILABLE,
                   "%s (%s): this build has no kernels for %s, only for %s; build with -D%s=%s, or "
                   "let %s name a folder that has them",
                   d->base.name, d->card.name, d->card.arch,
                   *v->images->archs ? v->images->archs : "no card", v->option,
                   d->card.arch + (v->by_arch ? 0 : strlen("sm_")), v->folder_variable);
}

static const struct bl_simt_image *built_in(const struct bl_simt_device *d, const char *unit)
{
    for (const struct bl_simt_image *i = d->vendor->images->image; i->unit; i++)
        if (!strcmp(i->unit, unit) && (!i->arch || !strcmp(i->arch, d->card.arch)))
            return i;
    return NULL;
}

static enum bl_status too_old(const struct bl_simt_device *d)
{
    const uint32_t want = d->vendor->images->built_with;
    char wanted[48] = "are newer";
    int have = 0;

    (void)d->fn->driver_version(d->driver, &have);
    if (want)
        snprintf(wanted, sizeof wanted, "want %u.%u", want / 1000, want % 1000 / 10);
    return bl_fail(BL_EUNAVAILABLE,
                   "%s (%s): the driver is too old: it is of version %d.%d, the kernels of this "
                   "build %s",
                   d->base.name, d->card.name, have / 1000, have % 1000 / 10, wanted);
}

static bool is_too_old(const struct bl_simt_device *d, int code)
{
    int have = 0;
    return code == BL_SIMT_NEWER_CODE ||
           ((code == BL_SIMT_NO_IMAGE || code == BL_SIMT_BAD_IMAGE) &&
            d->vendor->images->built_with && !d->fn->driver_version(d->driver, &have) &&
            (uint32_t)have < d->vendor->images->built_with);
}

static enum bl_status load_image(struct bl_simt_device *d, const void *image, const char *unit,
                                 void **out)
{
    const int code = d->fn->module_load(d->driver, out, image);
    char what[64];

    if (code && is_too_old(d, code))
        return too_old(d);
    if (code == BL_SIMT_NO_IMAGE)
        return nothing_for_it(d);
    snprintf(what, sizeof what, "kernels of %s cannot be loaded", unit);
    return bl_simt_try(d, code, what);
}

/* From a folder, as the whole of a file. */
static enum bl_status load_file(struct bl_simt_device *d, const char *folder, const char *unit,
                                void **out)
{
    char path[512];
    struct bl_file *file;
    const void *image;
    const bool by_arch = d->vendor->by_arch;

    const int n = snprintf(path, sizeof path, "%s/%s%s%s%s", folder, unit, by_arch ? "." : "",
                           by_arch ? d->card.arch : "", d->vendor->suffix);
    if (n < 0 || (size_t)n >= sizeof path)
        return bl_fail(BL_EINVAL, "%s: the name of a folder with kernels is too long",
                       d->base.name);
    BL_TRY(bl_file_open(&file, path));
    enum bl_status st = bl_file_map(file, &image);
    if (!st)
        st = load_image(d, image, unit, out);
    bl_file_close(file);
    return st;
}

static enum bl_status load_unit(struct bl_simt_device *d, const char *unit, void **out)
{
    const char *folder = bl_variable(d->vendor->folder_variable);

    if (folder)
        return load_file(d, folder, unit, out);
    const struct bl_simt_image *image = built_in(d, unit);
    return image ? load_image(d, image->bytes, unit, out) : nothing_for_it(d);
}

enum bl_status bl_simt_kernels_exist(const struct bl_simt_device *d)
{
    return bl_variable(d->vendor->folder_variable) || built_in(d, bl_simt_kernels[0].unit)
               ? BL_OK
               : nothing_for_it(d);
}

/* ---- in words ---- */

/* As mma.hpp has them. */
static bool has_matrix_units(const struct bl_simt_device *d)
{
    static const char *const with[] = {"sm_", "gfx11", "gfx12", "gfx908", "gfx90a", "gfx942"};

    for (size_t i = 0; i < BL_COUNT(with); i++)
        if (!strncmp(d->card.arch, with[i], strlen(with[i])))
            return true;
    return false;
}

static bool is_listed(const char *list, const char *word)
{
    const size_t n = strlen(word);

    for (const char *at = strstr(list, word); at; at = strstr(at + n, word))
        if ((at == list || at[-1] == ' ') && (!at[n] || at[n] == ' '))
            return true;
    return false;
}

void bl_simt_kernels_say(const struct bl_simt_device *d, char *text, size_t cap)
{
    const char *archs = d->vendor->images->archs;
    const char *folder = bl_variable(d->vendor->folder_variable);
    char from[80];

    if (folder)
        snprintf(from, sizeof from, "from %.60s", folder);
    else if (is_listed(archs, d->card.arch))
        snprintf(from, sizeof from, "of this build");
    else
        snprintf(from, sizeof from, "translated by the driver");
    snprintf(text, cap, "%s, kernels %s, %s", d->card.arch, from,
             has_matrix_units(d) ? "products by matrix units" : "products without matrix units");
}

/* ---- modules ---- */

static enum bl_status find_kernel(struct bl_simt_device *d, uint32_t row)
{
    char what[96];
    const int code = d->fn->module_kernel(d->driver, &d->kernel[row], d->module[first_of_unit(row)],
                                          bl_simt_kernels[row].name);
    if (!code)
        return BL_OK;
    snprintf(what, sizeof what, "there is no %s in the kernels of %s", bl_simt_kernels[row].name,
             bl_simt_kernels[row].unit);
    return bl_simt_try(d, code, what);
}

enum bl_status bl_simt_kernels_load(struct bl_simt_device *d)
{
    d->module = bl_calloc(BL_SIMT_N_KERNELS, sizeof *d->module);
    if (!d->module)
        return bl_fail(BL_ENOMEM, "%s: out of memory", d->base.name);
    for (uint32_t row = 0; row < BL_SIMT_N_KERNELS; row++)
        if (first_of_unit(row) == row)
            BL_TRY(load_unit(d, bl_simt_kernels[row].unit, &d->module[row]));
    for (uint32_t row = 0; row < BL_SIMT_N_KERNELS; row++)
        BL_TRY(find_kernel(d, row));
    return BL_OK;
}

void bl_simt_kernels_unload(struct bl_simt_device *d)
{
    for (uint32_t row = 0; d->module && row < BL_SIMT_N_KERNELS; row++)
        if (d->module[row])
            d->fn->module_unload(d->driver, d->module[row]);
}
