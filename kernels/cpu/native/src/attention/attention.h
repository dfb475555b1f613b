// Paged attention: how a step's work is cut, and what each level of the processor does with a piece.
//
// A sequence is cut into parts of 256 positions from its beginning on. Within a part a query's scores are taken together:
// the largest, the exponentials beside it, their sum, the values weighed by them, key after key. Parts are then merged in
// order. Both are the same arithmetic for a query wherever it is computed: alone, in a chunk, by one thread or by many.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "norms/rotary.h"
#include "turnpike.h"

namespace tp {

constexpr int64_t PART_TOKENS = 256;
constexpr int64_t PART_BLOCKS = PART_TOKENS / BLOCK_TOKENS;
constexpr int64_t HEAD_VECTOR = 32;  // dimensions to whose multiples a head's sums are filled up
constexpr int64_t LINE_BYTES = 64;   // of the processor's cache

struct Attention {
    const TpHeads* heads;
    const TpRows* rows;
    const uint16_t* qkv;
    int64_t qkv_stride;
    const char* kv_layer;
    KvLayout kv;
    int64_t window;
    uint16_t* out;
    int64_t out_stride;

    int64_t group() const { return heads->query_heads / heads->kv_heads; }
    int64_t first_visible(int64_t position) const {
        return window > 0 ? std::max<int64_t>(0, position + 1 - window) : 0;
    }
};

// Queries of a row that share a KV head, [first, last) in an order of tokens, in each of heads: query i is head
// i % group of the row's token i / group.
struct Tile {
    int64_t row, kv_head, first, last;
    int64_t token;     // the row's first in the step
    int64_t position;  // and its place in the sequence

    int64_t position_of(int64_t query, int64_t group) const { return position + query / group; }
};

// A tile and, where it is cut, the sums of its parts.
struct Unit {
    Tile tile;
    float* sums;  // of its first part, or null where it is whole
    int64_t sums_of_part;  // how far behind them the next part's are
    int64_t first_part;
    std::atomic<int64_t> parts_left;
    int64_t rows;  // whose queries are computed as this one tile: their units follow, those of all KV heads each; or 0
};

struct Task {
    Unit* unit;
    int64_t first_part, last_part;  // all that its tile sees, or one of them
};

class Ahead;

inline int64_t padded_dim(int64_t head_dim) { return (head_dim + HEAD_VECTOR - 1) / HEAD_VECTOR * HEAD_VECTOR; }

// What a query has of a part, float32: weighed values [padded_dim], then the largest score and the sum of weights.
inline int64_t sums_stride(int64_t head_dim) { return padded_dim(head_dim) + 16; }

// Queries that a tile has at most: what they need at a time stays in a core's cache, and on its stack.
constexpr int64_t MOST_QUERIES = 64;
inline int64_t tile_queries(int64_t head_dim) { return head_dim <= 128 ? 64 : head_dim <= 256 ? 32 : 16; }

constexpr int64_t MOST_SUMS = 64 * (128 + 16);  // floats of the largest tile, which is one of 64 queries

struct AttentionKernels {
    // One part of a tile into sums [last - first][sums_stride]. Of queries that see nothing of it, nothing is written.
    void (*part)(const Attention& attention, const Tile& tile, int64_t part, Ahead& ahead, float* sums);
    // All parts that the tile sees, `of_part` floats apart as the function above leaves them, into the step's output.
    void (*merge)(const Attention& attention, const Tile& tile, const float* sums, int64_t of_part);
    // Both, part after part.
    void (*whole)(const Attention& attention, const Tile& tile, Ahead& ahead);
};

// By how KV is kept: a `TpKv`.
constexpr int KV_KINDS = 2;
extern const AttentionKernels ATTENTION_PORTABLE[KV_KINDS];
#if defined(__x86_64__)
extern const AttentionKernels ATTENTION_AVX2[KV_KINDS];
extern const AttentionKernels ATTENTION_AVX512[KV_KINDS];
extern const AttentionKernels ATTENTION_AVX512_FLOAT[KV_KINDS];
#endif

}  // namespace tp
