// Loads a native library, of any machine, and compares products of its formats with sums over the unpacked weights:
// `make wheel-aarch64` runs it in qemu. Exits with 1 where they differ.

#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "turnpike.h"

namespace {

constexpr int64_t INPUTS = 256, OUTPUTS = 64, ROWS = 5;

template <typename F> F* function(void* library, const char* name) {
    void* found = dlsym(library, name);
    if (found == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        std::exit(1);
    }
    return reinterpret_cast<F*>(found);
}

// Multiples of 1/8 of up to 4 bits: exact in bf16.
float number(int64_t index) { return static_cast<float>(index * 7 % 31 - 15) / 8; }

uint16_t bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<uint16_t>(bits >> 16);
}

void* aligned(int64_t bytes) { return std::aligned_alloc(64, static_cast<size_t>((bytes + 63) / 64 * 64 + 64)); }

}  // namespace

int main(int, char** arguments) {
    void* library = dlopen(arguments[1], RTLD_NOW);
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    if (function<decltype(tp_abi)>(library, "tp_abi")() != TP_ABI) {
        std::fprintf(stderr, "another ABI\n");
        return 1;
    }
    std::printf("level %d\n", function<decltype(tp_level)>(library, "tp_level")());
    std::vector<uint16_t> weights(OUTPUTS * INPUTS), x(ROWS * INPUTS);
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = bf16(number(static_cast<int64_t>(i)));
    for (size_t i = 0; i < x.size(); ++i) x[i] = bf16(number(static_cast<int64_t>(3 * i)));
    int wrong = 0;
    for (const int32_t format : {TP_BF16, TP_INT8, TP_INT4}) {
        void* packed = aligned(function<decltype(tp_packed_bytes)>(library, "tp_packed_bytes")(format, OUTPUTS, INPUTS));
        function<decltype(tp_pack)>(library, "tp_pack")(format, weights.data(), OUTPUTS, INPUTS, packed);
        const TpLinear linear = {1, {{format, 0, OUTPUTS, INPUTS, packed, nullptr}}};
        void* scratch = aligned(function<decltype(tp_product_scratch_bytes)>(library, "tp_product_scratch_bytes")(&linear, ROWS));
        std::vector<float> y(ROWS * OUTPUTS), row(INPUTS);
        function<decltype(tp_product)>(library, "tp_product")(&linear, x.data(), INPUTS, ROWS, TP_STORE_FLOAT32, y.data(), OUTPUTS,
                                                              scratch);
        double largest = 0;
        for (int64_t output = 0; output < OUTPUTS; ++output) {
            function<decltype(tp_unpack_row)>(library, "tp_unpack_row")(format, packed, OUTPUTS, INPUTS, output, row.data());
            for (int64_t r = 0; r < ROWS; ++r) {
                double sum = 0, size = 0;
                for (int64_t i = 0; i < INPUTS; ++i) {
                    const double product = static_cast<double>(number(3 * (r * INPUTS + i))) * row[i];
                    sum += product, size += std::fabs(product);
                }
                largest = std::fmax(largest, std::fabs(y[r * OUTPUTS + output] - sum) / size);
            }
        }
        std::printf("format %d: error %.1e of the sum of sizes\n", format, largest);
        wrong += !(largest < 1e-2);
        std::free(packed), std::free(scratch);
    }
    return wrong != 0;
}
