/* SPDX-License-Identifier: MIT */
/* Grids on the CPU: fibres, meetings of lanes, barriers, and what sanitizers must be told of them. */
#include "simt/simt_args.h"

#include "host_kernels.h"
#include "simt_host.hpp"

#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The runtime itself is not looked at. ASan is told which stack is in use; frames of functions that never return would stay
 * poisoned on it. TSan is told only the order that barriers and meetings make, by release and acquire. */
#define ON_ASAN(...)
#define ON_TSAN(...)
#define UNSEEN
#if defined(__SANITIZE_ADDRESS__)
#undef ON_ASAN
#undef UNSEEN
#define ON_ASAN(...) __VA_ARGS__
#define UNSEEN __attribute__((no_sanitize_address))
#include <sanitizer/asan_interface.h>
#elif defined(__SANITIZE_THREAD__)
#undef ON_TSAN
#undef UNSEEN
#define ON_TSAN(...) __VA_ARGS__
#define UNSEEN __attribute__((no_sanitize_thread))
#include <sanitizer/tsan_interface.h>
#endif

#if defined(__aarch64__)
typedef __fp16 half_float;
#else
typedef _Float16 half_float;
#endif

enum { STACK = 128 << 10, MOST_THREADS = 1024 };
enum state : uint8_t { RUNS, WAITS, LEFT };

struct warp {
    uint64_t slot[2][BL_WARP]; /* two by turns: a lane may be at the next meeting while others read */
    uint64_t order[2];         /* sync objects */
    uint32_t lanes, here, left, turn, line;
    bl_host_meeting why;
};
struct fibre {
    void *sp;
    bl_host_at at;
    struct warp *warp;
    char *stack;
    state what;
    ON_ASAN(void *fake;)
    ON_TSAN(void *tsan;)
};
struct engine { /* of an OS thread */
    fibre f[MOST_THREADS];
    warp w[MOST_THREADS / BL_WARP];
    fibre *now;
    uint32_t n, live, waiting, arrived, turn, line;
    uint64_t order[2], begin, end; /* sync objects: barriers, of the block */
    const bl_host_kernel *kernel;
    const bl_simt_args *args;
    void *host_sp;
    char *stacks;
    char why[160];
    ON_ASAN(void *host_fake; const void *host_stack; size_t host_stack_bytes;)
    ON_TSAN(void *host_tsan;)
};
static thread_local engine *mine;
__thread bl_host_at *bl_host_here;

/* ---- switching ---- */

extern "C" void bl_host_swap(void **from, void *to);
extern "C" void bl_host_entry(void);
extern "C" [[noreturn]] void bl_host_entered(void);
#if defined(__x86_64__)
__asm__(".text\n.globl bl_host_swap\n.hidden bl_host_swap\n.type bl_host_swap,@function\n"
        "bl_host_swap:\n push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        " mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
        " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
        ".size bl_host_swap,.-bl_host_swap\n"
        ".globl bl_host_entry\n.hidden bl_host_entry\n.type bl_host_entry,@function\n"
        "bl_host_entry:\n xor %ebp,%ebp\n and $-16,%rsp\n call bl_host_entered\n ud2\n"
        ".size bl_host_entry,.-bl_host_entry\n");
enum { SAVED = 6, RETURN_AT = 6 };
#elif defined(__aarch64__)
__asm__(".text\n.globl bl_host_swap\n.hidden bl_host_swap\n.type bl_host_swap,%function\n"
        "bl_host_swap:\n sub sp,sp,#160\n stp x19,x20,[sp]\n stp x21,x22,[sp,#16]\n"
        " stp x23,x24,[sp,#32]\n stp x25,x26,[sp,#48]\n stp x27,x28,[sp,#64]\n stp x29,x30,[sp,#80]\n"
        " stp d8,d9,[sp,#96]\n stp d10,d11,[sp,#112]\n stp d12,d13,[sp,#128]\n stp d14,d15,[sp,#144]\n"
        " mov x9,sp\n str x9,[x0]\n mov sp,x1\n"
        " ldp x19,x20,[sp]\n ldp x21,x22,[sp,#16]\n ldp x23,x24,[sp,#32]\n ldp x25,x26,[sp,#48]\n"
        " ldp x27,x28,[sp,#64]\n ldp x29,x30,[sp,#80]\n ldp d8,d9,[sp,#96]\n ldp d10,d11,[sp,#112]\n"
        " ldp d12,d13,[sp,#128]\n ldp d14,d15,[sp,#144]\n add sp,sp,#160\n ret\n"
        ".size bl_host_swap,.-bl_host_swap\n"
        ".globl bl_host_entry\n.hidden bl_host_entry\n.type bl_host_entry,%function\n"
        "bl_host_entry:\n mov x29,#0\n mov x30,#0\n b bl_host_entered\n"
        ".size bl_host_entry,.-bl_host_entry\n");
