// A product whose rows may have low-rank changes, each row that of its adapter:
//
//   shrink   down x of the tokens with a change, grouped by adapter: one loop over all (adapter, tokens, ranks, inputs)
//   product  as ever, but that `store_sums` adds up (down x) of its row to the sums of a block before they are stored
//
// Sums have one order for any number of tokens, so a token's result depends on that token alone. Rows without a change have
// the bits of a product without adapters.

#include "adapters/adapted.h"

#include <algorithm>
#include <utility>

#include "adapters/low_rank.h"
#include "products/work.h"
#include "threads/team.h"

namespace tp {
namespace {

constexpr int64_t PANEL_TOKENS = 48;       // of a group that are shrunk in a unit of work
constexpr int64_t PIECE_BYTES = 64 << 10;  // of `down`: the most that one thread takes at a time
constexpr int64_t LEAST_BYTES = 16 << 10;
constexpr int64_t SUMMED_TOKENS = 64;      // that one thread takes at a time

// Tokens with the same change: entries [first, first + count).
struct Group {
    const LowRank* change;
    int64_t first, count, filled;
    int64_t first_unit;

    int64_t panels() const { return (count + PANEL_TOKENS - 1) / PANEL_TOKENS; }
    int64_t units() const { return panels() * change->blocks() * RANK_QUARTERS; }
};

// Where things are in the caller's scratch memory.
struct Arena {
    const uintptr_t base;
    int64_t end = 0;
    Group* groups;
    int64_t *group_of_slot, *tokens;
    Added* added;
    float* sums;  // [quarters][entries][rank]; of the first quarter, finally all of a token's
    char* product;

    Arena(const TpLinear& linear, const TpRows& rows, void* scratch) : base(reinterpret_cast<uintptr_t>(scratch)) {
        const TpAdapters& adapters = *rows.adapters;
        take(groups, std::min(rows.rows, adapters.slots));
        take(group_of_slot, adapters.slots);
        take(tokens, rows.tokens);
        take(added, rows.tokens);
        take(sums, RANK_QUARTERS * rows.tokens * adapters.rank);
        take(product, tp_product_scratch_bytes(&linear, rows.tokens));
    }

  private:
    template <typename Item>
    void take(Item*& at, int64_t count) {
        at = reinterpret_cast<Item*>(base + std::exchange(end, end + up_to(count * int64_t{sizeof(Item)}, ALIGNMENT)));
    }
};

class Shrinking {
  public:
    Shrinking(const Arena& arena, const TpRows& rows, int64_t product, const uint16_t* x, int64_t x_stride)
        : arena_(arena), x_(x), x_stride_(x_stride), rank_(rows.adapters->rank) {
        const TpAdapters& adapters = *rows.adapters;
        std::fill_n(arena.group_of_slot, adapters.slots, -1);
        for (int64_t row = 0; row < rows.rows; ++row) {
            count_row(adapters, product, adapters.of_row[row], rows.query_lens[row]);
        }
        for (int64_t group = 0; group < groups_; ++group) {
            arena.groups[group].first = std::exchange(entries_, entries_ + arena.groups[group].count);
            arena.groups[group].first_unit = std::exchange(units_, units_ + arena.groups[group].units());
        }
        if (entries_ > 0) {
            take_tokens(rows);
        }
    }

    int64_t entries() const { return entries_; }

    void run_all() const {
        const int64_t unit_bytes = arena_.groups->change->quarter_pairs() * RANK_BLOCK * 4;
        const int64_t piece = std::max<int64_t>(1, PIECE_BYTES / unit_bytes);
        const int64_t least = std::max<int64_t>(1, LEAST_BYTES / unit_bytes);
        const auto shrink = [](const void* all, int64_t first, int64_t last) {
            static_cast<const Shrinking*>(all)->run_units(first, last);
        };
        const auto sum = [](const void* all, int64_t first, int64_t last) {
            static_cast<const Shrinking*>(all)->sum_entries(first, last);
        };
        run(shrink, this, units_, piece, least);
        run(sum, this, entries_, SUMMED_TOKENS);
    }

  private:
    void count_row(const TpAdapters& adapters, int64_t product, int64_t slot, int64_t tokens) {
        if (slot < 0) {
            return;
        }
        const auto* change = static_cast<const LowRank*>(adapters.slot[slot]->change[product]);
        if (change == nullptr) {
            return;
        }
        int64_t& group = arena_.group_of_slot[slot];
        if (group < 0) {
            group = groups_++;
            arena_.groups[group] = {change, 0, 0, 0, 0};
        }
        arena_.groups[group].count += tokens;
    }

