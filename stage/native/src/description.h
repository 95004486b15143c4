// Reads the description of a model that stage/native/decoder.py writes: 64-bit words, in the order of `read_model`.
// A change of that order, or of what lies at an address in it, raises LAYOUT_VERSION on both sides.
#pragma once

#include <stdexcept>

#include "decoder.h"

namespace {

constexpr int LAYOUT_VERSION = 1;

class Words {
  public:
    Words(const char* bytes, int64_t size) : at_(bytes), end_(bytes + size) {}
    template <class T = int64_t>
    T next() {
        static_assert(sizeof(T) == 8, "a word");
        if (end_ - at_ < 8) throw std::invalid_argument("the description of the model is too short");
        T value;
        std::memcpy(&value, at_, sizeof value);
        at_ += sizeof value;
        return value;
    }
    template <class T>
    T* address() { return reinterpret_cast<T*>(static_cast<intptr_t>(next())); }
    void finish() const {
        if (at_ != end_) throw std::invalid_argument("the description of the model is too long");
    }

  private:
    const char *at_, *end_;
};

inline Matrix read_matrix(Words& words) {
    Matrix m;
    m.kind = static_cast<Kind>(words.next());
    m.outputs = words.next();
    m.inputs = words.next();
    m.bits = words.next();
    m.group = words.next();
    m.has_sub_scales = words.next();
    m.has_minima = words.next();
    m.zero = words.next();
    m.records = words.address<const uint8_t>();
    m.supers = words.address<const uint16_t>();
    if (!m.is_known()) throw std::invalid_argument("a matrix of a form that these kernels do not know");
    return m;
}

// A matrix of this size; inputs of codes may be filled up to whole blocks.
inline Matrix read_matrix(Words& words, int64_t outputs, int64_t inputs) {
    const Matrix m = read_matrix(words);
    const int64_t filled = m.kind == Kind::QUANTIZED ? (inputs + BLOCK - 1) / BLOCK * BLOCK : inputs;
    if (m.outputs != outputs || (m.inputs != inputs && m.inputs != filled))
        throw std::invalid_argument("a matrix of another size than the model says");
    return m;
}

inline Model read_model(Words& words) {
    if (words.next() != LAYOUT_VERSION) throw std::invalid_argument("a description of another layout");
    Model m;
    m.hidden_size = words.next();
    m.num_heads = words.next();
    m.num_kv_heads = words.next();
    m.head_dim = words.next();
    m.intermediate_size = words.next();
    m.context_length = words.next();
    m.num_layers = words.next();
    m.epsilon = static_cast<float>(words.next<double>());
    m.has_float32_kv = words.next() != 0;
    m.num_blocks = words.next();
    m.pool = words.address<void>();
    m.cosine = words.address<const float>();
    m.sine = words.address<const float>();
    const int64_t size = m.num_heads * m.head_dim, kv_size = m.num_kv_heads * m.head_dim;
    for (int64_t i = 0; i < m.num_layers; i++) {
        Layer layer;
        layer.attention_norm = words.address<const float>();
        layer.ffn_norm = words.address<const float>();
        layer.query = read_matrix(words, size, m.hidden_size);
        layer.key = read_matrix(words, kv_size, m.hidden_size);
        layer.value = read_matrix(words, kv_size, m.hidden_size);
        layer.attention_output = read_matrix(words, m.hidden_size, size);
        layer.gate = read_matrix(words, m.intermediate_size, m.hidden_size);
        layer.up = read_matrix(words, m.intermediate_size, m.hidden_size);
        layer.down = read_matrix(words, m.hidden_size, m.intermediate_size);
        m.layers.push_back(layer);
    }
    m.vocab_size = words.next();  // 0 where another stage has the output
    if (m.vocab_size > 0) {
        m.output_norm = words.address<const float>();
        m.output = read_matrix(words, m.vocab_size, m.hidden_size);
    }
    words.finish();
    return m;
}

}  // namespace
