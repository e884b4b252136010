/* SPDX-License-Identifier: MIT */
/* MATMUL, MATMUL_HEADS and EXPERTS for few tokens. */
#include "simt/matvec.hpp"

BL_QUANT_B(BL_MATVEC)
