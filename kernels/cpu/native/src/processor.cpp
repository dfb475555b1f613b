#include <algorithm>
#include <atomic>

#include "turnpike.h"

namespace {

int32_t found() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        return TP_AVX512_BF16;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return TP_AVX2;
    }
#endif
    return TP_PORTABLE;
}

std::atomic<int32_t> used{-1};

}  // namespace

extern "C" int32_t tp_abi() { return TP_ABI; }

extern "C" int32_t tp_level() {
    const int32_t level = used.load(std::memory_order_relaxed);
    return level >= 0 ? level : tp_use_level(found());
}

extern "C" int32_t tp_use_level(int32_t level) {
    used.store(std::clamp(level, static_cast<int32_t>(TP_PORTABLE), found()), std::memory_order_relaxed);
    return used.load(std::memory_order_relaxed);
}
