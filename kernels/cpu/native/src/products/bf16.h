// bf16 weights: how they lie, and a block of their product at each level of the processor.
//
// Blocks of 32 outputs, in each the pairs of inputs one after another, in each the 32 outputs' two numbers:
// [outputs / 32][inputs / 2][32][2]. Two vectors of 16 pairs are read at a time, in the order of memory.
//
// A sum over inputs is made of four, over a quarter of the pairs each (the last with what is over), added up as
// (0 + 1) + (2 + 3). A few rows compute all four at a time, which hides how long one addition takes to the next and reads
// from four places of memory; many rows take quarter after quarter. The numbers are the same. (Tiles of AMX have an order
// of their own, at any number of rows.)
#pragma once

#include "products/product.h"

namespace tp {

constexpr int64_t QUARTERS = 4;

void bf16_block_portable(const Product& product, int64_t block);
#if defined(__x86_64__)
void bf16_block_avx2(const Product& product, int64_t block);
void bf16_block_avx512(const Product& product, int64_t block);
void bf16_block_float_avx512(const Product& product, int64_t block);  // of rows in float32, prepared by these two
int64_t bf16_float_row_bytes(int64_t inputs);
void bf16_to_float_avx512(const TpWeight& weight, const uint16_t* x, char* prepared);
void bf16_block_amx(const Product& product, int64_t block);
// Whether the tiles of this processor compute what they should.
bool bf16_amx_agrees();
#endif

}  // namespace tp
