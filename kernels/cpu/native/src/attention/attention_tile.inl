// A tile of queries over a part of their context, and the merging of parts. Include after attention_values.inl.

constexpr float LOWEST = -3.402823466e38f;
constexpr float LEAST_POWER = -87.0f;  // e to less is no normal float32: negligible relative to the largest, which weighs 1

struct Span {
    int64_t first, last;
};

// The working memory of a tile, on its thread's stack.
struct Work {
    alignas(64) Query queries[MOST_QUERY_NUMBERS / 2 * FACTORS];  // [pairs][FACTORS][rows] of each tile of registers
    alignas(64) uint32_t keys[SCORE_BLOCKS * BLOCK_TOKENS * MOST_HEAD_DIM / 2 * FACTORS];
    alignas(64) float scores[MOST_QUERIES * PART_TOKENS];
    alignas(64) float key_scales[PART_TOKENS], value_scales[PART_TOKENS];  // where they are scaled
    Span seen[MOST_QUERIES];  // keys that each query sees of the part, counted from the part's first
    Values values;
};

// Tiles of registers, as equal as they can be: calls `each(first query, queries)`.
template <typename Each>
inline void for_register_tiles(int64_t queries, Each each) {
    const int64_t tiles = (queries + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t first = tile * queries / tiles, last = (tile + 1) * queries / tiles;
        each(first, last - first);
    }
}

void take_queries(const Attention& attention, const Tile& tile, Work& work) {
    const int64_t group = attention.group(), dims = attention.heads->head_dim, pairs = dims / 2;
    for_register_tiles(tile.last - tile.first, [&](int64_t first, int64_t rows) {
        for (int64_t r = 0; r < rows; ++r) {
            const int64_t query = tile.first + first + r, head = tile.kv_head * group + query % group;
            const uint16_t* from = attention.qkv + (tile.token + query / group) * attention.qkv_stride + head * dims;
            Query* to = work.queries + first * pairs * FACTORS + r;
            for (int64_t pair = 0; pair < pairs; ++pair) {
                uint32_t numbers;
                std::memcpy(&numbers, from + 2 * pair, sizeof numbers);
                for (int f = 0; f < FACTORS; ++f, to += rows) {
                    *to = query_factor(numbers, f);
                }
            }
        }
    });
}

// Which keys each query sees of the part; and all of them together.
Span find_seen(const Attention& attention, const Tile& tile, int64_t part, Work& work) {
    const int64_t group = attention.group(), start = part * PART_TOKENS;
    Span all{PART_TOKENS, 0};
    for (int64_t query = tile.first; query < tile.last; ++query) {
        const int64_t position = tile.position_of(query, group);
        Span& seen = work.seen[query - tile.first];
        seen.first = std::max<int64_t>(0, attention.first_visible(position) - start);
        seen.last = std::min<int64_t>(PART_TOKENS, position + 1 - start);
        if (seen.first < seen.last) {
            all = {std::min(all.first, seen.first), std::max(all.last, seen.last)};
        }
    }
    return all;
}

// Scales of 16 keys and, `values` scales on, of their values.
template <typename Kept>
void take_scales(const char* scales, int64_t values, float* of_keys, float* of_values) {
    for (int64_t key = 0; key < BLOCK_TOKENS; key += LANES) {
        Halves bits[2];
        std::memcpy(&bits[0], scales + 2 * key, sizeof bits[0]);
        std::memcpy(&bits[1], scales + 2 * (values + key), sizeof bits[1]);
        store_floats(of_keys + key, widen(bits[0]) * Kept::KEY_FACTOR);
        store_floats(of_values + key, widen(bits[1]));
    }
}

