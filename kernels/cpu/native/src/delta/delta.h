// Gated delta nets between their projections, by level. See delta.cpp.
#pragma once

#include <cstdint>

#include "turnpike.h"

namespace tp {

constexpr int64_t MOST_DELTA_DIM = 512;

struct Delta {
    const TpDelta* net;
    const TpDeltaRows* rows;
    const float* mixed;
    int64_t mixed_stride;
    const float* gates;
    int64_t gates_stride;
    uint16_t* out;  // or null: the states alone
    int64_t out_stride;

    int64_t group() const { return net->value_heads / net->key_heads; }
    int64_t value_head(int64_t key_head, int64_t member) const {
        return net->tiled != 0 ? member * net->key_heads + key_head : key_head * group() + member;
    }
    int64_t keys() const { return net->key_heads * net->key_dim; }
    int64_t channels() const { return 2 * keys() + net->value_heads * net->value_dim; }
    int64_t memory_words() const { return net->key_dim * net->value_dim; }  // of a head
};

// Tasks [first, last), each a key head of a row: task / key_heads is the row.
void delta_tasks_portable(const Delta& delta, int64_t first, int64_t last);
void gate_rows_portable(const float* gate, int64_t gate_stride, int64_t width, uint16_t* y, int64_t y_stride, int64_t first,
                        int64_t last);
#if defined(__x86_64__)
void delta_tasks_avx2(const Delta& delta, int64_t first, int64_t last);
void delta_tasks_avx512(const Delta& delta, int64_t first, int64_t last);
void gate_rows_avx2(const float* gate, int64_t gate_stride, int64_t width, uint16_t* y, int64_t y_stride, int64_t first,
                    int64_t last);
void gate_rows_avx512(const float* gate, int64_t gate_stride, int64_t width, uint16_t* y, int64_t y_stride, int64_t first,
                      int64_t last);
#endif

}  // namespace tp
