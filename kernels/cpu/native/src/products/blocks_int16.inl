// Rows as 16-bit integers: see `blocks.h`. Include within the level's namespace, after `blocks_codings.inl` and the level's
// `IntSums`, `add_product`, `floats_of`, `multiply_add` and `look_up`.
//
// A prepared row: int16 [inputs]; then for each group its scale; then the sums of its numbers: of each whole group, of the first
// halves, of the second halves; all float32.

class Int16Rows {
  public:
    static constexpr bool BF16 = false;
    using Sums = IntSums;

    static Int16Rows of(const Product& product, int64_t row) {
        return {product.prepared + row * product.prepared_bytes, product.prepared_bytes, product.weight->inputs};
    }
    template <typename Coding>
    static constexpr BlockKernel kernel(void (*block)(const Product&, int64_t)) {
        return {[](int64_t inputs) { return inputs * 2 + inputs / GROUP_INPUTS * 4 * FLOATS_OF_GROUP; }, prepare, block};
    }

    template <typename Table>
    static Pairs look_up(Pairs words) {
        return looked_up<Table>(words);
    }
    static Pairs signed_bytes(const char* at) { return widened(at); }
    static void add(Sums& sums, Pairs weights, int32_t pair) { add_product(sums, weights, pair); }

    int32_t pair(int64_t row, int64_t input) const {
        int32_t both;
        std::memcpy(&both, numbers(row) + input, sizeof both);
        return both;
    }
    Floats scaled(const Sums& sums, Floats scale, int64_t row, int64_t group, Floats total) const {
        return multiply_add(floats_of(sums) * scale, floats(floats_at(row)[group]), total);
    }
    // Of a whole group, or of one of its halves.
    float sum(int64_t row, int64_t group, int part, bool whole) const {
        return floats_at(row)[(whole ? 1 : 2 + part) * (inputs_ / GROUP_INPUTS) + group];
    }

  private:
    static constexpr int64_t FLOATS_OF_GROUP = 4;

    Int16Rows(const char* first, int64_t bytes, int64_t inputs) : first_(first), bytes_(bytes), inputs_(inputs) {}

    const int16_t* numbers(int64_t row) const { return reinterpret_cast<const int16_t*>(first_ + row * bytes_); }
    const float* floats_at(int64_t row) const { return reinterpret_cast<const float*>(numbers(row) + inputs_); }

    // The largest of 32 numbers without their signs, as bits: a NaN is above infinity, which is above all numbers.
    static uint32_t largest_bits(const uint16_t* x) {
        uint32_t largest = 0;
        for (int64_t i = 0; i < GROUP_INPUTS; ++i) {
            largest = std::max<uint32_t>(largest, x[i] & 0x7fffu);
        }
        return largest;
    }

    static void prepare(const TpWeight& weight, const uint16_t* x, char* prepared) {
        constexpr uint32_t INFINITE = 0x7f80, LEAST_EXPONENT = 16, BITS = 14;
        const int64_t groups = weight.inputs / GROUP_INPUTS;
        auto* numbers = reinterpret_cast<int16_t*>(prepared);
        auto* scales = reinterpret_cast<float*>(numbers + weight.inputs);
        for (int64_t group = 0; group < groups; ++group, x += GROUP_INPUTS, numbers += GROUP_INPUTS) {
            const uint32_t largest = largest_bits(x);
            const uint32_t exponent = std::max(LEAST_EXPONENT, largest >> 7);
            // 2^14 stands for the largest number's power of two.
            const uint32_t scale_bits = largest >= INFINITE ? 0x7fc00000u : (exponent - BITS) << 23;
            const uint32_t inverse_bits = largest >= INFINITE ? 0 : (254 + BITS - exponent) << 23;
            float scale, inverse;
            std::memcpy(&scale, &scale_bits, sizeof scale);
            std::memcpy(&inverse, &inverse_bits, sizeof inverse);
            const Floats shift = floats(12582912.0f);  // 1.5 x 2^23: what is added to it is rounded to a whole number
            scales[group] = scale;
            int32_t whole = 0;  // exact: 32 numbers of 15 bits
            for (int half = 0; half < 2; ++half) {
                const Floats shifted_numbers = load_bf16(x + half * LANES) * inverse + shift;
                const Words words = reinterpret_cast<Words>(shifted_numbers) - 0x4b400000u;
                const auto narrow_words = __builtin_convertvector(words, Halves);
                std::memcpy(numbers + half * LANES, &narrow_words, sizeof narrow_words);
                uint32_t total = 0;  // numbers that are not finite become any integers, whose sum may overflow
                for (int lane = 0; lane < LANES; ++lane) {
                    total += words[lane];
                }
                const auto of_half = static_cast<int32_t>(total);
                scales[(2 + half) * groups + group] = scale * static_cast<float>(of_half);
                whole = static_cast<int32_t>(static_cast<uint32_t>(whole) + total);
            }
            scales[groups + group] = scale * static_cast<float>(whole);
        }
    }

    const char* first_;
    int64_t bytes_, inputs_;
};
