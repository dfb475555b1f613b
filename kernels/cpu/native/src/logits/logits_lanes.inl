// What `vectors.h` lacks and levels do differently: bits of comparisons, numbers packed by bits. Include after it and
// LOGITS_AVX512, LOGITS_AVX2 or neither: what gcc says of a target that a pragma has set comes too late for an #if.

typedef double Doubles __attribute__((vector_size(2 * REGISTER_BYTES)));

constexpr uint32_t ALL_LANES = (1u << LANES) - 1;

inline Words lane_numbers() {
    constexpr uint32_t NUMBERS[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    Words numbers;
    std::memcpy(&numbers, NUMBERS, sizeof numbers);
    return numbers;
}

inline uint32_t bits_of(Ints mask) {
#if defined(LOGITS_AVX512)
    return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
#elif defined(LOGITS_AVX2)
    return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
#elif defined(__SSE2__)
    return static_cast<uint32_t>(_mm_movemask_ps(reinterpret_cast<__m128>(mask)));
#else
    uint32_t bits = 0;
    for (int lane = 0; lane < LANES; ++lane) {
        bits |= static_cast<uint32_t>(mask[lane] & 1) << lane;
    }
    return bits;
#endif
}

// The lanes whose bits are set, packed; writes LANES numbers and returns the number of set bits.
inline int pack_lanes(float* at, Floats values, uint32_t bits) {
#if defined(LOGITS_AVX512)
    _mm512_storeu_ps(at, _mm512_maskz_compress_ps(static_cast<__mmask16>(bits), reinterpret_cast<__m512>(values)));
    return __builtin_popcount(bits);
#else
    float lanes[LANES];
    std::memcpy(lanes, &values, sizeof lanes);
    int count = 0;
    for (; bits != 0; bits &= bits - 1) {
        at[count++] = lanes[__builtin_ctz(bits)];
    }
    return count;
#endif
}

// The values as they are, rounded: what is added to them afterwards is not made one operation with what made them.
inline Floats rounded(Floats values) {
#if defined(LOGITS_AVX512)
    asm("" : "+v"(values));
#elif defined(__SSE2__)
    asm("" : "+x"(values));
#else
    asm("" : "+m"(values));
#endif
    return values;
}

// As many as there are, then -inf.
inline Floats load_some(const float* at, int64_t count) {
    if (count >= LANES) {
        return load_floats(at);
    }
    Floats values = floats(-INFINITY);
    std::memcpy(&values, at, static_cast<size_t>(count) * sizeof(float));
    return values;
}

// exp(x) of x <= 0, as `exponential` but with less to look after: within 2e-7 of it down to -86, and below as there.
inline Floats decayed(Floats x) {
    x = larger(x, floats(-86.0f));
    const Floats shift = floats(12582912.0f);
    const Floats shifted = x * 1.44269504f + shift;
    const Floats whole = shifted - shift;
    const Floats rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    Floats power = floats(1.0f / 5040.0f);
    constexpr float COEFFICIENTS[] = {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f};
    for (const float coefficient : COEFFICIENTS) {
        power = power * rest + coefficient;
    }
    return reinterpret_cast<Floats>(reinterpret_cast<Words>(power) + (reinterpret_cast<Words>(shifted) << 23));
}

// A sum of many, in double: of sums in float32 over so few that what those lose does not matter. In a fixed order.
struct LongSum {
    Doubles lanes = {};

    void add(Floats few) { lanes += __builtin_convertvector(few, Doubles); }

    double total() const {
        double sum = 0;
        for (int lane = 0; lane < LANES; ++lane) {
            sum += lanes[lane];
        }
        return sum;
    }
};

constexpr int64_t FEW = 16 * LANES;
