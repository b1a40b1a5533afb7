/* check WEIGHTS: calls of one thread, right and wrong ones of each kind. */
#include "calls.h"

#include <sys/wait.h>
#include <unistd.h>

static const char* path;

static MODEL* create(int32_t threads, const char* level) {
  smelt_options options = {sizeof options, threads, 0, level, NULL, NULL};
  MODEL* model = NULL;
  CHECK(model_create(path, &options, &model) == SMELT_OK && model);
  return model;
}

static void runs_right(const MODEL* model, int64_t rows, int times) {
  call c;
  int i;
  prepare(model, &c, rows);
  for (i = 1; i <= times; ++i) {
    CHECK(call_it(model, &c) == SMELT_OK);
    check_results(&c, i);
  }
  finish(&c);
}

/* The caller's own "threads", one after another; workers that never come. */
static int32_t called_with;
static void backwards(void* user, int32_t count, void (*run)(void*, int32_t), void* context) {
  int32_t i;
  CHECK(user == &called_with);
  called_with = count;
  for (i = count - 1; i > 0; i -= 2) run(context, i);
}

static void all_threads(void) {
  static const int32_t threads[] = {1, 2, 3, 16, 0};
  smelt_options options = {sizeof options, 5, SMELT_TRUST_WEIGHTS, NULL, backwards, &called_with};
  MODEL* model;
  size_t i;
  for (i = 0; i < sizeof threads / sizeof *threads; ++i) {
    model = create(threads[i], NULL);
    runs_right(model, 0, 2);
    runs_right(model, 1, 2);
    runs_right(model, 3, 50);
    runs_right(model, 5003, 20);
    model_destroy(model);
  }
  CHECK(model_create(path, &options, &model) == SMELT_OK);
  runs_right(model, 1001, 3);
  CHECK(called_with == 5);
  model_destroy(model);
  CHECK(model_create(path, NULL, &model) == SMELT_OK);
  model_destroy(model);
  options.struct_bytes = offsetof(smelt_options, flags); /* of a caller with an older header */
  CHECK(model_create(path, &options, &model) == SMELT_OK);
  called_with = 0;
  runs_right(model, 1001, 3);
  CHECK(called_with == 0);
  model_destroy(model);
  model_destroy(NULL);
}

static void by_pointers(void) {
  MODEL* model = create(2, NULL);
  const int64_t sizes[] = {100, 3, 5}, seven[] = {100, 7, 5}, huge[] = {100, 3, INT64_MAX};
  void *inputs[5], *outputs[2];
  int i;
  call c;
  prepare(model, &c, 100);
  for (i = 0; i < 5; ++i) inputs[i] = c.inputs[i].data;
  for (i = 0; i < 2; ++i) outputs[i] = c.outputs[i].data;
  CHECK(model_run_pointers(model, sizes, inputs, outputs, c.workspace, c.workspace_bytes) == SMELT_OK);
  check_results(&c, 1);
  CHECK(model_run_pointers(model, seven, inputs, outputs, c.workspace, c.workspace_bytes) == SMELT_E_SHAPE);
  CHECK(strstr(model_last_error(), "half != 7"));
  CHECK(model_run_pointers(model, sizes, inputs, outputs, c.workspace, c.workspace_bytes - 1) ==
        SMELT_E_ARGUMENT);
  CHECK(model_run_pointers(model, huge, inputs, outputs, c.workspace, c.workspace_bytes) == SMELT_E_MEMORY);
  CHECK(model_run_pointers(model, NULL, inputs, outputs, c.workspace, c.workspace_bytes) == SMELT_E_ARGUMENT);
  CHECK(model_run_pointers(model, sizes, NULL, outputs, c.workspace, c.workspace_bytes) == SMELT_E_ARGUMENT);
  CHECK(model_run_pointers(model, sizes, inputs, NULL, c.workspace, c.workspace_bytes) == SMELT_E_ARGUMENT);
  CHECK(model_workspace_bytes(model, huge) == -1 && model_workspace_bytes(model, seven) == -1);
  CHECK(model_workspace_bytes(NULL, sizes) == -1 && model_workspace_bytes(model, NULL) == -1);
  finish(&c);
  model_destroy(model);
}

