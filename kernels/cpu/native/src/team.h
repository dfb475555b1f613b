// Short loops over blocks of work, many thousand times a second, on the threads that torch computes with.
#pragma once

#include <cstdint>

namespace tp {

// Called with a range [first, last) of blocks, by several threads at a time.
using Range = void (*)(const void* argument, int64_t first, int64_t last);

// All of [0, count), in pieces of `grain`, by whichever thread is free. Returns when all is done.
void run(Range range, const void* argument, int64_t count, int64_t grain);

}  // namespace tp
