// One forward step: the layers of a stage, over the rows of a batch. No allocation, no Python.
#pragma once

#include <cstdlib>
#include <memory>

#include "attention.h"
#include "linear.h"
#include "threads.h"

namespace {

struct Layer {
    const float* attention_norm;
    const float* ffn_norm;
    Matrix query, key, value, attention_output, gate, up, down;
};

struct Model {
    int64_t hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, context_length, num_layers;
    float epsilon;
    bool has_float32_kv;
    int64_t num_blocks;
    void* pool;             // [blocks][layers][kv heads]{K, V}
    const float* cosine;    // [context_length][head_dim / 2]
    const float* sine;
    std::vector<Layer> layers;
    int64_t vocab_size;  // 0 where another stage has the output
    const float* output_norm;
    Matrix output;
};

// Consecutive rows of one sequence, from `position` on.
struct Slice {
    int32_t row_start, num_rows, position, table_start;
};

struct Batch {
    int64_t num_rows;
    float* hidden;  // [rows][hidden_size], changed in place
    const Slice* slices;
    int64_t num_slices;
    const int32_t* tables;
    int64_t table_size;  // of all together
    const int32_t* logit_rows;
    int64_t num_logit_rows;
    float* logits;  // [logit rows][outputs]
};

// The processor's float settings as the arithmetic needs them: nearest, subnormals kept. Put back at the end.
class FloatMode {
  public:
#if defined(__x86_64__)
    FloatMode() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(0x1f80); }
    ~FloatMode() { __builtin_ia32_ldmxcsr(saved_); }

  private:
    unsigned saved_;
#endif
};

// Zeros, from a multiple of 64 bytes on; the system gives the memory when it is first written.
template <class T>
class Buffer {
  public:
    explicit Buffer(int64_t size) : memory_(std::calloc(static_cast<size_t>(size) * sizeof(T) + 64, 1), &std::free) {
        if (!memory_) throw std::bad_alloc();
    }
    T* get() const {
        return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory_.get()) + 63) / 64 * 64);
    }

  private:
    std::unique_ptr<void, decltype(&std::free)> memory_;
};

// Room for the rows of one tile.
struct Workspace {
    Buffer<float> normed, query, key, value, attended, gate, up, scales, scaled_sums, scaled_half_sums;
    Buffer<int8_t> codes;
    Buffer<int32_t> sums, half_sums;
    Buffer<float> queries, scores;  // of each thread
    int64_t queries_size, scores_size;

    Workspace(const Model& m, int threads)
        : normed(ROW_TILE * m.hidden_size),
          query(ROW_TILE * m.num_heads * m.head_dim),
          key(ROW_TILE * m.num_kv_heads * m.head_dim),
          value(ROW_TILE * m.num_kv_heads * m.head_dim),
          attended(ROW_TILE * m.num_heads * m.head_dim),
          gate(ROW_TILE * m.intermediate_size),
          up(ROW_TILE * m.intermediate_size),
          scales(ROW_STRIDE * max_blocks(m)),
          scaled_sums(ROW_STRIDE * max_blocks(m)),
          scaled_half_sums(2 * ROW_STRIDE * max_blocks(m)),
          codes(ROW_STRIDE * max_blocks(m) * BLOCK),
          sums(ROW_STRIDE * max_blocks(m)),
          half_sums(2 * ROW_STRIDE * max_blocks(m)),
          queries(threads * m.head_dim * MAX_QUERY_ROWS),
          scores(threads * scores_of(m)),
          queries_size(m.head_dim * MAX_QUERY_ROWS),
          scores_size(scores_of(m)) {}

    static int64_t max_blocks(const Model& m) {
        return (std::max({m.hidden_size, m.num_heads * m.head_dim, m.intermediate_size}) + BLOCK - 1) / BLOCK;
    }
    static int64_t scores_of(const Model& m) { return (m.context_length + KV_BLOCK) * MAX_QUERY_ROWS; }

    Activations activations(int64_t size) {
        return {(size + BLOCK - 1) / BLOCK, codes.get(), scales.get(), sums.get(), half_sums.get(),
                scaled_sums.get(), scaled_half_sums.get()};
    }
};

struct Product {
    const Matrix& matrix;
    Output out;
};

class Decoder {
  public:
    Decoder(Model model, int threads) : model_(std::move(model)), threads_(threads), space_(model_, threads) {
        // For the workers' whole lives; the caller's own mode is put back after every step.
        threads_.each([this](int thread) {
            if (thread > 0) static thread_local FloatMode mode;
#if defined(STAGEWIRE_AMX)
            panel_room(Workspace::max_blocks(model_));
#endif
        });
    }

