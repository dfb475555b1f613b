#include "logits/sampling_floor.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <functional>

#include "logits/sampling_guess.h"
#include "threads/team.h"

namespace tp {
namespace {

constexpr int64_t SORTED = 384;  // numbers that are sorted and not split any further
constexpr int MOST_SPLITS = 64;  // what does not end by then ends by sorting

// A search among the numbers of one row for the smallest one before which less than the target's weight is reached.
struct Search {
    const LogitPasses& passes;
    const FloorScratch& scratch;
    Weight weight;
    float largest;
    bool spread;
};

struct SplitJob {
    const Search& search;
    Scaled numbers;
    Interval interval;
    float* kept;
};

void split_chunks(const void* argument, int64_t first, int64_t last) {
    const auto& job = *static_cast<const SplitJob*>(argument);
    for (int64_t chunk = first; chunk < last; ++chunk) {
        const int64_t from = chunk * CHUNK;
        const Scaled part = {job.numbers.at + from, std::min(CHUNK, job.numbers.count - from), job.numbers.factor};
        float* kept = job.kept + chunk * CHUNK_ROOM;
        const Search& search = job.search;
        search.scratch.splits[chunk] = search.passes.split(part, job.interval, search.weight, search.largest, kept);
    }
}

// Splits all numbers, and moves what was kept to the buffer's front.
Split split(const Search& search, Scaled numbers, Interval interval, float* kept) {
    const SplitJob job = {search, numbers, interval, kept};
    const int64_t count = chunks(numbers.count);
    if (search.spread && count > 1) {
        run(split_chunks, &job, count, 1);
    } else {
        split_chunks(&job, 0, count);
    }
    Split whole = {};
    for (int64_t chunk = 0; chunk < count; ++chunk) {
        const Split& part = search.scratch.splits[chunk];
        std::memmove(kept + whole.kept, kept + chunk * CHUNK_ROOM, static_cast<size_t>(part.kept) * sizeof(float));
        whole.above += part.above;
        whole.within += part.within;
        whole.total += part.total;
        whole.kept += part.kept;
    }
    return whole;
}

float* other_buffer(const Search& search, Scaled numbers) {
    return search.scratch.buffers[numbers.at == search.scratch.buffers[0] ? 1 : 0];
}

double weight_of(const Search& search, float value) {
    if (search.weight == Weight::COUNT) {
        return 1;
    }
    return std::exp(static_cast<double>(value) - static_cast<double>(search.largest));
}

// The rest of a search, of few numbers: `above` is the weight of those that are larger than all of them.
float by_order(const Search& search, Scaled numbers, double above, double target) {
    float* ordered = other_buffer(search, numbers);
    std::transform(numbers.at, numbers.at + numbers.count, ordered, [&](float value) {
        return value > -FLT_MAX ? value * numbers.factor : -INFINITY;  // a NaN has no place in an order
    });
    std::sort(ordered, ordered + numbers.count, std::greater<>());
    float lowest = ordered[0];
    for (int64_t i = 0; i < numbers.count && above < target; ++i) {
        lowest = ordered[i];
        above += weight_of(search, lowest);
    }
    return lowest;
}

// `target` and `total` are weights; where there is no total yet, the target is a share of it.
float search_for(const Search& search, Scaled numbers, double target, double total) {
    double above = 0;
    bool narrow = false;
    if (total < 0 && numbers.count <= SORTED) {
        total = split(search, numbers, {INFINITY, INFINITY}, other_buffer(search, numbers)).total;
        target *= total;
    }
    for (int splits = 0; numbers.count > SORTED && splits < MOST_SPLITS; ++splits) {
        float* kept = other_buffer(search, numbers);
        const double share = total < 0 ? target : std::clamp((target - above) / total, 0.0, 1.0);
        const Interval interval = guess(numbers, {search.weight, share, total, search.largest}, narrow);
        Split found = split(search, numbers, interval, kept);
        if (total < 0) {
            target *= found.total;
        }
        if (above + found.above >= target) {
            found = split(search, numbers, {interval.high, INFINITY}, kept);
        } else if (above + found.above + found.within >= target) {
            above += found.above;
            if (interval.high == std::nextafter(interval.low, INFINITY)) {
                return interval.low;
            }
        } else {
            above += found.above + found.within;
            found = split(search, numbers, {-FLT_MAX, interval.low}, kept);
        }
        if (found.kept == 0) {  // all that is not -inf does not reach the target
            return -INFINITY;
        }
        narrow = found.kept > numbers.count / 2;
        numbers = {kept, found.kept, 1.0f};
        total = found.within;
    }
    return by_order(search, numbers, above, target);
}

// The smallest number that top-p keeps, of the k largest of those from `lowest` on: by p of the weight that these have.
float floor_by_mass(Search search, Scaled row, const Thresholds& by, float lowest) {
    search.weight = Weight::MASS;
    if (lowest == -INFINITY) {
        return search_for(search, row, static_cast<double>(by.top_p), -1);
    }
    float* kept = search.scratch.buffers[0];
    const Split largest = split(search, row, {std::max(lowest, -FLT_MAX), INFINITY}, kept);
    const auto equal_ones = static_cast<double>(std::max<int64_t>(largest.kept - by.top_k, 0));  // beyond k, which have no weight
    const double total = largest.within - (equal_ones > 0 ? equal_ones * weight_of(search, lowest) : 0);
    return search_for(search, {kept, largest.kept, 1.0f}, static_cast<double>(by.top_p) * total, total);
}

float kth_largest(Search search, Scaled row, int64_t k) {
    search.weight = Weight::COUNT;
    return k > 1 ? search_for(search, row, static_cast<double>(k), static_cast<double>(row.count)) : search.largest;
}

}  // namespace

int64_t floor_scratch_bytes(int64_t columns) {
    const int64_t count = chunks(columns);
    const auto bytes = count * static_cast<int64_t>(2 * CHUNK_ROOM * sizeof(float) + sizeof(Split));
    return (bytes + 63) / 64 * 64;
}

FloorScratch floor_scratch(void* memory, int64_t columns) {
    auto* numbers = static_cast<float*>(memory);
    const int64_t room = chunks(columns) * CHUNK_ROOM;
    return {{numbers, numbers + room}, reinterpret_cast<Split*>(numbers + 2 * room)};
}

float floor_of(const LogitPasses& passes, Scaled row, const Thresholds& thresholds, float largest, const FloorScratch& scratch,
               bool spread) {
    if (thresholds.top_p <= 0) {  // less than a float32 holds: the largest alone
        return largest;
    }
    const Search search = {passes, scratch, Weight::MASS, largest, spread};
    float lowest = -INFINITY;
    if (thresholds.min_p > 0) {
        lowest = largest + static_cast<float>(std::log(static_cast<double>(thresholds.min_p)));
    }
    if (thresholds.top_k < row.count) {
        lowest = std::max(lowest, kth_largest(search, row, thresholds.top_k));
    }
    return thresholds.top_p < 1 ? floor_by_mass(search, row, thresholds, lowest) : lowest;
}

}  // namespace tp
