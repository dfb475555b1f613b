// The bf16 product for levels without instructions that take bf16 numbers: pairs are taken apart into float32. Include
// within the level's namespace, after `vectors.h`, `store.h` and VECTOR_BYTES, what the level has in one register: the
// compiler keeps larger types in memory.

typedef float Lanes __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t LaneBits __attribute__((vector_size(VECTOR_BYTES)));

constexpr int LANE_COUNT = VECTOR_BYTES / 4;
constexpr int64_t CHUNK_PAIRS = 64;
constexpr int MOST_ROWS = 4;  // a tile of two vectors: eight sums, weights of two taken apart, one input of sixteen registers

// Rows' inputs in float32: of each pair the first of all rows, and then the second.
template <int ROWS>
inline void widen_rows(const uint16_t* x, int64_t x_stride, int64_t pairs, float (&wide)[CHUNK_PAIRS][2][ROWS]) {
    for (int64_t pair = 0; pair < pairs; ++pair) {
        for (int half = 0; half < 2; ++half) {
            for (int r = 0; r < ROWS; ++r) {
                const uint32_t bits = static_cast<uint32_t>(x[r * x_stride + 2 * pair + half]) << 16;
                std::memcpy(&wide[pair][half][r], &bits, sizeof bits);
            }
        }
    }
}

// Adds products of a chunk of pairs to the sums [ROWS][32] of VECTORS vectors of outputs.
template <int ROWS, int VECTORS>
inline void add_chunk(const uint16_t* weights, const float (&wide)[CHUNK_PAIRS][2][ROWS], int64_t pairs, float* into) {
    Lanes sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; ++r) {
        std::memcpy(sums[r], into + r * BLOCK_OUTPUTS, sizeof sums[r]);
    }
    for (int64_t pair = 0; pair < pairs; ++pair) {
        LaneBits bits[VECTORS];
        std::memcpy(bits, weights + pair * 2 * BLOCK_OUTPUTS, sizeof bits);
        for (int r = 0; r < ROWS; ++r) {
            for (int v = 0; v < VECTORS; ++v) {
                sums[r][v] += wide[pair][0][r] * reinterpret_cast<Lanes>(bits[v] << 16);
            }
        }
        for (int r = 0; r < ROWS; ++r) {
            for (int v = 0; v < VECTORS; ++v) {
                sums[r][v] += wide[pair][1][r] * reinterpret_cast<Lanes>(bits[v] & 0xffff0000u);
            }
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        std::memcpy(into + r * BLOCK_OUTPUTS, sums[r], sizeof sums[r]);
    }
}

template <int ROWS, int VECTORS>
void tile(const Product& product, int64_t block, int64_t row) {
    const int64_t pairs = product.weight->inputs / 2, quarter = pairs / QUARTERS;
    const uint16_t* weights = static_cast<const uint16_t*>(product.weight->packed) + block * BLOCK_OUTPUTS * 2 * pairs;
    const uint16_t* x = product.x + row * product.x_stride;
    alignas(64) float sums[QUARTERS][ROWS][BLOCK_OUTPUTS] = {};
    for (int64_t q = 0; q < QUARTERS; ++q) {
        const int64_t end = q + 1 == QUARTERS ? pairs : (q + 1) * quarter;
        for (int64_t first = q * quarter; first < end; first += CHUNK_PAIRS) {
            const int64_t count = std::min(CHUNK_PAIRS, end - first);
            float wide[CHUNK_PAIRS][2][ROWS];
            widen_rows<ROWS>(x + 2 * first, product.x_stride, count, wide);
            for (int64_t lane = 0; lane < BLOCK_OUTPUTS; lane += VECTORS * LANE_COUNT) {
                const uint16_t* at = weights + (first * BLOCK_OUTPUTS + lane) * 2;
                add_chunk<ROWS, VECTORS>(at, wide, count, &sums[q][0][lane]);
            }
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        const auto of_half = [&](int at) {
            return (load_floats(&sums[0][r][at]) + load_floats(&sums[1][r][at])) +
                   (load_floats(&sums[2][r][at]) + load_floats(&sums[3][r][at]));
        };
        store_sums(product, block, row + r, of_half(0), of_half(LANES));
    }
}

void all_rows(const Product& product, int64_t block) {
    int64_t row = 0;
    for (; row + MOST_ROWS <= product.rows; row += MOST_ROWS) {
        tile<MOST_ROWS, 2>(product, block, row);
    }
    for (; row + 2 <= product.rows; row += 2) {
        tile<2, 4>(product, block, row);
    }
    if (row < product.rows) {
        tile<1, 4>(product, block, row);
    }
}
