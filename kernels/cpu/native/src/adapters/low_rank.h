// Low-rank changes of products (LoRA, Hu et al., arXiv 2106.09685): how they lie packed, and their kernels by level. See
// adapted.cpp.
//
// A change adds up (down x) to a product of x: `down` is [rank, inputs], `up` [outputs, rank]. Its parts change different
// outputs; their ranks are stacked, each filled up to an even number, all to a multiple of RANK_BLOCK, with zeros.
#pragma once

#include <cstdint>

namespace tp {

constexpr int64_t RANK_BLOCK = 16;    // ranks that a kernel computes at a time
constexpr int64_t UP_OUTPUTS = 16;  // half a block of a product's outputs: gates and ups lie in different ones
constexpr int64_t RANK_QUARTERS = 4;  // of inputs, whose sums are added as (0 + 1) + (2 + 3)
constexpr int64_t QUARTER_UNIT = 16;  // pairs of inputs, of which a quarter is a multiple; the last may be shorter, or empty

// The ranks [first, first + 2 pairs) that half a block's outputs add up, and which number of `up` is their first.
struct HalfRanks {
    int32_t first, pairs;
    int64_t at;
};

// The head of a packed change. All after it is aligned to 64 bytes:
//   halves  HalfRanks [halves], of the blocks of the product one after another
//   down    bf16 [rank / 16][inputs / 2][16][2]
//   up      bf16 of each half of a block: [pairs][16][2]
struct LowRank {
    int64_t rank, inputs, halves;
    int64_t down_at, up_at;  // bytes from the head
    int64_t unused[3];

    const HalfRanks& half(int64_t index) const { return reinterpret_cast<const HalfRanks*>(this + 1)[index]; }
    const uint16_t* down(int64_t block) const { return numbers(down_at) + block * RANK_BLOCK * inputs; }
    const uint16_t* up(const HalfRanks& ranks) const { return numbers(up_at) + ranks.at; }

    int64_t blocks() const { return rank / RANK_BLOCK; }
    int64_t quarter_pairs() const {
        const int64_t pairs = inputs / 2, share = (pairs + RANK_QUARTERS - 1) / RANK_QUARTERS;
        return (share + QUARTER_UNIT - 1) / QUARTER_UNIT * QUARTER_UNIT;
    }

  private:
    const uint16_t* numbers(int64_t bytes) const {
        return reinterpret_cast<const uint16_t*>(reinterpret_cast<const char*>(this) + bytes);
    }
};
static_assert(sizeof(LowRank) == 64, "a cache line");

// What is added to a row of a product; without a change nothing is.
struct Added {
    const LowRank* change;
    const float* shrunk;  // [rank]: down x
};

// Shrinks tokens with one change: rows `tokens` [count] of x. Each one's sums float32 [rank] are `sums_stride` apart.
struct Shrink {
    const LowRank* change;
    const uint16_t* x;
    int64_t x_stride;
    const int64_t* tokens;
    int64_t count;
    float* sums;
    int64_t sums_stride;
};

// The sums of a block of ranks over pairs [first, last) of inputs. A token's sums depend on that token alone, to the bit.
using ShrinkBlock = void (*)(const Shrink& shrink, int64_t block, int64_t first, int64_t last);
// Adds to the sums float32 [rows, 32] of the halves `half` and `half` + 1 what is `added` to each row. A row's sums depend on
// that row alone, to the bit.
using Expand = void (*)(const Added* added, int64_t rows, int64_t half, float* sums);

void shrink_block_portable(const Shrink& shrink, int64_t block, int64_t first, int64_t last);
void expand_portable(const Added* added, int64_t rows, int64_t half, float* sums);
#if defined(__x86_64__)
void shrink_block_avx2(const Shrink& shrink, int64_t block, int64_t first, int64_t last);
void expand_avx2(const Added* added, int64_t rows, int64_t half, float* sums);
void shrink_block_avx512(const Shrink& shrink, int64_t block, int64_t first, int64_t last);
void expand_avx512(const Added* added, int64_t rows, int64_t half, float* sums);
#endif

struct LowRankKernels {
    ShrinkBlock shrink;
    Expand expand;
};

// Of the level in use.
LowRankKernels low_rank_kernels();

}  // namespace tp
