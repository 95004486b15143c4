// The Python module of one instruction set. Integers are addresses; whoever calls has checked what lies there.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>
#include <new>

#include "description.h"

#if defined(STAGEWIRE_TEST_OPERATORS)
#include "native_operators.h"  // of the tests
#else
#define STAGEWIRE_TEST_METHODS
#endif

namespace {

constexpr const char* CAPSULE = "stagewire.stage.native";

void destroy(PyObject* capsule) { delete static_cast<Decoder*>(PyCapsule_GetPointer(capsule, CAPSULE)); }

PyObject* create(PyObject*, PyObject* arguments) {
    const char* description;
    Py_ssize_t size;
    int threads;
    if (!PyArg_ParseTuple(arguments, "y#i", &description, &size, &threads)) return nullptr;
    try {
        Words words(description, size);
        auto decoder = std::make_unique<Decoder>(read_model(words), threads);
        PyObject* capsule = PyCapsule_New(decoder.get(), CAPSULE, destroy);
        if (capsule) decoder.release();
        return capsule;
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    } catch (const std::invalid_argument& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
        return nullptr;
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
}

template <class T>
struct Bytes {
    const char* at;
    Py_ssize_t size;

    const T* items() const { return reinterpret_cast<const T*>(at); }
    int64_t count() const { return size / static_cast<Py_ssize_t>(sizeof(T)); }
};

PyObject* forward(PyObject*, PyObject* arguments) {
    PyObject* capsule;
    Py_ssize_t num_rows, hidden, logits;
    Bytes<Slice> slices;
    Bytes<int32_t> tables, logit_rows;
    if (!PyArg_ParseTuple(arguments, "Onny#y#y#n", &capsule, &num_rows, &hidden, &slices.at, &slices.size, &tables.at,
                          &tables.size, &logit_rows.at, &logit_rows.size, &logits))
        return nullptr;
    Decoder* decoder = static_cast<Decoder*>(PyCapsule_GetPointer(capsule, CAPSULE));
    if (!decoder) return nullptr;
    const Batch batch{num_rows,         reinterpret_cast<float*>(hidden), slices.items(),     slices.count(),
                      tables.items(),   tables.count(),                   logit_rows.items(), logit_rows.count(),
                      reinterpret_cast<float*>(logits)};
    if (const char* fault = decoder->fault(batch)) {
        PyErr_SetString(PyExc_ValueError, fault);
        return nullptr;
    }
    Py_BEGIN_ALLOW_THREADS
    decoder->forward(batch);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"create", create, METH_VARARGS, "create(description, threads): a decoder; ValueError if it is of another layout"},
    {"forward", forward, METH_VARARGS,
     "forward(decoder, rows, hidden, slices, tables, logit rows, logits): one step, without the GIL; ValueError where "
     "rows, blocks or positions do not fit, and nothing was computed"},
    STAGEWIRE_TEST_METHODS {nullptr, nullptr, 0, nullptr},
};

// What stage/native/kernel.py compares with its own numbers when it loads a module.
constexpr struct { const char* name; int value; } CONSTANTS[] = {
    {"ARITHMETIC_VERSION", ARITHMETIC_VERSION}, {"LAYOUT_VERSION", LAYOUT_VERSION}, {"KV_BLOCK", KV_BLOCK},
    {"PANEL", LANES}, {"BLOCK", BLOCK},
};

PyObject* make_module(const char* name) {
    static PyModuleDef definition{PyModuleDef_HEAD_INIT, name, "Native kernels.", -1, methods, nullptr, nullptr,
                                  nullptr, nullptr};
    PyObject* module = PyModule_Create(&definition);
    for (const auto& constant : CONSTANTS)
        if (module && PyModule_AddIntConstant(module, constant.name, constant.value) < 0) Py_CLEAR(module);
    return module;
}

}  // namespace
