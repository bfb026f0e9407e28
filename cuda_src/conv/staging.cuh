// SPDX-License-Identifier: MIT
// Staged arrays, from which tiles are copied by vectors: (n, channel, position) as (n, position,
// channel), channels padded with zeros to whole vectors of 16 bytes, floats rounded to TF32 if they
// are multiplied so; and StagedRows, what each position of the output reads. Y also as lines, or
// summed: YOutputs.
//
// Fields of StagedArray: channels, padded (to whole vectors); plane: positions of an image; width:
// of them that are loaded as one vector; plane_tiles: tiles of PANEL positions of an image; blocks:
// of the launch, 0 if the array is not staged. StagingLayout has one for each of x, y and w.
#pragma once
#include "conv/image.cuh"

namespace cto::conv::staging {

using namespace image;

// Elements from one of a YOutputs' lines, of `positions` elements, to the next.
template <class E>
__device__ __forceinline__ i64 pitch_of_lines(i64 positions) {
    constexpr int IN_LINE = LINE_NBYTES / sizeof(E);
    return (positions + IN_LINE - 1) / IN_LINE * IN_LINE;
}

// What a block that stages PANEL channels and positions of Y writes beside its staged array, in
// types of 4 bytes; null: not wanted.
//
//     lines   lines[channel][position of all images], rounded, `positions` of them, filled up with
//             zeros to a pitch of whole lines of shared memory
//     sums    sums[tile of positions][channel], over the tile's positions, not rounded
template <class E>
struct YOutputs {
    E* lines;
    Acc<E>* sums;
    i64 positions;
};

// to[position][channel] = from[channel][position] for PANEL channels and positions, by way of
// `tile` in shared memory: tile[channel * PITCH + position]. TF32: floats are rounded to TF32.
template <class E, bool TF32>
struct Transposer {
    static constexpr int WIDTH = vec::WIDTH<E>, IN_LINE = PANEL / WIDTH;
    static constexpr int PITCH = PANEL + 4 / sizeof(E);
    E* tile;

