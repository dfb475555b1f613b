// A block of the product with weights of small numbers, in vector types for all levels. Include within the level's namespace,
// after `blocks_codings.inl`, `store.h`, and the level's forms of rows, `RowsOf` (the form for a coding), `multiply_add`,
// MOST_ROWS and FEW_ROWS (that share what is read of a panel, and of a group as stored), FEW_TILES (of the latter, up to which
// weights are taken apart in registers), UNROLLED (steps of the innermost loops that are written out), PANEL_WRITTEN_OUT (whether
// a panel's loop over chunks is, too: with few rows a tile, what it costs is not hidden).

// Bytes that weights are prefetched ahead: far ahead into the second cache, which waits for more lines at a time than the
// first one does, and from there into the first. A processor that is not asked stops at the end of each page.
constexpr int FAR_BYTES = 8192, NEAR_BYTES = 2048;
constexpr int LINE_BYTES = 64;
constexpr int IN_SECOND_CACHE = 2;  // as `__builtin_prefetch` counts

// Pairs of inputs in a group; a chunk is four of them.
constexpr int CHUNKS = 4;
constexpr int PAIRS = 16;

// What of a coding the sums depend on: parts of a group with a scale each, minima of a group, and groups that share minima. The
// sums of each group are scaled by themselves: those of several would be one chain of additions, which few rows wait for. What is computed of groups that are taken apart is compiled once a shape and not once a coding.
template <int OWN_PARTS, int OWN_MINIMA, int OWN_SHARED>
struct Shape {
    static constexpr int PARTS = OWN_PARTS, MINIMA = OWN_MINIMA, SHARED = OWN_SHARED;
};

template <typename Rows, typename Coding>
using ShapeOf = Shape<Coding::PARTS, Coding::template minima<Rows>, Rows::BF16 ? Coding::SHARED : 1>;

// A group as stored: taken apart at each use.
template <typename Rows, typename Coding>
struct Packed {
    const char* header;
    const char* group;

    static constexpr bool APART = false, WRITTEN_OUT = Coding::CHUNKS_WRITTEN_OUT;
    void chunk(int half, int c, Pairs (&pairs)[4]) const { Coding::template chunk<Rows>(header, group, half, c, pairs); }
    Floats scale(int half, int part) const { return Coding::scale(header, group, half, part); }
    Floats minimum(int half, int part) const { return Coding::minimum(header, group, half, part); }
};

// A block as stored.
template <typename Rows, typename Coding>
struct Block {
    const char* weights;
    int64_t inputs;

    static Block of(const Product& product, int64_t block) {
        const int64_t inputs = product.weight->inputs;
        return {static_cast<const char*>(product.weight->packed) + block * Coding::LAYOUT.block_bytes(inputs), inputs};
    }
    Packed<Rows, Coding> at(int64_t group) const {
        constexpr Layout LAYOUT = Coding::LAYOUT;
        const int64_t groups = LAYOUT.groups_of_super(inputs);
        const int64_t super = LAYOUT.super_groups == WHOLE_ROW ? 0 : group / groups;
        const char* header = weights + super * LAYOUT.super_bytes(inputs);
        return {header, header + LAYOUT.header_bytes + (group - super * groups) * LAYOUT.group_bytes};
    }
};

// A group taken apart once for many rows.
struct Unpacked {
    static constexpr bool APART = true, WRITTEN_OUT = PANEL_WRITTEN_OUT;
    Pairs pairs[PAIRS][2];
    Floats scales[2][2], minima[2][2];

    template <typename Rows, typename Coding>
    void take(const Packed<Rows, Coding>& packed) {
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
            for (int part = 0; part < ShapeOf<Rows, Coding>::MINIMA; ++part) {
                minima[part][half] = packed.minimum(half, part);
            }
        }
    }
    Floats scale(int half, int part) const { return scales[part][half]; }
    Floats minimum(int half, int part) const { return minima[part][half]; }
};

