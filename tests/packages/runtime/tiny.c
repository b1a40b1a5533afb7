/* tiny.c: out[rows, 4] = x[rows, 4] @ w[4, 4] + b[4], and a few things that models may have. */
#include "tiny.h"

#include <string.h>

#ifndef DIGEST
#define DIGEST {0}
#endif

/* Sizes: rows of x and image; half, from y's 2*half elements; extra, the value of a scalar. */
static const int64_t x_shape[] = {SMELT_SIZE(0), 4}, y_shape[] = {SMELT_COMPUTED},
                     image_shape[] = {2, 3, SMELT_SIZE(0)};
static const int64_t state_shape[] = {3}, out_shape[] = {SMELT_SIZE(0), 4},
                     tail_shape[] = {2, SMELT_COMPUTED};
static const int32_t last_is_middle[] = {0, 2, 1};
static const smelt_tensor_info inputs[] = {
    {"x", {kDLFloat, 32, 1}, 2, 0, x_shape, NULL},
    {"y", {kDLInt, 64, 1}, 1, 0, y_shape, NULL},
    {"image", {kDLBfloat, 16, 1}, 3, 0, image_shape, last_is_middle},
    {"state", {kDLInt, 32, 1}, 1, SMELT_STATE, state_shape, NULL},
    {"extra", {kDLInt, 64, 1}, 0, 0, NULL, NULL},
};
static const smelt_tensor_info outputs[] = {
    {"out", {kDLFloat, 32, 1}, 2, 0, out_shape, NULL},
    {"tail", {kDLInt, 64, 1}, 2, 0, tail_shape, NULL},
};
static const smelt_size_info sizes[] = {{"rows", 0, 100000}, {"half", 1, 50}, {"extra", 0, INT64_MAX}};
static const int64_t w_shape[] = {4, 4}, b_shape[] = {4}, start_shape[] = {3}, none_shape[] = {0, 7};
static const smelt_weight weights[] = {{"none", "F64", 2, none_shape}, {"b", "F32", 1, b_shape},
    {"layers.0.w\"\xc3\xa4", "F32", 2, w_shape}, {"start", "I32", 1, start_shape}};
static const char* const constraints[] = {"half != 7"};
static const char* const errors[] = {"unused", "y has a negative value"};

static void derived_sizes(const DLTensor* tensors, int64_t* values) {
  values[1] = tensors[1].shape[0] / 2;
  memcpy(&values[2], (const char*)tensors[4].data + tensors[4].byte_offset, sizeof values[2]);
}
static void input_shape(const int64_t* values, int32_t input, int64_t* shape) {
  if (input == 1) shape[0] = 2 * values[1];
}
static void output_shape(const int64_t* values, int32_t output, int64_t* shape) {
  if (output == 1) shape[1] = values[0] + values[1];
}
static int check_sizes(const int64_t* values) { return values[1] == 7; }

static int64_t arena_bytes(const int64_t* values) { return values[0] * 16; }
static int64_t scratch_bytes(const int64_t* values) { return values[2] > 1000000 ? values[2] : 192; }

typedef struct {
  const float *x, *w, *b;
  float *partial, *out;
} arguments;

static void column(const void* body, int64_t begin, int64_t end) {
  float* sums = *(float* const*)body;
  for (; begin < end; ++begin) sums[begin] += 1;
}

static void rows(const void* body, int64_t begin, int64_t end) {
  const arguments* a = (const arguments*)body;
  for (; begin < end; ++begin) {
    float* sums = (float*)smelt_runtime_scratch(16);
    void* nothing = smelt_runtime_scratch(0);
    float* other = (float*)smelt_runtime_scratch(128);
    int i, j;
    for (j = 0; j < 4; ++j) sums[j] = -1, other[j] = 77;
    smelt_runtime_share(4, column, &sums); /* nested */
    for (j = 0; j < 4; ++j)
      for (i = 0; i < 4; ++i) sums[j] += a->x[4 * begin + i] * a->w[4 * i + j];
    memcpy(a->partial + 4 * begin, sums, 16);
    smelt_runtime_scratch_back(other);
    smelt_runtime_scratch_back(nothing);
    smelt_runtime_scratch_back(sums);
  }
}

