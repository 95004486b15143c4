// Sixteen lanes in one AVX-512 register, with VNNI for the products of bytes.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

struct F { __m512 v; };
struct I { __m512i v; };

inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
inline F set(float x) { return {_mm512_set1_ps(x)}; }
inline F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F zero_where_less(F a, F test, F limit) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(test.v, limit.v, _CMP_NLT_UQ), a.v)};
}

inline I iset(int32_t x) { return {_mm512_set1_epi32(x)}; }
inline I iload(const void* p) { return {_mm512_loadu_si512(p)}; }
inline void istore(void* p, I a) { _mm512_storeu_si512(p, a.v); }
inline I imax(I a, I b) { return {_mm512_max_epi32(a.v, b.v)}; }
inline F from_int(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline I abs_bits(F a) { return {_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff))}; }
inline I round_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }
inline F scale_by_power(F a, I n) {
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a.v), _mm512_slli_epi32(n.v, 23)))};
}
// Across the lanes; integers, so the order is free.
inline int32_t largest_lane(I a) { return _mm512_reduce_max_epi32(a.v); }
inline int32_t lane_sum(I a) { return _mm512_reduce_add_epi32(a.v); }

inline void store_int8(int8_t* p, I a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
inline F load_int8(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

inline I low_nibbles(I a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(0x0f))}; }
inline I high_nibbles(I a) { return low_nibbles({_mm512_srli_epi16(a.v, 4)}); }

template <bool WIDE>
inline I dot4(I sum, I codes, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, 4);
    return {_mm512_dpbusd_epi32(sum.v, codes.v, _mm512_set1_epi32(four))};
}

inline F load_half(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_half(uint16_t* p, F a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}

inline F load_bfloat(const uint16_t* p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}

}  // namespace
