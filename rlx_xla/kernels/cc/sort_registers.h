// Registers of 32- and 64-bit signed integers, for sort_tiles.h.
// No include guard: see each_width.h.

#define RLX_SORT inline __attribute__((always_inline))

namespace rlx {
namespace sort {
namespace RLX_WIDE {

// What a kind of key needs: registers of kLanes keys, of which a network holds kRows.
//   Turn<w>: lanes of each group of w backwards. Cross<d>: lane i from lane i ^ d.
//   Exchange<h>(v, t): the lesser of both in lanes whose bit h is clear, the greater in the others.
//   Split(v, cut, low, high): the keys below cut from `low` on, the others in the places before
//   `high`; two registers of places are free between. Returns how many are below.
#if RLX_WIDE_BYTES == 64

struct Keys32 {
  using Key = int32_t;
  using V = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 16;
  static constexpr bool kMasks = true;

  static RLX_SORT V All(Key x) { return _mm512_set1_epi32(x); }
  static RLX_SORT V Load(const Key* p) { return _mm512_loadu_si512(p); }
  static RLX_SORT void Store(V v, Key* p) { _mm512_storeu_si512(p, v); }
  static RLX_SORT __mmask16 First(int64_t n) {
    return static_cast<__mmask16>(n >= kLanes ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
  }
  // Of the first n keys at p; the largest key in other lanes.
  static RLX_SORT V LoadFirst(const Key* p, int64_t n) {
    return _mm512_mask_loadu_epi32(All(std::numeric_limits<Key>::max()), First(n), p);
  }
  static RLX_SORT void StoreFirst(V v, Key* p, int64_t n) {
    _mm512_mask_storeu_epi32(p, First(n), v);
  }
  static RLX_SORT void Order(V* a, V* b) {
    const V least = _mm512_min_epi32(*a, *b);
    *b = _mm512_max_epi32(*a, *b);
    *a = least;
  }
  template <int kHalf>
  static RLX_SORT V Exchange(V v, V t) {
    constexpr __mmask16 kMask =
        kHalf == 1 ? 0xaaaa : kHalf == 2 ? 0xcccc : kHalf == 4 ? 0xf0f0 : 0xff00;
    return _mm512_mask_max_epi32(_mm512_min_epi32(v, t), kMask, v, t);
  }
  template <int kGroup>
  static RLX_SORT V Turn(V v) {
    if constexpr (kGroup == 2) return _mm512_shuffle_epi32(v, _MM_PERM_CDAB);
    if constexpr (kGroup == 4) return _mm512_shuffle_epi32(v, _MM_PERM_ABCD);
    if constexpr (kGroup == 8) {
      return _mm512_permutexvar_epi32(
          _mm512_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8), v);
    }
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), v);
  }
  template <int kDistance>
  static RLX_SORT V Cross(V v) {
    if constexpr (kDistance == 1) return _mm512_shuffle_epi32(v, _MM_PERM_CDAB);
    if constexpr (kDistance == 2) return _mm512_shuffle_epi32(v, _MM_PERM_BADC);
    if constexpr (kDistance == 4) return _mm512_shuffle_i64x2(v, v, 0xb1);
    return _mm512_shuffle_i64x2(v, v, 0x4e);
  }
  static RLX_SORT int Below(V v, V cut) {
    return __builtin_popcount(_mm512_cmplt_epi32_mask(v, cut));
  }
  static RLX_SORT int Split(V v, V cut, Key* low, Key* high) {
    const __mmask16 less = _mm512_cmplt_epi32_mask(v, cut);
    const int count = __builtin_popcount(less);
    Store(_mm512_maskz_compress_epi32(less, v), low);
    const V rest = _mm512_maskz_compress_epi32(static_cast<__mmask16>(~less), v);
    _mm512_mask_storeu_epi32(high - (kLanes - count), static_cast<__mmask16>(0xffff >> count),
                             rest);
    return count;
  }
  // The same for the first n keys at p, without more room than they need.
  static RLX_SORT int SplitFirst(const Key* p, int64_t n, V cut, Key* low, Key* high) {
    const __mmask16 first = First(n);
    const V v = _mm512_maskz_loadu_epi32(first, p);
    const __mmask16 less = _mm512_mask_cmplt_epi32_mask(first, v, cut);
    const __mmask16 more = static_cast<__mmask16>(first & ~less);
    const int count = __builtin_popcount(less);
    StoreFirst(_mm512_maskz_compress_epi32(less, v), low, count);
    StoreFirst(_mm512_maskz_compress_epi32(more, v), high - (n - count), n - count);
    return count;
  }
};

struct Keys64 {
  using Key = int64_t;
  using V = __m512i;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 16;
  static constexpr bool kMasks = true;