    // Why a batch cannot be computed, or null: a wrong row, block or position would read memory at random.
    const char* fault(const Batch& batch) const {
        int64_t rows = 0;
        for (const Slice* s = batch.slices; s < batch.slices + batch.num_slices; s++) {
            if (s->row_start != rows || s->num_rows < 1 || s->position < 0) return "rows that do not follow each other";
            rows += s->num_rows;
            const int64_t end = int64_t{s->position} + s->num_rows, blocks = (end + KV_BLOCK - 1) / KV_BLOCK;
            if (end > model_.context_length) return "a position beyond the context, or the pool";
            if (s->table_start < 0 || s->table_start + blocks > batch.table_size) return "a block table that ends early";
            for (const int32_t* block = batch.tables + s->table_start, *last = block + blocks; block < last; block++)
                if (*block < 0 || *block >= model_.num_blocks) return "a block outside the pool";
        }
        if (rows != batch.num_rows) return "rows without a sequence, or a sequence without rows";
        if (batch.num_logit_rows > 0 && model_.vocab_size == 0) return "logits of a stage that has none";
        for (int64_t i = 0; i < batch.num_logit_rows; i++)
            if (batch.logit_rows[i] < 0 || batch.logit_rows[i] >= rows) return "logits of a row outside the batch";
        return nullptr;
    }

    void forward(const Batch& batch) {
        FloatMode mode;
        for (int64_t layer = 0; layer < model_.num_layers; layer++)
            for (int64_t row = 0; row < batch.num_rows; row += ROW_TILE) {
                const int64_t rows = std::min(ROW_TILE, batch.num_rows - row);
                if (model_.has_float32_kv) attention<float>(layer, batch, row, rows);
                else attention<uint16_t>(layer, batch, row, rows);
                feed_forward(model_.layers[static_cast<size_t>(layer)], batch, row, rows);
            }
        for (int64_t row = 0; row < batch.num_logit_rows; row += ROW_TILE)
            logits(batch, row, std::min(ROW_TILE, batch.num_logit_rows - row));
    }

  private:
    Rows rows_of(const float* floats, int64_t size, int64_t rows) {
        return {rows, floats, size, space_.activations(size)};
    }

    // Products of the same rows, their panels shared out together.
    void multiply(const Rows& x, std::initializer_list<Product> products) {
        int64_t total = 0;
        for (const Product& product : products) total += product.matrix.num_panels();
        threads_.split(total, [&](int64_t from, int64_t to) {
            int64_t start = 0;
            for (const Product& product : products) {
                const int64_t panels = product.matrix.num_panels();
                const int64_t first = std::max(from - start, int64_t{0}), last = std::min(to - start, panels);
                if (first < last) linear(product.matrix, x, first, last, product.out);
                start += panels;
            }
        });
    }

    Rows norm(const float* hidden, const float* weight, int64_t rows) {
        const int64_t size = model_.hidden_size;
        const Rows x = rows_of(space_.normed.get(), size, rows);
        threads_.split(rows, [&](int64_t from, int64_t to) {
            for (int64_t r = from; r < to; r++) {
                float* out = space_.normed.get() + r * size;
                rms_norm(hidden + r * size, weight, size, model_.epsilon, out);
                quantize_row(out, size, x.quantized, r);
            }
        });
        return x;
    }

    template <class Kv>
    void attention(int64_t index, const Batch& batch, int64_t row, int64_t rows) {
        const Model& m = model_;
        const Layer& layer = m.layers[static_cast<size_t>(index)];
        const int64_t kv_size = m.num_kv_heads * m.head_dim, size = m.num_heads * m.head_dim;
        float* hidden = batch.hidden + row * m.hidden_size;
        const Rows x = norm(hidden, layer.attention_norm, rows);
        multiply(x, {{layer.query, {space_.query.get(), size, false}},
                     {layer.key, {space_.key.get(), kv_size, false}},
                     {layer.value, {space_.value.get(), kv_size, false}}});
        const int64_t layer_size = 2 * KV_BLOCK * kv_size;
        const KvLayer<Kv> kv{static_cast<Kv*>(m.pool) + index * layer_size, m.num_layers * layer_size, m.head_dim};
        threads_.split(rows, [&](int64_t from, int64_t to) { store_rows(kv, batch, row, row + from, row + to); });
        threads_.each([&](int thread) { attend_all(kv, batch, row, rows, thread); });
        const Rows attended = rows_of(space_.attended.get(), size, rows);
        threads_.split(rows, [&](int64_t from, int64_t to) {
            for (int64_t r = from; r < to; r++) quantize_row(attended.floats + r * size, size, attended.quantized, r);
        });
        multiply(attended, {{layer.attention_output, {hidden, m.hidden_size, true}}});
    }

    // Rotates queries and keys of the rows [from, to), and puts keys and values into their blocks.
    template <class Kv>
    void store_rows(const KvLayer<Kv>& kv, const Batch& batch, int64_t tile_start, int64_t from, int64_t to) {
        for (int64_t s = 0; s < batch.num_slices; s++) {
            const Slice& slice = batch.slices[s];
            const int64_t end = std::min<int64_t>(slice.row_start + slice.num_rows, to);
            for (int64_t r = std::max<int64_t>(slice.row_start, from); r < end; r++) {
                const int64_t position = slice.position + r - slice.row_start;
                store_row(kv, batch.tables[slice.table_start + position / KV_BLOCK], position, r - tile_start);
            }
        }
    }