// Scores of all queries with the blocks that hold keys [seen.first, seen.last); finds where their values are.
template <typename Kept>
void score_part(const Attention& attention, const Tile& tile, int64_t part, Span seen, Ahead& ahead, Work& work) {
    const TpHeads& heads = *attention.heads;
    const KvLayout& kv = attention.kv;
    const int64_t dims = heads.head_dim, pairs = dims / 2;
    const int64_t* table = attention.rows->block_tables + tile.row * attention.rows->block_table_stride;
    const int64_t end = (seen.last + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    work.values.stride = kv.token;
    work.values.head_dim = dims;
    for (int64_t block = seen.first / BLOCK_TOKENS; block < end; ++block) {
        const char* in_layer = attention.kv_layer + table[part * PART_BLOCKS + block] * kv.block;
        work.values.blocks[block] = in_layer + kv.values() + tile.kv_head * kv.head;
        if constexpr (Kept::SCALED) {
            take_scales<Kept>(in_layer + kv.scales + tile.kv_head * kv.scales_of_head() * 2, kv.value_scales(),
                              work.key_scales + block * BLOCK_TOKENS, work.value_scales + block * BLOCK_TOKENS);
        }
    }
    for (int64_t block = seen.first / BLOCK_TOKENS; block < end;) {
        const int64_t blocks = std::min<int64_t>(SCORE_BLOCKS, end - block);
        for (int64_t b = 0; b < blocks; ++b) {
            const char* keys = work.values.blocks[block + b] - kv.values();
            Kept::turn_keys(keys, kv.token, dims, ahead.next(), work.keys + b * pairs * Kept::PAIR_WORDS);
        }
        for_register_tiles(tile.last - tile.first, [&](int64_t first, int64_t rows) {
            score_of<Kept>(static_cast<int>(rows), static_cast<int>(blocks))(
                work.queries + first * pairs * FACTORS, work.keys, pairs,
                work.scores + first * PART_TOKENS + block * BLOCK_TOKENS);
        });
        block += blocks;
    }
}

// Scores of a query become softcap x tanh(scale x score / softcap).
__attribute__((noinline)) inline void cap_scores(float* scores, Span seen, float scale, float softcap) {
    for (int64_t block = seen.first / LANES; block < (seen.last + LANES - 1) / LANES; ++block) {
        const Floats score = load_floats(scores + block * LANES);
        store_floats(scores + block * LANES, hyperbolic_tangent(score * (scale / softcap)) * softcap);
    }
}

// Scores [first, last) of a query become weights, e^(scale (score - largest)). Gives the largest and the sum of weights.
// Of keys and values that are scaled, scores are multiplied by their key's first, and weights by their value's then.
template <typename Kept>
__attribute__((noinline)) void weigh(const Attention& attention, const Work& work, float* scores, Span seen, float* largest_and_total) {
    const int64_t begin = seen.first / LANES, end = (seen.last + LANES - 1) / LANES;
    if constexpr (Kept::SCALED) {
        for (int64_t block = begin; block < end; ++block) {
            store_floats(scores + block * LANES, load_floats(scores + block * LANES) * load_floats(work.key_scales + block * LANES));
        }
    }
    const float scale = attention.exponent_scale();
    if (attention.heads->softcap > 0.0f) {
        cap_scores(scores, seen, attention.score_scale(), attention.heads->softcap);
    }
    for (int64_t key = begin * LANES; key < seen.first; ++key) {
        scores[key] = -INFINITY;
    }
    for (int64_t key = seen.last; key < end * LANES; ++key) {
        scores[key] = -INFINITY;
    }
    Floats most = floats(LOWEST);  // a part of which all scores are -inf has no weight
    for (int64_t block = begin; block < end; ++block) {
        most = larger(load_floats(scores + block * LANES), most);
    }
    const float most_of_all = largest(most);
    Floats total = {};
    for (int64_t block = begin; block < end; ++block) {
        const Floats power = (load_floats(scores + block * LANES) - most_of_all) * scale;
        const Floats weights = power < LEAST_POWER ? Floats{} : normal_exponential(power);
        total += weights;
        if constexpr (Kept::SCALED) {
            store_floats(scores + block * LANES, weights * load_floats(work.value_scales + block * LANES));
        } else {
            store_floats(scores + block * LANES, weights);
        }
    }
    largest_and_total[0] = most_of_all;
    largest_and_total[1] = sum(total);
}

// A tile of registers: what all its queries see at once, what some see before and after it one by one. What a query
// does not see is not multiplied by 0 but left alone: it may be a NaN.
template <typename Kept>
void add_tile(const Work& work, int64_t first, int64_t rows, float* sums, int64_t stride) {
    const Span* seen = work.seen + first;
    Span common = seen[0];
    for (int64_t r = 1; r < rows; ++r) {
        common = {std::max(common.first, seen[r].first), std::min(common.last, seen[r].last)};
    }
    const bool together = common.first < common.last;
    const float* weights = work.scores + first * PART_TOKENS;
    sums += first * stride;
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t last = together ? common.first : seen[r].last;
        if (seen[r].first < last) {
            add_heads_of<Kept>(1)(work.values, seen[r].first, last, weights + r * PART_TOKENS, sums + r * stride, stride);
        }
    }
    if (together) {
        add_heads_of<Kept>(rows)(work.values, common.first, common.last, weights, sums, stride);
        for (int64_t r = 0; r < rows; ++r) {
            if (common.last < seen[r].last) {
                add_heads_of<Kept>(1)(work.values, common.last, seen[r].last, weights + r * PART_TOKENS, sums + r * stride, stride);
            }
        }
    }
}

template <typename Kept>
void compute_part(const Attention& attention, const Tile& tile, int64_t part, Ahead& ahead, Work& work,
                  float* sums) {
    const int64_t dims = attention.heads->head_dim, padded = padded_dim(dims), stride = sums_stride(dims);
    const Span all = find_seen(attention, tile, part, work);
    score_part<Kept>(attention, tile, part, all, ahead, work);
    for (int64_t query = 0; query < tile.last - tile.first; ++query) {
        if (work.seen[query].first < work.seen[query].last) {
            float* of_query = sums + query * stride;
            std::memset(of_query, 0, static_cast<size_t>(padded) * sizeof *of_query);
            weigh<Kept>(attention, work, work.scores + query * PART_TOKENS, work.seen[query], of_query + padded);
        }
    }
    for (int64_t block = all.first / BLOCK_TOKENS; block * BLOCK_TOKENS < all.last; ++block) {
        work.values.ahead[block] = ahead.next();
    }
    for_register_tiles(tile.last - tile.first, [&](int64_t first, int64_t rows) {
        add_tile<Kept>(work, first, rows, sums, stride);
        std::copy(work.values.blocks, work.values.blocks + PART_BLOCKS, work.values.ahead);  // all are asked for
    });
}

