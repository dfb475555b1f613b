// The storage formats of keys and values, and their conversion. Include after attention_scores.inl.
//
// Of a slice of dimensions, as many as two vectors hold, a value is read as its first and its second numbers: in bf16 the
// even and the odd ones, as words of pairs are taken apart where they are; in int8 the lower and the upper half. Sums lie
// as they are read: `place_of` is where those of the first numbers begin, SECOND the offset of the others.

constexpr int64_t SLICE = 2 * LANES;

// Line `line` of a strip's, of which there are 16 a line of one token's.
inline void prefetch_line(const char* strip, int64_t stride, int64_t line) {
    __builtin_prefetch(strip + line % BLOCK_TOKENS * stride + line / BLOCK_TOKENS * LINE_BYTES, 0, 2);
}

// Four words of each of 16 keys, which lie `stride` bytes apart, into [4][16].
#if REGISTER_BYTES == 64
inline void turn_words(const char* keys, int64_t stride, uint32_t* turned) {
    const auto load = [](const char* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); };
    const char* quarters[4] = {keys, keys + 4 * stride, keys + 8 * stride, keys + 12 * stride};
    Words rows[4];  // in quarter l of row i: four words of key 4 l + i
    for (int i = 0; i < 4; ++i) {
        __m512i row = _mm512_castsi128_si512(load(quarters[0] + i * stride));
        row = _mm512_mask_broadcast_i32x4(row, 0x00f0, load(quarters[1] + i * stride));
        row = _mm512_mask_broadcast_i32x4(row, 0x0f00, load(quarters[2] + i * stride));
        row = _mm512_mask_broadcast_i32x4(row, 0xf000, load(quarters[3] + i * stride));
        rows[i] = reinterpret_cast<Words>(row);
    }
    constexpr Words LOW = {0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29};  // words of two, by quarter
    constexpr Words HIGH = {2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31};
    constexpr Words EVEN = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};  // and pairs of words
    constexpr Words ODD = {2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31};
    const Words low01 = __builtin_shuffle(rows[0], rows[1], LOW), low23 = __builtin_shuffle(rows[2], rows[3], LOW);
    const Words high01 = __builtin_shuffle(rows[0], rows[1], HIGH), high23 = __builtin_shuffle(rows[2], rows[3], HIGH);
    const Words columns[4] = {__builtin_shuffle(low01, low23, EVEN), __builtin_shuffle(low01, low23, ODD),
                              __builtin_shuffle(high01, high23, EVEN), __builtin_shuffle(high01, high23, ODD)};
    std::memcpy(turned, columns, sizeof columns);
}
#else
inline void turn_words(const char* keys, int64_t stride, uint32_t* turned) {
    typedef uint32_t Four __attribute__((vector_size(16)));
    for (int64_t key = 0; key < BLOCK_TOKENS; key += 4) {
        Four rows[4];
        for (int i = 0; i < 4; ++i) {
            std::memcpy(&rows[i], keys + (key + i) * stride, sizeof rows[i]);
        }
        const Four low01 = __builtin_shuffle(rows[0], rows[1], Four{0, 4, 1, 5});
        const Four low23 = __builtin_shuffle(rows[2], rows[3], Four{0, 4, 1, 5});
        const Four high01 = __builtin_shuffle(rows[0], rows[1], Four{2, 6, 3, 7});
        const Four high23 = __builtin_shuffle(rows[2], rows[3], Four{2, 6, 3, 7});
        const Four columns[4] = {__builtin_shuffle(low01, low23, Four{0, 1, 4, 5}),
                                 __builtin_shuffle(low01, low23, Four{2, 3, 6, 7}),
                                 __builtin_shuffle(high01, high23, Four{0, 1, 4, 5}),
                                 __builtin_shuffle(high01, high23, Four{2, 3, 6, 7})};
        for (int i = 0; i < 4; ++i) {
            std::memcpy(turned + i * BLOCK_TOKENS + key, &columns[i], sizeof columns[i]);
        }
    }
}
#endif

// Transposes whole pieces of 16 bytes while prefetching the strip `ahead`; returns the number of bytes.
template <typename Each>
inline int64_t turn_strip(const char* keys, int64_t stride, int64_t bytes, const char* ahead, Each each) {
    int64_t byte = 0;
    for (; byte + 16 <= bytes; byte += 16) {
        for (int64_t line = byte / 4; line < byte / 4 + 4; ++line) {
            prefetch_line(ahead, stride, line);
        }
        each(byte, keys + byte);
    }
    return byte;
}

struct Bf16 {
    static constexpr bool SCALED = false;
    static constexpr int64_t PAIR_WORDS = BLOCK_TOKENS;  // that a pair of 16 keys takes once it is turned
    static constexpr int64_t DIMS_OF_LINE = LINE_BYTES / 2;
    static constexpr int64_t SECOND = HEAD_VECTOR / 2;

    static Factor key(const uint32_t* keys, int64_t pair, int which) {
        return factor(load_words(keys + pair * PAIR_WORDS), which);
    }

    static void turn_keys(const char* keys, int64_t stride, int64_t dims, const char* ahead, uint32_t* turned) {
        const int64_t done = turn_strip(keys, stride, 2 * dims, ahead, [&](int64_t byte, const char* at) {
            turn_words(at, stride, turned + byte / 4 * PAIR_WORDS);
        });
        for (int64_t pair = done / 4; pair < dims / 2; ++pair) {
            for (int64_t key = 0; key < BLOCK_TOKENS; ++key) {
                std::memcpy(turned + pair * PAIR_WORDS + key, keys + key * stride + 4 * pair, sizeof *turned);
            }
        }
    }

