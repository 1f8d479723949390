// Types of elements in memory.
#pragma once

namespace tile {

using u64 = unsigned long long;
using u32 = unsigned int;
using u16 = unsigned short;

struct Half {
  u16 bits;
};
struct Bf16 {
  u16 bits;
};

// A float32, times a power of two, as the sum of two float16, large and small (FP16x3).
struct Fp16x3 {
  Half large;
  Half small;
};

template <class T>
constexpr bool kIsFp16x3 = false;
template <>
constexpr bool kIsFp16x3<Fp16x3> = true;

// A number by which functions are told apart.
template <int kOf>
struct Number {};

}  // namespace tile
