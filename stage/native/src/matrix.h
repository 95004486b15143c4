// A weight matrix as it lies in memory: panels of 16 outputs, one lane per output.
//
// Quantized: panel after panel, each a record for every 32 inputs: unsigned codes (of 4 or 8 bits), then scales,
// then minima where the type has them. Scales are 16 halves, or, with sub-scales, 16 signed bytes for every group
// of 16 or 32 inputs, which multiply the 16 halves of a `super` that 8 records share (and minima likewise).
// Codes of 8 bits: for every 4 inputs, 16 outputs x 4 codes. Of 4 bits: the first 16 inputs in the low nibbles,
// the last 16 in the high ones. A weight is (code - zero) * scale + minimum.
//
// Floats: panel after panel, 16 outputs for every input.
#pragma once

#include <cstdint>

namespace {

// The quantized forms that there are, those of `CODE_FORMS` in model/gguf_codes.py: bits of a code, inputs to a scale,
// whether there are sub-scales, whether there are minima.
#define STAGEWIRE_FORMS(FORM) \
    FORM(4, 32, false, false) \
    FORM(4, 32, false, true) \
    FORM(8, 32, false, false) \
    FORM(8, 32, false, true) \
    FORM(4, 16, true, false) \
    FORM(4, 16, true, true) \
    FORM(4, 32, true, true) \
    FORM(8, 32, true, false) \
    FORM(8, 32, true, true) \
    FORM(8, 16, true, false)

enum class Kind : int64_t { QUANTIZED = 0, FLOAT32 = 1, FLOAT16 = 2, BFLOAT16 = 3 };

struct Matrix {
    Kind kind;
    int64_t outputs, inputs;
    int64_t bits, group, has_sub_scales, has_minima, zero;
    const uint8_t* records;
    const uint16_t* supers;

    bool has_form(int64_t form_bits, int64_t form_group, bool sub_scales, bool minima) const {
        return bits == form_bits && group == form_group && has_sub_scales == sub_scales && has_minima == minima;
    }
    // A matrix that is none of these would be left out of the sum without a word.
    bool is_known() const {
        if (kind != Kind::QUANTIZED) return kind <= Kind::BFLOAT16;
#define IS_FORM(BITS, GROUP, SUB, MIN) || has_form(BITS, GROUP, SUB, MIN)
        return outputs == 0 STAGEWIRE_FORMS(IS_FORM);
#undef IS_FORM
    }
    int64_t num_panels() const { return (outputs + 15) / 16; }
    int64_t num_blocks() const { return (inputs + 31) / 32; }
};

template <int BITS_, int GROUP_, bool SUB_, bool MIN_>
struct Form {
    static constexpr int BITS = BITS_, GROUP = GROUP_, GROUPS = 32 / GROUP_;
    static constexpr bool SUB = SUB_, MIN = MIN_, WIDE = BITS_ == 8;
    static constexpr int CODE_BYTES = BITS_ * 64;
    static constexpr int SCALE_BYTES = SUB_ ? GROUPS * 16 : 32;
    static constexpr int RECORD_BYTES = CODE_BYTES + SCALE_BYTES * (1 + MIN_);
    static constexpr int SUPER_HALVES = 16 * (1 + MIN_);
    static_assert(SUB_ || GROUP_ == 32, "one scale for each 32 inputs, unless there are sub-scales");
};

}  // namespace
