// A step's tokens, one after another. Behind norms.inl.

// One head in float32, [D] filled up to whole vectors.
struct Head {
    alignas(64) float numbers[MOST_HEAD_DIM + LANES];
};

inline void load_head(const uint16_t* from, int64_t dims, Head& head) {
    int64_t at = 0;
    for (; at + LANES <= dims; at += LANES) {
        store_floats(head.numbers + at, load_bf16(from + at));
    }
    if (at < dims) {
        store_floats(head.numbers + at, load_some_bf16(from + at, dims - at));
    }
}

inline void store_head(const Head& head, int64_t dims, uint16_t* to) {
    int64_t at = 0;
    for (; at + LANES <= dims; at += LANES) {
        store_bf16(to + at, load_floats(head.numbers + at));
    }
    if (at < dims) {
        store_some_bf16(to + at, load_floats(head.numbers + at), dims - at);
    }
}

inline void norm_head(Head& head, int64_t dims, const float* weight, float eps) {
    const auto load = [&head](int64_t at, int64_t) { return load_floats(head.numbers + at); };  // zeros past the end
    const float scale = norm_scale(sum_of_squares(dims, load), dims, eps);
    int64_t at = 0;
    for (; at + LANES <= dims; at += LANES) {
        store_floats(head.numbers + at, load_floats(head.numbers + at) * scale * load_floats(weight + at));
    }
    if (at < dims) {
        const Floats weights = load_some_floats(weight + at, dims - at);
        store_floats(head.numbers + at, load_floats(head.numbers + at) * scale * weights);
    }
}

inline void turn_head(Head& head, int64_t half, const float* cos, const float* sin) {
    for (int64_t at = 0; at < half; at += LANES) {
        const int64_t lanes = half - at < LANES ? half - at : LANES;
        float* low = head.numbers + at;
        float* high = low + half;
        const Floats cosine = load_some_floats(cos + at, lanes), sine = load_some_floats(sin + at, lanes);
        const Floats first = load_floats(low), second = load_some_floats(high, lanes);
        store_some_floats(low, first * cosine - second * sine, lanes);
        store_some_floats(high, second * cosine + first * sine, lanes);
    }
}

// The same, where vectors are whole.
inline void turn_whole_head(Head& head, int64_t half, const float* cos, const float* sin) {
    for (int64_t at = 0; at < half; at += LANES) {
        float* low = head.numbers + at;
        float* high = low + half;
        const Floats cosine = load_floats(cos + at), sine = load_floats(sin + at);
        const Floats first = load_floats(low), second = load_floats(high);
        store_floats(low, first * cosine - second * sine);
        store_floats(high, second * cosine + first * sine);
    }
}

// A query or key of the token at `position`: read, normed, turned.
inline void make_head(const TpHeads& heads, const uint16_t* from, const float* norm, int64_t position, Head& head) {
    load_head(from, heads.head_dim, head);
    if (norm != nullptr) {
        norm_head(head, heads.head_dim, norm, heads.norm_eps);
    }
    const float* cos = heads.cos + position * heads.rotary_half;
    const float* sin = heads.sin + position * heads.rotary_half;
    if (heads.rotary_half % LANES == 0) {
        turn_whole_head(head, heads.rotary_half, cos, sin);
    } else {
        turn_head(head, heads.rotary_half, cos, sin);
    }
}

inline void rotate_token(const Rotation& rotation, int64_t token, int64_t position, int64_t block) {
    const TpHeads& heads = *rotation.heads;
    const int64_t dims = heads.head_dim, of_keys = heads.kv_heads * dims;
    uint16_t* query = rotation.qkv + token * rotation.qkv_stride;
    uint16_t* key = query + heads.query_heads * dims;
    uint16_t* slot = rotation.kv_layer + (block * BLOCK_TOKENS + position % BLOCK_TOKENS) * 2 * of_keys;
    Head head;
    for (int64_t i = 0; i < heads.query_heads; ++i, query += dims) {
        make_head(heads, query, heads.query_norm, position, head);
        store_head(head, dims, query);
    }
    for (int64_t i = 0; i < heads.kv_heads; ++i) {
        make_head(heads, key + i * dims, heads.key_norm, position, head);
        store_head(head, dims, key + i * dims);
    }
    std::memcpy(slot, key, static_cast<size_t>(2 * of_keys) * sizeof(uint16_t));  // values lie behind keys in both
}

void rotate_tokens(const Rotation& rotation, int64_t first, int64_t last) {
    const TpRows& rows = *rotation.rows;
    int64_t row = 0, row_begins = 0;
    for (int64_t token = first; token < last; ++token) {
        while (token >= row_begins + rows.query_lens[row]) {
            row_begins += rows.query_lens[row++];
        }
        const int64_t position = rows.context_lens[row] - rows.query_lens[row] + token - row_begins;
        const int64_t block = rows.block_tables[row * rows.block_table_stride + position / BLOCK_TOKENS];
        rotate_token(rotation, token, position, block);
    }
}
