// Values weighed and added up. Behind attention_scores.inl.
//
// 32 dimensions of a value are 16 words; their even halves become one vector of sums, their odd halves another. A sum is
// one chain of additions, key after key, whatever the tile.

#if defined(PAIRS_ARE_MULTIPLIED)
constexpr int VALUE_VECTORS = 2, WIDE_VECTORS = 4, WIDE_ROWS = 3;  // 24 sums; few queries take wide slices
#else
constexpr int VALUE_VECTORS = 1, WIDE_VECTORS = 1, WIDE_ROWS = 0;
#endif

// Values of a part: of key i of block b, `blocks[b] + i * stride` on; and the strips to ask for meanwhile.
struct Values {
    const uint16_t* blocks[PART_BLOCKS];
    const uint16_t* ahead[PART_BLOCKS];
    int64_t stride, head_dim;
};

// The last words of a head whose dimensions are no whole vector: `numbers` of 32.
inline Words load_some_words(const uint16_t* at, int64_t numbers) {
#if defined(PAIRS_ARE_MULTIPLIED)
    return reinterpret_cast<Words>(_mm512_maskz_loadu_epi16((1u << numbers) - 1, at));
#else
    Words words = {};
    std::memcpy(&words, at, static_cast<size_t>(numbers) * sizeof *at);
    return words;
#endif
}

// `weights` [ROWS][PART_TOKENS] times keys [first, last) of the part, dimensions from `dim` on, onto sums [ROWS][stride].
template <int ROWS, int VECTORS, bool WHOLE>
void add_values(const Values& values, int64_t dim, int64_t first, int64_t last, const float* weights, float* sums,
                int64_t stride) {
    Floats even[ROWS][VECTORS], odd[ROWS][VECTORS];
    for (int r = 0; r < ROWS; ++r) {
        for (int v = 0; v < VECTORS; ++v) {
            even[r][v] = load_floats(sums + r * stride + dim + v * HEAD_VECTOR);
            odd[r][v] = load_floats(sums + r * stride + dim + v * HEAD_VECTOR + LANES);
        }
    }
    const int64_t left = values.head_dim - dim;
    while (first < last) {
        const int64_t from = first % BLOCK_TOKENS * values.stride + dim;
        const uint16_t *value = values.blocks[first / BLOCK_TOKENS] + from, *ahead = values.ahead[first / BLOCK_TOKENS] + from;
        const int64_t end = std::min(last, (first / BLOCK_TOKENS + 1) * BLOCK_TOKENS);
        for (; first < end; ++first, value += values.stride, ahead += values.stride) {
            Floats even_values[VECTORS], odd_values[VECTORS];
            for (int v = 0; v < VECTORS; ++v) {
                const uint16_t* at = value + v * HEAD_VECTOR;
                __builtin_prefetch(ahead + v * HEAD_VECTOR, 0, 2);
                const Words words = WHOLE ? load_words(at) : load_some_words(at, left);
                even_values[v] = reinterpret_cast<Floats>(words << 16);
                odd_values[v] = reinterpret_cast<Floats>(words & 0xffff0000u);
            }
            for (int r = 0; r < ROWS; ++r) {
                const float weight = weights[r * PART_TOKENS + first];
                for (int v = 0; v < VECTORS; ++v) {
                    even[r][v] = even_values[v] * weight + even[r][v];
                    odd[r][v] = odd_values[v] * weight + odd[r][v];
                }
            }
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        for (int v = 0; v < VECTORS; ++v) {
            store_floats(sums + r * stride + dim + v * HEAD_VECTOR, even[r][v]);
            store_floats(sums + r * stride + dim + v * HEAD_VECTOR + LANES, odd[r][v]);
        }
    }
}

// All dimensions, slice by slice.
template <int ROWS>
void add_heads(const Values& values, int64_t first, int64_t last, const float* weights, float* sums, int64_t stride) {
    int64_t dim = 0;
    if constexpr (ROWS <= WIDE_ROWS) {
        for (; dim + WIDE_VECTORS * HEAD_VECTOR <= values.head_dim; dim += WIDE_VECTORS * HEAD_VECTOR) {
            add_values<ROWS, WIDE_VECTORS, true>(values, dim, first, last, weights, sums, stride);
        }
    }
    for (; dim + VALUE_VECTORS * HEAD_VECTOR <= values.head_dim; dim += VALUE_VECTORS * HEAD_VECTOR) {
        add_values<ROWS, VALUE_VECTORS, true>(values, dim, first, last, weights, sums, stride);
    }
    for (; dim + HEAD_VECTOR <= values.head_dim; dim += HEAD_VECTOR) {
        add_values<ROWS, 1, true>(values, dim, first, last, weights, sums, stride);
    }
    if (dim < values.head_dim) {
        add_values<ROWS, 1, false>(values, dim, first, last, weights, sums, stride);
    }
}

using AddHeads = void (*)(const Values&, int64_t, int64_t, const float*, float*, int64_t);
#if defined(PAIRS_ARE_MULTIPLIED)
constexpr AddHeads ADD_HEADS[] = {add_heads<1>, add_heads<2>, add_heads<3>, add_heads<4>, add_heads<5>, add_heads<6>};
#else
constexpr AddHeads ADD_HEADS[] = {add_heads<1>, add_heads<2>};
#endif
