// Products of 16 rows and 16 outputs by AMX tiles: the same exact integers as `tile`, then the same float steps.
#pragma once

#include <vector>

namespace {

constexpr int64_t TILE_ROWS = 16;
constexpr int64_t FEWEST_ROWS = 24;  // for fewer, taking a panel apart costs more than tiles save
constexpr int64_t FEWEST_TILE_ROWS = 12;  // a tile with less in it is slower than lanes

// Written out, since some compilers' intrinsics do not say that they touch memory.
#define TILE_LOAD(N, FROM, STRIDE) \
    asm volatile("tileloadd (%0,%1,1), %%tmm" #N ::"r"(FROM), "r"(static_cast<int64_t>(STRIDE)) : "memory")
#define TILE_STORE(N, TO) \
    asm volatile("tilestored %%tmm" #N ", (%0,%1,1)" ::"r"(TO), "r"(static_cast<int64_t>(64)) : "memory")
#define TILE_ZERO(N) asm volatile("tilezero %%tmm" #N ::)
#define TILE_PRODUCT(C, A, B) asm volatile("tdpbssd %%tmm" #B ", %%tmm" #A ", %%tmm" #C ::)

// The tiles' shapes: sums in 0 (16 rows x 16 int32), rows of x in 1 (16 x 32 bytes), weights in 2 (8 x 64 bytes). They
// are given back at the end, so that the system need not save them.
class Tiles {
  public:
    Tiles() {
        static const struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {64, 32, 64};
            uint8_t rows[16] = {16, 16, 8};
        } shapes;
        asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory");
    }
    ~Tiles() { asm volatile("tilerelease" ::); }
};

// Each thread's room for one panel; a decoder asks for the largest when it is made, so that no step has to.
inline int8_t* panel_room(int64_t num_blocks) {
    thread_local std::vector<int8_t> room;
    const size_t size = static_cast<size_t>(num_blocks * 512);
    if (room.size() < size) room.resize(size);
    return room.data();
}

// A panel's codes less their zero point, as tiles take them: [blocks][8][16 outputs x 4].
template <class Form>
const int8_t* signed_panel(const Matrix& matrix, int64_t panel, int64_t num_blocks) {
    int8_t* room = panel_room(num_blocks);
    const uint8_t* record = matrix.records + panel * num_blocks * Form::RECORD_BYTES;
    const __m512i zero = _mm512_set1_epi8(static_cast<char>(matrix.zero));
    for (int64_t block = 0; block < num_blocks; block++, record += Form::RECORD_BYTES) {
        I codes[8];
        unpack<Form>(record, codes);
        UNROLL
        for (int j = 0; j < 8; j++)
            _mm512_storeu_si512(room + block * 512 + j * 64, _mm512_sub_epi8(codes[j].v, zero));
    }
    return room;
}

template <class Form>
inline void add_block(const int32_t* exact, const uint8_t* record, const uint16_t* super, const Activations& x,
                      int64_t row, int64_t block, F sum[TILE_ROWS]) {
    F scale[1], minimum[1];
    unpack_scales<Form>(record, super, scale, minimum);
    UNROLL
    for (int r = 0; r < TILE_ROWS; r++) {
        const int64_t at = block * ROW_STRIDE + row + r;
        sum[r] = fma(from_int(iload(exact + r * 16)), mul(scale[0], set(x.scales[at])), sum[r]);
        if (Form::MIN) sum[r] = fma(minimum[0], set(x.scaled_sums[at]), sum[r]);
    }
}

// The exact products of one block: 16 rows x 16 outputs.
inline void multiply_block(const int8_t* codes, const int8_t* weights, int32_t* exact) {
    TILE_ZERO(0);
    TILE_LOAD(1, codes, BLOCK);
    TILE_LOAD(2, weights, 64);
    TILE_PRODUCT(0, 1, 2);
    TILE_STORE(0, exact);
}

// As many rows as tiles are good for, from the first on; returns how many. Rows up to the next multiple of 16 are
// read, and what comes of them is not written. Products run AHEAD blocks before their use: a tile's store takes long.
template <class Form>
int64_t amx_panel(const Matrix& matrix, int64_t panel, const Activations& x, int64_t rows, const Output& out) {
    if (Form::GROUP != 32 || rows < FEWEST_ROWS) return 0;
    constexpr int64_t AHEAD = 2, RING = 4;
    const int64_t num_blocks = x.num_blocks;
    const int8_t* weights = signed_panel<Form>(matrix, panel, num_blocks);
    alignas(64) int32_t exact[RING][256];
    int64_t row = 0;
    for (; rows - row >= FEWEST_TILE_ROWS; row += TILE_ROWS) {
        const uint8_t* record = matrix.records + panel * num_blocks * Form::RECORD_BYTES;
        const uint16_t* super = matrix.supers + (Form::SUB ? panel * (num_blocks / 8) * Form::SUPER_HALVES : 0);
        F sum[TILE_ROWS];
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) sum[r] = set(0.0f);
        for (int64_t block = 0; block < std::min(AHEAD, num_blocks); block++)
            multiply_block(x.codes_of(row, block), weights + block * 512, exact[block]);
        for (int64_t block = 0; block < num_blocks; block++, record += Form::RECORD_BYTES) {
            const int64_t next = block + AHEAD;
            if (next < num_blocks)
                multiply_block(x.codes_of(row, next), weights + next * 512, exact[next % RING]);
            // The next panel comes from afar; ask for it while there is work.
            for (int64_t i = 0; row == 0 && i < Form::RECORD_BYTES; i += 64)
                __builtin_prefetch(record + num_blocks * Form::RECORD_BYTES + i, 0, 2);
            add_block<Form>(exact[block % RING], record, super, x, row, block, sum);
            if (Form::SUB && block % 8 == 7) super += Form::SUPER_HALVES;
        }
        const int64_t count = std::min(TILE_ROWS, rows - row);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++)
            if (r < count) write(out, matrix, row + r, panel, sum[r]);
    }
    return std::min(row, rows);
}

}  // namespace
