/* Two runs of `small` on a batch of 5; writes y, flags, cache and steps. What the callers' bits are held against. */
#include "small.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int code) {
  if (code == 0) return;
  fprintf(stderr, "%s\n", small_last_error());
  exit(1);
}

int main(int argc, char** argv) {
  float x[15], cache[10] = {0}, y[15];
  int64_t index[5], steps, sizes[1];
  unsigned char flags[10];
  int64_t of_x[] = {5, 3}, of_index[] = {5}, of_cache[] = {5, 2}, of_flags[] = {10};
  small* model;
  for (int i = 0; i < 15; i++) x[i] = (float)i * 0.37f - 2;
  for (int i = 0; i < 5; i++) index[i] = i * i;
  check(argc != 3);
  check(small_create(argv[1], NULL, &model));
  check(small_initial(model, 3, &steps));
  DLTensor inputs[] = {
      {x, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, of_x, NULL, 0},
      {index, {kDLCPU, 0}, 1, {kDLInt, 64, 1}, of_index, NULL, 0},
      {cache, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, of_cache, NULL, 0},
      {&steps, {kDLCPU, 0}, 0, {kDLInt, 64, 1}, NULL, NULL, 0},
  };
  DLTensor outputs[] = {
      {y, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, of_x, NULL, 0},
      {flags, {kDLCPU, 0}, 1, {kDLBool, 8, 1}, of_flags, NULL, 0},
  };
  check(small_sizes(inputs, sizes));
  int64_t bytes = small_workspace_bytes(model, sizes);
  void* workspace = aligned_alloc(SMELT_ALIGNMENT, (size_t)bytes / 64 * 64 + 64);
  for (int i = 0; i < 2; i++) check(small_run(model, inputs, outputs, workspace, (size_t)bytes));
  FILE* file = fopen(argv[2], "wb");
  fwrite(y, sizeof y, 1, file);
  fwrite(flags, sizeof flags, 1, file);
  fwrite(cache, sizeof cache, 1, file);
  fwrite(&steps, sizeof steps, 1, file);
  fclose(file);
  small_destroy(model);
  return 0;
}
