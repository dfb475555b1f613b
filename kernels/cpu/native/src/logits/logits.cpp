#include "logits/logits.h"

#include <cmath>

#include "threads/team.h"
#include "turnpike.h"

namespace tp {

const LogitPasses& logit_passes() {
#if defined(__x86_64__)
    const int32_t level = tp_level();
    if (level >= TP_AVX512_BF16) {
        return avx512_logit_passes;
    }
    if (level == TP_AVX2) {
        return avx2_logit_passes;
    }
#endif
    return portable_logit_passes;
}

namespace {

struct Rows {
    const LogitPasses& passes;
    float* logits;
    int64_t stride, columns;

    float* row(int64_t index) const { return logits + index * stride; }
};

struct MaskJob {
    Rows rows;
    const int32_t* bitmask;
    int64_t bitmask_stride;
};

void mask_rows(const void* argument, int64_t first, int64_t last) {
    const auto& job = *static_cast<const MaskJob*>(argument);
    for (int64_t row = first; row < last; ++row) {
        job.rows.passes.mask(job.rows.row(row), job.rows.columns, job.bitmask + row * job.bitmask_stride);
    }
}

struct FiniteJob {
    Rows rows;
    uint8_t* finite;
};

void finite_rows(const void* argument, int64_t first, int64_t last) {
    const auto& job = *static_cast<const FiniteJob*>(argument);
    for (int64_t row = first; row < last; ++row) {
        job.finite[row] = job.rows.passes.finite(job.rows.row(row), job.rows.columns);
    }
}

struct LogprobJob {
    Rows rows;
    const int64_t* tokens;
    float* normalisers;
    float* logprobs;
    int64_t* ranks;
};

// log-sum-exp; what has no finite largest number has that as its sum, and NaN where there is one.
float normaliser_of(const Rows& rows, const float* logits) {
    const float largest = rows.passes.peak(logits, rows.columns).value;
    if (!std::isfinite(largest)) {
        return std::isnan(rows.passes.mass(logits, rows.columns, INFINITY)) ? NAN : largest;
    }
    const double mass = rows.passes.mass(logits, rows.columns, largest);
    return static_cast<float>(static_cast<double>(largest) + std::log(mass));
}

void measure_rows(const void* argument, int64_t first, int64_t last) {
    const auto& job = *static_cast<const LogprobJob*>(argument);
    for (int64_t row = first; row < last; ++row) {
        const float* logits = job.rows.row(row);
        const float chosen = logits[job.tokens[row]];
        job.normalisers[row] = normaliser_of(job.rows, logits);
        job.logprobs[row] = chosen - job.normalisers[row];
        job.ranks[row] = job.rows.passes.count_above(logits, job.rows.columns, chosen) + 1;
    }
}

}  // namespace
}  // namespace tp

extern "C" void tp_mask_logits(float* logits, int64_t stride, int64_t rows, int64_t columns, const int32_t* bitmask,
                               int64_t bitmask_stride) {
    const tp::MaskJob job = {{tp::logit_passes(), logits, stride, columns}, bitmask, bitmask_stride};
    tp::run(tp::mask_rows, &job, rows, 1);
}

extern "C" void tp_finite_rows(const float* logits, int64_t stride, int64_t rows, int64_t columns, uint8_t* finite) {
    const tp::FiniteJob job = {{tp::logit_passes(), const_cast<float*>(logits), stride, columns}, finite};
    tp::run(tp::finite_rows, &job, rows, 1);
}

extern "C" void tp_token_logprobs(const float* logits, int64_t stride, int64_t rows, int64_t columns, const int64_t* tokens,
                                  float* normalisers, float* logprobs, int64_t* ranks) {
    const tp::Rows of = {tp::logit_passes(), const_cast<float*>(logits), stride, columns};
    const tp::LogprobJob job = {of, tokens, normalisers, logprobs, ranks};
    tp::run(tp::measure_rows, &job, rows, 1);
}