// Adds a later part's sums of a query to those of the parts before it.
__attribute__((noinline)) void merge_query(float* sums, const float* part, int64_t padded, float scale) {
    const float before = sums[padded], then = part[padded];
    const float most = then > before ? then : before;
    const Floats factors = exponential((Floats{before, then} - most) * scale);
    const float keep = factors[0], take = factors[1];
    for (int64_t dim = 0; dim < padded; dim += LANES) {
        store_floats(sums + dim, load_floats(sums + dim) * keep + load_floats(part + dim) * take);
    }
    sums[padded] = most;
    sums[padded + 1] = sums[padded + 1] * keep + part[padded + 1] * take;
}

// A part of all queries that see some of it: their first is taken as it is.
void merge_part(const Attention& attention, const Tile& tile, int64_t part, const float* part_sums, float* sums) {
    const int64_t dims = attention.heads->head_dim, stride = sums_stride(dims), group = attention.group();
    const float scale = attention.exponent_scale();
    for (int64_t query = tile.first; query < tile.last; ++query) {
        const int64_t position = tile.position_of(query, group);
        const int64_t first = attention.first_visible(position) / PART_TOKENS, last = position / PART_TOKENS;
        const int64_t at = (query - tile.first) * stride;
        if (part == first) {
            std::memcpy(sums + at, part_sums + at, static_cast<size_t>(stride) * sizeof *sums);
        } else if (part > first && part <= last) {
            merge_query(sums + at, part_sums + at, padded_dim(dims), scale);
        }
    }
}

// The weight of a head's sink next to those of keys, which are relative to the largest score.
__attribute__((noinline)) inline float sink_weight(const Attention& attention, int64_t head, float most) {
    if (attention.heads->sinks == nullptr) {
        return 0.0f;
    }
    return exponential(floats(attention.heads->sinks[head] - most * attention.exponent_scale()))[0];
}

template <typename Kept>
void store_queries(const Attention& attention, const Tile& tile, const float* sums) {
    const int64_t dims = attention.heads->head_dim, padded = padded_dim(dims), group = attention.group();
    for (int64_t query = tile.first; query < tile.last; ++query, sums += sums_stride(dims)) {
        const int64_t head = tile.kv_head * group + query % group;
        uint16_t* out = attention.out + (tile.token + query / group) * attention.out_stride + head * dims;
        const float inverse = 1.0f / (sums[padded + 1] + sink_weight(attention, head, sums[padded]));
        for (int64_t dim = 0; dim < dims; dim += SLICE) {
            const float* from = sums + Kept::place_of(dim);
            const Halves first = narrow(load_floats(from) * inverse);
            const Halves second = narrow(load_floats(from + Kept::SECOND) * inverse);
            const Words words = Kept::join(first, second);
            std::memcpy(out + dim, &words, static_cast<size_t>(std::min(dims - dim, SLICE)) * sizeof *out);
        }
    }
}

Span parts_of(const Attention& attention, const Tile& tile) {
    const int64_t group = attention.group();
    return {attention.first_visible(tile.position_of(tile.first, group)) / PART_TOKENS,
            tile.position_of(tile.last - 1, group) / PART_TOKENS + 1};
}

template <typename Kept>
void one_part(const Attention& attention, const Tile& tile, int64_t part, Ahead& ahead, float* sums) {
    Work work;
    take_queries(attention, tile, work);
    compute_part<Kept>(attention, tile, part, ahead, work, sums);
}

template <typename Kept>
void merge_parts(const Attention& attention, const Tile& tile, const float* part_sums, int64_t of_part) {
    alignas(64) float sums[MOST_SUMS];
    const Span parts = parts_of(attention, tile);
    for (int64_t part = parts.first; part < parts.last; ++part, part_sums += of_part) {
        merge_part(attention, tile, part, part_sums, sums);
    }
    store_queries<Kept>(attention, tile, sums);
}

template <typename Kept>
void whole_tile(const Attention& attention, const Tile& tile, Ahead& ahead) {
    Work work;
    alignas(64) float sums[MOST_SUMS], part_sums[MOST_SUMS];
    const Span parts = parts_of(attention, tile);
    take_queries(attention, tile, work);
    for (int64_t part = parts.first; part < parts.last; ++part) {
        compute_part<Kept>(attention, tile, part, ahead, work, parts.last - parts.first == 1 ? sums : part_sums);
        if (parts.last - parts.first > 1) {
            merge_part(attention, tile, part, part_sums, sums);
        }
    }
    store_queries<Kept>(attention, tile, sums);
}

template <typename Kept>
constexpr AttentionKernels KERNELS_OF = {one_part<Kept>, merge_parts<Kept>, whole_tile<Kept>};
