// Products of which some rows have a low-rank change. See adapted.cpp.
#pragma once

#include "turnpike.h"

namespace tp {

// Bytes of scratch, aligned to 64, of the product with the number `product` of any layer with these rows.
int64_t adapted_product_scratch_bytes(const TpLinear& linear, const TpRows& rows);

// As `tp_product`, of the tokens of `rows`, with the changes that its adapters have for `product`: 4 layer + TpAdapted.
void adapted_product(const TpLinear& linear, const TpRows& rows, int64_t product, const uint16_t* x, int64_t x_stride,
                     TpStore store, void* y, int64_t y_stride, void* scratch);

}  // namespace tp
