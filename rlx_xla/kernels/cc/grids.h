// Packed weights whose codes name groups of numbers in a grid, and ternary digits five to a byte.
//
// Computes: the numbers of GGUF's IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S and TQ1_0.
// Layout: as rlx/quant/blocks_iq.py and blocks_plain.py have it.
// Numerics: as there, bit for bit: sixteen whole numbers that fit a byte, times a scale.
// Source: the public layouts of the GGUF format (ggml); the grids are rlx/quant/iq_tables.py's.
#ifndef RLX_KERNELS_GRIDS_H_
#define RLX_KERNELS_GRIDS_H_

#include <cstdint>
#include <cstring>
#include <utility>

#include "blocks.h"
#include "iq_grids.h"

namespace rlx {

namespace blocks {

// A block of 256 that has CodesOf<i>(b), sixteen signed bytes, and ScaleOf<i>(b) for i below 16.
template <typename Block>
struct OfSixteens {
  static constexpr int64_t kElements = 256;
  static void Decode(const uint8_t* b, float* out) {
    DecodeEach(b, out, std::make_integer_sequence<int, 16>());
  }

 private:
  template <int... kI>
  static void DecodeEach(const uint8_t* b, float* out, std::integer_sequence<int, kI...>) {
    (PutSigned(Block::template CodesOf<kI>(b), Block::template ScaleOf<kI>(b), out + 16 * kI), ...);
  }
};

template <typename T>
T Read(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

inline uint64_t Pair(uint32_t low, uint32_t high) { return low | uint64_t{high} << 32; }

// The low or the high nibble of the bytes at p, counted from the first.
inline int NibbleAt(const uint8_t* p, int i) { return (p[i / 2] >> (i % 2 * 4)) & 15; }

// Two times eight bytes, negative where one of sixteen bits is set, the lowest first.
inline Codes WithSigns(uint64_t first, uint64_t second, uint32_t bits) {
  const Words copies = {(bits & 255) * 0x0101010101010101ull,
                        (bits >> 8 & 255) * 0x0101010101010101ull};
  const Words looks = {0x8040201008040201ull, 0x8040201008040201ull};
  const Codes set = reinterpret_cast<Codes>(copies & looks);
  const auto minus = reinterpret_cast<Codes>(set != 0);
  const Words both = {first, second};
  return (reinterpret_cast<Codes>(both) ^ minus) - minus;
}

// Two times seven bits, each with an eighth that makes the number of ones even.
inline uint32_t EvenBits(uint32_t first, uint32_t second) {
  const auto even = [](uint32_t bits) {
    return bits | static_cast<uint32_t>(__builtin_parity(bits)) << 7;
  };
  return even(first & 127) | even(second & 127) << 8;
}

// Scales are multiples of the block's f16, from one half on: in the top four bits of a word, or one
// nibble after another.
inline float ScaleInWord(const uint8_t* b, const uint8_t* word, float unit) {
  return (static_cast<float>(Read<uint32_t>(word) >> 28) + 0.5f) * Half(b) * unit;
}

inline float ScaleInNibble(const uint8_t* b, const uint8_t* nibbles, int i) {
  return (static_cast<float>(NibbleAt(nibbles, i)) + 0.5f) * Half(b) * 0.25f;
}

struct Iq2Xxs : OfSixteens<Iq2Xxs> {
  static constexpr int64_t kBytes = 66;
  template <int kI>
  static Codes CodesOf(const uint8_t* b) {
    const uint8_t* p = b + 2 + kI / 2 * 8;
    const uint8_t* at = p + kI % 2 * 2;
    const uint32_t word = Read<uint32_t>(p + 4) >> (kI % 2 * 14);
    return WithSigns(kGridIq2xxs[at[0]], kGridIq2xxs[at[1]], EvenBits(word, word >> 7));
  }
  template <int kI>
  static float ScaleOf(const uint8_t* b) {
    return ScaleInWord(b, b + 6 + kI / 2 * 8, 0.25f);
  }
};

struct Iq2Xs : OfSixteens<Iq2Xs> {
  static constexpr int64_t kBytes = 74;
  template <int kI>
  static Codes CodesOf(const uint8_t* b) {
    const uint32_t first = Read<uint16_t>(b + 2 + kI * 4), second = Read<uint16_t>(b + 4 + kI * 4);
    return WithSigns(kGridIq2xs[first & 511], kGridIq2xs[second & 511],
                     EvenBits(first >> 9, second >> 9));
  }
  template <int kI>
  static float ScaleOf(const uint8_t* b) {
    return ScaleInNibble(b, b + 66, kI);
  }
};

struct Iq2S : OfSixteens<Iq2S> {
  static constexpr int64_t kBytes = 82;
  template <int kI>
  static Codes CodesOf(const uint8_t* b) {
    const int high = b[66 + kI / 2] >> (kI % 2 * 4);
    const uint8_t* low = b + 2 + kI * 2;
    return WithSigns(kGridIq2s[low[0] | (high & 3) << 8], kGridIq2s[low[1] | (high & 12) << 6],
                     Read<uint16_t>(b + 34 + kI * 2));
  }
  template <int kI>
  static float ScaleOf(const uint8_t* b) {
    return ScaleInNibble(b, b + 74, kI);
  }
};

struct Iq3Xxs : OfSixteens<Iq3Xxs> {
  static constexpr int64_t kBytes = 98;
  template <int kI>
  static Codes CodesOf(const uint8_t* b) {
    const uint8_t* p = b + 2 + kI * 4;
    const uint32_t word = Read<uint32_t>(b + 66 + kI / 2 * 4) >> (kI % 2 * 14);
    return WithSigns(Pair(kGridIq3xxs[p[0]], kGridIq3xxs[p[1]]),
                     Pair(kGridIq3xxs[p[2]], kGridIq3xxs[p[3]]), EvenBits(word, word >> 7));
  }
  template <int kI>
  static float ScaleOf(const uint8_t* b) {
    return ScaleInWord(b, b + 66 + kI / 2 * 4, 0.5f);
  }
};

struct Iq3S : OfSixteens<Iq3S> {
  static constexpr int64_t kBytes = 110;
  template <int kI>
  static Codes CodesOf(const uint8_t* b) {
    const uint8_t* p = b + 2 + kI * 4;
    const int high = b[66 + kI / 2] >> (kI % 2 * 4);
    return WithSigns(Pair(kGridIq3s[p[0] | (high & 1) << 8], kGridIq3s[p[1] | (high & 2) << 7]),
                     Pair(kGridIq3s[p[2] | (high & 4) << 6], kGridIq3s[p[3] | (high & 8) << 5]),
                     Read<uint16_t>(b + 74 + kI * 2));
  }
  template <int kI>
  static float ScaleOf(const uint8_t* b) {
    return (static_cast<float>(NibbleAt(b + 106, kI / 2)) * 2.0f + 1.0f) * Half(b);
  }
};

// Numbers of the grid of IQ1_S and IQ1_M in eighths, a bit of `less` for each eight: one eighth
// is taken away where it is set, and else added.
inline Codes Shifted8ths(uint32_t first, uint32_t second, int less) {
  constexpr uint64_t kOnes = 0x0101010101010101ull;
  const Words grid = {kGridIq1s[first], kGridIq1s[second]};
  const Words shift = {(less & 1) != 0 ? ~0ull : kOnes, (less & 2) != 0 ? ~0ull : kOnes};
  return reinterpret_cast<Codes>(grid) + reinterpret_cast<Codes>(shift);
}

struct Iq1S : OfSixteens<Iq1S> {
  static constexpr int64_t kBytes = 50;
  template <int kI>
  static Codes CodesOf(const uint8_t* b) {
    const uint32_t word = Read<uint16_t>(b + 34 + kI / 2 * 2);
    const uint32_t high = word >> (kI % 2 * 6);
    const uint8_t* low = b + 2 + kI * 2;
    return Shifted8ths(low[0] | (high & 7) << 8, low[1] | (high & 56) << 5, word >> 15 ? 3 : 0);
  }
  template <int kI>
  static float ScaleOf(const uint8_t* b) {
    const int field = Read<uint16_t>(b + 34 + kI / 2 * 2) >> 12 & 7;
    return (static_cast<float>(field) * 2.0f + 1.0f) * Half(b) * 0.125f;
  }
};

struct Iq1M : OfSixteens<Iq1M> {
  static constexpr int64_t kBytes = 56;
  template <int kI>
  static Codes CodesOf(const uint8_t* b) {
    const uint32_t high = b[32 + kI];
    const uint8_t* low = b + kI * 2;
    return Shifted8ths(low[0] | (high & 7) << 8, low[1] | (high & 0x70) << 4,
                       (high >> 3 & 1) | (high >> 6 & 2));
  }
  template <int kI>
  static float ScaleOf(const uint8_t* b) {
    const auto word = Read<uint64_t>(b + 48);
    const int field = word >> (kI / 4 * 16 + kI % 4 * 3) & 7;
    // The f16 of all lies in the top four bits of four words.
    const auto bits = static_cast<uint16_t>((word >> 12 & 0xf) | (word >> 24 & 0xf0) |
                                            (word >> 36 & 0xf00) | (word >> 48 & 0xf000));
    return (static_cast<float>(field) * 2.0f + 1.0f) * ToFloat(F16{bits}) * 0.125f;
  }
};

struct Tq1_0 : OfSixteens<Tq1_0> {
  static constexpr int64_t kBytes = 54;
  template <int kI>
  static Codes CodesOf(const uint8_t* b) {
    constexpr uint8_t kThrees[] = {1, 3, 9, 27, 81};
    Codes v;
    if constexpr (kI < 10) {
      v = Load16(b + kI % 2 * 16) * kThrees[kI / 2];
    } else if constexpr (kI < 15) {
      v = Load16(b + 32) * kThrees[kI - 10];
    } else {
      const uint64_t bytes = Read<uint32_t>(b + 48);
      const Words four = {Pair(bytes, bytes), Pair(bytes, bytes)};
      const Codes factors = {1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27};
      v = reinterpret_cast<Codes>(four) * factors;
    }
    // The digit is what 3 · v has above its eight bits; a comparison that holds is -1.
    return reinterpret_cast<Codes>(-(v >= 86) - (v >= 171)) - 1;
  }
  template <int kI>
  static float ScaleOf(const uint8_t* b) {
    return Half(b + 52);
  }
};

#if defined(__x86_64__)

template <typename Block>
struct SixteensOfCodes {
  static constexpr bool kHas = true;
  RLX_AVX512 explicit SixteensOfCodes(const uint8_t* b) : b(b) {}
  template <int kG>
  RLX_AVX512 void Get(__m512* low, __m512* high) const {
    *low = Times<2 * kG>();
    *high = Times<2 * kG + 1>();
  }
  template <int kI>
  RLX_AVX512 __m512 Times() const {
    const auto codes = reinterpret_cast<__m128i>(Block::template CodesOf<kI>(b));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)),
                         _mm512_set1_ps(Block::template ScaleOf<kI>(b)));
  }
  const uint8_t* b;
};

#define RLX_SIXTEENS(Block)                                  \
  template <>                                                \
  struct Sixteens<Block> : SixteensOfCodes<Block> {          \
    using SixteensOfCodes<Block>::SixteensOfCodes;           \
  };
RLX_SIXTEENS(Iq1S)
RLX_SIXTEENS(Iq1M)
RLX_SIXTEENS(Iq2Xxs)
RLX_SIXTEENS(Iq2Xs)
RLX_SIXTEENS(Iq2S)
RLX_SIXTEENS(Iq3Xxs)
RLX_SIXTEENS(Iq3S)
RLX_SIXTEENS(Tq1_0)
#undef RLX_SIXTEENS

#endif  // defined(__x86_64__)

}  // namespace blocks

}  // namespace rlx

#endif  // RLX_KERNELS_GRIDS_H_
