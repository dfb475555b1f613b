// The interface of a weight format for `tp_product`, and the arguments of its kernels. See product.cpp.
#pragma once

#include <cstdint>

#include "adapters/low_rank.h"
#include "turnpike.h"

namespace tp {

constexpr int64_t BLOCK_OUTPUTS = 32;  // outputs that a kernel computes at a time, in every format

// One product with one weight. `prepared` is what `Format::prepare` made of each row, `prepared_bytes` apart, where the
// format wants that. `added`: of each row, what its adapter adds to the sums before anything else is; null: no row has one.
struct Product {
    const TpWeight* weight;
    const uint16_t* x;
    int64_t x_stride, rows;
    const char* prepared;
    int64_t prepared_bytes;
    TpStore store;
    void* y;  // at the weight's own first output
    int64_t y_stride;
    int64_t next_block;  // this thread's next block, to be prefetched; -1: unknown
    bool follows;        // whether this block was some block's next
    const Added* added = nullptr;
    Expand expand = nullptr;
    int64_t first_half = 0;  // of the weight's outputs among the halves of all of the product's
};

// A format at one level of the processor. Outputs are filled up to whole blocks; what is past them is not stored.
struct Format {
    int64_t (*packed_bytes)(int64_t outputs, int64_t inputs);  // -1: it cannot hold the shape
    void (*pack)(const void* rows, int64_t outputs, int64_t inputs, void* packed);
    void (*unpack_row)(const void* packed, int64_t outputs, int64_t inputs, int64_t output, float* numbers);
    int64_t (*prepared_bytes)(int64_t inputs);  // of a row; 0: the product takes x as it is
    void (*prepare)(const TpWeight& weight, const uint16_t* x, char* prepared);
    void (*block)(const Product& product, int64_t block);  // all rows of outputs [32 block, 32 block + 32)
};

// How a format is kept must not depend on the level: weights outlive a call of `tp_use_level`.
const Format* bf16_format(int32_t level);
const Format* int8_format(int32_t level);
const Format* int4_format(int32_t level);
const Format* gguf_format(int32_t format, int32_t level);
const Format* gguf_super_format(int32_t format, int32_t level);
const Format* float8_format(int32_t format, int32_t level);
const Format* w8a8_format(int32_t level);
const Format* zero_points_format(int32_t format, int32_t level);

}  // namespace tp
