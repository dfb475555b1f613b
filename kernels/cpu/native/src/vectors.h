// Sixteen numbers at a time, in one source for every level of the processor: the compiler makes of these types what its
// target has. Include behind `#pragma GCC target`, behind all standard headers, and within a namespace of the level:
// a function that was compiled for one level must not stand in for that of another.

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

constexpr int LANES = 16;

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

// In a fixed order, by halves.
inline float sum(Floats values) {
    float lanes[LANES];
    std::memcpy(lanes, &values, sizeof lanes);
    for (int width = LANES / 2; width > 0; width /= 2) {
        for (int lane = 0; lane < width; ++lane) {
            lanes[lane] += lanes[lane + width];
        }
    }
    return lanes[0];
}

inline float largest(Floats values) {
    float lanes[LANES];
    std::memcpy(lanes, &values, sizeof lanes);
    float found = lanes[0];
    for (int lane = 1; lane < LANES; ++lane) {
        found = lanes[lane] > found ? lanes[lane] : found;
    }
    return found;
}
