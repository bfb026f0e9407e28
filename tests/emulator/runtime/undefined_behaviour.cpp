// SPDX-License-Identifier: MIT
// The handlers that g++ -fsanitize=undefined calls, in place of libubsan: no library to preload,
// and every report becomes a failure of the launch with its source line.
#include <cstddef>
#include <cstdint>

#include "interface.h"

namespace {

struct SourceLocation {
  const char* file;
  uint32_t line;
  uint32_t column;
};

struct TypeDescriptor {
  uint16_t kind;
  uint16_t information;
  char name[1];
};

struct TypeMismatch {
  SourceLocation where;
  const TypeDescriptor* type;
  unsigned char alignment_log2;
  unsigned char check_kind;
};

struct OutOfBounds {
  SourceLocation where;
  const TypeDescriptor* array;
  const TypeDescriptor* index;
};

emulator::Site site_of(const SourceLocation& where) {
  return {where.file, static_cast<int>(where.line)};
}

}  // namespace

// Every handler's first argument points to a structure that starts with the source location.
#define CTO_HANDLER(name, text)                                              \
  extern "C" [[noreturn]] void __ubsan_handle_##name(SourceLocation* where) { \
    emulator::fail(site_of(*where), "undefined behaviour: %s", text);        \
  }

CTO_HANDLER(add_overflow_abort, "signed overflow in +")
CTO_HANDLER(sub_overflow_abort, "signed overflow in -")
CTO_HANDLER(mul_overflow_abort, "signed overflow in *")
CTO_HANDLER(negate_overflow_abort, "signed overflow in negation")
CTO_HANDLER(divrem_overflow_abort, "division by zero, or overflow in a division")
CTO_HANDLER(shift_out_of_bounds_abort, "shift by a negative number or by the width or more")
CTO_HANDLER(load_invalid_value_abort, "loaded a bool or enum that holds no valid value")
CTO_HANDLER(vla_bound_not_positive_abort, "array size is not positive")
CTO_HANDLER(nonnull_arg_abort, "null pointer passed to a function that forbids it")
CTO_HANDLER(pointer_overflow_abort, "pointer arithmetic on null or beyond the address space")
CTO_HANDLER(invalid_builtin_abort, "invalid argument of a compiler built-in function")
CTO_HANDLER(builtin_unreachable, "reached code marked unreachable, or a false __builtin_assume")
CTO_HANDLER(missing_return, "function ended without its return value")

#undef CTO_HANDLER

extern "C" [[noreturn]] void __ubsan_handle_out_of_bounds_abort(OutOfBounds* data,
                                                                uintptr_t index) {
  emulator::fail(site_of(data->where), "undefined behaviour: index %lld out of range of type %s",
                 static_cast<long long>(index), data->array->name);
}

extern "C" [[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(TypeMismatch* data,
                                                                   uintptr_t address) {
  const char* const type = data->type->name;
  const emulator::Site site = site_of(data->where);
  const uintptr_t alignment = uintptr_t{1} << data->alignment_log2;
  emulator::fail(site,
                 "undefined behaviour: misaligned address %#zx for type %s, which needs a "
                 "multiple of %zu",
                 static_cast<size_t>(address), type, static_cast<size_t>(alignment));
}
