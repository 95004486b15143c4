// Products of rows with a matrix. One lane is one output; blocks of 32 inputs are taken in order, and within one
// the sum is an exact integer, so that neither the number of rows nor the instruction set can change a bit:
//
//   output = sum over groups, in order, of fma(float(sum(code * x) - zero * sum(x)), scale * x_scale, .)
//            and, where there are minima, of fma(minimum, x_scale * sum(x), .)
#pragma once

#include <algorithm>

#include "matrix.h"
#include "quantize.h"

namespace {

// How far ahead of its use a panel is asked for: weights come from afar, and a few rows are computed faster than they.
constexpr int64_t PREFETCH_BYTES = 6144;

// Into which cache: 3 is L1, 2 is L2, 0 none. L1, unless measured otherwise: with AVX-512 on Zen 4 the hardware alone is
// up to 9 % faster for one or two rows, and L2 5 % faster for more. Past all caches (non-temporal) is as slow as L1.
constexpr int prefetch_level(int rows) {
#if defined(STAGEWIRE_AVX512) && !defined(STAGEWIRE_AMX)
    return rows < 4 ? 0 : 2;
#else
    return rows > 0 ? 3 : 0;
#endif
}

struct Output {
    float* to;       // [rows][stride]
    int64_t stride;
    bool adds;       // to what is there, after the whole sum
};

inline void write(const Output& out, const Matrix& matrix, int64_t row, int64_t panel, F value) {
    float* to = out.to + row * out.stride + panel * LANES;
    int64_t lanes = matrix.outputs - panel * LANES;
    if (lanes >= LANES) {
        store(to, out.adds ? add(load(to), value) : value);
        return;
    }
    float lane[LANES];
    store(lane, value);
    for (int64_t i = 0; i < lanes; i++) to[i] = out.adds ? to[i] + lane[i] : lane[i];
}

// The codes of one record, four inputs in each of eight registers.
template <class Form>
inline void unpack(const uint8_t* record, I codes[8]) {
    if (Form::BITS == 8) {
        for (int j = 0; j < 8; j++) codes[j] = iload(record + 64 * j);
        return;
    }
    for (int j = 0; j < 4; j++) {
        I both = iload(record + 64 * j);
        codes[j] = low_nibbles(both);
        codes[j + 4] = high_nibbles(both);
    }
}

// Scales and minima of one record, for each of its groups.
template <class Form>
inline void unpack_scales(const uint8_t* record, const uint16_t* super, F scale[], F minimum[]) {
    const uint8_t* at = record + Form::CODE_BYTES;
    for (int group = 0; group < Form::GROUPS; group++) {
        if (Form::SUB) {
            scale[group] = mul(load_half(super), load_int8(reinterpret_cast<const int8_t*>(at + 16 * group)));
            if (Form::MIN) {
                const uint8_t* sub = at + Form::SCALE_BYTES + 16 * group;
                minimum[group] = mul(load_half(super + 16), load_int8(reinterpret_cast<const int8_t*>(sub)));
            }
        } else {
            scale[group] = load_half(reinterpret_cast<const uint16_t*>(at));
            if (Form::MIN) minimum[group] = load_half(reinterpret_cast<const uint16_t*>(at + Form::SCALE_BYTES));
        }
    }
}

// One panel, ROWS rows, by products of bytes in lanes.
template <class Form, int ROWS>
inline void tile(const Matrix& matrix, int64_t panel, const Activations& x, int64_t row, const Output& out) {
    const int64_t num_blocks = x.num_blocks;
    const uint8_t* record = matrix.records + panel * num_blocks * Form::RECORD_BYTES;
    const uint16_t* super = matrix.supers + (Form::SUB ? panel * (num_blocks / 8) * Form::SUPER_HALVES : 0);
    const int32_t zero = static_cast<int32_t>(matrix.zero);
    F sum[ROWS];
    for (int r = 0; r < ROWS; r++) sum[r] = set(0.0f);
    for (int64_t block = 0; block < num_blocks; block++, record += Form::RECORD_BYTES) {
        I codes[8];
        F scale[Form::GROUPS], minimum[Form::GROUPS];
        for (int i = 0; prefetch_level(ROWS) && row == 0 && i < Form::RECORD_BYTES; i += 64)
            __builtin_prefetch(record + PREFETCH_BYTES + i, 0, prefetch_level(ROWS));
        unpack<Form>(record, codes);
        unpack_scales<Form>(record, super, scale, minimum);
        if (Form::SUB && block % 8 == 7) super += Form::SUPER_HALVES;
UNROLL
        for (int r = 0; r < ROWS; r++) {
            const int64_t at = block * ROW_STRIDE + row + r, half_at = at + block * ROW_STRIDE;
            const int8_t* bytes = x.codes_of(row + r, block);
            const F x_scale = set(x.scales[at]);
UNROLL
            for (int group = 0; group < Form::GROUPS; group++) {
                const int32_t sum_of_x = Form::GROUPS == 1 ? x.sums[at] : x.half_sums[half_at + group * ROW_STRIDE];
                I exact = iset(Form::MIN ? 0 : -zero * sum_of_x);
UNROLL
                for (int j = 0; j < 8 / Form::GROUPS; j++) {
                    const int quad = group * (8 / Form::GROUPS) + j;
                    exact = dot4<Form::WIDE>(exact, codes[quad], bytes + 4 * quad);
                }
                sum[r] = fma(from_int(exact), mul(scale[group], x_scale), sum[r]);
                if (Form::MIN) {
                    const float* scaled = Form::GROUPS == 1 ? x.scaled_sums + at : x.scaled_half_sums + half_at;
                    sum[r] = fma(minimum[group], set(scaled[group * ROW_STRIDE]), sum[r]);
                }
            }
        }
    }
    for (int r = 0; r < ROWS; r++) write(out, matrix, row + r, panel, sum[r]);
}

}  // namespace

