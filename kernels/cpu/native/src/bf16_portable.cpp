#include <algorithm>
#include <cstring>

#include "bf16.h"

namespace tp {
namespace {

#include "vectors.h"
#include "store.h"

constexpr int VECTOR_BYTES = 16;

#include "bf16_vectors.inl"

}  // namespace

void bf16_block_portable(const Product& product, int64_t block) { all_rows(product, block); }

}  // namespace tp
