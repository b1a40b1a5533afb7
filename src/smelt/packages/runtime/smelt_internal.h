/* smelt_internal.h: between the files of the runtime. */
#ifndef SMELT_INTERNAL_H
#define SMELT_INTERNAL_H

#include "smelt_runtime.h"

#define smelt_fail SMELT_JOINED(SMELT_NAME, fail)
#define smelt_sha256 SMELT_JOINED(SMELT_NAME, sha256)
#define smelt_find_weights SMELT_JOINED(SMELT_NAME, find_weights)
#define smelt_choose_program SMELT_JOINED(SMELT_NAME, choose_program)
#define smelt_has SMELT_JOINED(SMELT_NAME, has)
#define smelt_pool_create SMELT_JOINED(SMELT_NAME, pool_create)
#define smelt_pool_destroy SMELT_JOINED(SMELT_NAME, pool_destroy)
#define smelt_enter SMELT_JOINED(SMELT_NAME, enter)
#define smelt_leave SMELT_JOINED(SMELT_NAME, leave)
#define smelt_os_map SMELT_JOINED(SMELT_NAME, os_map)
#define smelt_os_unmap SMELT_JOINED(SMELT_NAME, os_unmap)
#define smelt_os_processors SMELT_JOINED(SMELT_NAME, os_processors)
#define smelt_os_process SMELT_JOINED(SMELT_NAME, os_process)
#define smelt_os_nanoseconds SMELT_JOINED(SMELT_NAME, os_nanoseconds)
#define smelt_os_start SMELT_JOINED(SMELT_NAME, os_start)
#define smelt_os_join SMELT_JOINED(SMELT_NAME, os_join)
#define smelt_os_event SMELT_JOINED(SMELT_NAME, os_event)
#define smelt_os_event_end SMELT_JOINED(SMELT_NAME, os_event_end)
#define smelt_os_wait SMELT_JOINED(SMELT_NAME, os_wait)
#define smelt_os_wake SMELT_JOINED(SMELT_NAME, os_wake)
#define smelt_os_allow_amx SMELT_JOINED(SMELT_NAME, os_allow_amx)
#define smelt_os_arm SMELT_JOINED(SMELT_NAME, os_arm)

/* Sets this thread's message and returns the code. */
int smelt_fail(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));

void smelt_sha256(const void* data, size_t bytes, unsigned char digest[32]);

/* smelt_weights.c: fills where[i] with the data of the description's weight i; SMELT_E_WEIGHTS if anything is
 * wrong. */
int smelt_find_weights(
    const smelt_description* description, const void* file, size_t bytes, const void** where);

/* smelt_levels.c: the first program that this processor runs, or the one of `level`; NULL and a message. */
const smelt_program* smelt_choose_program(const smelt_description* description, const char* level);
int smelt_has(const char* level);

/* smelt_os.c: what systems do differently. */
typedef struct {
  const void* data;
  size_t bytes;
} smelt_file;
int smelt_os_map(const char* path, smelt_file* file); /* 0, or an error code and a message */
void smelt_os_unmap(smelt_file* file);
int32_t smelt_os_processors(void);
int64_t smelt_os_process(void);
int64_t smelt_os_nanoseconds(void);
int smelt_os_allow_amx(void);
enum {
  SMELT_ARM_SHA2 = 1,
  SMELT_ARM_DOTPROD = 2,
  SMELT_ARM_I8MM = 4,
  SMELT_ARM_BF16 = 8,
  SMELT_ARM_SVE = 16
};
int smelt_os_arm(void); /* which of these the processor has */
typedef struct smelt_thread smelt_thread;
smelt_thread* smelt_os_start(void (*run)(void*), void* argument); /* NULL on failure */
void smelt_os_join(smelt_thread* thread);

/* A word that threads wait on. `wait` returns at once where the word is not `value`, may return at any time,
 * and is woken by a `wake` that follows the word's change: as many threads as that says, or more. */
#if defined(__linux__) || !(defined(_WIN32) || defined(__unix__) || defined(__APPLE__))
typedef struct {
  uint32_t word;
} smelt_event;
#elif defined(_WIN32)
typedef struct {
  uint32_t word;
  void *lock, *changed; /* SRWLOCK, CONDITION_VARIABLE: a pointer each, all zeros at first */
} smelt_event;
#else
#include <pthread.h>
typedef struct {
  uint32_t word;
  pthread_mutex_t lock;
  pthread_cond_t changed;
} smelt_event;
#endif
int smelt_os_event(smelt_event* event);
void smelt_os_event_end(smelt_event* event);
void smelt_os_wait(smelt_event* event, uint32_t value);
void smelt_os_wake(smelt_event* event, int32_t threads);

/* smelt_threads.c: a model's threads, and what a run keeps in its workspace. */
typedef struct smelt_pool smelt_pool;
smelt_pool* smelt_pool_create(int32_t threads);
void smelt_pool_destroy(smelt_pool* pool);

typedef struct {
  uint64_t ends; /* first and last + 1 unit, 32 bits each, so that one instruction changes both */
  uint64_t rest_of_the_cache_line[7];
} smelt_range;

/* One run. Its loops are one after another, so it has one `loop`. */
typedef struct {
  const smelt_runtime* model;
  int32_t threads;
  char* parts; /* of the threads: a smelt_worker and its scratch memory */
  size_t part_bytes;
  smelt_range* ranges; /* one for each thread */
  uint64_t rounding;   /* the calling thread's */
  struct {
    int64_t count, unit;
    void (*run)(const void* body, int64_t begin, int64_t end);
    const void* body;
  } loop;
} smelt_record;

typedef struct {
  smelt_record* record;
  char *top, *end; /* of its scratch memory */
  int in_loop;
} smelt_worker;

struct smelt_runtime {
  const smelt_description* description;
  const smelt_program* program;
  smelt_file file; /* empty: weights in the caller's memory */
  smelt_pool* pool;
  int32_t threads;
  int64_t process; /* that created the model: in a child after a fork there are no threads */
  void (*parallel)(void* user, int32_t count, void (*run)(void* context, int32_t worker), void* context);
  void* user;
  const void** all_weights; /* of the description */
  const void* weights[];    /* of the program, program->weight_count of them; then all_weights */
};

/* Makes the calling thread the worker 0 of a run; `leave` gets what `enter` returned. */
smelt_worker* smelt_enter(smelt_record* record);
void smelt_leave(smelt_worker* before);

#define SMELT_ROUND_UP(bytes) (((bytes) + (SMELT_ALIGNMENT - 1)) / SMELT_ALIGNMENT * SMELT_ALIGNMENT)

#endif /* SMELT_INTERNAL_H */
