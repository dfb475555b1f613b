#include "products/blocks_pack.h"

#include <algorithm>

#include "threads/team.h"

namespace tp {
namespace {

struct Packing {
    const Layout& layout;
    PackBlock pack;
    const void* rows;
    int64_t outputs, inputs;
    uint8_t* packed;
};

void pack_blocks(const void* argument, int64_t first, int64_t last) {
    const auto& work = *static_cast<const Packing*>(argument);
    const int64_t bytes = work.layout.block_bytes(work.inputs);
    for (int64_t block = first; block < last; ++block) {
        uint8_t* at = work.packed + block * bytes;
        std::memset(at, 0, static_cast<size_t>(bytes));
        const int64_t first = block * BLOCK_OUTPUTS;
        work.pack(work.rows, work.inputs, first, std::min(work.outputs, first + BLOCK_OUTPUTS), at);
    }
}

}  // namespace

void pack_outputs(const Layout& layout, PackBlock pack, const void* rows, int64_t outputs, int64_t inputs, void* packed) {
    const Packing work{layout, pack, rows, outputs, inputs, static_cast<uint8_t*>(packed)};
    run(pack_blocks, &work, (outputs + BLOCK_OUTPUTS - 1) / BLOCK_OUTPUTS, 1);
}

}  // namespace tp
