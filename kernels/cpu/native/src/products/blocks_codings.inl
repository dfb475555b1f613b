// What the integers and scales of each format mean: pairs of integers of 16 outputs, taken from where `blocks.h` says that
// they lie. Include within the level's namespace, after its `Pairs` with `shifted` and
// `widened`, `nibbles`, `float16`, `bytes` and `signed_bytes`.
//
// A coding has: LAYOUT; PARTS, the scales that a group has for each output; MINIMA, whether it has minima; and of one half
// of the outputs: `chunk`, four pairs of inputs; `scale` of a part; `minimum`.

inline Pairs load_pairs(const char* at) {
    Pairs words;
    std::memcpy(&words, at, sizeof words);
    return words;
}

inline Floats bf16(const char* at) { return load_bf16(reinterpret_cast<const uint16_t*>(at)); }

template <int OFFSET>
inline void nibble_chunk(const char* group, int half, int chunk, Pairs (&pairs)[4]) {
    const Pairs words = load_pairs(group + half * (NIBBLES_BYTES / 2) + chunk * 64);
    for (int k = 0; k < 4; ++k) {
        const Pairs lowest = shifted(words, 4 * k);
        pairs[k] = OFFSET == 0 && k == 3 ? lowest : nibbles<OFFSET>(lowest);  // nothing is above the last
    }
}

inline void byte_chunk(const char* group, int half, int chunk, Pairs (&pairs)[4]) {
    for (int k = 0; k < 4; ++k) {
        pairs[k] = widened(group + half * (BYTES_BYTES / 2) + (4 * chunk + k) * 32);
    }
}

struct OneScale {
    static constexpr int PARTS = 1;
    static constexpr bool MINIMA = false;
    static Floats minimum(const char*, const char*, int) { return Floats{}; }
};

struct Q4_0 : OneScale {
    static constexpr Layout LAYOUT = Q4_0_LAYOUT;
    static void chunk(const char* group, int half, int c, Pairs (&pairs)[4]) { nibble_chunk<8>(group, half, c, pairs); }
    static Floats scale(const char*, const char* group, int half, int) { return float16(group + NIBBLES_BYTES + half * 32); }
};

struct Q4_1 {
    static constexpr Layout LAYOUT = Q4_1_LAYOUT;
    static constexpr int PARTS = 1;
    static constexpr bool MINIMA = true;
    static void chunk(const char* group, int half, int c, Pairs (&pairs)[4]) { nibble_chunk<0>(group, half, c, pairs); }
    static Floats scale(const char*, const char* group, int half, int) { return float16(group + NIBBLES_BYTES + half * 32); }
    static Floats minimum(const char*, const char* group, int half) {
        return float16(group + NIBBLES_BYTES + SCALES_BYTES + half * 32);
    }
};

struct Q8_0 : OneScale {
    static constexpr Layout LAYOUT = Q8_0_LAYOUT;
    static void chunk(const char* group, int half, int c, Pairs (&pairs)[4]) { byte_chunk(group, half, c, pairs); }
    static Floats scale(const char*, const char* group, int half, int) { return float16(group + BYTES_BYTES + half * 32); }
};

struct Int8 : OneScale {
    static constexpr Layout LAYOUT = INT8_LAYOUT;
    static void chunk(const char* group, int half, int c, Pairs (&pairs)[4]) { byte_chunk(group, half, c, pairs); }
    static Floats scale(const char*, const char* group, int half, int) { return bf16(group + BYTES_BYTES + half * 32); }
};

// Scales and minima of a byte times those of the header, which NUMBERS reads.
template <const Layout& OWN_LAYOUT, Floats NUMBERS(const char*)>
struct ByteScales {
    static constexpr Layout LAYOUT = OWN_LAYOUT;
    static constexpr int PARTS = 1;
    static constexpr bool MINIMA = true;
    static void chunk(const char* group, int half, int c, Pairs (&pairs)[4]) { nibble_chunk<0>(group, half, c, pairs); }
    static Floats scale(const char* header, const char* group, int half, int) {
        return NUMBERS(header + half * 32) * bytes(group + NIBBLES_BYTES + half * 16);
    }
    static Floats minimum(const char* header, const char* group, int half) {
        const Floats least = bytes(group + NIBBLES_BYTES + BLOCK_OUTPUTS + half * 16);
        return -NUMBERS(header + SCALES_BYTES + half * 32) * least;
    }
};

using Q4_K = ByteScales<Q4_K_LAYOUT, float16>;
using Int4 = ByteScales<INT4_LAYOUT, bf16>;

// Integers less a zero point, times a scale: both in the header, for all its groups. What the zero point takes off is the
// minimum. Bytes are stored less 128, as their zero points are.
template <const Layout& OWN_LAYOUT, void CHUNK(const char*, int, int, Pairs (&)[4])>
struct ZeroPoints {
    static constexpr Layout LAYOUT = OWN_LAYOUT;
    static constexpr int PARTS = 1;
    static constexpr bool MINIMA = true;
    static void chunk(const char* group, int half, int c, Pairs (&pairs)[4]) { CHUNK(group, half, c, pairs); }
    static Floats scale(const char* header, const char*, int half, int) {
        return load_floats(reinterpret_cast<const float*>(header + half * 64));
    }
    static Floats minimum(const char* header, const char* group, int half) {
        return -scale(header, group, half, 0) * bf16(header + ZERO_POINTS_AT + half * 32);
    }
};

using U4_32 = ZeroPoints<U4_32_LAYOUT, nibble_chunk<0>>;
using U4_64 = ZeroPoints<U4_64_LAYOUT, nibble_chunk<0>>;
using U4_128 = ZeroPoints<U4_128_LAYOUT, nibble_chunk<0>>;
using U8_32 = ZeroPoints<U8_32_LAYOUT, byte_chunk>;
using U8_64 = ZeroPoints<U8_64_LAYOUT, byte_chunk>;
using U8_128 = ZeroPoints<U8_128_LAYOUT, byte_chunk>;

struct Q6_K {
    static constexpr Layout LAYOUT = Q6_K_LAYOUT;
    static constexpr int PARTS = 2;
    static constexpr bool MINIMA = false;
    static void chunk(const char* group, int half, int c, Pairs (&pairs)[4]) {
        const Pairs low = load_pairs(group + half * (NIBBLES_BYTES / 2) + c * 64);
        const Pairs high = load_pairs(group + NIBBLES_BYTES + half * (NIBBLES_BYTES / 4) + c / 2 * 64);
        for (int k = 0; k < 4; ++k) {
            const int bit = 2 * (c % 2 * 4 + k);  // of `high`; it goes to bit 4
            const Pairs upper = bit < 4 ? high << (4 - bit) : shifted(high, bit - 4);
            pairs[k] = ((shifted(low, 4 * k) & 15) | (upper & 48)) - 32;
        }
    }
    static Floats scale(const char* header, const char* group, int half, int part) {
        const char* at = group + NIBBLES_BYTES + NIBBLES_BYTES / 2 + part * BLOCK_OUTPUTS + half * 16;
        return float16(header + half * 32) * signed_bytes(at);
    }
    static Floats minimum(const char*, const char*, int) { return Floats{}; }
};
