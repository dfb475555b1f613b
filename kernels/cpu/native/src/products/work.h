// Products of rows with weights of any format, divided into units of work for the threads.
#pragma once

#include "products/product.h"

namespace tp {

constexpr int64_t ALIGNMENT = 64;
constexpr int64_t MOST_PARTS = 3;

inline int64_t up_to(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

const Format* format_of(int32_t format);

// A part of a product and its share of the work: blocks [first_block, first_block + blocks) of all of them.
struct Part {
    const Format* format;
    Product product;
    int64_t first_block, blocks;
    bool prepares;  // whether it prepares rows, and does not take those of an earlier part
};

// One product. Units of work are numbered panel by panel of its rows, in each block by block. `first_row` and `first_unit`:
// those of the products before it that are run with it.
struct Work {
    Part part[MOST_PARTS];
    int64_t parts, blocks, rows, panel_rows;
    int64_t first_row, first_unit;

    int64_t units() const { return (rows + panel_rows - 1) / panel_rows * blocks; }
};

// Bytes of one row prepared for all parts, a multiple of ALIGNMENT.
int64_t prepared_row_bytes(const TpLinear& linear);

// The arguments are those of `tp_product`, with 1 row or more; `prepared`: `prepared_row_bytes` bytes for each row.
Work work_of(const TpLinear& linear, const uint16_t* x, int64_t x_stride, int64_t rows, TpStore store, void* y,
             int64_t y_stride, char* prepared);

// Adds to the product's rows what is `added` to each.
void add_to_rows(Work* work, const Added* added);

// Computes products that do not depend on each other, together: threads wait for each other once after the rows are
// prepared, and once at the end.
void run_products(Work* works, int64_t count);

}  // namespace tp
