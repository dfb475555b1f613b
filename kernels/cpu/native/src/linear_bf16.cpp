// Products with a weight that is streamed from memory once, whatever the number of rows up to a tile's.
//
// A block is 32 outputs; of these a tile of rows keeps its sums in registers while the weights go by. A block's weights
// stay in the second level of cache for the next tile of rows, so that large products are bound by arithmetic.
#include "linear_bf16.h"

#include <algorithm>

#include "team.h"
#include "turnpike.h"

namespace {

using Block = void (*)(const tp::Bf16Product&, int64_t);

constexpr int64_t BYTES_A_PIECE = 1 << 16;  // of weights: some microseconds, far more than a piece costs to hand out

Block block_of(int32_t level) {
#if defined(__x86_64__)
    if (level >= TP_AVX512_BF16) {
        return tp::bf16_block_avx512;
    }
    if (level >= TP_AVX2) {
        return tp::bf16_block_avx2;
    }
#endif
    return tp::bf16_block_portable;
}

struct Work {
    tp::Bf16Product product;
    Block block;
};

void blocks(const void* argument, int64_t first, int64_t last) {
    const Work& work = *static_cast<const Work*>(argument);
    for (int64_t block = first; block < last; ++block) {
        work.block(work.product, block);
    }
}

int64_t blocks_of(int64_t outputs) { return (outputs + tp::BLOCK_OUTPUTS - 1) / tp::BLOCK_OUTPUTS; }

}  // namespace

extern "C" int64_t tp_bf16_packed_size(int64_t outputs, int64_t inputs) {
    return blocks_of(outputs) * tp::BLOCK_OUTPUTS * inputs;
}

extern "C" void tp_bf16_pack(const uint16_t* weight, int64_t outputs, int64_t inputs, uint16_t* packed) {
    for (int64_t block = 0; block < blocks_of(outputs); ++block) {
        for (int64_t input = 0; input < inputs; input += 2) {
            for (int64_t lane = 0; lane < tp::BLOCK_OUTPUTS; ++lane) {
                const int64_t output = block * tp::BLOCK_OUTPUTS + lane;
                const uint16_t* pair = weight + output * inputs + input;
                *packed++ = output < outputs ? pair[0] : 0;
                *packed++ = output < outputs ? pair[1] : 0;
            }
        }
    }
}

extern "C" void tp_bf16_linear(const uint16_t* packed, int64_t outputs, int64_t inputs, const uint16_t* x,
                               int64_t x_stride, int64_t rows, const float* bias, uint16_t* y, int64_t y_stride) {
    if (rows == 0) {
        return;
    }
    const Work work{{packed, outputs, inputs, x, x_stride, rows, bias, y, y_stride}, block_of(tp_level())};
    const int64_t block_bytes = 2 * tp::BLOCK_OUTPUTS * inputs;
    tp::run(blocks, &work, blocks_of(outputs), std::max<int64_t>(1, BYTES_A_PIECE / block_bytes));
}
