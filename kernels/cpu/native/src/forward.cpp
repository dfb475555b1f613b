// A step through all layers, as in `Transformer.forward`, in one call.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "adapters/adapted.h"
#include "threads/team.h"
#include "turnpike.h"

namespace {

constexpr int64_t ALIGNMENT = 64;
constexpr int64_t EMBEDDED_TOKENS = 4;  // that one thread takes at a time
constexpr int64_t ROUNDED_TOKENS = 16;

int64_t up_to(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

int64_t outputs_of(const TpLinear& linear) {
    int64_t outputs = 0;
    for (int64_t part = 0; part < linear.count; ++part) {
        outputs += linear.part[part].outputs;
    }
    return outputs;
}

int64_t inputs_of(const TpLinear& linear) { return linear.part[0].inputs; }

int64_t inputs_of(const TpMixture* mixture) {
    if (mixture == nullptr) {
        return 0;
    }
    int64_t inputs = inputs_of(mixture->router);
    for (int64_t expert = 0; expert < mixture->routing.experts; ++expert) {
        inputs = std::max(inputs, inputs_of(mixture->expert[expert].gate_up));
    }
    return mixture->shared == nullptr ? inputs : std::max(inputs, inputs_of(mixture->shared->gate_up));
}

// Columns of a step's activations. A weight may have one input more, to be even in number: that input is zero.
struct Widths {
    int64_t residual, normed, qkv = 0, attended = 0, inner = 0;
    bool has_wide_qkv = false;

    explicit Widths(const TpModel& model)
        : residual(std::max(model.hidden, model.embedding.inputs)), normed(model.hidden) {
        for (int64_t index = 0; index < model.layers; ++index) {
            const TpLayer& layer = model.layer[index];
            normed = std::max({normed, inputs_of(layer.qkv), inputs_of(layer.gate_up), inputs_of(layer.mixture)});
            qkv = std::max(qkv, outputs_of(layer.qkv));
            has_wide_qkv = has_wide_qkv || layer.whole_norms != 0;
            attended = std::max(attended, inputs_of(layer.output));
            inner = std::max(inner, outputs_of(layer.gate_up) / 2);
        }
    }
};

// Offsets in bytes, in the caller's scratch memory, of what a step keeps between its phases.
struct Arena {
    int64_t residual, normed, qkv, wide_qkv, attended, activated;
    int64_t scratch;  // of whichever phase is running

    Arena(const Widths& widths, int64_t tokens) {
        int64_t end = 0;
        const auto take = [&end](int64_t bytes) { return std::exchange(end, end + up_to(bytes, ALIGNMENT)); };
        residual = take(4 * tokens * widths.residual);
        normed = take(2 * tokens * widths.normed);
        qkv = take(2 * tokens * widths.qkv);
        wide_qkv = take(widths.has_wide_qkv ? 4 * tokens * widths.qkv : 0);
        attended = take(2 * tokens * widths.attended);
        activated = take(2 * tokens * widths.inner);
        scratch = end;
    }
};

const TpLinear& linear_of(const TpLayer& layer, TpAdapted adapted) {
    const TpLinear* const linears[] = {&layer.qkv, &layer.output, &layer.gate_up, &layer.down};
    return *linears[adapted];
}

TpHeads heads_of(const TpModel& model, const TpLayer& layer) {
    const bool whole = layer.whole_norms != 0;
    const float *query_norm = whole ? nullptr : layer.query_norm, *key_norm = whole ? nullptr : layer.key_norm;
    return {model.query_heads, model.kv_heads, model.head_dim, model.norm_eps,    model.kv,  query_norm, key_norm, nullptr,
            model.rotary_half, model.cos,      model.sin,      0.0f,              0.0f,      nullptr,    0, 0};
}

// The same rows with the block tables of a layer.
TpRows with_tables(const TpRows& rows, const TpTables& tables) {
    TpRows own = rows;
    own.block_tables = tables.block_tables;
    own.block_table_stride = tables.block_table_stride;
    return own;
}

// The same rows, reduced to the last `wanted` tokens of each.
TpRows only(const TpRows& rows, const int64_t* wanted) {
    TpRows kept = rows;
    kept.query_lens = wanted;
    kept.tokens = std::accumulate(wanted, wanted + rows.rows, int64_t{0});
    return kept;
}

struct Embedding {
    const TpWeight* weight;
    const int64_t* token_ids;
    float* residual;
    int64_t residual_stride;
};

void embed_range(const void* argument, int64_t first, int64_t last) {
    const auto& work = *static_cast<const Embedding*>(argument);
    const TpWeight& weight = *work.weight;
    for (int64_t token = first; token < last; ++token) {
        tp_unpack_row(weight.format, weight.packed, weight.outputs, weight.inputs, work.token_ids[token],
                      work.residual + token * work.residual_stride);
    }
}

struct Rounding {
    const float* numbers;
    uint16_t* rounded;
    int64_t stride, width;  // of both
};

// To the nearest bf16 number, of two the even one.
uint16_t rounded(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    const bool is_nan = number != number;
    return static_cast<uint16_t>(is_nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void round_range(const void* argument, int64_t first, int64_t last) {
    const auto& work = *static_cast<const Rounding*>(argument);
    for (int64_t token = first; token < last; ++token) {
        std::transform(work.numbers + token * work.stride, work.numbers + token * work.stride + work.width,
                       work.rounded + token * work.stride, rounded);
    }
}

void zero_columns(uint16_t* numbers, int64_t tokens, int64_t width, int64_t used) {
    if (used < width) {
        std::memset(numbers, 0, 2 * tokens * width);
    }
}

class Step {
  public:
    Step(const TpModel& model, const TpRows& rows, void* scratch)
        : model_(model), rows_(rows), widths_(model) {
        const Arena arena(widths_, rows.tokens);
        auto* base = static_cast<char*>(scratch);
        residual_ = reinterpret_cast<float*>(base + arena.residual);
        normed_ = reinterpret_cast<uint16_t*>(base + arena.normed);
        qkv_ = reinterpret_cast<uint16_t*>(base + arena.qkv);
        wide_qkv_ = reinterpret_cast<float*>(base + arena.wide_qkv);
        attended_ = reinterpret_cast<uint16_t*>(base + arena.attended);
        activated_ = reinterpret_cast<uint16_t*>(base + arena.activated);
        scratch_ = base + arena.scratch;
        zero_columns(normed_, rows.tokens, widths_.normed, model.hidden);
        zero_columns(attended_, rows.tokens, widths_.attended, model.query_heads * model.head_dim);
    }

    void embed(const int64_t* token_ids) {
        const Embedding embedding{&model_.embedding, token_ids, residual_, widths_.residual};
        tp::run(embed_range, &embedding, rows_.tokens, EMBEDDED_TOKENS);
    }

    // From here on KV is read and written by these block tables.
    void use(const TpTables& tables) { rows_ = with_tables(rows_, tables); }

    void store_kv(const TpLayer& layer, void* kv_layer) {
        norm(layer.attention_norm);
        if (layer.whole_norms != 0) {
            project_and_norm(layer);
        } else {
            product(layer, TP_ADAPTED_QKV, normed_, widths_.normed, TP_STORE_BF16, qkv_, widths_.qkv);
        }
        const TpHeads heads = heads_of(model_, layer);
        tp_rotate_and_store(&heads, &rows_, qkv_, widths_.qkv, kv_layer);
    }

    // From here on the step consists of each row's last `wanted` tokens.
    void keep(const int64_t* wanted) {
        int64_t end = 0, kept = 0;
        for (int64_t row = 0; row < rows_.rows; ++row) {
            end += rows_.query_lens[row];
            for (int64_t token = end - wanted[row]; token < end; ++token, ++kept) {
                std::memmove(residual_ + kept * widths_.residual, residual_ + token * widths_.residual, 4 * widths_.residual);
                std::memmove(qkv_ + kept * widths_.qkv, qkv_ + token * widths_.qkv, 2 * widths_.qkv);
            }
        }
        rows_ = only(rows_, wanted);
    }

    void attend(const TpLayer& layer, const void* kv_layer) {
        const TpHeads heads = heads_of(model_, layer);
        tp_attend(&heads, &rows_, qkv_, widths_.qkv, kv_layer, layer.window, attended_, widths_.attended, scratch_);
        product(layer, TP_ADAPTED_OUTPUT, attended_, widths_.attended, TP_ADD_FLOAT32, residual_, widths_.residual);
    }

    void feed_forward(const TpLayer& layer) {
        norm(layer.mlp_norm);
        if (layer.mixture != nullptr) {
            tp_mixture(layer.mixture, normed_, widths_.normed, normed_, widths_.normed, rows_.tokens, TP_ADD_FLOAT32, residual_,
                       widths_.residual, scratch_);
            return;
        }
        product(layer, TP_ADAPTED_GATE_UP, normed_, widths_.normed, TP_STORE_SILU_MUL, activated_, widths_.inner);
        product(layer, TP_ADAPTED_DOWN, activated_, widths_.inner, TP_ADD_FLOAT32, residual_, widths_.residual);
    }

    void finish(uint16_t* hidden) {
        tp_rms_norm(residual_, widths_.residual, rows_.tokens, model_.hidden, model_.final_norm, model_.norm_eps, hidden,
                    model_.hidden);
    }

  private:
    void norm(const float* weight) {
        tp_rms_norm(residual_, widths_.residual, rows_.tokens, model_.hidden, weight, model_.norm_eps, normed_,
                    widths_.normed);
    }

    // qkv with norms of all heads at once.
    void project_and_norm(const TpLayer& layer) {
        const int64_t stride = widths_.qkv, tokens = rows_.tokens;
        product(layer, TP_ADAPTED_QKV, normed_, widths_.normed, TP_STORE_FLOAT32, wide_qkv_, stride);
        int64_t first = 0;
        const std::pair<const float*, int64_t> norms[] = {{layer.query_norm, model_.query_heads}, {layer.key_norm, model_.kv_heads}};
        for (const auto& [weight, heads] : norms) {
            const int64_t width = heads * model_.head_dim;
            tp_rms_norm(wide_qkv_ + first, stride, tokens, width, weight, model_.norm_eps, qkv_ + first, stride);
            first += width;
        }
        const Rounding values{wide_qkv_ + first, qkv_ + first, stride, model_.kv_heads * model_.head_dim};
        tp::run(round_range, &values, tokens, ROUNDED_TOKENS);
    }

    void product(const TpLayer& layer, TpAdapted adapted, const uint16_t* x, int64_t x_stride, TpStore store, void* y,
                 int64_t y_stride) {
        const TpLinear& linear = linear_of(layer, adapted);
        if (rows_.adapters == nullptr) {
            tp_product(&linear, x, x_stride, rows_.tokens, store, y, y_stride, scratch_);
            return;
        }
        const int64_t number = TP_ADAPTED * (&layer - model_.layer) + adapted;
        tp::adapted_product(linear, rows_, number, x, x_stride, store, y, y_stride, scratch_);
    }

    const TpModel& model_;
    TpRows rows_;
    const Widths widths_;
    float* residual_;  // [T, widths.residual]
    float* wide_qkv_;  // [T, widths.qkv] of layers with whole norms
    uint16_t *normed_, *qkv_, *attended_, *activated_;
    char* scratch_;
};

}  // namespace

extern "C" int64_t tp_forward_scratch_bytes(const TpModel* model, const TpRows* rows, const TpTables* tables,
                                            const int64_t* wanted) {
    const TpHeads heads = heads_of(*model, model->layer[0]);  // of one shape in all layers
    int64_t phase = 0, groups = 0;
    for (int64_t index = 0; index < model->layers; ++index) {
        const TpLayer& layer = model->layer[index];
        if (layer.kv_group >= groups) {  // which rows share blocks differs between groups
            groups = layer.kv_group + 1;
            const TpRows all = with_tables(*rows, tables[layer.kv_group]);
            const TpRows kept = wanted == nullptr ? all : only(all, wanted);  // fewer tasks may be cut finer
            const int64_t bytes = std::max(tp_attend_scratch_bytes(&heads, &all), tp_attend_scratch_bytes(&heads, &kept));
            if (bytes < 0) {
                return -1;
            }
            phase = std::max(phase, bytes);
        }
        for (const TpLinear* linear : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) {
            phase = std::max(phase, rows->adapters == nullptr ? tp_product_scratch_bytes(linear, rows->tokens)
                                                              : tp::adapted_product_scratch_bytes(*linear, *rows));
        }
        if (layer.mixture != nullptr) {
            phase = std::max(phase, tp_mixture_scratch_bytes(layer.mixture, rows->tokens));
        }
    }
    return Arena(Widths(*model), rows->tokens).scratch + phase;
}

extern "C" void tp_forward(const TpModel* model, const TpRows* rows, const TpTables* tables, const int64_t* wanted,
                           const int64_t* token_ids, void* kv, int64_t kv_layer_bytes, uint16_t* hidden, void* scratch) {
    if (rows->tokens == 0) {  // there is no scratch either
        return;
    }
    Step step(*model, *rows, scratch);
    step.embed(token_ids);
    for (int64_t index = 0; index < model->layers; ++index) {
        const TpLayer& layer = model->layer[index];
        char* kv_layer = static_cast<char*>(kv) + layer.kv_place * kv_layer_bytes;
        step.use(tables[layer.kv_group]);
        step.store_kv(layer, kv_layer);
        if (wanted != nullptr && index + 1 == model->layers) {
            step.keep(wanted);
        }
        step.attend(layer, kv_layer);
        step.feed_forward(layer);
    }
    step.finish(hidden);
}
