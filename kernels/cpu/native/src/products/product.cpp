// A product of rows with weights of any format; see work.cpp for how it is divided.

#include "products/work.h"

namespace tp {

const Format* format_of(int32_t format) {
    const int32_t level = tp_level();
    switch (format) {
        case TP_BF16:
            return bf16_format(level);
        case TP_INT8:
            return int8_format(level);
        case TP_INT4:
            return int4_format(level);
        case TP_U4_32:
        case TP_U4_64:
        case TP_U4_128:
        case TP_U8_32:
        case TP_U8_64:
        case TP_U8_128:
            return zero_points_format(format, level);
        case TP_E4M3_32:
        case TP_E4M3_128:
            return float8_format(format, level);
        case TP_W8A8:
            return w8a8_format(level);
        default:
            return gguf_format(format, level);
    }
}

}  // namespace tp

using namespace tp;

extern "C" int64_t tp_packed_bytes(int32_t format, int64_t outputs, int64_t inputs) {
    const Format* found = format_of(format);
    return found == nullptr ? -1 : found->packed_bytes(outputs, inputs);
}

extern "C" void tp_pack(int32_t format, const void* rows, int64_t outputs, int64_t inputs, void* packed) {
    format_of(format)->pack(rows, outputs, inputs, packed);
}

extern "C" void tp_unpack_row(int32_t format, const void* packed, int64_t outputs, int64_t inputs, int64_t output,
                              float* numbers) {
    format_of(format)->unpack_row(packed, outputs, inputs, output, numbers);
}

extern "C" void tp_unpack_rows(const TpLinear* linear, const int64_t* outputs, int64_t count, float* numbers) {
    const int64_t inputs = linear->part[0].inputs;
    for (int64_t row = 0; row < count; ++row) {
        const TpWeight* weight = linear->part;
        int64_t output = outputs[row];
        while (output >= weight->outputs) {
            output -= weight->outputs;
            ++weight;
        }
        tp_unpack_row(weight->format, weight->packed, weight->outputs, inputs, output, numbers + row * inputs);
    }
}

extern "C" int64_t tp_product_scratch_bytes(const TpLinear* linear, int64_t rows) { return rows * prepared_row_bytes(*linear); }

extern "C" void tp_product(const TpLinear* linear, const uint16_t* x, int64_t x_stride, int64_t rows, int32_t store, void* y,
                           int64_t y_stride, void* scratch) {
    if (rows <= 0) {
        return;
    }
    Work work = work_of(*linear, x, x_stride, rows, static_cast<TpStore>(store), y, y_stride, static_cast<char*>(scratch));
    run_products(&work, 1);
}

extern "C" int64_t tp_head_products_scratch_bytes(const TpLinear* heads, int64_t count, int64_t rows) {
    return up_to(count * int64_t{sizeof(Work)}, ALIGNMENT) + count * rows * prepared_row_bytes(*heads);
}

extern "C" void tp_head_products(const TpLinear* heads, int64_t count, const uint16_t* x, int64_t x_stride, int64_t x_of_head,
                                 int64_t rows, uint16_t* y, int64_t y_stride, int64_t y_of_head, void* scratch) {
    if (rows <= 0) {
        return;
    }
    auto* works = static_cast<Work*>(scratch);
    auto* prepared = static_cast<char*>(scratch) + up_to(count * int64_t{sizeof(Work)}, ALIGNMENT);
    const int64_t prepared_bytes = rows * prepared_row_bytes(*heads);
    for (int64_t head = 0; head < count; ++head, x += x_of_head, y += y_of_head, prepared += prepared_bytes) {
        works[head] = work_of(heads[head], x, x_stride, rows, TP_STORE_BF16, y, y_stride, prepared);
    }
    run_products(works, count);
}
