// bf16 weights rounded to signed bytes, in groups of 32 inputs with a scale each: q = w / scale, the largest of a group 127.
#include <algorithm>
#include <cmath>

#include "blocks_pack.h"

namespace tp {
namespace {

constexpr float MOST = 127.0f;

void pack_int8(const void* rows, int64_t inputs, int64_t output, uint8_t* block) {
    const uint16_t* row = static_cast<const uint16_t*>(rows) + output * inputs;
    const int64_t own = output % BLOCK_OUTPUTS;
    for (int64_t input = 0; input < inputs; input += GROUP_INPUTS, block += INT8_LAYOUT.group_bytes) {
        float largest = 0.0f;
        for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
            largest = std::max(largest, std::fabs(from_bf16(row[input + i])));
        }
        const uint16_t bits = not_below(largest / MOST);
        const float scale = from_bf16(bits);
        put_half(block + BYTES_BYTES, own, bits);
        for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
            const float value = scale > 0.0f ? from_bf16(row[input + i]) / scale : 0.0f;
            block[byte_byte(own, i)] = static_cast<uint8_t>(static_cast<int8_t>(std::lrint(value)));
        }
    }
}

float int8_number(const uint8_t*, const uint8_t* group, int64_t output, int64_t input) {
    return from_bf16(half_of(group + BYTES_BYTES, output)) * static_cast<int8_t>(group[byte_byte(output, input)]);
}

}  // namespace

const Format* int8_format(int32_t level) {
    return block_format<INT8_LAYOUT, each_output<pack_int8>, int8_number, &BlockKernels::int8>(level);
}

}  // namespace tp
