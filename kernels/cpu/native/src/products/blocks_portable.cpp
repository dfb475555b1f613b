// Weights of small numbers on any processor.
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "products/blocks.h"

// Vectors wider than the processor's become code for its own, of which -O3 makes three times as much.
#pragma GCC optimize("O2")

namespace tp {
namespace {

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
constexpr bool PANEL_WRITTEN_OUT = false;

#include "products/blocks_codings.inl"
#include "products/blocks_int16.inl"
#include "products/blocks_bf16.inl"

template <typename Coding>
using RowsOf = std::conditional_t<Coding::E4M3, Bf16Rows, Int16Rows>;

#include "products/blocks_vectors.inl"

}  // namespace

const BlockKernels BLOCKS_PORTABLE = kernels();

}  // namespace tp
