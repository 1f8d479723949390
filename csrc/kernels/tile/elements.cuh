// Elements in memory and in registers: conversions, neighbours, pairs of 16 bits.
#pragma once

#include "jit/compiled_params.h"
#ifdef DPIF_TILE_HOST
#include "kernels/tile/host.h"
#else
#include "kernels/tile/instructions.cuh"
#endif

namespace tile {

using Params = dpiframe::CompiledParams;

// Of what is not negative, which a compiler does not know.
template <unsigned kBy>
DPIF_DEVICE int quotient(int value) {
  return static_cast<int>(static_cast<unsigned>(value) / kBy);
}
template <unsigned kBy>
DPIF_DEVICE int remainder(int value) {
  return static_cast<int>(static_cast<unsigned>(value) % kBy);
}

DPIF_DEVICE int shorter(long long rows, int most) {
  return rows < most ? static_cast<int>(rows) : most;
}

DPIF_DEVICE float widen(float x) {
  return x;
}
DPIF_DEVICE void narrow(float x, float& out) {
  out = x;
}

template <class T>
DPIF_DEVICE float load(const T* from) {
  return widen(*from);
}
template <class T>
DPIF_DEVICE void store(T* to, float value) {
  narrow(value, *to);
}

// V neighbours from an address that is a multiple of their size (16 bytes at most).
template <int kWords>
struct alignas(kWords * 4 <= 16 ? kWords * 4 : 16) Words {
  u32 of[kWords];
};
template <int kWords, class T>
DPIF_DEVICE void store_words(T* to, const Words<kWords>& words) {
  *reinterpret_cast<Words<kWords>*>(to) = words;
}
// An address in device memory. There the compiler splits the copy above into a store a word, so
// these stores are instructions of their own.
template <class T>
struct Outside {
  T* to;
};
template <class T>
DPIF_DEVICE Outside<T> outside(T* to) {
  return {to};
}
template <int kWords, class T>
DPIF_DEVICE void store_words(Outside<T> there, const Words<kWords>& words) {
  if constexpr (kWords % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4)
      store_four(reinterpret_cast<u32*>(there.to) + i, words.of[i], words.of[i + 1],
                 words.of[i + 2], words.of[i + 3]);
  } else if constexpr (kWords == 2) {
    store_two(reinterpret_cast<u32*>(there.to), words.of[0], words.of[1]);
  } else {
    store_words(there.to, words);
  }
}
// Two neighbours as a register of a product's operand.
template <class T>
DPIF_DEVICE u32 pair(float low, float high) {
  return narrow_pair(low, high, T{});
}

// V neighbours as they are stored.
template <int V, class T>
struct Pack {
  Words<V * sizeof(T) / 4> words;
};
template <int V, class T>
DPIF_DEVICE Pack<V, T> load_stored(const T* from) {
  return {*reinterpret_cast<const Words<V * sizeof(T) / 4>*>(from)};
}
template <int V, class T>
DPIF_DEVICE void unpacked(const Pack<V, T>& from, float (&to)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if constexpr (sizeof(T) == 4) {
      to[i] = bits_to_float(from.words.of[i]);
    } else {
      T part;
      part.bits = static_cast<u16>(from.words.of[i / 2] >> (16 * (i % 2)));
      to[i] = widen(part);
    }
  }
}
template <int V, class T>
DPIF_DEVICE void load_pack(const T* from, float (&to)[V]) {
  unpacked(load_stored<V>(from), to);
}
// V entries of a table of indices.
template <int V, class T>
DPIF_DEVICE void load_places(const T* from, int (&to)[V]) {
  const auto words = *reinterpret_cast<const Words<V * sizeof(T) / 4>*>(from);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if constexpr (sizeof(T) == 4)
      to[i] = static_cast<int>(words.of[i]);
    else
      to[i] = static_cast<int>(words.of[i / 2] >> (16 * (i % 2)) & 0xffffu);
  }
}
template <class To>
struct ElementOf;
template <class T>
struct ElementOf<T*> {
  using Type = T;
};
template <class T>
struct ElementOf<Outside<T>> {
  using Type = T;
};
template <int V, class To>
DPIF_DEVICE void store_pack(To to, const float (&from)[V]) {
  using T = typename ElementOf<To>::Type;
  if constexpr (sizeof(T) == 4) {
    Words<V> words;
#pragma unroll
    for (int i = 0; i < V; ++i) words.of[i] = float_to_bits(from[i]);
    store_words(to, words);
  } else {
    Words<V / 2> words;
#pragma unroll
    for (int i = 0; i < V / 2; ++i) words.of[i] = pair<T>(from[2 * i], from[2 * i + 1]);
    store_words(to, words);
  }
}

