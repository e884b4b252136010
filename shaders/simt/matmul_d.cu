/* SPDX-License-Identifier: MIT */
/* MATMUL, MATMUL_HEADS and EXPERTS for many tokens. */
#include "simt/matmul.hpp"

BL_QUANT_D(BL_MATMUL)
