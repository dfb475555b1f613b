#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention.h"
#include "attention_ahead.h"

namespace tp {
namespace {

#include "vectors.h"

#include "attention_scores.inl"
#include "attention_values.inl"
#include "attention_tile.inl"

}  // namespace

const AttentionKernels ATTENTION_PORTABLE = {one_part, merge_parts, whole_tile};

}  // namespace tp
