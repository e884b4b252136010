/* SPDX-License-Identifier: MIT */
/* mem.h — host memory: checked sizes, page blocks, bump arena.
 *
 * Purpose   large blocks straight from the system (page granular, counted exactly) and an arena for the many small
 *           objects that die together.
 * Ownership a block is freed with the size it was allocated with; an arena owns everything carved from it.
 * Units     bytes.
 * Errors    NULL or BL_ENOMEM; never aborts. Size arithmetic that would wrap counts as out of memory.
 * Threads   blocks: any thread. An arena: one thread at a time.
 */
#ifndef BL_MEM_H
#define BL_MEM_H

#include "status.h"

/* false on wrap; *out untouched then */
bool bl_size_mul(uint64_t a, uint64_t b, uint64_t *out);
bool bl_size_add(uint64_t a, uint64_t b, uint64_t *out);
static inline uint64_t bl_align_up(uint64_t v, uint64_t align) /* align: power of two; v + align must not wrap */
{
    return (v + align - 1) & ~(align - 1);
}
size_t bl_page_bytes(void);

/* calloc(n, size) with the wrap check made by us, and malloc'ed copies. */
void *bl_calloc(size_t n, size_t size);

/* Zeroed anonymous pages; bytes is rounded up to whole pages. Blocks of 2 MiB or more begin at such a multiple and ask for
 * huge pages. */
enum bl_status bl_pages_alloc(size_t bytes, void **out);
void bl_pages_free(void *p, size_t bytes); /* NULL is fine */
const char *bl_pages_huge(void); /* what the system does with the wish: "always", "madvise" (granted), "never", "unknown" */

/* Bump arena: chunks of at least 64 KiB, 16-byte aligned pieces, gaps poisoned under ASan. Zeroed = empty. */
struct bl_arena {
    struct bl_arena_chunk *last;
    uint64_t taken_bytes; /* what the chunks occupy */
};
void *bl_arena_alloc(struct bl_arena *, size_t bytes);                 /* zeroed; NULL when out of memory */
char *bl_arena_string(struct bl_arena *, const char *s, size_t bytes); /* copy + NUL */
void bl_arena_finish(struct bl_arena *);

#endif
