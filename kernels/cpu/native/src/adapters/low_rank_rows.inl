// Shrinking and expanding in vectors: bf16 weights are taken apart into float32, x is widened beforehand. Include within a
// namespace of the level, after `vectors.h` and SHRUNK_TOKENS, how many tokens are shrunk at a time: four sums each, two
// weights and an input are in registers.

constexpr int64_t CHUNK_PAIRS = 64;  // of inputs that are widened at a time; even
constexpr int64_t AHEAD_PAIRS = 64;  // how far ahead ranks are fetched: what comes after `down` is `up`, which is needed next
constexpr int CHAINS = 4;            // sums of a token, of which each takes every fourth input

inline Floats first_of(Words pairs) { return reinterpret_cast<Floats>(pairs << 16); }
inline Floats second_of(Words pairs) { return reinterpret_cast<Floats>(pairs & 0xffff0000u); }

inline Words load_pairs(const uint16_t* at) {
    Words pairs;
    std::memcpy(&pairs, at, sizeof pairs);
    return pairs;
}

inline void widen_inputs(const uint16_t* x, int64_t count, float* wide) {
    int64_t input = 0;
    for (; input + LANES <= count; input += LANES) {
        store_floats(wide + input, load_bf16(x + input));
    }
    if (input < count) {
        store_floats(wide + input, load_some_bf16(x + input, count - input));
    }
}

template <int TOKENS>
inline void add_pair(const uint16_t* down, const float (&wide)[TOKENS][2 * CHUNK_PAIRS + LANES], int64_t pair, int chain,
                     Floats (&sums)[TOKENS][CHAINS]) {
    __builtin_prefetch(down + AHEAD_PAIRS * RANK_BLOCK * 2);
    const Words pairs = load_pairs(down);
    const Floats first = first_of(pairs), second = second_of(pairs);
    for (int t = 0; t < TOKENS; ++t) {
        sums[t][chain] += wide[t][2 * pair] * first;
        sums[t][chain + 1] += wide[t][2 * pair + 1] * second;
    }
}

// Tokens from `token` on, and LANES ranks of a block from `lane` on.
template <int TOKENS>
inline void shrink_lanes(const Shrink& work, int64_t token, int64_t block, int64_t lane, int64_t first, int64_t last) {
    Floats sums[TOKENS][CHAINS] = {};
    for (int64_t begin = first; begin < last; begin += CHUNK_PAIRS) {
        const int64_t pairs = std::min(CHUNK_PAIRS, last - begin);
        alignas(64) float wide[TOKENS][2 * CHUNK_PAIRS + LANES];
        for (int t = 0; t < TOKENS; ++t) {
            widen_inputs(work.x + work.tokens[token + t] * work.x_stride + 2 * begin, 2 * pairs, wide[t]);
        }
        const uint16_t* down = work.change->down(block) + (begin * RANK_BLOCK + lane) * 2;
        int64_t pair = 0;
        for (; pair + 2 <= pairs; pair += 2) {
            add_pair<TOKENS>(down + pair * RANK_BLOCK * 2, wide, pair, 0, sums);
            add_pair<TOKENS>(down + (pair + 1) * RANK_BLOCK * 2, wide, pair + 1, 2, sums);
        }
        if (pair < pairs) {
            add_pair<TOKENS>(down + pair * RANK_BLOCK * 2, wide, pair, 0, sums);
        }
    }
    for (int t = 0; t < TOKENS; ++t) {
        float* to = work.sums + (token + t) * work.sums_stride + block * RANK_BLOCK + lane;
        store_floats(to, (sums[t][0] + sums[t][1]) + (sums[t][2] + sums[t][3]));
    }
}

template <int TOKENS>
void shrink_tokens(const Shrink& work, int64_t token, int64_t block, int64_t first, int64_t last) {
    for (int64_t lane = 0; lane < RANK_BLOCK; lane += LANES) {
        shrink_lanes<TOKENS>(work, token, block, lane, first, last);
    }
}

template <size_t... INDEX>
constexpr std::array<void (*)(const Shrink&, int64_t, int64_t, int64_t, int64_t), sizeof...(INDEX)> shrinks_of(
    std::index_sequence<INDEX...>) {
    return {shrink_tokens<INDEX + 1>...};
}

void shrink_block(const Shrink& work, int64_t block, int64_t first, int64_t last) {
    static constexpr auto SHRINKS = shrinks_of(std::make_index_sequence<SHRUNK_TOKENS>());
    const int64_t tiles = (work.count + SHRUNK_TOKENS - 1) / SHRUNK_TOKENS;
    for (int64_t t = 0; t < tiles; ++t) {  // as equal as they can be
        const int64_t token = t * work.count / tiles, end = (t + 1) * work.count / tiles;
        SHRINKS[static_cast<size_t>(end - token - 1)](work, token, block, first, last);
    }
}

// Adds to ROWS rows with one change what half a block's outputs add up.
template <int ROWS>
inline void expand_rows(const Added* added, const HalfRanks& ranks, float* sums) {
    const uint16_t* up = added->change->up(ranks);
    for (int64_t lane = 0; lane < UP_OUTPUTS; lane += LANES) {
        Floats first[ROWS] = {}, second[ROWS] = {};
        for (int64_t pair = 0; pair < ranks.pairs; ++pair) {
            const Words pairs = load_pairs(up + (pair * UP_OUTPUTS + lane) * 2);
            const Floats firsts = first_of(pairs), seconds = second_of(pairs);
            for (int r = 0; r < ROWS; ++r) {
                const float* shrunk = added[r].shrunk + ranks.first + 2 * pair;
                first[r] += shrunk[0] * firsts;
                second[r] += shrunk[1] * seconds;
            }
        }
        for (int r = 0; r < ROWS; ++r) {
            float* to = sums + r * 2 * UP_OUTPUTS + lane;
            store_floats(to, load_floats(to) + (first[r] + second[r]));
        }
    }
}

// Both halves of a block. A thread's next block lies after this one.
template <int ROWS>
inline void expand_block(const Added* added, int64_t half, float* sums) {
    constexpr int64_t LINE_NUMBERS = 32;
    const HalfRanks &low = added->change->half(half), &high = added->change->half(half + 1);
    const uint16_t* next = added->change->up(low) + (low.pairs + high.pairs) * LINE_NUMBERS;
    for (int64_t line = 0; line < low.pairs + high.pairs; ++line) {
        __builtin_prefetch(next + line * LINE_NUMBERS, 0, 2);
    }
    expand_rows<ROWS>(added, low, sums);
    expand_rows<ROWS>(added, high, sums + UP_OUTPUTS);
}

void expand(const Added* added, int64_t rows, int64_t half, float* sums) {
    constexpr int64_t MOST_ROWS = 4;
    for (int64_t row = 0; row < rows;) {
        const LowRank* change = added[row].change;
        int64_t count = 1;
        while (count < MOST_ROWS && row + count < rows && added[row + count].change == change) {
            ++count;
        }
        float* to = sums + row * 2 * UP_OUTPUTS;
        if (change == nullptr) {
            row += count;
        } else if (count == MOST_ROWS) {
            expand_block<MOST_ROWS>(added + row, half, to);
            row += MOST_ROWS;
        } else {
            expand_block<1>(added + row, half, to);
            ++row;
        }
    }
}
