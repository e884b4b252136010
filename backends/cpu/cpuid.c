/* SPDX-License-Identifier: MIT */
/* What this processor and its operating system have, and the kernel table that follows from it. */
#include <stdio.h>

#include "cpu_kernels.h"
#include "compiler.h"

#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#define BL_MSAN 1
#endif
#endif

/* Hand-written vector code hides from the memory sanitizer what it initialises: such builds stay
 * scalar. */
#if defined(BL_X86) && !defined(BL_MSAN)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

struct cpuid {
    uint32_t eax, ebx, ecx, edx;
};
static struct cpuid cpuid(uint32_t leaf, uint32_t subleaf)
{
    struct cpuid r = {0};
    if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx))
        return (struct cpuid){0}; /* older than the leaf */
    return r;
}
static bool has(uint32_t reg, uint32_t bits)
{
    return (reg & bits) == bits;
}
/* The registers the system saves on a switch; without that an instruction set must not be used. */
static uint32_t saved_state(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return lo;
}

/* Zen 5 reads one stream of rows at 103 to 107 % of a plain read, where four together give 91 to
 * 95; Emerald Rapids has 79 to 82 % and 90 to 94. */
static bool is_zen5(uint32_t signature)
{
    enum { FAMILY = 0x0ff00f00, ZEN5 = 0x00b00f00 };
    const struct cpuid v = cpuid(0, 0);
    return v.ebx == signature_AMD_ebx && v.ecx == signature_AMD_ecx && (signature & FAMILY) == ZEN5;
}

/* Tiles need the permission of the system, which gives it to the process for good. */
static bool may_use_tiles(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

unsigned bl_cpu_flags(void)
{
    enum {
        XMM_YMM = 1 << 1 | 1 << 2,
        MASKS_ZMM = 1 << 5 | 1 << 6 | 1 << 7,
        TILES = 1 << 17 | 1 << 18,
        AMX = 1 << 24 | 1 << 25, /* tiles and their products of bytes, of leaf 7, EDX */
        AVX_VNNI = 1 << 4,       /* of leaf 7, subleaf 1, EAX */
        AVX512_BF16 = 1 << 5,    /* the same */
        LEAF7_ECX = bit_AVX512VBMI | bit_GFNI | bit_AVX512VNNI,
    };
    const struct cpuid a = cpuid(1, 0), b = cpuid(7, 0), c = cpuid(7, 1);
    unsigned flags = 0;
    if (!has(a.ecx, bit_OSXSAVE | bit_AVX))
        return 0;
    const uint32_t saved = saved_state();
    if (has(saved, XMM_YMM) && has(a.ecx, bit_FMA | bit_F16C) && has(b.ebx, bit_AVX2))
        flags |= BL_CPU_AVX2;
    if (flags && has(c.eax, AVX_VNNI))
        flags |= BL_CPU_AVXVNNI;
    const uint32_t wide = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL | bit_BMI2;
    const bool is_wide = flags && has(saved, MASKS_ZMM) && has(b.ebx, wide);
    if (is_wide && has(b.ecx, bit_AVX512VNNI))
        flags |= BL_CPU_VNNI256;
    if (is_wide && has(b.ecx, LEAF7_ECX))
        flags |= BL_CPU_AVX512;
    if ((flags & BL_CPU_AVX512) && is_zen5(a.eax))
        flags |= BL_CPU_ONE_STREAM;
    if ((flags & BL_CPU_AVX512) && has(c.eax, AVX512_BF16))
        flags |= BL_CPU_BF16;
    if ((flags & BL_CPU_AVX512) && has(saved, TILES) && has(b.edx, AMX) && may_use_tiles() &&
        bl_cpu_amx_works())
        flags |= BL_CPU_AMX;
    return flags;
}
#elif defined(BL_ARM) && !defined(BL_MSAN)
#include <sys/auxv.h>
#include <sys/prctl.h>

unsigned bl_cpu_flags(void)
{
    const unsigned long cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);
    unsigned flags = 0;
    if (!(cap & HWCAP_ASIMDDP))
        return 0;
    flags |= BL_CPU_NEON;
    if (cap2 & HWCAP2_I8MM)
        flags |= BL_CPU_I8MM;
    if (cap & HWCAP_SVE && (prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK) >= 32)
        flags |= BL_CPU_SVE;
    return flags;
}
#else
unsigned bl_cpu_flags(void)
{
    return 0;
}
#endif