// Numbers that no kernel changes.
struct Numbers {
  const float* first;
  DPIF_DEVICE Numbers operator+(int place) const { return {first + place}; }
};
DPIF_DEVICE float load(Numbers from) {
  float to[1];
  load_numbers(from.first, to);
  return to[0];
}
template <int V>
DPIF_DEVICE void load_pack(Numbers from, float (&to)[V]) {
  load_numbers(from.first, to);
}

// The place among so many that is nearest to a number, and what is there, NaN if that is none.
template <int kSize>
DPIF_DEVICE int nearest_place(float place) {
  return static_cast<int>(place > 0 ? (place < kSize ? place : kSize - 1) : 0);
}
template <int kSize>
DPIF_DEVICE float at_place(float place, float found) {
  return place > -1 && place < kSize ? found : bits_to_float(0x7fc00000u);
}

template <class T>
DPIF_DEVICE u32 load_pair(const T* from) {
  return *reinterpret_cast<const u32*>(from);
}
// Two elements as they are, side by side.
template <class T>
DPIF_DEVICE u32 joined(const T* low, const T* high) {
  return static_cast<u32>(low->bits) | static_cast<u32>(high->bits) << 16;
}
template <class T>
DPIF_DEVICE u32 twice(const T* from) {
  return static_cast<u32>(from->bits) * 0x10001u;
}
// The product of two pairs, rounded once.
template <class T>
DPIF_DEVICE u32 times(u32 a, u32 b) {
  return multiply_pair(a, b, T{});
}

// V neighbours of 16 bits as pairs, from an address that is a multiple of their size.
template <int V, class T>
DPIF_DEVICE Words<V / 2> load_pairs(const T* from) {
  return *reinterpret_cast<const Words<V / 2>*>(from);
}
template <int V, class To>
DPIF_DEVICE void store_pairs(To to, const Words<V / 2>& pairs) {
  store_words(to, pairs);
}
// Functions of pairs; NaN where one of both is.
namespace pairs {
template <class T>
DPIF_DEVICE u32 add(u32 a, u32 b) {
  return add_pair(a, b, T{});
}
template <class T>
DPIF_DEVICE u32 sub(u32 a, u32 b) {
  return subtract_pair(a, b, T{});
}
template <class T>
DPIF_DEVICE u32 mul(u32 a, u32 b) {
  return multiply_pair(a, b, T{});
}
template <class T>
DPIF_DEVICE u32 min(u32 a, u32 b) {
  return smaller_pair(a, b, T{});
}
template <class T>
DPIF_DEVICE u32 max(u32 a, u32 b) {
  return larger_pair(a, b, T{});
}
template <class T>
DPIF_DEVICE u32 relu(u32 a) {
  return larger_pair(a, 0u, T{});
}
template <class T>
DPIF_DEVICE u32 neg(u32 a) {
  return a ^ 0x80008000u;
}
template <class T>
DPIF_DEVICE u32 abs(u32 a) {
  return a & 0x7fff7fffu;
}
}  // namespace pairs

}  // namespace tile
