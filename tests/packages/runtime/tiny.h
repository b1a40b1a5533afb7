/* tiny.h: the functions of tiny.c, a model by hand in the form of a generated one; the prefix is SMELT_NAME.
 */
#include "smelt_runtime.h"

#define OF_MODEL_(name, rest) name##_##rest
#define OF_MODEL(name, rest) OF_MODEL_(name, rest)
#define NAMED(rest) OF_MODEL(SMELT_NAME, rest)

typedef struct NAMED(model_) MODEL;
#define model_create NAMED(create)
#define model_create_from_memory NAMED(create_from_memory)
#define model_destroy NAMED(destroy)
#define model_last_error NAMED(last_error)
#define model_input NAMED(input)
#define model_output NAMED(output)
#define model_size NAMED(size)
#define model_sizes NAMED(sizes)
#define model_output_shape NAMED(output_shape)
#define model_workspace_bytes NAMED(workspace_bytes)
#define model_initial NAMED(initial)
#define model_run NAMED(run)
#define model_run_pointers NAMED(run_pointers)
#define model_level NAMED(level)

SMELT_EXPORT int model_create(const char* path, const smelt_options* options, MODEL** model);
SMELT_EXPORT int model_create_from_memory(
    const void* weights, size_t bytes, const smelt_options* options, MODEL** model);
SMELT_EXPORT void model_destroy(MODEL* model);
SMELT_EXPORT const char* model_last_error(void);
SMELT_EXPORT const smelt_tensor_info* model_input(int32_t input);
SMELT_EXPORT const smelt_tensor_info* model_output(int32_t output);
SMELT_EXPORT const smelt_size_info* model_size(int32_t size);
SMELT_EXPORT int model_sizes(const DLTensor* inputs, int64_t* sizes);
SMELT_EXPORT int model_output_shape(const int64_t* sizes, int32_t output, int64_t* shape);
SMELT_EXPORT int64_t model_workspace_bytes(const MODEL* model, const int64_t* sizes);
SMELT_EXPORT int model_initial(const MODEL* model, int32_t input, void* data);
SMELT_EXPORT int model_run(
    const MODEL* model, const DLTensor* inputs, DLTensor* outputs, void* workspace, size_t bytes);
SMELT_EXPORT int model_run_pointers(const MODEL* model, const int64_t* sizes, void* const* inputs,
    void* const* outputs, void* workspace, size_t bytes);
SMELT_EXPORT const char* model_level(const MODEL* model);