#define WRONG(change, back, code, words)                                      \
  do {                                                                        \
    change;                                                                   \
    CHECK(call_it(model, &c) == (code) && strstr(model_last_error(), words)); \
    back;                                                                     \
    CHECK(call_it(model, &c) == SMELT_OK);                                    \
  } while (0)

static void wrong_arguments(void) {
  MODEL* model = create(2, NULL);
  int64_t strides[] = {5, 1}, right[] = {4, 1}, sizes[3], *kept;
  void* data;
  char* place;
  call c;
  prepare(model, &c, 10);
  CHECK(model_run(NULL, c.inputs, c.outputs, c.workspace, c.workspace_bytes) == SMELT_E_ARGUMENT);
  CHECK(model_run(model, NULL, c.outputs, c.workspace, c.workspace_bytes) == SMELT_E_ARGUMENT);
  CHECK(model_run(model, c.inputs, NULL, c.workspace, c.workspace_bytes) == SMELT_E_ARGUMENT);
  CHECK(model_run(model, c.inputs, c.outputs, NULL, c.workspace_bytes) == SMELT_E_ARGUMENT);
  CHECK(model_run(model, c.inputs, c.outputs, c.workspace, c.workspace_bytes - 1) == SMELT_E_ARGUMENT);
  CHECK(model_run(model, c.inputs, c.outputs, c.workspace, 10) == SMELT_E_ARGUMENT);
  CHECK(
      model_run(model, c.inputs, c.outputs, (char*)c.workspace + 32, c.workspace_bytes) == SMELT_E_ARGUMENT);
  CHECK(model_sizes(NULL, sizes) == SMELT_E_ARGUMENT && model_sizes(c.inputs, NULL) == SMELT_E_ARGUMENT);
  WRONG(c.inputs[0].device.device_type = kDLCUDA, c.inputs[0].device.device_type = kDLCPU, SMELT_E_DTYPE,
      "input 0 ('x')");
  WRONG(c.inputs[0].dtype.code = kDLInt, c.inputs[0].dtype.code = kDLFloat, SMELT_E_DTYPE, "input 0 ('x')");
  WRONG(c.inputs[1].dtype.bits = 32, c.inputs[1].dtype.bits = 64, SMELT_E_DTYPE, "input 1 ('y')");
  WRONG(c.outputs[0].dtype.lanes = 4, c.outputs[0].dtype.lanes = 1, SMELT_E_DTYPE, "output 0 ('out')");
  WRONG(c.inputs[0].ndim = 1, c.inputs[0].ndim = 2, SMELT_E_SHAPE, "dimensions");
  WRONG(c.outputs[1].ndim = 3, c.outputs[1].ndim = 2, SMELT_E_SHAPE, "output 1 ('tail')");
  WRONG(kept = c.inputs[0].shape;
      c.inputs[0].shape = NULL, c.inputs[0].shape = kept, SMELT_E_ARGUMENT, "shape is NULL");
  WRONG(c.x_shape[1] = 5, c.x_shape[1] = 4, SMELT_E_SHAPE, "dimension 1 is 5, not 4");
  WRONG(c.x_shape[0] = -1, c.x_shape[0] = 10, SMELT_E_SHAPE, "dimension 0 is -1");
  WRONG(c.x_shape[0] = INT64_MAX / 2, c.x_shape[0] = 10, SMELT_E_SHAPE, "dimension");
  WRONG(c.x_shape[0] = 100001, c.x_shape[0] = 10, SMELT_E_SHAPE, "size 'rows' is 100001");
  WRONG(c.image_shape[2] = 11, c.image_shape[2] = 10, SMELT_E_SHAPE, "dimension 2 is 11, not 10");
  WRONG(c.y_shape[0] = 5, c.y_shape[0] = 6, SMELT_E_SHAPE, "input 1 ('y'): dimension 0 is 5, not 4");
  WRONG(c.y_shape[0] = 0, c.y_shape[0] = 6, SMELT_E_SHAPE, "size 'half' is 0; the model is for 1 to 50");
  WRONG(c.y_shape[0] = 14, c.y_shape[0] = 6, SMELT_E_SHAPE, "half != 7");
  WRONG(c.tail_shape[1] = 14, c.tail_shape[1] = 13, SMELT_E_SHAPE, "dimension 1 is 14, not 13");
  WRONG(c.extra = -1, c.extra = 5, SMELT_E_SHAPE, "size 'extra' is -1");
  WRONG(c.inputs[0].strides = strides, c.inputs[0].strides = right, SMELT_E_SHAPE,
      "stride of dimension 0 is 5, not 4");
  WRONG(kept = c.inputs[2].strides;
      c.inputs[2].strides = NULL, c.inputs[2].strides = kept, SMELT_E_SHAPE, "stride");
  WRONG(data = c.inputs[0].data;
      c.inputs[0].data = NULL, c.inputs[0].data = data, SMELT_E_ARGUMENT, "data is NULL");
  WRONG(data = c.inputs[4].data;
      c.inputs[4].data = NULL, c.inputs[4].data = data, SMELT_E_ARGUMENT, "data is NULL");
  WRONG(data = c.outputs[0].data;
      c.outputs[0].data = NULL, c.outputs[0].data = data, SMELT_E_ARGUMENT, "data is NULL");
  WRONG(c.inputs[0].byte_offset = 2, c.inputs[0].byte_offset = 0, SMELT_E_ARGUMENT, "not aligned to 4 bytes");
  WRONG(((int64_t*)c.inputs[1].data)[2] = -3, ((int64_t*)c.inputs[1].data)[2] = 3, SMELT_E_VALUE,
      "y has a negative value");
  /* byte_offset */
  place = (char*)aligned(10 * 16 + 64);
  memcpy(place + 64, c.inputs[0].data, 10 * 16);
  data = c.inputs[0].data, c.inputs[0].data = place, c.inputs[0].byte_offset = 64;
  memset(c.outputs[0].data, 0, 10 * 16);
  memcpy(c.state, "\7\0\0\0\10\0\0\0\11\0\0\0", 12);
  CHECK(call_it(model, &c) == SMELT_OK);
  check_results(&c, 1);
  free(place);
  c.inputs[0].data = data;
  CHECK(model_initial(model, 0, c.state) == SMELT_E_ARGUMENT &&
        model_initial(model, 9, c.state) == SMELT_E_ARGUMENT);
  CHECK(model_initial(model, 3, NULL) == SMELT_E_ARGUMENT &&
        model_initial(NULL, 3, c.state) == SMELT_E_ARGUMENT);
  CHECK(
      !model_input(-1) && !model_input(5) && !model_output(2) && !model_size(3) && model_size(1)->most == 50);
  CHECK(model_input(3)->flags == SMELT_STATE && strcmp(model_output(1)->name, "tail") == 0);
  CHECK(model_output_shape(sizes, 2, sizes) == SMELT_E_ARGUMENT &&
        model_output_shape(NULL, 0, sizes) == SMELT_E_ARGUMENT);
  finish(&c);
  model_destroy(model);
}

