// A block of the product with weights of small integers, in vector types for all levels. Include within the level's
// namespace, after `blocks_codings.inl`, `store.h`, and the level's `Sums`, `add_product`, `multiply_add`, MOST_ROWS (that
// share what they read) and UNROLLED (steps of the innermost loops that are written out).

// Bytes that weights are prefetched ahead: far ahead into the second cache, which waits for more lines at a time than the
// first one does, and from there into the first. A processor that is not asked stops at the end of each page.
constexpr int FAR_BYTES = 8192, NEAR_BYTES = 2048;
constexpr int LINE_BYTES = 64;
constexpr int IN_SECOND_CACHE = 2;  // as `__builtin_prefetch` counts

// Pairs of inputs in a group; a chunk is four of them.
constexpr int CHUNKS = 4;
constexpr int PAIRS = 16;

// A group as stored: unpacked at each use.
template <typename Coding>
struct Packed {
    const char* header;
    const char* group;

    void chunk(int half, int c, Pairs (&pairs)[4]) const { Coding::chunk(group, half, c, pairs); }
    Floats scale(int half, int part) const { return Coding::scale(header, group, half, part); }
    Floats minimum(int half) const { return Coding::minimum(header, group, half); }
};

// A group taken apart once for many rows.
struct Unpacked {
    Pairs pairs[PAIRS][2];
    Floats scales[2][2], minima[2];

    template <typename Coding>
    void take(const Packed<Coding>& packed) {
        for (int half = 0; half < 2; ++half) {
            for (int c = 0; c < CHUNKS; ++c) {
                Pairs chunk[4];
                packed.chunk(half, c, chunk);
                for (int k = 0; k < 4; ++k) {
                    pairs[4 * c + k][half] = chunk[k];
                }
            }
            for (int part = 0; part < Coding::PARTS; ++part) {
                scales[part][half] = packed.scale(half, part);
            }
            minima[half] = packed.minimum(half);
        }
    }
    void chunk(int half, int c, Pairs (&out)[4]) const {
        for (int k = 0; k < 4; ++k) {
            out[k] = pairs[4 * c + k][half];
        }
    }
    Floats scale(int half, int part) const { return scales[part][half]; }
    Floats minimum(int half) const { return minima[half]; }
};

// Rows as they were prepared, from one of them on.
struct PreparedRows {
    const char* first;
    int64_t bytes, inputs;

    const int16_t* numbers(int64_t row) const { return reinterpret_cast<const int16_t*>(first + row * bytes); }
    float scale(int64_t row, int64_t group) const { return reinterpret_cast<const float*>(numbers(row) + inputs)[group]; }
    float sum(int64_t row, int64_t group) const {
        return reinterpret_cast<const float*>(numbers(row) + inputs)[inputs / GROUP_INPUTS + group];
    }
};

// Adds what one group of inputs gives to the totals of ROWS rows with 32 outputs.
template <typename Coding, int ROWS, typename Source>
inline __attribute__((always_inline)) void add_group(const Source& source, const PreparedRows& rows, int64_t group,
                                                     Floats (&totals)[ROWS][2]) {
    for (int part = 0; part < Coding::PARTS; ++part) {
        Sums sums[ROWS][2] = {};
        constexpr int PART_CHUNKS = CHUNKS / Coding::PARTS;
#pragma GCC unroll UNROLLED
        for (int c = part * PART_CHUNKS; c < (part + 1) * PART_CHUNKS; ++c) {
            Pairs low[4], high[4];
            source.chunk(0, c, low);
            source.chunk(1, c, high);
#pragma GCC unroll UNROLLED
            for (int k = 0; k < 4; ++k) {
#pragma GCC unroll UNROLLED
                for (int r = 0; r < ROWS; ++r) {
                    int32_t pair;
                    std::memcpy(&pair, rows.numbers(r) + group * GROUP_INPUTS + 8 * c + 2 * k, sizeof pair);
                    add_product(sums[r][0], low[k], pair);
                    add_product(sums[r][1], high[k], pair);
                }
            }
        }
        const Floats scale[2] = {source.scale(0, part), source.scale(1, part)};
#pragma GCC unroll UNROLLED
        for (int r = 0; r < ROWS; ++r) {
            const Floats row_scale = floats(rows.scale(r, group));
            totals[r][0] = multiply_add(floats_of(sums[r][0]) * scale[0], row_scale, totals[r][0]);
            totals[r][1] = multiply_add(floats_of(sums[r][1]) * scale[1], row_scale, totals[r][1]);
        }
    }
    if (Coding::MINIMA) {
        const Floats minimum[2] = {source.minimum(0), source.minimum(1)};
#pragma GCC unroll UNROLLED
        for (int r = 0; r < ROWS; ++r) {
            const Floats row_sum = floats(rows.sum(r, group));
            totals[r][0] = multiply_add(minimum[0], row_sum, totals[r][0]);
            totals[r][1] = multiply_add(minimum[1], row_sum, totals[r][1]);
        }
    }
}

