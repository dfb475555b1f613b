// A tile of queries over a part of their context, and parts merged. Behind attention_values.inl.

constexpr float LOWEST = -3.402823466e38f;
constexpr float LEAST_POWER = -87.0f;  // e to less is no normal float32: nothing beside the largest, which weighs 1

struct Span {
    int64_t first, last;
};

// What a tile works on: on the stack of whoever computes it.
struct Work {
    alignas(64) Query queries[MOST_QUERIES * 128 / 2 * FACTORS];  // [pairs][FACTORS][rows] of each tile of registers
    alignas(64) uint32_t keys[SCORE_BLOCKS * BLOCK_TOKENS * MOST_HEAD_DIM / 2];
    alignas(64) float scores[MOST_QUERIES * PART_TOKENS];
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

// Scores of all queries with the blocks that hold keys [seen.first, seen.last); finds where their values are.
void score_part(const Attention& attention, const Tile& tile, int64_t part, Span seen, Ahead& ahead, Work& work) {
    const TpHeads& heads = *attention.heads;
    const int64_t dims = heads.head_dim, pairs = dims / 2, of_keys = heads.kv_heads * dims, stride = 2 * of_keys;
    const int64_t* table = attention.rows->block_tables + tile.row * attention.rows->block_table_stride;
    const int64_t end = (seen.last + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    work.values.stride = stride;
    work.values.head_dim = dims;
    for (int64_t block = seen.first / BLOCK_TOKENS; block < end; ++block) {
        const int64_t id = table[part * PART_BLOCKS + block];
        work.values.blocks[block] = attention.kv_layer + id * BLOCK_TOKENS * stride + of_keys + tile.kv_head * dims;
    }
    for (int64_t block = seen.first / BLOCK_TOKENS; block < end;) {
        const int64_t blocks = std::min<int64_t>(SCORE_BLOCKS, end - block);
        for (int64_t b = 0; b < blocks; ++b) {
            const uint16_t* keys = work.values.blocks[block + b] - of_keys;
            turn_keys(keys, stride, pairs, ahead.next(), work.keys + b * pairs * BLOCK_TOKENS);
        }
        for_register_tiles(tile.last - tile.first, [&](int64_t first, int64_t rows) {
            score_of(static_cast<int>(rows), static_cast<int>(blocks))(
                work.queries + first * pairs * FACTORS, work.keys, pairs,
                work.scores + first * PART_TOKENS + block * BLOCK_TOKENS);
        });
        block += blocks;
    }
}

// Scores [first, last) of a query become weights, e^(scale (score - largest)). Gives the largest and the sum of weights.
__attribute__((noinline)) void weigh(float* scores, Span seen, float scale, float* largest_and_total) {
    const int64_t begin = seen.first / LANES, end = (seen.last + LANES - 1) / LANES;
    for (int64_t key = begin * LANES; key < seen.first; ++key) {
        scores[key] = -INFINITY;
    }
    for (int64_t key = seen.last; key < end * LANES; ++key) {
        scores[key] = -INFINITY;
    }
    Floats most = floats(LOWEST);  // a part of which all scores are -inf weighs nothing beside others
    for (int64_t block = begin; block < end; ++block) {
        most = larger(load_floats(scores + block * LANES), most);
    }
    const float most_of_all = largest(most);
    Floats total = {};
    for (int64_t block = begin; block < end; ++block) {
        const Floats power = (load_floats(scores + block * LANES) - most_of_all) * scale;
        const Floats weights = power < LEAST_POWER ? Floats{} : normal_exponential(power);
        store_floats(scores + block * LANES, weights);
        total += weights;
    }
    largest_and_total[0] = most_of_all;
    largest_and_total[1] = sum(total);
}

// A tile of registers: what all its queries see together, what some see before and behind it one by one. What a query
// does not see is not multiplied by 0 but left alone: it may be a NaN.
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
            add_heads_of(1)(work.values, seen[r].first, last, weights + r * PART_TOKENS, sums + r * stride, stride);
        }
    }
    if (together) {
        add_heads_of(rows)(work.values, common.first, common.last, weights, sums, stride);
        for (int64_t r = 0; r < rows; ++r) {
            if (common.last < seen[r].last) {
                add_heads_of(1)(work.values, common.last, seen[r].last, weights + r * PART_TOKENS, sums + r * stride, stride);
            }
        }
    }
}