enum { SAVED = 20, RETURN_AT = 11 };
#else
#error "fibres are written for x86-64 and aarch64"
#endif

UNSEEN static void go(fibre *to)
{
    engine *e = mine;
    fibre *from = e->now;
    if (from == to)
        return;
    e->now = to;
    bl_host_here = &to->at;
    ON_ASAN(__sanitizer_start_switch_fiber(&from->fake, to->stack, STACK);)
    ON_TSAN(__tsan_switch_to_fiber(to->tsan, __tsan_switch_to_fiber_no_sync);)
    bl_host_swap(&from->sp, to->sp);
    ON_ASAN(__sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);)
}

[[noreturn]] UNSEEN static void leave_grid()
{
    engine *e = mine;
    void *unused;
    ON_ASAN(__sanitizer_start_switch_fiber(nullptr, e->host_stack, e->host_stack_bytes);)
    ON_TSAN(__tsan_release(&e->end); __tsan_switch_to_fiber(e->host_tsan, __tsan_switch_to_fiber_no_sync);)
    bl_host_swap(&unused, e->host_sp);
    __builtin_unreachable();
}

[[noreturn]] UNSEEN static void stop(const char *why)
{
    const bl_host_at *at = bl_host_here;
    snprintf(mine->why, sizeof mine->why, "%s: %s (block %u,%u,%u, thread %u)", mine->kernel->name, why,
             at->block[0], at->block[1], at->block[2], at->thread);
    leave_grid();
}

/* The next thread in turn that can go on, or null. */
UNSEEN static fibre *next_that_runs()
{
    engine *e = mine;
    uint32_t i = e->now->at.thread;
    for (uint32_t k = 0; k < e->n; k++) {
        i = i + 1 == e->n ? 0 : i + 1;
        if (e->f[i].what == RUNS)
            return &e->f[i];
    }
    return nullptr;
}

UNSEEN static void wait_for_others(const char *deadlock)
{
    engine *e = mine;
    e->now->what = WAITS;
    e->waiting++;
    fibre *next = next_that_runs();
    if (!next)
        stop(deadlock);
    go(next);
}

UNSEEN static void release(fibre *f, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (f[i].what == WAITS) {
            f[i].what = RUNS;
            mine->waiting--;
        }
}

/* ---- barriers and meetings ---- */

UNSEEN void bl_host_sync(uint32_t line)
{
    engine *e = mine;
    ON_TSAN(const uint32_t turn = e->turn; __tsan_release(&e->order[turn & 1]);)
    if (e->live < e->n)
        stop("a barrier that some threads never reach: they have left");
    if (e->arrived == 0)
        e->line = line;
    else if (e->line != line)
        stop("threads of one block came to different barriers");
    if (++e->arrived == e->n) {
        e->arrived = 0;
        e->turn++;
        release(e->f, e->n);
    } else {
        wait_for_others("threads wait at a barrier, others at a warp's meeting");
    }
    ON_TSAN(__tsan_acquire(&e->order[turn & 1]);)
}

UNSEEN const uint64_t *bl_host_meet(uint64_t brought, bl_host_meeting why, uint32_t line)
{
    engine *e = mine;
    fibre *me = e->now;
    warp *w = me->warp;
    const uint32_t turn = w->turn, lane = me->at.thread % BL_WARP;
    if (w->left)
        stop("a meeting of a warp of which lanes have left");
    if (w->here == 0) {
        w->why = why;
        w->line = line;
    } else if (w->why != why || w->line != line)
        stop("lanes of one warp came to different meetings");
    w->slot[turn & 1][lane] = brought;
    ON_TSAN(__tsan_release(&w->order[turn & 1]);)
    if (++w->here == w->lanes) {
        w->here = 0;
        w->turn++;
        release(&e->f[me->at.thread - lane], w->lanes);
    } else {
        wait_for_others("lanes wait for their warp's meeting, others at a barrier");
    }
    ON_TSAN(__tsan_acquire(&w->order[turn & 1]);)
    return w->slot[turn & 1];
}

