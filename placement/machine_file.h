/* SPDX-License-Identifier: MIT */
/* machine_file.h — machines as JSON: read, checked, written, altered.
 *
 * Purpose   a machine one does not own, or this one as it was measured. configs/schema/machine.schema.json describes the
 *           file; configs/machines has some. What is read is whole and consistent; what is written is canonical: reading
 *           and writing it again gives the same bytes.
 * Ownership the caller finishes the machine and frees the text.
 * Units     those of machine.h; names of members carry them, and texts with units are taken as well ("24GiB", "64GB/s").
 * Errors    BL_EFORMAT: the file, with the path of the member and what it must be. BL_EINVAL: an assignment.
 * Threads   any.
 */
#ifndef BL_MACHINE_FILE_H
#define BL_MACHINE_FILE_H

#include "machine.h"

enum { BL_MACHINE_FORMAT = 1 };

/* what: names the text in messages. */
enum bl_status bl_machine_parse(struct bl_machine *out, const char *what, const char *text, size_t n_bytes);
/* A file, or by its name a machine that comes with the library. BL_EIO: neither. */
enum bl_status bl_machine_load(struct bl_machine *out, const char *path_or_name);
struct bl_machine_source {
    const char *name; /* "dgx-spark" */
    const unsigned char *json;
    size_t n_bytes;
};
extern const struct bl_machine_source bl_machine_sources[]; /* from configs/machines, in the order of their names */
extern const uint32_t bl_machine_n_sources;
enum bl_status bl_machine_write(const struct bl_machine *, char **text, size_t *n_bytes);

/* "gpu0.mem=24GiB", "link1.bps=12GB/s", "cpu0.read=200GB/s": a device by its id or by kind and number, a link by number.
 * mem keeps the share that is usable, usable is what may be used, read and bps scale everything measured with them; any
 * member of a device or link that is a number, word or flag goes by its own name. Checks the machine as a whole; after a
 * failure it is good only to be finished. */
enum bl_status bl_machine_set(struct bl_machine *, const char *assignment);
/* Ids, sums, links and hubs; what: begins messages. Also fills in what a file may leave out: usable bytes from what the
 * sources say, capabilities. */
enum bl_status bl_machine_check(struct bl_machine *, const char *what);

/* Where one more device is to be filled in, behind the last; it counts once n_devices says so. NULL: BL_ENOMEM. What
 * pointed to devices before points nowhere. */
struct bl_machine_device *bl_machine_new_device(struct bl_machine *);
enum bl_status bl_machine_add_link(struct bl_machine *, const struct bl_link *);

/* Whether a plan for the one is a plan for the other: devices, their memory, links. Speeds and what happens to be free may
 * differ. True: `text` says how, "gpu0 has 12.00 GiB there, 24.00 GiB here". */
bool bl_machine_differs(const struct bl_machine *there, const struct bl_machine *here, char *text, size_t cap);

/* Index by id, by backend and number ("vulkan0") where it can be opened, or by kind and number ("gpu1" is the second GPU
 * in the order of the machine); BL_NO_DEVICE. */
uint16_t bl_machine_find(const struct bl_machine *, const char *name);
/* Of what several sources say may be used, the least that is possible; marks the others refused. False: none is. */
bool bl_memory_judge(struct bl_memory_reading *, uint32_t n, uint64_t mem_bytes, uint64_t *usable_bytes, uint32_t *chosen);
/* bps of the narrowest place between two devices, by a link of their own or through the host; 0: no way. */
double bl_machine_path_bps(const struct bl_machine *, uint16_t from, uint16_t to, double *latency_ns);

/* The table for people; a line each. */
void bl_machine_table(const struct bl_machine *, void (*line)(void *arg, const char *text), void *arg);

#endif
