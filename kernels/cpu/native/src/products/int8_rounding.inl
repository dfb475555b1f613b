// bf16 weights rounded to signed bytes: see int8.cpp. Include within a level's namespace, after vectors.h and rounding.inl.

constexpr float MOST_SIGNED_BYTE = 127.0f;

inline Floats largest_size(const Group& weights) {
    Floats largest{};
    for (const Floats weight : weights) {
        largest = larger(reinterpret_cast<Floats>(reinterpret_cast<Words>(weight) & 0x7fffffffu), largest);
    }
    return largest;
}

inline Ints signed_bytes(Floats weights, Floats scale) {
    return __builtin_convertvector(rounded(scale > 0.0f ? weights / scale : floats(0.0f)), Ints);
}

void int8_block(const void* rows, int64_t inputs, int64_t first, int64_t last, uint8_t* block) {
    for (int64_t output = first; output < last; output += LANES) {
        const int64_t own = output - first, lanes = std::min<int64_t>(LANES, last - output);
        const uint16_t* row = static_cast<const uint16_t*>(rows) + output * inputs;
        uint8_t* group = block;
        for (int64_t input = 0; input < inputs; input += GROUP_INPUTS, group += INT8_LAYOUT.group_bytes) {
            Group weights;
            load_group(row + input, inputs, lanes, weights);
            const Halves scales = not_below(largest_size(weights) / MOST_SIGNED_BYTE);
            std::memcpy(group + BYTES_BYTES + 2 * own, &scales, sizeof scales);
            const Floats scale = widen(scales);
            for (int64_t i = 0; i < GROUP_INPUTS; i += 2) {
                const Ints low = signed_bytes(weights[i], scale), high = signed_bytes(weights[i + 1], scale);
                const Halves pair = __builtin_convertvector(reinterpret_cast<Words>((low & 255) | high << 8), Halves);
                std::memcpy(group + byte_byte(own, i), &pair, sizeof pair);
            }
        }
    }
}
