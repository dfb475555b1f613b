#include "norms/rotary.h"

#include <algorithm>

#include "threads/team.h"

namespace tp {
namespace {

constexpr int64_t PIECE_NUMBERS = 8 << 10;  // below this a loop over threads takes longer than it saves

void rotate_range(const void* argument, int64_t first, int64_t last) {
    const auto& rotation = *static_cast<const Rotation*>(argument);
#if defined(__x86_64__)
    switch (tp_level()) {
        case TP_PORTABLE:
            break;
        case TP_AVX2:
            return rotate_tokens_avx2(rotation, first, last);
        default:
            return rotate_tokens_avx512(rotation, first, last);
    }
#endif
    rotate_tokens_portable(rotation, first, last);
}

}  // namespace
}  // namespace tp

extern "C" void tp_rotate_and_store(const TpHeads* heads, const TpRows* rows, uint16_t* qkv, int64_t qkv_stride,
                                    void* kv_layer) {
    const tp::Rotation rotation{heads, rows, qkv, qkv_stride, static_cast<char*>(kv_layer), tp::KvLayout(*heads)};
    const int64_t width = (heads->query_heads + (heads->keys_only ? 1 : 2) * heads->kv_heads) * heads->head_dim;
    const int64_t grain = std::max<int64_t>(1, tp::PIECE_NUMBERS / width);
    if (rows->tokens <= grain) {
        tp::rotate_range(&rotation, 0, rows->tokens);
    } else {
        tp::run(tp::rotate_range, &rotation, rows->tokens, grain);
    }
}
