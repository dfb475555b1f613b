// Whole rows of `tp_rms_norm`. Include after norms.inl.

void norm_rows(const Norm& norm, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
        const float* x = norm.x + row * norm.x_stride;
        uint16_t* y = norm.y + row * norm.y_stride;
        const auto load = [x](int64_t at, int64_t lanes) {
            return lanes == LANES ? load_floats(x + at) : load_some_floats(x + at, lanes);
        };
        const float scale = norm_scale(sum_of_squares(norm.width, load), norm.width, norm.eps);
        int64_t at = 0;
        for (; at + LANES <= norm.width; at += LANES) {
            store_bf16(y + at, load_floats(x + at) * scale * load_floats(norm.weight + at));
        }
        if (at < norm.width) {
            const int64_t lanes = norm.width - at;
            const Floats weight = load_some_floats(norm.weight + at, lanes);
            store_some_bf16(y + at, load_some_floats(x + at, lanes) * scale * weight, lanes);
        }
    }
}
