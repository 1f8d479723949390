// Operands of products and where results go, as the generator writes them.
//
// Products: kProducts of them side by side, each [kRows, kInner] x [kInner, kColumns], where inner
// is kOuter x kInner, the latter padded to a multiple of 16. a(product, row, outer, inner) and
// b(product, column, outer, inner) give elements, a.two and b.two a pair at (inner, inner + 1),
// write(product, row, column, value) takes a result.
#pragma once

#include "kernels/tile/elements.cuh"

namespace tile {

template <class One, class Two>
struct Operand {
  One read_one;
  Two read_two;
  DPIF_DEVICE float one(int product, int place, int outer, int inner) const {
    return read_one(product, place, outer, inner);
  }
  DPIF_DEVICE u32 two(int product, int place, int outer, int inner) const {
    return read_two(read_one, product, place, outer, inner);
  }
};
template <class One, class Two>
DPIF_DEVICE Operand<One, Two> operand(const One& one, const Two& two) {
  return {one, two};
}

// How an operand's elements lie in shared memory: rows (columns, of b) of 16 bytes aligned; the
// same transposed; aligned pairs along the inner axis; anyhow.
enum class Lie { kRows, kColumns, kPairs, kApart };

// An operand of 16 bits in shared memory: at(product, row, outer, inner) is an element's address.
template <Lie kHow, class At>
struct Stored {
  At at;
  static constexpr bool kBlocks = kHow == Lie::kRows || kHow == Lie::kColumns;
  DPIF_DEVICE float one(int product, int place, int outer, int inner) const {
    return load(at(product, place, outer, inner));
  }
  DPIF_DEVICE u32 two(int product, int place, int outer, int inner) const {
    const auto* first = at(product, place, outer, inner);
    if constexpr (kHow == Lie::kRows || kHow == Lie::kPairs)
      return load_pair(first);
    else
      return joined(first, at(product, place, outer, inner + 1));
  }
};
template <Lie kHow, class At>
DPIF_DEVICE Stored<kHow, At> stored(const At& at) {
  return {at};
}
template <class A>
constexpr bool kInBlocks = false;
template <Lie kHow, class At>
constexpr bool kInBlocks<Stored<kHow, At>> = Stored<kHow, At>::kBlocks;

// An operand whose element is a product of two: one the same for every outer place, which lanes
// keep in registers, and one the same for every inner place. `two` are of a pair of elements, in
// the operand's type.
template <class FixedOne, class FixedTwo, class ScaleOne, class ScaleTwo>
struct Separable {
  FixedOne fixed_one;
  FixedTwo fixed_two;
  ScaleOne scale_one;
  ScaleTwo scale_two;
  DPIF_DEVICE float one(int product, int place, int outer, int inner) const {
    return fixed_one(product, place, inner) * scale_one(product, place, outer);
  }
};
template <class FixedOne, class FixedTwo, class ScaleOne, class ScaleTwo>
DPIF_DEVICE Separable<FixedOne, FixedTwo, ScaleOne, ScaleTwo> separable(const FixedOne& fixed_one,
                                                                        const FixedTwo& fixed_two,
                                                                        const ScaleOne& scale_one,
                                                                        const ScaleTwo& scale_two) {
  return {fixed_one, fixed_two, scale_one, scale_two};
}
template <class A>
struct Fixed {
  const A& of;
  DPIF_DEVICE float one(int product, int place, int, int inner) const {
    return of.fixed_one(product, place, inner);
  }
  DPIF_DEVICE u32 two(int product, int place, int, int inner) const {
    return of.fixed_two(product, place, inner);
  }
};

// Where results of a row of a product go, if they shall be stored: one, or two of neighbouring
// columns, the first of which is even. A writer(product, row) gives it.
template <class One, class Two>
struct Results {
  One one;
  Two two;
};
template <class One, class Two>
DPIF_DEVICE Results<One, Two> results(const One& one, const Two& two) {
  return {one, two};
}

// Results of a row of a product that are summed: what one of them adds, or two of neighbouring
// columns, and what takes the sum, if the row exists.
template <class One, class Two, class Take>
struct Summed {
  One one;
  Two two;
  Take take;
};
template <class One, class Two, class Take>
DPIF_DEVICE Summed<One, Two, Take> summed(const One& one, const Two& two, const Take& take) {
  return {one, two, take};
}
template <class R>  // of a const variable
constexpr bool kIsSummed = false;
template <class... F>
constexpr bool kIsSummed<const Summed<F...>> = true;

DPIF_DEVICE constexpr int padded(int size, int to) {
  return (size + to - 1) / to * to;
}

}  // namespace tile