static void add(const void* body, int64_t begin, int64_t end) {
  const arguments* a = (const arguments*)body;
  int j;
  for (; begin < end; ++begin)
    for (j = 0; j < 4; ++j) a->out[4 * begin + j] = a->partial[4 * begin + j] + a->b[j];
}

static int run(const void* const* w, const int64_t* values, void* const* in, void* const* out, char* arena) {
  arguments a;
  int64_t i;
  a.x = (const float*)in[0], a.w = (const float*)w[0], a.b = (const float*)w[1];
  a.partial = (float*)(void*)arena, a.out = (float*)out[0];
  for (i = 0; i < 2 * values[1]; ++i)
    if (((const int64_t*)in[1])[i] < 0) return 2;
#ifdef TOO_MUCH_SCRATCH
  smelt_runtime_scratch_back(smelt_runtime_scratch(100000));
#endif
  smelt_runtime_share(values[0], rows, &a);
  smelt_runtime_share(values[0], add, &a);
  for (i = 0; i < 2 * (values[0] + values[1]); ++i) ((int64_t*)out[1])[i] = i;
  for (i = 0; i < 3; ++i) ((int32_t*)in[3])[i] += 1;
  return 0;
}

static const int32_t used[] = {2, 1};
#define PROGRAM(name, level) \
  static const smelt_program name = {level, 2, used, arena_bytes, scratch_bytes, run};
PROGRAM(unknown, "x86-64-v4+nonsense")
PROGRAM(tiles, "x86-64-v4+vnni+bf16+amx")
PROGRAM(v4, "x86-64-v4")
PROGRAM(v3, "x86-64-v3")
PROGRAM(v1, "x86-64")
PROGRAM(arm_dot, "aarch64+dotprod")
PROGRAM(arm, "aarch64")
PROGRAM(any, "generic")
static const smelt_program* const programs[] = {&unknown, &tiles, &v4, &v3, &v1, &arm_dot, &arm, &any};
static const int32_t initial[] = {-1, -1, -1, 3, -1};

static const smelt_description description = {SMELT_ABI_VERSION, "tiny", 5, 2, 3, 4, 8, inputs, outputs,
    sizes, derived_sizes, input_shape, output_shape, check_sizes, constraints, errors, weights, DIGEST,
    programs, initial};

int model_create(const char* path, const smelt_options* options, MODEL** model) {
  return smelt_runtime_create(&description, path, options, (smelt_runtime**)model);
}
int model_create_from_memory(const void* data, size_t bytes, const smelt_options* options, MODEL** model) {
  return smelt_runtime_create_from_memory(&description, data, bytes, options, (smelt_runtime**)model);
}
void model_destroy(MODEL* model) { smelt_runtime_destroy((smelt_runtime*)model); }
const char* model_last_error(void) { return smelt_runtime_last_error(); }
const smelt_tensor_info* model_input(int32_t input) { return smelt_runtime_input(&description, input); }
const smelt_tensor_info* model_output(int32_t output) { return smelt_runtime_output(&description, output); }
const smelt_size_info* model_size(int32_t size) { return smelt_runtime_size(&description, size); }
int model_sizes(const DLTensor* tensors, int64_t* values) {
  return smelt_runtime_sizes(&description, tensors, values);
}
int model_output_shape(const int64_t* values, int32_t output, int64_t* shape) {
  return smelt_runtime_output_shape(&description, values, output, shape);
}
int64_t model_workspace_bytes(const MODEL* model, const int64_t* values) {
  return smelt_runtime_workspace_bytes((const smelt_runtime*)model, values);
}
int model_initial(const MODEL* model, int32_t input, void* data) {
  return smelt_runtime_initial((const smelt_runtime*)model, input, data);
}
int model_run(const MODEL* model, const DLTensor* in, DLTensor* out, void* workspace, size_t bytes) {
  return smelt_runtime_run((const smelt_runtime*)model, in, out, workspace, bytes);
}
int model_run_pointers(const MODEL* model, const int64_t* values, void* const* in, void* const* out,
    void* workspace, size_t bytes) {
  return smelt_runtime_run_pointers((const smelt_runtime*)model, values, in, out, workspace, bytes);
}
const char* model_level(const MODEL* model) { return smelt_runtime_level((const smelt_runtime*)model); }
