// The bf16 product in vector types, for levels without instructions that take bf16 numbers: pairs are taken apart into
// float32. Include within the level's namespace, behind `vectors.h` and `store.h`; MOST_ROWS rows share what was taken apart.

struct Sums {
    Floats low, high;  // outputs 0..15 and 16..31 of a block
};

// Sums of ROWS rows over pairs [first, last).
template <int ROWS>
inline void add_pairs(const Product& product, const uint16_t* weights, int64_t row, int64_t first, int64_t last,
                      Sums (&sums)[ROWS]) {
    const uint16_t* x = product.x + row * product.x_stride;
    for (int64_t pair = first; pair < last; ++pair) {
        Words low, high;
        std::memcpy(&low, weights + pair * 2 * BLOCK_OUTPUTS, sizeof low);
        std::memcpy(&high, weights + pair * 2 * BLOCK_OUTPUTS + 2 * LANES, sizeof high);
        const Floats even_low = reinterpret_cast<Floats>(low << 16), odd_low = reinterpret_cast<Floats>(low & 0xffff0000u);
        const Floats even_high = reinterpret_cast<Floats>(high << 16), odd_high = reinterpret_cast<Floats>(high & 0xffff0000u);
        for (int r = 0; r < ROWS; ++r) {
            uint32_t bits;
            std::memcpy(&bits, x + r * product.x_stride + 2 * pair, sizeof bits);
            const uint32_t even_bits = bits << 16, odd_bits = bits & 0xffff0000u;
            float even, odd;
            std::memcpy(&even, &even_bits, sizeof even);
            std::memcpy(&odd, &odd_bits, sizeof odd);
            sums[r].low += even * even_low;
            sums[r].high += even * even_high;
            sums[r].low += odd * odd_low;
            sums[r].high += odd * odd_high;
        }
    }
}

template <int ROWS>
void tile(const Product& product, int64_t block, int64_t row) {
    const int64_t pairs = product.weight->inputs / 2, quarter = pairs / QUARTERS;
    const uint16_t* weights = static_cast<const uint16_t*>(product.weight->packed) + block * BLOCK_OUTPUTS * 2 * pairs;
    Sums of_quarter[QUARTERS][ROWS];
    for (int64_t q = 0; q < QUARTERS; ++q) {
        Sums sums[ROWS] = {};
        add_pairs<ROWS>(product, weights, row, q * quarter, q + 1 == QUARTERS ? pairs : (q + 1) * quarter, sums);
        std::memcpy(of_quarter[q], sums, sizeof sums);
    }
    for (int r = 0; r < ROWS; ++r) {
        const auto &a = of_quarter[0][r], &b = of_quarter[1][r], &c = of_quarter[2][r], &d = of_quarter[3][r];
        store_sums(product, block, row + r, (a.low + b.low) + (c.low + d.low), (a.high + b.high) + (c.high + d.high));
    }
}

void all_rows(const Product& product, int64_t block) {
    int64_t row = 0;
    for (; row + MOST_ROWS <= product.rows; row += MOST_ROWS) {
        tile<MOST_ROWS>(product, block, row);
    }
    for (; row < product.rows; ++row) {
        tile<1>(product, block, row);
    }
}
