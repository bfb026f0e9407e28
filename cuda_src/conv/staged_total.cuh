// SPDX-License-Identifier: MIT
// The gradient of W: the sum of the parts parts[part][tile][row][column] that staged_weight.cuh
// wrote, in a fixed order.
#pragma once
#include "conv/staged_weight.cuh"

namespace cto::conv::staged_total {

using namespace staged_weight;

// Four neighbouring channels of one filter and tap, an item of a block of write_staged_weights.
struct FourWeights {
    bool exists;
    i64 from;  // offset in a part
    int to;    // offset in `lines`; the four channels are `taps` apart there

    // Item `item` < count, numbered (filter, tap, four channels), of the block's filters of `group`
    // from `first` on and channels from first_channel on. joined_filters: filters of each of the
    // groups that staging joined to `group`.
    template <class Tile>
    static __device__ __forceinline__ FourWeights of(const WeightLayout& layout, int item,
                                                     int count, i32 taps, i32 group, i32 first,
                                                     i32 first_channel, i32 joined_filters) {
        constexpr int FOURS = TOTAL_CHANNELS / 4;
        const int line = item / FOURS, channel = item % FOURS * 4, filter = line / taps;
        const int tap = line - filter * taps, row = first + filter;
        const i32 of_tap = row / joined_filters * layout.channels + first_channel + channel;
        const i32 column = column_of(tap, of_tap, layout.padded_channels, taps, Tile::IN_LINE);
        const i64 tile =
            (static_cast<i64>(group) * layout.row_tiles + row / Tile::ROWS) * layout.column_tiles +
            column / Tile::COLUMNS;
        return {item < count && first_channel + channel < layout.channels,
                (tile * Tile::ROWS + row % Tile::ROWS) * Tile::COLUMNS + column % Tile::COLUMNS,
                (filter * TOTAL_CHANNELS + channel) * taps + tap};
    }
};

// sum += more, element by element.
__device__ __forceinline__ void add_four(float4& sum, const float4& more) {
    sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
}

// The sum of four neighbouring numbers, at parts + i * pitch of part i, over parts first, first +
// step, ... < count.
__device__ __forceinline__ float4 sum_of_parts(const float* parts, i32 first, i32 count, i32 step,
                                               i64 pitch) {
    float4 sum{};
#pragma unroll 4
    for (i32 i = first; i < count; i += step)
        add_four(sum, *reinterpret_cast<const float4*>(parts + i * pitch));
    return sum;
}

// w[filter][tap][channel] = sum over `count` parts: channels last, as in the parts. Block `block`
// has THREADS / summers items of four channels; `summers` threads share the sum of an item, each
// adds every summers-th part. If groups of joined_filters filters were joined to one, sums of a
// filter and a channel of different groups are left out.
template <class Tile>
__device__ __forceinline__ void write_lines_of_weights(const float* parts, typename Tile::E* w,
                                                       i32 count, i32 summers, i32 joined_filters,
                                                       u32 block, const WeightLayout& layout) {
    using E = typename Tile::E;
    __shared__ float4 sums[THREADS];
    const i32 taps = static_cast<i32>(volume(layout.kernel));
    const u32 at_once = THREADS / summers, number = threadIdx.x % at_once;
    const u32 summer = threadIdx.x / at_once, fours = (layout.channels + 3) / 4;
    const u32 item = block * at_once + number, line = item / fours;
    const i32 channel = (item - line * fours) * 4;
    const u32 filter = line / taps;
    const i32 tap = line - filter * taps, group = filter / layout.rows;
    const i32 row = filter - group * layout.rows;
    const bool exists = group < layout.groups;
    const i32 of_tap = row / joined_filters * layout.channels + channel;
    const i32 column = column_of(tap, of_tap, layout.padded_channels, taps, Tile::IN_LINE);
    const i64 tile =
        (static_cast<i64>(group) * layout.row_tiles + row / Tile::ROWS) * layout.column_tiles +
        column / Tile::COLUMNS;
    constexpr i64 SIZE = Tile::ROWS * Tile::COLUMNS;
    const float* const from =
        parts + tile * SIZE + row % Tile::ROWS * Tile::COLUMNS + column % Tile::COLUMNS;
    float4 sum{};
    if (exists) sum = sum_of_parts(from, summer, count, summers, layout.tiles * SIZE);
    if (summers > 1) {
        sums[threadIdx.x] = sum;
        __syncthreads();
        for (int i = 1; summer == 0 && i < summers; ++i) add_four(sum, sums[i * at_once + number]);
    }
    if (!exists || summer != 0) return;
    const float four[4] = {sum.x, sum.y, sum.z, sum.w};
    const vec::Vec<E, 4> rounded = vec::from_acc<E>(four);
    w += static_cast<i64>(line) * layout.channels + channel;
    if (layout.channels % 4 == 0 && reinterpret_cast<u64>(w) % sizeof(rounded) == 0)
        *reinterpret_cast<vec::Vec<E, 4>*>(w) = rounded;
    else
        for (int i = 0; i < 4 && channel + i < layout.channels; ++i) w[i] = rounded.at[i];
}

// w[filter][channel][tap] = sum over `count` parts; `summers` threads share a sum. joined_filters:
// filters of each of the groups that staging joined to one. Block `block` has `filters` filters of
// a group and TOTAL_CHANNELS channels; it transposes their sums in shared memory (`lines`) and
// writes whole lines.
template <class Tile>
__device__ __forceinline__ void write_staged_weights(const float* parts, typename Tile::E* w,
                                                     i32 count, i32 summers, i32 filters,
                                                     i32 joined_filters, u32 block,
                                                     const WeightLayout& layout) {
    using E = typename Tile::E;
    __shared__ E lines[TOTAL_LINES * TOTAL_CHANNELS];
    __shared__ float4 sums[THREADS];
    const i32 taps = static_cast<i32>(volume(layout.kernel));
    const i32 channel_tiles = (layout.channels + TOTAL_CHANNELS - 1) / TOTAL_CHANNELS;
    const u32 line_tile = block / static_cast<u32>(channel_tiles);
    const i32 first_channel = (block - line_tile * channel_tiles) * TOTAL_CHANNELS;
    const i32 of_group = (layout.rows + filters - 1) / filters;
    const i32 group = line_tile / of_group, first = (line_tile - group * of_group) * filters;
    const i64 pitch = static_cast<i64>(layout.tiles) * (Tile::ROWS * Tile::COLUMNS);
    const int at_once = THREADS / summers, number = threadIdx.x % at_once;
    const int summer = threadIdx.x / at_once;
    const int rows = min(filters, layout.rows - first), end = rows * taps * (TOTAL_CHANNELS / 4);
    const auto write = [&](const FourWeights& weights, const float4& sum) {
        const float four[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) lines[weights.to + i * taps] = from_acc<E>(four[i]);
    };
    for (int from = 0; from < end; from += at_once) {
        const FourWeights weights = FourWeights::of<Tile>(layout, from + number, end, taps, group,
                                                          first, first_channel, joined_filters);
        const float* const part = parts + weights.from;
        float4 sum{};
        if (weights.exists) sum = sum_of_parts(part, summer, count, summers, pitch);
        if (summers == 1) {
            if (weights.exists) write(weights, sum);
            continue;
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (summer == 0 && weights.exists) {
            for (int i = 1; i < summers; ++i) add_four(sum, sums[i * at_once + number]);
            write(weights, sum);
        }
        __syncthreads();
    }
    __syncthreads();
    const int channels = min(TOTAL_CHANNELS, layout.channels - first_channel);
    const i64 of_filter = static_cast<i64>(layout.channels) * taps;
    w += (static_cast<i64>(group) * layout.rows + first) * of_filter;
    w += first_channel * taps;
    for (int filter = 0; filter < rows; ++filter)
        for (int i = threadIdx.x; i < channels * taps; i += THREADS)
            w[filter * of_filter + i] = lines[filter * TOTAL_CHANNELS * taps + i];
}

// w = sum over `count` parts, by block number `block`. `summers` threads share a sum.
// joined_filters: filters of each of the groups that staging joined to one (all of a group's, if
// none were).
//
//     filters = 0   w[filter][tap][channel], channels last: write_lines_of_weights
//     else          w[filter][channel][tap], `filters` filters a block: write_staged_weights
template <class Tile>
__device__ __forceinline__ void total_of_parts(const Acc<typename Tile::E>* parts,
                                               typename Tile::E* w, i32 count, i32 summers,
                                               i32 filters, i32 joined_filters, u32 block,
                                               const WeightLayout& layout) {
    if constexpr (Tile::EXISTS) {
        if (filters == 0)
            write_lines_of_weights<Tile>(parts, w, count, summers, joined_filters, block, layout);
        else
            write_staged_weights<Tile>(parts, w, count, summers, filters, joined_filters, block,
                                       layout);
    }
}

}  // namespace cto::conv::staged_total
