/* SPDX-License-Identifier: MIT */
/* jinja_text.h — characters and numbers as Python sees them.
 *
 * Purpose   steps through UTF-8, classifies and maps characters, spells doubles. A character begins at every byte that
 *           is no continuation byte, so that walking from either end finds the same ones; damaged text is never an error.
 * Ownership none.
 * Units     bytes; code points where a name says cp.
 * Errors    none.
 * Threads   any.
 */
#ifndef BL_JINJA_TEXT_H
#define BL_JINJA_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

size_t bl_jtext_next(const char *s, size_t n_bytes);  /* bytes of the first character; n_bytes > 0 */
size_t bl_jtext_last(const char *s, size_t n_bytes);  /* bytes of the last character; n_bytes > 0 */
size_t bl_jtext_count(const char *s, size_t n_bytes); /* characters */
uint32_t bl_jtext_decode(const char *s, size_t n_bytes); /* the first character; U+FFFD when damaged */
size_t bl_jtext_encode(uint32_t cp, char out[4]);

/* Bytes left when white space is taken from the end, bytes of white space at the beginning: str.isspace. */
size_t bl_jtext_rstrip(const char *s, size_t n_bytes);
size_t bl_jtext_lstrip(const char *s, size_t n_bytes);
bool bl_jtext_is_space(uint32_t cp);
bool bl_jtext_is_printable(uint32_t cp); /* unassigned code points count as printable */
bool bl_jtext_is_alpha(uint32_t cp);     /* above ASCII: whatever is no space, punctuation or symbol block */
uint32_t bl_jtext_upper(uint32_t cp);    /* one to one; modern alphabets only */
uint32_t bl_jtext_lower(uint32_t cp);

/* repr(float); out gets at most 31 bytes and a NUL. */
size_t bl_jtext_double(double v, char out[32]);

#endif
