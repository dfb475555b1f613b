// The C interface of the native CPU kernels: pointers, strides and counts, nothing of Python's or torch's.
//
// bf16 numbers are uint16_t, the upper half of a float32. Counts and strides are in elements. Every function may be
// called from any thread; none allocates.
#pragma once

#include <cstdint>

extern "C" {

// Changes with every function here; the loader refuses another.
constexpr int32_t TP_ABI = 1;
int32_t tp_abi();

// What this processor has of what the kernels are made for, and the most that is used of it from now on.
enum TpLevel : int32_t { TP_PORTABLE = 0, TP_AVX2 = 1, TP_AVX512_BF16 = 2 };
int32_t tp_level();
int32_t tp_use_level(int32_t level);

// Compute on a team of `threads`, the calling one among them. `gomp_parallel` is the function of that name in the libgomp
// that the process has loaded: threads of our own would take turns with its, which look for work between any two ops.
// Null: on the calling thread alone.
void tp_use_team(void* gomp_parallel, int32_t threads);

// A weight [outputs, inputs] bf16 in blocks of 32 outputs, pairs of inputs one after another: what a product reads
// lies in the order that it is read in. Outputs are filled up with zeros; `inputs` is even.
int64_t tp_bf16_packed_size(int64_t outputs, int64_t inputs);
void tp_bf16_pack(const uint16_t* weight, int64_t outputs, int64_t inputs, uint16_t* packed);

// y [rows, outputs] = x [rows, inputs] times the packed weight, transposed, plus bias [outputs] float32 or null.
// Sums in float32, rounded once. `x_stride` and `y_stride`: from row to row.
void tp_bf16_linear(const uint16_t* packed, int64_t outputs, int64_t inputs, const uint16_t* x, int64_t x_stride,
                    int64_t rows, const float* bias, uint16_t* y, int64_t y_stride);
}
