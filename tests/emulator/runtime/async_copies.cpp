// SPDX-License-Identifier: MIT
// Copies that threads have begun and not waited for.
#include <vector>

#include "fibers.h"
#include "interface.h"

namespace emulator {

namespace {

struct Begun {
  std::vector<AsyncCopy> copies;  // in order
  std::vector<size_t> ends;       // of groups, among them
  size_t n_made = 0;              // since the last wait

  // Forgets what is made of so many groups.
  void drop(size_t n_groups) {
    copies.erase(copies.begin(), copies.begin() + n_made);
    ends.erase(ends.begin(), ends.begin() + n_groups);
    for (size_t& end : ends) end -= n_made;
    n_made = 0;
  }
};

Begun of_threads[kMaxThreads];

Begun& of_this_thread() {
  return of_threads[(threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x];
}

}  // namespace

void forget_copies() {
  Begun& begun = of_this_thread();
  begun.copies.clear();
  begun.ends.clear();
  begun.n_made = 0;  // a fault may have ended a wait
}

void begin_copy(const AsyncCopy& copy) { of_this_thread().copies.push_back(copy); }

void end_group_of_copies() {
  Begun& begun = of_this_thread();
  begun.ends.push_back(begun.copies.size());
}

bool next_copy(size_t n_groups_left, AsyncCopy& copy) {
  Begun& begun = of_this_thread();
  if (begun.ends.size() <= n_groups_left) return false;
  const size_t n_groups = begun.ends.size() - n_groups_left;
  if (begun.n_made == begun.ends[n_groups - 1]) {
    begun.drop(n_groups);
    return false;
  }
  copy = begun.copies[begun.n_made++];
  return true;
}

}  // namespace emulator
