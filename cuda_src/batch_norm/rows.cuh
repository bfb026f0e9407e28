// SPDX-License-Identifier: MIT
// An array as a matrix: a thread has a slot, W neighbouring columns, in some of the rows.
#pragma once
#include "batch_norm/coefficients.cuh"
#include "batch_norm/sums.cuh"
#include "core/async_copy.cuh"

namespace cto::batch_norm::rows {

using namespace batch_norm::coefficients;
using namespace batch_norm::sums;

// The thread's slots (W columns) in DEPTH = N_ROWS rows of each of READ arrays, in registers.
template <class T, int W, int READ, int N_ROWS>
struct Rows {
    static constexpr int DEPTH = N_ROWS;
    using Unit = vec::Unit<T, vec::IN_WORDS<T, W>>;
    using Register = typename Unit::Register;
    using Slot = Vec<Register, W * sizeof(T) / sizeof(Register)>;

    Slot registers[READ][DEPTH];
    i32 n;          // the first n rows exist
    u32 n_columns;  // columns of the slot that exist

    // Loads the first n rows from global memory: row u begins at index element + u * pitch.
    // aligned: slots are loaded as vectors, else n_columns elements one by one. STREAMING:
    // evict-first.
    template <bool STREAMING>
    __device__ void load(const T* const (&arrays)[READ], i64 element, i64 pitch, bool aligned) {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int a = 0; a < READ; ++a) {
                registers[a][u] =
                    {};  // unset, it would stay live from round to round, in registers
                if (u < n)
                    registers[a][u] =
                        load_slot<STREAMING>(arrays[a] + element + u * pitch, aligned);
            }
    }
    // Loads the first n rows from shared memory, where the slots of array 0, 1, ... of row 0, then
    // of row 1, ... are `pitch` bytes apart.
    __device__ void load_shared(const u8* slots, u32 pitch) {
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int a = 0; a < READ; ++a, slots += pitch) {
                registers[a][u] = {};
                if (u < n) registers[a][u] = *reinterpret_cast<const Slot*>(slots);
            }
    }
    // Element i of the slot in row u of an array, as its accumulator type.
    __device__ Acc<T> at(int array, int u, int i) const {
        return Unit::at(registers[array][u].at, i);
    }
    // An element of column i of the first array; its second argument, for a batch without elements,
    // is not needed.
    __device__ Acc<T> any_of(int i, Acc<T>) const { return at(0, 0, i); }
    // Calls see(element of each array) for the rows of column i; zeros if the column does not
    // exist.
    template <class See>
    __device__ void each(int i, const See& see) const {
        show<READ, DEPTH>(*this, i, i + 1, see);
    }

  private:
    // The slot at `from`; not aligned: its n_columns elements, then zeros. STREAMING: evict-first.
    template <bool STREAMING>
    __device__ Slot load_slot(const T* from, bool aligned) const {
        const auto* const slot = reinterpret_cast<const Slot*>(from);
        if (aligned) return STREAMING ? vec::load_streaming(slot) : *slot;
        const auto elements = vec::load_elements<T, W>(from, 0, n_columns);
        return *reinterpret_cast<const Slot*>(&elements);
    }
};

// ---- by way of shared memory --------------------------------------------------------------------

// Columns of a thread's slot.
template <class Op>
constexpr int WIDTH =
    vec::WIDTH<typename Op::T> < MAX_COLUMNS ? vec::WIDTH<typename Op::T> : MAX_COLUMNS;

// A tag for callbacks: Any<true> says that a group of rows may have fewer than DEPTH rows.
template <bool ANY>
struct Any {
    static constexpr bool is = ANY;
};

// A pipeline of a thread's n rows through shared memory: a ring of `size` groups of DEPTH rows,
// copied asynchronously. While one group is used, RING_GROUPS - 1 others are being copied. A thread
// uses what it copied itself, so there are no barriers. LAST: the second pass; rows are not read
// again, and go from the last one back.
template <class Op, bool LAST>
struct Ring {
    using T = typename Op::T;
    static constexpr int READ = Op::READ, COLUMNS = WIDTH<Op>, DEPTH = RING_ROWS / READ;
    static constexpr u32 NBYTES = COLUMNS * sizeof(T), SLOT_PITCH = NBYTES * THREADS;
    static_assert(sizeof(T) > 2 || NBYTES == 16);
    using Register = Rows<T, COLUMNS, READ, DEPTH>;

    const Op& op;
    const u8* own;            // this thread's slots in shared memory
    async_copy::Place place;  // the same, as a destination of copies
    i64 pitch;                // elements from a row to the next
    u32 size;                 // groups in the ring
    i32 cached;               // rows that L2 keeps, just before those that stay in the ring
    i64 later, next;      // element of the next row to be copied, to be used; LAST: the end of it
    i32 n_later, n_next;  // rows from there on
    u32 copied = 0, used = 0;  // places in the ring of the next group to be copied, to be used
    i64 resident = 0;          // element of the first row left in the ring by the first pass
    i32 n_resident = 0;        // such rows; they are used before all others

