// What rounds weights at every level. Lanes are outputs.

// 32 inputs of some outputs.
using Group = Floats[GROUP_INPUTS];

inline Floats smaller(Floats a, Floats b) { return a < b ? a : b; }

inline Floats rounded(Floats values) {
    const Floats shift = floats(12582912.0f);  // 1.5 x 2^23: what is added to it is rounded to a whole number
    return values + shift - shift;
}

// The least bf16 numbers that are not below positive ones.
inline Halves not_below(Floats values) {
    return __builtin_convertvector((reinterpret_cast<Words>(values) + 0xffffu) >> 16, Halves);
}

// Weights of `lanes` outputs from `row` on, those past them zeros.
inline void load_group(const uint16_t* row, int64_t inputs, int64_t lanes, Group& weights) {
    for (int64_t i = 0; i < GROUP_INPUTS; i += 2) {
        Words pair{};
        for (int64_t lane = 0; lane < LANES; ++lane) {
            if (lane < lanes) {
                uint32_t word;
                std::memcpy(&word, row + lane * inputs + i, sizeof word);
                pair[lane] = word;
            }
        }
        weights[i] = reinterpret_cast<Floats>(pair << 16);
        weights[i + 1] = reinterpret_cast<Floats>(pair & 0xffff0000u);
    }
}
