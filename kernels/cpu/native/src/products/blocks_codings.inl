// What the bits and scales of each format mean: pairs of numbers of 16 outputs, taken from where `blocks.h` says that they lie.
// Include within the level's namespace, after its `Pairs` with `shifted`, `merged`, `float16`, `bytes` and `signed_bytes`, and
// before its forms of rows, of which `look_up<Table>` and `signed_bytes` are used here.
//
// A coding has: LAYOUT; E4M3, whether its numbers are no integers; PARTS, the scales that a group has for each output; SHARED,
// groups that have one scale and one minimum; `minima<Rows>`, how many minima a group has; and of one half of the outputs: `chunk`, four pairs
// of inputs; `scale` and `minimum` of a part.

inline Pairs load_pairs(const char* at) {
    Pairs words;
    std::memcpy(&words, at, sizeof words);
    return words;
}

inline Floats bf16(const char* at) { return load_bf16(reinterpret_cast<const uint16_t*>(at)); }

// 16 integers of two bytes.
inline Floats small(const char* at) {
    typedef int16_t Shorts __attribute__((vector_size(2 * LANES)));
    Shorts numbers;
    std::memcpy(&numbers, at, sizeof numbers);
    return __builtin_convertvector(__builtin_convertvector(numbers, Ints), Floats);
}

// Integers of some bits, from OFFSET on.
template <int BITS, int OFFSET>
struct Counted {
    static constexpr int SIZE = 1 << BITS;
    static constexpr bool COUNTED = true;
    static constexpr int at(int index) { return index + OFFSET; }
};

// Any 16 numbers.
template <const int16_t (&NUMBERS)[16]>
struct Listed {
    static constexpr int SIZE = 16;
    static constexpr bool COUNTED = false;
    static constexpr int at(int index) { return NUMBERS[index]; }
};

template <typename Rows, typename Table>
inline void nibble_chunk(const char* group, int half, int c, Pairs (&pairs)[4]) {
    const Pairs words = load_pairs(group + half * (NIBBLES_BYTES / 2) + c * 64);
    for (int k = 0; k < 4; ++k) {
        pairs[k] = Rows::template look_up<Table>(shifted(words, 4 * k));
    }
}

// A plane of one bit of each number: the words, and of those the bits of pair `p` moved to bit AT.
inline Pairs one_bit_words(const char* plane, int half) { return load_pairs(plane + half * (ONE_BIT_BYTES / 2)); }

inline Pairs bit_moved(Pairs words, int bit, int at) { return bit < at ? words << (at - bit) : shifted(words, bit - at); }

// Nibbles, and fifth bits after them.
template <typename Rows, typename Table>
inline void five_bit_chunk(const char* group, int half, int c, Pairs (&pairs)[4]) {
    const Pairs low = load_pairs(group + half * (NIBBLES_BYTES / 2) + c * 64);
    const Pairs high = one_bit_words(group + NIBBLES_BYTES, half);
    for (int k = 0; k < 4; ++k) {
        pairs[k] = Rows::template look_up<Table>(merged<15>(shifted(low, 4 * k), bit_moved(high, 4 * c + k, 4)));
    }
}

inline Pairs two_bits_words(const char* plane, int half, int c) {
    return load_pairs(plane + half * (TWO_BITS_BYTES / 2) + c / 2 * 64);
}

inline int two_bits_of_chunk(int c, int k) { return 2 * (c % 2 * 4 + k); }

struct OneScale {
    static constexpr bool E4M3 = false;
    static constexpr bool CHUNKS_WRITTEN_OUT = false;
    static constexpr int PARTS = 1;
    static constexpr int SHARED = 1;
    template <typename Rows>
    static constexpr int minima = 0;
    static Floats minimum(const char*, const char*, int, int) { return Floats{}; }
};

