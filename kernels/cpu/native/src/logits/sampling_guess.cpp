#include "logits/sampling_guess.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace tp {
namespace {

constexpr int64_t GROUP = 16;  // neighbours that are looked at together
constexpr int64_t MOST_GROUPS = 128;
constexpr int BINS = 256;
constexpr float NONE_ABOVE = INFINITY;
constexpr double TOO_WIDE = 0.25;  // of the weight: what was looked at says nothing
constexpr int PART = 6;
constexpr double MOST = 0.8;  // of the weight: where the numbers that were looked at make less, a few others have the rest

struct Bins {
    float largest, width;
    int64_t counts[BINS];
    double weights[BINS];

    float upper_edge(int bin) const { return bin == 0 ? NONE_ABOVE : largest - static_cast<float>(bin) * width; }
    float lower_edge(int bin) const { return bin == BINS - 1 ? -FLT_MAX : upper_edge(bin + 1); }
};

struct Seen {
    int64_t count, looked_at;  // what is -inf is looked at and not seen
};

Seen look_at(Scaled numbers, float* seen) {
    const int64_t groups = numbers.count / GROUP;
    const int64_t step = std::max<int64_t>((groups + MOST_GROUPS - 1) / MOST_GROUPS, 1);
    int64_t count = 0, looked_at = 0;
    for (int64_t group = 0; group < groups; group += step, looked_at += GROUP) {
        for (int64_t i = group * GROUP; i < (group + 1) * GROUP; ++i) {
            const float value = numbers.at[i] * numbers.factor;
            seen[count] = value;
            count += value > -INFINITY;
        }
    }
    return {count, looked_at};
}

Bins bins_of(const float* seen, int64_t count, float smallest, float largest, Weight weight) {
    Bins bins = {largest, (largest - smallest) / BINS, {}, {}};
    const float inverse = 1 / bins.width;
    for (int64_t i = 0; i < count; ++i) {
        ++bins.counts[std::min(static_cast<int>((largest - seen[i]) * inverse), BINS - 1)];
    }
    for (int bin = 0; bin < BINS; ++bin) {
        const double each = weight == Weight::COUNT ? 1 : std::exp(-bin * static_cast<double>(bins.width));
        bins.weights[bin] = each * static_cast<double>(bins.counts[bin]);
    }
    return bins;
}

// How far from its share of what was looked at the number may be: three standard deviations, and some numbers.
double uncertainty(const Bins& bins, double whole, double share) {
    double squares = 0;
    for (int bin = 0; bin < BINS; ++bin) {
        squares += bins.counts[bin] ? bins.weights[bin] * bins.weights[bin] / static_cast<double>(bins.counts[bin]) : 0;
    }
    const double equal_ones = whole * whole / squares;
    return 3 * std::sqrt(share * (1 - share) / equal_ones) + 4 / equal_ones;
}

// Whether there is weight that was not seen. `estimate` is what all should have by what was, exp(number - seen) each: of
// the whole that is known, or of what the largest number adds to it.
bool few_have_much(const Sought& sought, float seen, double estimate) {
    if (sought.weight == Weight::COUNT) {
        return false;
    }
    const double weight = estimate * std::exp(static_cast<double>(seen) - static_cast<double>(sought.largest));
    return weight < MOST * (sought.total < 0 ? weight + 1 : sought.total);
}

// Of a few large ones, which seldom are all that has weight; the interval then is what is above all others.
Interval above_most(const Bins& bins, int64_t count) {
    int bin = 0;
    for (int64_t reached = bins.counts[0]; reached < count / PART; reached += bins.counts[bin]) {
        ++bin;
    }
    return {bins.lower_edge(bin), NONE_ABOVE};
}

// From one weight to the other, but no more of all numbers than is soon looked through.
Interval around(const Bins& bins, int64_t count, double from, double until) {
    Interval interval = {-FLT_MAX, NONE_ABOVE};
    double reached = 0;
    int64_t within = 0;
    for (int bin = 0; bin < BINS; ++bin) {
        if (reached <= from) {
            interval.high = bins.upper_edge(bin);
            within = 0;
        }
        reached += bins.weights[bin];
        within += bins.counts[bin];
        if (reached >= until || within > count / PART) {
            interval.low = bins.lower_edge(bin);
            break;
        }
    }
    return interval;
}

}  // namespace

Interval guess(Scaled numbers, const Sought& sought, bool narrow) {
    float seen[MOST_GROUPS * GROUP + 1];
    const auto [count, looked_at] = look_at(numbers, seen);
    if (count == 0) {
        return {-FLT_MAX, NONE_ABOVE};
    }
    const auto [smallest, largest] = std::minmax_element(seen, seen + count);
    const float width = (*largest - *smallest) / BINS;
    if (narrow || !(width > 1e-6f * std::abs(*largest) && width < FLT_MAX)) {
        std::nth_element(seen, seen + count / 2, seen + count);
        return {seen[count / 2], std::nextafter(seen[count / 2], INFINITY)};
    }
    const Bins bins = bins_of(seen, count, *smallest, *largest, sought.weight);
    double whole = 0;
    for (const double each : bins.weights) {
        whole += each;
    }
    const double about = uncertainty(bins, whole, sought.share);
    const double estimate = whole * static_cast<double>(numbers.count) / static_cast<double>(looked_at);
    if (about > TOO_WIDE || few_have_much(sought, *largest, estimate)) {
        return above_most(bins, count);
    }
    return around(bins, count, (sought.share - about) * whole, (sought.share + about) * whole);
}

}  // namespace tp
