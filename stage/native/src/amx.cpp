// The kernels for AVX-512 with VNNI, and AMX tiles for products of many rows.
#define STAGEWIRE_AVX512
#define STAGEWIRE_AMX
#include "module.h"

PyMODINIT_FUNC PyInit__amx(void) { return make_module("_amx"); }
