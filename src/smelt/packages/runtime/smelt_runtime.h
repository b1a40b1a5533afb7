/* smelt_runtime.h: between a package's generated C, its kernels and the fixed runtime. Not for callers. */
#ifndef SMELT_RUNTIME_H
#define SMELT_RUNTIME_H

#include "smelt_model.h"

/* The symbols of a package's files begin with the model's name, so two packages link into one program. */
#ifndef SMELT_NAME
#include "smelt_name.h" /* generated: defines it */
#endif
#define SMELT_JOINED_(name, rest) name##_smelt_##rest
#define SMELT_JOINED(name, rest) SMELT_JOINED_(name, rest)
#define smelt_runtime_create SMELT_JOINED(SMELT_NAME, create)
#define smelt_runtime_create_from_memory SMELT_JOINED(SMELT_NAME, create_from_memory)
#define smelt_runtime_destroy SMELT_JOINED(SMELT_NAME, destroy)
#define smelt_runtime_last_error SMELT_JOINED(SMELT_NAME, last_error)
#define smelt_runtime_input SMELT_JOINED(SMELT_NAME, input)
#define smelt_runtime_output SMELT_JOINED(SMELT_NAME, output)
#define smelt_runtime_size SMELT_JOINED(SMELT_NAME, size)
#define smelt_runtime_sizes SMELT_JOINED(SMELT_NAME, sizes)
#define smelt_runtime_output_shape SMELT_JOINED(SMELT_NAME, output_shape)
#define smelt_runtime_workspace_bytes SMELT_JOINED(SMELT_NAME, workspace_bytes)
#define smelt_runtime_initial SMELT_JOINED(SMELT_NAME, initial)
#define smelt_runtime_run SMELT_JOINED(SMELT_NAME, run)
#define smelt_runtime_run_pointers SMELT_JOINED(SMELT_NAME, run_pointers)
#define smelt_runtime_level SMELT_JOINED(SMELT_NAME, level)
#define smelt_runtime_share SMELT_JOINED(SMELT_NAME, share)
#define smelt_runtime_scratch SMELT_JOINED(SMELT_NAME, scratch)
#define smelt_runtime_scratch_back SMELT_JOINED(SMELT_NAME, scratch_back)

/* On the functions of NAME.h where they are defined; all else is hidden (-fvisibility=hidden). */
#if defined(_WIN32)
#define SMELT_EXPORT __declspec(dllexport)
#else
#define SMELT_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor of weights.safetensors; its data begins at a multiple of 64 bytes from the file's start. The file
 * may have others (padding). */
typedef struct {
  const char* name;
  const char* dtype; /* in the words of safetensors: "F32", "BF16", "U8", … */
  int32_t rank;
  const int64_t* shape;
} smelt_weight;

/* The model for one instruction set. Sizes are all of the description's, checked. */
typedef struct {
  /* "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", each with any of "+vnni", "+avxvnni", "+bf16", "+fp16",
   * "+amx" (tiles with int8 and bf16); "aarch64" with any of "+dotprod", "+bf16", "+i8mm", "+sve"; "generic"
   * runs anywhere. */
  const char* level;
  int32_t weight_count;
  const int32_t* weights; /* which of the description's */
  int64_t (*arena_bytes)(const int64_t* sizes);
  /* The most that one thread has at once, each piece rounded up to 64 bytes. */
  int64_t (*scratch_bytes)(const int64_t* sizes);
  /* 0, or k: errors[k - 1] of the description. The arena is aligned to 64 bytes. */
  int (*run)(const void* const* weights, const int64_t* sizes, void* const* inputs, void* const* outputs,
      char* arena);
} smelt_program;

typedef struct {
  int32_t abi; /* SMELT_ABI_VERSION */
  const char* name;
  int32_t input_count, output_count, size_count, weight_count, program_count;
  const smelt_tensor_info *inputs, *outputs;
  const smelt_size_info* sizes;
  /* Sizes that no dimension of an input is alone, from dimensions that have more in them (2*s0). The inputs'
   * ranks are checked before; what the shapes come to, after. NULL when there are none. */
  void (*derived_sizes)(const DLTensor* inputs, int64_t* sizes);
  /* A shape with SMELT_COMPUTED dimensions; NULL when there are none. */
  void (*input_shape)(const int64_t* sizes, int32_t input, int64_t* shape);
  void (*output_shape)(const int64_t* sizes, int32_t output, int64_t* shape);
  /* What the model asks of sizes besides their ranges: 0, or k: constraints[k - 1] does not hold. NULL:
   * nothing. */
  int (*check_sizes)(const int64_t* sizes);
  const char* const* constraints;
  const char* const* errors;
  const smelt_weight* weights;
  unsigned char digest[32];             /* SHA-256 of weights.safetensors */
  const smelt_program* const* programs; /* the best level first */
  const int32_t* initial; /* for each input the number of the weight that a state begins with, or -1 */
} smelt_description;

/* The generated functions of NAME.h call these; NAME* is a smelt_runtime*. */
typedef struct smelt_runtime smelt_runtime;
int smelt_runtime_create(const smelt_description* description, const char* weights_path,
    const smelt_options* options, smelt_runtime** model);
int smelt_runtime_create_from_memory(const smelt_description* description, const void* weights, size_t bytes,
    const smelt_options* options, smelt_runtime** model);
void smelt_runtime_destroy(smelt_runtime* model);
const char* smelt_runtime_last_error(void);
const smelt_tensor_info* smelt_runtime_input(const smelt_description* description, int32_t input);
const smelt_tensor_info* smelt_runtime_output(const smelt_description* description, int32_t output);
const smelt_size_info* smelt_runtime_size(const smelt_description* description, int32_t size);
int smelt_runtime_sizes(const smelt_description* description, const DLTensor* inputs, int64_t* sizes);
int smelt_runtime_output_shape(
    const smelt_description* description, const int64_t* sizes, int32_t output, int64_t* shape);
/* Copies a state's initial value. */
int smelt_runtime_initial(const smelt_runtime* model, int32_t input, void* data);
int64_t smelt_runtime_workspace_bytes(const smelt_runtime* model, const int64_t* sizes);
int smelt_runtime_run(const smelt_runtime* model, const DLTensor* inputs, DLTensor* outputs, void* workspace,
    size_t workspace_bytes);
int smelt_runtime_run_pointers(const smelt_runtime* model, const int64_t* sizes, void* const* inputs,
    void* const* outputs, void* workspace, size_t workspace_bytes);
const char* smelt_runtime_level(const smelt_runtime* model);

/* For kernels. Calls run(body, begin, end) for ranges that make up 0 … count, on the model's threads; nested
 * calls, and calls while the threads are busy with another loop, the calling thread does alone. */
void smelt_runtime_share(
    int64_t count, void (*run)(const void* body, int64_t begin, int64_t end), const void* body);
/* Memory of the calling thread, aligned to 64 bytes; it goes back in reverse order. */
void* smelt_runtime_scratch(int64_t bytes);
void smelt_runtime_scratch_back(void* memory);

#ifdef __cplusplus
}
#endif
#endif /* SMELT_RUNTIME_H */
