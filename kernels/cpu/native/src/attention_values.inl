// Values weighed and added up. Behind attention_scores.inl.
//
// Of 32 dimensions of a value, sums of the even ones lie before those of the odd ones, so that words of pairs can be taken
// apart where they are. A sum is one chain of additions, key after key, whatever the tile.

constexpr int64_t SLICE = 2 * LANES;  // dimensions whose pairs fill a register

// Where the sums of the slice's even dimensions lie; its odd ones are HEAD_VECTOR / 2 behind.
inline int64_t place_of(int64_t dim) { return dim - dim % HEAD_VECTOR / 2; }

// Values of a part: of key i of block b, `blocks[b] + i * stride` on; and the strips to ask for meanwhile.
struct Values {
    const uint16_t* blocks[PART_BLOCKS];
    const uint16_t* ahead[PART_BLOCKS];
    int64_t stride, head_dim;
};

// The last words of a head whose dimensions are no whole slice: `numbers` of it.
inline Words load_some_words(const uint16_t* at, int64_t numbers) {
#if REGISTER_BYTES == 64
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
            const float* from = sums + r * stride + place_of(dim + v * SLICE);
            even[r][v] = load_floats(from);
            odd[r][v] = load_floats(from + HEAD_VECTOR / 2);
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
                const uint16_t* at = value + v * SLICE;
                __builtin_prefetch(ahead + v * SLICE, 0, 2);
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
            float* to = sums + r * stride + place_of(dim + v * SLICE);
            store_floats(to, even[r][v]);
            store_floats(to + HEAD_VECTOR / 2, odd[r][v]);
        }
    }
}

// All dimensions, slice by slice.
template <int ROWS>
void add_heads(const Values& values, int64_t first, int64_t last, const float* weights, float* sums, int64_t stride) {
    int64_t dim = 0;
    if constexpr (ROWS <= WIDE_ROWS) {
        for (; dim + WIDE_VECTORS * SLICE <= values.head_dim; dim += WIDE_VECTORS * SLICE) {
            add_values<ROWS, WIDE_VECTORS, true>(values, dim, first, last, weights, sums, stride);
        }
    }
    for (; dim + VALUE_VECTORS * SLICE <= values.head_dim; dim += VALUE_VECTORS * SLICE) {
        add_values<ROWS, VALUE_VECTORS, true>(values, dim, first, last, weights, sums, stride);
    }
    for (; dim + SLICE <= values.head_dim; dim += SLICE) {
        add_values<ROWS, 1, true>(values, dim, first, last, weights, sums, stride);
    }
    if (dim < values.head_dim) {
        add_values<ROWS, 1, false>(values, dim, first, last, weights, sums, stride);
    }
}

using AddHeads = void (*)(const Values&, int64_t, int64_t, const float*, float*, int64_t);

template <int... ROW>
AddHeads add_heads_of(int64_t rows, std::integer_sequence<int, ROW...>) {
    constexpr AddHeads BY_ROWS[] = {add_heads<ROW + 1>...};
    return BY_ROWS[rows - 1];
}

inline AddHeads add_heads_of(int64_t rows) { return add_heads_of(rows, std::make_integer_sequence<int, TILE_ROWS>()); }
