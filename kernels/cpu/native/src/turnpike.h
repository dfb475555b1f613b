// The C interface of the native CPU kernels: pointers, strides and counts, independent of Python and torch.
//
// bf16 numbers are uint16_t, the upper half of a float32. Counts and strides are in elements unless a name says bytes.
// Every function may be called from any thread, with one computing call at a time. Arguments are not retained.
// Letters in shapes: T tokens of a step, R rows (requests) of a step, H hidden size, Hq and Hkv query and KV heads,
// D head dimension, V vocabulary, N blocks of the KV pool, F width of the MLP.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
extern "C" {

// Changes with every function or struct here; the loader rejects a library with another number.
constexpr int32_t TP_ABI = 16;
int32_t tp_abi();

// The instruction sets that kernels are compiled for. `tp_use_level` sets the highest one to use and returns the one in use.
enum TpLevel : int32_t {
    TP_PORTABLE = 0,
    TP_AVX2 = 1,
    TP_AVX512_BF16 = 2,
    TP_AVX512_FLOAT = 3,  // like AVX512_BF16, but products with bf16 weights and keys use float32 multiply-adds
    TP_AMX = 4,
};
int32_t tp_level();
int32_t tp_use_level(int32_t level);

// Sets the number of computing threads, including the calling one.
void tp_use_threads(int32_t threads);

// --- Weights ---------------------------------------------------------------------------------------------------

// Storage format of a weight [outputs, inputs]. `tp_pack` takes rows of bf16 numbers for the first three, and stored rows
// of blocks for the others: ggml's layouts, and those of zero_points.cpp, float8.cpp and w8a8.cpp.
enum TpFormat : int32_t {
    TP_BF16 = 0,
    TP_INT8 = 1,
    TP_INT4 = 2,
    TP_Q4_0 = 3,
    TP_Q4_1 = 4,
    TP_Q8_0 = 5,
    TP_Q4_K = 6,
    TP_Q6_K = 7,
    // Unsigned integers of 4 or 8 bits with a float32 scale and a zero point for 32, 64 or 128 inputs: see zero_points.cpp.
    TP_U4_32 = 8,
    TP_U4_64 = 9,
    TP_U4_128 = 10,
    TP_U8_32 = 11,
    TP_U8_64 = 12,
    TP_U8_128 = 13,
    TP_Q5_0 = 14,
    TP_Q5_1 = 15,
    TP_Q2_K = 16,
    TP_Q3_K = 17,
    TP_Q5_K = 18,
    TP_IQ4_NL = 19,
    TP_IQ4_XS = 20,
    TP_MXFP4 = 21,
    // 8-bit floats (e4m3) with a float32 scale for 32 or 128 inputs: see float8.cpp.
    TP_E4M3_32 = 22,
    TP_E4M3_128 = 23,
    // Signed bytes with a float32 scale for each output, for inputs that are rounded to signed bytes: see w8a8.cpp.
    TP_W8A8 = 24,
};
constexpr int32_t TP_FORMATS = 25;

// Bytes of the packed weight; -1 if the format does not support the shape. `packed` is aligned to 64 bytes.
int64_t tp_packed_bytes(int32_t format, int64_t outputs, int64_t inputs);
void tp_pack(int32_t format, const void* rows, int64_t outputs, int64_t inputs, void* packed);
// The weights float32 [inputs] of one output, as a product computes with them.
void tp_unpack_row(int32_t format, const void* packed, int64_t outputs, int64_t inputs, int64_t output, float* numbers);

struct TpWeight {
    int32_t format;
    float input_scale;  // of TP_W8A8: inputs are rounded to multiples of it; 0: each row has a scale of its own
    int64_t outputs, inputs;
    const void* packed;
    const float* bias;  // [outputs] or null
};

// Concatenated weights of any formats: the outputs of the first, then those of the second, and so on.
struct TpLinear {
    int64_t count;  // 1 to 3
    TpWeight part[3];
};

// The weights float32 [count, inputs] of the given outputs.
void tp_unpack_rows(const TpLinear* linear, const int64_t* outputs, int64_t count, float* numbers);

// What is done with a product's sums, which are float32 and rounded at most once.
enum TpStore : int32_t {
    TP_STORE_BF16 = 0,
    TP_STORE_FLOAT32 = 1,
    TP_ADD_FLOAT32 = 2,       // y += the product
    TP_STORE_SILU_MUL = 3,    // y bf16 [rows, outputs / 2]: of every 32 outputs, SiLU of the first 16 times the others
    TP_STORE_GELU_MUL = 4,    // the same with GELU in its tanh form
    TP_STORE_CLAMPED_MUL = 5, // the same with the clamped SwiGLU of gpt-oss: see `clamped_swiglu` in kernels/reference.py
};

// y [rows, outputs] from x [rows, inputs] bf16; `x_stride` and `y_stride` are row strides. A row's result
// depends on that row alone, to the bit. `scratch`: `tp_product_scratch_bytes` bytes, aligned to 64.
int64_t tp_product_scratch_bytes(const TpLinear* linear, int64_t rows);
void tp_product(const TpLinear* linear, const uint16_t* x, int64_t x_stride, int64_t rows, int32_t store, void* y,
                int64_t y_stride, void* scratch);

// A product of one part for each of `count` heads, all of one format and number of inputs: y bf16 of each head's x bf16. The
// first head's rows begin at x and y, the next one's `x_of_head` and `y_of_head` numbers on. A row's result is `tp_product`'s.
int64_t tp_head_products_scratch_bytes(const TpLinear* heads, int64_t count, int64_t rows);
void tp_head_products(const TpLinear* heads, int64_t count, const uint16_t* x, int64_t x_stride, int64_t x_of_head, int64_t rows,
                      uint16_t* y, int64_t y_stride, int64_t y_of_head, void* scratch);

// --- Mixtures of experts ------------------------------------------------------------------------------------------

// How tokens choose experts and weigh them: see `kernels.weights.RoutingRule`, and `route` in kernels/reference.py.
struct TpRouting {
    int64_t experts, per_token;
    int32_t sigmoid;      // scores are the sigmoids of logits, else their softmax over all experts
    int32_t renormalise;  // whether a token's shares are divided by their sum
    float scale;          // of shares
    int64_t groups, groups_per_token, group_best;  // groups: 1 for none, or a divisor of `experts`
    const float* choice_bias;  // [experts] or null: added to scores for the choice alone
    const float* share_scale;  // [experts] or null: a factor of each expert's shares
};

// `chosen` and `shares` [rows, per_token] from logits float32 [rows, experts], which are overwritten. Of equal scores the lower
// expert is chosen; scores that are not a number are the lowest. `scratch`: `tp_route_scratch_bytes` bytes, aligned to 64.
int64_t tp_route_scratch_bytes(const TpRouting* rule, int64_t rows);
void tp_route(const TpRouting* rule, float* logits, int64_t stride, int64_t rows, int64_t* chosen, float* shares,
              void* scratch);

// A gated MLP: `gate_up` in blocks of 16 gates and 16 ups, see TP_STORE_SILU_MUL.
struct TpExpert {
    TpLinear gate_up, down;
};

struct TpMixture {
    TpLinear router;  // logits of the experts; one output more is the logit of the shared MLP's weight, which is 1 without
    TpRouting routing;
    const TpExpert* expert;  // [experts]
    const TpExpert* shared;  // of every token, or null
    int32_t activation;      // one of the stores that multiply: TP_STORE_SILU_MUL and its neighbours
    int64_t* expert_tokens;  // [experts]: the tokens that each computes are added
};

// y float32 [rows, H], stored or added to (TP_STORE_FLOAT32, TP_ADD_FLOAT32): the sum of each token's experts times their
// shares in the order of their numbers, and after them the shared MLP. x: bf16 [rows, H], `routed`: the router's input, which
// may be x. Reads experts that are chosen only. A row's result depends on that row alone, to the bit. `scratch`:
// `tp_mixture_scratch_bytes` bytes, aligned to 64.
int64_t tp_mixture_scratch_bytes(const TpMixture* mixture, int64_t rows);
void tp_mixture(const TpMixture* mixture, const uint16_t* x, int64_t x_stride, const uint16_t* routed, int64_t routed_stride,
                int64_t rows, int32_t store, float* y, int64_t y_stride, void* scratch);

// --- Adapters ------------------------------------------------------------------------------------------------------

// Low-rank changes of products (LoRA, Hu et al., arXiv 2106.09685); see `kernels.adapters`. A part adds up (down x) to the
// outputs [first, first + outputs) of a product: down float32 [rank, inputs], up float32 [outputs, rank], finite.
struct TpLowRankPart {
    int64_t first, outputs, rank, inputs;
    const float* down;
    const float* up;
};

// Packs the parts of an adapter's change of a product, of distinct outputs, in bf16 for this linear. `gated_pairs`: of gates
// and ups in blocks of 16 by 16, how many there are of each, which parts count one after the other; 0: of other outputs.
// Returns the ranks of all parts, filled up. Computes in the calling thread alone, at any time. `packed`:
// `tp_low_rank_bytes` bytes, aligned to 64.
int64_t tp_low_rank_bytes(const TpLinear* linear, int64_t gated_pairs, const TpLowRankPart* parts, int64_t count);
int64_t tp_pack_low_rank(const TpLinear* linear, int64_t gated_pairs, const TpLowRankPart* parts, int64_t count, void* packed);

// The products of a layer that adapters change.
enum TpAdapted : int32_t {
    TP_ADAPTED_QKV = 0,
    TP_ADAPTED_OUTPUT = 1,
    TP_ADAPTED_GATE_UP = 2,
    TP_ADAPTED_DOWN = 3,
};
constexpr int32_t TP_ADAPTED = 4;

struct TpAdapter {
    const void* const* change;  // packed, of the product `TP_ADAPTED` layer + TpAdapted; null: unchanged
};

// The adapters of a step's rows. `rank`: at least that of every packed change, a multiple of 16.
struct TpAdapters {
    int64_t slots, rank;
    const TpAdapter* const* slot;  // [slots]: null where no row has that slot
    const int64_t* of_row;         // [R]: the slot of each row's adapter, or -1
};

// --- A step ----------------------------------------------------------------------------------------------------

// The rows of a step; see `kernels.ops.AttentionMetadata`. Row i has `query_lens[i]` tokens, the last ones of the
// `context_lens[i]` tokens of its sequence; rows are adjacent. `block_tables` [R, block_table_stride].
struct TpRows {
    int64_t rows, tokens;
    const int64_t* query_lens;
    const int64_t* context_lens;
    const int64_t* block_tables;
    int64_t block_table_stride;
    const TpAdapters* adapters;  // null: no row has one
};

// As `tp_product`, of the tokens of the rows, which have adapters: `product` is the number of the change. It is added to the
// float32 sums before they are stored. Rows without an adapter have the bits of `tp_product`. A row's result depends on that row
// and its adapter alone, to the bit. `scratch`: `tp_adapted_product_scratch_bytes` bytes, aligned to 64.
int64_t tp_adapted_product_scratch_bytes(const TpLinear* linear, const TpRows* rows);
void tp_adapted_product(const TpLinear* linear, const TpRows* rows, int64_t product, const uint16_t* x, int64_t x_stride,
                        int32_t store, void* y, int64_t y_stride, void* scratch);

// Storage format of a layer's KV: blocks of 16 tokens. Slots past a row's context are not used.
enum TpKv : int32_t {
    TP_KV_BF16 = 0,  // [N, 16, 2, Hkv, D]
    TP_KV_INT8 = 1,  // of each block [16, 2, Hkv, D] int8 from -127 to 127, then scales [Hkv, 2, 16] bf16: a number
                     // times the scale of its head and token is the value; a NaN scale if it was not finite
                     // of keys only, both with 1 in place of 2
};

struct TpHeads {
    int64_t query_heads, kv_heads, head_dim;
    float norm_eps;
    int32_t kv;  // TpKv
    const float* query_norm;  // [D] each, or null: RMS norm weights applied to each head before rotation
    const float* key_norm;
    const float* value_norm;  // [D] or null: of each head's values, which are not rotated
    int64_t rotary_half;      // pairs (i, i + half) rotate; dimensions past 2 x half are unchanged
    const float* cos;         // [positions, rotary_half]
    const float* sin;
    float score_scale;        // of scores; 0: 1/sqrt(D)
    float softcap;            // scores become softcap x tanh(score / softcap); 0: they stay as they are
    const float* sinks;       // [Hq] or null: a scaled score of each head that only adds to the softmax's denominator
    int64_t kv_block_bytes;   // from a block of the layer's KV to the next; 0: they are dense
    int64_t keys_only;        // 1: keys, as they are stored, are the values, too, and are stored once; 0: values are stored
};

// qkv bf16 [T, (Hq + 2 Hkv) D], or [T, (Hq + Hkv) D] of keys only, rows `qkv_stride` apart: norms and rotates queries and keys
// in place, norms values, and stores keys and values in `kv_layer` at their tokens' slots. Without KV heads, of queries alone.
void tp_rotate_and_store(const TpHeads* heads, const TpRows* rows, uint16_t* qkv, int64_t qkv_stride, void* kv_layer);

// Causal attention of the queries in qkv over the paged KV; out bf16 [T, Hq D]. `window`: a token at p attends to
// (p - window, p]; 0: no window. Softmax and sums are float32. A token's result depends on
// its own sequence alone, to the bit: not on other rows, on how its row is chunked, or on threads. Scratch of -1 bytes: the
// heads are not supported (an odd dimension or more than 576, or groups of different sizes).
int64_t tp_attend_scratch_bytes(const TpHeads* heads, const TpRows* rows);
void tp_attend(const TpHeads* heads, const TpRows* rows, const uint16_t* qkv, int64_t qkv_stride, const void* kv_layer,
               int64_t window, uint16_t* out, int64_t out_stride, void* scratch);

// x float32 [T, width] to bf16 [T, width]: x / rms(x) times the weight, computed in float32, rounded once.
void tp_rms_norm(const float* x, int64_t x_stride, int64_t rows, int64_t width, const float* weight, float eps, uint16_t* y,
                 int64_t y_stride);

// A gated delta net (Yang et al., arXiv 2412.06464) with C = 2 Hk Dk + Hv Dv channels; see `kernels.delta`.
struct TpDelta {
    int64_t key_heads, value_heads, key_dim, value_dim, taps;  // dimensions are multiples of 16, at most 512
    int64_t tiled;             // whether value head v has key head v % Hk, else v / (Hv / Hk)
    const float* convolution;  // [taps, C]
    const float* decay_rate;   // [Hv]: -exp(A)
    const float* step_bias;    // [Hv]
    const float* norm;         // [Dv]
    float norm_eps;
};

// Row i has tokens `first[i]` to `first[i] + tokens[i]`. Its state is `before[i]`, null for zero, and is written to `after[i]`,
// which may be the same. The state after the first `save_tokens[j]` tokens of row `save_rows[j]` is written to `save_to[j]`;
// saves are ordered by row and tokens. A state is float32: inputs of the convolution [taps - 1, C], memory [Hv, Dk, Dv].
struct TpDeltaRows {
    int64_t rows;
    const int64_t* first;
    const int64_t* tokens;
    const float* const* before;
    float* const* after;
    int64_t saves;
    const int64_t* save_rows;
    const int64_t* save_tokens;
    float* const* save_to;
};

// Between the projections: mixed float32 [T, C + Hv Dv], queries, keys, values and output gates; gates float32 [T, 2 Hv], beta
// and decay; out bf16 [T, Hv Dv], or null to advance the states alone. A token's result depends on its own sequence alone,
// to the bit: not on other rows, on how its row is chunked, or on threads.
int32_t tp_takes_delta(const TpDelta* net);
void tp_gated_delta(const TpDelta* net, const TpDeltaRows* rows, const float* mixed, int64_t mixed_stride, const float* gates,
                    int64_t gates_stride, uint16_t* out, int64_t out_stride);
// y bf16 [rows, width] times the sigmoid of gate float32 [rows, width].
void tp_sigmoid_mul(const float* gate, int64_t gate_stride, int64_t rows, int64_t width, uint16_t* y, int64_t y_stride);

struct TpLayer {
    const float* attention_norm;  // [H]
    const float* mlp_norm;
    TpLinear qkv, output;
    TpLinear gate_up;  // in blocks of 16 gates and 16 ups: see TP_STORE_SILU_MUL
    TpLinear down;
    const TpMixture* mixture;  // in place of gate_up and down, or null
    const float* query_norm;  // [D] or null
    const float* key_norm;
    int64_t whole_norms;  // not 0: these are [Hq D] and [Hkv D], of all heads at once, and read the unrounded sums of qkv
    int64_t window;  // 0: none
    int64_t kv_group, kv_place;  // its KV: which block tables, and which layer of their blocks
};

struct TpModel {
    int64_t hidden, query_heads, kv_heads, head_dim, vocab, layers;
    float norm_eps;
    int32_t kv;  // TpKv
    const TpLayer* layer;
    const float* final_norm;
    TpWeight embedding;  // packed [V, H]; may share its memory with the head
    int64_t rotary_half;
    const float* cos;
    const float* sin;
};

// The block tables of the layers of one group: see TpRows.
struct TpTables {
    const int64_t* block_tables;
    int64_t block_table_stride;
};

// Hidden states bf16 [W, H] of a step's tokens, normed for the head: of row i's last `wanted[i]` >= 1 tokens, rows adjacent;
// null: of all tokens. Writes the KV of all tokens into `kv`, with layers of a block `kv_layer_bytes` apart, by the `tables` of
// each layer's group; those of `rows` are not used. The residual stream is float32. Scratch of -1 bytes: attention does not
// support the heads.
int64_t tp_forward_scratch_bytes(const TpModel* model, const TpRows* rows, const TpTables* tables, const int64_t* wanted);
void tp_forward(const TpModel* model, const TpRows* rows, const TpTables* tables, const int64_t* wanted,
                const int64_t* token_ids, void* kv, int64_t kv_layer_bytes, uint16_t* hidden, void* scratch);

// --- Sampling: defined by kernels/reference.py -------------------------------------------------------------------

// As `kernels.ops.SamplingColumns`; [R] each, keys [R, 2].
struct TpSampling {
    const float* inverse_temperature;
    const float* noise_scale;
    const int64_t* top_k;
    const float* top_p;
    const float* min_p;
    const int64_t* keys;
};

// Samples a token for each row of logits float32 [R, columns]. Column i is token `token_ids[i]` (int64, ascending; null: i).
int64_t tp_sample_scratch_bytes(int64_t rows, int64_t columns);
void tp_sample(const float* logits, int64_t stride, int64_t rows, int64_t columns, const int64_t* token_ids,
               const TpSampling* sampling, int64_t* tokens, void* scratch);
// Sets logits to -inf where the token's bit of int32 [R, ceil(columns / 32)] is 0.
void tp_mask_logits(float* logits, int64_t stride, int64_t rows, int64_t columns, const int32_t* bitmask,
                    int64_t bitmask_stride);
// As `kernels.host.Penalties`. Lines are `line_stride` apart. `token_columns`, int32 [vocabulary]: the logits' column of
// each token, or -1; null: column i is token i.
struct TpPenalties {
    const int32_t* tokens;
    const int32_t* times;
    int64_t line_stride;
    const int64_t* lines;
    const int64_t* lengths;
    const float* repetition;
    const float* presence;
    const float* frequency;
    int64_t drafts;
    const int64_t* draft_rows;
    const int64_t* draft_tokens;
    const int32_t* draft_times;
    const int32_t* token_columns;
};

// Penalises logits float32 [R, columns] in place. `draft_logits`: scratch for one number for each draft.
void tp_penalise(float* logits, int64_t stride, int64_t rows, int64_t columns, const TpPenalties* penalties,
                 float* draft_logits);
// 1 for rows with a finite maximum, else 0.
void tp_finite_rows(const float* logits, int64_t stride, int64_t rows, int64_t columns, uint8_t* finite);
// log-sum-exp of each row, its token's log-probability, and that token's rank from 1.
void tp_token_logprobs(const float* logits, int64_t stride, int64_t rows, int64_t columns, const int64_t* tokens,
                       float* normalisers, float* logprobs, int64_t* ranks);
}
#pragma GCC visibility pop
