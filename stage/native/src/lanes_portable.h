// Sixteen lanes as plain arrays: what every other lanes header must equal bit for bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

struct F { float v[16]; };    // 16 float32
struct I { int32_t v[16]; };  // 16 int32, or 64 bytes of codes

#define LANES for (int i = 0; i < 16; i++)

inline F load(const float* p) { F r; std::memcpy(r.v, p, sizeof r.v); return r; }
inline void store(float* p, F a) { std::memcpy(p, a.v, sizeof a.v); }
inline F set(float x) { F r; LANES r.v[i] = x; return r; }
inline F add(F a, F b) { LANES a.v[i] += b.v[i]; return a; }
inline F sub(F a, F b) { LANES a.v[i] -= b.v[i]; return a; }
inline F mul(F a, F b) { LANES a.v[i] *= b.v[i]; return a; }
inline F div(F a, F b) { LANES a.v[i] /= b.v[i]; return a; }
inline F fma(F a, F b, F c) { LANES c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]); return c; }
// The second operand where either is NaN, as the machines have it.
inline F max(F a, F b) { LANES b.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return b; }
inline F min(F a, F b) { LANES b.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return b; }
inline F zero_where_less(F a, F test, F limit) { LANES if (test.v[i] < limit.v[i]) a.v[i] = 0; return a; }

inline I iset(int32_t x) { I r; LANES r.v[i] = x; return r; }
inline I iload(const void* p) { I r; std::memcpy(r.v, p, sizeof r.v); return r; }
inline void istore(void* p, I a) { std::memcpy(p, a.v, sizeof a.v); }
inline I imax(I a, I b) { LANES b.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return b; }
inline F from_int(I a) { F r; LANES r.v[i] = static_cast<float>(a.v[i]); return r; }
inline I abs_bits(F a) { I r; std::memcpy(r.v, a.v, sizeof r.v); LANES r.v[i] &= 0x7fffffff; return r; }

// To the nearest, of two to the even one; INT32_MIN where there is none.
inline I round_int(F a) {
    I r;
    LANES {
        float x = std::nearbyintf(a.v[i]);
        r.v[i] = x >= -2147483648.0f && x < 2147483648.0f ? static_cast<int32_t>(x) : INT32_MIN;
    }
    return r;
}

// a * 2^n for results that are normal numbers.
inline F scale_by_power(F a, I n) {
    LANES {
        uint32_t bits;
        std::memcpy(&bits, &a.v[i], 4);
        bits += static_cast<uint32_t>(n.v[i]) << 23;
        std::memcpy(&a.v[i], &bits, 4);
    }
    return a;
}

// Across the lanes; integers, so the order is free.
inline int32_t largest_lane(I a) {
    int32_t best = a.v[0];
    LANES best = a.v[i] > best ? a.v[i] : best;
    return best;
}
inline int32_t lane_sum(I a) {
    int32_t sum = 0;
    LANES sum += a.v[i];
    return sum;
}

inline void store_int8(int8_t* p, I a) { LANES p[i] = static_cast<int8_t>(a.v[i]); }
inline F load_int8(const int8_t* p) { F r; LANES r.v[i] = p[i]; return r; }

inline I low_nibbles(I a) { LANES a.v[i] &= 0x0f0f0f0f; return a; }
inline I high_nibbles(I a) {
    LANES a.v[i] = static_cast<int32_t>((static_cast<uint32_t>(a.v[i]) >> 4) & 0x0f0f0f0f);
    return a;
}

// Adds to each lane the product of its four unsigned codes and the four signed bytes at x.
template <bool WIDE>
inline I dot4(I sum, I codes, const int8_t* x) {
    const uint8_t* c = reinterpret_cast<const uint8_t*>(codes.v);
    LANES for (int j = 0; j < 4; j++) sum.v[i] += c[4 * i + j] * x[j];
    return sum;
}

inline float half_to_float(uint16_t h) {
    uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, magnitude = h & 0x7fff, bits;
    if (magnitude >= 0x7c00) bits = sign | 0x7f800000 | (magnitude << 13) | (magnitude > 0x7c00 ? 0x400000 : 0);
    else if (magnitude >= 0x0400) bits = sign | ((magnitude << 13) + 0x38000000);
    else {
        float x = static_cast<float>(magnitude) * 0x1p-24f;
        std::memcpy(&bits, &x, 4);
        bits |= sign;
    }
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

inline uint16_t float_to_half(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
    if (magnitude < 0x38800000) {  // a subnormal half: count its units, to the nearest even
        float units;
        std::memcpy(&units, &magnitude, 4);
        return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyintf(units * 0x1p24f)));
    }
    uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    if (rounded >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

inline F load_half(const uint16_t* p) { F r; LANES r.v[i] = half_to_float(p[i]); return r; }
inline void store_half(uint16_t* p, F a) { LANES p[i] = float_to_half(a.v[i]); }

inline F load_bfloat(const uint16_t* p) {
    F r;
    LANES {
        uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
        std::memcpy(&r.v[i], &bits, 4);
    }
    return r;
}

#undef LANES

}  // namespace
