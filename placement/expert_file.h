/* SPDX-License-Identifier: MIT */
/* expert_file.h — how often a model's experts were used, as JSON (configs/schema/experts.schema.json).
 *
 * Purpose   what one run counted is where the next begins and what the planner goes by.
 * Ownership the caller finishes statistics and frees text.
 * Units     those of core/experts.h.
 * Errors    BL_EINVAL: the file, with the path of the member and what it must be, or another model's; BL_ENOMEM.
 * Threads   any.
 */
#ifndef BL_EXPERT_FILE_H
#define BL_EXPERT_FILE_H

#include "experts.h"
#include "model.h"

enum { BL_EXPERTS_FORMAT = 1 };

enum bl_status bl_expert_file_parse(struct bl_expert_stats *out, const struct bl_model *, const char *what,
                                    const char *text, size_t n_bytes);
/* A file that is not there gives zeroed statistics: nothing is known yet. */
enum bl_status bl_expert_file_load(struct bl_expert_stats *out, const struct bl_model *, const char *path);
enum bl_status bl_expert_file_text(char **text, size_t *n_bytes, const struct bl_expert_stats *, const struct bl_model *);

#endif
