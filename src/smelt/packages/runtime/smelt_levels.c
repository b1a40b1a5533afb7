/* smelt_levels.c: which of a library's programs this processor runs. */
#include "smelt_internal.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* Bits of XCR0: what the system saves of a thread. */
enum { AVX_STATE = 6, AVX512_STATE = 0xe6, TILE_STATE = 0x60000 };

typedef struct {
  unsigned leaf1_c, leaf7_b, leaf7_c, leaf7_d, leaf7_1_a, extended_c;
  uint64_t saved;
} processor;

static processor look(void) {
  processor found = {0, 0, 0, 0, 0, 0, 0};
  unsigned a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d)) found.leaf1_c = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    found.leaf7_b = b, found.leaf7_c = c, found.leaf7_d = d;
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) found.leaf7_1_a = a;
  }
  if (__get_cpuid(0x80000001u, &a, &b, &c, &d)) found.extended_c = c;
  if (found.leaf1_c & 1u << 27) { /* OSXSAVE */
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(a), "=d"(d) : "c"(0)); /* xgetbv */
    found.saved = (uint64_t)d << 32 | a;
  }
  return found;
}

/* What levels need of leaf 1's ecx, leaf 7's ebx and leaf 0x80000001's ecx. */
#define BIT(k) (1u << (k))
#define V2_1C \
  (BIT(0) | BIT(9) | BIT(13) | BIT(19) | BIT(20) | BIT(23)) /* SSE3, SSSE3, CX16, SSE4.1, SSE4.2, POPCNT */
#define V3_1C (V2_1C | BIT(12) | BIT(22) | BIT(27) | BIT(28) | BIT(29)) /* FMA, MOVBE, OSXSAVE, AVX, F16C */
#define V3_7B (BIT(3) | BIT(5) | BIT(8))                                /* BMI1, AVX2, BMI2 */
#define V4_7B (V3_7B | BIT(16) | BIT(17) | BIT(28) | BIT(30) | BIT(31)) /* AVX512F, DQ, CD, BW, VL */
#define V2_EXTENDED BIT(0)                                              /* LAHF */
#define V3_EXTENDED (V2_EXTENDED | BIT(5))                              /* LZCNT */

static int has_word(const char* word, size_t length) {
  /* A level or a feature: the bits that it needs of each register. */
  static const struct {
    const char* word;
    processor needs;
  } words[] = {
      {"x86-64", {0, 0, 0, 0, 0, 0, 0}},
      {"x86-64-v2", {V2_1C, 0, 0, 0, 0, V2_EXTENDED, 0}},
      {"x86-64-v3", {V3_1C, V3_7B, 0, 0, 0, V3_EXTENDED, AVX_STATE}},
      {"x86-64-v4", {V3_1C, V4_7B, 0, 0, 0, V3_EXTENDED, AVX512_STATE}},
      {"vnni", {0, 0, BIT(11), 0, 0, 0, AVX512_STATE}},
      {"vbmi", {0, 0, BIT(1), 0, 0, 0, AVX512_STATE}},
      {"avxvnni", {0, 0, 0, 0, BIT(4), 0, AVX_STATE}},
      {"bf16", {0, 0, 0, 0, BIT(5), 0, AVX512_STATE}},
      {"fp16", {0, 0, 0, BIT(23), 0, 0, AVX512_STATE}},
      {"amx", {0, 0, 0, BIT(22) | BIT(24) | BIT(25), 0, 0, TILE_STATE}},
  };
  const processor is = look();
  size_t i;
  for (i = 0; i < sizeof words / sizeof *words; ++i) {
    const processor* needs = &words[i].needs;
    if (strlen(words[i].word) != length || memcmp(words[i].word, word, length) != 0) continue;
    return !(needs->leaf1_c & ~is.leaf1_c) && !(needs->leaf7_b & ~is.leaf7_b) &&
           !(needs->leaf7_c & ~is.leaf7_c) && !(needs->leaf7_d & ~is.leaf7_d) &&
           !(needs->leaf7_1_a & ~is.leaf7_1_a) && !(needs->extended_c & ~is.extended_c) &&
           !(needs->saved & ~is.saved) && (!(needs->saved & TILE_STATE) || smelt_os_allow_amx());
  }
  return 0;
}
#elif defined(__aarch64__)
static int has_word(const char* word, size_t length) {
  static const struct {
    const char* word;
    int needs;
  } words[] = {{"aarch64", 0}, {"dotprod", SMELT_ARM_DOTPROD}, {"i8mm", SMELT_ARM_I8MM},
      {"bf16", SMELT_ARM_BF16}, {"sve", SMELT_ARM_SVE}};
  size_t i;
  for (i = 0; i < sizeof words / sizeof *words; ++i)
    if (strlen(words[i].word) == length && memcmp(words[i].word, word, length) == 0)
      return !(words[i].needs & ~smelt_os_arm());
  return 0;
}
#else
static int has_word(const char* word, size_t length) {
  (void)word, (void)length;
  return 0;
}
#endif

/* Whether the processor runs code of a level: words with a + between them, all known and there. */
int smelt_has(const char* level) {
  if (strcmp(level, "generic") == 0) return 1;
  for (;;) {
    const size_t length = strcspn(level, "+");
    if (!has_word(level, length)) return 0;
    if (level[length] == 0) return 1;
    level += length + 1;
  }
}

const smelt_program* smelt_choose_program(const smelt_description* description, const char* level) {
  char known[200] = "";
  int32_t i;
  for (i = 0; i < description->program_count; ++i) {
    const smelt_program* program = description->programs[i];
    if (level ? strcmp(level, program->level) == 0 : smelt_has(program->level)) {
      if (!level || smelt_has(level)) return program;
      smelt_fail(SMELT_E_CPU, "this processor does not run code of level %s", level);
      return NULL;
    }
    if (strlen(known) + strlen(program->level) + 3 < sizeof known) {
      strcat(known, i ? ", " : "");
      strcat(known, program->level);
    }
  }
  if (level)
    smelt_fail(
        SMELT_E_CPU, "the library has no code of level %s, but of %s", level, known[0] ? known : "none");
  else
    smelt_fail(SMELT_E_CPU, "the library has no code that this processor runs, but of levels %s",
        known[0] ? known : "none");
  return NULL;
}