  static RLX_SORT V All(Key x) { return _mm512_set1_epi64(x); }
  static RLX_SORT V Load(const Key* p) { return _mm512_loadu_si512(p); }
  static RLX_SORT void Store(V v, Key* p) { _mm512_storeu_si512(p, v); }
  static RLX_SORT __mmask8 First(int64_t n) {
    return static_cast<__mmask8>(n >= kLanes ? 0xff : n <= 0 ? 0 : (1 << n) - 1);
  }
  static RLX_SORT V LoadFirst(const Key* p, int64_t n) {
    return _mm512_mask_loadu_epi64(All(std::numeric_limits<Key>::max()), First(n), p);
  }
  static RLX_SORT void StoreFirst(V v, Key* p, int64_t n) {
    _mm512_mask_storeu_epi64(p, First(n), v);
  }
  static RLX_SORT void Order(V* a, V* b) {
    const V least = _mm512_min_epi64(*a, *b);
    *b = _mm512_max_epi64(*a, *b);
    *a = least;
  }
  template <int kHalf>
  static RLX_SORT V Exchange(V v, V t) {
    constexpr __mmask8 kMask = kHalf == 1 ? 0xaa : kHalf == 2 ? 0xcc : 0xf0;
    return _mm512_mask_max_epi64(_mm512_min_epi64(v, t), kMask, v, t);
  }
  template <int kGroup>
  static RLX_SORT V Turn(V v) {
    if constexpr (kGroup == 2) return _mm512_shuffle_epi32(v, _MM_PERM_BADC);
    if constexpr (kGroup == 4) return _mm512_permutex_epi64(v, 0x1b);
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(7, 6, 5, 4, 3, 2, 1, 0), v);
  }
  template <int kDistance>
  static RLX_SORT V Cross(V v) {
    if constexpr (kDistance == 1) return _mm512_shuffle_epi32(v, _MM_PERM_BADC);
    if constexpr (kDistance == 2) return _mm512_permutex_epi64(v, 0x4e);
    return _mm512_shuffle_i64x2(v, v, 0x4e);
  }
  static RLX_SORT int Below(V v, V cut) {
    return __builtin_popcount(_mm512_cmplt_epi64_mask(v, cut));
  }
  static RLX_SORT int Split(V v, V cut, Key* low, Key* high) {
    const __mmask8 less = _mm512_cmplt_epi64_mask(v, cut);
    const __m128i lanes =
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kFirstOfEight.lanes[less]));
    const V moved = _mm512_permutexvar_epi64(_mm512_cvtepu8_epi64(lanes), v);
    Store(moved, low);
    Store(moved, high - kLanes);
    return __builtin_popcount(less);
  }
  // The same for the first n keys at p, without more room than they need.
  static RLX_SORT int SplitFirst(const Key* p, int64_t n, V cut, Key* low, Key* high) {
    const __mmask8 first = First(n);
    const V v = _mm512_maskz_loadu_epi64(first, p);
    const __mmask8 less = _mm512_mask_cmplt_epi64_mask(first, v, cut);
    const __mmask8 more = static_cast<__mmask8>(first & ~less);
    const int count = __builtin_popcount(less);
    StoreFirst(_mm512_maskz_compress_epi64(less, v), low, count);
    StoreFirst(_mm512_maskz_compress_epi64(more, v), high - (n - count), n - count);
    return count;
  }
};

#else

struct Keys32 {
  using Key = int32_t;
  using V = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 8;
  static constexpr bool kMasks = false;