    // memory: the ring of all threads, in shared memory; place: the same as a destination of
    // copies. Row r < n of the thread begins at element + r * pitch of each array. LAST: `later`
    // and `next` start at the end of the last row.
    __device__ Ring(const Op& op, const u8* memory, async_copy::Place place, const Columns& columns,
                    i64 element, i64 pitch, i32 n)
        : op(op),
          own(memory + threadIdx.x * NBYTES),
          place(place + threadIdx.x * NBYTES),
          pitch(pitch),
          size(columns.ring_groups),
          cached(columns.cached),
          later(element + (LAST ? n * pitch : 0)),
          next(later),
          n_later(n),
          n_next(n) {}

    // Rows of the next group, if `left` rows are left.
    static __device__ i32 group_rows(i32 left) { return left < DEPTH ? left : DEPTH; }
    // After n rows went through a ring of `size` groups: how many, the first ones, were
    // overwritten.
    static __device__ i32 count_overwritten(i32 n, u32 size) {
        const i32 over = (n + DEPTH - 1) / DEPTH - static_cast<i32>(size);
        return over > 0 ? over * DEPTH : 0;
    }
    static constexpr u32 GROUP_NBYTES = READ * DEPTH * SLOT_PITCH;
    // The place after `group` in the ring.
    __device__ u32 after(u32 group) const { return group + 1 < size ? group + 1 : 0; }
    // Begins to copy the next group to place `copied` of the ring. Without rows left it commits an
    // empty group, so that waiting for a number of groups stays right. ALL: the group has DEPTH
    // rows.
    template <bool ALL>
    __device__ void copy_group() {
        const i32 some = ALL ? DEPTH : group_rows(n_later);
        const i64 from = LAST ? later - some * pitch : later;
        // L2 is for rows that are read again soon; those that stay in the ring are not.
        const i32 before = n_later - static_cast<i32>(size) * DEPTH;
        if (!LAST && before > 0 && before <= cached)
            copy_rows<ALL, /*STREAMING=*/false>(from, some);
        else
            copy_rows<ALL, /*STREAMING=*/true>(from, some);
        async_copy::commit();
        later = LAST ? from : from + some * pitch;
        n_later -= some;
        copied = after(copied);
    }
    // Begins to copy row u < some of array a from op.arrays[a] + from + u * pitch to
    // place + copied * GROUP_NBYTES + (u * READ + a) * SLOT_PITCH.
    template <bool ALL, bool STREAMING>
    __device__ __forceinline__ void copy_rows(i64 from, i32 some) {
        async_copy::Place to = place + copied * GROUP_NBYTES;
#pragma unroll
        for (int u = 0; u < DEPTH; ++u)
#pragma unroll
            for (int a = 0; a < READ; ++a, to += SLOT_PITCH)
                if (ALL || u < some)
                    async_copy::copy_16<STREAMING>(to, op.arrays[a] + from + u * pitch);
    }
    // Begins to copy the first RING_GROUPS groups.
    __device__ void begin() {
#pragma unroll 1
        for (int i = 0; i < RING_GROUPS; ++i) copy_group</*ALL=*/false>();
    }
    // Instead of `begin`, in the second pass: the last n rows, from `element` on, are still in the
    // ring, and are used first. The `overwritten` rows before them have to be copied again.
    __device__ void begin_with_resident(i64 element, i32 overwritten, i32 n) {
        resident = element, n_resident = n;
        used = copied = overwritten / DEPTH % size;
    }
    // Calls use(rows, element, pitch, Any) for all rows, a group at a time, after `begin` or
    // begin_with_resident. Groups that may have fewer than DEPTH rows have code of their own.
    template <class Use>
    __device__ void go_on(const Use& use) {
#pragma unroll 1
        while (n_resident > 0 || n_next > 0) {
            use_group</*ALL=*/false>(use);
#pragma unroll 1
            while (n_resident <= 0 && n_later >= DEPTH) use_group</*ALL=*/true>(use);
        }
    }
    // Waits for the next group, loads it into registers, begins to copy one more, and calls
    // use(rows, element, pitch, Any), where row u of the group is at index element + u * pitch.
    // ALL: the group, and the one copied, have DEPTH rows.
    template <bool ALL, class Use>
    __device__ void use_group(const Use& use) {
        const bool is_resident = !ALL && n_resident > 0;
        async_copy::wait<RING_GROUPS - 1>();
        Register rows;
        rows.n_columns = COLUMNS;
        rows.n = ALL ? DEPTH : group_rows(is_resident ? n_resident : n_next);
        rows.load_shared(own + used * GROUP_NBYTES, SLOT_PITCH);
        used = after(used);
        copy_group<ALL>();
        const i64 on = rows.n * pitch, element = is_resident ? resident : LAST ? next - on : next;
        use(rows, element, pitch, Any<!ALL>{});
        if (is_resident)
            resident += on, n_resident -= rows.n;
        else
            next = LAST ? element : element + on, n_next -= rows.n;
    }
};

}  // namespace cto::batch_norm::rows
