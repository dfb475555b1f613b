#include "team.h"

#include <algorithm>
#include <atomic>

#include "turnpike.h"

namespace {

using GompParallel = void (*)(void (*)(void*), void*, unsigned threads, unsigned flags);

std::atomic<GompParallel> gomp_parallel{nullptr};
std::atomic<unsigned> threads{1};

struct Loop {
    tp::Range range;
    const void* argument;
    int64_t count, grain;
    std::atomic<int64_t> next{0};

    // On each thread of the team: pieces, until there are none.
    static void work(void* self) {
        auto& loop = *static_cast<Loop*>(self);
        for (;;) {
            const int64_t first = loop.next.fetch_add(loop.grain, std::memory_order_relaxed);
            if (first >= loop.count) {
                return;
            }
            loop.range(loop.argument, first, std::min(first + loop.grain, loop.count));
        }
    }
};

}  // namespace

void tp::run(Range range, const void* argument, int64_t count, int64_t grain) {
    const GompParallel parallel = gomp_parallel.load();
    if (parallel == nullptr || threads.load() == 1 || count <= grain) {
        range(argument, 0, count);
        return;
    }
    Loop loop{range, argument, count, grain};
    parallel(Loop::work, &loop, threads.load(), 0);
}

extern "C" void tp_use_team(void* parallel, int32_t count) {
    gomp_parallel.store(reinterpret_cast<GompParallel>(parallel));
    threads.store(static_cast<unsigned>(std::max(count, 1)));
}
