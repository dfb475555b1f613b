// Paged attention (Kwon et al., arXiv 2309.06180): the partition of a step's work, and the kernels of each level.
//
// A sequence is divided into parts of 256 positions from its start. Within a part a query's softmax is computed at once: the
// largest score, the exponentials relative to it, their sum, and the weighted sum of values, key after key. Parts are then
// merged in order (online softmax). The arithmetic of a query is the same alone, in a chunk, by one thread or by many.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
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

    // Factor of the differences of scores in the exponent. Scores with a softcap are scaled before it.
    float exponent_scale() const { return heads->softcap > 0.0f ? 1.0f : score_scale(); }
    float score_scale() const {
        return heads->score_scale > 0.0f ? heads->score_scale : 1.0f / std::sqrt(static_cast<float>(heads->head_dim));
    }
    int64_t group() const { return heads->query_heads / heads->kv_heads; }
    int64_t first_visible(int64_t position) const {
        return window > 0 ? std::max<int64_t>(0, position + 1 - window) : 0;
    }
};

// Queries [first, last) of a row that share a KV head, ordered by token, then head: query i is head i % group of the row's
// token i / group.
struct Tile {
    int64_t row, kv_head, first, last;
    int64_t token;     // the row's first in the step
    int64_t position;  // and its place in the sequence

    int64_t position_of(int64_t query, int64_t group) const { return position + query / group; }
};

// A tile and, if it is divided, the sums of its parts.
struct Unit {
    Tile tile;
    float* sums;  // of its first part, or null where it is whole
    int64_t sums_of_part;  // offset to the next part's
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

// A query's sums of a part, float32: weighted values [padded_dim], the largest score and the sum of weights.
inline int64_t sums_stride(int64_t head_dim) { return padded_dim(head_dim) + 16; }

// Maximum queries of a tile: their working set stays in a core's cache, and on its stack. Heads of more than 512 dimensions are
// those of latents, of which one key is turned for all query heads: a tile of them is larger.
constexpr int64_t MOST_QUERIES = 64, LATENT_QUERIES = 32;
inline int64_t tile_queries(int64_t head_dim) {
    return head_dim <= 128 ? 64 : head_dim <= 256 ? 32 : head_dim <= 512 ? 16 : LATENT_QUERIES;
}

// Of the largest tile: numbers of its queries, and floats of its sums.
constexpr int64_t MOST_QUERY_NUMBERS = LATENT_QUERIES * MOST_HEAD_DIM;
constexpr int64_t MOST_SUMS = LATENT_QUERIES * (MOST_HEAD_DIM + 16);
static_assert(MOST_QUERY_NUMBERS >= MOST_QUERIES * 128 && MOST_SUMS >= MOST_QUERIES * (128 + 16) && MOST_HEAD_DIM % HEAD_VECTOR == 0);

struct AttentionKernels {
    // Computes one part of a tile into sums [last - first][sums_stride]; skips queries that see none of it.
    void (*part)(const Attention& attention, const Tile& tile, int64_t part, Ahead& ahead, float* sums);
    // Merges all parts that the tile sees, `of_part` floats apart, into the step's output.
    void (*merge)(const Attention& attention, const Tile& tile, const float* sums, int64_t of_part);
    // Both, for all parts in order.
    void (*whole)(const Attention& attention, const Tile& tile, Ahead& ahead);
};

// Indexed by `TpKv`.
constexpr int KV_KINDS = 2;
extern const AttentionKernels ATTENTION_PORTABLE[KV_KINDS];
#if defined(__x86_64__)
extern const AttentionKernels ATTENTION_AVX2[KV_KINDS];
extern const AttentionKernels ATTENTION_AVX512[KV_KINDS];
extern const AttentionKernels ATTENTION_AVX512_FLOAT[KV_KINDS];
#endif

}  // namespace tp
