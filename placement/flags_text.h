/* SPDX-License-Identifier: MIT */
/* flags_text.h — texts that command lines are made of.
 *
 * Purpose   a list of arguments, a text that grows, sets of layers as regular expressions and as people write them.
 * Ownership bl_list_drop frees the list's texts, unless they were given away.
 * Units     none.
 * Errors    noticed by what they happen to: failed is out of memory, full a text that was cut.
 * Threads   one.
 */
#ifndef BL_FLAGS_TEXT_H
#define BL_FLAGS_TEXT_H

#include "compiler.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bl_text_list {
    char **text;
    uint32_t n;
    bool failed;
};
void bl_list_add(struct bl_text_list *, const char *fmt, ...) BL_PRINTF(2, 3);
void bl_list_drop(struct bl_text_list *);

struct bl_growing {
    char text[4096];
    size_t n;
    bool full;
};
void bl_grow(struct bl_growing *, const char *fmt, ...) BL_PRINTF(2, 3);

enum { BL_MOST_FLAG_LAYERS = 1000 };
struct bl_layer_set {
    bool in[BL_MOST_FLAG_LAYERS];
    uint32_t n; /* layers of the model */
};
/* A regular expression that matches these numbers and no others. */
void bl_put_layers(struct bl_growing *, const struct bl_layer_set *);
/* As people write them: "0-3, 7". */
void bl_name_layers(struct bl_growing *, const struct bl_layer_set *);

#endif
