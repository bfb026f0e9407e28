// SPDX-License-Identifier: MIT
// Data movement: an output is a sequence of runs of consecutive words, or of zeros.
//
// A word (T) is as wide as all addresses and lengths of a launch allow. A thread writes vectors of
// 16 aligned bytes; if their source is not aligned, it loads the 32 aligned bytes around it and
// shifts. A Source says where the words of the output come from: its at(position) returns the Run
// whose first word is word `position` of the output.
#pragma once
#include "core/vec.cuh"

namespace cto::copy_runs {

// Blocks on a multiprocessor, for __launch_bounds__; for more, registers would spill.
constexpr int RESIDENT = 8;

// A block of THREADS writes a tile. A vector is WORDS words: 16 bytes of them, or 1 for short runs.
// A thread writes VECS vectors.
template <class T, int WORDS, int VECS, int THREADS>
struct Tiling {
    using Word = T;
    using Vec = vec::Vec<T, WORDS>;
    static constexpr int words = WORDS, vecs = VECS;
    static constexpr int row = WARP * WORDS;  // words of a row: a warp's vectors side by side
    static constexpr int warp = VECS * row;   // words of a warp, VECS rows
    static constexpr int size = VECS * THREADS * WORDS;  // words of a tile
};

// `length` consecutive words at `from`, which is inside an array from `begin` to `end`; zeros where
// `from` is null.
template <class T>
struct Run {
    const T* from;
    i64 length;
    const T* begin;
    const T* end;
};

// The run of `length` zeros.
template <class T>
__device__ __forceinline__ Run<T> zeros(i64 length) {
    return {/*from=*/nullptr, length, /*begin=*/nullptr, /*end=*/nullptr};
}

// Returns in every lane the pointer that lane `lane` passes. All lanes call it.
template <class T>
__device__ __forceinline__ const T* shuffled(const T* pointer, int lane) {
    const u64 address = __shfl_sync(ALL_LANES, reinterpret_cast<u64>(pointer), lane);
    return reinterpret_cast<const T*>(address);
}

// The 16 or 32 aligned bytes around a vector of N words (16 bytes) that starts at any address: the
// vector is the bytes [shift, shift + 16) of low and high; high is loaded only if shift is not 0.
template <class T, int N>
struct Loaded {
    uint4 low, high;
    u32 shift;

    // True if the run has `words` words, and all bytes loaded for them are inside its array: from
    // `before` words ahead of the first one to N - before behind the last. Zeros load nothing.
    __device__ static bool possible(const Run<T>& run, int words) {
        if (run.length < words || !run.from) return run.length >= words;
        const i64 before = vec::bytes_past_16(run.from) / sizeof(T);
        return before == 0 ||
               (run.from - run.begin >= before && run.end - run.from >= words + N - before);
    }

    // Loads the one or two aligned vectors that contain the 16 bytes at `from`, which may be
    // unaligned; zeros if it is null.
    __device__ void load(const T* from) {
        low = high = uint4{0, 0, 0, 0};
        shift = vec::bytes_past_16(from);
        const uint4* aligned = reinterpret_cast<const uint4*>(from - shift / sizeof(T));
        if (from) low = __ldg(aligned);
        if (shift) high = __ldg(aligned + 1);
    }

    // The N words from byte `shift` on: moves all by 8 bytes if shift has bit 8, by 4 if it has bit
    // 4, then by the other 0 to 3 bytes. `shift` is a multiple of sizeof(T).
    __device__ vec::Vec<T, N> shifted() const {
        u32 w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        if (shift & 8) {
#pragma unroll
            for (int i = 0; i < 6; ++i) w[i] = w[i + 2];
        }
        if (sizeof(T) <= 4 && (shift & 4)) {
#pragma unroll
            for (int i = 0; i < 5; ++i) w[i] = w[i + 1];
        }
        if (sizeof(T) <= 2) {
#pragma unroll
            for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], 8 * (shift & 3));
        }
        const uint4 joined{w[0], w[1], w[2], w[3]};
        return *reinterpret_cast<const vec::Vec<T, N>*>(&joined);
    }
};

// A vector of one word, which is aligned.
template <class T>
struct Loaded<T, 1> {
    vec::Vec<T, 1> word;

    // True if the run has `words` words.
    __device__ static bool possible(const Run<T>& run, int words) { return run.length >= words; }
    // Loads the word at `from`; 0 if that is null.
    __device__ void load(const T* from) { word.at[0] = from ? __ldcs(from) : T{}; }
    // The word: there is nothing to shift.
    __device__ vec::Vec<T, 1> shifted() const { return word; }
};

