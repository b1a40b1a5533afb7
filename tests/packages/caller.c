/* caller WEIGHTS INPUTS OUTPUTS LEVEL: runs the model `toy` twice, with THREADS threads; inputs and outputs are files of all
 * tensors one behind the other. Prints the level in use. LEVEL "" is the best one. */
#include "toy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef THREADS
#define THREADS 2
#endif
enum { ROWS = 21, MOST_BYTES = 1 << 16 };

static DLTensor tensor(const smelt_tensor_info* info, int64_t* shape, const int64_t* sizes) {
  DLTensor made;
  int32_t dim;
  memset(&made, 0, sizeof made);
  made.data = calloc(1, MOST_BYTES);
  made.device.device_type = kDLCPU;
  made.ndim = info->rank;
  made.dtype = info->dtype;
  made.shape = shape;
  for (dim = 0; dim < info->rank; ++dim) shape[dim] = info->shape[dim] < 0 ? sizes[-1 - info->shape[dim]] : info->shape[dim];
  return made;
}

static size_t bytes_of(const DLTensor* each) {
  size_t bytes = each->dtype.bits / 8;
  int32_t dim;
  for (dim = 0; dim < each->ndim; ++dim) bytes *= (size_t)each->shape[dim];
  return bytes;
}

int main(int count, char** given) {
  DLTensor inputs[TOY_INPUTS], outputs[TOY_OUTPUTS];
  int64_t shapes[TOY_INPUTS + TOY_OUTPUTS][8], sizes[TOY_SIZES] = {ROWS}, bytes;
  smelt_options options = {sizeof options};
  char *memory, *workspace;
  toy* model;
  FILE* file;
  int32_t number;
  if (count != 5) return 2;
  options.threads = THREADS;
  options.level = given[4][0] ? given[4] : NULL;
  if (toy_create(given[1], &options, &model)) {
    printf("%s\n", toy_last_error());
    return 1;
  }
  file = fopen(given[2], "rb");
  for (number = 0; number < TOY_INPUTS; ++number) {
    inputs[number] = tensor(toy_input(number), shapes[number], sizes);
    if (!file || fread(inputs[number].data, bytes_of(inputs + number), 1, file) != 1) return 3;
  }
  fclose(file);
  for (number = 0; number < TOY_OUTPUTS; ++number)
    outputs[number] = tensor(toy_output(number), shapes[TOY_INPUTS + number], sizes);
  if (toy_sizes(inputs, sizes) || sizes[0] != ROWS) return 4;
  bytes = toy_workspace_bytes(model, sizes);
  memory = (char*)malloc((size_t)bytes + SMELT_ALIGNMENT);
  workspace = memory + (SMELT_ALIGNMENT - (uintptr_t)memory % SMELT_ALIGNMENT) % SMELT_ALIGNMENT;
  for (number = 0; number < 2; ++number)
    if (toy_run(model, inputs, outputs, workspace, (size_t)bytes)) {
      printf("%s\n", toy_last_error());
      return 5;
    }
  file = fopen(given[3], "wb");
  for (number = 0; number < TOY_OUTPUTS; ++number) fwrite(outputs[number].data, bytes_of(outputs + number), 1, file);
  fclose(file);
  printf("%s\n", toy_level(model));
  toy_destroy(model);
  return 0;
}