template <typename Coding>
inline Packed<Coding> group_at(const char* block, int64_t group, int64_t inputs) {
    constexpr Layout LAYOUT = Coding::LAYOUT;
    const int64_t groups = LAYOUT.groups_of_super(inputs);
    const int64_t super = LAYOUT.super_groups == WHOLE_ROW ? 0 : group / groups;
    const char* header = block + super * LAYOUT.super_bytes(inputs);
    return {header, header + LAYOUT.header_bytes + (group - super * groups) * LAYOUT.group_bytes};
}

inline PreparedRows prepared_rows(const Product& product, int64_t row) {
    return {product.prepared + row * product.prepared_bytes, product.prepared_bytes, product.weight->inputs};
}

template <typename Coding, int ROWS>
void few_rows(const Product& product, int64_t block) {
    const int64_t inputs = product.weight->inputs;
    const auto* weights = static_cast<const char*>(product.weight->packed) + block * Coding::LAYOUT.block_bytes(inputs);
    const PreparedRows rows = prepared_rows(product, 0);
    Floats totals[ROWS][2] = {};
    for (int64_t group = 0; group < inputs / GROUP_INPUTS; ++group) {
        const Packed<Coding> packed = group_at<Coding>(weights, group, inputs);
        for (int64_t line = 0; line < Coding::LAYOUT.group_bytes; line += LINE_BYTES) {
            __builtin_prefetch(packed.group + FAR_BYTES + line, 0, IN_SECOND_CACHE);
            __builtin_prefetch(packed.group + NEAR_BYTES + line);
        }
        add_group<Coding, ROWS>(packed, rows, group, totals);
    }
    for (int r = 0; r < ROWS; ++r) {
        store_sums(product, block, r, totals[r][0], totals[r][1]);
    }
}

// Weights that are fetched into the second cache while others are computed with: with each group `bytes`, `step` apart.
struct Share {
    const char* at;
    int64_t step, bytes;

    void fetch(int64_t group) const {
        for (const char* line = at + group * step; line < at + group * step + bytes; line += LINE_BYTES) {
            __builtin_prefetch(line, 0, IN_SECOND_CACHE);
        }
    }
};

// Groups [first, last), taken apart in `panel`, for ROWS rows.
template <typename Coding, int ROWS>
void panel_rows(const Unpacked* panel, const PreparedRows& rows, int64_t first, int64_t last, Share share, Floats (*all)[2]) {
    Floats totals[ROWS][2];
    std::memcpy(totals, all, sizeof totals);
    for (int64_t group = first; group < last; ++group) {
        share.fetch(group - first);
        add_group<Coding, ROWS>(panel[group - first], rows, group, totals);
    }
    std::memcpy(all, totals, sizeof totals);
}

using PanelTile = void (*)(const Unpacked*, const PreparedRows&, int64_t, int64_t, Share, Floats (*)[2]);
using FewTile = void (*)(const Product&, int64_t);

// For 1 row and more.
template <typename Coding, size_t... LESS_ONE>
constexpr std::array<PanelTile, sizeof...(LESS_ONE)> panel_tiles(std::index_sequence<LESS_ONE...>) {
    return {panel_rows<Coding, LESS_ONE + 1>...};
}

template <typename Coding, size_t... LESS_ONE>
constexpr std::array<FewTile, sizeof...(LESS_ONE)> few_tiles(std::index_sequence<LESS_ONE...>) {
    return {few_rows<Coding, LESS_ONE + 1>...};
}

constexpr int PANEL_GROUPS = 8;   // that are taken apart at a time: they stay in the first cache
constexpr int64_t MANY_ROWS = 48;  // that share them
constexpr int64_t FEW_ROWS = MOST_ROWS < 6 ? MOST_ROWS : 6;  // for which weights are taken apart in registers

