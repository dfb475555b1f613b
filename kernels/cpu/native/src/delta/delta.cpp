#include "delta/delta.h"

#include "threads/team.h"

namespace tp {
namespace {

struct Gate {
    const float* gate;
    int64_t gate_stride, width;
    uint16_t* y;
    int64_t y_stride;
};

void delta_range(const void* argument, int64_t first, int64_t last) {
    const auto& delta = *static_cast<const Delta*>(argument);
#if defined(__x86_64__)
    switch (tp_level()) {
        case TP_PORTABLE:
            break;
        case TP_AVX2:
            return delta_tasks_avx2(delta, first, last);
        default:
            return delta_tasks_avx512(delta, first, last);
    }
#endif
    delta_tasks_portable(delta, first, last);
}

void gate_range(const void* argument, int64_t first, int64_t last) {
    const auto& work = *static_cast<const Gate*>(argument);
#if defined(__x86_64__)
    switch (tp_level()) {
        case TP_PORTABLE:
            break;
        case TP_AVX2:
            return gate_rows_avx2(work.gate, work.gate_stride, work.width, work.y, work.y_stride, first, last);
        default:
            return gate_rows_avx512(work.gate, work.gate_stride, work.width, work.y, work.y_stride, first, last);
    }
#endif
    gate_rows_portable(work.gate, work.gate_stride, work.width, work.y, work.y_stride, first, last);
}

}  // namespace
}  // namespace tp

extern "C" int32_t tp_takes_delta(const TpDelta* net) {
    const auto whole = [](int64_t dim) { return dim > 0 && dim % 16 == 0 && dim <= tp::MOST_DELTA_DIM; };
    return whole(net->key_dim) && whole(net->value_dim) && net->taps > 1 && net->key_heads > 0 &&
           net->value_heads % net->key_heads == 0;
}

extern "C" void tp_gated_delta(const TpDelta* net, const TpDeltaRows* rows, const float* mixed, int64_t mixed_stride,
                               const float* gates, int64_t gates_stride, uint16_t* out, int64_t out_stride) {
    const tp::Delta delta{net, rows, mixed, mixed_stride, gates, gates_stride, out, out_stride};
    tp::run(tp::delta_range, &delta, rows->rows * net->key_heads, 1);
}

extern "C" void tp_sigmoid_mul(const float* gate, int64_t gate_stride, int64_t rows, int64_t width, uint16_t* y,
                               int64_t y_stride) {
    const tp::Gate work{gate, gate_stride, width, y, y_stride};
    tp::run(tp::gate_range, &work, rows, 4);
}
