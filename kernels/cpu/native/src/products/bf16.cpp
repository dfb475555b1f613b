#include "products/bf16.h"

#include <algorithm>
#include <cstring>

#include "threads/team.h"

namespace tp {
namespace {

int64_t blocks_of(int64_t outputs) { return (outputs + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS; }

int64_t packed_bytes(int64_t outputs, int64_t inputs) {
    return inputs % 2 == 0 ? blocks_of(outputs) * BLOCK_OUTPUTS * inputs * 2 : -1;
}

constexpr int64_t PAIR_BYTES = 4;

struct Packing {
    const char* rows;
    int64_t outputs, inputs;
    char* packed;
};

// Inputs of an output that are moved at a time, a cache line: the places that they come to stay in the first cache meanwhile.
constexpr int64_t TILE_INPUTS = 32;

void pack_blocks(const void* argument, int64_t first, int64_t last) {
    const auto& [rows, outputs, inputs, packed] = *static_cast<const Packing*>(argument);
    for (int64_t block = first; block < last; ++block) {
        char* to = packed + block * BLOCK_OUTPUTS * inputs * 2;
        for (int64_t tile = 0; tile < inputs; tile += TILE_INPUTS) {
            const int64_t pairs = std::min(TILE_INPUTS, inputs - tile) / 2;
            for (int64_t lane = 0; lane < BLOCK_OUTPUTS; ++lane) {
                const int64_t output = block * BLOCK_OUTPUTS + lane;
                const char* from = rows + 2 * (output * inputs + tile);
                for (int64_t pair = 0; pair < pairs; ++pair) {
                    char* at = to + (pair * BLOCK_OUTPUTS + lane) * PAIR_BYTES;
                    if (output < outputs) {
                        std::memcpy(at, from + pair * PAIR_BYTES, PAIR_BYTES);
                    } else {
                        std::memset(at, 0, PAIR_BYTES);
                    }
                }
            }
            to += pairs * BLOCK_OUTPUTS * PAIR_BYTES;
        }
    }
}

void pack(const void* rows, int64_t outputs, int64_t inputs, void* packed) {
    const Packing packing{static_cast<const char*>(rows), outputs, inputs, static_cast<char*>(packed)};
    run(pack_blocks, &packing, blocks_of(outputs), 1);
}

void unpack_row(const void* packed, int64_t, int64_t inputs, int64_t output, float* numbers) {
    const auto* block = static_cast<const uint16_t*>(packed) + output / BLOCK_OUTPUTS * BLOCK_OUTPUTS * inputs;
    const int64_t lane = output % BLOCK_OUTPUTS;
    for (int64_t input = 0; input < inputs; ++input) {
        const uint32_t word = uint32_t{block[(input / 2 * BLOCK_OUTPUTS + lane) * 2 + input % 2]} << 16;
        std::memcpy(numbers + input, &word, sizeof word);
    }
}

int64_t nothing_prepared(int64_t) { return 0; }

constexpr Format with(void (*block)(const Product&, int64_t)) {
    return {packed_bytes, pack, unpack_row, nothing_prepared, nullptr, block};
}

constexpr Format PORTABLE = with(bf16_block_portable);
#if defined(__x86_64__)
constexpr Format AVX2 = with(bf16_block_avx2);
constexpr Format AVX512 = with(bf16_block_avx512);
constexpr Format AVX512_FLOAT = {packed_bytes,         pack,                 unpack_row,
                                 bf16_float_row_bytes, bf16_to_float_avx512, bf16_block_float_avx512};
constexpr Format AMX = with(bf16_block_amx);
#endif

}  // namespace

const Format* bf16_format(int32_t level) {
#if defined(__x86_64__)
    if (level >= TP_AMX) {
        return &AMX;
    }
    if (level >= TP_AVX512_FLOAT) {
        return &AVX512_FLOAT;
    }
    if (level >= TP_AVX512_BF16) {
        return &AVX512;
    }
    if (level >= TP_AVX2) {
        return &AVX2;
    }
#endif
    static_cast<void>(level);
    return &PORTABLE;
}

}  // namespace tp
