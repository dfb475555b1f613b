// What packers of ggml's blocks share.
#pragma once

#include "products/blocks_pack.h"

namespace tp {

// The stored block of an output that has the input: `weights` numbers in `bytes` bytes.
inline const uint8_t* stored_block(const void* rows, int64_t inputs, int64_t output, int64_t input, int64_t weights,
                                   int64_t bytes) {
    return static_cast<const uint8_t*>(rows) + (output * (inputs / weights) + input / weights) * bytes;
}

// Nibbles of 32 weights in 16 bytes: weights 0..15 in the lower halves, 16..31 in the upper.
inline uint32_t stored_nibble(const uint8_t* nibbles, int64_t input) { return nibbles[input % 16] >> (input / 16 * 4) & 15; }

}  // namespace tp