    template <class Kv>
    void store_row(const KvLayer<Kv>& kv, int64_t block, int64_t position, int64_t r) {
        const Model& m = model_;
        const int64_t size = m.head_dim, half = size / 2, slot = position % KV_BLOCK;
        const float *cosine = m.cosine + position * half, *sine = m.sine + position * half;
        float* query = space_.query.get() + r * m.num_heads * size;
        const F scale = set(1.0f / std::sqrt(static_cast<float>(size)));
        for (int64_t h = 0; h < m.num_heads; h++) rotate(query + h * size, cosine, sine, half);
        for (int64_t i = 0; i < m.num_heads * size; i += LANES) store(query + i, mul(load(query + i), scale));
        for (int64_t h = 0; h < m.num_kv_heads; h++) {
            float* key = space_.key.get() + (r * m.num_kv_heads + h) * size;
            const float* value = space_.value.get() + (r * m.num_kv_heads + h) * size;
            rotate(key, cosine, sine, half);
            Kv *keys = kv.keys(block, h), *values = kv.values(block, h) + slot * size;
            for (int64_t e = 0; e < size; e += LANES) {
                Kv lane[LANES];
                store_kv(lane, load(key + e));
                for (int64_t i = 0; i < LANES; i++) keys[(e + i) * KV_BLOCK + slot] = lane[i];
                store_kv(values + e, load(value + e));
            }
        }
    }

    // Every `count`-th query tile of the rows, for this thread.
    template <class Kv>
    void attend_all(const KvLayer<Kv>& kv, const Batch& batch, int64_t row, int64_t rows, int thread) {
        const Model& m = model_;
        const int64_t group = m.num_heads / m.num_kv_heads;
        const int64_t heads = std::min<int64_t>(group, MAX_QUERY_ROWS), tokens = MAX_QUERY_ROWS / heads;
        int64_t turn = 0;
        for (int64_t s = 0; s < batch.num_slices; s++) {
            const Slice& slice = batch.slices[s];
            const int64_t end = std::min<int64_t>(slice.row_start + slice.num_rows, row + rows);
            for (int64_t r = std::max<int64_t>(slice.row_start, row); r < end; r += tokens)
                for (int64_t head = 0; head < m.num_heads; head += std::min(heads, group - head % group))
                    if (turn++ % threads_.count() == thread)
                        attend_tile(kv, batch, slice, row, r, std::min(tokens, end - r), head,
                                    std::min(heads, group - head % group), thread);
        }
    }

    template <class Kv>
    void attend_tile(const KvLayer<Kv>& kv, const Batch& batch, const Slice& slice, int64_t tile_start, int64_t row,
                     int64_t tokens, int64_t head, int64_t heads, int thread) {
        const Model& m = model_;
        QueryTile tile;
        tile.block_table = batch.tables + slice.table_start;
        tile.kv_head = head / (m.num_heads / m.num_kv_heads);
        int count = 0;
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t h = 0; h < heads; h++, count++) {
                const int64_t at = ((row - tile_start + t) * m.num_heads + head + h) * m.head_dim;
                tile.query[count] = space_.query.get() + at;
                tile.out[count] = space_.attended.get() + at;
                tile.visible[count] = slice.position + row - slice.row_start + t + 1;
            }
        attend_rows(count, kv, tile, space_.queries.get() + thread * space_.queries_size,
                    space_.scores.get() + thread * space_.scores_size);
    }

    void feed_forward(const Layer& layer, const Batch& batch, int64_t row, int64_t rows) {
        const int64_t size = model_.intermediate_size;
        float* hidden = batch.hidden + row * model_.hidden_size;
        float *gate = space_.gate.get(), *up = space_.up.get();
        const Rows x = norm(hidden, layer.ffn_norm, rows);
        multiply(x, {{layer.gate, {gate, size, false}}, {layer.up, {up, size, false}}});
        const Rows middle = rows_of(gate, size, rows);
        threads_.split(rows, [&](int64_t from, int64_t to) {
            for (int64_t r = from; r < to; r++) {
                for (int64_t i = r * size; i < (r + 1) * size; i += LANES)
                    store(gate + i, mul(silu(load(gate + i)), load(up + i)));
                quantize_row(gate + r * size, size, middle.quantized, r);
            }
        });
        multiply(middle, {{layer.down, {hidden, model_.hidden_size, true}}});
    }

    void logits(const Batch& batch, int64_t first, int64_t rows) {
        const int64_t size = model_.hidden_size;
        const Rows x = rows_of(space_.normed.get(), size, rows);
        for (int64_t r = 0; r < rows; r++) {
            float* out = space_.normed.get() + r * size;
            rms_norm(batch.hidden + batch.logit_rows[first + r] * size, model_.output_norm, size, model_.epsilon, out);
            quantize_row(out, size, x.quantized, r);
        }
        float* to = batch.logits + first * model_.output.outputs;
        multiply(x, {{model_.output, {to, model_.output.outputs, false}}});
    }

    Model model_;
    Threads threads_;
    Workspace space_;
};

}  // namespace
