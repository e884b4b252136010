/* SPDX-License-Identifier: MIT */
#include "mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

bool bl_size_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    if (a && b > UINT64_MAX / a)
        return false;
    *out = a * b;
    return true;
}

bool bl_size_add(uint64_t a, uint64_t b, uint64_t *out)
{
    if (b > UINT64_MAX - a)
        return false;
    *out = a + b;
    return true;
}

size_t bl_page_bytes(void)
{
    long n = sysconf(_SC_PAGESIZE);
    return n > 0 ? (size_t)n : 4096;
}

void *bl_calloc(size_t n, size_t size)
{
    uint64_t bytes;
    if (!bl_size_mul(n, size, &bytes) || bytes > PTRDIFF_MAX)
        return NULL;
    return calloc(1, bytes ? (size_t)bytes : 1); /* NULL always means out of memory */
}

/* ---- pages
 * -------------------------------------------------------------------------------------------- */

enum { HUGE_PAGE_BYTES = 2 << 20 };

/* The mapping's length; 0 when it would wrap. Nothing still takes one page, so that every block has
 * an address. */
static size_t whole_pages(size_t bytes)
{
    size_t page = bl_page_bytes();
    if (bytes > PTRDIFF_MAX - page)
        return 0;
    return (size_t)bl_align_up(bytes ? bytes : 1, page);
}

static void *map_pages(size_t n)
{
    return mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* At a multiple of the huge page's size, for only whole ones can be huge; what lies before and
 * behind is given back. MAP_FAILED when the address space does not allow the detour. */
static void *map_aligned(size_t n)
{
    char *p = map_pages(n + HUGE_PAGE_BYTES);
    if (p == MAP_FAILED)
        return p;
    const size_t before = (size_t)(-(uintptr_t)p % HUGE_PAGE_BYTES);
    if (before)
        munmap(p, before);
    munmap(p + before + n, HUGE_PAGE_BYTES - before);
    return p + before;
}

enum bl_status bl_pages_alloc(size_t bytes, void **out)
{
    size_t n = whole_pages(bytes);
    if (!n)
        return bl_fail(BL_ENOMEM, "out of memory: %zu bytes is more than an address space", bytes);
    void *p = n >= HUGE_PAGE_BYTES ? map_aligned(n) : MAP_FAILED;
    if (p == MAP_FAILED)
        p = map_pages(n);
    if (p == MAP_FAILED)
        return bl_fail(BL_ENOMEM, "out of memory: %zu bytes of pages: %s", n, strerror(errno));
    if (n >= HUGE_PAGE_BYTES)
        madvise(p, n, MADV_HUGEPAGE); /* a wish; kernels built without it refuse */
    *out = p;
    return BL_OK;
}

void bl_pages_free(void *p, size_t bytes)
{
    if (p)
        munmap(p, whole_pages(bytes));
}

const char *bl_pages_huge(void)
{
    static const char *const mode[] = {"[always]", "[madvise]", "[never]"};
    static const char *const text[] = {"always", "madvise", "never"};
    char line[64] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (!f)
        return "unknown";
    const bool read = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    for (size_t i = 0; read && i < sizeof mode / sizeof mode[0]; i++)
        if (strstr(line, mode[i]))
            return text[i];
    return "unknown";
}

/* ---- arena
 * -------------------------------------------------------------------------------------------- */

struct bl_arena_chunk {
    struct bl_arena_chunk *older;
    size_t bytes, used; /* both include this header */
};
enum {
    PIECE_ALIGN = 16,
    CHUNK_BYTES = 64 << 10,
#ifdef BL_ASAN
    GAP_BYTES = 16, /* stays poisoned after every piece */
#else
    GAP_BYTES = 0,
#endif
    HEAD_BYTES = (sizeof(struct bl_arena_chunk) + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN
};

static struct bl_arena_chunk *add_chunk(struct bl_arena *a, size_t piece_bytes)
{
    size_t bytes = HEAD_BYTES + piece_bytes;
    if (bytes < CHUNK_BYTES)
        bytes = CHUNK_BYTES;
    struct bl_arena_chunk *c = calloc(1, bytes);
    if (!c)
        return NULL;
    *c = (struct bl_arena_chunk){a->last, bytes, HEAD_BYTES};
    BL_POISON((char *)c + HEAD_BYTES, bytes - HEAD_BYTES);
    a->last = c;
    a->taken_bytes += bytes;
    return c;
}

void *bl_arena_alloc(struct bl_arena *a, size_t bytes)
{
    if (bytes > PTRDIFF_MAX - CHUNK_BYTES)
        return NULL;
    size_t piece = (size_t)bl_align_up(bytes ? bytes : 1, PIECE_ALIGN) + GAP_BYTES;
    struct bl_arena_chunk *c = a->last;
    if (!c || c->bytes - c->used < piece)
        c = add_chunk(a, piece);
    if (!c)
        return NULL;
    char *p = (char *)c + c->used;
    c->used += piece;
    BL_UNPOISON(p, bytes);
    return p;
}

char *bl_arena_string(struct bl_arena *a, const char *s, size_t bytes)
{
    if (bytes == SIZE_MAX)
        return NULL;
    char *p = bl_arena_alloc(a, bytes + 1);
    if (p && bytes)
        memcpy(p, s, bytes);
    return p; /* zeroed memory: the terminator is there */
}

void bl_arena_finish(struct bl_arena *a)
{
    struct bl_arena_chunk *c = a->last;
    while (c) {
        struct bl_arena_chunk *older = c->older;
        BL_UNPOISON((char *)c + HEAD_BYTES, c->bytes - HEAD_BYTES);
        free(c);
        c = older;
    }
    *a = (struct bl_arena){0};
}