template <typename Coding>
void many_rows(const Product& product, int64_t block, int64_t row, int64_t count) {
    static constexpr auto TILES = panel_tiles<Coding>(std::make_index_sequence<MOST_ROWS>());
    const int64_t inputs = product.weight->inputs, groups = inputs / GROUP_INPUTS;
    const auto* weights = static_cast<const char*>(product.weight->packed) + block * Coding::LAYOUT.block_bytes(inputs);
    Unpacked panel[PANEL_GROUPS];
    Floats totals[MANY_ROWS][2];
    std::memset(totals, 0, sizeof totals);
    const int64_t tiles = (count + MOST_ROWS - 1) / MOST_ROWS;
    constexpr int64_t GROUP_BYTES = Coding::LAYOUT.group_bytes;
    const int64_t share_bytes = (GROUP_BYTES + tiles - 1) / tiles;
    for (int64_t first = 0; first < groups; first += PANEL_GROUPS) {
        const int64_t last = std::min<int64_t>(groups, first + PANEL_GROUPS);
        for (int64_t group = first; group < last; ++group) {
            panel[group - first].take(group_at<Coding>(weights, group, inputs));
        }
        const char* next = group_at<Coding>(weights, first, inputs).group + PANEL_GROUPS * GROUP_BYTES;
        for (int64_t t = 0; t < tiles; ++t) {  // as equal as they can be
            const int64_t begin = t * count / tiles, end = (t + 1) * count / tiles;
            const Share share{next + t * share_bytes, GROUP_BYTES, share_bytes};
            TILES[end - begin - 1](panel, prepared_rows(product, row + begin), first, last, share, totals + begin);
        }
    }
    for (int64_t r = 0; r < count; ++r) {
        store_sums(product, block, row + r, totals[r][0], totals[r][1]);
    }
}

template <typename Coding>
void block_of(const Product& product, int64_t block) {
    static constexpr auto FEW = few_tiles<Coding>(std::make_index_sequence<FEW_ROWS>());
    if (product.rows <= FEW_ROWS) {
        FEW[product.rows - 1](product, block);
        return;
    }
    const int64_t pieces = (product.rows + MANY_ROWS - 1) / MANY_ROWS;
    for (int64_t p = 0; p < pieces; ++p) {
        const int64_t row = p * product.rows / pieces;
        many_rows<Coding>(product, block, row, (p + 1) * product.rows / pieces - row);
    }
}

// The largest of 32 numbers without their signs, as bits: a NaN is above infinity, which is above all numbers.
inline uint32_t largest_bits(const uint16_t* x) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
        largest = std::max<uint32_t>(largest, x[i] & 0x7fffu);
    }
    return largest;
}

void prepare(const uint16_t* x, int64_t inputs, char* prepared) {
    constexpr uint32_t INFINITE = 0x7f80, LEAST_EXPONENT = 16, BITS = 14;
    auto* numbers = reinterpret_cast<int16_t*>(prepared);
    auto* scales = reinterpret_cast<float*>(numbers + inputs);
    float* sums = scales + inputs / GROUP_INPUTS;
    for (int64_t group = 0; group < inputs / GROUP_INPUTS; ++group, x += GROUP_INPUTS, numbers += GROUP_INPUTS) {
        const uint32_t largest = largest_bits(x);
        const uint32_t exponent = std::max(LEAST_EXPONENT, largest >> 7);
        // 2^14 stands for the largest number's power of two.
        const uint32_t scale_bits = largest >= INFINITE ? 0x7fc00000u : (exponent - BITS) << 23;
        const uint32_t inverse_bits = largest >= INFINITE ? 0 : (254 + BITS - exponent) << 23;
        float scale, inverse;
        std::memcpy(&scale, &scale_bits, sizeof scale);
        std::memcpy(&inverse, &inverse_bits, sizeof inverse);
        const Floats shift = floats(12582912.0f);  // 1.5 x 2^23: what is added to it is rounded to a whole number
        Words sum = {};  // numbers that are not finite become any integers, whose sum may overflow
        for (int64_t i = 0; i < GROUP_INPUTS; i += LANES) {
            const Floats whole = load_bf16(x + i) * inverse + shift;
            const Words integers = reinterpret_cast<Words>(whole) - 0x4b400000u;
            const auto narrow = __builtin_convertvector(integers, Halves);
            std::memcpy(numbers + i, &narrow, sizeof narrow);
            sum += integers;
        }
        uint32_t total = 0;
        for (int lane = 0; lane < LANES; ++lane) {
            total += sum[lane];
        }
        scales[group] = scale;
        sums[group] = scale * static_cast<float>(static_cast<int32_t>(total));
    }
}

constexpr BlockKernels KERNELS{prepare,         block_of<Q4_0>, block_of<Q4_1>, block_of<Q8_0>,
                               block_of<Q4_K>, block_of<Q6_K>, block_of<Int8>, block_of<Int4>,
                               block_of<U4_32>, block_of<U4_64>, block_of<U4_128>,
                               block_of<U8_32>, block_of<U8_64>, block_of<U8_128>};
