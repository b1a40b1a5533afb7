/* The package's process in `packages.py`: a C program that loads a package's library and takes orders as lines of JSON.
 * packages_run LIBRARY NAME WEIGHTS FOLDER THREADS: FOLDER has the inputs as in_0.bin, …; "prepare" writes out_0.bin, … */
#define _GNU_SOURCE
#include "smelt_model.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void* library;
static const char* name;
static void *model, *workspace, **inputs, **outputs;
static int64_t bytes;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void fail(const char* what) {
  printf("{\"error\": \"%s\"}\n", what);
  fflush(stdout);
  exit(1);
}

static void* function(const char* word) {
  char full[256];
  void* found;
  snprintf(full, sizeof full, "%s_%s", name, word);
  found = dlsym(library, full);
  if (!found) fail(full);
  return found;
}

static void check(int code) {
  if (code) fail(((const char* (*)(void))function("last_error"))());
}

static FILE* opened(const char* folder, const char* prefix, int number, const char* mode) {
  char path[4096];
  FILE* file;
  snprintf(path, sizeof path, "%s/%s_%d.bin", folder, prefix, number);
  file = fopen(path, mode);
  if (!file) fail(path);
  return file;
}

static size_t bytes_of(const smelt_tensor_info* info) {
  size_t size = info->dtype.bits / 8;
  int32_t i;
  for (i = 0; i < info->rank; ++i) size *= (size_t)info->shape[i];
  return size;
}

static void* memory(size_t size) {
  void* made = aligned_alloc(SMELT_ALIGNMENT, size / SMELT_ALIGNMENT * SMELT_ALIGNMENT + SMELT_ALIGNMENT);
  if (!made) fail("no memory");
  return made;
}

static void run(void) {
  static int (*call)(const void*, const int64_t*, void* const*, void* const*, void*, size_t);
  if (!call) *(void**)&call = function("run_pointers");
  check(call(model, NULL, inputs, outputs, workspace, (size_t)bytes));
}

static void load(const char* path, const char* weights, const char* folder, int threads) {
  const smelt_tensor_info* (*input)(int32_t);
  const smelt_tensor_info* (*output)(int32_t);
  int32_t i, count, results, user = 0;
  smelt_options options = {sizeof options};
  options.threads = threads;
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fail(dlerror());
  check(((int (*)(const char*, const smelt_options*, void**))function("create"))(weights, &options, &model));
  *(void**)&input = function("input"), *(void**)&output = function("output");
  count = ((int32_t(*)(void))function("input_count"))(), results = ((int32_t(*)(void))function("output_count"))();
  if (((int32_t(*)(void))function("size_count"))()) fail("these are programs of fixed sizes");
  inputs = calloc((size_t)count + 1, sizeof *inputs), outputs = calloc((size_t)results + 1, sizeof *outputs);
  for (i = 0; i < count; ++i) {
    const size_t size = bytes_of(input(i));
    inputs[i] = memory(size);
    if (input(i)->flags & SMELT_STATE) {
      int (*initial)(const void*, int32_t, void*) = function("initial");
      if (initial(model, i, inputs[i])) memset(inputs[i], 0, size);
    } else {
      FILE* file = opened(folder, "in", user++, "rb");
      if (fread(inputs[i], 1, size, file) != size) fail("an input is too short");
      fclose(file);
    }
  }
  for (i = 0; i < results; ++i) outputs[i] = memory(bytes_of(output(i)));
  bytes = ((int64_t(*)(const void*, const int64_t*))function("workspace_bytes"))(model, NULL);
  if (bytes < 0) check(1);
  workspace = memory((size_t)bytes);
}

static void save(const char* folder) {
  const smelt_tensor_info* (*output)(int32_t) = function("output");
  const int32_t count = ((int32_t(*)(void))function("output_count"))();
  int32_t i;
  for (i = 0; i < count; ++i) {
    FILE* file = opened(folder, "out", i, "wb");
    fwrite(outputs[i], 1, bytes_of(output(i)), file);
    fclose(file);
  }
}

static long peak(void) {
  char line[256];
  long found = 0;
  FILE* file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file)) sscanf(line, "VmHWM: %ld", &found);
  if (file) fclose(file);
  return found * 1024;
}

int main(int count, char** words) {
  char line[4096];
  if (count != 6) return 2;
  name = words[2];
  while (fgets(line, sizeof line, stdin)) {
    const char* given = strstr(line, "\"calls\": ");
    const long calls = given ? strtol(given + 9, NULL, 10) : 1;
    double start = now();
    long call;
    if (strstr(line, "\"prepare\"")) {
      double loaded;
      load(words[1], words[3], words[4], atoi(words[5]));
      loaded = now() - start, start = now();
      run();
      printf("{\"load_seconds\": %.9f, \"first_seconds\": %.9f, \"peak_bytes\": %ld}\n", loaded, now() - start, peak());
      save(words[4]);
    } else if (strstr(line, "\"turn\"")) {
      for (call = 0; call < calls; ++call) run();
      printf("{\"seconds\": %.9f}\n", (now() - start) / (double)calls);
    } else {
      printf("{\"peak_bytes\": %ld}\n", peak());
    }
    fflush(stdout);
  }
  return 0;
}
