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

// A number by which functions are told apart.
template <int kOf>
struct Number {};

}  // namespace tile
