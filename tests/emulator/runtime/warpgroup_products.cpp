// SPDX-License-Identifier: MIT
// Products of warpgroups: D (64 x columns) += A (64 x K) B (K x columns), of elements in shared memory
// where matrix descriptors say, or of an A in registers; K of them have 32 bytes. A product reads
// from its beginning until a thread waits for it: till then its sums are NaN, and neither they nor
// its operands may be written.
//
// A warp has 16 rows of D; of each 8 columns j lane 4 g + t has 2 t and 2 t + 1 of rows g and g + 8,
// as d[4 j] to d[4 j + 3]. Of an A in registers, of floats, it has row
// g + i % 2 * 8 at k = t + i / 2 * 4 as word i.
#include "warpgroup_products.h"

#include <cstring>
#include <memory>
#include <vector>

#include "fibers.h"
#include "matrix_products.h"
#include "races.h"

namespace emulator {

namespace {

constexpr unsigned kWarpsOfGroup = 4, kRowsOfWarp = 16, kVectorBytes = 16, kKBytes = 32;
// Where dynamic shared memory begins, so that an address of 0 is outside.
constexpr uint32_t kWindow = 1024;
const float kUnknown = __builtin_nanf("");

// ---- descriptors --------------------------------------------------------------------------------

// Bits 0-13 start, 16-29 leading and 32-45 stride offset, in units of 16 bytes; 62-63 swizzle mode:
// lines of 16 (none), 128, 64 or 32 bytes. Base offsets, bits 49-51, are 0 here.
struct Operand {
  const char* name;
  uint32_t start, leading, stride;  // in bytes
  uint32_t line;
  bool transposed;

  Operand(const char* of, uint64_t bits, bool is_transposed, Site site)
      : name(of), transposed(is_transposed) {
    constexpr uint64_t kField = (1 << 14) - 1;
    constexpr uint64_t kFields = kField | kField << 16 | kField << 32 | uint64_t{3} << 62;
    if (bits & ~kFields)
      fail(site, "wgmma: the descriptor of %s, 0x%016llx, has bits beside its fields", name,
           static_cast<unsigned long long>(bits));
    start = (bits & kField) * 16;
    leading = (bits >> 16 & kField) * 16;
    stride = (bits >> 32 & kField) * 16;
    const uint32_t lines[] = {16, 128, 64, 32};
    line = lines[bits >> 62];
    if (start >> 7 & swizzled())
      fail(site, "wgmma: %s begins at 0x%x, in the middle of a pattern of %u bytes", name, start,
           8 * line);
  }
  // Which bits of the number of 128 bytes are added to the number of 16 bytes, without carry.
  uint32_t swizzled() const { return line / kVectorBytes - 1; }

  // The address of a vector of 16 bytes: neighbouring k of a row of A or column of B, `of_k` 0 or 1;
  // if transposed, neighbouring rows or columns at one k.
  uint32_t address(unsigned of_row, unsigned of_k) const {
    const unsigned in_line = line / kVectorBytes;
    uint32_t at = start;
    if (!transposed)
      at += of_row / 8 * stride + of_row % 8 * line +
            of_k * (line == kVectorBytes ? leading : kVectorBytes);
    else if (line == kVectorBytes)
      at += of_row * stride + of_k % 8 * kVectorBytes + of_k / 8 * leading;
    else
      at += of_row % in_line * kVectorBytes + of_row / in_line * leading + of_k % 8 * line +
            of_k / 8 * stride;
    return at ^ (at >> 7 & swizzled()) * kVectorBytes;
  }
};

// ---- products -----------------------------------------------------------------------------------

unsigned bytes_of(Element type) { return type == Element::kFloat ? 4 : 2; }

// What a warp reads for a product: some of the rows of A, all columns of B.
struct Reads {
  struct Vector {
    uint32_t address;
    uint8_t bytes[kVectorBytes];
  };
  std::vector<Vector> vectors;
  bool is_checked;

