/* SPDX-License-Identifier: MIT */
#include "alloc_fail.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/types.h>

static atomic_uint_fast64_t left; /* allocations until the one that fails; 0: off */
static atomic_bool failed;

void alloc_fail_at(uint64_t n)
{
    failed = false;
    left = n;
}

bool alloc_fail_stop(void)
{
    left = 0;
    return failed;
}

static bool fails(void)
{
    uint_fast64_t n = left;
    while (n && !atomic_compare_exchange_weak(&left, &n, n - 1))
        ;
    if (n != 1)
        return false;
    failed = true;
    errno = ENOMEM;
    return true;
}

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return fails() ? NULL : __real_aligned_alloc(align, n);
}

int __real_posix_memalign(void **out, size_t align, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n);
int __wrap_posix_memalign(void **out, size_t align, size_t n)
{
    return fails() ? ENOMEM : __real_posix_memalign(out, align, n);
}

char *__real_strdup(const char *s);
char *__wrap_strdup(const char *s);
char *__wrap_strdup(const char *s)
{
    return fails() ? NULL : __real_strdup(s);
}

void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t off);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t off);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
    return fails() ? MAP_FAILED : __real_mmap(at, n, prot, flags, fd, off);
}
