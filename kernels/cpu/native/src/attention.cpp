// A step's attention, cut into tasks for threads.
//
// A unit is a tile of queries. A unit that is a large share of the step is cut into one task a part of its context: each
// leaves its sums in scratch, and whoever is last merges them in order. The others are one task each.

#include "attention.h"

#include <new>

#include "attention_ahead.h"
#include "team.h"

namespace tp {
namespace {

constexpr int64_t SHARES = 128;  // a unit of more than one of so many shares of the work is cut
constexpr int64_t TASKS_PER_THREAD = 8;
constexpr int64_t TOGETHER = 4;  // tiles of all KV heads that a thread takes at a time, at most
constexpr int64_t SERIAL_NUMBERS = 8 << 10;  // of keys read: below this a loop over threads takes longer than it saves
constexpr int64_t ALIGNMENT = 64;
constexpr int64_t READ_COST = 8;  // to read a key and turn it costs about as much as this many queries

struct Plan {
    const Attention* attention;
    const AttentionKernels* kernels;
    const Task* tasks;
};

struct Amounts {
    int64_t units, tasks, sums;
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

int64_t up_to(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// Tiles of a step, those of one KV head standing for all; of a row the last first, as they see most.
template <typename Each>
void for_each_tile(const TpHeads& heads, const TpRows& rows, Each each) {
    const int64_t group = heads.query_heads / heads.kv_heads, most = tile_queries(heads.head_dim);
    int64_t token = 0;
    for (int64_t row = 0; row < rows.rows; ++row) {
        const int64_t queries = rows.query_lens[row] * group, tiles = (queries + most - 1) / most;
        const int64_t position = rows.context_lens[row] - rows.query_lens[row];
        for (int64_t tile = tiles; tile-- > 0;) {
            each(Tile{row, 0, tile * queries / tiles, (tile + 1) * queries / tiles, token, position});
        }
        token += rows.query_lens[row];
    }
}

int64_t cost_of(const Tile& tile, int64_t group) {
    return (tile.position_of(tile.last - 1, group) + 1) * (tile.last - tile.first + READ_COST);
}

int64_t total_cost(const TpHeads& heads, const TpRows& rows) {
    int64_t cost = 0;
    for_each_tile(heads, rows, [&](const Tile& tile) { cost += cost_of(tile, heads.query_heads / heads.kv_heads); });
    return cost * heads.kv_heads;
}

// Parts that a tile is cut into; 1 where it is not. What a window hides is counted too, so that scratch fits any window.
int64_t parts_of(const Tile& tile, int64_t group, int64_t total) {
    const int64_t parts = tile.position_of(tile.last - 1, group) / PART_TOKENS + 1;
    return cost_of(tile, group) * SHARES > total ? parts : 1;
}

Amounts amounts_of(const TpHeads& heads, const TpRows& rows) {
    const int64_t total = total_cost(heads, rows), group = heads.query_heads / heads.kv_heads;
    Amounts amounts{0, 0, 0};
    for_each_tile(heads, rows, [&](const Tile& tile) {
        const int64_t parts = parts_of(tile, group, total);
        amounts.units += heads.kv_heads;
        amounts.tasks += parts * heads.kv_heads;
        amounts.sums += parts > 1 ? parts * heads.kv_heads * (tile.last - tile.first) * sums_stride(heads.head_dim) : 0;
    });
    return amounts;
}

// Units, tasks and sums into scratch, in that order; gives how many tasks there are.
int64_t lay_out(const Attention& attention, char* scratch, const Task*& first_task) {
    const TpHeads& heads = *attention.heads;
    const Amounts amounts = amounts_of(heads, *attention.rows);
    const int64_t total = total_cost(heads, *attention.rows), group = attention.group();
    auto* unit = reinterpret_cast<Unit*>(scratch);
    auto* tasks = reinterpret_cast<Task*>(scratch + up_to(amounts.units * sizeof(Unit), ALIGNMENT));
    auto* sums = reinterpret_cast<float*>(reinterpret_cast<char*>(tasks) + up_to(amounts.tasks * sizeof(Task), ALIGNMENT));
    Task* task = tasks;
    for_each_tile(heads, *attention.rows, [&](Tile tile) {
        const int64_t first = attention.first_visible(tile.position_of(tile.first, group)) / PART_TOKENS;
        const int64_t last = tile.position_of(tile.last - 1, group) / PART_TOKENS + 1;
        const bool cut = parts_of(tile, group, total) > 1 && last - first > 1;
        Unit* units = unit;
        for (tile.kv_head = 0; tile.kv_head < heads.kv_heads; ++tile.kv_head) {
            new (unit++) Unit{tile, cut ? sums : nullptr, first, {last - first}};
            sums += cut ? (last - first) * (tile.last - tile.first) * sums_stride(heads.head_dim) : 0;
        }
        for (int64_t part = first; part < (cut ? last : first + 1); ++part) {
            for (int64_t head = 0; head < heads.kv_heads; ++head) {  // neighbours in memory: one thread's, if it can be
                *task++ = Task{units + head, part, cut ? part + 1 : last};
            }
        }
    });
    first_task = tasks;
    return task - tasks;
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
        const int64_t of_part = (unit.tile.last - unit.tile.first) * sums_stride(plan.attention->heads->head_dim);
        const int64_t part = plan.tasks[i].first_part;
        plan.kernels->part(*plan.attention, unit.tile, part, ahead, unit.sums + (part - unit.first_part) * of_part);
        if (unit.parts_left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            plan.kernels->merge(*plan.attention, unit.tile, unit.sums);
        }
    }
}

}  // namespace
}  // namespace tp

extern "C" int64_t tp_attend_scratch_bytes(const TpHeads* heads, const TpRows* rows) {
    if (heads->head_dim % 2 != 0 || heads->head_dim > tp::MOST_HEAD_DIM || heads->query_heads % heads->kv_heads != 0) {
        return -1;
    }
    const tp::Amounts amounts = tp::amounts_of(*heads, *rows);
    return tp::up_to(amounts.units * sizeof(tp::Unit), tp::ALIGNMENT) +
           tp::up_to(amounts.tasks * sizeof(tp::Task), tp::ALIGNMENT) +
           amounts.sums * static_cast<int64_t>(sizeof(float));
}

extern "C" void tp_attend(const TpHeads* heads, const TpRows* rows, const uint16_t* qkv, int64_t qkv_stride,
                          const void* kv_layer, int64_t window, uint16_t* out, int64_t out_stride, void* scratch) {
    const tp::Attention attention{heads,  rows, qkv, qkv_stride, static_cast<const char*>(kv_layer), tp::KvLayout(*heads),
                                  window, out,  out_stride};
    tp::Plan plan{&attention, tp::kernels_of(tp_level()) + heads->kv, nullptr};
    const int64_t tasks = tp::lay_out(attention, static_cast<char*>(scratch), plan.tasks);
    if (tasks == 0) {
        return;
    }
    const int64_t numbers = tp::total_cost(*heads, *rows) / tp::READ_COST * heads->head_dim;
    if (numbers < tp::SERIAL_NUMBERS) {
        tp::attend_range(&plan, 0, tasks);
    } else {
        const int64_t even = tasks / (tp::TASKS_PER_THREAD * tp::threads());
        tp::run(tp::attend_range, &plan, tasks, std::clamp<int64_t>(even, 1, tp::TOGETHER * heads->kv_heads));
    }
}
