/* smelt_program.h: what the programs of a package (sizes, memory, order of kernels) need. */
#ifndef SMELT_PROGRAM_H
#define SMELT_PROGRAM_H

#include <string.h>

#include "smelt_runtime.h"

/* Python's // and %: quotients are rounded down. */
static inline int64_t smelt_quotient(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}
static inline int64_t smelt_rest(int64_t a, int64_t b) { return a - smelt_quotient(a, b) * b; }
static inline int64_t smelt_most(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t smelt_least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t smelt_rounded(int64_t bytes) {
  return (bytes + SMELT_ALIGNMENT - 1) / SMELT_ALIGNMENT * SMELT_ALIGNMENT;
}

/* Copies elements of `size` bytes from any strides (in elements) to C order. */
static inline void smelt_copy(
    void* to, const char* from, int rank, const int64_t* shape, const int64_t* strides, int64_t size) {
  int64_t at[64] = {0};
  char* next = (char*)to;
  for (int dim = 0; dim < rank; ++dim)
    if (shape[dim] == 0) return;
  for (;;) {
    int64_t offset = 0;
    for (int dim = 0; dim < rank; ++dim) offset += at[dim] * strides[dim];
    memcpy(next, from + offset * size, (size_t)size);
    next += size;
    int dim = rank - 1;
    while (dim >= 0 && ++at[dim] == shape[dim]) at[dim--] = 0;
    if (dim < 0) return;
  }
}

#endif