    void take_tokens(const TpRows& rows) {
        int64_t token = 0;
        for (int64_t row = 0; row < rows.rows; ++row) {
            const int64_t end = token + rows.query_lens[row], slot = rows.adapters->of_row[row];
            Group* group = slot < 0 || arena_.group_of_slot[slot] < 0 ? nullptr : arena_.groups + arena_.group_of_slot[slot];
            for (; token < end; ++token) {
                if (group == nullptr) {
                    arena_.added[token] = {};
                    continue;
                }
                const int64_t entry = group->first + group->filled++;
                arena_.tokens[entry] = token;
                arena_.added[token] = {group->change, arena_.sums + entry * rank_};
            }
        }
    }

    // Units of a group are numbered panel by panel, in each block by block, in each quarter by quarter.
    void run_units(int64_t first, int64_t last) const {
        const auto begins_after = [](int64_t unit, const Group& group) { return unit < group.first_unit; };
        const Group* group = std::upper_bound(arena_.groups, arena_.groups + groups_, first, begins_after) - 1;
        const ShrinkBlock shrink = low_rank_kernels().shrink;
        for (int64_t unit = first; unit < last; ++unit) {
            while (unit >= group->first_unit + group->units()) {
                ++group;
            }
            run_unit(*group, unit - group->first_unit, shrink);
        }
    }

    void run_unit(const Group& group, int64_t unit, ShrinkBlock shrink) const {
        const LowRank& change = *group.change;
        const int64_t quarter = unit % RANK_QUARTERS, block = unit / RANK_QUARTERS % change.blocks();
        const int64_t panel = unit / RANK_QUARTERS / change.blocks(), pairs = change.inputs / 2;
        const int64_t begin = panel * group.count / group.panels(), end = (panel + 1) * group.count / group.panels();
        const int64_t first = std::min(pairs, quarter * change.quarter_pairs());
        const int64_t last = std::min(pairs, first + change.quarter_pairs());
        float* sums = arena_.sums + (quarter * entries_ + group.first + begin) * rank_;
        shrink({&change, x_, x_stride_, arena_.tokens + group.first + begin, end - begin, sums, rank_}, block, first, last);
    }

    void sum_entries(int64_t first, int64_t last) const {
        const int64_t of_quarter = entries_ * rank_;
        for (int64_t number = first * rank_; number < last * rank_; ++number) {
            float* sums = arena_.sums + number;
            sums[0] = (sums[0] + sums[of_quarter]) + (sums[2 * of_quarter] + sums[3 * of_quarter]);
        }
    }

    const Arena& arena_;
    const uint16_t* x_;
    const int64_t x_stride_, rank_;
    int64_t groups_ = 0, entries_ = 0, units_ = 0;
};

}  // namespace

LowRankKernels low_rank_kernels() {
#if defined(__x86_64__)
    switch (tp_level()) {
        case TP_PORTABLE:
            break;
        case TP_AVX2:
            return {shrink_block_avx2, expand_avx2};
        default:
            return {shrink_block_avx512, expand_avx512};
    }
#endif
    return {shrink_block_portable, expand_portable};
}

int64_t adapted_product_scratch_bytes(const TpLinear& linear, const TpRows& rows) { return Arena(linear, rows, nullptr).end; }

void adapted_product(const TpLinear& linear, const TpRows& rows, int64_t product, const uint16_t* x, int64_t x_stride,
                     TpStore store, void* y, int64_t y_stride, void* scratch) {
    const Arena arena(linear, rows, scratch);
    const Shrinking shrinking(arena, rows, product, x, x_stride);
    if (shrinking.entries() > 0) {
        shrinking.run_all();
    }
    Work work = work_of(linear, x, x_stride, rows.tokens, store, y, y_stride, arena.product);
    if (shrinking.entries() > 0) {
        add_to_rows(&work, arena.added);
    }
    run_products(&work, 1);
}

}  // namespace tp

extern "C" int64_t tp_adapted_product_scratch_bytes(const TpLinear* linear, const TpRows* rows) {
    return tp::adapted_product_scratch_bytes(*linear, *rows);
}

extern "C" void tp_adapted_product(const TpLinear* linear, const TpRows* rows, int64_t product, const uint16_t* x,
                                   int64_t x_stride, int32_t store, void* y, int64_t y_stride, void* scratch) {
    if (rows->tokens > 0) {
        tp::adapted_product(*linear, *rows, product, x, x_stride, static_cast<TpStore>(store), y, y_stride, scratch);
    }
}
