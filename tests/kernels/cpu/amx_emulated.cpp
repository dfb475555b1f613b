// The products with AMX's tiles, on tiles that are arrays: built by test_amx.py, for processors that have none.
#define TP_AMX_EMULATED
#include "products/bf16_amx.cpp"

extern "C" __attribute__((visibility("default"))) int emulated_agrees() { return tp::bf16_amx_agrees(); }

extern "C" __attribute__((visibility("default"))) void emulated_product(const TpWeight* weight, const uint16_t* x,
                                                                        int64_t x_stride, int64_t rows, int32_t store, void* y,
                                                                        int64_t y_stride) {
    const tp::Product product{weight, x, x_stride, rows, nullptr, 0, static_cast<TpStore>(store), y, y_stride, -1, false};
    for (int64_t block = 0; block * tp::BLOCK_OUTPUTS < weight->outputs; ++block) {
        tp::bf16_block_amx(product, block);
    }
}
