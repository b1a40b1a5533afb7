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

static int has_word(const char* word, size_t length) {
  /* A level or a feature: the bits that it needs of each register. */
  static const struct {
    const char* word;
    processor needs;
  } words[] = {
      {"x86-64", {0, 0, 0, 0, 0, 0, 0}},
      /* SSE3, SSSE3, CX16, SSE4.1, SSE4.2, POPCNT; LAHF */
      {"x86-64-v2", {1u << 0 | 1u << 9 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 23, 0, 0, 0, 0, 1u << 0, 0}},
      /* and FMA, MOVBE, OSXSAVE, AVX, F16C; BMI1, AVX2, BMI2; LZCNT */
      {"x86-64-v3",
          {1u << 0 | 1u << 9 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 23 | 1u << 12 | 1u << 22 | 1u << 27 | 1u << 28 |
                  1u << 29,
              1u << 3 | 1u << 5 | 1u << 8, 0, 0, 0, 1u << 0 | 1u << 5, AVX_STATE}},
      /* and AVX512F, DQ, CD, BW, VL */
      {"x86-64-v4",
          {1u << 0 | 1u << 9 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 23 | 1u << 12 | 1u << 22 | 1u << 27 | 1u << 28 |
                  1u << 29,
              1u << 3 | 1u << 5 | 1u << 8 | 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31, 0, 0, 0,
              1u << 0 | 1u << 5, AVX512_STATE}},
      {"vnni", {0, 0, 1u << 11, 0, 0, 0, AVX512_STATE}},
      {"vbmi", {0, 0, 1u << 1, 0, 0, 0, AVX512_STATE}},
      {"avxvnni", {0, 0, 0, 0, 1u << 4, 0, AVX_STATE}},
      {"bf16", {0, 0, 0, 0, 1u << 5, 0, AVX512_STATE}},
      {"fp16", {0, 0, 0, 1u << 23, 0, 0, AVX512_STATE}},
      {"amx", {0, 0, 0, 1u << 22 | 1u << 24 | 1u << 25, 0, 0, TILE_STATE}},
  };
  const processor is = look();
  size_t i;
  for (i = 0; i < sizeof words / sizeof *words; ++i) {
    const processor* needs = &words[i].needs;
    if (strlen(words[i].word) != length || memcmp(words[i].word, word, length) != 0) continue;
    return !(needs->leaf1_c & ~is.leaf1_c) && !(needs->leaf7_b & ~is.leaf7_b) && !(needs->leaf7_c & ~is.leaf7_c) &&
           !(needs->leaf7_d & ~is.leaf7_d) && !(needs->leaf7_1_a & ~is.leaf7_1_a) &&
           !(needs->extended_c & ~is.extended_c) && !(needs->saved & ~is.saved) &&
           (!(needs->saved & TILE_STATE) || smelt_os_allow_amx());
  }
  return 0;
}
#elif defined(__aarch64__)
static int has_word(const char* word, size_t length) {
  static const struct {
    const char* word;
    int needs;
  } words[] = {{"aarch64", 0}, {"dotprod", SMELT_ARM_DOTPROD}, {"i8mm", SMELT_ARM_I8MM}, {"bf16", SMELT_ARM_BF16},
      {"sve", SMELT_ARM_SVE}};
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

/* Whether the processor runs code of a level: words with a + between them, all of which are known and there. */
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
    smelt_fail(SMELT_E_CPU, "the library has no code of level %s, but of %s", level, known[0] ? known : "none");
  else
    smelt_fail(SMELT_E_CPU, "the library has no code that this processor runs, but of levels %s", known[0] ? known : "none");
  return NULL;
}
