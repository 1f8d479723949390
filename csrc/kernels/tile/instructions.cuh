// What a GPU's threads do in the kernels of tile.cuh: where they are and meet, conversions, tensor
// cores, copies. Tests have the same for the host (tests/helpers/tile_emulator).
#pragma once

#include "kernels/tile/types.cuh"

#define DPIF_DEVICE __device__ __forceinline__

namespace tile {

constexpr int kThreads = DPIF_TILE_THREADS;
// Launched early: the next kernel may set itself up, this one waits for those before it.
DPIF_DEVICE void begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
DPIF_DEVICE int thread() {
  return threadIdx.x;
}
DPIF_DEVICE void meet() {
  __syncthreads();
}
// Of the lane whose number differs in these bits; all lanes of the warp call it.
DPIF_DEVICE float shuffled(float value, int bits) {
  return __shfl_xor_sync(0xffffffffu, value, bits);
}

DPIF_DEVICE float bits_to_float(u32 bits) {
  return __uint_as_float(bits);
}
DPIF_DEVICE u32 float_to_bits(float value) {
  return __float_as_uint(value);
}
DPIF_DEVICE float widen(Half x) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
}
DPIF_DEVICE float widen(Bf16 x) {
  return bits_to_float(static_cast<u32>(x.bits) << 16);
}
DPIF_DEVICE void narrow(float x, Half& out) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
}
DPIF_DEVICE void narrow(float x, Bf16& out) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
}
DPIF_DEVICE u32 narrow_pair(float low, float high, Half) {
  u32 found;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(found) : "f"(high), "f"(low));
  return found;
}
DPIF_DEVICE u32 narrow_pair(float low, float high, Bf16) {
  u32 found;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(found) : "f"(high), "f"(low));
  return found;
}
#define DPIF_PAIR(name, instruction, type, suffix)                             \
  DPIF_DEVICE u32 name(u32 a, u32 b, type) {                                   \
    u32 found;                                                                 \
    asm(instruction "." suffix " %0, %1, %2;" : "=r"(found) : "r"(a), "r"(b)); \
    return found;                                                              \
  }
#define DPIF_PAIRS(name, instruction)         \
  DPIF_PAIR(name, instruction, Half, "f16x2") \
  DPIF_PAIR(name, instruction, Bf16, "bf16x2")
DPIF_PAIRS(add_pair, "add.rn")
DPIF_PAIRS(subtract_pair, "sub.rn")
DPIF_PAIRS(multiply_pair, "mul.rn")
DPIF_PAIRS(smaller_pair, "min.NaN")
DPIF_PAIRS(larger_pair, "max.NaN")
#undef DPIF_PAIRS
#undef DPIF_PAIR
DPIF_DEVICE u32 to_tf32(float x) {
  u32 found;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(found) : "f"(x));
  return found;
}

// d += a b, [16, 16] x [16, 8]; the layout of registers is that of mma.m16n8k16 in PTX.
DPIF_DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, Half) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DPIF_DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, Bf16) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DPIF_DEVICE void mma_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct Four {
  u32 x, y, z, w;
};
DPIF_DEVICE Four load_constant(const void* from) {
  const uint4 f = __ldg(static_cast<const uint4*>(from));
  return {f.x, f.y, f.z, f.w};
}

// To device memory; to: a multiple of their size.
DPIF_DEVICE void store_two(u32* to, u32 a, u32 b) {
  asm volatile("st.global.v2.b32 [%0], {%1,%2};" ::"l"(to), "r"(a), "r"(b));
}
DPIF_DEVICE void store_four(u32* to, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d));
}

// Of constants; from: a multiple of their size, 16 bytes at most. No asm, which the compiler may
// execute before the condition under which it stands.
DPIF_DEVICE void load_numbers(const float* from, float (&to)[1]) {
  to[0] = __ldg(from);
}
DPIF_DEVICE void load_numbers(const float* from, float (&to)[2]) {
  const float2 two = __ldg(reinterpret_cast<const float2*>(from));
  to[0] = two.x;
  to[1] = two.y;
}
template <int V>
DPIF_DEVICE void load_numbers(const float* from, float (&to)[V]) {
#pragma unroll
  for (int i = 0; i < V; i += 4) {
    const float4 four = __ldg(reinterpret_cast<const float4*>(from + i));
    to[i] = four.x;
    to[i + 1] = four.y;
    to[i + 2] = four.z;
    to[i + 3] = four.w;
  }
}

// 1 / x within 2e-7 of it; 0 where that is below the normal numbers.
DPIF_DEVICE float short_reciprocal(float x) {
  float found;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(x));
  return found;
}
// NaN where one of both is.
DPIF_DEVICE float smaller(float a, float b) {
  float found;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
  return found;
}
DPIF_DEVICE float larger(float a, float b) {
  float found;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
  return found;
}

