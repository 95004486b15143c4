// The kernels in plain C++: the specification that the others equal. Also tells which of those may be loaded.
#include "module.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#if defined(__x86_64__)
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

// The tiles' registers are large: a process asks the system before it uses them.
bool has_amx() {
#if defined(__linux__)
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    unsigned eax, ebx, ecx, edx;
    if (!has_avx512() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    const bool has_tiles = edx >> 24 & 1, has_int8 = edx >> 25 & 1;
    return has_tiles && has_int8 && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}
#endif

// supported(): names of the variants that this processor and system can run.
PyObject* supported(PyObject*, PyObject*) {
#if defined(__x86_64__)
    return Py_BuildValue("(szzz)", "portable", has_avx2() ? "avx2" : nullptr, has_avx512() ? "avx512" : nullptr,
                         has_amx() ? "amx" : nullptr);
#else
    return Py_BuildValue("(s)", "portable");
#endif
}

PyMethodDef supported_method = {"supported", supported, METH_NOARGS, "supported(): variants that can run here"};

}  // namespace

PyMODINIT_FUNC PyInit__portable(void) {
    PyObject* module = make_module("_portable");
    if (!module) return nullptr;
    PyObject* function = PyCFunction_New(&supported_method, nullptr);
    if (!function || PyModule_AddObjectRef(module, "supported", function) < 0) Py_CLEAR(module);
    Py_XDECREF(function);
    return module;
}
