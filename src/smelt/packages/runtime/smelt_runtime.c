/* smelt_runtime.c: what the functions of a package's header do: create, check, run. */
#include "smelt_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_THREADS = 1024, MOST_RANK = 64 };

static __thread char message[512];

int smelt_fail(int code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return code;
}

const char* smelt_runtime_last_error(void) { return message; }

/* ---------------------------------------- create */
/* The runtime's limits, and those that callers of another version keep. */
static int check_description(const smelt_description* description) {
  int32_t i;
  if (description->abi != SMELT_ABI_VERSION)
    return smelt_fail(SMELT_E_ABI, "create: the model has ABI version %d, the runtime %d",
        (int)description->abi, SMELT_ABI_VERSION);
  for (i = 0; i < description->input_count + description->output_count; ++i) {
    const smelt_tensor_info* info = i < description->input_count
                                        ? description->inputs + i
                                        : description->outputs + (i - description->input_count);
    if (info->rank > MOST_RANK)
      return smelt_fail(SMELT_E_ABI, "create: '%.80s' has more than %d dimensions", info->name, MOST_RANK);
  }
  return SMELT_OK;
}

static int read_options(const smelt_options* given, smelt_options* options) {
  const smelt_options defaults = {sizeof defaults, 0, 0, NULL, NULL, NULL};
  *options = defaults;
  if (given && given->struct_bytes < sizeof given->struct_bytes)
    return smelt_fail(SMELT_E_ABI, "create: options.struct_bytes is %lld; set it to sizeof(smelt_options)",
        (long long)given->struct_bytes);
  if (given)
    memcpy(options, given, given->struct_bytes < sizeof defaults ? given->struct_bytes : sizeof defaults);
  if (options->threads < 0 || options->threads > MOST_THREADS)
    return smelt_fail(
        SMELT_E_ARGUMENT, "create: options.threads is %d, not 0 to %d", (int)options->threads, MOST_THREADS);
  if (options->flags & ~SMELT_TRUST_WEIGHTS)
    return smelt_fail(
        SMELT_E_ARGUMENT, "create: options.flags has unknown bits (%#x)", (unsigned)options->flags);
  if (options->threads == 0) options->threads = smelt_os_processors();
  if (options->threads > MOST_THREADS) options->threads = MOST_THREADS;
  return SMELT_OK;
}

static int read_weights(smelt_runtime* model, const char* path, const void* data, size_t bytes, int trusted) {
  const smelt_description* description = model->description;
  unsigned char digest[32];
  int code = SMELT_OK;
  int32_t i;
  if (path) {
    if ((code = smelt_os_map(path, &model->file)) != SMELT_OK) return code;
    data = model->file.data, bytes = model->file.bytes;
  } else if ((uintptr_t)data % SMELT_ALIGNMENT != 0) {
    return smelt_fail(
        SMELT_E_ARGUMENT, "create: weights in memory have to be aligned to %d bytes", SMELT_ALIGNMENT);
  }
  if ((code = smelt_find_weights(description, data, bytes, model->all_weights)) != SMELT_OK) return code;
  for (i = 0; i < model->program->weight_count; ++i)
    model->weights[i] = model->all_weights[model->program->weights[i]];
  if (trusted) return SMELT_OK;
  smelt_sha256(data, bytes, digest);
  if (memcmp(digest, description->digest, sizeof digest) == 0) return SMELT_OK;
  return smelt_fail(
      SMELT_E_WEIGHTS, "weights: the digest (SHA-256) is not that of the weights of %s", description->name);
}

static int create(const smelt_description* description, const char* path, const void* data, size_t bytes,
    const smelt_options* given, smelt_runtime** result) {
  const smelt_program* program;
  smelt_options options;
  smelt_runtime* model;
  int code;
  if (!result) return smelt_fail(SMELT_E_ARGUMENT, "create: the model's place is NULL");
  *result = NULL;
  if (!path && !data) return smelt_fail(SMELT_E_ARGUMENT, "create: there are no weights (NULL)");
  if ((code = check_description(description)) != SMELT_OK) return code;
  if ((code = read_options(given, &options)) != SMELT_OK) return code;
  program = smelt_choose_program(description, options.level);
  if (!program) return SMELT_E_CPU;
  model = (smelt_runtime*)calloc(1,
      sizeof *model + (size_t)(program->weight_count + description->weight_count) * sizeof *model->weights);
  if (!model) return smelt_fail(SMELT_E_MEMORY, "create: no memory");
  model->description = description, model->program = program;
  model->threads = options.threads, model->process = smelt_os_process();
  model->parallel = options.parallel, model->user = options.user;
  model->all_weights = model->weights + program->weight_count;
  code = read_weights(model, path, data, bytes, options.flags & SMELT_TRUST_WEIGHTS);
  if (code == SMELT_OK && model->threads > 1 && !model->parallel) {
    model->pool = smelt_pool_create(model->threads);
    if (!model->pool)
      code = smelt_fail(SMELT_E_MEMORY, "create: %d threads could not be started", (int)model->threads - 1);
  }
  if (code == SMELT_OK)
    *result = model;
  else
    smelt_runtime_destroy(model);
  return code;
}

