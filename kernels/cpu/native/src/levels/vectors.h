// Vectors of 16 numbers in one source for every level: the compiler maps these types to the registers of its target.
// Include after `#pragma GCC target`, after all standard headers, and within a namespace of the level: a function compiled
// for one level must not be linked in place of another level's.
//
// The compiler keeps vectors wider than a register in memory, at every step of a sum. For inner loops, define
// REGISTER_BYTES first as 16 or 32, if the level has such registers, to get vectors of 4 or 8 numbers.

#if !defined(REGISTER_BYTES)
#define REGISTER_BYTES 64
#endif

typedef float Floats __attribute__((vector_size(REGISTER_BYTES)));
typedef int32_t Ints __attribute__((vector_size(REGISTER_BYTES)));
typedef uint32_t Words __attribute__((vector_size(REGISTER_BYTES)));
typedef uint16_t Halves __attribute__((vector_size(REGISTER_BYTES / 2)));
typedef int8_t Bytes __attribute__((vector_size(REGISTER_BYTES / 4)));

constexpr int LANES = REGISTER_BYTES / 4;

inline Floats floats(float value) { return Floats{} + value; }

inline Floats load_floats(const float* at) {
    Floats values;
    std::memcpy(&values, at, sizeof values);
    return values;
}

inline void store_floats(float* at, Floats values) { std::memcpy(at, &values, sizeof values); }

inline Floats widen(Halves bits) { return reinterpret_cast<Floats>(__builtin_convertvector(bits, Words) << 16); }

inline Floats load_bf16(const uint16_t* at) {
    Halves bits;
    std::memcpy(&bits, at, sizeof bits);
    return widen(bits);
}

// To the nearest, ties to even; a NaN stays one.
inline Halves narrow(Floats values) {
    const Words words = reinterpret_cast<Words>(values);
    const Words rounded = (words + 0x7fffu + (words >> 16 & 1u)) >> 16;
    const Words quiet = words >> 16 | 0x40u;
    const Words is_nan = reinterpret_cast<Words>(values != values);
    return __builtin_convertvector((rounded & ~is_nan) | (quiet & is_nan), Halves);
}

inline void store_bf16(uint16_t* at, Floats values) {
    const Halves bits = narrow(values);
    std::memcpy(at, &bits, sizeof bits);
}

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// Loads the first `lanes` numbers, the others 0; and stores that many.
inline Floats load_some_floats(const float* at, int64_t lanes) {
    Floats values = {};
    std::memcpy(&values, at, static_cast<size_t>(lanes) * sizeof(float));
    return values;
}

inline Floats load_some_bf16(const uint16_t* at, int64_t lanes) {
    Halves bits = {};
    std::memcpy(&bits, at, static_cast<size_t>(lanes) * sizeof(uint16_t));
    return widen(bits);
}

inline void store_some_floats(float* at, Floats values, int64_t lanes) {
    std::memcpy(at, &values, static_cast<size_t>(lanes) * sizeof(float));
}

inline void store_some_bf16(uint16_t* at, Floats values, int64_t lanes) {
    const Halves bits = narrow(values);
    std::memcpy(at, &bits, static_cast<size_t>(lanes) * sizeof(uint16_t));
}

// e^x within 2e-7 of it: 2^n times Taylor's polynomial in what x is beyond n ln 2, whose eighth power is less than a float32
// tells apart within +-ln(2) / 2. The polynomial, and n.
inline Floats exponential_of_rest(Floats x, Ints* exponent) {
    const Floats shift = floats(12582912.0f);  // 1.5 x 2^23: what is added to it is rounded to a whole number
    const Floats shifted = x * 1.44269504f + shift;
    const Floats whole = shifted - shift;
    const Floats rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    Floats power = floats(1.0f / 5040.0f);
    constexpr float COEFFICIENTS[] = {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f};
    for (const float coefficient : COEFFICIENTS) {
        power = power * rest + coefficient;
    }
    *exponent = reinterpret_cast<Ints>(shifted) - reinterpret_cast<Ints>(shift);
    return power;
}

// 0 below what a float32 holds, infinity above it, a NaN for a NaN.
inline Floats exponential(Floats x) {
    const Floats least = floats(-104.0f), most = floats(89.0f);
    x = x < least ? least : x;
    x = x > most ? most : x;
    Ints exponent;
    const Floats power = exponential_of_rest(x, &exponent);
    const Ints half = exponent >> 1;  // in two factors, since 2^128 is no float32, and 2^-150 either
    return power * reinterpret_cast<Floats>((half + 127) << 23) * reinterpret_cast<Floats>((exponent - half + 127) << 23);
}

// The same for numbers from -87 to 87 and NaNs; others give anything.
inline Floats normal_exponential(Floats x) {
    Ints exponent;
    const Floats power = exponential_of_rest(x, &exponent);
    return power * reinterpret_cast<Floats>((exponent + 127) << 23);
}

inline Floats silu(Floats x) { return x / (exponential(-x) + 1.0f); }

// 1 - 2 / (e^2x + 1).
inline Floats hyperbolic_tangent(Floats x) { return 1.0f - 2.0f / (exponential(x + x) + 1.0f); }

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): the tanh form of GELU (Hendrycks and Gimpel, arXiv 1606.08415).
inline Floats gelu(Floats x) { return x / (exponential((x + x * x * x * 0.044715f) * -1.5957691216f) + 1.0f); }

// (up + 1) gate sigmoid(1.702 gate), of a gate up to 7 and an up within +-7.
inline Floats clamped_swiglu(Floats gate, Floats up) {
    const Floats most = floats(7.0f);
    gate = gate > most ? most : gate;
    up = up > most ? most : up < -most ? -most : up;
    return (up + 1.0f) * gate / (exponential(gate * -1.702f) + 1.0f);
}

// The upper half of sixteen lanes next to the lower, then quarters, and so on: a fold by these ends in lane 0.
#if REGISTER_BYTES == 64
inline Floats other_half(Floats values) {
    return __builtin_shuffle(values, Ints{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
}
inline Floats other_quarter(Floats values) {
    return __builtin_shuffle(values, Ints{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
}
inline Floats other_pair(Floats values) {
    return __builtin_shuffle(values, Ints{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
}
#elif REGISTER_BYTES == 32
inline Floats other_quarter(Floats values) { return __builtin_shuffle(values, Ints{4, 5, 6, 7, 0, 1, 2, 3}); }
inline Floats other_pair(Floats values) { return __builtin_shuffle(values, Ints{2, 3, 0, 1, 6, 7, 4, 5}); }
#else
inline Floats other_pair(Floats values) { return __builtin_shuffle(values, Ints{2, 3, 0, 1}); }
#endif

// In a fixed order, by halves.
inline float sum(Floats values) {
#if REGISTER_BYTES >= 64
    values += other_half(values);
#endif
#if REGISTER_BYTES >= 32
    values += other_quarter(values);
#endif
    values += other_pair(values);
    return values[0] + values[1];
}

inline float largest(Floats values) {
#if REGISTER_BYTES >= 64
    values = larger(values, other_half(values));
#endif
#if REGISTER_BYTES >= 32
    values = larger(values, other_quarter(values));
#endif
    values = larger(values, other_pair(values));
    return values[1] > values[0] ? values[1] : values[0];
}