// loaded[u] = the lane's vector of row u of a warp's words, u < S::vecs, if it lies in one run;
// rows begin at position first + u * S::row of an output of n words. Returns bits: bit u is set if
// vector u is loaded. Lane u asks for the run of row u; if that ends inside the row, every lane
// asks for the run of its own vector. source: a Source; lane: of the calling thread.
template <class S, class Source>
__device__ __forceinline__ u32 load_vecs(const Source& source, i64 n, i64 first, int lane,
                                         Loaded<typename S::Word, S::words>* loaded) {
    using T = typename S::Word;
    using Loaded = Loaded<T, S::words>;
    const T* row = nullptr;
    bool one_run = false;
    const i64 start = first + lane % S::vecs * S::row;
    if (start >= 0 && start + S::row <= n) {
        const Run<T> run = source.at(start);
        one_run = Loaded::possible(run, S::row);
        row = run.from;
    }
    // Bit u: row u is one run.
    u32 done = __ballot_sync(ALL_LANES, one_run) & ((1u << S::vecs) - 1);
#pragma unroll
    for (int u = 0; u < S::vecs; ++u) {
        const T* from = shuffled(row, u);
        if (done >> u & 1u) {
            loaded[u].load(from ? from + lane * S::words : nullptr);
            continue;
        }
        const i64 position = first + u * S::row + lane * S::words;
        if (position < 0 || position + S::words > n) continue;
        const Run<T> run = source.at(position);
        if (!Loaded::possible(run, S::words)) continue;
        loaded[u].load(run.from);
        done |= 1u << u;
    }
    return done;
}

// Copies the vectors of some lanes word by word, one vector after the other, a lane a word: vectors
// in which several runs meet, or that are partly outside the n words of `out`. Bit l of `left`:
// copy lane l's vector, which begins at position row + l * S::words. source: a Source; lane: of the
// calling thread.
template <class S, class Source>
__device__ __forceinline__ void copy_words(typename S::Word* out, i64 n, i64 row, u32 left,
                                           int lane, const Source& source) {
    using T = typename S::Word;
    for (; left; left &= left - 1) {
        const i64 position = row + (__ffs(left) - 1) * S::words + lane;
        if (lane >= S::words || position < 0 || position >= n) continue;
        const T* from = source.at(position).from;
        out[position] = from ? __ldg(from) : T{};
    }
}

// Copies the tile of S::size words of 16 bytes from position `first` on, if `source` has it in one
// run and the n words of `out` contain it; else returns false. Plain loads and stores: streaming
// ones take 3 % longer in large copies.
template <class S, class Source>
__device__ __forceinline__ bool copy_run(typename S::Word* out, i64 n, i64 first,
                                         const Source& source) {
    using T = typename S::Word;
    if (first + S::size > n) return false;
    const Run<T> run = source.at(first);
    if (run.length < S::size || !run.from) return false;
    const u32 own = threadIdx.x / WARP * S::warp + threadIdx.x % WARP;
    T loaded[S::vecs];
#pragma unroll
    for (int u = 0; u < S::vecs; ++u) loaded[u] = run.from[own + u * S::row];
#pragma unroll
    for (int u = 0; u < S::vecs; ++u) out[first + (own + u * S::row)] = loaded[u];
    return true;
}

// Writes tile `tile`, S::size words, of the n words of `out` from the runs of `source`, a Source;
// by a block. If `out` begins `lead` words after a multiple of 16 bytes, all tiles begin `lead`
// words earlier, so that vectors are aligned; positions below 0 are left out. Whole vectors in one
// run are loaded together, others then written word by word. ARE_LONG: most tiles lie in one run.
template <class S, bool ARE_LONG = false, class Source>
__device__ __forceinline__ void write_tile(typename S::Word* out, i64 n, i64 tile,
                                           const Source& source) {
    using T = typename S::Word;
    const int lane = threadIdx.x % WARP;
    const i64 lead = S::words == 1 ? 0 : vec::bytes_past_16(out) / sizeof(T);
    if constexpr (ARE_LONG && sizeof(T) == 16)
        if (copy_run<S>(out, n, tile * S::size, source)) return;
    const i64 first = tile * S::size - lead + threadIdx.x / WARP * S::warp;
    Loaded<T, S::words> loaded[S::vecs];
    const u32 done = load_vecs<S>(source, n, first, lane, loaded);
#pragma unroll
    for (int u = 0; u < S::vecs; ++u) {
        if (done >> u & 1u)
            vec::store_streaming(
                reinterpret_cast<typename S::Vec*>(out + first + u * S::row + lane * S::words),
                loaded[u].shifted());
    }
    if (S::words == 1) return;
#pragma unroll 1
    for (int u = 0; u < S::vecs; ++u) {
        const i64 row = first + u * S::row;
        const bool open = !(done >> u & 1u) && row + lane * S::words < n;
        copy_words<S>(out, n, row, __ballot_sync(ALL_LANES, open), lane, source);
    }
}

}  // namespace cto::copy_runs