// Groups from `first` on, taken apart.
struct Panel {
    const Unpacked* groups;
    int64_t first;

    const Unpacked& at(int64_t group) const { return groups[group - first]; }
};

// Adds what eight inputs of a group give to the sums of ROWS rows.
template <typename Rows, int ROWS, typename Group>
inline __attribute__((always_inline)) void add_chunk(const Group& weights, int c, const Rows& rows, int64_t group,
                                                     typename Rows::Sums (&sums)[ROWS][2]) {
    Pairs low[4], high[4];
    if constexpr (!Group::APART) {
        weights.chunk(0, c, low);
        weights.chunk(1, c, high);
    }
#pragma GCC unroll UNROLLED
    for (int k = 0; k < 4; ++k) {
        if constexpr (Group::APART) {  // one pair at a time: sums take the registers
            low[k] = weights.pairs[4 * c + k][0];
            high[k] = weights.pairs[4 * c + k][1];
        }
#pragma GCC unroll UNROLLED
        for (int r = 0; r < ROWS; ++r) {
            const int32_t pair = rows.pair(r, group * GROUP_INPUTS + 8 * c + 2 * k);
            Rows::add(sums[r][0], low[k], pair);
            Rows::add(sums[r][1], high[k], pair);
        }
    }
}

// The same for one part of the inputs of a group.
template <typename Rows, int FIRST_CHUNK, int LAST_CHUNK, int ROWS, typename Group>
inline __attribute__((always_inline)) void add_chunks(const Group& weights, const Rows& rows, int64_t group,
                                                      typename Rows::Sums (&sums)[ROWS][2]) {
    if constexpr (Group::WRITTEN_OUT) {
#pragma GCC unroll UNROLLED
        for (int c = FIRST_CHUNK; c < LAST_CHUNK; ++c) {
            add_chunk(weights, c, rows, group, sums);
        }
    } else {
#pragma GCC unroll 1
        for (int c = FIRST_CHUNK; c < LAST_CHUNK; ++c) {
            add_chunk(weights, c, rows, group, sums);
        }
    }
}

template <typename Rows, typename Shape, int PART, int ROWS, typename Group>
inline __attribute__((always_inline)) void add_part(const Group& weights, const Rows& rows, int64_t group,
                                                    Floats (&totals)[ROWS][2]) {
    typename Rows::Sums sums[ROWS][2] = {};
    constexpr int PART_CHUNKS = CHUNKS / Shape::PARTS;
    add_chunks<Rows, PART * PART_CHUNKS, (PART + 1) * PART_CHUNKS, ROWS>(weights, rows, group, sums);
    const Floats scale[2] = {weights.scale(0, PART), weights.scale(1, PART)};
#pragma GCC unroll UNROLLED
    for (int r = 0; r < ROWS; ++r) {
        totals[r][0] = rows.scaled(sums[r][0], scale[0], r, group, totals[r][0]);
        totals[r][1] = rows.scaled(sums[r][1], scale[1], r, group, totals[r][1]);
    }
}

// Adds what a group gives to the totals of ROWS rows with 32 outputs; with the last of the groups that share minima, these.
template <typename Rows, typename Shape, int ROWS, typename Source>
inline __attribute__((always_inline)) void add_group(const Source& source, const Rows& rows, int64_t group,
                                                     Floats (&totals)[ROWS][2]) {
    const auto& weights = source.at(group);
    add_part<Rows, Shape, 0, ROWS>(weights, rows, group, totals);
    if constexpr (Shape::PARTS == 2) {
        add_part<Rows, Shape, 1, ROWS>(weights, rows, group, totals);
    }
    if ((group + 1) % Shape::SHARED != 0) {
        return;
    }
    for (int part = 0; part < Shape::MINIMA; ++part) {
        const Floats minimum[2] = {weights.minimum(0, part), weights.minimum(1, part)};
#pragma GCC unroll UNROLLED
        for (int r = 0; r < ROWS; ++r) {
            float shared = rows.sum(r, group - (Shape::SHARED - 1), part, Shape::MINIMA == 1);
            for (int64_t later = group - (Shape::SHARED - 1) + 1; later <= group; ++later) {
                shared += rows.sum(r, later, part, Shape::MINIMA == 1);
            }
            const Floats sum = floats(shared);
            totals[r][0] = multiply_add(minimum[0], sum, totals[r][0]);
            totals[r][1] = multiply_add(minimum[1], sum, totals[r][1]);
        }
    }
}

