#include "products/blocks.h"

namespace tp {

const BlockKernels& block_kernels(int32_t level) {
#if defined(__x86_64__)
    if (level >= TP_AVX512_FLOAT) {
        return BLOCKS_AVX512;
    }
    if (level >= TP_AVX512_BF16) {
        return BLOCKS_BF16_AVX512;
    }
    if (level >= TP_AVX2) {
        return BLOCKS_AVX2;
    }
#endif
    static_cast<void>(level);
    return BLOCKS_PORTABLE;
}

}  // namespace tp
