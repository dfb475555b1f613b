// Prefetching of attention: keys and values are prefetched a few blocks ahead.
//
// A strip is one KV head's part of a block: 16 keys, or 16 values. A part's keys are read first, strip after strip, then its
// values; then the next part's, and the next task's. While one strip is computed, the lines of another are prefetched a
// fixed distance ahead: memory is never idle, and has no more requests than it can take.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention/attention.h"

namespace tp {

class Ahead {
   public:
    // Tasks [task, end) are the thread's next ones, in order.
    Ahead(const Attention& attention, const Task* task, const Task* end)
        : attention_(attention), task_(task), end_(end), part_(task->first_part) {
        find_part();
        for (int64_t strip = 0; strip < STRIPS; ++strip) {
            const char* rows = next();
            for (int64_t token = 0; token < BLOCK_TOKENS; ++token) {
                for (int64_t byte = 0; byte < attention.kv.head; byte += LINE_BYTES) {
                    __builtin_prefetch(rows + token * attention.kv.token + byte, 0, 2);
                }
            }
        }
    }

    // The strip to prefetch: the first row of its head. After the last strip it is the last again, which costs nothing.
    // The scales of a head's keys and values are one line, prefetched here.
    const char* next() {
        if (block_ == end_block_ && !find_next()) {
            return strip_;
        }
        const KvLayout& kv = attention_.kv;
        const char* block = attention_.kv_layer + table_[block_++] * kv.block;
        if (!of_values_ && kv.scaled) {
            __builtin_prefetch(block + kv.scales + head_ * kv.scales_of_head() * sizeof(uint16_t), 0, 2);
        }
        strip_ = block + (of_values_ ? kv.values() : 0) + head_ * kv.head;
        return strip_;
    }

   private:
    static constexpr int64_t STRIPS = 8;

    bool find_next() {
        if (task_ == end_) {
            return false;
        }
        if (of_values_ && ++part_ == task_->last_part) {
            if (++task_ == end_) {
                return false;
            }
            part_ = task_->first_part;
        }
        of_values_ = !of_values_;
        find_part();
        return true;
    }

    void find_part() {
        const Tile& tile = task_->unit->tile;
        const int64_t group = attention_.group(), start = part_ * PART_TOKENS;
        const int64_t last = std::min(start + PART_TOKENS, tile.position_of(tile.last - 1, group) + 1);
        block_ = std::max(start, attention_.first_visible(tile.position_of(tile.first, group))) / BLOCK_TOKENS;
        end_block_ = (last + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
        table_ = attention_.rows->block_tables + tile.row * attention_.rows->block_table_stride;
        head_ = tile.kv_head;
    }

    const Attention& attention_;
    const Task *task_, *end_;
    const int64_t* table_;
    const char* strip_;
    int64_t part_, block_, end_block_, head_;
    bool of_values_ = false;
};

}  // namespace tp
