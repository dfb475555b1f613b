#include "norms/norms.h"

#include <algorithm>

#include "threads/team.h"
#include "turnpike.h"

namespace tp {
namespace {

constexpr int64_t PIECE_NUMBERS = 16 << 10;  // below this a loop over threads takes longer than it saves

void norm_range(const void* argument, int64_t first, int64_t last) {
    const auto& norm = *static_cast<const Norm*>(argument);
#if defined(__x86_64__)
    switch (tp_level()) {
        case TP_PORTABLE:
            break;
        case TP_AVX2:
            return norm_rows_avx2(norm, first, last);
        default:
            return norm_rows_avx512(norm, first, last);
    }
#endif
    norm_rows_portable(norm, first, last);
}

}  // namespace
}  // namespace tp

extern "C" void tp_rms_norm(const float* x, int64_t x_stride, int64_t rows, int64_t width, const float* weight, float eps,
                            uint16_t* y, int64_t y_stride) {
    const tp::Norm norm{x, x_stride, width, weight, eps, y, y_stride};
    const int64_t grain = std::max<int64_t>(1, tp::PIECE_NUMBERS / std::max<int64_t>(1, width));
    if (rows <= grain) {
        tp::norm_range(&norm, 0, rows);
    } else {
        tp::run(tp::norm_range, &norm, rows, grain);
    }
}