#if defined(STAGEWIRE_AMX)
#include "linear_amx.h"
#endif

namespace {

template <class Form>
void quantized(const Matrix& matrix, const Activations& x, int64_t rows, int64_t from, int64_t to, const Output& out) {
#if defined(STAGEWIRE_AMX)
    const Tiles tiles;
#endif
    for (int64_t panel = from; panel < to; panel++) {
        int64_t row = 0;
#if defined(STAGEWIRE_AMX)
        row = amx_panel<Form>(matrix, panel, x, rows, out);
#endif
        for (; row + 8 <= rows; row += 8) tile<Form, 8>(matrix, panel, x, row, out);
        for (; row + 4 <= rows; row += 4) tile<Form, 4>(matrix, panel, x, row, out);
        for (; row + 2 <= rows; row += 2) tile<Form, 2>(matrix, panel, x, row, out);
        for (; row < rows; row++) tile<Form, 1>(matrix, panel, x, row, out);
    }
}

inline F load_weight(const float* p) { return load(p); }
struct Half { uint16_t bits; };
struct Bfloat { uint16_t bits; };
inline F load_weight(const Half* p) { return load_half(&p->bits); }
inline F load_weight(const Bfloat* p) { return load_bfloat(&p->bits); }

// Float weights and float inputs: one fused multiply-add for each input, in order.
template <class Weight, int ROWS>
void float_tile(const Matrix& matrix, int64_t panel, const float* x, int64_t stride, int64_t row, const Output& out) {
    const Weight* weights = reinterpret_cast<const Weight*>(matrix.records) + panel * matrix.inputs * LANES;
    F sum[ROWS];
    for (int r = 0; r < ROWS; r++) sum[r] = set(0.0f);
    for (int64_t i = 0; i < matrix.inputs; i++) {
        F weight = load_weight(weights + i * LANES);
UNROLL
        for (int r = 0; r < ROWS; r++) sum[r] = fma(weight, set(x[(row + r) * stride + i]), sum[r]);
    }
    for (int r = 0; r < ROWS; r++) write(out, matrix, row + r, panel, sum[r]);
}

template <class Weight>
void floats(const Matrix& matrix, const float* x, int64_t stride, int64_t rows, int64_t from, int64_t to,
            const Output& out) {
    for (int64_t panel = from; panel < to; panel++) {
        int64_t row = 0;
        for (; row + 8 <= rows; row += 8) float_tile<Weight, 8>(matrix, panel, x, stride, row, out);
        for (; row < rows; row++) float_tile<Weight, 1>(matrix, panel, x, stride, row, out);
    }
}

// Rows in both forms; a matrix takes the one that it needs.
struct Rows {
    int64_t count;
    const float* floats;  // [count][stride]
    int64_t stride;
    Activations quantized;
};

// Panels [from, to) of `matrix` times all rows.
inline void linear(const Matrix& matrix, const Rows& x, int64_t from, int64_t to, const Output& out) {
    switch (matrix.kind) {
        case Kind::FLOAT32: return floats<float>(matrix, x.floats, x.stride, x.count, from, to, out);
        case Kind::FLOAT16: return floats<Half>(matrix, x.floats, x.stride, x.count, from, to, out);
        case Kind::BFLOAT16: return floats<Bfloat>(matrix, x.floats, x.stride, x.count, from, to, out);
        case Kind::QUANTIZED: break;
    }
    const Activations& q = x.quantized;
#define MULTIPLY(BITS, GROUP, SUB, MIN) \
    if (matrix.has_form(BITS, GROUP, SUB, MIN)) \
        return quantized<Form<BITS, GROUP, SUB, MIN>>(matrix, q, x.count, from, to, out);
    STAGEWIRE_FORMS(MULTIPLY)
#undef MULTIPLY
}

}  // namespace
