// A product of rows with weights of any format: prepares what a format wants of the rows, and hands blocks to threads.

#include "products/product.h"

#include <algorithm>

#include "threads/team.h"

namespace tp {
namespace {

constexpr int64_t PIECE_BYTES = 512 << 10;  // of weights: the most that one thread takes at a time
constexpr int64_t LEAST_BYTES = 16 << 10;   // and the least, towards the end
constexpr int64_t PANEL_BYTES = 512 << 10;  // of rows: what stays in a core's cache while all the weights pass by
constexpr int64_t PANEL_ROWS = 48;         // minimum: weights are read once for each panel
constexpr int64_t PREPARED_ROWS = 4;       // that one thread prepares at a time
constexpr int64_t ALIGNMENT = 64;
constexpr int64_t MOST_PARTS = 3;

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

// A part of the product and its share of the work: blocks [first_block, first_block + blocks) of all of them.
struct Part {
    const Format* format;
    Product product;
    int64_t first_block, blocks;
};

struct Work {
    Part* part;
    int64_t parts, blocks, rows, panel_rows;

    void add(const Format* format, const Product& product) {
        part[parts] = {format, product, blocks, (product.weight->outputs + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS};
        blocks += part[parts++].blocks;
    }
};

struct Preparation {
    const Format* format;
    const TpWeight* weight;
    const uint16_t* x;
    int64_t x_stride;
    char* prepared;
    int64_t prepared_bytes;
};

int64_t up_to(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// Bytes of one row prepared for a part, so that each begins aligned.
int64_t row_bytes(const Format& format, int64_t inputs) { return up_to(format.prepared_bytes(inputs), ALIGNMENT); }

// The earlier part whose prepared rows are this one's too, or this one.
int64_t prepared_with(const TpLinear& linear, int64_t part) {
    const TpWeight& weight = linear.part[part];
    const Format* format = format_of(weight.format);
    for (int64_t earlier = 0; earlier < part; ++earlier) {
        const TpWeight& other = linear.part[earlier];
        const bool alike = other.inputs == weight.inputs && other.input_scale == weight.input_scale;
        if (alike && format_of(other.format)->prepare == format->prepare) {
            return earlier;
        }
    }
    return part;
}

void prepare_range(const void* argument, int64_t first, int64_t last) {
    const auto& work = *static_cast<const Preparation*>(argument);
    for (int64_t row = first; row < last; ++row) {
        work.format->prepare(*work.weight, work.x + row * work.x_stride, work.prepared + row * work.prepared_bytes);
    }
}

void prepare_rows(const Preparation& preparation, int64_t rows) {
    if (preparation.prepared_bytes > 0) {
        run(prepare_range, &preparation, rows, PREPARED_ROWS);
    }
}

// A part's product for the panel of rows that begins with `row`.
Product product_of_panel(const Work& work, const Part& part, int64_t row) {
    Product product = part.product;
    const int64_t number_bytes = product.store == TP_STORE_FLOAT32 || product.store == TP_ADD_FLOAT32 ? 4 : 2;
    product.rows = std::min(work.panel_rows, work.rows - row);
    product.x += row * product.x_stride;
    product.prepared += row * product.prepared_bytes;
    product.y = static_cast<char*>(product.y) + row * product.y_stride * number_bytes;
    return product;
}

// Units of work are numbered panel by panel, in each block by block.
void product_range(const void* argument, int64_t first, int64_t last) {
    const auto& work = *static_cast<const Work*>(argument);
    for (int64_t unit = first; unit < last;) {
        const int64_t row = unit / work.blocks * work.panel_rows, block = unit % work.blocks;
        const Part* part = work.part;
        while (block >= part->first_block + part->blocks) {
            ++part;
        }
        Product product = product_of_panel(work, *part, row);
        const int64_t begin = block - part->first_block, end = std::min(begin + last - unit, part->blocks);
        for (int64_t b = begin; b < end; ++b) {
            product.next_block = b + 1 < end ? b + 1 : -1;
            product.follows = b > begin;
            part->format->block(product, b);
        }
        unit += end - begin;
    }
}

// Where a part's outputs begin in y, in bytes.
int64_t offset_of(int64_t output, TpStore store) {
    switch (store) {
        case TP_STORE_BF16:
            return 2 * output;
        case TP_STORE_SILU_MUL:
        case TP_STORE_GELU_MUL:
        case TP_STORE_CLAMPED_MUL:
            return output;  // half as many of two bytes
        default:
            return 4 * output;
    }
}

// Rows in a panel: few enough to stay in the cache with a block of weights; panels are about equal.
int64_t panel_rows(int64_t rows, int64_t bytes_of_row) {
    const int64_t most = std::max(PANEL_ROWS, PANEL_BYTES / bytes_of_row);
    const int64_t panels = (rows + most - 1) / most;
    return up_to((rows + panels - 1) / panels, PANEL_ROWS);
}

// Units of work for weights of `bytes` bytes, at least one.
int64_t units_of(const TpWeight& weight, int64_t bytes) {
    return std::max<int64_t>(1, bytes / tp_packed_bytes(weight.format, BLOCK_OUTPUTS, weight.inputs));
}

// Computes all parts. `bytes_of_row`: the largest row of them.
void compute(Work& work, int64_t bytes_of_row) {
    work.panel_rows = panel_rows(work.rows, bytes_of_row);
    const int64_t panels = (work.rows + work.panel_rows - 1) / work.panel_rows;
    const TpWeight& weight = *work.part[0].product.weight;
    run(product_range, &work, panels * work.blocks, units_of(weight, PIECE_BYTES), units_of(weight, LEAST_BYTES));
}

}  // namespace
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

extern "C" int64_t tp_product_scratch_bytes(const TpLinear* linear, int64_t rows) {
    int64_t bytes = 0;
    for (int64_t part = 0; part < linear->count; ++part) {
        if (prepared_with(*linear, part) == part) {
            bytes += rows * row_bytes(*format_of(linear->part[part].format), linear->part[part].inputs);
        }
    }
    return bytes;
}

extern "C" void tp_product(const TpLinear* linear, const uint16_t* x, int64_t x_stride, int64_t rows, int32_t store, void* y,
                           int64_t y_stride, void* scratch) {
    if (rows <= 0) {
        return;
    }
    Part parts[MOST_PARTS];
    Work work{parts, 0, 0, rows, 0};
    int64_t bytes_of_row = 2 * linear->part[0].inputs;
    auto* prepared = static_cast<char*>(scratch);
    int64_t first_output = 0;
    for (int64_t index = 0; index < linear->count; ++index) {
        const TpWeight& weight = linear->part[index];
        const Format* format = format_of(weight.format);
        const int64_t bytes = row_bytes(*format, weight.inputs);
        bytes_of_row = std::max(bytes_of_row, bytes);
        const int64_t shared = prepared_with(*linear, index);
        const char* rows_at = shared == index ? prepared : parts[shared].product.prepared;
        if (shared == index) {
            prepare_rows({format, &weight, x, x_stride, prepared, bytes}, rows);
            prepared += rows * bytes;
        }
        work.add(format, {&weight, x, x_stride, rows, rows_at, bytes, static_cast<TpStore>(store),
                          static_cast<char*>(y) + offset_of(first_output, static_cast<TpStore>(store)), y_stride, -1, false});
        first_output += weight.outputs;
    }
    compute(work, bytes_of_row);
}

extern "C" int64_t tp_head_products_scratch_bytes(const TpLinear* heads, int64_t count, int64_t rows) {
    const TpWeight& weight = heads->part[0];
    return up_to(count * sizeof(Part), ALIGNMENT) + count * rows * row_bytes(*format_of(weight.format), weight.inputs);
}

extern "C" void tp_head_products(const TpLinear* heads, int64_t count, const uint16_t* x, int64_t x_stride, int64_t x_of_head,
                                 int64_t rows, uint16_t* y, int64_t y_stride, int64_t y_of_head, void* scratch) {
    if (rows <= 0) {
        return;
    }
    auto* parts = static_cast<Part*>(scratch);
    auto* prepared = static_cast<char*>(scratch) + up_to(count * sizeof(Part), ALIGNMENT);
    const Format* format = format_of(heads->part[0].format);
    const int64_t inputs = heads->part[0].inputs, bytes = row_bytes(*format, inputs);
    Work work{parts, 0, 0, rows, 0};
    for (int64_t head = 0; head < count; ++head, x += x_of_head, y += y_of_head, prepared += rows * bytes) {
        const TpWeight& weight = heads[head].part[0];
        prepare_rows({format, &weight, x, x_stride, prepared, bytes}, rows);
        work.add(format, {&weight, x, x_stride, rows, prepared, bytes, TP_STORE_BF16, y, y_stride, -1, false});
    }
    compute(work, std::max(2 * inputs, bytes));
}
