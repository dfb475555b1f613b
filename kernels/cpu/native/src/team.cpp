#include "team.h"

#include <algorithm>
#include <atomic>

#include "turnpike.h"

namespace {

std::atomic<int32_t> most{1};

}  // namespace

int32_t tp::threads() { return most.load(); }

void tp::run(Range range, const void* argument, int64_t count, int64_t) { range(argument, 0, count); }

extern "C" void tp_use_threads(int32_t threads) { most.store(std::max(threads, 1)); }