  // Appends elements (row, k) of `count` rows from the first one on to `to`.
  void read(const Operand& operand, Element type, unsigned first, unsigned count,
            std::vector<float>& to, Site site);
};

// As a read of the current thread.
const uint8_t* bytes_at(uint32_t address, const char* name, Site site) {
  const SharedRange& range = dynamic_shared_range;
  if (address < kWindow || address - kWindow + kVectorBytes > range.bytes)
    fail(site, "wgmma: %s has elements at 0x%x, beside the %zu bytes of dynamic shared memory",
         name, address, static_cast<size_t>(range.bytes));
  const uintptr_t at = range.begin + (address - kWindow);
  note_shared_access(range, at, kVectorBytes, false, nullptr);
  if (is_hidden_from_proxy(range, at, kVectorBytes))
    fail(site, "wgmma: %s has elements at 0x%x that were written without a proxy fence since", name,
         address);
  return reinterpret_cast<const uint8_t*>(at);
}

void Reads::read(const Operand& operand, Element type, unsigned first, unsigned count,
                 std::vector<float>& to, Site site) {
  const size_t at = to.size();
  const unsigned size = bytes_of(type), of_vector = kVectorBytes / size, sums_over = kKBytes / size;
  to.resize(at + count * sums_over);
  const bool transposed = operand.transposed;
  const unsigned begin = transposed ? first / of_vector : first;
  const unsigned end = begin + (transposed ? count / of_vector : count);
  for (unsigned i = begin; i < end; ++i)
    for (unsigned j = 0; j < (transposed ? sums_over : sums_over / of_vector); ++j) {
      Vector vector{operand.address(i, j), {}};
      std::memcpy(vector.bytes, bytes_at(vector.address, operand.name, site), kVectorBytes);
      for (unsigned e = 0; e < of_vector; ++e) {
        uint32_t bits = 0;
        std::memcpy(&bits, vector.bytes + size * e, size);
        const unsigned row = transposed ? i * of_vector + e : i;
        const unsigned k = transposed ? j : j * of_vector + e;
        to[at + (row - first) * sums_over + k] = element(type, bits, 0);
      }
      vectors.push_back(vector);
    }
}

struct Begun {
  float* d;
  std::vector<float> sums;
  std::shared_ptr<Reads> reads;
};

struct Products {
  std::vector<Begun> begun;  // in order
  std::vector<size_t> ends;  // of groups, among them
  bool is_fenced;

