/* calls.h: arguments of tiny, and a call with checked results. */
#include "tiny.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                       \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, model_last_error()); \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (0)

typedef struct {
  int64_t rows, x_shape[2], y_shape[1], image_shape[3], channels_last[3], state_shape[1], out_shape[2],
      tail_shape[2], extra;
  DLTensor inputs[5], outputs[2];
  int32_t state[3];
  void* workspace;
  size_t workspace_bytes;
} call;

static inline DLTensor tensor_of(void* data, int32_t rank, int64_t* shape, uint8_t code, uint8_t bits) {
  DLTensor t;
  memset(&t, 0, sizeof t);
  t.data = data, t.device.device_type = kDLCPU, t.ndim = rank, t.shape = shape;
  t.dtype.code = code, t.dtype.bits = bits, t.dtype.lanes = 1;
  return t;
}

static inline void* aligned(size_t bytes) {
  void* memory = NULL;
  if (posix_memalign(&memory, 64, bytes ? bytes : 1) != 0) exit(2);
  return memory;
}

static inline void prepare(const MODEL* model, call* c, int64_t rows) {
  int64_t sizes[3], i;
  memset(c, 0, sizeof *c);
  c->rows = rows, c->extra = 5;
  c->x_shape[0] = rows, c->x_shape[1] = 4, c->y_shape[0] = 6;
  c->image_shape[0] = 2, c->image_shape[1] = 3, c->image_shape[2] = rows, c->state_shape[0] = 3;
  c->inputs[0] = tensor_of(aligned((size_t)rows * 16), 2, c->x_shape, kDLFloat, 32);
  c->inputs[1] = tensor_of(calloc(6, 8), 1, c->y_shape, kDLInt, 64);
  c->inputs[2] = tensor_of(calloc((size_t)rows * 6 + 1, 2), 3, c->image_shape, kDLBfloat, 16);
  c->inputs[2].strides = c->channels_last;
  c->channels_last[0] = 3 * rows, c->channels_last[1] = 1, c->channels_last[2] = 3;
  c->inputs[3] = tensor_of(c->state, 1, c->state_shape, kDLInt, 32);
  c->inputs[4] = tensor_of(&c->extra, 0, NULL, kDLInt, 64);
  for (i = 0; i < 4 * rows; ++i) ((float*)c->inputs[0].data)[i] = (float)(i % 97);
  CHECK(model_sizes(c->inputs, sizes) == SMELT_OK);
  CHECK(sizes[0] == rows && sizes[1] == 3 && sizes[2] == 5);
  CHECK(model_output_shape(sizes, 0, c->out_shape) == SMELT_OK && c->out_shape[0] == rows &&
        c->out_shape[1] == 4);
  CHECK(model_output_shape(sizes, 1, c->tail_shape) == SMELT_OK && c->tail_shape[0] == 2 &&
        c->tail_shape[1] == rows + 3);
  c->outputs[0] = tensor_of(calloc((size_t)rows * 4 + 1, 4), 2, c->out_shape, kDLFloat, 32);
  c->outputs[1] = tensor_of(calloc((size_t)(rows + 3) * 2, 8), 2, c->tail_shape, kDLInt, 64);
  c->workspace_bytes = (size_t)model_workspace_bytes(model, sizes);
  c->workspace = aligned(c->workspace_bytes);
  memset(c->workspace, 0xaa, c->workspace_bytes);
  CHECK(model_initial(model, 3, c->state) == SMELT_OK);
}

static inline int call_it(const MODEL* model, call* c) {
  return model_run(model, c->inputs, c->outputs, c->workspace, c->workspace_bytes);
}

/* w[i][j] is i + 10 j, b[j] is j / 2. */
static inline void check_results(const call* c, int runs) {
  const float *x = (const float*)(void*)((char*)c->inputs[0].data + c->inputs[0].byte_offset),
              *out = (const float*)c->outputs[0].data;
  int64_t row;
  int i, j;
  for (row = 0; row < c->rows; ++row)
    for (j = 0; j < 4; ++j) {
      float expected = (float)j / 2;
      for (i = 0; i < 4; ++i) expected += x[4 * row + i] * (float)(i + 10 * j);
      CHECK(out[4 * row + j] == expected);
    }
  for (row = 0; row < 2 * (c->rows + 3); ++row) CHECK(((const int64_t*)c->outputs[1].data)[row] == row);
  CHECK(c->state[0] == 7 + runs && c->state[1] == 8 + runs && c->state[2] == 9 + runs);
}

static inline void finish(call* c) {
  free(c->inputs[0].data), free(c->inputs[1].data), free(c->inputs[2].data);
  free(c->outputs[0].data), free(c->outputs[1].data), free(c->workspace);
}