  static RLX_SORT V All(Key x) { return _mm256_set1_epi32(x); }
  static RLX_SORT V Load(const Key* p) {
    return _mm256_loadu_si256(reinterpret_cast<const V*>(p));
  }
  static RLX_SORT void Store(V v, Key* p) { _mm256_storeu_si256(reinterpret_cast<V*>(p), v); }
  static RLX_SORT V First(int64_t n) {
    const Key count = static_cast<Key>(n >= kLanes ? kLanes : n <= 0 ? 0 : n);
    return _mm256_cmpgt_epi32(All(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static RLX_SORT V LoadFirst(const Key* p, int64_t n) {
    const V mask = First(n);
    return _mm256_blendv_epi8(All(std::numeric_limits<Key>::max()), _mm256_maskload_epi32(p, mask),
                              mask);
  }
  static RLX_SORT void StoreFirst(V v, Key* p, int64_t n) {
    _mm256_maskstore_epi32(p, First(n), v);
  }
  static RLX_SORT void Order(V* a, V* b) {
    const V least = _mm256_min_epi32(*a, *b);
    *b = _mm256_max_epi32(*a, *b);
    *a = least;
  }
  template <int kHalf>
  static RLX_SORT V Exchange(V v, V t) {
    constexpr int kMask = kHalf == 1 ? 0xaa : kHalf == 2 ? 0xcc : 0xf0;
    return _mm256_blend_epi32(_mm256_min_epi32(v, t), _mm256_max_epi32(v, t), kMask);
  }
  template <int kGroup>
  static RLX_SORT V Turn(V v) {
    if constexpr (kGroup == 2) return _mm256_shuffle_epi32(v, 0xb1);
    if constexpr (kGroup == 4) return _mm256_shuffle_epi32(v, 0x1b);
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0));
  }
  template <int kDistance>
  static RLX_SORT V Cross(V v) {
    if constexpr (kDistance == 1) return _mm256_shuffle_epi32(v, 0xb1);
    if constexpr (kDistance == 2) return _mm256_shuffle_epi32(v, 0x4e);
    return _mm256_permute4x64_epi64(v, 0x4e);
  }
  static RLX_SORT int Bits(V v, V cut) {
    return _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(cut, v)));
  }
  static RLX_SORT int Below(V v, V cut) { return __builtin_popcount(Bits(v, cut)); }
  // Both stores are of the whole register, what is below in its front and the rest in its back.
  static RLX_SORT int Split(V v, V cut, Key* low, Key* high) {
    const int bits = Bits(v, cut);
    const __m128i lanes =
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kFirstOfEight.lanes[bits]));
    const V moved = _mm256_permutevar8x32_epi32(v, _mm256_cvtepu8_epi32(lanes));
    Store(moved, low);
    Store(moved, high - kLanes);
    return __builtin_popcount(bits);
  }
};

struct Keys64 {
  using Key = int64_t;
  using V = __m256i;
  static constexpr int kLanes = 4;
  static constexpr int kRows = 8;
  static constexpr bool kMasks = false;

  static RLX_SORT V All(Key x) { return _mm256_set1_epi64x(x); }
  static RLX_SORT V Load(const Key* p) {
    return _mm256_loadu_si256(reinterpret_cast<const V*>(p));
  }
  static RLX_SORT void Store(V v, Key* p) { _mm256_storeu_si256(reinterpret_cast<V*>(p), v); }
  static RLX_SORT V First(int64_t n) {
    return _mm256_cmpgt_epi64(All(n), _mm256_setr_epi64x(0, 1, 2, 3));
  }
  static RLX_SORT V LoadFirst(const Key* p, int64_t n) {
    const V mask = First(n);
    const V read = _mm256_maskload_epi64(reinterpret_cast<const long long*>(p), mask);  // NOLINT
    return _mm256_blendv_epi8(All(std::numeric_limits<Key>::max()), read, mask);
  }
  static RLX_SORT void StoreFirst(V v, Key* p, int64_t n) {
    _mm256_maskstore_epi64(reinterpret_cast<long long*>(p), First(n), v);  // NOLINT
  }
  static RLX_SORT void Order(V* a, V* b) {
    const V more = _mm256_cmpgt_epi64(*a, *b);
    const V least = _mm256_blendv_epi8(*a, *b, more);
    *b = _mm256_blendv_epi8(*b, *a, more);
    *a = least;
  }
  template <int kHalf>
  static RLX_SORT V Exchange(V v, V t) {
    constexpr int kMask = kHalf == 1 ? 0xcc : 0xf0;
    Order(&v, &t);
    return _mm256_blend_epi32(v, t, kMask);
  }
  template <int kGroup>
  static RLX_SORT V Turn(V v) {
    if constexpr (kGroup == 2) return _mm256_shuffle_epi32(v, 0x4e);
    return _mm256_permute4x64_epi64(v, 0x1b);
  }
  template <int kDistance>
  static RLX_SORT V Cross(V v) {
    if constexpr (kDistance == 1) return _mm256_shuffle_epi32(v, 0x4e);
    return _mm256_permute4x64_epi64(v, 0x4e);
  }
  static RLX_SORT int Bits(V v, V cut) {
    return _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(cut, v)));
  }
  static RLX_SORT int Below(V v, V cut) { return __builtin_popcount(Bits(v, cut)); }
  static RLX_SORT int Split(V v, V cut, Key* low, Key* high) {
    const int bits = Bits(v, cut);
    const __m128i lanes =
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kFirstOfFour.lanes[bits]));
    const V moved = _mm256_permutevar8x32_epi32(v, _mm256_cvtepu8_epi32(lanes));
    Store(moved, low);
    Store(moved, high - kLanes);
    return __builtin_popcount(bits);
  }
};

#endif

}  // namespace RLX_WIDE
}  // namespace sort
}  // namespace rlx
