#include "linear_bf16.h"
#include "scalar_bf16.h"

namespace tp {

void bf16_block_portable(const Bf16Product& product, int64_t block) {
    const int64_t output = block * BLOCK_OUTPUTS;
    for (int64_t row = 0; row < product.rows; ++row) {
        const uint16_t* x = product.x + row * product.x_stride;
        const uint16_t* weights = product.packed + output * product.inputs;
        float sums[BLOCK_OUTPUTS] = {};
        for (int64_t input = 0; input < product.inputs; input += 2, weights += 2 * BLOCK_OUTPUTS) {
            const float even = wide(x[input]), odd = wide(x[input + 1]);
            for (int lane = 0; lane < BLOCK_OUTPUTS; ++lane) {
                sums[lane] += even * wide(weights[2 * lane]) + odd * wide(weights[2 * lane + 1]);
            }
        }
        store_row(product, sums, row, output);
    }
}

}  // namespace tp
