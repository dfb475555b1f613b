// Loops on the team's threads from several callers, to be run under ThreadSanitizer: `make sanitize` builds and runs it.
//
// Every loop writes each of its numbers once, without atomics: a piece that is computed twice, or seen before it is
// there, is a race, and one that is left out a wrong number. Ends with 1 where a number is wrong.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "threads/team.h"
#include "turnpike.h"

namespace {

constexpr int CALLERS = 3;
constexpr int LOOPS = 1500;
constexpr int64_t MOST = 257;

std::atomic<int64_t> wrong{0};

struct Numbers {
    std::vector<int64_t> from, to;
    int64_t factor;
};

void multiply(const void* argument, int64_t first, int64_t last) {
    auto* numbers = const_cast<Numbers*>(static_cast<const Numbers*>(argument));
    for (int64_t i = first; i < last; ++i) {
        numbers->to[static_cast<size_t>(i)] += numbers->from[static_cast<size_t>(i)] * numbers->factor;
    }
}

// Each loop reads what the one before it has written, as the loops of a step do.
void loops_of_one_caller(int caller) {
    Numbers numbers{std::vector<int64_t>(MOST, 1), std::vector<int64_t>(MOST, 0), 0};
    for (int loop = 0; loop < LOOPS; ++loop) {
        const int64_t count = 1 + (loop * 37 + caller) % MOST;
        numbers.factor = loop % 3 - 1;
        const std::vector<int64_t> before = numbers.to;
        const int64_t grain = 1 + loop % 7;
        tp::run(multiply, &numbers, count, grain, 1 + loop % grain);
        for (size_t i = 0; i < MOST; ++i) {
            const bool touched = static_cast<int64_t>(i) < count;
            wrong += numbers.to[i] != before[i] + (touched ? numbers.from[i] * numbers.factor : 0);
        }
        std::swap(numbers.from, numbers.to);
        for (auto& number : numbers.from) {
            number %= 1000;
        }
        if (loop % 500 == 0) {  // long enough for workers to fall asleep
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
    }
}

}  // namespace

int main() {
    tp_use_threads(2);
    std::vector<std::thread> callers;
    for (int caller = 0; caller < CALLERS; ++caller) {
        callers.emplace_back(loops_of_one_caller, caller);
    }
    for (const int32_t threads : {4, 1, 3, 2}) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        tp_use_threads(threads);
    }
    for (auto& caller : callers) {
        caller.join();
    }
    tp_use_threads(1);  // joins the workers
    std::printf("%d loops, %lld numbers wrong\n", CALLERS * LOOPS, static_cast<long long>(wrong.load()));
    return wrong.load() == 0 ? 0 : 1;
}
