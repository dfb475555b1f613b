// What levels share of the product of signed bytes: how rows are rounded, how a product is cut into tiles, and its result.
// Include within the level's namespace, after `vectors.h`, `store.h`, <array>, <limits> and <utility>, with MOST_ROWS, the rows of
// a tile, and CORRECTED, whether `add_quads` multiplies weights as they lie, with 128 added: then its sums begin with the
// correction. What is declared here is the level's to define.

// Memory that is prefetched while inputs are multiplied: with quad i the line at `at` + i `step`.
struct Fetch {
    const char* at;
    int64_t step;
    bool near;  // whether a quad's whole 128 bytes, into the first cache; else one line, into the second
};

struct Rows {
    const int8_t* first;
    int64_t stride;
};

// What sums wrap around in.
using Sums = Words[2];

// Adds the products of a tile's rows with all inputs.
template <int ROWS>
void add_quads(const char* weights, Rows rows, int64_t quads, Fetch fetch, Sums (&sums)[ROWS]);

// a b + c, of which the product may be rounded or not: c is 0.
Floats multiply_add(Floats a, Floats b, Floats c);

constexpr float MOST_SIGNED_BYTE = 127.0f;
constexpr uint32_t INFINITE_BF16 = 0x7f80;

// The largest of a row's numbers without their signs, as bits: a NaN is above infinity, which is above all numbers.
inline uint32_t largest_bits(const uint16_t* x, int64_t inputs) {
    uint16_t largest = 0;
    for (int64_t i = 0; i < inputs; ++i) {
        largest = std::max<uint16_t>(largest, x[i] & 0x7fffu);
    }
    return largest;
}

inline float scale_of(uint32_t largest) {
    float size;
    const uint32_t bits = largest << 16;
    std::memcpy(&size, &bits, sizeof size);
    return largest == 0 ? 1.0f : size / MOST_SIGNED_BYTE;
}

// To the nearest, ties to even, at most 127 in size.
inline Ints rounded(Floats numbers) {
    const Floats most = floats(MOST_SIGNED_BYTE), shift = floats(12582912.0f);  // 1.5 x 2^23
    numbers = numbers > most ? most : numbers;
    numbers = numbers < -most ? -most : numbers;
    return reinterpret_cast<Ints>(reinterpret_cast<Words>(numbers + shift) - 0x4b400000u);
}

void prepare(const TpWeight& weight, const uint16_t* x, char* prepared) {
    const int64_t inputs = weight.inputs;
    const uint32_t largest = largest_bits(x, inputs);
    auto* integers = reinterpret_cast<int8_t*>(prepared + ROW_HEADER_BYTES);
    RowHeader header{std::numeric_limits<float>::quiet_NaN(), 0};
    if (largest >= INFINITE_BF16) {
        std::memset(integers, 0, static_cast<size_t>(inputs));
    } else {
        header.scale = weight.input_scale > 0.0f ? weight.input_scale : scale_of(largest);
        const Floats scale = floats(header.scale);
        Words total{};
        for (int64_t i = 0; i < inputs; i += LANES) {
            const Ints numbers = rounded(load_bf16(x + i) / scale);
            const auto bytes = __builtin_convertvector(numbers, Bytes);
            std::memcpy(integers + i, &bytes, sizeof bytes);
            total += reinterpret_cast<Words>(numbers);
        }
        for (int lane = 0; lane < LANES; ++lane) {
            header.correction -= 128u * total[lane];
        }
    }
    std::memcpy(prepared, &header, sizeof header);
}

inline RowHeader header_of(const Product& product, int64_t row) {
    RowHeader header;
    std::memcpy(&header, product.prepared + row * product.prepared_bytes, sizeof header);
    return header;
}

// Rows [row, row + ROWS).
template <int ROWS>
void tile(const Product& product, int64_t block, int64_t row, Fetch fetch) {
    const TpWeight& weight = *product.weight;
    const auto* packed = static_cast<const char*>(weight.packed) + block * w8a8_block_bytes(weight.inputs);
    const char* first = product.prepared + row * product.prepared_bytes + ROW_HEADER_BYTES;
    const Rows rows{reinterpret_cast<const int8_t*>(first), product.prepared_bytes};
    Sums sums[ROWS];
    for (int r = 0; r < ROWS; ++r) {
        sums[r][0] = sums[r][1] = Words{} + (CORRECTED ? header_of(product, row + r).correction : 0);
    }
    add_quads<ROWS>(packed + W8A8_SCALES_BYTES, rows, weight.inputs / QUAD, fetch, sums);
    const auto* scales = reinterpret_cast<const float*>(packed);
    const Floats low = load_floats(scales), high = load_floats(scales + LANES);
    for (int r = 0; r < ROWS; ++r) {
        const Floats scale = floats(header_of(product, row + r).scale);
        const auto scaled = [scale](Words sum, Floats of_outputs) {  // a fused addition of 0: the compiler fuses no other
            return multiply_add(__builtin_convertvector(reinterpret_cast<Ints>(sum), Floats), of_outputs * scale, Floats{});
        };
        store_sums(product, block, row + r, scaled(sums[r][0], low), scaled(sums[r][1], high));
    }
}

using Tile = void (*)(const Product& product, int64_t block, int64_t row, Fetch fetch);

template <size_t... INDEX>
constexpr std::array<Tile, sizeof...(INDEX)> tiles_of(std::index_sequence<INDEX...>) {
    return {tile<static_cast<int>(INDEX) + 1>...};
}

// Several tiles read a block from memory once, and the next is fetched while those after the first are computed.
void block_of(const Product& product, int64_t block) {
    constexpr int64_t AHEAD_BYTES = 4096;
    static constexpr auto TILES = tiles_of(std::make_index_sequence<MOST_ROWS>());
    const int64_t bytes = w8a8_block_bytes(product.weight->inputs);
    const auto* packed = static_cast<const char*>(product.weight->packed) + block * bytes;
    const int64_t tiles = (product.rows + MOST_ROWS - 1) / MOST_ROWS;
    for (int64_t t = 0; t < tiles; ++t) {  // as equal as they can be
        const int64_t row = t * product.rows / tiles, end = (t + 1) * product.rows / tiles;
        const bool near = tiles == 1 || product.next_block < 0 || (t == 0 && !product.follows);
        const Fetch fetch = near ? Fetch{packed + W8A8_SCALES_BYTES + AHEAD_BYTES, QUAD_BYTES, true}
                                 : Fetch{packed + bytes + t * bytes / tiles, QUAD_BYTES / tiles, false};
        TILES[static_cast<size_t>(end - row - 1)](product, block, row, fetch);
    }
}
