// What levels without AVX-512 share of `blocks_vectors.inl`'s needs. Include within the level's namespace, after `vectors.h`
// and the level's `Pairs`.

// The number of a table, an integer of a byte, that the lowest bits of each word choose.
template <typename Table>
inline Pairs looked_up(Pairs words) {
    const Pairs index = words & static_cast<int16_t>(Table::SIZE - 1);
    if constexpr (Table::COUNTED) {
        return index + static_cast<int16_t>(Table::at(0));
    } else {
        return chosen<Table>(index);
    }
}

// The lowest bits MASK of `low`, the others of `high`.
template <int MASK>
inline Pairs merged(Pairs low, Pairs high) {
    return (low & static_cast<int16_t>(MASK)) | (high & static_cast<int16_t>(~MASK));
}

// 32 numbers of e4m3 as bf16. Their bits of exponent and mantissa are those of a float32 2^120 times smaller, also where there
// is no leading one.
inline Pairs e4m3(const char* at) {
    Halves codes;
    std::memcpy(&codes, at, sizeof codes);
    const Words both = __builtin_convertvector(codes, Words);
    const auto bits = [](Words code) {
        const Floats size = reinterpret_cast<Floats>((code & 0x7fu) << 20) * 0x1p120f;
        return reinterpret_cast<Words>(size) | (code & 0x80u) << 24;
    };
    const Words pairs = bits(both & 0xffu) >> 16 | bits(both >> 8);
    Pairs words;
    std::memcpy(&words, &pairs, sizeof words);
    return words;
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

// Integers are multiplied with int16 rows here.
struct Bf16Numbers {};
