// SPDX-License-Identifier: MIT
// Rows of an array that is taken for a matrix: a thread has a slot of neighbouring columns in some
// of them.
#pragma once
#include "batch_norm/coefficients.cuh"
#include "batch_norm/sums.cuh"
#include "core/async_copy.cuh"

namespace cto::batch_norm::rows {

using namespace batch_norm::coefficients;
using namespace batch_norm::sums;

// DEPTH rows of a thread in each of READ arrays.
template <class T, int W, int READ, int N_ROWS>
struct Rows {
    static constexpr int DEPTH = N_ROWS;
    using Unit = vec::Unit<T, vec::IN_WORDS<T, W>>;
    using Held = typename Unit::Held;
    using Slot = Vec<Held, W * sizeof(T) / sizeof(Held)>;

    Slot held[READ][DEPTH];
    i32 n;  // rows that there are
    u32 n_columns;

    template <bool STREAMING>
    __device__ void load(const T* const (&arrays)[READ], i64 element, i64 pitch, bool aligned) {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int a = 0; a < READ; ++a) {
                held[a][u] = {};  // left as it is, it would take registers all the time
                if (u < n)
                    held[a][u] = load_slot<STREAMING>(arrays[a] + element + u * pitch, aligned);
            }
    }
    // The first n from shared memory, where slots lie `apart` bytes from each other.
    __device__ void load_held(const u8* slots, u32 apart) {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int a = 0; a < READ; ++a, slots += apart) {
                held[a][u] = {};
                if (u < n) held[a][u] = *reinterpret_cast<const Slot*>(slots);
            }
    }
    __device__ Acc<T> at(int array, int u, int i) const { return Unit::at(held[array][u].at, i); }
    __device__ Acc<T> any_of(int i, Acc<T>) const { return at(0, 0, i); }
    // Shows `see` the elements of a column; of one that is not the tile's, zeros.
    template <class See>
    __device__ void each(int i, const See& see) const {
        show<READ, DEPTH>(*this, i, i + 1, see);
    }

  private:
    template <bool STREAMING>
    __device__ Slot load_slot(const T* from, bool aligned) const {
        const auto* const slot = reinterpret_cast<const Slot*>(from);
        if (aligned) return STREAMING ? vec::load_streaming(slot) : *slot;
        const auto elements = vec::load_elements<T, W>(from, 0, n_columns);
        return *reinterpret_cast<const Slot*>(&elements);
    }
};

// ---- by way of shared memory --------------------------------------------------------------------

// Columns of a thread.
template <class Op>
constexpr int WIDTH =
    vec::WIDTH<typename Op::T> < MAX_COLUMNS ? vec::WIDTH<typename Op::T> : MAX_COLUMNS;

// is: a group may have fewer rows than others.
template <bool ANY>
struct Any {
    static constexpr bool is = ANY;
};

// Rows of whole slots, n of a thread: groups of them are copied to shared memory while others are
// used. A thread uses what it has copied. LAST: they are not read again, and go from the last one on.
template <class Op, bool LAST>
struct Ring {
    using T = typename Op::T;
    static constexpr int READ = Op::READ, COLUMNS = WIDTH<Op>, DEPTH = RING_ROWS / READ;
    static constexpr u32 NBYTES = COLUMNS * sizeof(T), APART = NBYTES * THREADS;
    static_assert(sizeof(T) > 2 || NBYTES == 16);
    using Held = Rows<T, COLUMNS, READ, DEPTH>;

    const Op& op;
    const u8* own;            // this thread's slots
    async_copy::Place place;  // the same
    i64 pitch;
    u32 size;                  // groups that there is room for
    i32 cached;                // rows before those that stay in shared memory that L2 is to keep
    i64 later, next;           // the first row that is to be copied, and used; LAST: behind it
    i32 n_later, n_next;       // rows from there on
    u32 copied = 0, used = 0;  // where groups are copied to and used next
    i64 kept = 0;              // the first of rows before all others that are in shared memory
    i32 n_kept = 0;