  // The last product with these sums from number `first` on.
  const Begun* last_of(const float* d, size_t first) const {
    for (size_t i = begun.size(); i-- > first;)
      if (begun[i].d == d) return &begun[i];
    return nullptr;
  }
};

Products of_threads[kMaxThreads];
std::vector<GroupProduct> of_groups[kMaxWarps / kWarpsOfGroup];  // in the order of its first warp
size_t n_begun[kMaxWarps];

bool are_alike(const GroupProduct& one, const GroupProduct& other) {
  return one.type == other.type && one.columns == other.columns && one.a == other.a &&
         one.b == other.b && one.a_transposed == other.a_transposed &&
         one.b_transposed == other.b_transposed && !one.a_words == !other.a_words;
}

void check_agreement(const GroupProduct& product, unsigned warp, Site site) {
  std::vector<GroupProduct>& all = of_groups[warp / kWarpsOfGroup];
  const size_t number = n_begun[warp]++;
  if (number == all.size()) all.push_back(product);
  if (!are_alike(all[number], product))
    fail(site, "wgmma: warps of a warpgroup differ in product %zu", number);
}

const GroupProduct& of_lane(const Warp& warp, unsigned lane) {
  return *reinterpret_cast<const GroupProduct*>(warp.calls[lane]->value);
}

// The warp's rows of an A in registers.
std::vector<float> rows_in_registers(const Warp& warp, Element type) {
  constexpr unsigned kSumsOver = kKBytes / sizeof(float);
  std::vector<float> rows(kRowsOfWarp * kSumsOver);
  for (unsigned lane = 0; lane < kWarpSize; ++lane)
    for (unsigned i = 0; i < 4; ++i)
      rows[(lane / 4 + i % 2 * 8) * kSumsOver + lane % 4 + i / 2 * 4] =
          element(type, of_lane(warp, lane).a_words[i], 0);
  return rows;
}

}  // namespace

void begin_products_of_block() {
  for (std::vector<GroupProduct>& products : of_groups) products.clear();
  for (size_t& number : n_begun) number = 0;
}

void begin_products(Warp& warp) {
  const GroupProduct& product = of_lane(warp, 0);
  const Site site = warp.calls[0]->site;
  const unsigned number = current_thread() / kWarpSize;
  for (unsigned lane = 1; lane < kWarpSize; ++lane)
    if (!are_alike(product, of_lane(warp, lane))) fail(site, "wgmma: lanes of a warp differ");
  check_agreement(product, number, site);
  const auto reads = std::make_shared<Reads>();
  std::vector<float> rows, columns;
  if (product.a_words)
    rows = rows_in_registers(warp, product.type);
  else
    reads->read(Operand("A", product.a, product.a_transposed, site), product.type,
                number % kWarpsOfGroup * kRowsOfWarp, kRowsOfWarp, rows, site);
  reads->read(Operand("B", product.b, product.b_transposed, site), product.type, 0, product.columns,
              columns, site);
  const unsigned sums_over = kKBytes / bytes_of(product.type);
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    Products& own = of_threads[number * kWarpSize + lane];
    float* const d = of_lane(warp, lane).d;
    const unsigned n_sums = product.columns / 2;
    const Begun* const last = own.last_of(d, 0);
    if (!last && !own.is_fenced) fail(site, "wgmma: no wgmma.fence since its sums were free");
    std::vector<float> sums = last ? last->sums : std::vector<float>(d, d + n_sums);
    for (unsigned i = 0; i < n_sums; ++i) {
      const float* const row = &rows[(lane / 4 + i % 4 / 2 * 8) * sums_over];
      const float* const column = &columns[(i / 4 * 8 + lane % 4 * 2 + i % 2) * sums_over];
      for (unsigned k = 0; k < sums_over; ++k) sums[i] += row[k] * column[k];
      d[i] = kUnknown;
    }
    own.begun.push_back({d, sums, reads});
  }
}

void fence_products() { of_threads[current_thread()].is_fenced = true; }

void end_group_of_products() {
  Products& own = of_threads[current_thread()];
  own.ends.push_back(own.begun.size());
}

void wait_for_products(size_t n_groups_left, Site site) {
  Products& own = of_threads[current_thread()];
  if (own.ends.size() <= n_groups_left) return;
  const size_t n_groups = own.ends.size() - n_groups_left, end = own.ends[n_groups - 1];
  if (end == 0) return;
  for (size_t i = 0; i < end; ++i) {
    Reads& reads = *own.begun[i].reads;
    for (const Reads::Vector& vector : reads.vectors)
      if (!reads.is_checked &&
          std::memcmp(vector.bytes, bytes_at(vector.address, "an operand", site), kVectorBytes))
        fail(site, "wgmma: what it reads at 0x%x has changed before it was waited for",
             vector.address);
    reads.is_checked = true;
    const Begun& each = own.begun[i];
    if (own.last_of(each.d, i + 1)) continue;
    for (size_t j = 0; j < each.sums.size(); ++j)
      if (std::memcmp(each.d + j, &kUnknown, sizeof(float)))
        fail(site, "wgmma: its sums were written before it was waited for");
    std::memcpy(each.d, each.sums.data(), each.sums.size() * sizeof(float));
  }
  own.begun.erase(own.begun.begin(), own.begun.begin() + end);
  own.ends.erase(own.ends.begin(), own.ends.begin() + n_groups);
  for (size_t& other : own.ends) other -= end;
  own.is_fenced = false;
}

void forget_products() { of_threads[current_thread()] = {}; }

void require_no_products() {
  if (!of_threads[current_thread()].begun.empty())
    fail({}, "wgmma: the thread ends before its products, which it has not waited for");
}

uint32_t shared_address(const void* pointer, Site site) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(pointer);
  if (!holds(dynamic_shared_range, at))
    fail(site, "no address of dynamic shared memory: %p", pointer);
  return kWindow + static_cast<uint32_t>(at - dynamic_shared_range.begin);
}

}  // namespace emulator