int smelt_runtime_create(const smelt_description* description, const char* weights_path,
    const smelt_options* options, smelt_runtime** model) {
  return create(description, weights_path, NULL, 0, options, model);
}

int smelt_runtime_create_from_memory(const smelt_description* description, const void* weights, size_t bytes,
    const smelt_options* options, smelt_runtime** model) {
  return create(description, NULL, weights, bytes, options, model);
}

void smelt_runtime_destroy(smelt_runtime* model) {
  if (!model) return;
  if (model->process == smelt_os_process()) smelt_pool_destroy(model->pool);
  smelt_os_unmap(&model->file);
  free(model);
}

const char* smelt_runtime_level(const smelt_runtime* model) { return model ? model->program->level : ""; }

/* ---------------------------------------- what there is */
const smelt_tensor_info* smelt_runtime_input(const smelt_description* description, int32_t input) {
  return input >= 0 && input < description->input_count ? description->inputs + input : NULL;
}

const smelt_tensor_info* smelt_runtime_output(const smelt_description* description, int32_t output) {
  return output >= 0 && output < description->output_count ? description->outputs + output : NULL;
}

const smelt_size_info* smelt_runtime_size(const smelt_description* description, int32_t size) {
  return size >= 0 && size < description->size_count ? description->sizes + size : NULL;
}

/* ---------------------------------------- checks */
/* A tensor in messages. */
typedef struct {
  const char* kind;
  int32_t number;
  const smelt_tensor_info* info;
} subject;
#define SUBJECT "%s %d ('%.80s')"
#define OF(s) (s)->kind, (int)(s)->number, (s)->info->name

/* Fills shape[rank] from sizes; dimensions of others (a scalar has none) stay. */
static void shape_of(const smelt_tensor_info* info, const int64_t* sizes, int32_t number,
    void (*computed)(const int64_t*, int32_t, int64_t*), int64_t* shape) {
  int32_t i, ask = 0;
  for (i = 0; i < info->rank; ++i) {
    const int64_t dimension = info->shape[i];
    shape[i] = dimension >= 0 || dimension == SMELT_COMPUTED ? dimension : sizes[-1 - dimension];
    ask |= dimension == SMELT_COMPUTED;
  }
  if (ask) computed(sizes, number, shape);
}

/* Device, dtype, rank; dimensions that are no memory's. */
static int check_kind(const subject* s, const DLTensor* tensor) {
  const smelt_tensor_info* info = s->info;
  int64_t elements = info->dtype.bits / 8 + 1;
  int32_t i;
  if (tensor->device.device_type != kDLCPU)
    return smelt_fail(
        SMELT_E_DTYPE, SUBJECT ": its device is %d, not the CPU (1)", OF(s), (int)tensor->device.device_type);
  if (tensor->dtype.code != info->dtype.code || tensor->dtype.bits != info->dtype.bits ||
      tensor->dtype.lanes != 1)
    return smelt_fail(SMELT_E_DTYPE,
        SUBJECT ": its dtype is (%d, %d bits, %d lanes), not (%d, %d bits, 1 lane)", OF(s),
        tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes, info->dtype.code, info->dtype.bits);
  if (tensor->ndim != info->rank)
    return smelt_fail(
        SMELT_E_SHAPE, SUBJECT ": it has %d dimensions, not %d", OF(s), (int)tensor->ndim, (int)info->rank);
  if (info->rank > 0 && !tensor->shape)
    return smelt_fail(SMELT_E_ARGUMENT, SUBJECT ": its shape is NULL", OF(s));
  for (i = 0; i < info->rank; ++i)
    if (tensor->shape[i] < 0 ||
        (tensor->shape[i] > 0 && __builtin_mul_overflow(elements, tensor->shape[i], &elements)))
      return smelt_fail(
          SMELT_E_SHAPE, SUBJECT ": dimension %d is %lld", OF(s), (int)i, (long long)tensor->shape[i]);
  return SMELT_OK;
}