/* ---- a block ---- */

extern "C" [[noreturn]] UNSEEN void bl_host_entered(void)
{
    engine *e = mine;
    ON_ASAN(const void *from; size_t from_bytes; __sanitizer_finish_switch_fiber(nullptr, &from, &from_bytes);
            if (!e->host_stack) e->host_stack = from, e->host_stack_bytes = from_bytes;)
    ON_TSAN(__tsan_acquire(&e->begin);)
    e->kernel->body(*e->args);
    ON_TSAN(__tsan_release(&e->end);)
    fibre *me = e->now;
    me->what = LEFT;
    me->warp->left++;
    e->live--;
    if (e->arrived)
        stop("a thread leaves while others wait at a barrier");
    if (me->warp->here)
        stop("a lane leaves while its warp waits to meet");
    if (!e->live)
        leave_grid();
    fibre *next = next_that_runs();
    if (!next)
        stop("no thread can go on");
    void *unused;
    e->now = next;
    bl_host_here = &next->at;
    ON_ASAN(__sanitizer_start_switch_fiber(nullptr, next->stack, STACK);)
    ON_TSAN(__tsan_switch_to_fiber(next->tsan, __tsan_switch_to_fiber_no_sync);)
    bl_host_swap(&unused, next->sp);
    __builtin_unreachable();
}

UNSEEN static void prepare(fibre *f)
{
    /* tops of stacks apart by lines, so that they do not all meet in one set of a cache */
    char *top = f->stack + STACK - 256 - (f->at.thread * 192 & 0xfc0);
    void **p = reinterpret_cast<void **>(top) - SAVED - 2;
    memset(p, 0, (SAVED + 2) * sizeof *p);
    p[RETURN_AT] = reinterpret_cast<void *>(bl_host_entry);
    f->sp = p;
    f->what = RUNS;
}

/* Whoever was in the middle goes no further. */
UNSEEN static void forget_fibres(engine *e)
{
    ON_ASAN(__asan_unpoison_memory_region(e->stacks, static_cast<size_t>(e->n) * STACK);)
    ON_TSAN(for (int i = 0; i < 2; i++) {
        __tsan_acquire(&e->order[i]);
        for (warp &w : e->w)
            __tsan_acquire(&w.order[i]);
    })
    (void)e;
}

UNSEEN static void run_block(engine *e, const uint32_t block[3])
{
    for (uint32_t i = 0; i < e->n; i++) {
        fibre *f = &e->f[i];
        f->at.thread = i;
        memcpy(f->at.block, block, sizeof f->at.block);
        f->warp = &e->w[i / BL_WARP];
        prepare(f);
    }
    for (uint32_t i = 0; i < e->n; i += BL_WARP) {
        warp *w = &e->w[i / BL_WARP];
        memset(w->slot, 0xff, sizeof w->slot);
        w->lanes = e->n - i < BL_WARP ? e->n - i : BL_WARP;
        w->here = w->left = 0;
    }
    e->live = e->n;
    e->waiting = e->arrived = 0;
    e->now = &e->f[0];
    bl_host_here = &e->now->at;
    ON_TSAN(__tsan_release(&e->begin); e->host_tsan = __tsan_get_current_fiber();)
    ON_ASAN(e->host_stack = nullptr; __sanitizer_start_switch_fiber(&e->host_fake, e->now->stack, STACK);)
    ON_TSAN(__tsan_switch_to_fiber(e->now->tsan, __tsan_switch_to_fiber_no_sync);)
    bl_host_swap(&e->host_sp, e->now->sp);
    ON_ASAN(__sanitizer_finish_switch_fiber(e->host_fake, nullptr, nullptr);)
    ON_TSAN(__tsan_acquire(&e->end);)
    bl_host_here = nullptr;
}

/* ---- grids ---- */

