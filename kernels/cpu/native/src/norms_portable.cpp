#include <cmath>
#include <cstdint>
#include <cstring>

#include "norms.h"
#include "turnpike.h"

namespace tp {
namespace {

#define REGISTER_BYTES 16
#include "vectors.h"

#include "norms.inl"
#include "norms_rows.inl"

}  // namespace

void norm_rows_portable(const Norm& norm, int64_t first, int64_t last) { norm_rows(norm, first, last); }

}  // namespace tp
