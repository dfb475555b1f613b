// RMS norms of rows, by level. See norms.cpp.
#pragma once

#include <cstdint>

namespace tp {

struct Norm {
    const float* x;
    int64_t x_stride, width;
    const float* weight;
    float eps;
    uint16_t* y;
    int64_t y_stride;
};

// Rows [first, last).
void norm_rows_portable(const Norm& norm, int64_t first, int64_t last);
#if defined(__x86_64__)
void norm_rows_avx2(const Norm& norm, int64_t first, int64_t last);
void norm_rows_avx512(const Norm& norm, int64_t first, int64_t last);
#endif

}  // namespace tp
