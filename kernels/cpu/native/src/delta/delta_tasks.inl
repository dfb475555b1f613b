// One key head of a row, token by token, with the value heads that share it. Include after vectors.h.

// Channels of a head: of its query, its key or its values.
struct Channels {
    int64_t first, count;
};

inline Channels query_of(const Delta& delta, int64_t key_head) {
    return {key_head * delta.net->key_dim, delta.net->key_dim};
}

inline Channels key_of(const Delta& delta, int64_t key_head) {
    return {delta.keys() + key_head * delta.net->key_dim, delta.net->key_dim};
}

inline Channels values_of(const Delta& delta, int64_t value_head) {
    return {2 * delta.keys() + value_head * delta.net->value_dim, delta.net->value_dim};
}

// In words of the state, the place of a value head's memory.
inline int64_t memory_at(const Delta& delta, int64_t value_head) {
    return (delta.net->taps - 1) * delta.channels() + value_head * delta.memory_words();
}

inline void copy_words(const float* from, float* to, int64_t first, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    if (from == nullptr) {
        std::memset(to + first, 0, bytes);
    } else {
        std::memcpy(to + first, from + first, bytes);
    }
}

inline void copy_kept(const Delta& delta, Channels range, const float* from, float* to) {
    for (int64_t tap = 0; tap + 1 < delta.net->taps; ++tap) {
        copy_words(from, to, tap * delta.channels() + range.first, range.count);
    }
}

// Copies a key head's part of a state, or zeros it if `from` is null.
inline void copy_state(const Delta& delta, int64_t key_head, const float* from, float* to) {
    copy_kept(delta, query_of(delta, key_head), from, to);
    copy_kept(delta, key_of(delta, key_head), from, to);
    for (int64_t member = 0; member < delta.group(); ++member) {
        const int64_t head = delta.value_head(key_head, member);
        copy_kept(delta, values_of(delta, head), from, to);
        copy_words(from, to, memory_at(delta, head), delta.memory_words());
    }
}

// Convolves a token's channels, applies SiLU, and moves the token into the inputs that are kept.
inline void convolve(const Delta& delta, Channels range, const float* x, float* kept, float* y) {
    const int64_t taps = delta.net->taps, channels = delta.channels();
    const float* weight = delta.net->convolution;
    for (int64_t at = 0; at < range.count; at += LANES) {
        const int64_t channel = range.first + at;
        Floats total = {};
        for (int64_t tap = 0; tap + 1 < taps; ++tap) {
            const Floats input = load_floats(kept + tap * channels + channel);
            total += load_floats(weight + tap * channels + channel) * input;
            if (tap > 0) {
                store_floats(kept + (tap - 1) * channels + channel, input);
            }
        }
        const Floats input = load_floats(x + channel);
        store_floats(kept + (taps - 2) * channels + channel, input);
        total += load_floats(weight + (taps - 1) * channels + channel) * input;
        store_floats(y + at, silu(total));
    }
}

inline float squares_of(const float* x, int64_t count) {
    Floats squares = {};
    for (int64_t at = 0; at < count; at += LANES) {
        const Floats values = load_floats(x + at);
        squares += values * values;
    }
    return sum(squares);
}

inline void scale_by(float* x, int64_t count, float factor) {
    for (int64_t at = 0; at < count; at += LANES) {
        store_floats(x + at, load_floats(x + at) * factor);
    }
}

// The delta rule for a token on `VECTORS` vectors of values: memory columns [key_dim, VECTORS x LANES].
template <int VECTORS>
inline void update_columns(int64_t key_dim, int64_t stride, const float* query, const float* key, const float* value, float decay,
                           float beta, float* memory, float* read) {
    Floats found[VECTORS] = {}, change[VECTORS], total[VECTORS] = {};
    for (int64_t row = 0; row < key_dim; ++row) {
        for (int at = 0; at < VECTORS; ++at) {
            found[at] += load_floats(memory + row * stride + at * LANES) * key[row];
        }
    }
    for (int at = 0; at < VECTORS; ++at) {
        change[at] = (load_floats(value + at * LANES) - found[at] * decay) * beta;
    }
    for (int64_t row = 0; row < key_dim; ++row) {
        for (int at = 0; at < VECTORS; ++at) {
            const Floats updated = load_floats(memory + row * stride + at * LANES) * decay + change[at] * key[row];
            store_floats(memory + row * stride + at * LANES, updated);
            total[at] += updated * query[row];
        }
    }
    for (int at = 0; at < VECTORS; ++at) {
        store_floats(read + at * LANES, total[at]);
    }
}

