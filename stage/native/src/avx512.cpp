// The kernels for AVX-512 with VNNI.
#define STAGEWIRE_AVX512
#include "module.h"

PyMODINIT_FUNC PyInit__avx512(void) { return make_module("_avx512"); }
