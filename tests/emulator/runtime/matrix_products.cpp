// SPDX-License-Identifier: MIT
// Products of the fragments of a warp, which the lane that arrives last makes for all. Lane 4 g + t
// has words of P elements, from k = P t on and from 4 P behind it: rows g and g + 8 of A, column g
// of B; and of D columns 2 t and 2 t + 1 of these rows.
#include "matrix_products.h"

#include <cstring>

namespace emulator {

namespace {

constexpr unsigned kRows = 16, kColumns = 8, kMostK = 16;

float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

float from_half(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7FFF, sign = (bits & 0x8000) << 16;
  if (magnitude >= 0x7C00) return from_bits(sign | magnitude << 13 | 0x7F800000);
  return from_bits(sign | 0x3F800000) * (from_bits(magnitude << 13) * 0x1p112f);
}

}  // namespace

float element(Element type, uint32_t word, unsigned p) {
  if (type == Element::kFloat) return from_bits(word & 0xFFFFE000);  // TF32: others are cut off
  const uint32_t bits = word >> 16 * p & 0xFFFF;
  return type == Element::kHalf ? from_half(bits) : from_bits(bits << 16);
}

void multiply_fragments(Warp& warp) {
  const auto of_lane = [&](unsigned lane) -> const Fragments& {
    return *reinterpret_cast<const Fragments*>(warp.calls[lane]->value);
  };
  const Element type = of_lane(0).type;
  const unsigned n_words = type == Element::kFloat ? 1 : 2;  // P
  float rows[kRows][kMostK], columns[kColumns][kMostK];
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    const Fragments& held = of_lane(lane);
    for (unsigned half = 0; half < 2; ++half)
      for (unsigned p = 0; p < n_words; ++p) {
        // In the order in which sums are made.
        const unsigned k = (lane % 4 * 2 + half) * n_words + p;
        rows[lane / 4][k] = element(type, held.a[2 * half], p);
        rows[lane / 4 + 8][k] = element(type, held.a[2 * half + 1], p);
        columns[lane / 4][k] = element(type, held.b[half], p);
      }
  }
  for (unsigned lane = 0; lane < kWarpSize; ++lane)
    for (unsigned i = 0; i < 4; ++i) {
      const float* row = rows[lane / 4 + i / 2 * 8];
      const float* column = columns[lane % 4 * 2 + i % 2];
      float& sum = of_lane(lane).d[i];
      for (unsigned k = 0; k < 8 * n_words; ++k) sum += row[k] * column[k];
    }
}

}  // namespace emulator
