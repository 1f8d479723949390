// Types of elements in memory.
#pragma once

namespace tile {

using u32 = unsigned int;
using u16 = unsigned short;

struct Half {
  u16 bits;
};
struct Bf16 {
  u16 bits;
};

}  // namespace tile
