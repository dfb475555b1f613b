#if defined(__x86_64__)
#include <algorithm>
#include <cstring>

#include "bf16.h"
#pragma GCC target("avx2,fma")

namespace tp {
namespace {

#include "vectors.h"
#include "store.h"

constexpr int VECTOR_BYTES = 32;

#include "bf16_vectors.inl"

}  // namespace

void bf16_block_avx2(const Product& product, int64_t block) { all_rows(product, block); }

}  // namespace tp
#endif
