// Sixteen lanes in two AVX2 registers; FMA and F16C are required as well.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

struct F { __m256 a, b; };
struct I { __m256i a, b; };

inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
inline F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F zero_where_less(F x, F test, F limit) {
    return {_mm256_and_ps(x.a, _mm256_cmp_ps(test.a, limit.a, _CMP_NLT_UQ)),
            _mm256_and_ps(x.b, _mm256_cmp_ps(test.b, limit.b, _CMP_NLT_UQ))};
}

inline I iset(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I iload(const void* p) {
    const __m256i* q = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline void istore(void* p, I x) {
    __m256i* q = static_cast<__m256i*>(p);
    _mm256_storeu_si256(q, x.a);
    _mm256_storeu_si256(q + 1, x.b);
}
inline I imax(I x, I y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
inline F from_int(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline I abs_bits(F x) {
    __m256i mask = _mm256_set1_epi32(0x7fffffff);
    return {_mm256_and_si256(_mm256_castps_si256(x.a), mask), _mm256_and_si256(_mm256_castps_si256(x.b), mask)};
}
inline I round_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline F scale_by_power(F x, I n) {
    return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.a), _mm256_slli_epi32(n.a, 23))),
            _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.b), _mm256_slli_epi32(n.b, 23)))};
}
// Across the lanes; integers, so the order is free.
inline int32_t largest_lane(I x) {
    __m256i both = _mm256_max_epi32(x.a, x.b);
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}
inline int32_t lane_sum(I x) {
    __m256i both = _mm256_add_epi32(x.a, x.b);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

inline void store_int8(int8_t* p, I x) {
    int32_t lanes[16];
    istore(lanes, x);
    for (int i = 0; i < 16; i++) p[i] = static_cast<int8_t>(lanes[i]);
}
inline F load_int8(const int8_t* p) {
    __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}

inline I low_nibbles(I x) {
    __m256i mask = _mm256_set1_epi8(0x0f);
    return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
inline I high_nibbles(I x) { return low_nibbles({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)}); }

inline __m256i pair_sums(__m256i codes, __m256i x) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1));
}

// maddubs saturates at 16 bits, which two codes above 127 can reach: those go in two parts.
template <bool WIDE>
inline __m256i dot4_half(__m256i sum, __m256i codes, __m256i x) {
    if (!WIDE) return _mm256_add_epi32(sum, pair_sums(codes, x));
    __m256i top = _mm256_set1_epi8(static_cast<char>(0x80));
    sum = _mm256_add_epi32(sum, pair_sums(_mm256_andnot_si256(top, codes), x));
    return _mm256_add_epi32(sum, pair_sums(_mm256_and_si256(top, codes), x));
}

template <bool WIDE>
inline I dot4(I sum, I codes, const int8_t* x) {
    int32_t word;
    std::memcpy(&word, x, 4);
    __m256i four = _mm256_set1_epi32(word);
    return {dot4_half<WIDE>(sum.a, codes.a, four), dot4_half<WIDE>(sum.b, codes.b, four)};
}

inline F load_half(const uint16_t* p) {
    const __m128i* q = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
inline void store_half(uint16_t* p, F x) {
    __m128i* q = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(q, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(q + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

inline __m256 load_bfloat_half(const uint16_t* p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline F load_bfloat(const uint16_t* p) { return {load_bfloat_half(p), load_bfloat_half(p + 8)}; }

}  // namespace
