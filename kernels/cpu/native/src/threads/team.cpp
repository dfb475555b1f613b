#include "threads/team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "threads/parking.h"
#include "turnpike.h"

namespace {

constexpr int32_t MOST_THREADS = 256;
// Between the loops of a step lie microseconds; between two steps a worker may as well be woken.
constexpr auto LOOKS_FOR = std::chrono::microseconds(60);
constexpr int64_t SHARES_OF_REST = 2;  // for each thread: a piece is no larger a part of what is left
constexpr int PAUSES_A_LOOK = 16;
constexpr int PAUSES_BEFORE_YIELDING = 2000;

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// The state of the loop in one word, so that a worker enters a loop that is open, and that very one, or not at all:
// the loop's number | whether it is open | how many workers are inside.
constexpr uint64_t INSIDE = 1, INSIDE_MASK = 0xffff, OPEN = 1 << 16, NUMBER = uint64_t{1} << 32;

uint32_t number_of(uint64_t state) { return static_cast<uint32_t>(state / NUMBER); }

class Team {
  public:
    int32_t threads() const { return threads_.load(std::memory_order_relaxed); }

    void use_threads(int32_t threads) {
        lock();
        if (threads != threads_.load()) {
            stop();
            threads_.store(threads);
        }
        unlock();
    }

    // False where the team is at work for another thread.
    bool run(tp::Range range, const void* argument, int64_t count, int64_t grain, int64_t least) {
        if (busy_.exchange(true, std::memory_order_acquire)) {
            return false;
        }
        follow_niceness();
        if (workers_ < threads_.load(std::memory_order_relaxed) - 1) {
            start();
        }
        range_ = range, argument_ = argument, count_ = count, grain_ = grain, least_ = least;
        next_.store(0, std::memory_order_relaxed);
        state_.store((state_.load(std::memory_order_relaxed) & ~(NUMBER - 1)) + NUMBER + OPEN);
        if (asleep_.load() != 0) {
            asleep_.store(0);
            parking_.wake_all();
        }
        take_pieces();
        state_.fetch_and(~OPEN, std::memory_order_acq_rel);
        for (int pauses = 0; (state_.load(std::memory_order_acquire) & INSIDE_MASK) != 0; ++pauses) {
            pauses < PAUSES_BEFORE_YIELDING ? pause() : static_cast<void>(sched_yield());
        }
        unlock();
        return true;
    }

    // In the child of a fork, where only the thread that forked is left.
    void forget_workers() {
        workers_ = 0;
        asleep_.store(0);
        state_.store(state_.load() & ~(NUMBER - 1));
        unlock();
    }

  private:
    void lock() {
        while (busy_.exchange(true, std::memory_order_acquire)) {
            sched_yield();
        }
    }

    void unlock() { busy_.store(false, std::memory_order_release); }

    void take_pieces() {
        const int64_t shares = SHARES_OF_REST * threads();
        int64_t first = next_.load(std::memory_order_relaxed);
        while (first < count_) {
            const int64_t last = std::min(first + std::clamp((count_ - first) / shares, least_, grain_), count_);
            if (next_.compare_exchange_weak(first, last, std::memory_order_relaxed)) {
                range_(argument_, first, last);
                first = next_.load(std::memory_order_relaxed);
            }
        }
    }

    // Workers take the niceness of their caller (the engine's thread has a lower priority than others).
    void follow_niceness() {
        thread_local bool followed = false;
        if (!followed) {
            followed = true;
            niceness_.store(std::max(niceness_.load(), getpriority(PRIO_PROCESS, 0)));
        }
    }

    void start() {
        stopping_.store(false);
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the threads of the program
        const int32_t wanted = threads_.load() - 1;
        const auto look = [](void* team) -> void* {
            static_cast<Team*>(team)->work();
            return nullptr;
        };
        while (workers_ < wanted && pthread_create(&thread_[workers_], nullptr, look, this) == 0) {
            ++workers_;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        if (workers_ < wanted) {  // the system has no more
            threads_.store(workers_ + 1);
        }
    }

    void stop() {
        stopping_.store(true);
        parking_.wake_all();
        for (; workers_ > 0; --workers_) {
            pthread_join(thread_[workers_ - 1], nullptr);
        }
    }

    void work() {
        int niceness = 0;
        uint32_t seen = number_of(state_.load());
        while (wait_past(seen)) {
            uint64_t state = state_.load(std::memory_order_relaxed);
            while ((state & OPEN) != 0 && !state_.compare_exchange_weak(state, state + INSIDE, std::memory_order_acquire)) {
            }
            seen = number_of(state);
            if ((state & OPEN) == 0) {
                continue;
            }
            take_pieces();
            state_.fetch_sub(INSIDE, std::memory_order_release);
            if (const int wanted = niceness_.load(std::memory_order_relaxed); wanted > niceness) {
                niceness = wanted;
                setpriority(PRIO_PROCESS, 0, wanted);  // on Linux: of this thread
            }
        }
    }

    // Until there is another loop than `seen`; false when the thread is to end.
    bool wait_past(uint32_t seen) {
        auto until = std::chrono::steady_clock::now() + LOOKS_FOR;
        while (true) {
            for (int pauses = 0; pauses < PAUSES_A_LOOK; ++pauses) {
                if (number_of(state_.load(std::memory_order_relaxed)) != seen) {
                    return true;
                }
                pause();
            }
            if (std::chrono::steady_clock::now() < until) {
                continue;
            }
            // Either the caller sees that one is asleep, or this thread the new loop, or that the count has moved on.
            const uint32_t count = parking_.count();
            asleep_.store(1);
            if (stopping_.load()) {
                return false;
            }
            if (number_of(state_.load()) == seen) {
                parking_.wait(count);
            }
            until = std::chrono::steady_clock::now() + LOOKS_FOR;
        }
    }

    alignas(64) std::atomic<uint64_t> state_{0};
    std::atomic<int32_t> asleep_{0};
    // Written while the loop is closed and no thread is inside.
    alignas(64) tp::Range range_ = nullptr;
    const void* argument_ = nullptr;
    int64_t count_ = 0, grain_ = 1, least_ = 1;
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<bool> busy_{false};
    std::atomic<bool> stopping_{false};
    std::atomic<int32_t> threads_{1};
    std::atomic<int> niceness_{0};
    tp::Parking parking_;
    int32_t workers_ = 0;  // who is busy owns this and what follows
    pthread_t thread_[MOST_THREADS];
};

// Never destroyed: its threads run until the process ends.
Team& team() {
    static Team* const only = [] {
        pthread_atfork(nullptr, nullptr, [] { team().forget_workers(); });
        return new Team;
    }();
    return *only;
}

}  // namespace

int32_t tp::threads() { return team().threads(); }

void tp::run(Range range, const void* argument, int64_t count, int64_t grain, int64_t least) {
    if (count <= least || threads() == 1 || !team().run(range, argument, count, grain, least)) {
        range(argument, 0, count);
    }
}

extern "C" void tp_use_threads(int32_t threads) { team().use_threads(std::clamp(threads, 1, MOST_THREADS)); }