static void wrong_options(void) {
  smelt_options options = {sizeof options, 1, 0, NULL, NULL, NULL};
  MODEL* model = NULL;
  static char unaligned[80];
  CHECK(model_create(NULL, NULL, &model) == SMELT_E_ARGUMENT &&
        model_create(path, NULL, NULL) == SMELT_E_ARGUMENT);
  CHECK(model_create_from_memory(NULL, 0, NULL, &model) == SMELT_E_ARGUMENT);
  CHECK(model_create_from_memory(unaligned + ((uintptr_t)unaligned % 2 ? 2 : 1), 70, NULL, &model) ==
        SMELT_E_ARGUMENT);
  options.struct_bytes = 0;
  CHECK(model_create(path, &options, &model) == SMELT_E_ABI);
  options.struct_bytes = sizeof options, options.threads = -1;
  CHECK(model_create(path, &options, &model) == SMELT_E_ARGUMENT && !model);
  options.threads = 1, options.flags = 4;
  CHECK(model_create(path, &options, &model) == SMELT_E_ARGUMENT);
  options.flags = 0, options.level = "x86-64-v9";
  CHECK(model_create(path, &options, &model) == SMELT_E_CPU &&
        strstr(model_last_error(), "x86-64-v4+vnni+bf16+amx, "));
  options.level = "x86-64-v4+nonsense";
  CHECK(model_create(path, &options, &model) == SMELT_E_CPU && strstr(model_last_error(), "does not run"));
  options.level = NULL;
  CHECK(model_create("/nonexistent/weights", &options, &model) == SMELT_E_WEIGHTS);
  CHECK(model_create("/tmp", &options, &model) == SMELT_E_WEIGHTS &&
        model_create("/dev/zero", &options, &model) == SMELT_E_WEIGHTS);
  CHECK(model_create("/dev/null", &options, &model) == SMELT_E_WEIGHTS && !model);
  CHECK(strcmp(model_level(NULL), "") == 0);
}

