// Stores the sums of a block of 32 outputs. Include after `vectors.h`, within the level's namespace, with
// <algorithm> and "product.h" before both.

// 16 numbers at `at`, or the first `lanes` of them.
inline void store_numbers(uint16_t* at, Floats values, int64_t lanes) {
    lanes >= LANES ? store_bf16(at, values) : store_some_bf16(at, values, lanes);
}

inline void store_numbers(float* at, Floats values, int64_t lanes) {
    lanes >= LANES ? store_floats(at, values) : store_some_floats(at, values, lanes);
}

inline Floats load_numbers(const float* at, int64_t lanes) {
    return lanes >= LANES ? load_floats(at) : load_some_floats(at, lanes);
}

template <typename Number>
inline Number* row_of(const Product& product, int64_t row, int64_t column) {
    return static_cast<Number*>(product.y) + row * product.y_stride + column;
}

// The sums of one row with outputs [32 block, 32 block + 32), their bias not yet in them. Outputs that the weight does not
// have are left alone; SiLU takes whole blocks, of which a last one that is not has `outputs - 16` pairs.
inline void store_sums(const Product& product, int64_t block, int64_t row, Floats first, Floats second) {
    const TpWeight& weight = *product.weight;
    const int64_t output = block * BLOCK_OUTPUTS;
    const int64_t low = std::min<int64_t>(LANES, weight.outputs - output);
    const int64_t high = std::clamp<int64_t>(weight.outputs - output - LANES, 0, LANES);
    if (product.added != nullptr && product.added[row].change != nullptr) {
        alignas(64) float sums[BLOCK_OUTPUTS];
        store_floats(sums, first);
        store_floats(sums + LANES, second);
        product.expand(product.added + row, 1, product.first_half + 2 * block, sums);
        first = load_floats(sums);
        second = load_floats(sums + LANES);
    }
    if (weight.bias != nullptr) {
        first += load_numbers(weight.bias + output, low);
        second += load_numbers(weight.bias + output + LANES, high);
    }
    switch (product.store) {
        case TP_STORE_BF16: {
            uint16_t* y = row_of<uint16_t>(product, row, output);
            store_numbers(y, first, low);
            store_numbers(y + LANES, second, high);
            return;
        }
        case TP_STORE_FLOAT32: {
            float* y = row_of<float>(product, row, output);
            store_numbers(y, first, low);
            store_numbers(y + LANES, second, high);
            return;
        }
        case TP_ADD_FLOAT32: {
            float* y = row_of<float>(product, row, output);
            store_numbers(y, load_numbers(y, low) + first, low);
            store_numbers(y + LANES, load_numbers(y + LANES, high) + second, high);
            return;
        }
        case TP_STORE_SILU_MUL:
            store_numbers(row_of<uint16_t>(product, row, output / 2), silu(first) * second, high);
            return;
        case TP_STORE_GELU_MUL:
            store_numbers(row_of<uint16_t>(product, row, output / 2), gelu(first) * second, high);
            return;
        case TP_STORE_CLAMPED_MUL:
            store_numbers(row_of<uint16_t>(product, row, output / 2), clamped_swiglu(first, second), high);
            return;
    }
}
