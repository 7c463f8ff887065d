// Includes the file that RLX_TILES names once for vectors of 32 bytes, in namespace wide256, and where the compiler can,
// once for vectors of 64 bytes, in namespace wide512. No include guard: each set of tiles comes through here.

#define RLX_WIDE wide256
#define RLX_WIDE_BYTES 32
#include RLX_TILES
#undef RLX_WIDE
#undef RLX_WIDE_BYTES

#if defined(RLX_HAS_WIDE512)
#define RLX_WIDE wide512
#define RLX_WIDE_BYTES 64
RLX_BEGIN_WIDE512
#include RLX_TILES
RLX_END_WIDE512
#undef RLX_WIDE
#undef RLX_WIDE_BYTES
#endif

#undef RLX_TILES
