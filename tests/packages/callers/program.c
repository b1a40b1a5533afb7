/* The program of the model `small`, written by hand: it needs a size, states and workspace, and fails on negative
 * indices. Weights: scale, float32 [3]. */
#include "smelt_program.h"

static int64_t arena_bytes(const int64_t* sizes) { return 3 * (int64_t)sizeof(float) * sizes[0]; }
static int64_t scratch_bytes(const int64_t* sizes) {
  (void)sizes;
  return 0;
}

/* y[b, j] = x[b, j] * scale[j] + index[b] + cache[b, j % 2]; flags[i] = i < batch; cache += 1; steps += 1. */
static int run(
    const void* const* weights, const int64_t* sizes, void* const* inputs, void* const* outputs, char* arena) {
  const float* x = (const float*)inputs[0];
  const int64_t* index = (const int64_t*)inputs[1];
  float *cache = (float*)inputs[2], *y = (float*)outputs[0], *scaled = (float*)arena;
  const float* scale = (const float*)weights[0];
  unsigned char* flags = (unsigned char*)outputs[1];
  const int64_t batch = sizes[0];
  for (int64_t b = 0; b < batch; b++)
    if (index[b] < 0) return 1;
  for (int64_t i = 0; i < 3 * batch; i++) scaled[i] = x[i] * scale[i % 3];
  for (int64_t i = 0; i < 3 * batch; i++) y[i] = scaled[i] + (float)index[i / 3] + cache[i / 3 * 2 + i % 3 % 2];
  for (int64_t i = 0; i < 2 * batch; i++) cache[i] += 1, flags[i] = i < batch;
  ++*(int64_t*)inputs[3];
  return 0;
}

static const int32_t used[] = {0};
extern const smelt_program small_program;
const smelt_program small_program = {"generic", 1, used, arena_bytes, scratch_bytes, run};