// Each chunk takes bits of its own from the same words: their positions are constants only where the loop over chunks is written
// out. Other codings do without, at a quarter of the code.
struct FiveBits : OneScale {
    static constexpr bool CHUNKS_WRITTEN_OUT = true;
};

// Nibbles that choose from a table, and scales that NUMBERS reads.
template <const Layout& OWN_LAYOUT, typename Table, Floats NUMBERS(const char*)>
struct Nibbles : OneScale {
    static constexpr Layout LAYOUT = OWN_LAYOUT;
    template <typename Rows>
    static void chunk(const char*, const char* group, int half, int c, Pairs (&pairs)[4]) {
        nibble_chunk<Rows, Table>(group, half, c, pairs);
    }
    static Floats scale(const char*, const char* group, int half, int) { return NUMBERS(group + NIBBLES_BYTES + half * 32); }
};

using Q4_0 = Nibbles<Q4_0_LAYOUT, Counted<4, -8>, float16>;
using IQ4_NL = Nibbles<IQ4_NL_LAYOUT, Listed<IQ4_NUMBERS>, float16>;
using MXFP4 = Nibbles<MXFP4_LAYOUT, Listed<E2M1_NUMBERS>, bf16>;

struct Q4_1 : OneScale {
    static constexpr Layout LAYOUT = Q4_1_LAYOUT;
    template <typename Rows>
    static constexpr int minima = 1;
    template <typename Rows>
    static void chunk(const char*, const char* group, int half, int c, Pairs (&pairs)[4]) {
        nibble_chunk<Rows, Counted<4, 0>>(group, half, c, pairs);
    }
    static Floats scale(const char*, const char* group, int half, int) { return float16(group + NIBBLES_BYTES + half * 32); }
    static Floats minimum(const char*, const char* group, int half, int) {
        return float16(group + NIBBLES_BYTES + SCALES_BYTES + half * 32);
    }
};

struct Q5_0 : FiveBits {
    static constexpr Layout LAYOUT = Q5_0_LAYOUT;
    template <typename Rows>
    static void chunk(const char*, const char* group, int half, int c, Pairs (&pairs)[4]) {
        five_bit_chunk<Rows, Counted<5, -16>>(group, half, c, pairs);
    }
    static Floats scale(const char*, const char* group, int half, int) {
        return float16(group + NIBBLES_BYTES + ONE_BIT_BYTES + half * 32);
    }
};

struct Q5_1 : FiveBits {
    static constexpr Layout LAYOUT = Q5_1_LAYOUT;
    template <typename Rows>
    static constexpr int minima = 1;
    template <typename Rows>
    static void chunk(const char*, const char* group, int half, int c, Pairs (&pairs)[4]) {
        five_bit_chunk<Rows, Counted<5, 0>>(group, half, c, pairs);
    }
    static Floats scale(const char*, const char* group, int half, int) {
        return float16(group + NIBBLES_BYTES + ONE_BIT_BYTES + half * 32);
    }
    static Floats minimum(const char*, const char* group, int half, int) {
        return float16(group + NIBBLES_BYTES + ONE_BIT_BYTES + SCALES_BYTES + half * 32);
    }
};

// Bytes, and scales that NUMBERS reads.
template <const Layout& OWN_LAYOUT, Floats NUMBERS(const char*)>
struct SignedBytes : OneScale {
    static constexpr Layout LAYOUT = OWN_LAYOUT;
    template <typename Rows>
    static void chunk(const char*, const char* group, int half, int c, Pairs (&pairs)[4]) {
        for (int k = 0; k < 4; ++k) {
            pairs[k] = Rows::signed_bytes(group + half * (BYTES_BYTES / 2) + (4 * c + k) * 32);
        }
    }
    static Floats scale(const char*, const char* group, int half, int) { return NUMBERS(group + BYTES_BYTES + half * 32); }
};

using Q8_0 = SignedBytes<Q8_0_LAYOUT, float16>;
using Int8 = SignedBytes<INT8_LAYOUT, bf16>;

