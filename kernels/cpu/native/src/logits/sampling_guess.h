// Where a threshold may lie, from a few of the numbers.
#pragma once

#include "logits/logits.h"

namespace tp {

// The number at which, from the largest on, `share` of the numbers' whole weight is reached, which is `total` if that is not
// negative. `largest` is what weights are relative to.
struct Sought {
    Weight weight;
    double share, total;
    float largest;
};

// An interval that likely has that number, and few others. It is one number where all that were looked at are equal, or
// where `narrow`: then it is one of them.
Interval guess(Scaled numbers, const Sought& sought, bool narrow);

}  // namespace tp
