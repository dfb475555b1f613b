// bf16 weights rounded to four bits, in groups of 32 inputs: w = scale q + minimum, q 0..15 and the minimum not above zero.
// Scales and minima are a byte each times what all groups of an output share, so a weight takes 4.5 bits, as with ggml's
// Q4_0, whose error is a fifth larger.
#include "products/blocks_pack.h"
#include "products/rounding.h"

namespace tp {
namespace {

void pack_int4(const void* rows, int64_t inputs, int64_t first, int64_t last, uint8_t* block) {
    rounding(tp_level()).int4(rows, inputs, first, last, block);
}

float int4_number(const uint8_t* super, const uint8_t* group, int64_t output, int64_t input) {
    const float scale = from_bf16(half_of(super, output)) * group[NIBBLES_BYTES + output];
    const float minimum = from_bf16(half_of(super + SCALES_BYTES, output)) * group[NIBBLES_BYTES + BLOCK_OUTPUTS + output];
    return scale * static_cast<float>(nibble_of(group, output, input)) - minimum;
}

}  // namespace

const Format* int4_format(int32_t level) {
    return block_format<TP_INT4, INT4_LAYOUT, pack_int4, int4_number>(level);
}

}  // namespace tp
