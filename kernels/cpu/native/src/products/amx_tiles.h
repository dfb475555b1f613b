// The eight tile registers of AMX, of 16 rows of 64 bytes each, as far as products of bf16 numbers use them. With
// TP_AMX_EMULATED they are arrays, so that what is computed with them is tested on any processor. Include within the level's
// namespace, after <cstring>, and <immintrin.h> where they are real.

constexpr int TILES = 8, TILE_ROWS = 16, TILE_BYTES = 64;

// How many rows each register has, and bytes in a row: the operand of LDTILECFG (Intel's manual, volume 1, 18.3).
struct TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64, "a cache line");

#if defined(TP_AMX_EMULATED)

struct EmulatedTiles {
    TileShapes shapes;
    char rows[TILES][TILE_ROWS][TILE_BYTES];
};
thread_local EmulatedTiles emulated;

inline void configure(const TileShapes& shapes) {
    std::memset(&emulated, 0, sizeof emulated);
    emulated.shapes = shapes;
}

inline void release() { configure(TileShapes{}); }

template <int TILE>
inline void clear() {
    std::memset(emulated.rows[TILE], 0, sizeof emulated.rows[TILE]);
}

template <int TILE>
inline void load(const void* from, int64_t stride_bytes) {
    clear<TILE>();
    for (int row = 0; row < emulated.shapes.rows[TILE]; ++row) {
        const char* at = static_cast<const char*>(from) + row * stride_bytes;
        std::memcpy(emulated.rows[TILE][row], at, emulated.shapes.row_bytes[TILE]);
    }
}

template <int TILE>
inline void store(void* to, int64_t stride_bytes) {
    for (int row = 0; row < emulated.shapes.rows[TILE]; ++row) {
        std::memcpy(static_cast<char*>(to) + row * stride_bytes, emulated.rows[TILE][row], emulated.shapes.row_bytes[TILE]);
    }
}

inline float emulated_bf16(int tile, int row, int index) {
    uint16_t bits;
    std::memcpy(&bits, emulated.rows[tile][row] + 2 * index, sizeof bits);
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float number;
    std::memcpy(&number, &word, sizeof number);
    return number;
}

// SUMS [rows][columns] float32 += X [rows][pairs][2] times WEIGHTS [pairs][columns][2], both bf16.
template <int SUMS, int X, int WEIGHTS>
inline void multiply() {
    for (int row = 0; row < emulated.shapes.rows[SUMS]; ++row) {
        for (int column = 0; column < emulated.shapes.row_bytes[SUMS] / 4; ++column) {
            float sums[2] = {0.0f, 0.0f};
            for (int index = 0; index < emulated.shapes.row_bytes[X] / 2; ++index) {
                sums[index % 2] += emulated_bf16(X, row, index) * emulated_bf16(WEIGHTS, index / 2, 2 * column + index % 2);
            }
            float before;
            std::memcpy(&before, emulated.rows[SUMS][row] + 4 * column, sizeof before);
            before += sums[0] + sums[1];
            std::memcpy(emulated.rows[SUMS][row] + 4 * column, &before, sizeof before);
        }
    }
}

#else

inline void configure(const TileShapes& shapes) { __asm__ volatile("ldtilecfg %0" ::"m"(shapes)); }

inline void release() { __asm__ volatile("tilerelease"); }

template <int TILE>
inline void clear() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(TILE));
}

template <int TILE>
inline void load(const void* from, int64_t stride_bytes) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride_bytes), "i"(TILE) : "memory");
}

template <int TILE>
inline void store(void* to, int64_t stride_bytes) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride_bytes), "i"(TILE) : "memory");
}

// SUMS [rows][columns] float32 += X [rows][pairs][2] times WEIGHTS [pairs][columns][2], both bf16.
template <int SUMS, int X, int WEIGHTS>
inline void multiply() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(X), "i"(WEIGHTS));
}

#endif