    // Loads `tile` by vectors of V positions, or of V channels if these are last; zeros from channel
    // `channels` and position `positions` on. pitch: elements from a channel to the next, or from a
    // position.
    template <int V, bool CHANNELS_LAST>
    __device__ __forceinline__ void load(const E* from, i32 pitch, i32 channels, i32 positions) {
        using Loaded = vec::Vec<E, V>;
        constexpr int ACROSS = PANEL / V, DOWN = THREADS / ACROSS, COUNT = PANEL / DOWN;
        constexpr int OF_LINE = CHANNELS_LAST ? 1 : PITCH, OF_VECTOR = CHANNELS_LAST ? PITCH : 1;
        const int in_line = threadIdx.x % ACROSS * V, first = threadIdx.x / ACROSS;
        const i32 lines = CHANNELS_LAST ? positions : channels;
        const i32 ends = CHANNELS_LAST ? channels : positions;
        Loaded loaded[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int line = first + i * DOWN;
            loaded[i] = Loaded{};
            if (line < lines && in_line < ends)
                loaded[i] = *reinterpret_cast<const Loaded*>(from + static_cast<i64>(line) * pitch +
                                                             in_line);
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
#pragma unroll
            for (int j = 0; j < V; ++j)
                tile[(first + i * DOWN) * OF_LINE + (in_line + j) * OF_VECTOR] = loaded[i].at[j];
    }
    // tile[channel * PITCH + position] = from[channel * plane + position], channel < min(channels,
    // PANEL), position < plane <= PANEL: planes lie side by side, so a vector of WIDTH may go on
    // into the next channel.
    __device__ __forceinline__ void load_planes(const E* from, i32 plane, i32 channels) {
        using Loaded = vec::Vec<E, WIDTH>;
        constexpr int COUNT = PANEL * IN_LINE / THREADS;
        const int end = min(channels, PANEL) * plane;
        Loaded loaded[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int at = (i * THREADS + threadIdx.x) * WIDTH;
            if (at < end) loaded[i] = *reinterpret_cast<const Loaded*>(from + at);
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int at = (i * THREADS + threadIdx.x) * WIDTH;
            if (at >= end) break;
            int channel = at / plane, position = at - channel * plane;
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                tile[channel * PITCH + position] = loaded[i].at[j];
                const bool ends = ++position == plane;
                channel += ends;
                position = ends ? 0 : position;
            }
        }
    }
    // The element of `tile` as it is multiplied.
    __device__ __forceinline__ E rounded(int channel, int position) const {
        const E x = tile[channel * PITCH + position];
        if constexpr (TF32)
            return tensor_core::to_tf32(x);
        else
            return x;
    }
    // to[channel][position] = `tile`, for channels below `channels` and positions below `positions`;
    // then `zeros` zeros, at most PANEL. pitch: elements from a channel to the next.
    __device__ __forceinline__ void store_lines(E* to, i64 pitch, i32 channels, i32 positions,
                                                i32 zeros) const {
        constexpr int AT_ONCE = THREADS / PANEL;
        const int position = threadIdx.x % PANEL;
#pragma unroll 4
        for (int channel = threadIdx.x / PANEL; channel < PANEL; channel += AT_ONCE) {
            if (channel >= channels) break;
            E* const line = to + channel * pitch;
            if (position < positions) line[position] = rounded(channel, position);
            if (position < zeros) line[positions + position] = E{};
        }
    }
    // to[channel] = sum of `tile` over positions below `positions`, for channels below `channels`.
    // Four threads share a channel.
    __device__ __forceinline__ void store_sums(Acc<E>* to, i32 channels, i32 positions) const {
        static_assert(THREADS == 4 * PANEL);
        constexpr int COUNT = PANEL / 4;
        const int channel = threadIdx.x / 4, first = threadIdx.x % 4 * COUNT;
        Acc<E> sum = 0;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (first + i < positions) sum += to_acc(tile[channel * PITCH + first + i]);
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        if (first == 0 && channel < channels) to[channel] = sum;
    }
    // Stores `tile`, transposed, by vectors of channels: those below `channels`, at positions below
    // `positions`, which are `padded` elements apart.
    __device__ __forceinline__ void store(E* to, i32 padded, i32 channels, i32 positions) const {
#pragma unroll
        for (int i = 0; i < PANEL * IN_LINE / THREADS; ++i) {
            const int index = i * THREADS + threadIdx.x;
            const int position = index / IN_LINE, channel = index % IN_LINE * WIDTH;
            vec::Vec<E, WIDTH> line;
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) line.at[j] = rounded(channel + j, position);
            if (channel < channels && position < positions)
                *reinterpret_cast<vec::Vec<E, WIDTH>*>(to + static_cast<i64>(position) * padded +
                                                       channel) = line;
        }
    }
};

// to[position][channel] = from[position][channel] for PANEL channels and positions, as far as there
// are `channels` and `positions`; zeros for the padded channels. For arrays whose channels are
// last.
template <class E, bool TF32>
__device__ __forceinline__ void pad_lines(const E* from, E* to, const StagedArray& array,
                                          i32 channels, i32 positions) {
    constexpr int WIDTH = vec::WIDTH<E>, IN_LINE = PANEL / WIDTH;
    const i32 padded = channels + array.padded - array.channels;
#pragma unroll
    for (int i = 0; i < PANEL * IN_LINE / THREADS; ++i) {
        const int index = i * THREADS + threadIdx.x;
        const int position = index / IN_LINE, channel = index % IN_LINE * WIDTH;
        if (channel >= padded || position >= positions) continue;
        const E* const line = from + static_cast<i64>(position) * array.channels + channel;
        vec::Vec<E, WIDTH> loaded{};
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
            if (channel + j < channels) loaded.at[j] = line[j];
            if constexpr (TF32) loaded.at[j] = tensor_core::to_tf32(loaded.at[j]);
        }
        *reinterpret_cast<vec::Vec<E, WIDTH>*>(to + static_cast<i64>(position) * array.padded +
                                               channel) = loaded;
    }
}