static void* data_of(const DLTensor* tensor) {
  return (void*)((uintptr_t)tensor->data + (uintptr_t)tensor->byte_offset);
}

/* Its shape is that one, and its data lie as the model wants them. */
static int check_memory(const subject* s, const DLTensor* tensor, const int64_t* shape) {
  const smelt_tensor_info* info = s->info;
  const uintptr_t alignment = info->dtype.bits / (info->dtype.code == kDLComplex ? 16u : 8u);
  int64_t stride = 1;
  int32_t i;
  int empty = 0;
  for (i = 0; i < info->rank; ++i) {
    if (tensor->shape[i] != shape[i])
      return smelt_fail(SMELT_E_SHAPE, SUBJECT ": dimension %d is %lld, not %lld", OF(s), (int)i,
          (long long)tensor->shape[i], (long long)shape[i]);
    empty |= shape[i] == 0;
  }
  if (empty) return SMELT_OK;
  if (!tensor->data) return smelt_fail(SMELT_E_ARGUMENT, SUBJECT ": its data is NULL", OF(s));
  if ((uintptr_t)data_of(tensor) % (alignment ? alignment : 1) != 0)
    return smelt_fail(
        SMELT_E_ARGUMENT, SUBJECT ": its data is not aligned to %d bytes", OF(s), (int)alignment);
  for (i = info->rank - 1; i >= 0; --i) {
    const int32_t dimension = info->order ? info->order[i] : i;
    int64_t is = stride;
    if (tensor->strides) {
      is = tensor->strides[dimension];
    } else if (info->order && shape[dimension] > 1) { /* C order is what NULL says */
      int32_t after;
      for (is = 1, after = dimension + 1; after < info->rank; ++after) is *= shape[after];
    }
    if (is != stride && shape[dimension] != 1)
      return smelt_fail(SMELT_E_SHAPE, SUBJECT ": the stride of dimension %d is %lld, not %lld", OF(s),
          (int)dimension, (long long)is, (long long)stride);
    stride *= shape[dimension];
  }
  return SMELT_OK;
}

static int check_sizes(const smelt_description* description, const int64_t* sizes) {
  int32_t i;
  for (i = 0; i < description->size_count; ++i) {
    const smelt_size_info* info = description->sizes + i;
    if (sizes[i] < info->least || sizes[i] > info->most)
      return smelt_fail(SMELT_E_SHAPE, "size '%.80s' is %lld; the model is for %lld to %lld", info->name,
          (long long)sizes[i], (long long)info->least, (long long)info->most);
  }
  i = description->check_sizes ? description->check_sizes(sizes) : 0;
  if (i) return smelt_fail(SMELT_E_SHAPE, "the sizes do not fulfil %.300s", description->constraints[i - 1]);
  return SMELT_OK;
}

int smelt_runtime_sizes(const smelt_description* description, const DLTensor* inputs, int64_t* sizes) {
  subject s = {"input", 0, NULL};
  int64_t shape[MOST_RANK];
  int32_t i;
  int code = SMELT_OK;
  if ((!inputs && description->input_count) || (!sizes && description->size_count))
    return smelt_fail(SMELT_E_ARGUMENT, "sizes: an argument is NULL");
  for (s.number = 0; s.number < description->input_count; ++s.number) {
    s.info = description->inputs + s.number;
    if ((code = check_kind(&s, inputs + s.number)) != SMELT_OK) return code;
    /* derived_sizes may read a scalar */
    if (s.info->rank == 0 && (code = check_memory(&s, inputs + s.number, NULL)) != SMELT_OK) return code;
  }
  for (i = 0; i < description->size_count; ++i) sizes[i] = -1;
  for (s.number = 0; s.number < description->input_count; ++s.number) {
    s.info = description->inputs + s.number;
    for (i = 0; i < s.info->rank; ++i)
      if (s.info->shape[i] < 0 && s.info->shape[i] != SMELT_COMPUTED && sizes[-1 - s.info->shape[i]] < 0)
        sizes[-1 - s.info->shape[i]] = inputs[s.number].shape[i];
  }
  if (description->derived_sizes) description->derived_sizes(inputs, sizes);
  if ((code = check_sizes(description, sizes)) != SMELT_OK) return code;
  for (s.number = 0; s.number < description->input_count; ++s.number) {
    s.info = description->inputs + s.number;
    shape_of(s.info, sizes, s.number, description->input_shape, shape);
    if ((code = check_memory(&s, inputs + s.number, shape)) != SMELT_OK) return code;
  }
  return SMELT_OK;
}

