// SPDX-License-Identifier: MIT
// The way from the runtime into a kernel, and the kernel's signature as data for the Python side.
#pragma once

#include <type_traits>
#include <utility>

#include "../../runtime/interface.h"

namespace emulator {

// Mirrored by Parameter in native.py. Kinds: p pointer, b bool, i signed, u unsigned,
// f floating point, s structure.
struct Parameter {
  char kind;
  unsigned bytes;
};

// Mirrored by KernelEntry in native.py.
struct KernelEntry {
  const char* name;
  void (*body)(void** arguments);
  const Parameter* parameters;
  unsigned parameter_count;
  unsigned max_threads;
};

template <typename T>
constexpr char kind_of() {
  if (std::is_pointer_v<T>) return 'p';
  if (std::is_same_v<T, bool>) return 'b';
  if (std::is_floating_point_v<T> || std::is_same_v<T, __half> ||
      std::is_same_v<T, __nv_bfloat16>)
    return 'f';
  if (!std::is_integral_v<T> && !std::is_enum_v<T>) return 's';
  return std::is_signed_v<T> ? 'i' : 'u';
}

template <auto kernel>
struct Trampoline;

template <typename... P, void (*kernel)(P...)>
struct Trampoline<kernel> {
  // The last entry only keeps the array of a kernel without parameters from being empty.
  static constexpr Parameter parameters[] = {{kind_of<P>(), sizeof(P)}..., {'\0', 0}};

  static void run(void** arguments) { run_threads(arguments, std::index_sequence_for<P...>()); }

  template <size_t... i>
  static void run_threads([[maybe_unused]] void** arguments, std::index_sequence<i...>) {
    for (;;) {
      forget_copies();
      forget_products();
      kernel(*static_cast<P*>(arguments[i])...);
      finish_thread();
    }
  }

  static constexpr KernelEntry entry(const char* name, unsigned max_threads) {
    return {name, run, parameters, sizeof...(P), max_threads};
  }
};

// The first argument of __launch_bounds__.
template <typename... Rest>
constexpr unsigned max_threads(unsigned first, Rest...) {
  return first;
}

}  // namespace emulator