// Scales and minima of a byte, SCALES_AT in the group, times those of the header, which NUMBERS reads.
template <const Layout& OWN_LAYOUT, int64_t SCALES_AT, Floats NUMBERS(const char*)>
struct ByteScales : OneScale {
    static constexpr Layout LAYOUT = OWN_LAYOUT;
    static constexpr bool CHUNKS_WRITTEN_OUT = SCALES_AT != NIBBLES_BYTES;  // five bits
    template <typename Rows>
    static constexpr int minima = 1;
    template <typename Rows>
    static void chunk(const char*, const char* group, int half, int c, Pairs (&pairs)[4]) {
        if constexpr (SCALES_AT == NIBBLES_BYTES) {
            nibble_chunk<Rows, Counted<4, 0>>(group, half, c, pairs);
        } else {
            five_bit_chunk<Rows, Counted<5, 0>>(group, half, c, pairs);
        }
    }
    static Floats scale(const char* header, const char* group, int half, int) {
        return NUMBERS(header + half * 32) * bytes(group + SCALES_AT + half * 16);
    }
    static Floats minimum(const char* header, const char* group, int half, int) {
        const Floats least = bytes(group + SCALES_AT + BLOCK_OUTPUTS + half * 16);
        return -NUMBERS(header + SCALES_BYTES + half * 32) * least;
    }
};

using Q4_K = ByteScales<Q4_K_LAYOUT, NIBBLES_BYTES, float16>;
using Q5_K = ByteScales<Q5_K_LAYOUT, NIBBLES_BYTES + ONE_BIT_BYTES, float16>;
using Int4 = ByteScales<INT4_LAYOUT, NIBBLES_BYTES, bf16>;

// Signed scales of a byte, SCALES_AT in the group, for each part, times float16 of the header.
template <int64_t SCALES_AT, int OWN_PARTS>
struct SignedScales : OneScale {
    static constexpr int PARTS = OWN_PARTS;
    static Floats scale(const char* header, const char* group, int half, int part) {
        return float16(header + half * 32) * signed_bytes(group + SCALES_AT + part * BLOCK_OUTPUTS + half * 16);
    }
};

struct IQ4_XS : SignedScales<NIBBLES_BYTES, 1> {
    static constexpr Layout LAYOUT = IQ4_XS_LAYOUT;
    template <typename Rows>
    static void chunk(const char*, const char* group, int half, int c, Pairs (&pairs)[4]) {
        nibble_chunk<Rows, Listed<IQ4_NUMBERS>>(group, half, c, pairs);
    }
};

struct Q3_K : SignedScales<TWO_BITS_BYTES + ONE_BIT_BYTES, 2> {
    static constexpr Layout LAYOUT = Q3_K_LAYOUT;
    template <typename Rows>
    static void chunk(const char*, const char* group, int half, int c, Pairs (&pairs)[4]) {
        const Pairs low = two_bits_words(group, half, c), high = one_bit_words(group + TWO_BITS_BYTES, half);
        for (int k = 0; k < 4; ++k) {
            const Pairs both = merged<3>(shifted(low, two_bits_of_chunk(c, k)), bit_moved(high, 4 * c + k, 2));
            pairs[k] = Rows::template look_up<Counted<3, -4>>(both);
        }
    }
};

struct Q6_K : SignedScales<NIBBLES_BYTES + TWO_BITS_BYTES, 2> {
    static constexpr Layout LAYOUT = Q6_K_LAYOUT;
    template <typename Rows>
    static void chunk(const char*, const char* group, int half, int c, Pairs (&pairs)[4]) {
        const Pairs low = load_pairs(group + half * (NIBBLES_BYTES / 2) + c * 64);
        const Pairs high = two_bits_words(group + NIBBLES_BYTES, half, c);
        for (int k = 0; k < 4; ++k) {
            const Pairs both = merged<15>(shifted(low, 4 * k), bit_moved(high, two_bits_of_chunk(c, k), 4));
            pairs[k] = Rows::template look_up<Counted<6, -32>>(both);
        }
    }
};

