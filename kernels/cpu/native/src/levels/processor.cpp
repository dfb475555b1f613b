#include <algorithm>
#include <atomic>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "products/bf16.h"
#include "turnpike.h"

namespace {

#if defined(__x86_64__) && defined(__linux__)

// Whether the processor has AMX tiles for bf16, and the kernel grants them to this process, which it does on request.
bool has_tiles() {
    constexpr uint32_t amx_bf16 = 1u << 22, amx_tile = 1u << 24, osxsave = 1u << 27, saved = 3u << 17;
    constexpr long arch_req_xcomp_perm = 0x1023, tile_data = 18;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & osxsave) == 0) {
        return false;
    }
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & amx_bf16) == 0 || (d & amx_tile) == 0) {
        return false;
    }
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & saved) == saved && syscall(SYS_arch_prctl, arch_req_xcomp_perm, tile_data) == 0;
}

thread_local sigjmp_buf before_trial;

// The result of the trial; false if an instruction of it is illegal: some virtual machines announce tiles and do not
// support all of them.
bool succeeds(bool (*trial)()) {
    struct sigaction give_up = {}, usual = {};
    give_up.sa_handler = [](int) { siglongjmp(before_trial, 1); };
    sigaction(SIGILL, &give_up, &usual);
    const bool agrees = sigsetjmp(before_trial, 1) == 0 && trial();
    sigaction(SIGILL, &usual, nullptr);
    return agrees;
}

#endif

// The highest level that this processor supports.
int32_t find() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        return TP_PORTABLE;
    }
    // Everything that sources are compiled for; a virtual machine may hide any of it.
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16")) {
#if defined(__linux__)
        if (has_tiles() && succeeds(tp::bf16_amx_agrees)) {
            return TP_AMX;
        }
#endif
        return TP_AVX512_FLOAT;
    }
    return TP_AVX2;
#else
    return TP_PORTABLE;
#endif
}

int32_t found() {
    static const int32_t level = find();
    return level;
}

// The default level. AMD's cores issue as many multiplications of bf16 pairs as of float32 numbers in a cycle, Intel's a
// quarter of that.
int32_t usual() {
#if defined(__x86_64__)
    if (found() == TP_AVX512_FLOAT && !__builtin_cpu_is("intel")) {
        return TP_AVX512_BF16;
    }
#endif
    return found();
}

std::atomic<int32_t> used{-1};

}  // namespace

extern "C" int32_t tp_abi() { return TP_ABI; }

extern "C" int32_t tp_level() {
    const int32_t level = used.load(std::memory_order_relaxed);
    return level >= 0 ? level : tp_use_level(usual());
}

extern "C" int32_t tp_use_level(int32_t level) {
    used.store(std::clamp(level, static_cast<int32_t>(TP_PORTABLE), found()), std::memory_order_relaxed);
    return used.load(std::memory_order_relaxed);
}
