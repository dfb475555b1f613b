#if defined(__x86_64__) || defined(TP_AMX_EMULATED)
#include <algorithm>
#include <cstring>

#include "products/bf16.h"
#if !defined(TP_AMX_EMULATED)
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#include <immintrin.h>
#endif

namespace tp {
namespace {

#include "levels/vectors.h"
#include "products/store.h"
#include "products/amx_tiles.h"

constexpr int64_t STEP_PAIRS = TILE_ROWS;  // of a multiplication
constexpr int64_t PAIR_BYTES = 2 * BLOCK_OUTPUTS * sizeof(uint16_t);
constexpr int64_t HALF_BYTES = PAIR_BYTES / 2;  // a pair's 16 outputs
constexpr int64_t GROUP_ROWS = 2 * TILE_ROWS;
constexpr int64_t AHEAD_BYTES = 2 * STEP_PAIRS * PAIR_BYTES;

// Registers: sums of the first and second 16 rows with the first and second 16 outputs; rows; outputs.
constexpr int SUMS_00 = 0, SUMS_01 = 1, SUMS_10 = 2, SUMS_11 = 3, ROWS_0 = 4, ROWS_1 = 5, OUTPUTS_0 = 6, OUTPUTS_1 = 7;

TileShapes shapes_for(int64_t rows) {
    const auto first = static_cast<uint8_t>(std::min<int64_t>(rows, TILE_ROWS));
    const auto second = static_cast<uint8_t>(std::max<int64_t>(rows - TILE_ROWS, 1));  // at least one, unused
    TileShapes shapes;
    for (int tile = 0; tile < TILES; ++tile) {
        shapes.row_bytes[tile] = TILE_BYTES;
        shapes.rows[tile] = TILE_ROWS;
    }
    shapes.rows[SUMS_00] = shapes.rows[SUMS_01] = shapes.rows[ROWS_0] = first;
    shapes.rows[SUMS_10] = shapes.rows[SUMS_11] = shapes.rows[ROWS_1] = second;
    return shapes;
}

// One step of 16 pairs for 16 rows, or for 32.
inline void step(bool both, const char* weights, const char* x, int64_t x_bytes) {
    load<OUTPUTS_0>(weights, PAIR_BYTES);
    load<OUTPUTS_1>(weights + HALF_BYTES, PAIR_BYTES);
    load<ROWS_0>(x, x_bytes);
    multiply<SUMS_00, ROWS_0, OUTPUTS_0>();
    multiply<SUMS_01, ROWS_0, OUTPUTS_1>();
    if (both) {
        load<ROWS_1>(x + TILE_ROWS * x_bytes, x_bytes);
        multiply<SUMS_10, ROWS_1, OUTPUTS_0>();
        multiply<SUMS_11, ROWS_1, OUTPUTS_1>();
    }
}

// The pairs that are over, filled up with zeros.
void last_step(bool both, const char* weights, const char* x, int64_t x_bytes, int64_t rows, int64_t pairs) {
    alignas(64) char some_weights[STEP_PAIRS * PAIR_BYTES] = {};
    alignas(64) char some_x[GROUP_ROWS * TILE_BYTES] = {};
    std::memcpy(some_weights, weights, static_cast<size_t>(pairs * PAIR_BYTES));
    for (int64_t row = 0; row < rows; ++row) {
        std::memcpy(some_x + row * TILE_BYTES, x + row * x_bytes, static_cast<size_t>(pairs * 4));
    }
    step(both, some_weights, some_x, TILE_BYTES);
}

// Up to 32 rows of a block from `row` on; registers have the shapes for them.
void group(const Product& product, int64_t block, int64_t row, int64_t rows) {
    const int64_t pairs = product.weight->inputs / 2, x_bytes = product.x_stride * 2;
    const auto* weights = static_cast<const char*>(product.weight->packed) + block * pairs * PAIR_BYTES;
    const auto* x = reinterpret_cast<const char*>(product.x + row * product.x_stride);
    const bool both = rows > TILE_ROWS;
    clear<SUMS_00>();
    clear<SUMS_01>();
    clear<SUMS_10>();
    clear<SUMS_11>();
    int64_t pair = 0;
    for (; pair + STEP_PAIRS <= pairs; pair += STEP_PAIRS) {
        const char* at = weights + pair * PAIR_BYTES;
        for (int64_t byte = 0; byte < STEP_PAIRS * PAIR_BYTES; byte += TILE_BYTES) {
            __builtin_prefetch(at + AHEAD_BYTES + byte);
        }
        step(both, at, x + pair * 4, x_bytes);
    }
    if (pair < pairs) {
        last_step(both, weights + pair * PAIR_BYTES, x + pair * 4, x_bytes, rows, pairs - pair);
    }
    alignas(64) float sums[GROUP_ROWS][BLOCK_OUTPUTS];
    constexpr int64_t sums_bytes = sizeof sums[0];
    store<SUMS_00>(sums[0], sums_bytes);
    store<SUMS_01>(sums[0] + LANES, sums_bytes);
    if (both) {
        store<SUMS_10>(sums[TILE_ROWS], sums_bytes);
        store<SUMS_11>(sums[TILE_ROWS] + LANES, sums_bytes);
    }
    Product whole = product;
    if (product.added != nullptr) {
        product.expand(product.added + row, rows, product.first_half + 2 * block, sums[0]);
        whole.added = nullptr;  // it is in the sums
    }
    for (int64_t r = 0; r < rows; ++r) {
        store_sums(whole, block, row + r, load_floats(sums[r]), load_floats(sums[r] + LANES));
    }
}

}  // namespace

// Sums are of one order at any number of rows: all are computed in registers of tiles, also a single one.
void bf16_block_amx(const Product& product, int64_t block) {
    int64_t shaped = 0;
    for (int64_t row = 0; row < product.rows; row += GROUP_ROWS) {
        const int64_t rows = std::min(GROUP_ROWS, product.rows - row);
        if (rows != shaped) {
            configure(shapes_for(rows));
            shaped = rows;
        }
        group(product, block, row, rows);
    }
    release();  // or each switch of threads saves eight kilobytes
}

bool bf16_amx_agrees() {
    constexpr int64_t rows = 37, inputs = 74;
    const auto number = [](int64_t seed) { return static_cast<float>(seed * 7919 % 17 - 8); };
    const auto bits = [&](int64_t seed) {
        const float value = number(seed);
        uint32_t word;
        std::memcpy(&word, &value, sizeof word);
        return static_cast<uint16_t>(word >> 16);
    };
    alignas(64) uint16_t packed[BLOCK_OUTPUTS * inputs], x[rows * inputs];
    float y[rows * BLOCK_OUTPUTS];
    for (int64_t output = 0; output < BLOCK_OUTPUTS; ++output) {
        for (int64_t input = 0; input < inputs; ++input) {
            packed[(input / 2 * BLOCK_OUTPUTS + output) * 2 + input % 2] = bits(output * inputs + input);
        }
    }
    for (int64_t index = 0; index < rows * inputs; ++index) {
        x[index] = bits(index + 5);
    }
    const TpWeight weight{TP_BF16, 0, BLOCK_OUTPUTS, inputs, packed, nullptr};
    bf16_block_amx({&weight, x, inputs, rows, nullptr, 0, TP_STORE_FLOAT32, y, BLOCK_OUTPUTS, -1, false}, 0);
    bool agrees = true;
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t output = 0; output < BLOCK_OUTPUTS; ++output) {
            float expected = 0.0f;  // whole numbers: exact in any order
            for (int64_t input = 0; input < inputs; ++input) {
                expected += number(row * inputs + input + 5) * number(output * inputs + input);
            }
            agrees = agrees && y[row * BLOCK_OUTPUTS + output] == expected;
        }
    }
    return agrees;
}

}  // namespace tp
#endif
