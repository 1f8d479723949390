// Conversions on the host, and, for DPIF_TILE_HOST, the one thread that runs a kernel there.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/tile/types.cuh"

#define DPIF_DEVICE inline

namespace tile {

#ifdef DPIF_TILE_HOST
constexpr int kThreads = 1;
DPIF_DEVICE void begin() {}
DPIF_DEVICE int thread() {
  return 0;
}
DPIF_DEVICE void meet() {}
DPIF_DEVICE int multiprocessors() {
  return 1;
}
DPIF_DEVICE void prefetch(const void*) {}
#endif

DPIF_DEVICE void store_two(u32* to, u32 a, u32 b) {
  const u32 two[] = {a, b};
  std::memcpy(to, two, sizeof two);
}
DPIF_DEVICE void store_four(u32* to, u32 a, u32 b, u32 c, u32 d) {
  const u32 four[] = {a, b, c, d};
  std::memcpy(to, four, sizeof four);
}
DPIF_DEVICE float bits_to_float(u32 bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
DPIF_DEVICE u32 float_to_bits(float value) {
  u32 bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
DPIF_DEVICE float widen(Half x) {
  _Float16 value;
  std::memcpy(&value, &x.bits, 2);
  return value;
}
DPIF_DEVICE void narrow(float x, Half& out) {
  const _Float16 value = static_cast<_Float16>(x);
  std::memcpy(&out.bits, &value, 2);
}
DPIF_DEVICE float widen(Bf16 x) {
  return bits_to_float(static_cast<u32>(x.bits) << 16);
}
DPIF_DEVICE void narrow(float x, Bf16& out) {
  const u32 bits = float_to_bits(x);
  out.bits = static_cast<u16>(x != x ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
template <class T>
DPIF_DEVICE u32 narrow_pair(float low, float high, T) {
  T parts[2];
  narrow(low, parts[0]);
  narrow(high, parts[1]);
  return static_cast<u32>(parts[0].bits) | static_cast<u32>(parts[1].bits) << 16;
}
template <class T>
DPIF_DEVICE float widen_part(u32 pair, int i, T) {
  return widen(T{static_cast<u16>(pair >> (16 * i))});
}
template <int V>
DPIF_DEVICE void load_numbers(const float* from, float (&to)[V]) {
  for (int i = 0; i < V; ++i) to[i] = from[i];
}
DPIF_DEVICE float short_reciprocal(float x) {
  return 1.0f / x;
}
DPIF_DEVICE float smaller(float a, float b) {
  return a != a || a < b ? a : b;
}
DPIF_DEVICE float larger(float a, float b) {
  return a != a || a > b ? a : b;
}
template <class T, class Of>
DPIF_DEVICE u32 of_pairs(u32 a, u32 b, T type, const Of& of) {
  return narrow_pair(of(widen_part(a, 0, type), widen_part(b, 0, type)),
                     of(widen_part(a, 1, type), widen_part(b, 1, type)), type);
}
template <class T>
DPIF_DEVICE u32 add_pair(u32 a, u32 b, T type) {
  return of_pairs(a, b, type, [](float x, float y) { return x + y; });
}
template <class T>
DPIF_DEVICE u32 subtract_pair(u32 a, u32 b, T type) {
  return of_pairs(a, b, type, [](float x, float y) { return x - y; });
}
template <class T>
DPIF_DEVICE u32 multiply_pair(u32 a, u32 b, T type) {
  return of_pairs(a, b, type, [](float x, float y) { return x * y; });
}
template <class T>
DPIF_DEVICE u32 smaller_pair(u32 a, u32 b, T type) {
  return of_pairs(a, b, type, smaller);
}
template <class T>
DPIF_DEVICE u32 larger_pair(u32 a, u32 b, T type) {
  return of_pairs(a, b, type, larger);
}

}  // namespace tile
