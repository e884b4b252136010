/* SPDX-License-Identifier: MIT */
/* MATMUL, MATMUL_HEADS and EXPERTS for few tokens. */
#include "simt/matvec.hpp"

BL_QUANT_A(BL_MATVEC)
BL_PLAIN(BL_MATVEC_PLAIN)