void compute_part(const Attention& attention, const Tile& tile, int64_t part, Ahead& ahead, Work& work,
                  float* sums) {
    const int64_t dims = attention.heads->head_dim, padded = padded_dim(dims), stride = sums_stride(dims);
    const float scale = 1.0f / std::sqrt(static_cast<float>(dims));
    const Span all = find_seen(attention, tile, part, work);
    score_part(attention, tile, part, all, ahead, work);
    for (int64_t query = 0; query < tile.last - tile.first; ++query) {
        if (work.seen[query].first < work.seen[query].last) {
            float* of_query = sums + query * stride;
            std::memset(of_query, 0, static_cast<size_t>(padded) * sizeof *of_query);
            weigh(work.scores + query * PART_TOKENS, work.seen[query], scale, of_query + padded);
        }
    }
    for (int64_t block = all.first / BLOCK_TOKENS; block * BLOCK_TOKENS < all.last; ++block) {
        work.values.ahead[block] = ahead.next();
    }
    for_register_tiles(tile.last - tile.first, [&](int64_t first, int64_t rows) {
        add_tile(work, first, rows, sums, stride);
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
    const float scale = 1.0f / std::sqrt(static_cast<float>(dims));
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

void store_queries(const Attention& attention, const Tile& tile, const float* sums) {
    const int64_t dims = attention.heads->head_dim, padded = padded_dim(dims), group = attention.group();
    for (int64_t query = tile.first; query < tile.last; ++query, sums += sums_stride(dims)) {
        const int64_t head = tile.kv_head * group + query % group;
        uint16_t* out = attention.out + (tile.token + query / group) * attention.out_stride + head * dims;
        const float inverse = 1.0f / sums[padded + 1];
        for (int64_t dim = 0; dim < dims; dim += SLICE) {
            const float* from = sums + place_of(dim);
            const Halves even = narrow(load_floats(from) * inverse);
            const Halves odd = narrow(load_floats(from + HEAD_VECTOR / 2) * inverse);
            const Words words = __builtin_convertvector(even, Words) | __builtin_convertvector(odd, Words) << 16;
            std::memcpy(out + dim, &words, static_cast<size_t>(std::min(dims - dim, SLICE)) * sizeof *out);
        }
    }
}

Span parts_of(const Attention& attention, const Tile& tile) {
    const int64_t group = attention.group();
    return {attention.first_visible(tile.position_of(tile.first, group)) / PART_TOKENS,
            tile.position_of(tile.last - 1, group) / PART_TOKENS + 1};
}

void one_part(const Attention& attention, const Tile& tile, int64_t part, Ahead& ahead, float* sums) {
    Work work;
    take_queries(attention, tile, work);
    compute_part(attention, tile, part, ahead, work, sums);
}

void merge_parts(const Attention& attention, const Tile& tile, const float* part_sums) {
    alignas(64) float sums[MOST_SUMS];
    const Span parts = parts_of(attention, tile);
    for (int64_t part = parts.first; part < parts.last; ++part) {
        merge_part(attention, tile, part, part_sums, sums);
        part_sums += (tile.last - tile.first) * sums_stride(attention.heads->head_dim);
    }
    store_queries(attention, tile, sums);
}

void whole_tile(const Attention& attention, const Tile& tile, Ahead& ahead) {
    Work work;
    alignas(64) float sums[MOST_SUMS], part_sums[MOST_SUMS];
    const Span parts = parts_of(attention, tile);
    take_queries(attention, tile, work);
    for (int64_t part = parts.first; part < parts.last; ++part) {
        compute_part(attention, tile, part, ahead, work, parts.last - parts.first == 1 ? sums : part_sums);
        if (parts.last - parts.first > 1) {
            merge_part(attention, tile, part, part_sums, sums);
        }
    }
    store_queries(attention, tile, sums);
}