    // The thread has n rows: row r begins at element + r * pitch of each array. LAST: groups of
    // rows from the last row back, so `later` and `next` begin behind it; else from row 0 on.
    __device__ Ring(const Op& op, const u8* memory, async_copy::Place place, const Columns& columns,
                    i64 element, i64 pitch, i32 n)
        : op(op),
          own(memory + threadIdx.x * NBYTES),
          place(place + threadIdx.x * NBYTES),
          pitch(pitch),
          size(columns.ring),
          cached(columns.cached),
          later(element + (LAST ? n * pitch : 0)),
          next(later),
          n_later(n),
          n_next(n) {}

    // How many rows the next group has, of `left` that are left.
    static __device__ i32 of_group(i32 left) { return left < DEPTH ? left : DEPTH; }
    // The number of n rows used that have left shared memory: the first ones, in whole groups.
    static __device__ i32 count_gone(i32 n, u32 size) {
        const i32 over = (n + DEPTH - 1) / DEPTH - static_cast<i32>(size);
        return over > 0 ? over * DEPTH : 0;
    }
    static constexpr u32 OF_GROUP = READ * DEPTH * APART;
    // The group behind `group` in shared memory, in which groups lie in a ring.
    __device__ u32 after(u32 group) const { return group + 1 < size ? group + 1 : 0; }
    // Begins to copy the next group, of at most DEPTH rows, to place `copied` of the ring; without rows it only
    // counts as a group on its way. ALL: there are DEPTH rows.
    template <bool ALL>
    __device__ void copy_group() {
        const i32 some = ALL ? DEPTH : of_group(n_later);
        const i64 from = LAST ? later - some * pitch : later;
        // Rows that stay in shared memory, or are not read again soon, leave the L2 cache to the rest.
        const i32 before = n_later - static_cast<i32>(size) * DEPTH;
        if (!LAST && before > 0 && before <= cached)
            copy_rows<ALL, false>(from, some);
        else
            copy_rows<ALL, true>(from, some);
        async_copy::commit();
        later = LAST ? from : from + some * pitch;
        n_later -= some;
        copied = after(copied);
    }
    // Begins to copy `some` rows of all READ arrays, which begin at from, from + pitch, ...: row u
    // of array a to place + copied * OF_GROUP + (u * READ + a) * APART.
    template <bool ALL, bool STREAMING>
    __device__ __forceinline__ void copy_rows(i64 from, i32 some) {
        async_copy::Place to = place + copied * OF_GROUP;
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int a = 0; a < READ; ++a, to += APART)
                if (ALL || u < some)
                    async_copy::copy_16<STREAMING>(to, op.arrays[a] + from + u * pitch);
    }
    // Begins to copy the first RING_GROUPS groups.
    __device__ void begin() {
#pragma unroll 1
        for (int i = 0; i < RING_GROUPS; ++i) copy_group<false>();
    }
    // In place of `begin`: n rows, of which the first is at `element`, come before the others. Another
    // ring has left them in shared memory, behind as many as are `gone`.
    __device__ void begin_with_kept(i64 element, i32 gone, i32 n) {
        kept = element, n_kept = n;
        used = copied = gone / DEPTH % size;
    }
    // Gives `use` the rows, of which the first have begun to be copied. It is told whether there may be
    // fewer of them than in other groups, as it is of the first ones.
    template <class Use>
    __device__ void go_on(const Use& use) {
#pragma unroll 1
        while (n_kept > 0 || n_next > 0) {
            use_group<false>(use);
#pragma unroll 1
            while (n_kept <= 0 && n_later >= DEPTH) use_group<true>(use);
        }
    }
    // Waits for the next group, takes it into registers, begins to copy another one behind those on
    // their way, and calls use(rows, element, pitch, Any), where row 0 of the group is at
    // `element`.
    template <bool ALL, class Use>
    __device__ void use_group(const Use& use) {
        const bool is_kept = !ALL && n_kept > 0;
        async_copy::wait<RING_GROUPS - 1>();
        Held rows;
        rows.n_columns = COLUMNS;
        rows.n = ALL ? DEPTH : of_group(is_kept ? n_kept : n_next);
        rows.load_held(own + used * OF_GROUP, APART);
        used = after(used);
        copy_group<ALL>();
        const i64 on = rows.n * pitch, element = is_kept ? kept : LAST ? next - on : next;
        use(rows, element, pitch, Any<!ALL>{});
        if (is_kept)
            kept += on, n_kept -= rows.n;
        else
            next = LAST ? element : element + on, n_next -= rows.n;
    }
};

}  // namespace cto::batch_norm::rows
