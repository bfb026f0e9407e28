// SPDX-License-Identifier: MIT
// Arrays whose surroundings are watched. An array ends less than 16 bytes before an inaccessible
// page: its address keeps the remainder modulo 16 of the caller's array, by which the host chooses
// vector kernels. The slack before the page and the rest of the first page hold a canary for
// writes; every access of a kernel is also checked against the exact extent (access_checks.cpp).
#include "guarded_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace emulator {

uintptr_t arena;
Extent extents[kSlotCount];
void* dynamic_shared;

namespace {

constexpr uintptr_t kPage = 4096;
constexpr uintptr_t kSlotBytes = uintptr_t{1} << kSlotBits;
constexpr uintptr_t kMaxArrayBytes = kSlotBytes - 2 * kPage;
constexpr uintptr_t kAlignment = 16;
constexpr unsigned char kCanary = 0xA5;

struct Slot {
  bool taken;
  uintptr_t first_page;
  uintptr_t guard_page;
  char label[96];
};

Slot slots[kSlotCount];
unsigned lowest_free;
unsigned end_of_used;  // no slot from here on was ever taken
char acquire_problem[128];

unsigned slot_of(uintptr_t address) { return (address - arena) >> kSlotBits; }

template <typename... Values>
bool refuse(const char* format, Values... values) {
  std::snprintf(acquire_problem, sizeof acquire_problem, format, values...);
  return false;
}

bool reserve_arena() {
  if (arena != 0) return true;
  void* memory = mmap(nullptr, kArenaBytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return refuse("no address space: %s", std::strerror(errno));
  arena = reinterpret_cast<uintptr_t>(memory);
  return true;
}

bool find_free_slot(unsigned& index) {
  for (index = lowest_free; index < kSlotCount; ++index)
    if (!slots[index].taken) return true;
  return refuse("%u guarded arrays exist, and no more fit at once", kSlotCount);
}

bool open_pages(const Slot& slot) {
  const uintptr_t bytes = slot.guard_page - slot.first_page;
  void* const begin = reinterpret_cast<void*>(slot.first_page);
  if (bytes == 0 || mprotect(begin, bytes, PROT_READ | PROT_WRITE) == 0) return true;
  return refuse("the system gives no memory: %s", std::strerror(errno));
}

void fill_canaries(const Slot& slot, const Extent& extent) {
  if (slot.first_page == slot.guard_page) return;
  std::memset(reinterpret_cast<void*>(slot.first_page), kCanary, extent.begin - slot.first_page);
  std::memset(reinterpret_cast<void*>(extent.end), kCanary, slot.guard_page - extent.end);
}

// The first byte is right, and each other one equals the one before it.
bool is_canary(uintptr_t begin, uintptr_t end) {
  const unsigned char* const bytes = reinterpret_cast<unsigned char*>(begin);
  return begin == end ||
         (*bytes == kCanary && std::memcmp(bytes, bytes + 1, end - begin - 1) == 0);
}

}  // namespace

const char* describe_address(uintptr_t address) {
  static char text[256];
  if (address == 0) return "a null pointer";
  if (address - arena >= kArenaBytes) return "not in any array of this launch";
  const Slot& slot = slots[slot_of(address)];
  const Extent& extent = extents[slot_of(address)];
  if (!slot.taken) return "far outside every array of this launch";
  const bool before = address < extent.begin;
  const char* const relation = before                 ? "before the start of"
                               : address < extent.end ? "before the end of"
                                                      : "past the end of";
  const uintptr_t distance = before                 ? extent.begin - address
                             : address < extent.end ? extent.end - address
                                                    : address - extent.end;
  std::snprintf(text, sizeof text, "%zu bytes %s %s (%zu bytes)", static_cast<size_t>(distance),
                relation, slot.label, static_cast<size_t>(extent.end - extent.begin));
  return text;
}

}  // namespace emulator

using namespace emulator;

// Gives an array of `bytes` bytes at an address of the given remainder modulo 16, or null: then
// emulator_acquire_problem says why.
extern "C" uintptr_t emulator_acquire(uint64_t bytes, uint64_t remainder, const char* label) {
  if (bytes > kMaxArrayBytes)
    return refuse("an array has at most %zu bytes", static_cast<size_t>(kMaxArrayBytes));
  unsigned index;
  if (!reserve_arena() || !find_free_slot(index)) return 0;
  Slot& slot = slots[index];
  slot.guard_page = arena + (index + uintptr_t{1}) * kSlotBytes - kPage;
  const uintptr_t begin =
      slot.guard_page - bytes - (kAlignment - (bytes + remainder) % kAlignment) % kAlignment;
  slot.first_page = begin / kPage * kPage;
  std::snprintf(slot.label, sizeof slot.label, "%s", label);
  if (!open_pages(slot)) return 0;
  slot.taken = true;
  lowest_free = index + 1;
  end_of_used = std::max(end_of_used, lowest_free);
  extents[index] = {begin, begin + bytes};
  fill_canaries(slot, extents[index]);
  return begin;
}

extern "C" const char* emulator_acquire_problem() { return acquire_problem; }

// Null, or which array was written beside, on which side.
extern "C" const char* emulator_canary_damage() {
  static char text[128];
  for (unsigned i = 0; i < end_of_used; ++i) {
    if (!slots[i].taken) continue;
    const bool before = !is_canary(slots[i].first_page, extents[i].begin);
    const bool after = !is_canary(extents[i].end, slots[i].guard_page);
    if (!before && !after) continue;
    const char* const side = before ? "before the start of" : "past the end of";
    std::snprintf(text, sizeof text, "written %s %s", side, slots[i].label);
    return text;
  }
  return nullptr;
}

extern "C" bool emulator_is_guarded(uintptr_t address) {
  return arena != 0 && address - arena < kArenaBytes;
}

// Where the guarded array in whose part of the arena the address lies begins and ends; empty without
// one.
extern "C" Extent emulator_extent_at(uintptr_t address) {
  return emulator_is_guarded(address) ? extents[slot_of(address)] : Extent{};
}

extern "C" void emulator_release(uintptr_t begin) {
  const unsigned index = slot_of(begin);
  Slot& slot = slots[index];
  if (const uintptr_t bytes = slot.guard_page - slot.first_page)
    mmap(reinterpret_cast<void*>(slot.first_page), bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  slot.taken = false;
  extents[index] = {};
  if (index < lowest_free) lowest_free = index;
}