    static int64_t place_of(int64_t dim) { return dim - dim % HEAD_VECTOR / 2; }

    static void split(Words words, Floats& first, Floats& second) {
        first = reinterpret_cast<Floats>(words << 16);
        second = reinterpret_cast<Floats>(words & 0xffff0000u);
    }

    static void load(const char* value, int64_t dim, Floats& first, Floats& second) {
        split(load_words(value + 2 * dim), first, second);
    }

    // The last of a head whose dimensions are no whole slice: `left` of them.
    static void load_some(const char* value, int64_t dim, int64_t left, Floats& first, Floats& second) {
#if REGISTER_BYTES == 64
        split(reinterpret_cast<Words>(_mm512_maskz_loadu_epi16((1u << left) - 1, value + 2 * dim)), first, second);
#else
        Words words = {};
        std::memcpy(&words, value + 2 * dim, static_cast<size_t>(left) * sizeof(uint16_t));
        split(words, first, second);
#endif
    }

    static Words join(Halves first, Halves second) {
        return __builtin_convertvector(first, Words) | __builtin_convertvector(second, Words) << 16;
    }
};

// Numbers are computed with as they are, and keys 2^24 times as large; scales come to scores and to weights.
struct Int8 {
    static constexpr bool SCALED = true;
    static constexpr float KEY_FACTOR = 1.0f / (1 << 24);
    static constexpr int64_t PAIR_WORDS = FACTORS * BLOCK_TOKENS;
    static constexpr int64_t DIMS_OF_LINE = LINE_BYTES;
    static constexpr int64_t SECOND = LANES;

    static Factor key(const uint32_t* keys, int64_t pair, int which) {
        return reinterpret_cast<Factor>(load_words(keys + pair * PAIR_WORDS + which * BLOCK_TOKENS));
    }

    // Two bytes of every word, this one and the next, as a pair that is multiplied.
    static void put_pair(Words words, int byte, uint32_t* to) {
        const auto widened = [](Words at_top) {
            return reinterpret_cast<Words>(__builtin_convertvector(reinterpret_cast<Ints>(at_top & 0xff000000u), Floats));
        };
        const Words first = widened(words << (24 - 8 * byte)), second = widened(words << (16 - 8 * byte));
        if constexpr (FACTORS == 1) {
            const Words pair = first >> 16 | second;
            std::memcpy(to, &pair, sizeof pair);
        } else {
            std::memcpy(to, &first, sizeof first);
            std::memcpy(to + BLOCK_TOKENS, &second, sizeof second);
        }
    }

    static void turn_keys(const char* keys, int64_t stride, int64_t dims, const char* ahead, uint32_t* turned) {
        const int64_t done = turn_strip(keys, stride, dims, ahead, [&](int64_t dim, const char* at) {
            alignas(64) uint32_t words[4 * BLOCK_TOKENS];
            turn_words(at, stride, words);
            for (int64_t pair = 0; pair < 8; ++pair) {
                for (int64_t key = 0; key < BLOCK_TOKENS; key += LANES) {
                    put_pair(load_words(words + pair / 2 * BLOCK_TOKENS + key), pair % 2 * 2,
                             turned + (dim / 2 + pair) * PAIR_WORDS + key);
                }
            }
        });
        for (int64_t pair = done / 2; pair < dims / 2; ++pair) {
            for (int64_t key = 0; key < BLOCK_TOKENS; key += LANES) {
                Words words;
                for (int64_t lane = 0; lane < LANES; ++lane) {
                    uint16_t bytes;
                    std::memcpy(&bytes, keys + (key + lane) * stride + 2 * pair, sizeof bytes);
                    words[lane] = bytes;
                }
                put_pair(words, 0, turned + pair * PAIR_WORDS + key);
            }
        }
    }

    static int64_t place_of(int64_t dim) { return dim; }

    static Floats widen_bytes(const char* at) {
#if REGISTER_BYTES == 64  // the compiler would widen them one by one
        const __m512i wide = _mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
        return __builtin_convertvector(reinterpret_cast<Ints>(wide), Floats);
#elif REGISTER_BYTES == 32
        const __m256i wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at)));
        return __builtin_convertvector(reinterpret_cast<Ints>(wide), Floats);
#else
        Bytes bytes;
        std::memcpy(&bytes, at, sizeof bytes);
        return __builtin_convertvector(__builtin_convertvector(bytes, Ints), Floats);
#endif
    }

    static void load(const char* value, int64_t dim, Floats& first, Floats& second) {
        first = widen_bytes(value + dim);
        second = widen_bytes(value + dim + LANES);
    }

    static void load_some(const char* value, int64_t dim, int64_t left, Floats& first, Floats& second) {
        char bytes[SLICE] = {};
#if REGISTER_BYTES == 64
        const __m256i some = _mm256_maskz_loadu_epi8((1u << left) - 1, value + dim);
        std::memcpy(bytes, &some, sizeof bytes);
#else
        std::memcpy(bytes, value + dim, static_cast<size_t>(left));
#endif
        load(bytes, 0, first, second);
    }

    static Words join(Halves first, Halves second) {
        const Halves both[2] = {first, second};
        return load_words(both);
    }
};