struct engines {
    ~engines()
    {
        if (!mine)
            return;
        ON_TSAN(for (fibre &f : mine->f) if (f.tsan) __tsan_destroy_fiber(f.tsan);)
        munmap(mine->stacks, static_cast<size_t>(MOST_THREADS) * STACK);
        free(mine);
        mine = nullptr;
    }
};
static thread_local engines at_exit;

UNSEEN static engine *engine_here()
{
    if (mine)
        return mine;
    (void)&at_exit;
    engine *e = static_cast<engine *>(calloc(1, sizeof *e));
    void *stacks = mmap(nullptr, static_cast<size_t>(MOST_THREADS) * STACK, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!e || stacks == MAP_FAILED) {
        free(e);
        return nullptr;
    }
    e->stacks = static_cast<char *>(stacks);
    for (uint32_t i = 0; i < MOST_THREADS; i++)
        e->f[i].stack = e->stacks + static_cast<size_t>(i) * STACK;
    return mine = e;
}

UNSEEN static void run_grid(engine *e, const uint32_t grid[3])
{
    uint32_t block[3];
    e->why[0] = 0;
    for (block[2] = 0; block[2] < grid[2]; block[2]++)
        for (block[1] = 0; block[1] < grid[1]; block[1]++)
            for (block[0] = 0; block[0] < grid[0] && !e->why[0]; block[0]++)
                run_block(e, block);
    if (e->why[0])
        forget_fibres(e);
}

extern "C" UNSEEN int bl_host_kernel_run(const bl_host_kernel *k, const void *args, const uint32_t grid[3],
                                         const uint32_t block[3], uint32_t shared_bytes, char *why,
                                         size_t why_bytes)
{
    ON_ASAN(static std::mutex one; std::lock_guard<std::mutex> guard(one);)
    engine *e = engine_here();
    if (!e) {
        snprintf(why, why_bytes, "%s: out of memory for fibres", k->name);
        return -1;
    }
    if (block[0] != k->threads || block[1] != 1 || block[2] != 1 || shared_bytes) {
        snprintf(why, why_bytes, "%s: launched with blocks of %u, %u, %u, %u bytes shared; made for %u",
                 k->name, block[0], block[1], block[2], shared_bytes, k->threads);
        return -1;
    }
    bl_simt_args copy;
    memcpy(&copy, args, sizeof copy);
    e->n = block[0];
    e->kernel = k;
    e->args = &copy;
    ON_TSAN(for (uint32_t i = 0; i < e->n; i++) if (!e->f[i].tsan) e->f[i].tsan = __tsan_create_fiber(0);)
    run_grid(e, grid);
    snprintf(why, why_bytes, "%s", e->why);
    return e->why[0] ? -1 : 0;
}

/* ---- the list ---- */

static const bl_host_kernel *first;

bl_host_kernel::bl_host_kernel(const char *from, const char *called, bl_host_body *what, unsigned n)
    : file(from), name(called), body(what), threads(n), next(first)
{
    first = this;
}

static bool is_unit(const char *file, const char *unit)
{
    const char *base = strrchr(file, '/');
    base = base ? base + 1 : file;
    const size_t n = strlen(unit);
    return !strncmp(base, unit, n) && base[n] == '.';
}

extern "C" const bl_host_kernel *bl_host_kernel_find(const char *unit, const char *name)
{
    for (const bl_host_kernel *k = first; k; k = k->next)
        if (!strcmp(k->name, name) && is_unit(k->file, unit))
            return k;
    return nullptr;
}

extern "C" unsigned bl_host_warp(void)
{
    return BL_WARP;
}

extern "C" size_t bl_host_kernel_args_bytes(const bl_host_kernel *)
{
    return sizeof(bl_simt_args);
}

extern "C" unsigned bl_host_kernel_max_threads(const bl_host_kernel *k)
{
    return k->threads;
}

extern "C" size_t bl_host_kernel_static_shared(const bl_host_kernel *)
{
    return 0;
}

float bl_host_half_to_float(uint16_t h)
{
    half_float v;
    memcpy(&v, &h, sizeof v);
    return static_cast<float>(v);
}

uint16_t bl_host_float_to_half(float f)
{
    const half_float v = static_cast<half_float>(f);
    uint16_t h;
    memcpy(&h, &v, sizeof h);
    return h;
}