// Rows from `row` on.
template <typename Rows, typename Coding, int ROWS>
void few_rows(const Product& product, int64_t block, int64_t row) {
    using Shape = ShapeOf<Rows, Coding>;
    const int64_t groups = product.weight->inputs / GROUP_INPUTS;
    const auto weights = Block<Rows, Coding>::of(product, block);
    const Rows rows = Rows::of(product, row);
    Floats totals[ROWS][2] = {};
    const char* line = weights.weights;
    const char* until = line;
    const int64_t step = (Coding::LAYOUT.block_bytes(product.weight->inputs) + groups - 1) / groups;
    for (int64_t group = 0; group < groups; ++group) {
        for (until += step; line < until; line += LINE_BYTES) {  // headers, too
            __builtin_prefetch(line + FAR_BYTES, 0, IN_SECOND_CACHE);
            __builtin_prefetch(line + NEAR_BYTES);
        }
        add_group<Rows, Shape, ROWS>(weights, rows, group, totals);
    }
    for (int r = 0; r < ROWS; ++r) {
        store_sums(product, block, row + r, totals[r][0], totals[r][1]);
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

// Groups [panel.first, last) for ROWS rows.
template <typename Rows, typename Shape, int ROWS>
void panel_rows(const Panel& panel, const Rows& rows, int64_t last, Share share, Floats (*all)[2]) {
    Floats totals[ROWS][2];
    std::memcpy(totals, all, sizeof totals);
    for (int64_t group = panel.first; group < last; ++group) {
        share.fetch(group - panel.first);
        add_group<Rows, Shape, ROWS>(panel, rows, group, totals);
    }
    std::memcpy(all, totals, sizeof totals);
}

template <typename Rows>
using PanelTile = void (*)(const Panel&, const Rows&, int64_t, Share, Floats (*)[2]);
using FewTile = void (*)(const Product&, int64_t, int64_t);

// For 1 row and more.
template <typename Rows, typename Shape, size_t... LESS_ONE>
constexpr std::array<PanelTile<Rows>, sizeof...(LESS_ONE)> panel_tiles(std::index_sequence<LESS_ONE...>) {
    return {panel_rows<Rows, Shape, LESS_ONE + 1>...};
}

template <typename Rows, typename Coding, size_t... LESS_ONE>
constexpr std::array<FewTile, sizeof...(LESS_ONE)> few_tiles(std::index_sequence<LESS_ONE...>) {
    return {few_rows<Rows, Coding, LESS_ONE + 1>...};
}

constexpr int PANEL_GROUPS = 8;   // that are taken apart at a time: they stay in the first cache
constexpr int64_t MANY_ROWS = 48;  // that share them

template <typename Rows, typename Coding>
void many_rows(const Product& product, int64_t block, int64_t row, int64_t count) {
    static constexpr auto TILES = panel_tiles<Rows, ShapeOf<Rows, Coding>>(std::make_index_sequence<MOST_ROWS>());
    const int64_t groups = product.weight->inputs / GROUP_INPUTS;
    const auto weights = Block<Rows, Coding>::of(product, block);
    Unpacked unpacked[PANEL_GROUPS];
    Floats totals[MANY_ROWS][2];
    std::memset(totals, 0, sizeof totals);
    const int64_t tiles = (count + MOST_ROWS - 1) / MOST_ROWS;
    const int64_t step = (Coding::LAYOUT.block_bytes(product.weight->inputs) + groups - 1) / groups;
    const int64_t share_bytes = (step + tiles - 1) / tiles;
    for (int64_t first = 0; first < groups; first += PANEL_GROUPS) {
        const int64_t last = std::min<int64_t>(groups, first + PANEL_GROUPS);
        for (int64_t group = first; group < last; ++group) {
            unpacked[group - first].take(weights.at(group));
        }
        const char* next = weights.weights + (first + PANEL_GROUPS) * step;
        for (int64_t t = 0; t < tiles; ++t) {  // as equal as they can be
            const int64_t begin = t * count / tiles, end = (t + 1) * count / tiles;
            const Share share{next + t * share_bytes, step, share_bytes};
            TILES[end - begin - 1]({unpacked, first}, Rows::of(product, row + begin), last, share, totals + begin);
        }
    }
    for (int64_t r = 0; r < count; ++r) {
        store_sums(product, block, row + r, totals[r][0], totals[r][1]);
    }
}

template <typename Rows, typename Coding>
void block_of(const Product& product, int64_t block) {
    static constexpr auto FEW = few_tiles<Rows, Coding>(std::make_index_sequence<FEW_ROWS>());
    if (product.rows <= FEW_TILES * FEW_ROWS) {
        const int64_t tiles = (product.rows + FEW_ROWS - 1) / FEW_ROWS;
        for (int64_t t = 0; t < tiles; ++t) {  // as equal as they can be
            const int64_t row = t * product.rows / tiles;
            FEW[(t + 1) * product.rows / tiles - row - 1](product, block, row);
        }
        return;
    }
    const int64_t pieces = (product.rows + MANY_ROWS - 1) / MANY_ROWS;
    for (int64_t p = 0; p < pieces; ++p) {
        const int64_t row = p * product.rows / pieces;
        many_rows<Rows, Coding>(product, block, row, (p + 1) * product.rows / pieces - row);
    }
}

template <typename Coding>
constexpr BlockKernel kernel_of() {
    using Rows = RowsOf<Coding>;
    return Rows::template kernel<Coding>(block_of<Rows, Coding>);
}

constexpr BlockKernels kernels() {
    BlockKernels kernels{};
    kernels.of[TP_INT8] = kernel_of<Int8>();
    kernels.of[TP_INT4] = kernel_of<Int4>();
    kernels.of[TP_Q4_0] = kernel_of<Q4_0>();
    kernels.of[TP_Q4_1] = kernel_of<Q4_1>();
    kernels.of[TP_Q5_0] = kernel_of<Q5_0>();
    kernels.of[TP_Q5_1] = kernel_of<Q5_1>();
    kernels.of[TP_Q8_0] = kernel_of<Q8_0>();
    kernels.of[TP_Q2_K] = kernel_of<Q2_K>();
    kernels.of[TP_Q3_K] = kernel_of<Q3_K>();
    kernels.of[TP_Q4_K] = kernel_of<Q4_K>();
    kernels.of[TP_Q5_K] = kernel_of<Q5_K>();
    kernels.of[TP_Q6_K] = kernel_of<Q6_K>();
    kernels.of[TP_IQ4_NL] = kernel_of<IQ4_NL>();
    kernels.of[TP_IQ4_XS] = kernel_of<IQ4_XS>();
    kernels.of[TP_MXFP4] = kernel_of<MXFP4>();
    kernels.of[TP_U4_32] = kernel_of<U4_32>();
    kernels.of[TP_U4_64] = kernel_of<U4_64>();
    kernels.of[TP_U4_128] = kernel_of<U4_128>();
    kernels.of[TP_U8_32] = kernel_of<U8_32>();
    kernels.of[TP_U8_64] = kernel_of<U8_64>();
    kernels.of[TP_U8_128] = kernel_of<U8_128>();
    kernels.of[TP_E4M3_32] = kernel_of<E4M3_32>();
    kernels.of[TP_E4M3_128] = kernel_of<E4M3_128>();
    return kernels;
}
