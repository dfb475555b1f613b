// What levels without AVX-512 share of `blocks_vectors.inl`'s needs. Include within the level's namespace, after `vectors.h`
// and the level's `Pairs`.

template <int OFFSET>
inline Pairs nibbles(Pairs words) {
    return (words & 15) - static_cast<int16_t>(OFFSET);
}

// 16 float16 numbers: their exponent counts from 15, not from 127, which a factor of 2^112 makes up for, also for those
// without a leading one; there are no infinite scales.
inline Floats float16(const char* at) {
    Halves halves;
    std::memcpy(&halves, at, sizeof halves);
    const Words bits = __builtin_convertvector(halves, Words);
    const Floats size = reinterpret_cast<Floats>((bits & 0x7fffu) << 13) * 0x1p112f;
    return reinterpret_cast<Floats>(reinterpret_cast<Words>(size) | (bits & 0x8000u) << 16);
}

// 16 numbers of a byte each.
template <typename Byte>
inline Floats small_integers(const char* at) {
    typedef Byte Bytes __attribute__((vector_size(LANES)));
    Bytes lanes;
    std::memcpy(&lanes, at, sizeof lanes);
    return __builtin_convertvector(__builtin_convertvector(lanes, Ints), Floats);
}

inline Floats bytes(const char* at) { return small_integers<uint8_t>(at); }

inline Floats signed_bytes(const char* at) { return small_integers<int8_t>(at); }
