// Where a threshold may lie, from a few of the numbers.
#pragma once

#include "logits.h"

namespace tp {

// An interval that likely has the number at which, from the largest on, `share` of the whole weight is reached, and few
// others. It holds that number alone where all that were looked at are equal, or where `narrow`: then it is one of them.
Interval guess(Scaled numbers, Weight weight, double share, bool narrow);

}  // namespace tp