DPIF_DEVICE int multiprocessors() {
  int found;
  asm("mov.u32 %0, %%nsmid;" : "=r"(found));
  return found;
}
// Asks L2 for the line of an address.
DPIF_DEVICE void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}
// Asynchronous copies of 16 bytes to shared memory, in groups.
DPIF_DEVICE void copy_async(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}
DPIF_DEVICE void commit_copies() {
  asm volatile("cp.async.commit_group;");
}
template <int kPending>
DPIF_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending));
}
DPIF_DEVICE unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
// Four blocks of 8 x 8 halves of words in shared memory: of block i this lane gives the address of
// one row, lane % 8 of block lane / 8, and gets two neighbours of row lane / 4 in to[i];
// transposed: of column lane / 4.
template <bool kTransposed>
DPIF_DEVICE void load_blocks(u32 (&to)[4], unsigned from) {
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
}
DPIF_DEVICE Four load_shared(unsigned from) {
  Four f;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(f.x), "=r"(f.y), "=r"(f.z), "=r"(f.w)
               : "r"(from));
  return f;
}

// Products of a warpgroup (wgmma): four warps have 16 rows of a each, in registers as mma has them.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define DPIF_TILE_WARPGROUPS

// What this thread copied to shared memory is there for products of those that it meets next.
DPIF_DEVICE void publish_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Of all registers that the products to come read and write.
DPIF_DEVICE void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
DPIF_DEVICE void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
DPIF_DEVICE void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define DPIF_L4(a, b, c, d) "%" #a ",%" #b ",%" #c ",%" #d
#define DPIF_L8 DPIF_L4(0, 1, 2, 3) "," DPIF_L4(4, 5, 6, 7)
#define DPIF_L16 DPIF_L8 "," DPIF_L4(8, 9, 10, 11) "," DPIF_L4(12, 13, 14, 15)
#define DPIF_L32                                                                \
  DPIF_L16 "," DPIF_L4(16, 17, 18, 19) "," DPIF_L4(20, 21, 22, 23) "," DPIF_L4( \
      24, 25, 26, 27) "," DPIF_L4(28, 29, 30, 31)
#define DPIF_L64                                                                                  \
  DPIF_L32 "," DPIF_L4(32, 33, 34, 35) "," DPIF_L4(36, 37, 38, 39) "," DPIF_L4(                   \
      40, 41, 42,                                                                                 \
      43) "," DPIF_L4(44, 45, 46,                                                                 \
                      47) "," DPIF_L4(48, 49, 50,                                                 \
                                      51) "," DPIF_L4(52, 53, 54,                                 \
                                                      55) "," DPIF_L4(56, 57, 58,                 \
                                                                      59) "," DPIF_L4(60, 61, 62, \
                                                                                      63)
#define DPIF_R4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DPIF_R8(i) DPIF_R4(i), DPIF_R4(i + 4)
#define DPIF_R16(i) DPIF_R8(i), DPIF_R8(i + 8)
#define DPIF_R32(i) DPIF_R16(i), DPIF_R16(i + 16)
#define DPIF_R64(i) DPIF_R32(i), DPIF_R32(i + 32)
#define DPIF_TILE_RS(columns, half, type, suffix, A0, A1, A2, A3, B, ADD)                         \
  DPIF_DEVICE void multiply_warpgroup(float* d, const u32(&a)[4], u64 b, Number<columns>, type) { \
    asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %" #ADD                                          \
                 ", 0;\n"                                                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." suffix "." suffix        \
                 " {" DPIF_L##half "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B               \
                                   ", p, 1, 1, 0;}"                                               \
                 : DPIF_R##half(0)                                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));                   \
  }
#define DPIF_TILE_RS_TYPES(columns, half, ...)          \
  DPIF_TILE_RS(columns, half, Half, "f16", __VA_ARGS__) \
  DPIF_TILE_RS(columns, half, Bf16, "bf16", __VA_ARGS__)
DPIF_TILE_RS_TYPES(16, 8, 8, 9, 10, 11, 12, 13)
DPIF_TILE_RS_TYPES(32, 16, 16, 17, 18, 19, 20, 21)
DPIF_TILE_RS_TYPES(64, 32, 32, 33, 34, 35, 36, 37)
DPIF_TILE_RS_TYPES(128, 64, 64, 65, 66, 67, 68, 69)

// d += a b of kColumns in 16, 32, 64 or 128: a lane has 4 sums of each 8 columns. b: blocks of
// 8 columns x 8 inner places of 128 bytes each, by columns, from the address `b` in shared memory
// on; those of the next 8 places `step` bytes on.
template <int kColumns, class T>
DPIF_DEVICE void multiply_warpgroup(float* d, const u32 (&a)[4], unsigned b, int step) {
  const u64 descriptor = (128ull / 16) << 32 | static_cast<u64>(step / 16) << 16 |
                         static_cast<u64>((b & 0x3ffff) / 16);
  multiply_warpgroup(d, a, descriptor, Number<kColumns>{}, T{});
}
#endif

}  // namespace tile