// to = the staged array of `from`, which may be null, and what `more` wants: block `block`, in the
// order (image, channels, positions), has PANEL channels and PANEL positions of an image.
// array.width says how it is loaded: by vectors of so many positions; 0: planes side by side; -1:
// channels are last already. memory: shared memory for a Transposer's tile.
template <class E, bool TF32>
__device__ __forceinline__ void stage_array(const E* from, E* to, const StagedArray& array,
                                            const YOutputs<E>& more, u32 block, u8* memory) {
    Transposer<E, TF32> transposer{reinterpret_cast<E*>(memory)};
    const u32 rest = block / static_cast<u32>(array.plane_tiles);
    const i32 position = (block - rest * array.plane_tiles) * PANEL;
    const u32 channel_tiles = static_cast<u32>(array.padded + PANEL - 1) / PANEL;
    const u32 n = rest / channel_tiles;
    const i32 channel = (rest - n * channel_tiles) * PANEL;
    const i32 positions = array.plane - position, channels = array.channels - channel;
    const i64 line = static_cast<i64>(n) * array.plane + position;
    if (to) to += line * array.padded + channel;
    if (array.width < 0) {
        from += line * array.channels + channel;
        if (sizeof(E) == 2 || !(more.lines || more.sums))
            return pad_lines<E, TF32>(from, to, array, channels, positions);
    } else {
        from += (static_cast<i64>(n) * array.channels + channel) * array.plane + position;
    }
    const bool has_vectors =
        array.channels % vec::WIDTH<E> == 0 && reinterpret_cast<u64>(from) % 16 == 0;
    if (array.width < 0 && has_vectors)
        transposer.template load<vec::WIDTH<E>, true>(from, array.channels, channels, positions);
    else if (array.width < 0)
        transposer.template load<1, true>(from, array.channels, channels, positions);
    else if (array.width == vec::WIDTH<E>)
        transposer.template load<vec::WIDTH<E>, false>(from, array.plane, channels, positions);
    else if (array.width == vec::WIDTH<E> / 2)
        transposer.template load<vec::WIDTH<E> / 2, false>(from, array.plane, channels, positions);
    else if (array.width == 0)
        transposer.load_planes(from, array.plane, channels);
    else
        transposer.template load<1, false>(from, array.plane, channels, positions);
    __syncthreads();
    if (to) transposer.store(to, array.padded, array.padded - channel, positions);
    if constexpr (sizeof(E) == 4) {
        const i32 count = min(positions, PANEL);
        if (more.lines) {
            const i64 pitch = pitch_of_lines<E>(more.positions), end = line + count;
            transposer.store_lines(more.lines + (channel * pitch + line), pitch, channels, count,
                                   /*zeros=*/end == more.positions ? pitch - end : 0);
        }
        if (more.sums) {
            const i64 part = static_cast<i64>(n) * array.plane_tiles + position / PANEL;
            transposer.store_sums(more.sums + (part * array.channels + channel), channels, count);
        }
    }
}

// to[row][tap][k] = W of joined groups: groups.joined groups become one, with zeros where filter
// and channel are of different groups. A row is a filter and k a channel; in the gradient the other
// way round. A thread writes a vector of k; vectors are numbered through all blocks, this one being
// `block`. array: its `channels` are the rows of all groups.
template <class E, bool TF32>
__device__ __forceinline__ void spread_w(const E* w, E* to, const StagedArray& array,
                                         const JoinedGroups& groups, u32 block) {
    constexpr int WIDTH = vec::WIDTH<E>;
    const i32 of_row = groups.is_gradient ? groups.channels : groups.filters;
    const i32 of_sum = groups.is_gradient ? groups.filters : groups.channels;
    const u32 vectors = static_cast<u32>(of_sum * groups.joined) / WIDTH;
    const u32 index = block * THREADS + threadIdx.x, line = index / vectors;
    const i32 first = static_cast<i32>(index - line * vectors) * WIDTH;
    const i32 row = static_cast<i32>(line / static_cast<u32>(groups.taps));
    if (row >= array.channels) return;
    const i32 tap = static_cast<i32>(line) - row * groups.taps, group = row / of_row;
    const i32 from = group % groups.joined * of_sum, in_group = row - group * of_row;
    vec::Vec<E, WIDTH> loaded{};
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const i32 place = first + i - from;
        if (place < 0 || place >= of_sum) continue;
        const i64 filter = groups.is_gradient ? group * of_sum + place : row;
        const i32 channel = groups.is_gradient ? in_group : place;
        loaded.at[i] =
            w[groups.channels_last ? (filter * groups.taps + tap) * groups.channels + channel
                                   : (filter * groups.channels + channel) * groups.taps + tap];
        if constexpr (TF32) loaded.at[i] = tensor_core::to_tf32(loaded.at[i]);
    }
    *reinterpret_cast<vec::Vec<E, WIDTH>*>(to + static_cast<i64>(index) * WIDTH) = loaded;
}

