// SPDX-License-Identifier: MIT
// g++ -fsanitize=kernel-address puts a call of one of these before every load and store of a kernel.
// They see an overrun of one byte even where the array does not end at an inaccessible page.
// Kernels are linked with --wrap, so that no sanitizer loaded into Python answers in their place.
#include <cstdint>

#include "faults.h"
#include "guarded_memory.h"
#include "races.h"

namespace {

__attribute__((always_inline)) inline void check_access(const void* pointer, uintptr_t bytes,
                                                        bool is_store) {
    using emulator::arena, emulator::extents;
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    void* const caller = __builtin_return_address(0);
    if (holds(emulator::static_shared_range, address))
        note_shared_access(emulator::static_shared_range, address, bytes, is_store, caller);
    const uintptr_t offset = address - arena;
    if (offset >= emulator::kArenaBytes) return;
    const emulator::Extent& extent = extents[offset >> emulator::kSlotBits];
    if (address < extent.begin || address + bytes > extent.end)
        emulator::report_access(address, bytes, is_store, caller);
    if (holds(emulator::dynamic_shared_range, address))
        note_shared_access(emulator::dynamic_shared_range, address, bytes, is_store, caller);
}

}  // namespace

#define CTO_ACCESS_CHECKS(bytes)                                      \
    extern "C" void __wrap___asan_load##bytes(const void* pointer) {  \
        check_access(pointer, bytes, false);                          \
    }                                                                 \
    extern "C" void __wrap___asan_store##bytes(const void* pointer) { \
        check_access(pointer, bytes, true);                           \
    }

CTO_ACCESS_CHECKS(1)
CTO_ACCESS_CHECKS(2)
CTO_ACCESS_CHECKS(4)
CTO_ACCESS_CHECKS(8)
CTO_ACCESS_CHECKS(16)

#undef CTO_ACCESS_CHECKS

extern "C" void __wrap___asan_loadN(const void* pointer, uintptr_t bytes) {
    check_access(pointer, bytes, false);
}

extern "C" void __wrap___asan_storeN(const void* pointer, uintptr_t bytes) {
    check_access(pointer, bytes, true);
}

extern "C" void __wrap___asan_handle_no_return() {}
