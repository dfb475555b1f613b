// The passes over logits that are no draws; see logits.h.

constexpr int64_t PEAK_BLOCK = 64 * LANES;

inline Floats largest_lanes(const float* logits, int64_t count) {
    Floats found[4] = {floats(-INFINITY), floats(-INFINITY), floats(-INFINITY), floats(-INFINITY)};
    int64_t column = 0;
    for (; column + 4 * LANES <= count; column += 4 * LANES) {
        for (int part = 0; part < 4; ++part) {
            found[part] = larger(load_floats(logits + column + part * LANES), found[part]);
        }
    }
    for (; column < count; column += LANES) {
        found[0] = larger(load_some(logits + column, count - column), found[0]);
    }
    return larger(larger(found[0], found[1]), larger(found[2], found[3]));
}

Peak peak(const float* logits, int64_t count) {
    Peak found = {-INFINITY, 0};
    int64_t block = -1;
    for (int64_t column = 0; column < count; column += PEAK_BLOCK) {
        const float value = largest(largest_lanes(logits + column, count - column < PEAK_BLOCK ? count - column : PEAK_BLOCK));
        if (value > found.value) {
            found.value = value;
            block = column;
        }
    }
    if (block >= 0) {
        for (found.column = block; logits[found.column] != found.value;) {
            ++found.column;
        }
    }
    return found;
}

bool finite(const float* logits, int64_t count) {
    Ints below = ~Ints{}, above = Ints{};
    for (int64_t column = 0; column < count; column += LANES) {
        const Floats values = load_some(logits + column, count - column);
        below &= values < floats(INFINITY);
        above |= values > floats(-INFINITY);
    }
    return bits_of(below) == ALL_LANES && bits_of(above) != 0;
}

void mask(float* logits, int64_t count, const int32_t* words) {
    const Words lanes = lane_numbers();
    for (int64_t column = 0; column < count; column += LANES) {
        const uint32_t allowed = static_cast<uint32_t>(words[column / 32]) >> (column % 32) & ALL_LANES;
        if (allowed == ALL_LANES) {
            continue;
        }
        const auto forbidden = reinterpret_cast<Ints>((Words{} + allowed) >> lanes & 1) == 0;
        const Floats values = load_some(logits + column, count - column);
        const Floats masked = forbidden ? floats(-INFINITY) : values;
        const int64_t columns = count - column < LANES ? count - column : LANES;
        std::memcpy(logits + column, &masked, static_cast<size_t>(columns) * sizeof(float));
    }
}

double mass(const float* logits, int64_t count, float largest) {
    LongSum sum;
    for (int64_t few = 0; few < count; few += FEW) {
        Floats weights = {};
        for (int64_t column = few; column < few + FEW && column < count; column += LANES) {
            const Floats values = load_some(logits + column, count - column);
            weights += values > floats(-INFINITY) ? decayed(values - largest) : (values == values ? Floats{} : values);
        }
        sum.add(weights);
    }
    return sum.total();
}

int64_t count_above(const float* logits, int64_t count, float value) {
    Ints found = {};
    for (int64_t column = 0; column < count; column += LANES) {
        found -= load_some(logits + column, count - column) > floats(value);
    }
    int64_t total = 0;
    for (int lane = 0; lane < LANES; ++lane) {
        total += found[lane];
    }
    return total;
}
