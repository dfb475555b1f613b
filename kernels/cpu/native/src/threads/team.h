// Short loops, many thousand a second, on threads of our own. They look for work for a short while after a loop and
// then sleep; a loop does not wait for a thread that has not come.
#pragma once

#include <cstdint>

namespace tp {

// Called with a range [first, last) by several threads at a time. Allocates nothing, throws nothing.
using Range = void (*)(const void* argument, int64_t first, int64_t last);

// All of [0, count), by whichever thread is free, in pieces of `grain`; where there is a `least`, in smaller ones towards the
// end, down to that, so that threads end together. Returns when all is done, and what was written is seen by the caller. Not
// to be called from within a range.
void run(Range range, const void* argument, int64_t count, int64_t grain, int64_t least);
inline void run(Range range, const void* argument, int64_t count, int64_t grain) { run(range, argument, count, grain, grain); }

// The threads that may take part, the caller among them: 1 and more.
int32_t threads();

}  // namespace tp
