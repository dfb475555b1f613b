// A step's tokens, one after another. Include after norms.inl.

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

// The smallest bf16 number that is no less than a finite one of 0 or more.
inline uint16_t bf16_from_above(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return static_cast<uint16_t>((bits + 0xffffu) >> 16);
}

// A key or value as whole numbers from -127 to 127, to the nearest, ties to even, and the scale that makes them what they
// were: bf16, and a NaN where one of them is not finite.
inline uint16_t keep_int8(const Head& head, int64_t dims, int8_t* to) {
    constexpr uint16_t NOT_A_NUMBER = 0x7fc0;
    Floats most = {}, faults = {};  // a number less itself is 0, or a NaN
    for (int64_t at = 0; at < dims; at += LANES) {
        const Floats numbers = load_floats(head.numbers + at);  // zeros past the end
        most = larger(numbers, most);
        most = larger(-numbers, most);
        faults += numbers - numbers;
    }
    const uint16_t scale = sum(faults) == 0.0f ? bf16_from_above(largest(most) / 127.0f) : NOT_A_NUMBER;
    if (scale == 0 || scale == NOT_A_NUMBER) {
        std::memset(to, 0, static_cast<size_t>(dims));
        return scale;
    }
    const float divisor = widen(Halves{scale})[0];
    const Floats shift = floats(12582912.0f);  // 1.5 x 2^23: what is added to it is rounded to a whole number
    for (int64_t at = 0; at < dims; at += LANES) {
        const Ints whole = reinterpret_cast<Ints>(load_floats(head.numbers + at) / divisor + shift) - reinterpret_cast<Ints>(shift);
        const Bytes bytes = __builtin_convertvector(whole, Bytes);
        std::memcpy(to + at, &bytes, static_cast<size_t>(dims - at < LANES ? dims - at : LANES));
    }
    return scale;
}

inline void rotate_token(const Rotation& rotation, int64_t token, int64_t position, int64_t block) {
    const TpHeads& heads = *rotation.heads;
    const int64_t dims = heads.head_dim, stored = (heads.keys_only ? 1 : 2) * heads.kv_heads;
    uint16_t* query = rotation.qkv + token * rotation.qkv_stride;
    uint16_t* key = query + heads.query_heads * dims;
    char* in_block = rotation.kv_layer + block * rotation.kv.block;
    char* slot = in_block + position % BLOCK_TOKENS * rotation.kv.token;
    Head head;
    for (int64_t i = 0; i < heads.query_heads; ++i, query += dims) {
        make_head(heads, query, heads.query_norm, position, head);
        store_head(head, dims, query);
    }
    for (int64_t i = 0; i < heads.kv_heads; ++i) {
        make_head(heads, key + i * dims, heads.key_norm, position, head);
        store_head(head, dims, key + i * dims);
    }
    for (int64_t i = heads.kv_heads; heads.value_norm != nullptr && i < stored; ++i) {
        load_head(key + i * dims, dims, head);
        norm_head(head, dims, heads.value_norm, heads.norm_eps);
        store_head(head, dims, key + i * dims);
    }
    if (heads.kv == TP_KV_BF16) {
        std::memcpy(slot, key, static_cast<size_t>(stored * dims) * sizeof(uint16_t));  // values follow keys in both
        return;
    }
    auto* scales = reinterpret_cast<uint16_t*>(in_block + rotation.kv.scales) + position % BLOCK_TOKENS;
    for (int64_t i = 0; i < stored; ++i) {
        const int64_t of_head = i % heads.kv_heads * rotation.kv.scales_of_head() + i / heads.kv_heads * BLOCK_TOKENS;
        load_head(key + i * dims, dims, head);
        scales[of_head] = keep_int8(head, dims, reinterpret_cast<int8_t*>(slot) + i * dims);
    }
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
