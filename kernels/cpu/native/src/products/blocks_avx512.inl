// What levels with AVX-512 share of `blocks_vectors.inl`'s needs. Include within the level's namespace, after `vectors.h`.

#include "products/blocks_words.inl"

// The bits of a bf16 number that is an integer of at most eight bits.
constexpr int16_t bf16_bits(int integer) {
    if (integer == 0) {
        return 0;
    }
    const int size = integer < 0 ? -integer : integer;
    int exponent = 0;
    while (size >> (exponent + 1) != 0) {
        ++exponent;
    }
    return static_cast<int16_t>((integer < 0 ? 0x8000 : 0) | (127 + exponent) << 7 | ((size << (7 - exponent)) & 0x7f));
}

// A table's numbers as words, again and again.
template <typename Table, bool BF16>
struct TableWords {
    alignas(64) int16_t of[Table::SIZE > 32 ? Table::SIZE : 32];

    constexpr TableWords() : of() {
        for (int i = 0; i < static_cast<int>(sizeof of / sizeof of[0]); ++i) {
            const int number = Table::at(i % Table::SIZE);
            of[i] = BF16 ? bf16_bits(number) : static_cast<int16_t>(number);
        }
    }
};

// The number of a table that the lowest bits of each word choose. What is above them belongs to other numbers.
template <typename Table, bool BF16 = false>
inline Pairs looked_up(Pairs words) {
    static constexpr TableWords<Table, BF16> TABLE;
    const __m512i index = reinterpret_cast<__m512i>(words), first = _mm512_load_si512(TABLE.of);
    if constexpr (Table::SIZE <= 32) {
        return reinterpret_cast<Pairs>(_mm512_maskz_permutexvar_epi16(0xffffffff, index, first));
    } else {
        static_assert(Table::SIZE == 64, "as many as two registers hold");
        return reinterpret_cast<Pairs>(_mm512_permutex2var_epi16(first, index, _mm512_load_si512(TABLE.of + 32)));
    }
}

// The lowest bits MASK of `low`, the others of `high`.
template <int MASK>
inline Pairs merged(Pairs low, Pairs high) {
    constexpr int FIRST_OR_THIRD = 0xe2;  // where the second is 1 the first, elsewhere the third
    return reinterpret_cast<Pairs>(_mm512_ternarylogic_epi32(reinterpret_cast<__m512i>(low), _mm512_set1_epi16(MASK),
                                                             reinterpret_cast<__m512i>(high), FIRST_OR_THIRD));
}

struct Bf16Numbers {
    template <typename Table>
    static Pairs look_up(Pairs words) {
        return looked_up<Table, true>(words);
    }
    // 32 numbers of a byte.
    static Pairs signed_bytes(const char* at) { return narrow_pairs(integers_at(at), integers_at(at + LANES)); }

  private:
    // Intrinsics: the compiler takes a conversion from bytes to pieces.
    static Ints integers_at(const char* at) {
        return reinterpret_cast<Ints>(
            _mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
    }

    static Pairs narrow_pairs(Ints first, Ints second) {
        const auto floats_of_ints = [](Ints each) {
            return _mm512_maskz_cvtepi32_ps(0xffff, reinterpret_cast<__m512i>(each));
        };
        return reinterpret_cast<Pairs>(_mm512_cvtne2ps_pbh(floats_of_ints(second), floats_of_ints(first)));
    }
};

// 32 numbers of e4m3 as bf16: exponents count from 7, not from 127, and numbers without a leading one come from a table.
inline Pairs e4m3(const char* at) {
    constexpr Pairs SMALL = {0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};  // 0 to 7 times 2^-9
    const auto codes = reinterpret_cast<Pairs>(
        _mm512_maskz_cvtepu8_epi16(0xffffffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
    const Pairs usual = (codes << 4 & 0x7f0) + static_cast<int16_t>(120 << 7);
    const __mmask32 small = _mm512_testn_epi16_mask(reinterpret_cast<__m512i>(codes), _mm512_set1_epi16(0x78));
    const __m512i size = _mm512_mask_permutexvar_epi16(reinterpret_cast<__m512i>(usual), small, reinterpret_cast<__m512i>(codes),
                                                       reinterpret_cast<__m512i>(SMALL));
    return reinterpret_cast<Pairs>(size) | (codes << 8 & static_cast<int16_t>(0x8000));
}

inline Floats float16(const char* at) {
    return reinterpret_cast<Floats>(_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))));
}

inline __m128i load_bytes(const char* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }

inline Floats bytes(const char* at) {
    return reinterpret_cast<Floats>(_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepu8_epi32(0xffff, load_bytes(at))));
}

inline Floats signed_bytes(const char* at) {
    return reinterpret_cast<Floats>(_mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepi8_epi32(0xffff, load_bytes(at))));
}

inline void add_product(IntSums& sums, Pairs weights, int32_t pair) {
    sums = reinterpret_cast<IntSums>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(weights),
                                                      _mm512_set1_epi32(pair)));
}

inline void add_bf16_product(FloatSums& sums, Pairs weights, int32_t pair) {
    sums = reinterpret_cast<FloatSums>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sums), reinterpret_cast<__m512bh>(weights),
                                                        reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair))));
}

inline Floats multiply_add(Floats a, Floats b, Floats c) {
    return reinterpret_cast<Floats>(
        _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
}