/* Each level that the processor has runs when asked for; the best is taken where none is. */
static void levels(void) {
  static const char* const names[] = {
      "x86-64-v4+vnni+bf16+amx", "x86-64-v4", "x86-64-v3", "x86-64", "aarch64+dotprod", "aarch64", "generic"};
  const char* best = NULL;
  MODEL* model;
  size_t i;
  for (i = 0; i < sizeof names / sizeof *names; ++i) {
    smelt_options options = {sizeof options, 1, 0, names[i], NULL, NULL};
    const int code = model_create(path, &options, &model);
    CHECK(code == SMELT_OK || code == SMELT_E_CPU);
    if (code != SMELT_OK) continue;
    CHECK(strcmp(model_level(model), names[i]) == 0);
    runs_right(model, 10, 1);
    model_destroy(model);
    if (!best) best = names[i];
    printf("%s\n", names[i]);
  }
  model = create(1, NULL);
  CHECK(best && strcmp(model_level(model), best) == 0);
  model_destroy(model);
}

/* What the caller's thread makes of tiny numbers, all threads do. */
static void roundings(void) {
#if defined(__x86_64__)
  MODEL* model = create(4, NULL);
  int i, zeros = 0;
  call c;
  prepare(model, &c, 5003);
  for (i = 0; i < 4 * 5003; ++i) ((float*)c.inputs[0].data)[i] = i % 4 == 1 ? 1e-40f : 0;
  CHECK(call_it(model, &c) == SMELT_OK);
  for (i = 0; i < 5003; ++i) zeros += ((float*)c.outputs[0].data)[4 * i] == 0;
  CHECK(zeros == 0);
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040); /* FTZ, DAZ */
  for (i = 0; i < 50; ++i) CHECK(call_it(model, &c) == SMELT_OK);
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() & ~0x8040u);
  for (i = 0; i < 5003; ++i) zeros += ((float*)c.outputs[0].data)[4 * i] == 0;
  CHECK(zeros == 5003);
  finish(&c);
  model_destroy(model);
#endif
}

/* A child has no threads: it runs alone, and ends. */
static void child(void) {
  MODEL* model = create(4, NULL);
  int status = 1;
  pid_t id;
  runs_right(model, 1000, 3);
  id = fork();
  if (id == 0) {
    runs_right(model, 1000, 3);
    model_destroy(model);
    model = create(3, NULL);
    runs_right(model, 1000, 3);
    model_destroy(model);
    _exit(0);
  }
  CHECK(id > 0 && waitpid(id, &status, 0) == id && status == 0);
  runs_right(model, 1000, 3);
  model_destroy(model);
}

int main(int count, char** arguments) {
  if (count != 2) return 2;
  path = arguments[1];
  CHECK(strcmp(model_last_error(), "") == 0);
  all_threads();
  by_pointers();
  wrong_arguments();
  wrong_options();
  levels();
  roundings();
  child();
  return 0;
}
