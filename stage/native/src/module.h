// The Python module of one instruction set. Integers are addresses; whoever calls has checked what lies there.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>
#include <new>
#include <stdexcept>

#include "decoder.h"

namespace {

constexpr const char* CAPSULE = "stagewire.stage.native";

// Reads the description that stage/native/decoder.py writes: 64-bit words, in this order.
class Words {
  public:
    explicit Words(const int64_t* at) : at_(at) {}
    int64_t number() { return *at_++; }
    template <class T>
    T* address() { return reinterpret_cast<T*>(static_cast<intptr_t>(number())); }
    double real() {
        double value;
        std::memcpy(&value, at_++, sizeof value);
        return value;
    }

  private:
    const int64_t* at_;
};

Matrix read_matrix(Words& words) {
    Matrix m;
    m.kind = static_cast<Kind>(words.number());
    m.outputs = words.number();
    m.inputs = words.number();
    m.bits = words.number();
    m.group = words.number();
    m.has_sub_scales = words.number();
    m.has_minima = words.number();
    m.zero = words.number();
    m.records = words.address<const uint8_t>();
    m.supers = words.address<const uint16_t>();
    if (!m.is_known()) throw std::invalid_argument("a matrix of a form that these kernels do not know");
    return m;
}

Model read_model(Words& words) {
    Model m;
    m.hidden_size = words.number();
    m.num_heads = words.number();
    m.num_kv_heads = words.number();
    m.head_dim = words.number();
    m.intermediate_size = words.number();
    m.context_length = words.number();
    m.num_layers = words.number();
    m.epsilon = static_cast<float>(words.real());
    m.has_float32_kv = words.number() != 0;
    m.pool = words.address<void>();
    m.cosine = words.address<const float>();
    m.sine = words.address<const float>();
    for (int64_t i = 0; i < m.num_layers; i++) {
        Layer layer;
        layer.attention_norm = words.address<const float>();
        layer.ffn_norm = words.address<const float>();
        for (Matrix* matrix : {&layer.query, &layer.key, &layer.value, &layer.attention_output, &layer.gate,
                               &layer.up, &layer.down})
            *matrix = read_matrix(words);
        m.layers.push_back(layer);
    }
    m.output_norm = words.address<const float>();
    m.output = read_matrix(words);
    return m;
}

void destroy(PyObject* capsule) { delete static_cast<Decoder*>(PyCapsule_GetPointer(capsule, CAPSULE)); }

PyObject* create(PyObject*, PyObject* arguments) {
    Py_ssize_t words_address;
    int threads;
    if (!PyArg_ParseTuple(arguments, "ni", &words_address, &threads)) return nullptr;
    try {
        Words words(reinterpret_cast<const int64_t*>(words_address));
        auto decoder = std::make_unique<Decoder>(read_model(words), threads);
        PyObject* capsule = PyCapsule_New(decoder.get(), CAPSULE, destroy);
        if (capsule) decoder.release();
        return capsule;
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
}

PyObject* forward(PyObject*, PyObject* arguments) {
    PyObject* capsule;
    Py_ssize_t num_rows, hidden, num_slices, slices, tables, num_logit_rows, logit_rows, logits;
    if (!PyArg_ParseTuple(arguments, "Onnnnnnnn", &capsule, &num_rows, &hidden, &num_slices, &slices, &tables,
                          &num_logit_rows, &logit_rows, &logits))
        return nullptr;
    Decoder* decoder = static_cast<Decoder*>(PyCapsule_GetPointer(capsule, CAPSULE));
    if (!decoder) return nullptr;
    const Batch batch{num_rows,
                      reinterpret_cast<float*>(hidden),
                      reinterpret_cast<const Slice*>(slices),
                      num_slices,
                      reinterpret_cast<const int32_t*>(tables),
                      reinterpret_cast<const int32_t*>(logit_rows),
                      num_logit_rows,
                      reinterpret_cast<float*>(logits)};
    Py_BEGIN_ALLOW_THREADS
    decoder->forward(batch);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

// --- single operators, for the tests that compare instruction sets with each other and with an oracle ---

// linear(matrix words, x, rows, out): rows of float32 [rows][inputs], inputs a multiple of 16, to [rows][outputs].
PyObject* linear_rows(PyObject*, PyObject* arguments) {
    Py_ssize_t words_address, x, rows, out;
    if (!PyArg_ParseTuple(arguments, "nnnn", &words_address, &x, &rows, &out)) return nullptr;
    FloatMode mode;
    Words words(reinterpret_cast<const int64_t*>(words_address));
    Matrix matrix;
    try {
        matrix = read_matrix(words);
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
        return nullptr;
    }
    Model sizes{};
    sizes.hidden_size = matrix.inputs;
    Workspace space(sizes, 1);
    const float* from = reinterpret_cast<const float*>(x);
    for (int64_t first = 0; first < rows; first += ROW_TILE) {
        const Rows part{std::min<int64_t>(ROW_TILE, rows - first), from + first * matrix.inputs, matrix.inputs,
                        space.activations(matrix.inputs)};
        for (int64_t r = 0; r < part.count; r++)
            quantize_row(part.floats + r * part.stride, part.stride, part.quantized, r);
        float* to = reinterpret_cast<float*>(out) + first * matrix.outputs;
        linear(matrix, part, 0, matrix.num_panels(), {to, matrix.outputs, false});
    }
    Py_RETURN_NONE;
}

// quantize(x, size, codes, scales): one row of float32, size a multiple of 16, to int8 and one scale for each 32.
PyObject* quantize(PyObject*, PyObject* arguments) {
    Py_ssize_t x, size, codes, scales;
    if (!PyArg_ParseTuple(arguments, "nnnn", &x, &size, &codes, &scales)) return nullptr;
    FloatMode mode;
    Model sizes{};
    sizes.hidden_size = size;
    Workspace space(sizes, 1);
    const Activations to = space.activations(size);
    quantize_row(reinterpret_cast<const float*>(x), size, to, 0);
    for (int64_t block = 0; block < to.num_blocks; block++) {
        std::memcpy(reinterpret_cast<int8_t*>(codes) + block * BLOCK, to.codes_of(0, block), BLOCK);
        reinterpret_cast<float*>(scales)[block] = to.scales[block * ROW_STRIDE];
    }
    Py_RETURN_NONE;
}

// map(name, x, size, out): an elementwise function of float32, size a multiple of 16; "half" rounds as keys are.
PyObject* map(PyObject*, PyObject* arguments) {
    const char* name;
    Py_ssize_t x, size, out;
    if (!PyArg_ParseTuple(arguments, "snnn", &name, &x, &size, &out)) return nullptr;
    FloatMode mode;
    const float* from = reinterpret_cast<const float*>(x);
    float* to = reinterpret_cast<float*>(out);
    for (int64_t i = 0; i < size; i += LANES) {
        F value = load(from + i);
        uint16_t half[LANES];
        if (name[0] == 'e') value = exp(value);
        else if (name[0] == 's') value = silu(value);
        else {
            store_kv(half, value);
            value = load_kv(half);
        }
        store(to + i, value);
    }
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"create", create, METH_VARARGS, "create(words, threads): a decoder from its description"},
    {"forward", forward, METH_VARARGS, "forward(decoder, rows, hidden, slices...): one step, without the GIL"},
    {"linear", linear_rows, METH_VARARGS, "linear(matrix, x, rows, out): rows times a matrix"},
    {"quantize", quantize, METH_VARARGS, "quantize(x, size, codes, scales): one row to int8"},
    {"map", map, METH_VARARGS, "map(name, x, size, out): exp, silu or half of each number"},
    {nullptr, nullptr, 0, nullptr},
};

PyObject* make_module(const char* name) {
    static PyModuleDef definition{PyModuleDef_HEAD_INIT, name, "Native kernels.", -1, methods, nullptr, nullptr,
                                  nullptr, nullptr};
    PyObject* module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "ARITHMETIC_VERSION", ARITHMETIC_VERSION) < 0) Py_CLEAR(module);
    return module;
}

}  // namespace
