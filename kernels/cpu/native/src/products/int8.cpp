// bf16 weights rounded to signed bytes, in groups of 32 inputs with a scale each: q = w / scale, the largest of a group 127.
#include "products/blocks_pack.h"
#include "products/rounding.h"

namespace tp {
namespace {

void pack_int8(const void* rows, int64_t inputs, int64_t first, int64_t last, uint8_t* block) {
    rounding(tp_level()).int8(rows, inputs, first, last, block);
}

float int8_number(const uint8_t*, const uint8_t* group, int64_t output, int64_t input) {
    return from_bf16(half_of(group + BYTES_BYTES, output)) * static_cast<int8_t>(group[byte_byte(output, input)]);
}

}  // namespace

const Format* int8_format(int32_t level) {
    return block_format<TP_INT8, INT8_LAYOUT, pack_int8, int8_number>(level);
}

}  // namespace tp