void bl_cpu_select(struct bl_cpu_kernels *kernels, unsigned flags)
{
    bl_cpu_scalar(kernels);
    flags &= bl_cpu_flags();
#ifdef BL_X86
    if (flags & BL_CPU_AVX2)
        bl_cpu_avx2(kernels);
    if ((flags & BL_CPU_AVX2) && (flags & BL_CPU_AVXVNNI))
        bl_cpu_avxvnni(kernels);
    if ((flags & BL_CPU_AVX2) && (flags & BL_CPU_VNNI256))
        bl_cpu_vnni256(kernels);
    if (flags & BL_CPU_AVX512)
        bl_cpu_avx512(kernels);
    if ((flags & BL_CPU_AVX512) && (flags & BL_CPU_ONE_STREAM))
        bl_cpu_avx512_one(kernels);
    if ((flags & BL_CPU_AVX512) && (flags & BL_CPU_BF16))
        bl_cpu_avx512_bf16(kernels);
    if ((flags & BL_CPU_AVX512) && (flags & BL_CPU_AMX))
        bl_cpu_amx(kernels);
#endif
#ifdef BL_ARM
    if (flags & BL_CPU_NEON)
        bl_cpu_neon(kernels);
    if (flags & BL_CPU_I8MM)
        bl_cpu_i8mm(kernels);
    if (flags & BL_CPU_SVE)
        bl_cpu_sve(kernels);
#endif
}

struct printer {
    void (*line)(void *arg, const char *text);
    void *arg;
};
static void print(const struct printer *p, const char *prefix, const char *entry,
                  const char *kernel)
{
    char text[128];
    snprintf(text, sizeof text, "%s%-*s  %s", prefix, (int)(8 - strlen(prefix)), entry, kernel);
    p->line(p->arg, text);
}

/* The names of the flags, or "none". */
static void name_flags(char text[64], unsigned flags)
{
    static const struct {
        unsigned flag;
        const char *name;
    } names[] = {{BL_CPU_AVX2, "avx2"},
                 {BL_CPU_AVX512, "avx512"},
                 {BL_CPU_ONE_STREAM, "one-stream"},
                 {BL_CPU_NEON, "neon"},
                 {BL_CPU_I8MM, "i8mm"},
                 {BL_CPU_SVE, "sve"},
                 {BL_CPU_AVXVNNI, "avx-vnni"},
                 {BL_CPU_VNNI256, "vnni-256"},
                 {BL_CPU_AMX, "amx"},
                 {BL_CPU_BF16, "bf16"}};
    size_t n = 0;
    for (size_t i = 0; i < BL_COUNT(names); i++)
        if (flags & names[i].flag)
            n += (size_t)snprintf(text + n, 64 - n, "%s%s", n ? " " : "", names[i].name);
    if (!n)
        snprintf(text, 64, "none");
}

enum bl_status bl_cpu_describe(void (*line)(void *arg, const char *text), void *arg, unsigned mask)
{
    const struct printer p = {line, arg};
    const unsigned flags = bl_cpu_flags() & (mask ? mask : ~0u);
    struct bl_cpu_kernels k;
    char names[64];
    bl_cpu_select(&k, flags);
    name_flags(names, flags);
    print(&p, "", "flags", names);
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        if (k.matmul[t].dot)
            print(&p, "", bl_dtypes[t].name, k.matmul[t].dot_name);
    for (unsigned t = 0; t < BL_N_DTYPES; t++)
        if (k.kv[t].qk)
            print(&p, "kv ", bl_dtypes[t].name, k.kv[t].name);
    print(&p, "", "quantize", k.quantize_name);
    print(&p, "", "norm", k.norm_name);
    print(&p, "", "softmax", k.softmax_name);
    print(&p, "", "glu", k.glu_name);
    print(&p, "", "add", k.add_name);
    print(&p, "", "rope", k.rope_name);
    print(&p, "", "delta_rule", k.delta_name);
    return BL_OK;
}
