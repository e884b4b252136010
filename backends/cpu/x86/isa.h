/* SPDX-License-Identifier: MIT */
/* isa.h — the pieces an instruction set's table is filled from.
 *
 * Purpose   an instruction set has several files (float vectors, dots by family of types); each exports one function,
 *           called by the set's bl_cpu_<isa>. Included by files compiled for that instruction set only.
 * Ownership none.
 * Units     none.
 * Errors    none.
 * Threads   as cpu_kernels.h.
 */
#ifndef BL_X86_ISA_H
#define BL_X86_ISA_H

#include "../cpu_kernels.h"

/* What is compiled for each tier of avx2_tier.h: */
#define BL_TIER_FILES(tier)                                                                        \
    void bl_cpu_##tier##_dot32(struct bl_cpu_kernels *);  /* blocks of 32 */                       \
    void bl_cpu_##tier##_kquant(struct bl_cpu_kernels *); /* Q2_K to Q6_K */                       \
    void bl_cpu_##tier##_iquant(struct bl_cpu_kernels *); /* IQ4_XS and the codebook types */      \
    void bl_cpu_##tier##_lowbit(struct bl_cpu_kernels *); /* ternary, one and two bits, NVFP4 */   \
    void bl_cpu_##tier##_panel(struct bl_cpu_kernels *);  /* packed panels, after panel_f32 */
BL_TIER_FILES(avx2)
BL_TIER_FILES(avxvnni)
BL_TIER_FILES(vnni256)
void bl_cpu_avx2_float(struct bl_cpu_kernels *);     /* dots of float types */
void bl_cpu_avx2_panel_f32(struct bl_cpu_kernels *); /* after the dots */
void bl_cpu_avx2_attend(struct bl_cpu_kernels *);  /* attention by tiles of queries */
void bl_cpu_avx2_few(struct bl_cpu_kernels *);     /* attention of few queries, after attend */
void bl_cpu_avx2_recurrent(struct bl_cpu_kernels *); /* the delta rule in chunks, convolutions, CHOOSE */
void bl_cpu_avx512_dot32(struct bl_cpu_kernels *);
void bl_cpu_avx512_kquant(struct bl_cpu_kernels *);
void bl_cpu_avx512_iquant(struct bl_cpu_kernels *); /* IQ4_XS, IQ3, IQ2 */
void bl_cpu_avx512_lowbit(struct bl_cpu_kernels *); /* IQ1 and other types of one or two bits */
void bl_cpu_avx512_panel(struct bl_cpu_kernels *); /* all types */
/* the same with one row at a time, of types that then still decode faster than memory reads */
void bl_cpu_avx512_dot32_one(struct bl_cpu_kernels *);
void bl_cpu_avx512_kquant_one(struct bl_cpu_kernels *);
void bl_cpu_avx512_iquant_one(struct bl_cpu_kernels *);
void bl_cpu_avx512_attend(struct bl_cpu_kernels *);
void bl_cpu_avx512_few(struct bl_cpu_kernels *);
void bl_cpu_avx512_recurrent(struct bl_cpu_kernels *);

#endif
