// Where a thread sleeps until a count that it has seen is another: the kernel's futex on Linux, else a condition variable.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <pthread.h>
#endif

namespace tp {

class Parking {
  public:
    uint32_t count() const { return count_.load(); }

    // Returns once the count is not `seen`, and now and then for no reason.
    void wait(uint32_t seen) {
#if defined(__linux__)
        static_assert(sizeof count_ == sizeof(uint32_t), "the kernel compares 32 bits");
        syscall(SYS_futex, &count_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
        pthread_mutex_lock(&mutex_);
        if (count_.load() == seen) {
            pthread_cond_wait(&changed_, &mutex_);
        }
        pthread_mutex_unlock(&mutex_);
#endif
    }

    void wake_all() {
#if defined(__linux__)
        count_.fetch_add(1);
        syscall(SYS_futex, &count_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
        pthread_mutex_lock(&mutex_);
        count_.fetch_add(1);
        pthread_cond_broadcast(&changed_);
        pthread_mutex_unlock(&mutex_);
#endif
    }

  private:
    std::atomic<uint32_t> count_{0};
#if !defined(__linux__)
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t changed_ = PTHREAD_COND_INITIALIZER;
#endif
};

}  // namespace tp
