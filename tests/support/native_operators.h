// Single operators, for the tests that compare instruction sets with each other and with an oracle; included by
// stage/native/src/module.h in development builds alone.
#pragma once

namespace {

// linear(matrix words, x, rows, out): rows of float32 [rows][inputs], inputs a multiple of 16, to [rows][outputs].
PyObject* linear_rows(PyObject*, PyObject* arguments) {
    const char* description;
    Py_ssize_t size, x, rows, out;
    if (!PyArg_ParseTuple(arguments, "y#nnn", &description, &size, &x, &rows, &out)) return nullptr;
    FloatMode mode;
    Words words(description, size);
    Matrix matrix;
    try {
        matrix = read_matrix(words);
        words.finish();
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

#define STAGEWIRE_TEST_METHODS \
    {"linear", linear_rows, METH_VARARGS, "linear(matrix, x, rows, out): rows times a matrix"}, \
    {"quantize", quantize, METH_VARARGS, "quantize(x, size, codes, scales): one row to int8"}, \
    {"map", map, METH_VARARGS, "map(name, x, size, out): exp, silu or half of each number"},

}  // namespace
