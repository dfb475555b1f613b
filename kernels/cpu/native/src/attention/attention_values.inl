// The weighted sum of values. Include after attention_kept.inl.
//
// A sum is one chain of additions, key after key, whatever the tile.

// Values of a part: of key i of block b, `blocks[b] + i * stride` on, in bytes; and the strips to prefetch.
struct Values {
    const char* blocks[PART_BLOCKS];
    const char* ahead[PART_BLOCKS];
    int64_t stride, head_dim;
};

// `weights` [ROWS][PART_TOKENS] times keys [first, last) of the part, dimensions from `dim` on, onto sums [ROWS][stride].
template <typename Kept, int ROWS, int VECTORS, bool WHOLE>
void add_values(const Values& values, int64_t dim, int64_t first, int64_t last, const float* weights, float* sums,
                int64_t stride) {
    Floats first_sums[ROWS][VECTORS], second_sums[ROWS][VECTORS];
    for (int r = 0; r < ROWS; ++r) {
        for (int v = 0; v < VECTORS; ++v) {
            const float* from = sums + r * stride + Kept::place_of(dim + v * SLICE);
            first_sums[r][v] = load_floats(from);
            second_sums[r][v] = load_floats(from + Kept::SECOND);
        }
    }
    const int64_t left = values.head_dim - dim;
    while (first < last) {
        const int64_t from = first % BLOCK_TOKENS * values.stride;
        const char *value = values.blocks[first / BLOCK_TOKENS] + from, *ahead = values.ahead[first / BLOCK_TOKENS] + from;
        const int64_t end = std::min(last, (first / BLOCK_TOKENS + 1) * BLOCK_TOKENS);
        for (; first < end; ++first, value += values.stride, ahead += values.stride) {
            Floats firsts[VECTORS], seconds[VECTORS];
            for (int v = 0; v < VECTORS; ++v) {
                if (v * SLICE % Kept::DIMS_OF_LINE == 0) {
                    __builtin_prefetch(ahead + (dim + v * SLICE) / Kept::DIMS_OF_LINE * LINE_BYTES, 0, 2);
                }
                if constexpr (WHOLE) {
                    Kept::load(value, dim + v * SLICE, firsts[v], seconds[v]);
                } else {
                    Kept::load_some(value, dim, left, firsts[v], seconds[v]);
                }
            }
            for (int r = 0; r < ROWS; ++r) {
                const float weight = weights[r * PART_TOKENS + first];
                for (int v = 0; v < VECTORS; ++v) {
                    first_sums[r][v] = firsts[v] * weight + first_sums[r][v];
                    second_sums[r][v] = seconds[v] * weight + second_sums[r][v];
                }
            }
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        for (int v = 0; v < VECTORS; ++v) {
            float* to = sums + r * stride + Kept::place_of(dim + v * SLICE);
            store_floats(to, first_sums[r][v]);
            store_floats(to + Kept::SECOND, second_sums[r][v]);
        }
    }
}

// All dimensions, slice by slice.
template <typename Kept, int ROWS>
void add_heads(const Values& values, int64_t first, int64_t last, const float* weights, float* sums, int64_t stride) {
    int64_t dim = 0;
    if constexpr (ROWS <= WIDE_ROWS) {
        for (; dim + WIDE_VECTORS * SLICE <= values.head_dim; dim += WIDE_VECTORS * SLICE) {
            add_values<Kept, ROWS, WIDE_VECTORS, true>(values, dim, first, last, weights, sums, stride);
        }
    }
    for (; dim + VALUE_VECTORS * SLICE <= values.head_dim; dim += VALUE_VECTORS * SLICE) {
        add_values<Kept, ROWS, VALUE_VECTORS, true>(values, dim, first, last, weights, sums, stride);
    }
    for (; dim + SLICE <= values.head_dim; dim += SLICE) {
        add_values<Kept, ROWS, 1, true>(values, dim, first, last, weights, sums, stride);
    }
    if (dim < values.head_dim) {
        add_values<Kept, ROWS, 1, false>(values, dim, first, last, weights, sums, stride);
    }
}

using AddHeads = void (*)(const Values&, int64_t, int64_t, const float*, float*, int64_t);

template <typename Kept, int... ROW>
AddHeads add_heads_of(int64_t rows, std::integer_sequence<int, ROW...>) {
    constexpr AddHeads BY_ROWS[] = {add_heads<Kept, ROW + 1>...};
    return BY_ROWS[rows - 1];
}

template <typename Kept>
AddHeads add_heads_of(int64_t rows) {
    return add_heads_of<Kept>(rows, std::make_integer_sequence<int, TILE_ROWS>());
}
