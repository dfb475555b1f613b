// Passes over logits of one row: what sampling, masks and log-probabilities are made of, one set for each level.
#pragma once

#include <cstdint>

namespace tp {

// The largest of some numbers and the first of its places. No NaN is the largest; without any number, -inf at 0.
struct Peak {
    float value;
    int64_t column;
};

// Numbers that stand for `at` times `factor`, each product rounded.
struct Scaled {
    const float* at;
    int64_t count;
    float factor;
};

// Numbers from `low` on and below `high`. What is -inf is in no interval.
struct Interval {
    float low, high;
};

// What numbers count for: one each, or exp(number - largest).
enum class Weight { COUNT, MASS };

// Weights of the numbers from `high` on, within the interval, and of all; and how many are within.
struct Split {
    double above, within, total;
    int64_t kept;
};

// A draw: the columns of a row, of which the largest one times the factor is `largest`, what is left of them above the floor,
// and where the noise of their tokens comes from.
struct Draw {
    const float* logits;
    float factor, largest, floor;
    const int64_t* token_ids;  // null: column i is token i
    uint32_t key[2];
};

struct Score {
    float value;
    int64_t column;
};

struct LogitPasses {
    Peak (*peak)(const float* logits, int64_t count);
    // Whether the largest of them is finite: no NaN, no +inf, and not all -inf.
    bool (*finite)(const float* logits, int64_t count);
    // Puts -inf where the bit of the words, 32 columns each, is 0.
    void (*mask)(float* logits, int64_t count, const int32_t* words);
    // Sum of exp(logit - largest); a NaN among them stays one.
    double (*mass)(const float* logits, int64_t count, float largest);
    int64_t (*count_above)(const float* logits, int64_t count, float value);
    // Copies what is within the interval to `kept`, which has room for `numbers.count` and LANES more.
    Split (*split)(Scaled numbers, Interval interval, Weight weight, float largest, float* kept);
    // The best score, logit and noise, of columns [first, last) that reach the floor, and of `best`. The first of equal ones.
    Score (*draw)(const Draw& draw, int64_t first, int64_t last, Score best);
};

extern const LogitPasses portable_logit_passes;
#if defined(__x86_64__)
extern const LogitPasses avx2_logit_passes, avx512_logit_passes;
#endif

// Those of the level that is in use.
const LogitPasses& logit_passes();

// Standard Gumbel noise of a hash of 32 bits: -log(-log(1 - u)) of u = (h + 0.5) / 2^32; see kernels/noise.py. Computed in
// double and rounded once: within half a unit in the last place of a float32, and a few in 2^29 of one.
float gumbel_noise(uint32_t hash);

}  // namespace tp
