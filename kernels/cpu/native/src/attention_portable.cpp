#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "attention.h"
#include "attention_ahead.h"

namespace tp {
namespace {

#define REGISTER_BYTES 16
#include "vectors.h"

constexpr int TILE_ROWS = 2, SCORE_BLOCKS = 1;  // 8 sums, 4 vectors of keys and one of a query: of 16 registers
constexpr int VALUE_VECTORS = 2, WIDE_VECTORS = 2, WIDE_ROWS = 2;  // 8 sums

#include "attention_scores.inl"
#include "attention_kept.inl"
#include "attention_values.inl"
#include "attention_tile.inl"

}  // namespace

const AttentionKernels ATTENTION_PORTABLE[] = {KERNELS_OF<Bf16>, KERNELS_OF<Int8>};

}  // namespace tp
