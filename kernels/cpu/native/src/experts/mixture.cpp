// A mixture of experts: only chosen experts are read, each for all of its tokens at once. The products of all experts with the
// same inputs are divided among the threads together, so a layer has few loops, however many experts it computes.
//
// An entry is a pair of a token and an expert that it chose. Entries are ordered by expert, then by token; those of the shared
// MLP, which every token has, come after them. Each entry is a row of the products and of `outputs`.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "products/work.h"
#include "threads/team.h"

namespace tp {
namespace {

constexpr int64_t GATHERED_ROWS = 16;  // that one thread takes at a time
constexpr int64_t SUMMED_TOKENS = 2;
constexpr int64_t COLUMNS = 64;  // summed at a time, in registers

int64_t outputs_of(const TpLinear& linear) {
    int64_t outputs = 0;
    for (int64_t part = 0; part < linear.count; ++part) {
        outputs += linear.part[part].outputs;
    }
    return outputs;
}

// Sizes of a mixture's activations, the largest of any expert.
struct Sizes {
    int64_t inputs = 0, inner = 0, hidden, prepared_bytes = 0;

    explicit Sizes(const TpMixture& mixture) : hidden(outputs_of(mixture.expert[0].down)) {
        for (int64_t expert = 0; expert < mixture.routing.experts; ++expert) {
            take(mixture.expert[expert]);
        }
        if (mixture.shared != nullptr) {
            take(*mixture.shared);
        }
    }

  private:
    void take(const TpExpert& expert) {
        inputs = std::max(inputs, expert.gate_up.part[0].inputs);
        inner = std::max(inner, outputs_of(expert.gate_up) / 2);
        prepared_bytes = std::max({prepared_bytes, prepared_row_bytes(expert.gate_up), prepared_row_bytes(expert.down)});
    }
};

// Where things are in the caller's scratch memory.
struct Arena {
    const int64_t chosen_entries, entries;
    const uintptr_t base;
    int64_t end = 0;
    float *logits, *shares, *entry_shares, *outputs;
    int64_t *chosen, *tokens, *entries_of, *firsts, *filled;
    uint16_t *gathered, *activated;
    Work* works;
    char* phase;  // of whichever phase is running

    Arena(const TpMixture& mixture, const Sizes& sizes, int64_t rows, void* scratch)
        : chosen_entries(rows * mixture.routing.per_token),
          entries(chosen_entries + (mixture.shared == nullptr ? 0 : rows)),
          base(reinterpret_cast<uintptr_t>(scratch)) {
        const int64_t experts = mixture.routing.experts;
        take(logits, rows * outputs_of(mixture.router));
        take(shares, chosen_entries);
        take(entry_shares, entries);
        take(outputs, entries * sizes.hidden);
        take(chosen, chosen_entries);
        take(tokens, chosen_entries);
        take(entries_of, chosen_entries);
        take(firsts, experts + 1);
        take(filled, std::max(rows, experts));
        take(gathered, chosen_entries * sizes.inputs);
        take(activated, entries * sizes.inner);
        take(works, std::min(experts, chosen_entries) + 1);
        const int64_t routing = tp_route_scratch_bytes(&mixture.routing, rows);
        const int64_t products = std::max(entries * sizes.prepared_bytes, tp_product_scratch_bytes(&mixture.router, rows));
        take(phase, std::max(routing, products));
    }

  private:
    template <typename Number>
    void take(Number*& at, int64_t count) {
        at = reinterpret_cast<Number*>(base + std::exchange(end, end + up_to(count * int64_t{sizeof(Number)}, ALIGNMENT)));
    }
};

struct Gathering {
    const int64_t* tokens;
    const uint16_t* x;
    int64_t x_stride, width;
    uint16_t* gathered;
};

void gather_range(const void* argument, int64_t first, int64_t last) {
    const auto& work = *static_cast<const Gathering*>(argument);
    for (int64_t entry = first; entry < last; ++entry) {
        const uint16_t* row = work.x + work.tokens[entry] * work.x_stride;
        std::memcpy(work.gathered + entry * work.width, row, static_cast<size_t>(2 * work.width));
    }
}

struct Sums {
    const Arena* arena;
    int64_t per_token, width;
    bool adds;
    float* y;
    int64_t y_stride;
};

// Adds an entry's share of columns [first, last).
inline void add_share(const Sums& work, int64_t entry, int64_t first, int64_t last, float* totals) {
    const float* output = work.arena->outputs + entry * work.width;
    const float share = work.arena->entry_shares[entry];
    for (int64_t column = first; column < last; ++column) {
        totals[column - first] += output[column] * share;
    }
}

void sum_range(const void* argument, int64_t begin, int64_t end) {
    const auto& work = *static_cast<const Sums*>(argument);
    const Arena& arena = *work.arena;
    for (int64_t token = begin; token < end; ++token) {
        float* y = work.y + token * work.y_stride;
        for (int64_t first = 0; first < work.width; first += COLUMNS) {
            const int64_t last = std::min(first + COLUMNS, work.width);
            float totals[COLUMNS] = {};
            for (int64_t place = 0; place < work.per_token; ++place) {
                add_share(work, arena.entries_of[token * work.per_token + place], first, last, totals);
            }
            if (arena.entries > arena.chosen_entries) {
                add_share(work, arena.chosen_entries + token, first, last, totals);
            }
            for (int64_t column = first; column < last; ++column) {
                y[column] = work.adds ? y[column] + totals[column - first] : totals[column - first];
            }
        }
    }
}

class Mixture {
  public:
    Mixture(const TpMixture& mixture, int64_t rows, void* scratch)
        : mixture_(mixture), rows_(rows), sizes_(mixture), arena_(mixture, sizes_, rows, scratch) {}