// Scales and minima of a byte for each 16 inputs.
struct Q2_K : OneScale {
    static constexpr Layout LAYOUT = Q2_K_LAYOUT;
    static constexpr int PARTS = 2;
    template <typename Rows>
    static constexpr int minima = 2;
    template <typename Rows>
    static void chunk(const char*, const char* group, int half, int c, Pairs (&pairs)[4]) {
        const Pairs words = two_bits_words(group, half, c);
        for (int k = 0; k < 4; ++k) {
            pairs[k] = Rows::template look_up<Counted<2, 0>>(shifted(words, two_bits_of_chunk(c, k)));
        }
    }
    static Floats scale(const char* header, const char* group, int half, int part) {
        return float16(header + half * 32) * bytes(group + TWO_BITS_BYTES + part * BLOCK_OUTPUTS + half * 16);
    }
    static Floats minimum(const char* header, const char* group, int half, int part) {
        const char* at = group + TWO_BITS_BYTES + (2 + part) * BLOCK_OUTPUTS + half * 16;
        return -float16(header + SCALES_BYTES + half * 32) * bytes(at);
    }
};

// Scales float32 in the header, for all its groups.
template <const Layout& OWN_LAYOUT>
struct SharedScales : OneScale {
    static constexpr Layout LAYOUT = OWN_LAYOUT;
    static constexpr int SHARED = static_cast<int>(OWN_LAYOUT.super_groups);
    static Floats scale(const char* header, const char*, int half, int) {
        return load_floats(reinterpret_cast<const float*>(header + half * 64));
    }
};

// Integers less a zero point of the header, which is taken off their sums as a minimum. Bytes are stored less 128, as their zero
// points are.
template <const Layout& OWN_LAYOUT, bool BYTES>
struct ZeroPoints : SharedScales<OWN_LAYOUT> {
    template <typename Rows>
    static constexpr int minima = 1;
    template <typename Rows>
    static void chunk(const char*, const char* group, int half, int c, Pairs (&pairs)[4]) {
        if constexpr (BYTES) {
            for (int k = 0; k < 4; ++k) {
                pairs[k] = Rows::signed_bytes(group + half * (BYTES_BYTES / 2) + (4 * c + k) * 32);
            }
        } else {
            nibble_chunk<Rows, Counted<4, 0>>(group, half, c, pairs);
        }
    }
    static Floats minimum(const char* header, const char*, int half, int) {
        return -SharedScales<OWN_LAYOUT>::scale(header, nullptr, half, 0) * small(header + ZERO_POINTS_AT + half * 32);
    }
};

using U4_32 = ZeroPoints<U4_32_LAYOUT, false>;
using U4_64 = ZeroPoints<U4_64_LAYOUT, false>;
using U4_128 = ZeroPoints<U4_128_LAYOUT, false>;
using U8_32 = ZeroPoints<U8_32_LAYOUT, true>;
using U8_64 = ZeroPoints<U8_64_LAYOUT, true>;
using U8_128 = ZeroPoints<U8_128_LAYOUT, true>;

template <const Layout& OWN_LAYOUT>
struct E4m3 : SharedScales<OWN_LAYOUT> {
    static constexpr bool E4M3 = true;
    template <typename Rows>
    static void chunk(const char*, const char* group, int half, int c, Pairs (&pairs)[4]) {
        for (int k = 0; k < 4; ++k) {
            pairs[k] = e4m3(group + half * (BYTES_BYTES / 2) + (4 * c + k) * 32);
        }
    }
};

using E4M3_32 = E4m3<E4M3_32_LAYOUT>;
using E4M3_128 = E4m3<E4M3_128_LAYOUT>;
