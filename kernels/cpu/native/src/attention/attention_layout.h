// How a step's attention is cut into tasks for threads.
//
// A unit is a tile of queries. A unit that is a large share of the step is cut into one task a part of its context: each
// leaves its sums in scratch, and the last one to finish merges them in order. The others are one task each.
//
// Adjacent rows that begin with the same blocks, those of a prompt's beginning that many requests have, are
// cut, too. What they all see of them, in whole parts, are tasks of one tile with the queries of them all: its keys and
// values are read, and turned, once (Hydragen, arXiv 2402.05099, for a whole batch). A query's arithmetic is that of any
// tile.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include "attention/attention.h"

namespace tp {

constexpr int64_t SHARES = 128;  // a unit larger than 1 / SHARES of the work is divided
constexpr int64_t READ_COST = 8;  // to read a key and turn it costs about as much as this many queries

// Adjacent rows whose queries all see the same first parts: 1 and 0 if there are no others.
struct SharedPrefix {
    int64_t rows, parts, queries;  // of one KV head
};

inline int64_t first_position(const TpRows& rows, int64_t row) { return rows.context_lens[row] - rows.query_lens[row]; }

// Parts that two rows see as a whole in the same blocks.
inline int64_t shared_parts(const TpRows& rows, int64_t row, int64_t other) {
    const int64_t most = (std::min(first_position(rows, row), first_position(rows, other)) + 1) / PART_TOKENS;
    const int64_t *blocks = rows.block_tables + row * rows.block_table_stride,
                  *others = rows.block_tables + other * rows.block_table_stride;
    int64_t parts = 0;
    while (parts < most && std::memcmp(blocks, others, PART_BLOCKS * sizeof *blocks) == 0) {
        blocks += PART_BLOCKS, others += PART_BLOCKS, ++parts;
    }
    return parts;
}

// From `row` on, as many as fit a tile and have no fewer parts in common than the first two.
inline SharedPrefix shared_prefix_from(const TpHeads& heads, const TpRows& rows, int64_t row) {
    const int64_t group = heads.query_heads / heads.kv_heads, most = tile_queries(heads.head_dim);
    SharedPrefix prefix{1, 0, rows.query_lens[row] * group};
    for (int64_t next = row + 1; prefix.queries > 0 && next < rows.rows; ++next) {
        const int64_t queries = rows.query_lens[next] * group;
        if (queries == 0 || prefix.queries + queries > most) {
            break;
        }
        const int64_t parts = shared_parts(rows, next - 1, next);
        if (parts == 0 || (prefix.rows > 1 && parts < prefix.parts)) {
            break;
        }
        prefix = {prefix.rows + 1, prefix.rows > 1 ? prefix.parts : parts, prefix.queries + queries};
    }
    return prefix;
}

// Tiles of a step, those of one KV head standing for all; of a row the last first, as they see most.
template <typename Each>
void for_each_tile(const TpHeads& heads, const TpRows& rows, int64_t row, int64_t token, Each each) {
    const int64_t group = heads.query_heads / heads.kv_heads, most = tile_queries(heads.head_dim);
    const int64_t queries = rows.query_lens[row] * group, tiles = (queries + most - 1) / most;
    for (int64_t tile = tiles; tile-- > 0;) {
        each(Tile{row, 0, tile * queries / tiles, (tile + 1) * queries / tiles, token, first_position(rows, row)});
    }
}

inline int64_t cost_of(const Tile& tile, int64_t group) {
    return (tile.position_of(tile.last - 1, group) + 1) * (tile.last - tile.first + READ_COST);
}

inline int64_t total_cost(const TpHeads& heads, const TpRows& rows) {
    int64_t cost = 0;
    for (int64_t row = 0; row < rows.rows; ++row) {
        for_each_tile(heads, rows, row, 0, [&](const Tile& tile) {
            cost += cost_of(tile, heads.query_heads / heads.kv_heads);
        });
    }
    return cost * heads.kv_heads;
}

// Counts units, tasks and sums, and writes them where it is given memory for them.
class Layout {
  public:
    // Under a window rows have nothing in common: which parts a query sees differs.
    Layout(const TpHeads& heads, const TpRows& rows, int64_t window)
        : heads_(heads), rows_(rows), window_(window), group_(heads.query_heads / heads.kv_heads),
          total_(total_cost(heads, rows)) {
        put_rows();
    }

    // The second pass, into memory of `bytes` bytes; returns the first task.
    const Task* write(char* scratch) {
        all_units_ = reinterpret_cast<Unit*>(scratch);
        all_tasks_ = reinterpret_cast<Task*>(scratch + bytes_of_units());
        all_sums_ = reinterpret_cast<float*>(scratch + bytes_of_units() + bytes_of_tasks());
        units_ = tasks_ = sums_ = 0;
        put_rows();
        return all_tasks_;
    }

    int64_t tasks() const { return tasks_; }
    int64_t total() const { return total_; }
    int64_t bytes() const { return bytes_of_units() + bytes_of_tasks() + sums_ * static_cast<int64_t>(sizeof(float)); }

