// The float arithmetic around the products, in its one defined order. Every function here is part of the
// arithmetic's version: a change that can change a bit raises ARITHMETIC_VERSION.
#pragma once

#include <cmath>

#include "lanes.h"

namespace {

constexpr int ARITHMETIC_VERSION = 1;
constexpr int LANES = 16;
constexpr float LARGEST_HALF = 65504.0f;

// Lane i and lane i + 8, then 4, 2, 1: the only sum across lanes.
inline float tree_sum(F a) {
    float lane[LANES];
    store(lane, a);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return lane[0];
}

// The largest lane; exact, so its order does not matter. NaN in a lane may or may not get through.
inline float largest(F a) {
    float lane[LANES];
    store(lane, a);
    float best = lane[0];
    for (int i = 1; i < LANES; i++) best = lane[i] > best ? lane[i] : best;
    return best;
}

// e^x: 2^n times the Taylor polynomial of degree 7 at the rest, which is at most ln(2) / 2. Within 2 ulp.
// Below -87 it is 0, above 88 it is e^88; NaN stays NaN.
inline F exp(F x) {
    const F low = set(-87.0f), high = set(88.0f);
    F clamped = min(high, max(low, x));
    I n = round_int(mul(clamped, set(1.44269504f)));
    F whole = from_int(n);
    F rest = fma(whole, set(-0x1.62e4p-1f), clamped);  // ln(2) in two parts, the first with 17 bits
    rest = fma(whole, set(-0x1.7f7d1cp-20f), rest);
    F p = set(1.0f / 5040);
    p = fma(p, rest, set(1.0f / 720));
    p = fma(p, rest, set(1.0f / 120));
    p = fma(p, rest, set(1.0f / 24));
    p = fma(p, rest, set(1.0f / 6));
    p = fma(p, rest, set(0.5f));
    p = fma(p, rest, set(1.0f));
    p = fma(p, rest, set(1.0f));
    return zero_where_less(scale_by_power(p, n), x, low);
}

// x / (1 + e^-x)
inline F silu(F x) { return div(x, add(set(1.0f), exp(sub(set(0.0f), x)))); }

// RMS norm of one row of `size` numbers, a multiple of 16, into `out`.
inline void rms_norm(const float* x, const float* weight, int64_t size, float epsilon, float* out) {
    F squares = set(0.0f);
    for (int64_t i = 0; i < size; i += LANES) {
        F a = load(x + i);
        squares = fma(a, a, squares);
    }
    F scale = set(1.0f / std::sqrt(tree_sum(squares) / static_cast<float>(size) + epsilon));
    for (int64_t i = 0; i < size; i += LANES) store(out + i, mul(mul(load(x + i), scale), load(weight + i)));
}

// Turns pair (x[i], x[half + i]) by the angle of its cosine and sine.
inline void rotate(float* x, const float* cosine, const float* sine, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = std::fma(a, cosine[i], -(b * sine[i]));
        x[half + i] = std::fma(a, sine[i], b * cosine[i]);
    }
}

// What keys and values become: halves, the nearest finite one; or float32 as they are.
inline void store_kv(uint16_t* p, F a) {
    store_half(p, max(set(-LARGEST_HALF), min(set(LARGEST_HALF), a)));
}
inline void store_kv(float* p, F a) { store(p, a); }
inline F load_kv(const uint16_t* p) { return load_half(p); }
inline F load_kv(const float* p) { return load(p); }

}  // namespace
