// The experts of each token and their shares, as `kernels.reference.route` defines them.

#include <algorithm>
#include <cmath>
#include <limits>

#include "threads/team.h"
#include "turnpike.h"

namespace {

constexpr int64_t ROUTED_TOKENS = 16;    // that one thread takes at a time
constexpr float TINY_SHARE = 1e-20f;     // added to the sum of sigmoids that shares are divided by
constexpr float LEAST = -std::numeric_limits<float>::infinity();
constexpr float TAKEN = std::numeric_limits<float>::quiet_NaN();  // in place of a score that is chosen

struct Routing {
    const TpRouting* rule;
    float* logits;
    int64_t stride;
    int64_t* chosen;
    float* shares;
    float* scratch;
};

// tanh does not overflow: e^-x of a very negative x does.
float sigmoid(float x) { return 0.5f * (1.0f + std::tanh(0.5f * x)); }

// The index of the largest score, of equal ones the lower; its score becomes TAKEN. There is one that is not.
int64_t take_best(float* scores, int64_t count) {
    int64_t best = -1;
    for (int64_t index = 0; index < count; ++index) {
        if (!std::isnan(scores[index]) && (best < 0 || scores[index] > scores[best])) {
            best = index;
        }
    }
    scores[best] = TAKEN;
    return best;
}

// Sets the scores of groups that a token does not choose from to LEAST. `groups`: scratch for one number for each.
void close_groups(const TpRouting& rule, float* scores, float* best, float* groups) {
    const int64_t size = rule.experts / rule.groups;
    for (int64_t group = 0; group < rule.groups; ++group) {
        std::copy_n(scores + group * size, size, best);
        std::partial_sort(best, best + rule.group_best, best + size, [](float a, float b) { return a > b; });
        groups[group] = 0.0f;
        for (int64_t rank = rule.group_best; rank-- > 0;) {
            groups[group] += best[rank];
        }
    }
    std::replace_if(groups, groups + rule.groups, [](float score) { return std::isnan(score); }, LEAST);
    for (int64_t rank = 0; rank < rule.groups_per_token; ++rank) {
        take_best(groups, rule.groups);
    }
    for (int64_t group = 0; group < rule.groups; ++group) {
        if (!std::isnan(groups[group])) {
            std::fill_n(scores + group * size, size, LEAST);
        }
    }
}

// Logits become what shares are made of, e^(logit - largest) or sigmoids. Returns their sum.
float to_powers(const TpRouting& rule, float* logits) {
    const float largest = *std::max_element(logits, logits + rule.experts);
    float sum = 0.0f;
    for (int64_t expert = 0; expert < rule.experts; ++expert) {
        logits[expert] = rule.sigmoid != 0 ? sigmoid(logits[expert]) : std::exp(logits[expert] - largest);
        sum += logits[expert];
    }
    return sum;
}

// `scores` and `best`: scratch for one number for each expert, `groups` for one for each group.
void route(const TpRouting& rule, float* logits, int64_t* chosen, float* shares, float* scores, float* best, float* groups) {
    const bool softmax = rule.sigmoid == 0;
    std::copy_n(logits, rule.experts, scores);
    const float* powers = logits;
    const float sum = to_powers(rule, logits);
    // The order of logits is that of their probabilities, without ties by rounding.
    for (int64_t expert = 0; expert < rule.experts && !(softmax && rule.choice_bias == nullptr); ++expert) {
        scores[expert] = softmax ? powers[expert] / sum : powers[expert];
        scores[expert] += rule.choice_bias == nullptr ? 0.0f : rule.choice_bias[expert];
    }
    std::replace_if(scores, scores + rule.experts, [](float score) { return std::isnan(score); }, LEAST);
    if (rule.groups > 1) {
        close_groups(rule, scores, best, groups);
    }
    float chosen_sum = 0.0f;
    for (int64_t rank = 0; rank < rule.per_token; ++rank) {
        chosen[rank] = take_best(scores, rule.experts);
        shares[rank] = powers[chosen[rank]];
        chosen_sum += shares[rank];
    }
    const float divisor = rule.renormalise != 0 ? chosen_sum + (softmax ? 0.0f : TINY_SHARE) : softmax ? sum : 1.0f;
    for (int64_t rank = 0; rank < rule.per_token; ++rank) {
        shares[rank] = shares[rank] / divisor * rule.scale;
        shares[rank] *= rule.share_scale == nullptr ? 1.0f : rule.share_scale[chosen[rank]];
    }
}

void route_range(const void* argument, int64_t first, int64_t last) {
    const auto& work = *static_cast<const Routing*>(argument);
    const TpRouting& rule = *work.rule;
    for (int64_t token = first; token < last; ++token) {
        float* scores = work.scratch + token * (2 * rule.experts + rule.groups);
        route(rule, work.logits + token * work.stride, work.chosen + token * rule.per_token,
              work.shares + token * rule.per_token, scores, scores + rule.experts, scores + 2 * rule.experts);
    }
}

}  // namespace

extern "C" int64_t tp_route_scratch_bytes(const TpRouting* rule, int64_t rows) {
    return 4 * rows * (2 * rule->experts + rule->groups);
}

extern "C" void tp_route(const TpRouting* rule, float* logits, int64_t stride, int64_t rows, int64_t* chosen, float* shares,
                         void* scratch) {
    const Routing work{rule, logits, stride, chosen, shares, static_cast<float*>(scratch)};
    tp::run(route_range, &work, rows, ROUTED_TOKENS);
}
