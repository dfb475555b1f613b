// All that is compiled for any processor. Each concern has a namespace of its own, with vectors as wide as suit it.
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "attention/attention.h"
#include "attention/attention_ahead.h"
#include "delta/delta.h"
#include "logits/logits.h"
#include "norms/norms.h"
#include "norms/rotary.h"
#include "products/bf16.h"
#include "products/blocks.h"
#include "turnpike.h"

namespace tp {
namespace {

namespace attention_level {

#define REGISTER_BYTES 16
#include "levels/vectors.h"

constexpr int TILE_ROWS = 2, SCORE_BLOCKS = 1;  // 8 sums, 4 vectors of keys and one of a query: of 16 registers
constexpr int VALUE_VECTORS = 2, WIDE_VECTORS = 2, WIDE_ROWS = 2;  // 8 sums

#include "attention/attention_scores.inl"
#include "attention/attention_kept.inl"
#include "attention/attention_values.inl"
#include "attention/attention_tile.inl"

#undef REGISTER_BYTES

}  // namespace attention_level

namespace bf16_level {

#include "levels/vectors.h"
#include "products/store.h"

constexpr int VECTOR_BYTES = 16;

#include "products/bf16_vectors.inl"

#undef REGISTER_BYTES

}  // namespace bf16_level

namespace blocks_level {

#include "levels/vectors.h"
#include "products/store.h"
#include "products/blocks_words.inl"

template <typename Table>
inline Pairs chosen(Pairs index) {
    for (int i = 0; i < 2 * LANES; ++i) {
        index[i] = static_cast<int16_t>(Table::at(index[i]));
    }
    return index;
}

#include "products/blocks_plain.inl"

inline void add_bf16_product(FloatSums& sums, Pairs weights, int32_t pair) {
    const auto both = reinterpret_cast<Words>(weights);
    const Words pairs = Words{} + static_cast<uint32_t>(pair);
    sums += reinterpret_cast<Floats>(both << 16) * reinterpret_cast<Floats>(pairs << 16);
    sums += reinterpret_cast<Floats>(both & 0xffff0000u) * reinterpret_cast<Floats>(pairs & 0xffff0000u);
}

inline void add_product(IntSums& sums, Pairs weights, int32_t pair) {
    const auto both = reinterpret_cast<Ints>(weights);
    sums += (both << 16 >> 16) * static_cast<int16_t>(pair) + (both >> 16) * (pair >> 16);
}

inline Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }

constexpr int MOST_ROWS = 2, FEW_ROWS = 2, FEW_TILES = 1;
constexpr int UNROLLED = 1;

#include "products/blocks_codings.inl"
#include "products/blocks_int16.inl"
#include "products/blocks_bf16.inl"

template <typename Coding>
using RowsOf = std::conditional_t<Coding::E4M3, Bf16Rows, Int16Rows>;

#include "products/blocks_vectors.inl"

#undef REGISTER_BYTES

}  // namespace blocks_level

namespace delta_level {

#define REGISTER_BYTES 16
#include "levels/vectors.h"

#include "delta/delta_tasks.inl"

#undef REGISTER_BYTES

}  // namespace delta_level

namespace logits_level {

#define REGISTER_BYTES 16
#include "levels/vectors.h"

#include "logits/logits_lanes.inl"

#include "logits/logits_passes.inl"

#include "logits/sampling_passes.inl"

#undef REGISTER_BYTES

}  // namespace logits_level

namespace norms_level {

#define REGISTER_BYTES 16
#include "levels/vectors.h"

#include "norms/norms.inl"
#include "norms/norms_rows.inl"
#include "norms/rotary_rows.inl"

#undef REGISTER_BYTES

}  // namespace norms_level

}  // namespace

const AttentionKernels ATTENTION_PORTABLE[] = {attention_level::KERNELS_OF<attention_level::Bf16>,
                                               attention_level::KERNELS_OF<attention_level::Int8>};

void bf16_block_portable(const Product& product, int64_t block) { bf16_level::all_rows(product, block); }

const BlockKernels BLOCKS_PORTABLE = blocks_level::kernels();

const LogitPasses portable_logit_passes = {logits_level::peak,        logits_level::finite, logits_level::mask, logits_level::mass,
                                           logits_level::count_above, logits_level::split,  logits_level::draw};

void delta_tasks_portable(const Delta& delta, int64_t first, int64_t last) { delta_level::delta_tasks(delta, first, last); }

void gate_rows_portable(const float* gate, int64_t gate_stride, int64_t width, uint16_t* y, int64_t y_stride, int64_t first,
                        int64_t last) {
    delta_level::gate_rows(gate, gate_stride, width, y, y_stride, first, last);
}

void norm_rows_portable(const Norm& norm, int64_t first, int64_t last) { norms_level::norm_rows(norm, first, last); }

void rotate_tokens_portable(const Rotation& rotation, int64_t first, int64_t last) {
    norms_level::rotate_tokens(rotation, first, last);
}

}  // namespace tp
