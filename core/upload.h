/* SPDX-License-Identifier: MIT */
/* upload.h — bytes of a file into memory that the host does not see.
 *
 * Purpose   two halves of a block of the host's by turns: one is filled while the device copies the other.
 * Ownership a stream of its own; the block is lent, and free again when it is closed.
 * Units     bytes.
 * Errors    BL_ETIMEDOUT: the device did not copy in time; says what, and how far it is goes to the log. What the device
 *           reports.
 * Threads   submitting thread.
 */
#ifndef BL_UPLOAD_H
#define BL_UPLOAD_H

#include "device.h"

#define BL_UPLOAD_NS UINT64_C(60000000000)

struct bl_upload {
    struct bl_device *dev;
    struct bl_stream *stream;
    const struct bl_mem *room;
    struct bl_point sent[2];
    const char *what[2];  /* that is sent, for messages */
    uint32_t turn;
    bool given_up;        /* it did not come in time */
    uint64_t patience_ns; /* with the device; 0: BL_UPLOAD_NS */
};
enum bl_status bl_upload_open(struct bl_upload *, struct bl_device *, const struct bl_mem *room);
/* Where the next bytes go, and how many at most. */
enum bl_status bl_upload_next(struct bl_upload *, void **at, size_t *bytes);
/* What was put there, to the block at off. what: whose name stays until the upload is closed. */
enum bl_status bl_upload_send(struct bl_upload *, const char *what, const struct bl_mem *block, size_t off,
                              size_t bytes);
/* Waits for all of it, unless it has been given up; zeroed is fine. */
enum bl_status bl_upload_close(struct bl_upload *);

#endif
