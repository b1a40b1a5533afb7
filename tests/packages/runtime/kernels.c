/* kernels: calls of kernels.cpp as a run makes them, with the scratch memory that it may use and not more. */
#include "smelt_internal.h"

#include <math.h>
#include <stdio.h>

void tiny_here_rows(void** arguments, const int64_t* sizes);

enum { ROWS = 301, LENGTH = 77 };
static float x[ROWS][LENGTH], sorted[ROWS][LENGTH], turned[ROWS];
static int64_t at[ROWS][LENGTH];
/* The sums, in whole cache lines; a row and its entries while they are sorted are less. */
enum { SCRATCH = (ROWS * 8 + 63) / 64 * 64 };

int main(void) {
  static char workspace[1 << 20] __attribute__((aligned(64)));
  const int64_t sizes[] = {ROWS, LENGTH};
  void* arguments[] = {x, sorted, at, turned};
  smelt_runtime model = {0};
  smelt_record record = {0};
  int threads, row, i;
  for (threads = 1; threads < 4; ++threads) {
    for (row = 0; row < ROWS; ++row)
      for (i = 0; i < LENGTH; ++i) x[row][i] = (float)((row * 31 + i * 17) % 101), sorted[row][i] = -1;
    model.pool = threads > 1 ? smelt_pool_create(threads) : NULL;
    record.model = &model, record.threads = threads;
    record.part_bytes = SCRATCH + SMELT_ROUND_UP(sizeof(smelt_worker));
    record.ranges = (smelt_range*)(void*)workspace;
    record.parts = workspace + (size_t)threads * sizeof(smelt_range);
    {
      smelt_worker* before = smelt_enter(&record);
      tiny_here_rows(arguments, sizes);
      smelt_leave(before);
    }
    smelt_pool_destroy(model.pool);
    for (row = 0; row < ROWS; ++row) {
      for (i = 0; i < LENGTH; ++i)
        if (sorted[row][i] != x[row][at[row][i]] + 0.5f || (i && sorted[row][i] < sorted[row][i - 1]))
          return 1;
      if (fabs(turned[row] - exp((double)sorted[row][0])) > 1e-5 * exp((double)sorted[row][0])) return 2;
    }
  }
  return 0;
}