// Returns a word whose bit i says that tap i reads inside of the array, for a position whose tap 0
// reads at `at`. extents: of the array. Taps are numbered with the last axis the fastest; along an
// axis there are taps[axis], positions jumps[axis] apart.
__device__ __forceinline__ u32 taps_inside(const i32 (&at)[3], const i32 (&extents)[3],
                                           const i32 (&taps)[3], const i32 (&jumps)[3]) {
    u32 inside = 1;  // of the taps along the axes so far
#pragma unroll
    for (int axis = 2, count = 1; axis >= 0; --axis) {
        const u32 inner = inside;
        inside = 0;
#pragma unroll 1
        for (int j = 0; j < taps[axis]; ++j) {
            const bool is_inside =
                static_cast<u32>(at[axis] + j * jumps[axis]) < static_cast<u32>(extents[axis]);
            inside |= is_inside ? inner << (j * count) : 0;
        }
        count *= taps[axis];
    }
    return inside;
}

// rows[index] = what output position `index` reads of the staged X; zeros past the last position. A
// thread writes one, index = block * THREADS + threadIdx.x.
__device__ __forceinline__ void write_row(StagedRow* rows, const StagingLayout& layout, u32 block) {
    const i64 index = static_cast<i64>(block) * THREADS + threadIdx.x;
    if (index >= layout.n_rows) return;
    StagedRow row{};
    if (index < layout.positions) {
        i32 at[3];
        u32 rest = static_cast<u32>(index);  // vectors of what is staged have 32 bits
#pragma unroll
        for (int axis = 2; axis >= 0; --axis) {
            const u32 next = divide(rest, layout.output[axis]);
            at[axis] = static_cast<i32>(rest - next * layout.output[axis]) * layout.stride[axis] -
                       layout.pad[axis];
            rest = next;
        }
        i64 place = rest;
#pragma unroll
        for (int axis = 0; axis < 3; ++axis) place = place * layout.image[axis] + at[axis];
        row.offset = static_cast<i32>(place * layout.vectors);
        row.inside = taps_inside(at, layout.image, layout.kernel, layout.dilation);
    }
    rows[index] = row;
}

// staged_x, staged_y, staged_w = x, y, w as (n, position, channel), channels padded to whole
// vectors; y_outputs: what Y becomes beside that, and staged_y may be null; rows[position] = what a
// position of the output reads of X. Blocks are numbered through x, y, w and rows. TF32: floats are
// rounded to TF32. EXISTS: compiled for this GPU and type.
template <class E, bool TF32, bool EXISTS>
__device__ __forceinline__ void stage(const E* x, E* staged_x, const E* y, E* staged_y,
                                      const YOutputs<E>& y_outputs, const E* w, E* staged_w,
                                      StagedRow* rows, const StagingLayout& layout) {
    if constexpr (EXISTS) {
        __shared__ __align__(16) u8 memory[PANEL * Transposer<E, TF32>::PITCH * sizeof(E)];
        // One call for all three arrays: stage_array is inlined and takes long to compile.
        const StagedArray* array = &layout.x;
        const E* from = x;
        E* to = staged_x;
        YOutputs<E> more{};
        u32 block = blockIdx.x;
        if (block >= array->blocks) {
            block -= array->blocks;
            array = &layout.y;
            from = y;
            to = staged_y;
            more = y_outputs;
        }
        if (array == &layout.y && block >= array->blocks) {
            block -= array->blocks;
            array = &layout.w;
            from = w;
            to = staged_w;
            more = {};
        }
        if (array == &layout.w && block >= array->blocks)
            return write_row(rows, layout, block - array->blocks);
        if (array == &layout.w && layout.groups.joined)
            return spread_w<E, TF32>(w, staged_w, *array, layout.groups, block);
        stage_array<E, TF32>(from, to, *array, more, block, memory);
    }
}

}  // namespace cto::conv::staging
