// Signed bytes times signed bytes on any processor.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "products/w8a8.h"

namespace tp {
namespace {

#include "levels/vectors.h"
#include "products/store.h"

constexpr int MOST_ROWS = 2;
constexpr bool CORRECTED = true;

#include "products/w8a8_rows.inl"

template <int ROWS>
void add_quads(const char* weights, Rows rows, int64_t quads, Fetch, Sums (&sums)[ROWS]) {
    for (int64_t quad = 0; quad < quads; ++quad) {
        for (int half = 0; half < 2; ++half) {
            Words bytes;
            std::memcpy(&bytes, weights + quad * QUAD_BYTES + half * (QUAD_BYTES / 2), sizeof bytes);
            for (int r = 0; r < ROWS; ++r) {
                for (int i = 0; i < QUAD; ++i) {
                    const auto input = static_cast<uint32_t>(rows.first[r * rows.stride + quad * QUAD + i]);
                    sums[r][half] += (bytes >> (8 * i) & 255u) * input;
                }
            }
        }
    }
}

inline Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }

}  // namespace

const W8A8Kernel W8A8_PORTABLE = {prepare, block_of};

}  // namespace tp
