/* Runs a package and compares its results with eager's: C99 and the package's header, nothing else.
 *
 *   cc -DMODEL=digits -DHEADER='"digits.h"' -I digits.smelt/include main.c -L digits.smelt/lib/x86_64-linux -ldigits
 *   ./a.out digits.smelt/weights.safetensors data
 *
 * `data` has the inputs, in_0.bin and in_0.shape (the dimensions as text), …, and the results, expected_0.bin and
 * expected_0.tolerance (the largest difference that is allowed, over the largest number, as text), … */
#include HEADER

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(word) JOIN(MODEL, word)

enum { MOST = 512, RANK = 16 };

static void check(int code) {
  if (code == SMELT_OK) return;
  fprintf(stderr, "error %d: %s\n", code, NAME(_last_error)());
  exit(1);
}

static FILE* opened(const char* folder, const char* name, int number, const char* suffix) {
  char path[4096];
  FILE* file;
  snprintf(path, sizeof path, "%s/%s_%d.%s", folder, name, number, suffix);
  file = fopen(path, "rb");
  if (!file) perror(path), exit(1);
  return file;
}

static void read_all(FILE* file, void* data, size_t bytes) {
  if (fread(data, 1, bytes, file) != bytes) fprintf(stderr, "a file is too short\n"), exit(1);
  fclose(file);
}

static size_t bytes_of(const DLTensor* tensor) {
  size_t bytes = tensor->dtype.bits / 8;
  int32_t i;
  for (i = 0; i < tensor->ndim; ++i) bytes *= (size_t)tensor->shape[i];
  return bytes;
}

static void* memory(size_t bytes) {
  void* made = calloc(bytes + 1, 1);
  if (!made) fprintf(stderr, "no memory\n"), exit(1);
  return made;
}

static DLTensor tensor(const smelt_tensor_info* info, const int64_t* shape) {
  DLTensor made = {NULL, {kDLCPU, 0}, info->rank, info->dtype, NULL, NULL, 0};
  made.shape = memory(RANK * sizeof *shape);
  memcpy(made.shape, shape, (size_t)info->rank * sizeof *shape);
  made.data = memory(bytes_of(&made));
  return made;
}

/* The largest difference from what was expected, over the largest number; other types than float32: equal or 1.
 * NaN and infinity must be in the same places. */
static double difference(const DLTensor* got, const void* want, size_t bytes) {
  double most = 0, largest = 1e-30;
  size_t i;
  if (got->dtype.code != kDLFloat || got->dtype.bits != 32) return memcmp(got->data, want, bytes) != 0;
  for (i = 0; i < bytes / 4; ++i) {
    const double a = ((const float*)got->data)[i], b = ((const float*)want)[i];
    if (a == b || (isnan(a) && isnan(b))) continue;
    if (!isfinite(a) || !isfinite(b)) return INFINITY;
    if (fabs(a - b) > most) most = fabs(a - b);
  }
  for (i = 0; i < bytes / 4; ++i) {
    const double b = fabs(((const float*)want)[i]);
    if (isfinite(b) && b > largest) largest = b;
  }
  return most / largest;
}

static double tolerance(const char* folder, int number) {
  double read;
  FILE* file = opened(folder, "expected", number, "tolerance");
  if (fscanf(file, "%lf", &read) != 1) fprintf(stderr, "a tolerance is no number\n"), exit(1);
  fclose(file);
  return read;
}

int main(int count, char** words) {
  static DLTensor inputs[MOST], outputs[MOST];
  NAME() * model;
  smelt_options options = {0};
  int64_t sizes[MOST], shape[RANK], bytes;
  void *block, *workspace;
  int32_t i, d, user = 0, others = 0;
  if (count < 3) return fprintf(stderr, "%s WEIGHTS DATA [THREADS [LEVEL]]\n", words[0]), 2;
  options.struct_bytes = sizeof options;
  if (count > 3) options.threads = atoi(words[3]);
  if (count > 4) options.level = words[4];
  check(NAME(_create)(words[1], &options, &model));
  for (i = 0; i < NAME(_input_count)(); ++i) {
    const smelt_tensor_info* info = NAME(_input)(i);
    const int state = info->flags & SMELT_STATE;
    FILE* file = state ? NULL : opened(words[2], "in", user, "shape");
    for (d = 0; d < info->rank; ++d) {
      long long size = info->shape[d];
      if (file && fscanf(file, "%lld", &size) != 1) return fprintf(stderr, "a shape is too short\n"), 1;
      shape[d] = size;
    }
    if (file) fclose(file);
    inputs[i] = tensor(info, shape);
    if (!state) read_all(opened(words[2], "in", user++, "bin"), inputs[i].data, bytes_of(inputs + i));
    else (void)NAME(_initial)(model, i, inputs[i].data); /* without an initial value it begins with zeros */
  }
  check(NAME(_sizes)(inputs, sizes));
  for (i = 0; i < NAME(_output_count)(); ++i) {
    check(NAME(_output_shape)(sizes, i, shape));
    outputs[i] = tensor(NAME(_output)(i), shape);
  }
  bytes = NAME(_workspace_bytes)(model, sizes);
  if (bytes < 0) check(SMELT_E_MEMORY);
  block = memory((size_t)bytes + SMELT_ALIGNMENT);
  workspace = (void*)(((uintptr_t)block + SMELT_ALIGNMENT - 1) / SMELT_ALIGNMENT * SMELT_ALIGNMENT);
  check(NAME(_run)(model, inputs, outputs, workspace, (size_t)bytes));
  for (i = 0; i < NAME(_output_count)(); ++i) {
    const size_t size = bytes_of(outputs + i);
    void* want = memory(size);
    const double most = tolerance(words[2], i);
    double off;
    read_all(opened(words[2], "expected", i, "bin"), want, size);
    off = difference(outputs + i, want, size);
    others += !(off <= most);
    printf("%s: %zu bytes, difference from eager %.1e of %.1e\n", NAME(_output)(i)->name, size, off, most);
    free(want), free(outputs[i].data), free(outputs[i].shape);
  }
  printf("%s: %s\n", NAME(_level)(model), others ? "OTHER NUMBERS" : "the same numbers");
  for (i = 0; i < NAME(_input_count)(); ++i) free(inputs[i].data), free(inputs[i].shape);
  free(block);
  NAME(_destroy)(model);
  return others != 0;
}