    int64_t scratch_bytes() const { return arena_.end; }

    void route(const uint16_t* x, int64_t x_stride) {
        const int64_t width = outputs_of(mixture_.router);
        tp_product(&mixture_.router, x, x_stride, rows_, TP_STORE_FLOAT32, arena_.logits, width, arena_.phase);
        tp_route(&mixture_.routing, arena_.logits, width, rows_, arena_.chosen, arena_.shares, arena_.phase);
        for (int64_t entry = arena_.chosen_entries; entry < arena_.entries; ++entry) {
            const float* gate = arena_.logits + (entry - arena_.chosen_entries) * width + mixture_.routing.experts;
            const bool gated = width > mixture_.routing.experts;
            arena_.entry_shares[entry] = gated ? 0.5f * (1.0f + std::tanh(0.5f * *gate)) : 1.0f;
        }
        order_entries();
    }

    void compute(const uint16_t* x, int64_t x_stride) {
        const Gathering gathering{arena_.tokens, x, x_stride, sizes_.inputs, arena_.gathered};
        run(gather_range, &gathering, arena_.chosen_entries, GATHERED_ROWS);
        multiply([&](const TpExpert& expert, int64_t first, int64_t rows) {
            const bool shared = &expert == mixture_.shared;
            return work_of(expert.gate_up, shared ? x : arena_.gathered + first * sizes_.inputs,
                           shared ? x_stride : sizes_.inputs, rows, static_cast<TpStore>(mixture_.activation),
                           arena_.activated + first * sizes_.inner, sizes_.inner, prepared(first));
        });
        multiply([&](const TpExpert& expert, int64_t first, int64_t rows) {
            return work_of(expert.down, arena_.activated + first * sizes_.inner, sizes_.inner, rows, TP_STORE_FLOAT32,
                           arena_.outputs + first * sizes_.hidden, sizes_.hidden, prepared(first));
        });
    }

    void sum(bool adds, float* y, int64_t y_stride) const {
        const Sums sums{&arena_, mixture_.routing.per_token, sizes_.hidden, adds, y, y_stride};
        run(sum_range, &sums, rows_, SUMMED_TOKENS);
    }

  private:
    char* prepared(int64_t entry) const { return arena_.phase + entry * sizes_.prepared_bytes; }

    // Experts' first entries; of each entry its token and share, of each token its entries in order.
    void order_entries() {
        const int64_t experts = mixture_.routing.experts, per_token = mixture_.routing.per_token;
        std::fill_n(arena_.firsts, experts + 1, 0);
        for (int64_t pair = 0; pair < arena_.chosen_entries; ++pair) {
            ++arena_.firsts[arena_.chosen[pair] + 1];
        }
        for (int64_t expert = 0; expert < experts; ++expert) {
            mixture_.expert_tokens[expert] += arena_.firsts[expert + 1];
            arena_.firsts[expert + 1] += arena_.firsts[expert];
        }
        std::copy_n(arena_.firsts, experts, arena_.filled);
        for (int64_t pair = 0; pair < arena_.chosen_entries; ++pair) {
            const int64_t entry = arena_.filled[arena_.chosen[pair]]++;
            arena_.tokens[entry] = pair / per_token;
            arena_.entry_shares[entry] = arena_.shares[pair];
        }
        std::fill_n(arena_.filled, rows_, 0);
        for (int64_t entry = 0; entry < arena_.chosen_entries; ++entry) {
            const int64_t token = arena_.tokens[entry];
            arena_.entries_of[token * per_token + arena_.filled[token]++] = entry;
        }
    }

    // `product_of` gives the product of an expert with the entries from `first` on.
    template <typename ProductOf>
    void multiply(const ProductOf& product_of) {
        int64_t count = 0;
        for (int64_t expert = 0; expert < mixture_.routing.experts; ++expert) {
            const int64_t first = arena_.firsts[expert], rows = arena_.firsts[expert + 1] - first;
            if (rows > 0) {
                arena_.works[count++] = product_of(mixture_.expert[expert], first, rows);
            }
        }
        if (mixture_.shared != nullptr) {
            arena_.works[count++] = product_of(*mixture_.shared, arena_.chosen_entries, rows_);
        }
        run_products(arena_.works, count);
    }

    const TpMixture& mixture_;
    const int64_t rows_;
    const Sizes sizes_;
    const Arena arena_;
};

}  // namespace
}  // namespace tp

extern "C" int64_t tp_mixture_scratch_bytes(const TpMixture* mixture, int64_t rows) {
    return tp::Mixture(*mixture, rows, nullptr).scratch_bytes();
}

extern "C" void tp_mixture(const TpMixture* mixture, const uint16_t* x, int64_t x_stride, const uint16_t* routed,
                           int64_t routed_stride, int64_t rows, int32_t store, float* y, int64_t y_stride, void* scratch) {
    if (rows <= 0) {
        return;
    }
    tp::Mixture step(*mixture, rows, scratch);
    step.route(routed, routed_stride);
    step.compute(x, x_stride);
    step.sum(store == TP_ADD_FLOAT32, y, y_stride);
}
