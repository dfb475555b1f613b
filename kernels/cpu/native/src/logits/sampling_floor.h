// Which of a row's numbers its thresholds keep.
#pragma once

#include "logits/logits.h"

namespace tp {

constexpr int64_t CHUNK = 8192;  // columns between two sums that are added up: how many threads there are changes no sum
constexpr int64_t CHUNK_ROOM = CHUNK + 16;

inline int64_t chunks(int64_t columns) { return (columns + CHUNK - 1) / CHUNK; }

struct Thresholds {
    int64_t top_k;
    float top_p, min_p;
};

// Memory of one row's search: two buffers of chunks(columns) x CHUNK_ROOM numbers, and a split a chunk.
struct FloorScratch {
    float* buffers[2];
    Split* splits;
};

int64_t floor_scratch_bytes(int64_t columns);
FloorScratch floor_scratch(void* memory, int64_t columns);

// The smallest number that is kept; -inf where all are. `largest` of them is finite. Where `spread`, a pass is shared out
// among threads. See `kernels.reference.threshold`.
float floor_of(const LogitPasses& passes, Scaled row, const Thresholds& thresholds, float largest, const FloorScratch& scratch,
               bool spread);

}  // namespace tp
