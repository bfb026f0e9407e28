// SPDX-License-Identifier: MIT
#include "wait_report.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "warp_operations.h"

namespace emulator {

namespace {

class Text {
 public:
  __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
    va_list values;
    va_start(values, format);
    const int written = std::vsnprintf(buffer_ + size_, sizeof buffer_ - size_, format, values);
    va_end(values);
    if (written > 0) size_ += written;
    if (size_ >= sizeof buffer_) size_ = sizeof buffer_ - 1;
  }
  const char* get() const { return buffer_; }

 private:
  char buffer_[3072] = "";
  size_t size_ = 0;
};

uint32_t lanes_waiting_alike(const Warp& warp, uint32_t lanes, const WarpCall& call) {
  uint32_t alike = 0;
  for (unsigned l = 0; l < kWarpSize; ++l) {
    if (!(lanes >> l & 1)) continue;
    const WarpCall& other = *warp.calls[l];
    if (other.operation == call.operation && other.mask == call.mask &&
        same_site(other.site, call.site))
      alike |= 1u << l;
  }
  return alike;
}

void add_operations(Text& text, const Warp& warp, unsigned index) {
  for (uint32_t rest = warp.at_operation; rest != 0;) {
    const WarpCall& call = *warp.calls[__builtin_ctz(rest)];
    const uint32_t alike = lanes_waiting_alike(warp, rest, call);
    text.add("; warp %u lanes 0x%08x wait at %s (mask 0x%08x, %s:%d)", index, alike,
             operation_name(call.operation), call.mask, call.site.file, call.site.line);
    rest &= ~alike;
  }
}

}  // namespace

bool same_site(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

const char* deadlock_text(const Warp* warps, unsigned warp_count) {
  static Text text;
  text = Text();
  text.add("deadlock: no thread of the block can go on");
  for (unsigned w = 0; w < warp_count; ++w) {
    if (warps[w].at_barrier != 0)
      text.add("; warp %u lanes 0x%08x wait at the block barrier (%s:%d)", w, warps[w].at_barrier,
               warps[w].barrier_site.file, warps[w].barrier_site.line);
    add_operations(text, warps[w], w);
  }
  return text.get();
}

}  // namespace emulator
