// A step's attention: the work of `attention_layout.h`, distributed over threads.

#include "attention/attention.h"
#include "attention/attention_ahead.h"
#include "attention/attention_layout.h"
#include "threads/team.h"

namespace tp {
namespace {

constexpr int64_t TASKS_PER_THREAD = 8;
constexpr int64_t TOGETHER = 4;  // tiles of all KV heads that a thread takes at a time, at most
constexpr int64_t SERIAL_NUMBERS = 8 << 10;  // of keys read: below this a loop over threads takes longer than it saves

struct Plan {
    const Attention* attention;
    const AttentionKernels* kernels;
    const Task* tasks;
};

// One for each `TpKv`.
const AttentionKernels* kernels_of(int32_t level) {
#if defined(__x86_64__)
    if (level >= TP_AVX512_FLOAT) {
        return ATTENTION_AVX512_FLOAT;
    }
    if (level >= TP_AVX512_BF16) {
        return ATTENTION_AVX512;
    }
    if (level == TP_AVX2) {
        return ATTENTION_AVX2;
    }
#endif
    static_cast<void>(level);
    return ATTENTION_PORTABLE;
}

bool hides(int64_t window, const TpRows& rows) {
    return window > 0 && rows.rows > 0 && *std::max_element(rows.context_lens, rows.context_lens + rows.rows) > window;
}

// One of a unit's parts is complete. The thread that computed the last one merges them.
void note_part(const Plan& plan, Unit& unit) {
    if (unit.parts_left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        plan.kernels->merge(*plan.attention, unit.tile, unit.sums, unit.sums_of_part);
    }
}

void attend_range(const void* argument, int64_t first, int64_t last) {
    const auto& plan = *static_cast<const Plan*>(argument);
    Ahead ahead(*plan.attention, plan.tasks + first, plan.tasks + last);
    for (int64_t i = first; i < last; ++i) {
        Unit& unit = *plan.tasks[i].unit;
        if (unit.sums == nullptr) {
            plan.kernels->whole(*plan.attention, unit.tile, ahead);
            continue;
        }
        const int64_t part = plan.tasks[i].first_part, heads = plan.attention->heads->kv_heads;
        plan.kernels->part(*plan.attention, unit.tile, part, ahead, unit.sums + (part - unit.first_part) * unit.sums_of_part);
        if (unit.rows == 0) {
            note_part(plan, unit);
        }
        for (int64_t row = 1; row <= unit.rows; ++row) {
            note_part(plan, (&unit)[row * heads]);
        }
    }
}

}  // namespace
}  // namespace tp

extern "C" int64_t tp_attend_scratch_bytes(const TpHeads* heads, const TpRows* rows) {
    if (heads->head_dim % 2 != 0 || heads->head_dim > tp::MOST_HEAD_DIM || heads->query_heads % heads->kv_heads != 0) {
        return -1;
    }
    // A window, which is not known here, reduces the work but shares none of it.
    return std::max(tp::Layout(*heads, *rows, 0).bytes(), tp::Layout(*heads, *rows, INT64_MAX).bytes());
}

extern "C" void tp_attend(const TpHeads* heads, const TpRows* rows, const uint16_t* qkv, int64_t qkv_stride,
                          const void* kv_layer, int64_t window, uint16_t* out, int64_t out_stride, void* scratch) {
    const int64_t hiding = tp::hides(window, *rows) ? window : 0;
    const tp::Attention attention{heads,  rows, qkv, qkv_stride, static_cast<const char*>(kv_layer), tp::KvLayout(*heads),
                                  hiding, out,  out_stride};
    tp::Layout layout(*heads, *rows, hiding);
    if (layout.tasks() == 0) {
        return;
    }
    const tp::Plan plan{&attention, tp::kernels_of(tp_level()) + heads->kv, layout.write(static_cast<char*>(scratch))};
    const int64_t numbers = layout.total() / tp::READ_COST * heads->head_dim;
    if (numbers < tp::SERIAL_NUMBERS) {
        tp::attend_range(&plan, 0, layout.tasks());
    } else {
        const int64_t even = layout.tasks() / (tp::TASKS_PER_THREAD * tp::threads());
        const int64_t grain = std::clamp<int64_t>(even, 1, tp::TOGETHER * heads->kv_heads);
        tp::run(tp::attend_range, &plan, layout.tasks(), grain);
    }
}
