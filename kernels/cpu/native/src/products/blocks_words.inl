// 32 words in one vector. Include within the level's namespace, after `vectors.h`.

typedef int16_t Pairs __attribute__((vector_size(64)));

inline Pairs shifted(Pairs words, int bits) {
    typedef uint16_t Unsigned __attribute__((vector_size(64)));
    return reinterpret_cast<Pairs>(reinterpret_cast<Unsigned>(words) >> bits);
}

inline Pairs widened(const char* at) {
    typedef int8_t Bytes __attribute__((vector_size(2 * LANES)));
    Bytes bytes;
    std::memcpy(&bytes, at, sizeof bytes);
    return __builtin_convertvector(bytes, Pairs);
}

// 16 sums of products of pairs.
using IntSums = Ints;
using FloatSums = Floats;

inline Floats floats_of(IntSums sums) { return __builtin_convertvector(sums, Floats); }

inline Floats all_floats(FloatSums sums) { return sums; }
