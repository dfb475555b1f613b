#if defined(__x86_64__)
// What is compiled for AVX-512 with bf16 from sources that all levels share; products are in products/*_avx512.cpp.
#include <immintrin.h>

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
#include "turnpike.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

#define LOGITS_AVX512  // the compiler's own macros do not follow its pragma
#define PAIRS_ARE_MULTIPLIED

namespace tp {
namespace {

namespace attention_level {

#include "levels/vectors.h"

constexpr int TILE_ROWS = 6, SCORE_BLOCKS = 4;  // 24 sums, 4 vectors of keys and one of a query: of 32 registers
constexpr int VALUE_VECTORS = 2, WIDE_VECTORS = 4, WIDE_ROWS = 3;  // 24 sums; few queries take wide slices

#include "attention/attention_scores.inl"
#include "attention/attention_kept.inl"
#include "attention/attention_values.inl"
#include "attention/attention_tile.inl"

#undef REGISTER_BYTES

}  // namespace attention_level

namespace delta_level {

#include "levels/vectors.h"

#include "delta/delta_tasks.inl"

#undef REGISTER_BYTES

}  // namespace delta_level

namespace adapters_level {

#include "levels/vectors.h"

constexpr int SHRUNK_TOKENS = 6;  // 24 sums, 2 weights and an input of 32 registers

#include "adapters/low_rank_rows.inl"

#undef REGISTER_BYTES

}  // namespace adapters_level

namespace logits_level {

#include "levels/vectors.h"

#include "logits/logits_lanes.inl"

#include "logits/logits_passes.inl"

#include "logits/sampling_passes.inl"

#undef REGISTER_BYTES

}  // namespace logits_level

namespace norms_level {

#include "levels/vectors.h"

#include "norms/norms.inl"
#include "norms/norms_rows.inl"
#include "norms/rotary_rows.inl"

#undef REGISTER_BYTES

}  // namespace norms_level

}  // namespace

const AttentionKernels ATTENTION_AVX512[] = {attention_level::KERNELS_OF<attention_level::Bf16>,
                                             attention_level::KERNELS_OF<attention_level::Int8>};

void shrink_block_avx512(const Shrink& shrink, int64_t block, int64_t first, int64_t last) {
    adapters_level::shrink_block(shrink, block, first, last);
}

void expand_avx512(const Added* added, int64_t rows, int64_t half, float* sums) {
    adapters_level::expand(added, rows, half, sums);
}

const LogitPasses avx512_logit_passes = {logits_level::peak,        logits_level::finite, logits_level::mask, logits_level::mass,
                                         logits_level::count_above, logits_level::split,  logits_level::draw};

void delta_tasks_avx512(const Delta& delta, int64_t first, int64_t last) { delta_level::delta_tasks(delta, first, last); }

void gate_rows_avx512(const float* gate, int64_t gate_stride, int64_t width, uint16_t* y, int64_t y_stride, int64_t first,
                      int64_t last) {
    delta_level::gate_rows(gate, gate_stride, width, y, y_stride, first, last);
}

void norm_rows_avx512(const Norm& norm, int64_t first, int64_t last) { norms_level::norm_rows(norm, first, last); }

void rotate_tokens_avx512(const Rotation& rotation, int64_t first, int64_t last) {
    norms_level::rotate_tokens(rotation, first, last);
}

}  // namespace tp
#endif
