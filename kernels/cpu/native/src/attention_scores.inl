// Scores of queries with blocks of 16 keys. Behind vectors.h and what the level's source says of its registers.
//
// Two neighbouring dimensions are a pair, one 32-bit word. Keys are turned so that a vector holds a pair of as many keys
// as it has lanes: [pairs][16]; queries so that those of one tile of registers lie side by side: [pairs][FACTORS][rows]. A
// score is one chain of additions over the pairs, whatever the tile.

#if defined(PAIRS_ARE_MULTIPLIED)
using Factor = Words;
using Query = uint32_t;
constexpr int FACTORS = 1;

inline Factor factor(Words pairs, int) { return pairs; }

inline Floats add_product(Floats sum, Factor keys, Query query) {
    return reinterpret_cast<Floats>(
        _mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(keys),
                         reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int32_t>(query)))));
}
#else
using Factor = Floats;
using Query = float;
constexpr int FACTORS = 2;  // the first numbers of pairs, and then the second

inline Factor factor(Words pairs, int which) {
    return reinterpret_cast<Floats>(which == 0 ? pairs << 16 : pairs & 0xffff0000u);
}

inline Floats add_product(Floats sum, Factor keys, Query query) { return keys * query + sum; }
#endif

inline Query query_factor(uint32_t pair, int which) {
    const uint32_t bits = FACTORS == 1 ? pair : which == 0 ? pair << 16 : pair & 0xffff0000u;
    Query query;
    std::memcpy(&query, &bits, sizeof query);
    return query;
}

// Line `line` of a strip's, which are as many as a key has pairs.
inline void prefetch_line(const uint16_t* strip, int64_t stride, int64_t line) {
    __builtin_prefetch(strip + line % BLOCK_TOKENS * stride + line / BLOCK_TOKENS * HEAD_VECTOR, 0, 2);
}

inline Words load_words(const void* at) {
    Words words;
    std::memcpy(&words, at, sizeof words);
    return words;
}

template <int ROWS, int BLOCKS>
void score(const Query* queries, const uint32_t* keys, int64_t pairs, float* scores) {
    constexpr int VECTORS = BLOCKS * BLOCK_TOKENS / LANES;
    Floats sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; ++r) {
        for (int v = 0; v < VECTORS; ++v) {
            sums[r][v] = Floats{};  // `= {}` for all of them clears memory
        }
    }
    for (int64_t pair = 0; pair < pairs; ++pair) {
        for (int f = 0; f < FACTORS; ++f) {
            Factor of_keys[VECTORS];
            for (int v = 0; v < VECTORS; ++v) {
                const int64_t block = v * LANES / BLOCK_TOKENS, key = v * LANES % BLOCK_TOKENS;
                of_keys[v] = factor(load_words(keys + (block * pairs + pair) * BLOCK_TOKENS + key), f);
            }
            for (int r = 0; r < ROWS; ++r) {
                const Query query = queries[(pair * FACTORS + f) * ROWS + r];
                for (int v = 0; v < VECTORS; ++v) {
                    sums[r][v] = add_product(sums[r][v], of_keys[v], query);
                }
            }
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        for (int v = 0; v < VECTORS; ++v) {
            store_floats(scores + r * PART_TOKENS + v * LANES, sums[r][v]);
        }
    }
}

using Score = void (*)(const Query*, const uint32_t*, int64_t, float*);

template <int... TILE>
Score score_of(int rows, int blocks, std::integer_sequence<int, TILE...>) {
    constexpr Score TILES[] = {score<TILE / SCORE_BLOCKS + 1, TILE % SCORE_BLOCKS + 1>...};
    return TILES[(rows - 1) * SCORE_BLOCKS + blocks - 1];
}

inline Score score_of(int rows, int blocks) {
    return score_of(rows, blocks, std::make_integer_sequence<int, TILE_ROWS * SCORE_BLOCKS>());
}

// 16 keys, `stride` numbers apart, into [pairs][16]; asks for the strip `ahead` meanwhile.
#if REGISTER_BYTES == 64
inline void turn_keys(const uint16_t* keys, int64_t stride, int64_t pairs, const uint16_t* ahead, uint32_t* turned) {
    const auto load = [](const uint16_t* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); };
    int64_t pair = 0;
    for (; pair + 4 <= pairs; pair += 4) {
        for (int64_t line = pair; line < pair + 4; ++line) {
            prefetch_line(ahead, stride, line);
        }
        const uint16_t* quarters[4] = {keys + 2 * pair, keys + 2 * pair + 4 * stride, keys + 2 * pair + 8 * stride,
                                       keys + 2 * pair + 12 * stride};
        Words rows[4];  // in quarter l of row i: four pairs of key 4 l + i
        for (int i = 0; i < 4; ++i) {
            __m512i row = _mm512_castsi128_si512(load(quarters[0] + i * stride));
            row = _mm512_mask_broadcast_i32x4(row, 0x00f0, load(quarters[1] + i * stride));
            row = _mm512_mask_broadcast_i32x4(row, 0x0f00, load(quarters[2] + i * stride));
            row = _mm512_mask_broadcast_i32x4(row, 0xf000, load(quarters[3] + i * stride));
            rows[i] = reinterpret_cast<Words>(row);
        }
        constexpr Words LOW = {0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29};  // 32-bit words of two, by quarter
        constexpr Words HIGH = {2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31};
        constexpr Words EVEN = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};  // and pairs of words
        constexpr Words ODD = {2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31};
        const Words low01 = __builtin_shuffle(rows[0], rows[1], LOW), low23 = __builtin_shuffle(rows[2], rows[3], LOW);
        const Words high01 = __builtin_shuffle(rows[0], rows[1], HIGH), high23 = __builtin_shuffle(rows[2], rows[3], HIGH);
        const Words columns[4] = {__builtin_shuffle(low01, low23, EVEN), __builtin_shuffle(low01, low23, ODD),
                                  __builtin_shuffle(high01, high23, EVEN), __builtin_shuffle(high01, high23, ODD)};
        std::memcpy(turned + pair * BLOCK_TOKENS, columns, sizeof columns);
    }
#else
inline void turn_keys(const uint16_t* keys, int64_t stride, int64_t pairs, const uint16_t* ahead, uint32_t* turned) {
    typedef uint32_t Four __attribute__((vector_size(16)));
    int64_t pair = 0;
    for (; pair + 4 <= pairs; pair += 4) {
        for (int64_t line = pair; line < pair + 4; ++line) {
            prefetch_line(ahead, stride, line);
        }
        for (int64_t key = 0; key < BLOCK_TOKENS; key += 4) {
            Four rows[4];
            for (int i = 0; i < 4; ++i) {
                std::memcpy(&rows[i], keys + (key + i) * stride + 2 * pair, sizeof rows[i]);
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
                std::memcpy(turned + (pair + i) * BLOCK_TOKENS + key, &columns[i], sizeof columns[i]);
            }
        }
    }
#endif
    for (; pair < pairs; ++pair) {
        for (int64_t key = 0; key < BLOCK_TOKENS; ++key) {
            std::memcpy(turned + pair * BLOCK_TOKENS + key, keys + key * stride + 2 * pair, sizeof *turned);
        }
    }
}