int smelt_runtime_output_shape(
    const smelt_description* description, const int64_t* sizes, int32_t output, int64_t* shape) {
  const smelt_tensor_info* info = smelt_runtime_output(description, output);
  int code;
  if (!info) return smelt_fail(SMELT_E_ARGUMENT, "output_shape: there is no output %d", (int)output);
  if ((!sizes && description->size_count) || (!shape && info->rank))
    return smelt_fail(SMELT_E_ARGUMENT, "output_shape: an argument is NULL");
  if ((code = check_sizes(description, sizes)) != SMELT_OK) return code;
  shape_of(info, sizes, output, description->output_shape, shape);
  return SMELT_OK;
}

int smelt_runtime_initial(const smelt_runtime* model, int32_t input, void* data) {
  const smelt_tensor_info* info = model ? smelt_runtime_input(model->description, input) : NULL;
  const smelt_weight* weight;
  size_t bytes;
  int32_t i;
  if (!info || !data)
    return smelt_fail(SMELT_E_ARGUMENT, "initial: an argument is NULL, or there is no input %d", (int)input);
  if (!model->description->initial || model->description->initial[input] < 0)
    return smelt_fail(
        SMELT_E_ARGUMENT, "initial: input %d ('%.80s') has no initial value", (int)input, info->name);
  weight = model->description->weights + model->description->initial[input];
  bytes = info->dtype.bits / 8u;
  for (i = 0; i < weight->rank; ++i)
    bytes *= (size_t)weight->shape[i]; /* the file has as many: create checked it */
  memcpy(data, model->all_weights[model->description->initial[input]], bytes);
  return SMELT_OK;
}

/* ---------------------------------------- run */
/* Where things lie in a workspace, in bytes from its begin: sizes, inputs, outputs, ranges, arena, the
 * threads' parts. */
typedef struct {
  size_t inputs, outputs, ranges, arena, parts, part_bytes, all;
} layout;

static int64_t rounded(int64_t bytes, int* wrong) {
  *wrong |= bytes < 0 || bytes > INT64_MAX - SMELT_ALIGNMENT;
  return *wrong ? 0 : SMELT_ROUND_UP(bytes);
}

static size_t head_bytes(const smelt_runtime* model, layout* place) {
  const smelt_description* description = model->description;
  place->inputs = (size_t)description->size_count * sizeof(int64_t);
  place->outputs = place->inputs + (size_t)description->input_count * sizeof(void*);
  place->ranges = SMELT_ROUND_UP(place->outputs + (size_t)description->output_count * sizeof(void*));
  place->arena = place->ranges + (size_t)model->threads * sizeof(smelt_range);
  return place->arena;
}

/* Whether the layout fits into int64_t and size_t. The sizes are checked. */
static int lay_out(const smelt_runtime* model, const int64_t* sizes, layout* place) {
  const smelt_program* program = model->program;
  const size_t head = head_bytes(model, place);
  int wrong = 0;
  const int64_t arena = rounded(program->arena_bytes ? program->arena_bytes(sizes) : 0, &wrong);
  int64_t part = rounded(program->scratch_bytes ? program->scratch_bytes(sizes) : 0, &wrong), all;
  wrong |= __builtin_add_overflow(part, (int64_t)SMELT_ROUND_UP(sizeof(smelt_worker)), &part);
  wrong |= __builtin_mul_overflow(part, (int64_t)model->threads, &all);
  wrong |= __builtin_add_overflow(all, arena, &all) || __builtin_add_overflow(all, (int64_t)head, &all);
  if (wrong || (uint64_t)all > (uint64_t)(SIZE_MAX / 2)) return 0;
  place->parts = place->arena + (size_t)arena;
  place->part_bytes = (size_t)part;
  place->all = (size_t)all;
  return 1;
}

