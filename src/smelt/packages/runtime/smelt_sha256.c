/* smelt_sha256.c: SHA-256 (FIPS 180-4), with the processor's instructions for it where there are any. */
#include "smelt_internal.h"

#include <string.h>

static const uint32_t constants[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
    0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb,
    0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624,
    0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb,
    0xbef9a3f7, 0xc67178f2};

static uint32_t turned(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

/* Round i; the names of the state's words turn with it, so that none has to move. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                                                \
  do {                                                                                                  \
    const uint32_t sum =                                                                                \
        h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + (g ^ (e & (f ^ g))) + constants[i] + w[i]; \
    d += sum;                                                                                           \
    h = sum + (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) | (c & (a | b)));               \
  } while (0)

static void add_blocks(uint32_t state[8], const unsigned char* data, size_t blocks) {
  for (; blocks > 0; --blocks, data += 64) {
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    int i;
    for (i = 0; i < 16; ++i)
      w[i] = (uint32_t)data[4 * i] << 24 | (uint32_t)data[4 * i + 1] << 16 | (uint32_t)data[4 * i + 2] << 8 |
             (uint32_t)data[4 * i + 3];
    for (; i < 64; ++i)
      w[i] = w[i - 16] + (turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
             (turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10);
    for (i = 0; i < 64; i += 8) {
      ROUND(a, b, c, d, e, f, g, h, i);
      ROUND(h, a, b, c, d, e, f, g, i + 1);
      ROUND(g, h, a, b, c, d, e, f, i + 2);
      ROUND(f, g, h, a, b, c, d, e, i + 3);
      ROUND(e, f, g, h, a, b, c, d, i + 4);
      ROUND(d, e, f, g, h, a, b, c, i + 5);
      ROUND(c, d, e, f, g, h, a, b, i + 6);
      ROUND(b, c, d, e, f, g, h, a, i + 7);
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
  }
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

static int has_instructions(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 19) || !(c & 1u << 9)) return 0; /* SSE4.1, SSSE3 */
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 29);
}

/* The state as the instructions want it: two vectors, of the words a b e f and c d g h, the first the
 * highest. */
__attribute__((target("sha,sse4.1,ssse3"))) static void add_blocks_quickly(
    uint32_t state[8], const unsigned char* data, size_t blocks) {
  const __m128i reversed = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i*)state), 0xb1);
  __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i*)(state + 4)), 0x1b);
  __m128i abef = _mm_alignr_epi8(abcd, efgh, 8), cdgh = _mm_blend_epi16(efgh, abcd, 0xf0);
  for (; blocks > 0; --blocks, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4], words;
    int i;
    for (i = 0; i < 4; ++i)
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)(data + 16 * i)), reversed);
#pragma GCC unroll 16
    for (i = 0; i < 16; ++i) {
      if (i >= 4) {
        const __m128i earlier = _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]),
            _mm_alignr_epi8(w[(i + 3) % 4], w[(i + 2) % 4], 4));
        w[i % 4] = _mm_sha256msg2_epu32(earlier, w[(i + 3) % 4]);
      }
      words = _mm_add_epi32(w[i % 4], _mm_loadu_si128((const __m128i*)(constants + 4 * i)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, words);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(words, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  abcd = _mm_shuffle_epi32(abef, 0x1b);
  efgh = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128((__m128i*)state, _mm_blend_epi16(abcd, efgh, 0xf0));
  _mm_storeu_si128((__m128i*)(state + 4), _mm_alignr_epi8(efgh, abcd, 8));
}
#elif defined(__aarch64__) && defined(__ORDER_LITTLE_ENDIAN__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#include <arm_neon.h>

static int has_instructions(void) { return smelt_os_arm() & SMELT_ARM_SHA2; }

#ifdef __clang__
__attribute__((target("sha2")))
#else
__attribute__((target("+crypto")))
#endif
static void add_blocks_quickly(uint32_t state[8], const unsigned char* data, size_t blocks) {
  uint32x4_t abcd = vld1q_u32(state), efgh = vld1q_u32(state + 4);
  for (; blocks > 0; --blocks, data += 64) {
    const uint32x4_t abcd_before = abcd, efgh_before = efgh;
    uint32x4_t w[4], words, a;
    int i;
    for (i = 0; i < 4; ++i) w[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data + 16 * i)));
    for (i = 0; i < 16; ++i) {
      if (i >= 4)
        w[i % 4] = vsha256su1q_u32(vsha256su0q_u32(w[i % 4], w[(i + 1) % 4]), w[(i + 2) % 4], w[(i + 3) % 4]);
      words = vaddq_u32(w[i % 4], vld1q_u32(constants + 4 * i));
      a = abcd;
      abcd = vsha256hq_u32(abcd, efgh, words);
      efgh = vsha256h2q_u32(efgh, a, words);
    }
    abcd = vaddq_u32(abcd, abcd_before);
    efgh = vaddq_u32(efgh, efgh_before);
  }
  vst1q_u32(state, abcd);
  vst1q_u32(state + 4, efgh);
}
#else
#define has_instructions() 0
#define add_blocks_quickly add_blocks
#endif

void smelt_sha256(const void* data, size_t bytes, unsigned char digest[32]) {
  uint32_t state[8] = {
      0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  void (*const add)(uint32_t*, const unsigned char*, size_t) =
      has_instructions() ? add_blocks_quickly : add_blocks;
  const size_t rest = bytes % 64, blocks = rest < 56 ? 1 : 2;
  unsigned char last[128] = {0};
  int i;
  add(state, (const unsigned char*)data, bytes / 64);
  if (rest > 0) memcpy(last, (const unsigned char*)data + (bytes - rest), rest);
  last[rest] = 0x80;
  for (i = 0; i < 8; ++i) last[64 * blocks - 1 - (size_t)i] = (unsigned char)((uint64_t)bytes * 8 >> 8 * i);
  add(state, last, blocks);
  for (i = 0; i < 32; ++i) digest[i] = (unsigned char)(state[i / 4] >> (24 - 8 * (i % 4)));
}
