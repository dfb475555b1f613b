// Head norms, rotary positions, and keys and values into their slots, by level. See rotary.cpp.
#pragma once

#include <cstdint>

#include "turnpike.h"

namespace tp {

constexpr int64_t BLOCK_TOKENS = 16;   // of KV
constexpr int64_t MOST_HEAD_DIM = 512;

struct Rotation {
    const TpHeads* heads;
    const TpRows* rows;
    uint16_t* qkv;
    int64_t qkv_stride;
    uint16_t* kv_layer;
};

// Tokens [first, last) of the step.
void rotate_tokens_portable(const Rotation& rotation, int64_t first, int64_t last);
#if defined(__x86_64__)
void rotate_tokens_avx2(const Rotation& rotation, int64_t first, int64_t last);
void rotate_tokens_avx512(const Rotation& rotation, int64_t first, int64_t last);
#endif

}  // namespace tp
