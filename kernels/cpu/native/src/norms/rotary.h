// Head norms, rotary positions, and keys and values into their slots, by level. See rotary.cpp.
#pragma once

#include <cstdint>

#include "turnpike.h"

namespace tp {

constexpr int64_t BLOCK_TOKENS = 16;   // of KV
constexpr int64_t MOST_HEAD_DIM = 576;  // a latent of 512 and 64 rotated dimensions

// Where a layer's keys and values lie, in bytes: see `TpKv`.
struct KvLayout {
    int64_t head, token, block;  // bytes of a key or value, of a token, and from a block to the next
    int64_t scales;              // where they begin in a block, if it has some
    bool scaled, keys_only;

    explicit KvLayout(const TpHeads& heads)
        : head(heads.head_dim * (heads.kv == TP_KV_INT8 ? 1 : 2)),
          token((heads.keys_only ? 1 : 2) * heads.kv_heads * head),
          block(heads.kv_block_bytes > 0 ? heads.kv_block_bytes : BLOCK_TOKENS * token + bytes_of_scales(heads)),
          scales(BLOCK_TOKENS * token),
          scaled(heads.kv == TP_KV_INT8),
          keys_only(heads.keys_only != 0) {}

    int64_t values() const { return keys_only ? 0 : token / 2; }  // after the token's keys

    // Of a head in a block: scales of its keys, then of its values.
    int64_t scales_of_head() const { return scales_of_head(keys_only); }
    int64_t value_scales() const { return keys_only ? 0 : BLOCK_TOKENS; }

  private:
    static int64_t scales_of_head(bool keys_only) { return (keys_only ? 1 : 2) * BLOCK_TOKENS; }
    static int64_t bytes_of_scales(const TpHeads& heads) {
        return heads.kv == TP_KV_INT8 ? heads.kv_heads * scales_of_head(heads.keys_only != 0) * 2 : 0;
    }
};

struct Rotation {
    const TpHeads* heads;
    const TpRows* rows;
    uint16_t* qkv;
    int64_t qkv_stride;
    char* kv_layer;
    KvLayout kv;
};

// Tokens [first, last) of the step.
void rotate_tokens_portable(const Rotation& rotation, int64_t first, int64_t last);
#if defined(__x86_64__)
void rotate_tokens_avx2(const Rotation& rotation, int64_t first, int64_t last);
void rotate_tokens_avx512(const Rotation& rotation, int64_t first, int64_t last);
#endif

}  // namespace tp
