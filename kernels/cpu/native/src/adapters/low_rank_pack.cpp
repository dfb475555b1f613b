// Packs low-rank changes: plain loops of the calling thread, so that adapters are packed while a step is computed.

#include <algorithm>
#include <cstring>

#include "adapters/low_rank.h"
#include "products/work.h"
#include "turnpike.h"

namespace tp {
namespace {

// To the nearest bf16 number, of two the even one; numbers are finite.
uint16_t rounded(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// A product's outputs as they lie in halves of blocks.
struct Halves {
    const TpLinear& linear;
    const bool gated;
    const int64_t pairs;  // of gates and ups

    int64_t count() const {
        int64_t blocks = 0;
        for (int64_t part = 0; part < linear.count; ++part) {
            blocks += blocks_of(linear.part[part]);
        }
        return 2 * blocks;
    }

    // The output at a lane of a half, by the numbers that a change's parts count in; -1: none.
    int64_t output(int64_t half, int64_t lane) const {
        if (gated) {
            const int64_t pair = half / 2 * UP_OUTPUTS + lane;
            return pair < pairs ? half % 2 * pairs + pair : -1;
        }
        int64_t first = 0;
        for (const TpWeight* weight = linear.part;; ++weight) {
            if (half < 2 * blocks_of(*weight)) {
                const int64_t output = half * UP_OUTPUTS + lane;
                return output < weight->outputs ? first + output : -1;
            }
            half -= 2 * blocks_of(*weight);
            first += weight->outputs;
        }
    }

  private:
    static int64_t blocks_of(const TpWeight& weight) { return (weight.outputs + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS; }
};

class Packing {
  public:
    Packing(const TpLinear& linear, int64_t gated_pairs, const TpLowRankPart* parts, int64_t count)
        : halves_{linear, gated_pairs > 0, gated_pairs}, parts_(parts), count_(count) {
        for (int64_t part = 0; part < count; ++part) {
            rank_ += up_to(parts[part].rank, 2);
        }
        rank_ = up_to(rank_, RANK_BLOCK);
        inputs_ = linear.part[0].inputs;
    }

    int64_t rank() const { return rank_; }

    int64_t bytes() const {
        int64_t up = 0;
        for (int64_t half = 0; half < halves_.count(); ++half) {
            up += ranks_of(half, 0).pairs * UP_OUTPUTS * 2;
        }
        return up_at() + 2 * up;
    }

    void pack(void* packed) const {
        auto* base = static_cast<char*>(packed);
        std::memset(base, 0, static_cast<size_t>(bytes()));
        const LowRank head{rank_, inputs_, halves_.count(), down_at(), up_at(), {}};
        std::memcpy(base, &head, sizeof head);
        pack_down(reinterpret_cast<uint16_t*>(base + down_at()));
        auto* ranks = reinterpret_cast<HalfRanks*>(base + sizeof head);
        auto* up = reinterpret_cast<uint16_t*>(base + up_at());
        int64_t at = 0;
        for (int64_t half = 0; half < halves_.count(); ++half) {
            ranks[half] = ranks_of(half, at);
            pack_half(half, ranks[half], up + at);
            at += int64_t{ranks[half].pairs} * UP_OUTPUTS * 2;
        }
    }

  private:
    int64_t down_at() const {
        return up_to(int64_t{sizeof(LowRank)} + halves_.count() * int64_t{sizeof(HalfRanks)}, ALIGNMENT);
    }
    int64_t up_at() const { return down_at() + 2 * rank_ * inputs_; }

    // The part that changes an output, and its first rank; null: none does.
    const TpLowRankPart* part_of(int64_t output, int64_t* first_rank) const {
        *first_rank = 0;
        for (const TpLowRankPart* part = parts_; part < parts_ + count_; ++part) {
            if (output >= part->first && output < part->first + part->outputs) {
                return part;
            }
            *first_rank += up_to(part->rank, 2);
        }
        return nullptr;
    }

    HalfRanks ranks_of(int64_t half, int64_t at) const {
        int64_t first = rank_, last = 0;
        for (int64_t lane = 0; lane < UP_OUTPUTS; ++lane) {
            int64_t begin;
            const TpLowRankPart* part = part_of(halves_.output(half, lane), &begin);
            if (part != nullptr) {
                first = std::min(first, begin);
                last = std::max(last, begin + up_to(part->rank, 2));
            }
        }
        return {static_cast<int32_t>(std::min(first, last)), static_cast<int32_t>(std::max<int64_t>(last - first, 0) / 2), at};
    }

    void pack_down(uint16_t* down) const {
        int64_t first = 0;
        for (const TpLowRankPart* part = parts_; part < parts_ + count_; ++part) {
            for (int64_t row = 0; row < part->rank; ++row) {
                const int64_t rank = first + row;
                uint16_t* to = down + rank / RANK_BLOCK * RANK_BLOCK * inputs_ + rank % RANK_BLOCK * 2;
                const float* from = part->down + row * part->inputs;
                for (int64_t input = 0; input < part->inputs; ++input) {
                    to[input / 2 * RANK_BLOCK * 2 + input % 2] = rounded(from[input]);
                }
            }
            first += up_to(part->rank, 2);
        }
    }

    void pack_half(int64_t half, const HalfRanks& ranks, uint16_t* up) const {
        for (int64_t lane = 0; lane < UP_OUTPUTS; ++lane) {
            int64_t begin;
            const int64_t output = halves_.output(half, lane);
            const TpLowRankPart* part = part_of(output, &begin);
            for (int64_t row = 0; part != nullptr && row < part->rank; ++row) {
                const int64_t rank = begin - ranks.first + row;
                const float number = part->up[(output - part->first) * part->rank + row];
                up[(rank / 2 * UP_OUTPUTS + lane) * 2 + rank % 2] = rounded(number);
            }
        }
    }

    const Halves halves_;
    const TpLowRankPart* parts_;
    const int64_t count_;
    int64_t rank_ = 0, inputs_;
};

}  // namespace
}  // namespace tp

extern "C" int64_t tp_low_rank_bytes(const TpLinear* linear, int64_t gated_pairs, const TpLowRankPart* parts, int64_t count) {
    return tp::Packing(*linear, gated_pairs, parts, count).bytes();
}

extern "C" int64_t tp_pack_low_rank(const TpLinear* linear, int64_t gated_pairs, const TpLowRankPart* parts, int64_t count,
                                    void* packed) {
    const tp::Packing packing(*linear, gated_pairs, parts, count);
    packing.pack(packed);
    return packing.rank();
}
