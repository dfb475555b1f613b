// Tiles of the bf16 product on AVX-512, of rows times 32 outputs: how they are cut, and which weights are prefetched.
// Include within the level's namespace, after `vectors.h`, `store.h`, <immintrin.h> and the level's definitions of:
//
//   Input             a number of x as the level takes it: two of them for a pair
//   Rows              rows_of(product, row): where a row and those after it are, and how far apart
//   Weights           load_weights(at): a pair of each of 32 outputs
//   FACTORS           numbers of which a pair's product is made, one after another
//   add_factor        adds that of one row to its two sums

constexpr int64_t PAIR_BYTES = 2 * BLOCK_OUTPUTS * sizeof(uint16_t);
constexpr int64_t NEAR_PAIRS = 32;  // how far ahead weights are fetched into the first cache
constexpr int MOST_ROWS = 12;       // of a tile: two sums each, two to four weights, one input: 27 to 29 of 32 registers

// Weights that are fetched while pairs are computed: with pair i those at `at` + i `step`. The hardware stops at the end of a
// page and starts again with each block; a core waits for memory there unless it has been asked in time.
struct Fetch {
    const char* at;
    int64_t step;
};

// A tile: rows [row, row + ROWS) of a block, and the weights that are prefetched.
struct Tile {
    const Product& product;
    int64_t block, row;
    bool near;   // what is a little ahead in this block, and at its end what begins the next
    Fetch next;  // otherwise a share of the next block, half a pair or less with each, into the second cache
};

// Sums of ROWS rows over pairs [first, last) of each of PARALLEL quarters, added to `sums`.
template <int ROWS, int PARALLEL, _mm_hint HINT>
inline void add_pairs(const char* weights, const Input* x, int64_t x_stride, int64_t quarter, int64_t first, int64_t last,
                      Fetch fetch, __m512 (&sums)[PARALLEL][ROWS][2]) {
    for (int64_t pair = first; pair < last; ++pair) {
        for (int q = 0; q < PARALLEL; ++q) {
            const int64_t index = q * quarter + pair;
            _mm_prefetch(fetch.at + index * fetch.step, HINT);
            if (HINT == _MM_HINT_T0) {
                _mm_prefetch(fetch.at + index * fetch.step + 64, HINT);
            }
            const Weights both = load_weights(weights + index * PAIR_BYTES);
            for (int f = 0; f < FACTORS; ++f) {
                for (int r = 0; r < ROWS; ++r) {
                    add_factor(both, x + r * x_stride + 2 * index, f, sums[q][r]);
                }
            }
        }
    }
}

// PARALLEL quarters at a time: as many as there are registers for.
template <int ROWS, int PARALLEL>
void compute(const Tile& tile) {
    const Product& product = tile.product;
    const int64_t pairs = product.weight->inputs / 2, quarter = pairs / QUARTERS;
    const auto* block = static_cast<const char*>(product.weight->packed) + tile.block * pairs * PAIR_BYTES;
    const auto [x_row, stride] = rows_of(product, tile.row);
    const int64_t inner = std::max<int64_t>(0, quarter - NEAR_PAIRS);

    __m512 all[QUARTERS / PARALLEL][PARALLEL][ROWS][2];
    for (int64_t group = 0; group < QUARTERS / PARALLEL; ++group) {
        const char* weights = block + group * PARALLEL * quarter * PAIR_BYTES;
        const Input* x = x_row + group * PARALLEL * quarter * 2;
        __m512 sums[PARALLEL][ROWS][2];
        for (auto& of_quarter : sums) {
            for (auto& of_row : of_quarter) {
                of_row[0] = of_row[1] = _mm512_setzero_ps();
            }
        }
        if (tile.near) {
            const bool at_end = (group + 1) * PARALLEL == QUARTERS;
            const char* coming = at_end ? block + pairs * PAIR_BYTES : weights + PARALLEL * quarter * PAIR_BYTES;
            const Fetch ahead{weights + NEAR_PAIRS * PAIR_BYTES, PAIR_BYTES}, over{coming - inner * PAIR_BYTES, PAIR_BYTES};
            add_pairs<ROWS, PARALLEL, _MM_HINT_T0>(weights, x, stride, quarter, 0, inner, ahead, sums);
            add_pairs<ROWS, PARALLEL, _MM_HINT_T0>(weights, x, stride, quarter, inner, quarter, over, sums);
        } else {
            const Fetch share{tile.next.at + group * PARALLEL * quarter * tile.next.step, tile.next.step};
            add_pairs<ROWS, PARALLEL, _MM_HINT_T1>(weights, x, stride, quarter, 0, quarter, share, sums);
        }
        std::memcpy(all[group], sums, sizeof sums);
    }
    auto& of_quarter = reinterpret_cast<__m512(&)[QUARTERS][ROWS][2]>(all);
    auto& of_last = reinterpret_cast<__m512(&)[1][ROWS][2]>(of_quarter[QUARTERS - 1]);
    const Fetch nothing{block, 0};
    add_pairs<ROWS, 1, _MM_HINT_T0>(block, x_row, stride, 0, QUARTERS * quarter, pairs, nothing, of_last);
    for (int r = 0; r < ROWS; ++r) {
        const auto of_half = [&](int half) {
            const __m512 front = _mm512_add_ps(of_quarter[0][r][half], of_quarter[1][r][half]);
            return reinterpret_cast<Floats>(
                _mm512_add_ps(front, _mm512_add_ps(of_quarter[2][r][half], of_quarter[3][r][half])));
        };
        store_sums(product, tile.block, tile.row + r, of_half(0), of_half(1));
    }
}

constexpr void (*COMPUTE[MOST_ROWS + 1])(const Tile&) = {
    nullptr,       compute<1, 4>, compute<2, 4>, compute<3, 4>, compute<4, 2>,  compute<5, 2>,  compute<6, 2>,
    compute<7, 1>, compute<8, 1>, compute<9, 1>, compute<10, 1>, compute<11, 1>, compute<12, 1>};

// Several tiles read a block from memory once, and it is fetched while those of the block before are computed: arithmetic
// does not wait for memory nor memory for arithmetic.
inline void all_rows(const Product& product, int64_t block) {
    const int64_t tiles = (product.rows + MOST_ROWS - 1) / MOST_ROWS;
    const int64_t block_bytes = product.weight->inputs / 2 * PAIR_BYTES;
    const auto* next = static_cast<const char*>(product.weight->packed) + (block + 1) * block_bytes;
    for (int64_t t = 0; t < tiles; ++t) {  // as equal as they can be
        const int64_t row = t * product.rows / tiles, end = (t + 1) * product.rows / tiles;
        const bool near = tiles == 1 || product.next_block < 0 || (t == 0 && !product.follows);
        COMPUTE[end - row]({product, block, row, near, {next + t * block_bytes / tiles, PAIR_BYTES / tiles}});
    }
}
