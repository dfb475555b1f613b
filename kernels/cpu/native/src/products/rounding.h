// bf16 weights rounded to few bits, by level: the same bits at all of them.
#pragma once

#include "products/blocks_pack.h"

namespace tp {

struct Rounding {
    PackBlock int8, int4;
};

extern const Rounding ROUNDING_PORTABLE;
#if defined(__x86_64__)
extern const Rounding ROUNDING_AVX2;
#endif

inline const Rounding& rounding(int32_t level) {
#if defined(__x86_64__)
    if (level >= TP_AVX2) {
        return ROUNDING_AVX2;
    }
#endif
    static_cast<void>(level);
    return ROUNDING_PORTABLE;
}

}  // namespace tp
