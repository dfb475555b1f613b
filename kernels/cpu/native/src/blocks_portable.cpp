#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "blocks.h"

namespace tp {
namespace {

#include "vectors.h"
#include "store.h"
#include "blocks_words.inl"
#include "blocks_plain.inl"

inline void add_product(Sums& sums, Pairs weights, int32_t pair) {
    const auto both = reinterpret_cast<Ints>(weights);
    sums += (both << 16 >> 16) * static_cast<int16_t>(pair) + (both >> 16) * (pair >> 16);
}

inline Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }

constexpr int MOST_ROWS = 2;
constexpr int UNROLLED = 1;

#include "blocks_codings.inl"
#include "blocks_vectors.inl"

}  // namespace

const BlockKernels BLOCKS_PORTABLE = KERNELS;

}  // namespace tp
