// Attention of query rows over the KV blocks of one sequence, in two passes: all scores, their exact maximum, the
// exponentials and their sum; then the values in the order of their tokens. Rows are taken together to share what
// is loaded; each has chains of its own, so that its bits do not depend on the company.
#pragma once

#include <algorithm>

#include "arithmetic.h"

namespace {

constexpr int KV_BLOCK = 16;          // tokens in a KV block
constexpr int MAX_QUERY_ROWS = 12;    // (token, head) pairs that are computed together

// One layer's part of the KV pool. In a block, for each KV head: K transposed [head_dim][16], then V [16][head_dim].
template <class Kv>
struct KvLayer {
    Kv* pool;
    int64_t block_stride;  // elements from a block to the next
    int64_t head_dim;

    Kv* keys(int64_t block, int64_t head) const { return pool + block * block_stride + head * 2 * KV_BLOCK * head_dim; }
    Kv* values(int64_t block, int64_t head) const { return keys(block, head) + KV_BLOCK * head_dim; }
};

// Rows of one sequence and one KV head. Row r looks at the first `visible[r]` tokens; `visible` never falls.
struct QueryTile {
    const float* query[MAX_QUERY_ROWS];  // head_dim numbers each
    float* out[MAX_QUERY_ROWS];
    int64_t visible[MAX_QUERY_ROWS];
    const int32_t* block_table;
    int64_t kv_head;
};

// Scores of BLOCKS blocks: scores[block][row][16 tokens].
template <class Kv, int ROWS, int BLOCKS>
inline void score_blocks(const KvLayer<Kv>& layer, const QueryTile& tile, int64_t block, const float* queries,
                         float* scores) {
    const Kv* keys[BLOCKS];
    F sum[BLOCKS][ROWS];
    for (int b = 0; b < BLOCKS; b++) {
        keys[b] = layer.keys(tile.block_table[block + b], tile.kv_head);
        for (int r = 0; r < ROWS; r++) sum[b][r] = set(0.0f);
    }
    for (int64_t e = 0; e < layer.head_dim; e++) {
        F key[BLOCKS];
UNROLL
        for (int b = 0; b < BLOCKS; b++) key[b] = load_kv(keys[b] + e * KV_BLOCK);
UNROLL
        for (int r = 0; r < ROWS; r++) {
            const F query = set(queries[e * ROWS + r]);
UNROLL
            for (int b = 0; b < BLOCKS; b++) sum[b][r] = fma(query, key[b], sum[b][r]);
        }
    }
    for (int b = 0; b < BLOCKS; b++)
        for (int r = 0; r < ROWS; r++) store(scores + ((block + b) * ROWS + r) * KV_BLOCK, sum[b][r]);
}

// Turns one row's scores into exponentials, tokens that it may not see into zeros; returns their sum.
inline float exponentials(float* scores, int64_t stride, int64_t visible) {
    const int64_t whole = visible / KV_BLOCK, rest = visible % KV_BLOCK;
    if (rest)
        for (int64_t i = rest; i < KV_BLOCK; i++) scores[whole * stride + i] = -INFINITY;
    const int64_t num_blocks = whole + (rest > 0);
    F best = load(scores);
    for (int64_t b = 1; b < num_blocks; b++) best = max(load(scores + b * stride), best);
    const F maximum = set(largest(best));
    F sum = set(0.0f);
    for (int64_t b = 0; b < num_blocks; b++) {
        F p = exp(sub(load(scores + b * stride), maximum));
        store(scores + b * stride, p);
        sum = add(sum, p);
    }
    return tree_sum(sum);
}

// Adds the values of whole blocks [0, num_blocks), WIDTH lanes of 16 elements from `element` on.
template <class Kv, int ROWS, int WIDTH>
inline void add_values(const KvLayer<Kv>& layer, const QueryTile& tile, int64_t num_blocks, const float* weights,
                       int64_t element) {
    F sum[ROWS][WIDTH];
    for (int r = 0; r < ROWS; r++)
        for (int w = 0; w < WIDTH; w++) sum[r][w] = set(0.0f);
    for (int64_t block = 0; block < num_blocks; block++) {
        const Kv* values = layer.values(tile.block_table[block], tile.kv_head) + element;
        const float* weight = weights + block * ROWS * KV_BLOCK;
        for (int64_t t = 0; t < KV_BLOCK; t++) {
            F value[WIDTH];
UNROLL
            for (int w = 0; w < WIDTH; w++) value[w] = load_kv(values + t * layer.head_dim + w * LANES);
UNROLL
            for (int r = 0; r < ROWS; r++) {
                const F p = set(weight[r * KV_BLOCK + t]);
UNROLL
                for (int w = 0; w < WIDTH; w++) sum[r][w] = fma(p, value[w], sum[r][w]);
            }
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int w = 0; w < WIDTH; w++) store(tile.out[r] + element + w * LANES, sum[r][w]);
}

// Adds the tokens [from, visible) to one row, and divides by the sum.
template <class Kv>
inline void finish_row(const KvLayer<Kv>& layer, const QueryTile& tile, int row, int num_rows, int64_t from,
                       const float* weights, float sum) {
    for (int64_t e = 0; e < layer.head_dim; e += LANES) {
        F out = load(tile.out[row] + e);
        for (int64_t t = from; t < tile.visible[row]; t++) {
            const int64_t block = t / KV_BLOCK, at = t % KV_BLOCK;
            const Kv* value = layer.values(tile.block_table[block], tile.kv_head) + at * layer.head_dim + e;
            out = fma(set(weights[(block * num_rows + row) * KV_BLOCK + at]), load_kv(value), out);
        }
        store(tile.out[row] + e, div(out, set(sum)));
    }
}

// `scores` has room for (blocks of the longest row) * ROWS * 16 numbers, `queries` for head_dim * ROWS.
template <class Kv, int ROWS>
void attend(const KvLayer<Kv>& layer, const QueryTile& tile, float* queries, float* scores) {
    for (int64_t e = 0; e < layer.head_dim; e++)
        for (int r = 0; r < ROWS; r++) queries[e * ROWS + r] = tile.query[r][e];
    constexpr int TOGETHER = ROWS <= 3 ? 4 : ROWS <= 6 ? 2 : 1;  // enough chains to hide an addition's delay
    const int64_t num_blocks = (tile.visible[ROWS - 1] + KV_BLOCK - 1) / KV_BLOCK;
    int64_t block = 0;
    for (; block + TOGETHER <= num_blocks; block += TOGETHER)
        score_blocks<Kv, ROWS, TOGETHER>(layer, tile, block, queries, scores);
    for (; block < num_blocks; block++) score_blocks<Kv, ROWS, 1>(layer, tile, block, queries, scores);
    float sums[ROWS];
    for (int r = 0; r < ROWS; r++)
        sums[r] = exponentials(scores + r * KV_BLOCK, ROWS * KV_BLOCK, tile.visible[r]);
    const int64_t shared = tile.visible[0] / KV_BLOCK;  // blocks that every row sees whole
    constexpr int WIDTH = ROWS <= 6 ? 4 : 2;
    int64_t element = 0;
    for (; element + WIDTH * LANES <= layer.head_dim; element += WIDTH * LANES)
        add_values<Kv, ROWS, WIDTH>(layer, tile, shared, scores, element);
    for (; element < layer.head_dim; element += LANES) add_values<Kv, ROWS, 1>(layer, tile, shared, scores, element);
    for (int r = 0; r < ROWS; r++) finish_row(layer, tile, r, ROWS, shared * KV_BLOCK, scores, sums[r]);
}

template <class Kv, int ROWS = MAX_QUERY_ROWS>
void attend_rows(int rows, const KvLayer<Kv>& layer, const QueryTile& tile, float* queries, float* scores) {
    if constexpr (ROWS > 0) {
        if (rows == ROWS) return attend<Kv, ROWS>(layer, tile, queries, scores);
        attend_rows<Kv, ROWS - 1>(rows, layer, tile, queries, scores);
    }
}

}  // namespace
