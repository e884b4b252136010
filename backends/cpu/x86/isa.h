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

void bl_cpu_avx2_dot32(struct bl_cpu_kernels *);   /* float types and blocks of 32 */
void bl_cpu_avx2_kquant(struct bl_cpu_kernels *);  /* Q2_K to Q6_K */
void bl_cpu_avx2_iquant(struct bl_cpu_kernels *);  /* IQ4_XS and the codebook types */
void bl_cpu_avx2_panel_f32(struct bl_cpu_kernels *); /* after the dots */
void bl_cpu_avx2_panel(struct bl_cpu_kernels *);   /* packed panels, after panel_f32 */
void bl_cpu_avx2_attend(struct bl_cpu_kernels *);  /* attention by tiles of queries */
void bl_cpu_avx2_few(struct bl_cpu_kernels *);     /* attention of few queries, after attend */
void bl_cpu_avx2_recurrent(struct bl_cpu_kernels *); /* the delta rule in chunks, convolutions */
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
