// Rows as they are: see `blocks.h`. Include within the level's namespace, after `blocks_codings.inl` and the level's `FloatSums`,
// `add_bf16_product`, `all_floats`, `multiply_add`, and `Bf16Numbers`: how integers become bf16, where they do.
//
// Of a row nothing is prepared but, for formats with minima, float32 sums of its numbers: of each whole group, of the first
// halves, of the second halves.

class Bf16Rows : public Bf16Numbers {
  public:
    static constexpr bool BF16 = true;
    using Sums = FloatSums;

    static Bf16Rows of(const Product& product, int64_t row) {
        return {product.x + row * product.x_stride, product.x_stride, product.prepared + row * product.prepared_bytes,
                product.prepared_bytes, product.weight->inputs / GROUP_INPUTS};
    }
    template <typename Coding>
    static constexpr BlockKernel kernel(void (*block)(const Product&, int64_t)) {
        if (Coding::template minima<Bf16Rows> == 0) {
            return {[](int64_t) -> int64_t { return 0; }, nullptr, block};
        }
        return {[](int64_t inputs) { return inputs / GROUP_INPUTS * 4 * 3; }, prepare, block};
    }

    static void add(Sums& sums, Pairs weights, int32_t pair) { add_bf16_product(sums, weights, pair); }

    int32_t pair(int64_t row, int64_t input) const {
        int32_t both;
        std::memcpy(&both, first_ + row * stride_ + input, sizeof both);
        return both;
    }
    Floats scaled(const Sums& sums, Floats scale, int64_t, int64_t, Floats total) const {
        return multiply_add(all_floats(sums), scale, total);
    }
    float sum(int64_t row, int64_t group, int part, bool whole) const {
        return reinterpret_cast<const float*>(prepared_ + row * bytes_)[(whole ? 0 : 1 + part) * groups_ + group];
    }

  private:
    Bf16Rows(const uint16_t* first, int64_t stride, const char* prepared, int64_t bytes, int64_t groups)
        : first_(first), stride_(stride), prepared_(prepared), bytes_(bytes), groups_(groups) {}

    // In an order that does not depend on what the compiler makes of a loop.
    static float sum_of(Floats numbers) {
        float lanes[LANES];
        std::memcpy(lanes, &numbers, sizeof lanes);
        for (int width = LANES / 2; width > 0; width /= 2) {
            for (int lane = 0; lane < width; ++lane) {
                lanes[lane] += lanes[lane + width];
            }
        }
        return lanes[0];
    }

    static void prepare(const TpWeight& weight, const uint16_t* x, char* prepared) {
        const int64_t groups = weight.inputs / GROUP_INPUTS;
        auto* sums = reinterpret_cast<float*>(prepared);
        for (int64_t group = 0; group < groups; ++group, x += GROUP_INPUTS) {
            const float first = sum_of(load_bf16(x)), second = sum_of(load_bf16(x + LANES));
            sums[group] = first + second;
            sums[groups + group] = first;
            sums[2 * groups + group] = second;
        }
    }

    const uint16_t* first_;
    int64_t stride_;
    const char* prepared_;
    int64_t bytes_, groups_;
};
