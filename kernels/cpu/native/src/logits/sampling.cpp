#include <algorithm>
#include <atomic>
#include <cmath>

#include "logits/logits.h"
#include "logits/sampling_floor.h"
#include "threads/team.h"
#include "turnpike.h"

namespace tp {

float gumbel_noise(uint32_t hash) {
    const double uniform = (static_cast<double>(hash) + 0.5) * 0x1p-32;
    return static_cast<float>(-std::log(-std::log1p(-uniform)));
}

namespace {

constexpr int64_t FEWEST_TO_SPREAD = 2 * CHUNK;  // columns of a single row for which threads are worth waking
constexpr int64_t MOST_CHUNKS = 256;             // that are shared out: 2 million columns

struct Sampled {
    const LogitPasses& passes;
    const float* logits;
    int64_t stride, rows, columns;
    const int64_t* token_ids;
    const TpSampling& sampling;
    int64_t* tokens;
    char* scratch;
    bool spread;
    mutable std::atomic<int64_t> next;
};

struct PeakJob {
    const LogitPasses& passes;
    const float* logits;
    int64_t columns;
    Peak* found;
};

void peak_chunks(const void* argument, int64_t first, int64_t last) {
    const auto& job = *static_cast<const PeakJob*>(argument);
    for (int64_t chunk = first; chunk < last; ++chunk) {
        const int64_t from = chunk * CHUNK;
        job.found[chunk] = job.passes.peak(job.logits + from, std::min(CHUNK, job.columns - from));
        job.found[chunk].column += from;
    }
}

Peak peak_of(const Sampled& job, const float* logits) {
    const int64_t count = chunks(job.columns);
    if (!job.spread || count > MOST_CHUNKS) {
        return job.passes.peak(logits, job.columns);
    }
    Peak found[MOST_CHUNKS];
    const PeakJob peaks = {job.passes, logits, job.columns, found};
    run(peak_chunks, &peaks, count, 1);
    Peak best = found[0];
    for (int64_t chunk = 1; chunk < count; ++chunk) {
        best = found[chunk].value > best.value ? found[chunk] : best;
    }
    return best;
}

struct DrawJob {
    const LogitPasses& passes;
    const Draw& draw;
    int64_t columns;
    Score seed;
    Score* found;
};

void draw_chunks(const void* argument, int64_t first, int64_t last) {
    const auto& job = *static_cast<const DrawJob*>(argument);
    for (int64_t chunk = first; chunk < last; ++chunk) {
        job.found[chunk] = job.passes.draw(job.draw, chunk * CHUNK, std::min(job.columns, (chunk + 1) * CHUNK), job.seed);
    }
}

Score drawn(const Sampled& job, const Draw& draw, Score seed) {
    const int64_t count = chunks(job.columns);
    if (!job.spread || count > MOST_CHUNKS) {
        return job.passes.draw(draw, 0, job.columns, seed);
    }
    Score found[MOST_CHUNKS];
    const DrawJob draws = {job.passes, draw, job.columns, seed, found};
    run(draw_chunks, &draws, count, 1);
    return *std::max_element(found, found + count, [](Score a, Score b) {
        return a.value < b.value || (a.value == b.value && a.column > b.column);
    });
}

uint32_t murmur_finalise(uint32_t word) {
    word = (word ^ word >> 16) * 0x85EBCA6Bu;
    word = (word ^ word >> 13) * 0xC2B2AE35u;
    return word ^ word >> 16;
}

// The score of one column, to begin with: what the largest logit has, few others pass.
Score score_of(const Draw& draw, int64_t column, float value) {
    const auto token = static_cast<uint32_t>(draw.token_ids ? draw.token_ids[column] : column);
    const uint32_t hash = murmur_finalise(murmur_finalise(token * 0x9E3779B1u + draw.key[0]) ^ draw.key[1]);
    return {value + gumbel_noise(hash), column};
}

int64_t sampled_column(const Sampled& job, int64_t row, void* scratch) {
    const float* logits = job.logits + row * job.stride;
    const TpSampling& by = job.sampling;
    const Peak peak = peak_of(job, logits);
    if (by.noise_scale[row] == 0 || !std::isfinite(peak.value)) {
        return peak.column;
    }
    const float factor = by.inverse_temperature[row];
    const float largest = peak.value * factor;
    if (!std::isfinite(largest)) {
        return peak.column;
    }
    const Thresholds thresholds = {by.top_k[row], by.top_p[row], by.min_p[row]};
    const float floor = floor_of(job.passes, {logits, job.columns, factor}, thresholds, largest,
                                 floor_scratch(scratch, job.columns), job.spread);
    const Draw draw = {logits, factor, largest, floor, job.token_ids,
                       {static_cast<uint32_t>(by.keys[2 * row]), static_cast<uint32_t>(by.keys[2 * row + 1])}};
    return drawn(job, draw, score_of(draw, peak.column, largest)).column;
}

// A worker takes row after row, in memory of its own.
void sample_rows(const void* argument, int64_t first, int64_t last) {
    const auto& job = *static_cast<const Sampled*>(argument);
    for (int64_t worker = first; worker < last; ++worker) {
        void* scratch = job.scratch + worker * floor_scratch_bytes(job.columns);
        for (int64_t row = job.next++; row < job.rows; row = job.next++) {
            const int64_t column = sampled_column(job, row, scratch);
            job.tokens[row] = job.token_ids ? job.token_ids[column] : column;
        }
    }
}

int64_t workers(int64_t rows) { return std::min<int64_t>(rows, threads()); }

}  // namespace
}  // namespace tp

extern "C" int64_t tp_sample_scratch_bytes(int64_t rows, int64_t columns) {
    return tp::workers(rows) * tp::floor_scratch_bytes(columns);
}

extern "C" void tp_sample(const float* logits, int64_t stride, int64_t rows, int64_t columns, const int64_t* token_ids,
                          const TpSampling* sampling, int64_t* tokens, void* scratch) {
    const bool spread = rows == 1 && tp::threads() > 1 && columns >= tp::FEWEST_TO_SPREAD;
    const tp::Sampled job = {tp::logit_passes(), logits, stride, rows, columns, token_ids, *sampling, tokens,
                             static_cast<char*>(scratch), spread, {0}};
    if (tp::workers(rows) > 1) {
        tp::run(tp::sample_rows, &job, tp::workers(rows), 1);
    } else {
        tp::sample_rows(&job, 0, 1);
    }
}
