#include "products/work.h"

#include <algorithm>

#include "threads/team.h"

namespace tp {
namespace {

constexpr int64_t PIECE_BYTES = 512 << 10;  // of weights: the most that one thread takes at a time
constexpr int64_t LEAST_BYTES = 16 << 10;   // and the least, towards the end
constexpr int64_t PANEL_BYTES = 512 << 10;  // of rows: what stays in a core's cache while all the weights pass by
constexpr int64_t PANEL_ROWS = 48;         // minimum: weights are read once for each panel
constexpr int64_t PREPARED_ROWS = 4;       // that one thread prepares at a time

struct Works {
    const Work* work;
    int64_t count;
};

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

void prepare_row(const Work& work, int64_t row) {
    for (int64_t index = 0; index < work.parts; ++index) {
        const Part& part = work.part[index];
        if (part.prepares) {
            const Product& product = part.product;  // it alone writes these rows, before any product reads them
            auto* prepared = const_cast<char*>(product.prepared) + row * product.prepared_bytes;
            part.format->prepare(*product.weight, product.x + row * product.x_stride, prepared);
        }
    }
}

void prepare_range(const void* argument, int64_t first, int64_t last) {
    const Work* work = static_cast<const Works*>(argument)->work;
    for (int64_t row = first; row < last; ++row) {
        while (row >= work->first_row + work->rows) {
            ++work;
        }
        prepare_row(*work, row - work->first_row);
    }
}

// A part's product for the panel of rows that begins with `row`.
Product product_of_panel(const Work& work, const Part& part, int64_t row) {
    Product product = part.product;
    const int64_t number_bytes = product.store == TP_STORE_FLOAT32 || product.store == TP_ADD_FLOAT32 ? 4 : 2;
    product.rows = std::min(work.panel_rows, work.rows - row);
    product.x += row * product.x_stride;
    product.prepared += row * product.prepared_bytes;
    product.added = product.added == nullptr ? nullptr : product.added + row;
    product.y = static_cast<char*>(product.y) + row * product.y_stride * number_bytes;
    return product;
}

// Units [first, last) of one product.
void run_units(const Work& work, int64_t first, int64_t last) {
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

void unit_range(const void* argument, int64_t first, int64_t last) {
    const auto& works = *static_cast<const Works*>(argument);
    const auto begins_after = [](int64_t unit, const Work& work) { return unit < work.first_unit; };
    const Work* work = std::upper_bound(works.work, works.work + works.count, first, begins_after) - 1;
    while (first < last) {
        const int64_t end = std::min(last, work->first_unit + work->units());
        run_units(*work, first - work->first_unit, end - work->first_unit);
        first = end;
        ++work;
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

}  // namespace

int64_t prepared_row_bytes(const TpLinear& linear) {
    int64_t bytes = 0;
    for (int64_t part = 0; part < linear.count; ++part) {
        if (prepared_with(linear, part) == part) {
            bytes += row_bytes(*format_of(linear.part[part].format), linear.part[part].inputs);
        }
    }
    return bytes;
}

Work work_of(const TpLinear& linear, const uint16_t* x, int64_t x_stride, int64_t rows, TpStore store, void* y,
             int64_t y_stride, char* prepared) {
    Work work{};
    work.parts = linear.count;
    work.rows = rows;
    int64_t bytes_of_row = 2 * linear.part[0].inputs;
    int64_t first_output = 0;
    for (int64_t index = 0; index < linear.count; ++index) {
        Part& part = work.part[index];
        const TpWeight& weight = linear.part[index];
        part.format = format_of(weight.format);
        const int64_t bytes = row_bytes(*part.format, weight.inputs);
        bytes_of_row = std::max(bytes_of_row, bytes);
        const int64_t shared = prepared_with(linear, index);
        const char* rows_at = shared == index ? prepared : work.part[shared].product.prepared;
        part.prepares = bytes > 0 && shared == index;
        if (part.prepares) {
            prepared += rows * bytes;
        }
        part.product = {&weight, x, x_stride, rows, rows_at, bytes, store,
                        static_cast<char*>(y) + offset_of(first_output, store), y_stride, -1, false, nullptr, nullptr, 0};
        part.first_block = work.blocks;
        part.blocks = (weight.outputs + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS;
        work.blocks += part.blocks;
        first_output += weight.outputs;
    }
    work.panel_rows = panel_rows(rows, bytes_of_row);
    return work;
}

void add_to_rows(Work* work, const Added* added) {
    for (Part* part = work->part; part < work->part + work->parts; ++part) {
        part->product.added = added;
        part->product.expand = low_rank_kernels().expand;
        part->product.first_half = 2 * part->first_block;
    }
}

void run_products(Work* works, int64_t count) {
    int64_t rows = 0, units = 0;
    bool prepares = false;
    for (Work* work = works; work < works + count; ++work) {
        work->first_row = rows;
        work->first_unit = units;
        rows += work->rows;
        units += work->units();
        for (int64_t part = 0; part < work->parts; ++part) {
            prepares = prepares || work->part[part].prepares;
        }
    }
    if (units == 0) {
        return;
    }
    const Works all{works, count};
    if (prepares) {
        run(prepare_range, &all, rows, PREPARED_ROWS);
    }
    const TpWeight& weight = *works->part[0].product.weight;
    run(unit_range, &all, units, units_of(weight, PIECE_BYTES), units_of(weight, LEAST_BYTES));
}

}  // namespace tp
