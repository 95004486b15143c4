// Rows of float32 as int8: blocks of 32 with one scale each, in [-127, 127].
#pragma once

#include "arithmetic.h"

namespace {

constexpr int BLOCK = 32;
constexpr int64_t ROW_TILE = 128;  // rows that pass through a layer together; what they need stays in the cache

// From a block's rows to the next block's: more than ROW_TILE, or all blocks would share the same lines of the cache.
constexpr int64_t ROW_STRIDE = ROW_TILE + 16;

// Up to ROW_TILE rows, quantized. Blocks lie one after the other, each with all its rows, so that a row is at a fixed
// distance from the next. Sums are kept for zero points (integer) and for minima (times the scale), of each block
// and of each half of one.
struct Activations {
    int64_t num_blocks;       // of a row
    int8_t* codes;            // [blocks][ROW_STRIDE][32]
    float* scales;            // [blocks][ROW_STRIDE]
    int32_t* sums;            // [blocks][ROW_STRIDE]
    int32_t* half_sums;       // [blocks][2][ROW_STRIDE]
    float* scaled_sums;       // [blocks][ROW_STRIDE]
    float* scaled_half_sums;  // [blocks][2][ROW_STRIDE]

    const int8_t* codes_of(int64_t row, int64_t block) const { return codes + (block * ROW_STRIDE + row) * BLOCK; }
};

// One block. Where a number is not finite the scale is NaN, so that the product is; below 1e-30 all is zero.
inline float quantize_block(F a, F b, int8_t* codes, int32_t* sums) {
    int32_t bits = largest_lane(imax(abs_bits(a), abs_bits(b)));
    float largest_magnitude, scale;
    std::memcpy(&largest_magnitude, &bits, 4);
    if (bits >= 0x7f800000 || largest_magnitude < 1e-30f) {
        std::memset(codes, 0, BLOCK);
        sums[0] = sums[1] = 0;
        scale = bits >= 0x7f800000 ? NAN : 0.0f;
        return scale;
    }
    F inverse = set(127.0f / largest_magnitude);
    const I first = round_int(mul(a, inverse)), second = round_int(mul(b, inverse));
    store_int8(codes, first);
    store_int8(codes + LANES, second);
    sums[0] = lane_sum(first);
    sums[1] = lane_sum(second);
    return largest_magnitude / 127.0f;
}

// `size` is a multiple of 16; what is missing to a whole block counts as zero.
inline void quantize_row(const float* x, int64_t size, const Activations& to, int64_t row) {
    for (int64_t block = 0; block < to.num_blocks; block++) {
        const float* from = x + block * BLOCK;
        const int64_t at = block * ROW_STRIDE + row;
        int32_t sums[2];
        F second = block * BLOCK + LANES < size ? load(from + LANES) : set(0.0f);
        const float scale = quantize_block(load(from), second, to.codes + at * BLOCK, sums);
        to.scales[at] = scale;
        to.sums[at] = sums[0] + sums[1];
        to.scaled_sums[at] = scale * static_cast<float>(to.sums[at]);
        for (int half = 0; half < 2; half++) {
            to.half_sums[at + (block + half) * ROW_STRIDE] = sums[half];
            to.scaled_half_sums[at + (block + half) * ROW_STRIDE] = scale * static_cast<float>(sums[half]);
        }
    }
}

}  // namespace
