// Picks the lanes of the instruction set that this module is built for. A lane is one output element, everywhere.
#pragma once

// Unrolls a loop whose length is known, so that what it works on stays in registers. Sixteen plain floats do not.
#if defined(STAGEWIRE_AVX512) || defined(STAGEWIRE_AVX2)
#define UNROLL _Pragma("GCC unroll 16")
#else
#define UNROLL
#endif

#if defined(STAGEWIRE_AVX512)
#include "lanes_avx512.h"
#elif defined(STAGEWIRE_AVX2)
#include "lanes_avx2.h"
#else
#include "lanes_portable.h"
#endif
