// Scores of queries with blocks of 16 keys. Include after vectors.h and the level's register constants.
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

inline Words load_words(const void* at) {
    Words words;
    std::memcpy(&words, at, sizeof words);
    return words;
}

// Keys [BLOCKS] as `Kept` turns them.
template <typename Kept, int ROWS, int BLOCKS>
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
                of_keys[v] = Kept::key(keys + block * pairs * Kept::PAIR_WORDS + key, pair, f);
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

template <typename Kept, int... TILE>
Score score_of(int rows, int blocks, std::integer_sequence<int, TILE...>) {
    constexpr Score TILES[] = {score<Kept, TILE / SCORE_BLOCKS + 1, TILE % SCORE_BLOCKS + 1>...};
    return TILES[(rows - 1) * SCORE_BLOCKS + blocks - 1];
}

template <typename Kept>
Score score_of(int rows, int blocks) {
    return score_of<Kept>(rows, blocks, std::make_integer_sequence<int, TILE_ROWS * SCORE_BLOCKS>());
}