inline void update_head(int64_t key_dim, int64_t value_dim, const float* query, const float* key, const float* value, float decay,
                        float beta, float* memory, float* read) {
    int64_t at = 0;
    for (; at + 4 * LANES <= value_dim; at += 4 * LANES) {
        update_columns<4>(key_dim, value_dim, query, key, value + at, decay, beta, memory + at, read + at);
    }
    for (; at < value_dim; at += LANES) {
        update_columns<1>(key_dim, value_dim, query, key, value + at, decay, beta, memory + at, read + at);
    }
}

inline void store_gated_norm(const float* x, const float* gate, const float* weight, int64_t width, float eps, uint16_t* y) {
    const float scale = 1.0f / std::sqrt(squares_of(x, width) / static_cast<float>(width) + eps);
    for (int64_t at = 0; at < width; at += LANES) {
        store_bf16(y + at, load_floats(x + at) * scale * load_floats(weight + at) * silu(load_floats(gate + at)));
    }
}

inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

struct Token {
    alignas(64) float query[MOST_DELTA_DIM], key[MOST_DELTA_DIM], value[MOST_DELTA_DIM], read[MOST_DELTA_DIM];
};

inline void compute_token(const Delta& delta, int64_t key_head, int64_t token, float* state) {
    const TpDelta& net = *delta.net;
    const float* x = delta.mixed + token * delta.mixed_stride;
    const float* gates = delta.gates + token * delta.gates_stride;
    Token work;
    convolve(delta, query_of(delta, key_head), x, state, work.query);
    convolve(delta, key_of(delta, key_head), x, state, work.key);
    scale_by(work.query, net.key_dim,
             1.0f / (std::sqrt(squares_of(work.query, net.key_dim) + 1e-6f) * std::sqrt(static_cast<float>(net.key_dim))));
    scale_by(work.key, net.key_dim, 1.0f / std::sqrt(squares_of(work.key, net.key_dim) + 1e-6f));
    for (int64_t member = 0; member < delta.group(); ++member) {
        const int64_t head = delta.value_head(key_head, member);
        convolve(delta, values_of(delta, head), x, state, work.value);
        const float beta = 1.0f / (1.0f + std::exp(-gates[head]));
        const float decay =
            std::exp(net.decay_rate[head] * softplus(gates[net.value_heads + head] + net.step_bias[head]));
        update_head(net.key_dim, net.value_dim, work.query, work.key, work.value, decay, beta,
                    state + memory_at(delta, head), work.read);
        if (delta.out != nullptr) {
            store_gated_norm(work.read, x + delta.channels() + head * net.value_dim, net.norm, net.value_dim, net.norm_eps,
                             delta.out + token * delta.out_stride + head * net.value_dim);
        }
    }
}

void delta_tasks(const Delta& delta, int64_t first, int64_t last) {
    const TpDelta& net = *delta.net;
    const TpDeltaRows& rows = *delta.rows;
    for (int64_t task = first; task < last; ++task) {
        const int64_t row = task / net.key_heads, key_head = task % net.key_heads;
        float* state = rows.after[row];
        if (rows.before[row] != state) {
            copy_state(delta, key_head, rows.before[row], state);
        }
        int64_t save = 0;
        while (save < rows.saves && rows.save_rows[save] < row) {
            ++save;
        }
        for (int64_t done = 1; done <= rows.tokens[row]; ++done) {
            compute_token(delta, key_head, rows.first[row] + done - 1, state);
            if (save < rows.saves && rows.save_rows[save] == row && rows.save_tokens[save] == done) {
                copy_state(delta, key_head, state, rows.save_to[save]);
                ++save;
            }
        }
    }
}

void gate_rows(const float* gate, int64_t gate_stride, int64_t width, uint16_t* y, int64_t y_stride, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
        const float* by = gate + row * gate_stride;
        uint16_t* numbers = y + row * y_stride;
        int64_t at = 0;
        for (; at + LANES <= width; at += LANES) {
            store_bf16(numbers + at, load_bf16(numbers + at) / (exponential(-load_floats(by + at)) + 1.0f));
        }
        if (at < width) {
            const int64_t lanes = width - at;
            const Floats divisor = exponential(-load_some_floats(by + at, lanes)) + 1.0f;
            store_some_bf16(numbers + at, load_some_bf16(numbers + at, lanes) / divisor, lanes);
        }
    }
}