int64_t smelt_runtime_workspace_bytes(const smelt_runtime* model, const int64_t* sizes) {
  layout place;
  if (!model || (!sizes && model->description->size_count)) {
    smelt_fail(SMELT_E_ARGUMENT, "workspace_bytes: an argument is NULL");
    return -1;
  }
  if (check_sizes(model->description, sizes) != SMELT_OK) return -1;
  if (lay_out(model, sizes, &place)) return (int64_t)place.all;
  smelt_fail(SMELT_E_MEMORY, "workspace_bytes: these sizes need more memory than there is");
  return -1;
}

static int check_workspace(const void* workspace, size_t bytes, size_t needed) {
  if (!workspace) return smelt_fail(SMELT_E_ARGUMENT, "run: the workspace is NULL");
  if ((uintptr_t)workspace % SMELT_ALIGNMENT != 0)
    return smelt_fail(SMELT_E_ARGUMENT, "run: the workspace is not aligned to %d bytes", SMELT_ALIGNMENT);
  if (bytes < needed)
    return smelt_fail(SMELT_E_ARGUMENT, "run: the workspace has %llu bytes, and %llu are needed",
        (unsigned long long)bytes, (unsigned long long)needed);
  return SMELT_OK;
}

/* Sizes are checked, and the workspace has room for its head. */
static int run(const smelt_runtime* model, const int64_t* sizes, void* const* inputs, void* const* outputs,
    char* workspace, size_t bytes) {
  smelt_record record;
  smelt_worker* before;
  layout place;
  int code;
  if (!lay_out(model, sizes, &place))
    return smelt_fail(SMELT_E_MEMORY, "run: these sizes need more memory than there is");
  if ((code = check_workspace(workspace, bytes, place.all)) != SMELT_OK) return code;
  memset(&record, 0, sizeof record);
  record.model = model;
  record.threads = model->threads;
  if (model->pool && model->process != smelt_os_process())
    record.threads = 1; /* a fork has no threads of ours */
  record.parts = workspace + place.parts, record.part_bytes = place.part_bytes;
  record.ranges = (smelt_range*)(void*)(workspace + place.ranges);
  before = smelt_enter(&record);
  code = model->program->run(model->weights, sizes, inputs, outputs, workspace + place.arena);
  smelt_leave(before);
  if (code) return smelt_fail(SMELT_E_VALUE, "%.400s", model->description->errors[code - 1]);
  return SMELT_OK;
}

int smelt_runtime_run(const smelt_runtime* model, const DLTensor* inputs, DLTensor* outputs, void* workspace,
    size_t workspace_bytes) {
  const smelt_description* description;
  int64_t shape[MOST_RANK], *sizes;
  void **input_data, **output_data;
  layout place;
  subject s = {"output", 0, NULL};
  int32_t i;
  int code;
  if (!model || (!outputs && model->description->output_count))
    return smelt_fail(SMELT_E_ARGUMENT, "run: an argument is NULL");
  description = model->description;
  if ((code = check_workspace(workspace, workspace_bytes, head_bytes(model, &place))) != SMELT_OK)
    return code;
  sizes = (int64_t*)workspace;
  input_data = (void**)(void*)((char*)workspace + place.inputs);
  output_data = (void**)(void*)((char*)workspace + place.outputs);
  if ((code = smelt_runtime_sizes(description, inputs, sizes)) != SMELT_OK) return code;
  for (i = 0; i < description->input_count; ++i) input_data[i] = data_of(inputs + i);
  for (i = 0; i < description->output_count; ++i) {
    s.number = i, s.info = description->outputs + i;
    if ((code = check_kind(&s, outputs + i)) != SMELT_OK) return code;
    shape_of(s.info, sizes, i, description->output_shape, shape);
    if ((code = check_memory(&s, outputs + i, shape)) != SMELT_OK) return code;
    output_data[i] = data_of(outputs + i);
  }
  return run(model, sizes, input_data, output_data, (char*)workspace, workspace_bytes);
}

int smelt_runtime_run_pointers(const smelt_runtime* model, const int64_t* sizes, void* const* inputs,
    void* const* outputs, void* workspace, size_t workspace_bytes) {
  int code;
  if (!model || (!sizes && model->description->size_count) || (!inputs && model->description->input_count) ||
      (!outputs && model->description->output_count))
    return smelt_fail(SMELT_E_ARGUMENT, "run_pointers: an argument is NULL");
  if ((code = check_sizes(model->description, sizes)) != SMELT_OK) return code;
  return run(model, sizes, inputs, outputs, (char*)workspace, workspace_bytes);
}
