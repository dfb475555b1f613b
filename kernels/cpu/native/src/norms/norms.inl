// RMS norms. Include within a level's namespace, after vectors.h.

// Of numbers that are read a vector at a time by `load(at, lanes)`: a sum of four sums, so that additions need not wait.
template <typename Load>
inline float sum_of_squares(int64_t width, Load load) {
    Floats sums[4] = {};
    int64_t at = 0;
    for (; at + 4 * LANES <= width; at += 4 * LANES) {
        for (int i = 0; i < 4; ++i) {
            const Floats values = load(at + i * LANES, LANES);
            sums[i] += values * values;
        }
    }
    for (; at < width; at += LANES) {
        const Floats values = load(at, width - at < LANES ? width - at : LANES);
        sums[0] += values * values;
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

inline float norm_scale(float squares, int64_t width, float eps) {
    return 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
}
