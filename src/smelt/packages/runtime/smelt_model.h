/* smelt_model.h: what the C headers of all packages of smelt have in common. C99 and C++; no other library's
 * header is needed. A caller's pointers are not kept, but for the memory of `create_from_memory`. */
#ifndef SMELT_MODEL_H
#define SMELT_MODEL_H

#include <stddef.h>
#include <stdint.h>

#define SMELT_ABI_VERSION 1
#define SMELT_ALIGNMENT 64 /* of a workspace, and of weights in memory */

/* DLPack 1.0. The real dlpack.h may be included before; after this header it is empty, so include it before
 * where a newer one is needed. */
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_
#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 0
#define DLPACK_FLAG_BITMASK_READ_ONLY (1UL << 0UL)
#define DLPACK_FLAG_BITMASK_IS_COPIED (1UL << 1UL)
#ifdef __cplusplus
extern "C" {
typedef enum : int32_t {
#else
typedef enum {
#endif
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,
  kDLOpenCL = 4,
  kDLVulkan = 7,
  kDLMetal = 8,
  kDLVPI = 9,
  kDLROCM = 10,
  kDLROCMHost = 11,
  kDLExtDev = 12,
  kDLCUDAManaged = 13,
  kDLOneAPI = 14,
  kDLWebGPU = 15,
  kDLHexagon = 16,
  kDLMAIA = 17
} DLDeviceType;
typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;
typedef enum {
  kDLInt = 0U,
  kDLUInt = 1U,
  kDLFloat = 2U,
  kDLOpaqueHandle = 3U,
  kDLBfloat = 4U,
  kDLComplex = 5U,
  kDLBool = 6U
} DLDataTypeCode;
typedef struct {
  uint8_t code; /* DLDataTypeCode */
  uint8_t bits;
  uint16_t lanes;
} DLDataType;
typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; NULL: C order */
  uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;
typedef struct {
  uint32_t major;
  uint32_t minor;
} DLPackVersion;
typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;
#ifdef __cplusplus
}
#endif
#endif /* DLPACK_DLPACK_H_ */

#ifdef __cplusplus
extern "C" {
#endif

/* What functions return. NAME_last_error() has the message of the calling thread's last error. */
enum {
  SMELT_OK = 0,
  SMELT_E_ARGUMENT = 1, /* NULL, out of range, a workspace that is too small or not aligned */
  SMELT_E_SHAPE = 2,    /* a tensor's rank, shape or strides; sizes that the model does not have */
  SMELT_E_DTYPE = 3,    /* a tensor's dtype or device */
  SMELT_E_WEIGHTS = 4,  /* the file is missing, damaged, or not this model's */
  SMELT_E_CPU = 5,      /* the library has no code for this processor, or not the level that was asked for */
  SMELT_E_MEMORY = 6,   /* no memory, or no thread could be started */
  SMELT_E_VALUE = 7,    /* an error that the model itself raises: an index out of range, … */
  SMELT_E_ABI = 8       /* header and library do not fit */
};

/* A tensor's flags. STATE: an input in the caller's memory that run also writes: a cache, moments, … */
#define SMELT_STATE 1u

/* A dimension: >= 0, SMELT_SIZE(k) for the size number k, or SMELT_COMPUTED: NAME_output_shape knows. */
#define SMELT_SIZE(k) (-1 - (int64_t)(k))
#define SMELT_COMPUTED INT64_MIN

typedef struct {
  const char* name;
  DLDataType dtype;
  int32_t rank;
  uint32_t flags;
  const int64_t* shape; /* rank dimensions */
  const int32_t* order; /* the dimensions from the outermost in memory to the innermost; NULL: C order */
} smelt_tensor_info;

typedef struct {
  const char* name;
  int64_t least, most; /* both included */
} smelt_size_info;

/* Flags of smelt_options. TRUST_WEIGHTS: skip their digest; sizes and offsets are checked all the same. */
#define SMELT_TRUST_WEIGHTS 1u

/* {sizeof(smelt_options)} is the default. Fields may be added at the end: `struct_bytes` says which ones
 * there are. */
typedef struct {
  size_t struct_bytes;
  int32_t threads; /* that a run uses, the calling one among them; 0: as many as processors; 1: no others */
  uint32_t flags;
  const char* level; /* an instruction set by name; NULL: the best that is there */
  /* The caller's own threads; NULL: the model has its own. Calls run(context, worker) for workers of 0 …
   * count - 1, each at most once, on any threads, and returns when all calls have returned; a worker that is
   * never called is fine, none is not. `threads` is the most that `count` is. Kernels need 1 MiB of stack. */
  void (*parallel)(void* user, int32_t count, void (*run)(void* context, int32_t worker), void* context);
  void* user;
} smelt_options;

#ifdef __cplusplus
}
#endif
#endif /* SMELT_MODEL_H */
