// The kernels for AVX2 with FMA and F16C.
#define STAGEWIRE_AVX2
#include "module.h"

PyMODINIT_FUNC PyInit__avx2(void) { return make_module("_avx2"); }
