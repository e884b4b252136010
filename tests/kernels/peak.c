/* SPDX-License-Identifier: MIT */
/* The yardstick of matrix products: multiply-adds a second of a loop that touches nothing but
 * registers, in as many independent sums as it takes. */
#include <time.h>

#include "check.h"

#if defined(__x86_64__)

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Operands are zero: what registers happen to hold may be subnormal, and slow. */
#define ON_20_ZMM(instruction)                                                                     \
    __asm__ volatile("vpxord %%zmm30,%%zmm30,%%zmm30\n\t"                                          \
                     ".irp sum,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19\n\t"              \
                     "vpxord %%zmm\\sum,%%zmm\\sum,%%zmm\\sum\n\t.endr\n"                          \
                     "1:\n\t"                                                                      \
                     ".irp sum,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19\n\t" instruction  \
                     " %%zmm30,%%zmm30,%%zmm\\sum\n\t.endr\n\t"                                    \
                     "dec %0\n\tjnz 1b"                                                            \
                     : "+r"(n)                                                                     \
                     :                                                                             \
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",     \
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16",      \
                       "xmm17", "xmm18", "xmm19", "xmm30", "cc")

__attribute__((target("avx512f,avx512bw,avx512vnni"))) static void dots_512(long n)
{
    ON_20_ZMM("vpdpbusd");
}
__attribute__((target("avx512f"))) static void fmas_512(long n)
{
    ON_20_ZMM("vfmadd231ps");
}
/* Each sum is of 32 products: vpmaddubsw, a multiplication by ones, an addition. */
__attribute__((target("avx2"))) static void dots_256(long n)
{
    __asm__ volatile("vpxor %%ymm14,%%ymm14,%%ymm14\n\t"
                     ".irp sum,0,1,2,3,4,5,6\n\tvpxor %%ymm\\sum,%%ymm\\sum,%%ymm\\sum\n\t.endr\n"
                     "1:\n\t"
                     ".irp sum,0,1,2,3,4,5,6\n\t"
                     "vpmaddubsw %%ymm14,%%ymm14,%%ymm15\n\t"
                     "vpmaddwd %%ymm14,%%ymm15,%%ymm15\n\t"
                     "vpaddd %%ymm15,%%ymm\\sum,%%ymm\\sum\n\t.endr\n\t"
                     "dec %0\n\tjnz 1b"
                     : "+r"(n)
                     :
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm14", "xmm15",
                       "cc");
}
__attribute__((target("avx2,fma"))) static void fmas_256(long n)
{
    __asm__ volatile(".irp sum,0,1,2,3,4,5,6,7,8,9,10,11,14\n\t"
                     "vpxor %%ymm\\sum,%%ymm\\sum,%%ymm\\sum\n\t.endr\n"
                     "1:\n\t"
                     ".irp sum,0,1,2,3,4,5,6,7,8,9,10,11\n\t"
                     "vfmadd231ps %%ymm14,%%ymm14,%%ymm\\sum\n\t.endr\n\t"
                     "dec %0\n\tjnz 1b"
                     : "+r"(n)
                     :
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm14", "cc");
}

double bench_peak(unsigned flags, bool floats)
{
    const struct {
        unsigned flag;
        void (*run)(long);
        double macs; /* a turn */
    } loops[2][2] = {{{BL_CPU_AVX512, dots_512, 20 * 64}, {BL_CPU_AVX2, dots_256, 7 * 32}},
                     {{BL_CPU_AVX512, fmas_512, 20 * 16}, {BL_CPU_AVX2, fmas_256, 12 * 8}}};
    enum { TURNS = 40000 };
    for (int i = 0; i < 2; i++)
        if (flags & loops[floats][i].flag) {
            const double start = seconds();
            loops[floats][i].run(TURNS);
            return TURNS * loops[floats][i].macs / (seconds() - start);
        }
    return 0;
}

#else

double bench_peak(unsigned flags, bool floats)
{
    (void)flags, (void)floats;
    return 0;
}

#endif