  private:
    // Of a unit of each head, in floats: where those of the first begin, and how far apart those of heads and of parts are.
    struct Sums {
        int64_t first, of_head, of_part;
    };
    static constexpr Sums NO_SUMS{0, 0, 0};
    static constexpr int64_t ALIGNMENT = 64;

    static int64_t up_to(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }
    int64_t bytes_of_units() const { return up_to(units_ * sizeof(Unit), ALIGNMENT); }
    int64_t bytes_of_tasks() const { return up_to(tasks_ * sizeof(Task), ALIGNMENT); }

    int64_t first_part(const Tile& tile) const {
        const int64_t position = tile.position_of(tile.first, group_);
        return window_ > 0 ? std::max<int64_t>(0, position + 1 - window_) / PART_TOKENS : 0;
    }
    int64_t last_part(const Tile& tile) const { return tile.position_of(tile.last - 1, group_) / PART_TOKENS + 1; }

    void put_rows() {
        int64_t token = 0;
        for (int64_t row = 0; row < rows_.rows;) {
            const SharedPrefix prefix = window_ == 0 ? shared_prefix_from(heads_, rows_, row) : SharedPrefix{1, 0, 0};
            prefix.rows > 1 ? put_shared_prefix(prefix, row, token) : put_row(row, token);
            for (const int64_t end = row + prefix.rows; row < end; ++row) {
                token += rows_.query_lens[row];
            }
        }
    }

    void put_row(int64_t row, int64_t token) {
        for_each_tile(heads_, rows_, row, token, [&](const Tile& tile) {
            const int64_t first = first_part(tile), last = last_part(tile);
            if (cost_of(tile, group_) * SHARES > total_ && last - first > 1) {
                const int64_t of_part = (tile.last - tile.first) * sums_stride(heads_.head_dim);
                const Sums sums{sums_, (last - first) * of_part, of_part};
                sums_ += sums.of_head * heads_.kv_heads;
                put_parts(put_units(tile, first, last, sums), first, last);
            } else {
                put_tasks(put_units(tile, first, last, NO_SUMS), first, last);
            }
        });
    }

    // Sums lie part by part, in each of them those of all rows. The tile of them all is the first row's, with the others'
    // queries after its own: in the parts that they share, all see what these would see.
    void put_shared_prefix(const SharedPrefix& prefix, int64_t row, int64_t token) {
        const int64_t end = row + prefix.rows, stride = sums_stride(heads_.head_dim);
        const int64_t longest = *std::max_element(rows_.context_lens + row, rows_.context_lens + end);
        const int64_t of_part = prefix.queries * stride, of_head = ((longest - 1) / PART_TOKENS + 1) * of_part;
        Sums sums{sums_, of_head, of_part};
        sums_ += of_head * heads_.kv_heads;
        const Tile all{row, 0, 0, prefix.queries, token, first_position(rows_, row)};
        put_parts(put_units(all, 0, prefix.parts, sums, prefix.rows), 0, prefix.parts);
        for (; row < end; token += rows_.query_lens[row], ++row) {
            const Tile tile{row, 0, 0, rows_.query_lens[row] * group_, token, first_position(rows_, row)};
            const int64_t last = last_part(tile);
            put_parts(put_units(tile, 0, last, sums), prefix.parts, last);
            sums.first += tile.last * stride;
        }
    }

    // A unit for each KV head; gives the index of the first.
    int64_t put_units(Tile tile, int64_t first, int64_t last, const Sums& sums, int64_t rows = 0) {
        const int64_t index = units_;
        units_ += heads_.kv_heads;
        for (; all_units_ != nullptr && tile.kv_head < heads_.kv_heads; ++tile.kv_head) {
            Unit* unit = all_units_ + index + tile.kv_head;
            float* of_head = sums.of_part == 0 ? nullptr : all_sums_ + sums.first + tile.kv_head * sums.of_head;
            new (unit) Unit{tile, of_head, sums.of_part, first, {last - first}, rows};
        }
        return index;
    }

    // A task for each part of each head: neighbours in memory are one thread's, if it can be.
    void put_parts(int64_t units, int64_t first, int64_t last) {
        for (int64_t part = first; part < last; ++part) {
            put_tasks(units, part, part + 1);
        }
    }

    void put_tasks(int64_t units, int64_t first, int64_t last) {
        for (int64_t head = 0; all_tasks_ != nullptr && head < heads_.kv_heads; ++head) {
            all_tasks_[tasks_ + head] = {all_units_ + units + head, first, last};
        }
        tasks_ += heads_.kv_heads;
    }

    const TpHeads& heads_;
    const TpRows& rows_;
    const int64_t window_, group_, total_;
    int64_t units_ = 0, tasks_ = 0, sums_ = 0;
    Unit* all_units_ = nullptr;
    Task* all_tasks_ = nullptr;
    float* all_sums_ = nullptr;
};

}  // namespace tp
