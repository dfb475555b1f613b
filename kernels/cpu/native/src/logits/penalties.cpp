#include <cstdint>

#include "threads/team.h"
#include "turnpike.h"

namespace tp {
namespace {

constexpr int64_t AHEAD = 16;  // tokens whose logits are fetched early: they lie anywhere

struct Row {
    float* logits;
    int64_t columns;
    const int32_t* token_columns;
    float repetition, presence, frequency;

    // Of a token, null where it has no column.
    float* at(int64_t token) const {
        const int64_t column = token_columns ? token_columns[token] : token;
        return static_cast<uint64_t>(column) < static_cast<uint64_t>(columns) ? logits + column : nullptr;
    }

    // Both ways of scaling are computed, as the sign of a logit is hard to foretell. A product fused with the sum after it would
    // round otherwise than `kernels.reference.penalise` does.
    float penalised(float logit, int32_t times) const {
        const float divided = logit / repetition, multiplied = logit * repetition;
        const float scaled = logit > 0 ? divided : multiplied;
        if (times == 0) {
            return scaled;
        }
        float repeats = frequency * static_cast<float>(times);
        asm("" : "+m"(repeats));
        return scaled - (presence + repeats);
    }
};

struct Job {
    float* logits;
    int64_t stride, columns;
    const TpPenalties& by;

    Row row(int64_t index) const {
        return {logits + index * stride, columns, by.token_columns, by.repetition[index], by.presence[index], by.frequency[index]};
    }
};

void penalise_rows(const void* argument, int64_t first, int64_t last) {
    const auto& job = *static_cast<const Job*>(argument);
    for (int64_t index = first; index < last; ++index) {
        const Row row = job.row(index);
        const int64_t line = job.by.lines[index] * job.by.line_stride;
        const int64_t end = line + job.by.lengths[index];
        for (int64_t place = line; place < end; ++place) {
            if (place + AHEAD < end) {
                __builtin_prefetch(row.at(job.by.tokens[place + AHEAD]), 1);
            }
            if (float* logit = row.at(job.by.tokens[place])) {
                *logit = row.penalised(*logit, job.by.times[place]);
            }
        }
    }
}

}  // namespace
}  // namespace tp

extern "C" void tp_penalise(float* logits, int64_t stride, int64_t rows, int64_t columns, const TpPenalties* penalties,
                            float* draft_logits) {
    const tp::Job job = {logits, stride, columns, *penalties};
    // Drafts count from the logits as they were, whatever their tokens' places in the lines say.
    for (int64_t i = 0; i < penalties->drafts; ++i) {
        const tp::Row row = job.row(penalties->draft_rows[i]);
        const float* logit = row.at(penalties->draft_tokens[i]);
        draft_logits[i] = logit ? row.penalised(*logit, penalties->draft_times[i]) : 0;
    }
    tp::run(tp::penalise_rows, &job, rows, 1);
    for (int64_t i = 0; i < penalties->drafts; ++i) {
        if (float* logit = job.row(penalties->draft_rows[i]).at(penalties->draft_tokens[i])) {
            *logit = draft_logits[i];
        }
    }
}
