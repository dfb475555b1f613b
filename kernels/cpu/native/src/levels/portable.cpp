// All that is compiled for any processor, but products of small numbers (products/blocks_portable.cpp). Each concern has a
// namespace of its own, with vectors as wide as suit it.
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "adapters/low_rank.h"
#include "attention/attention.h"
#include "attention/attention_ahead.h"
#include "delta/delta.h"
#include "logits/logits.h"
#include "norms/norms.h"
#include "norms/rotary.h"
#include "products/bf16.h"
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

namespace delta_level {

#define REGISTER_BYTES 16
#include "levels/vectors.h"

#include "delta/delta_tasks.inl"

#undef REGISTER_BYTES

}  // namespace delta_level

namespace adapters_level {

#define REGISTER_BYTES 16
#include "levels/vectors.h"

constexpr int SHRUNK_TOKENS = 2;  // 8 sums, 2 weights and an input of 16 registers

#include "adapters/low_rank_rows.inl"

#undef REGISTER_BYTES

}  // namespace adapters_level

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

void shrink_block_portable(const Shrink& shrink, int64_t block, int64_t first, int64_t last) {
    adapters_level::shrink_block(shrink, block, first, last);
}

void expand_portable(const Added* added, int64_t rows, int64_t half, float* sums) {
    adapters_level::expand(added, rows, half, sums);
}

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
