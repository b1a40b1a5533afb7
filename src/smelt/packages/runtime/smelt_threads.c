/* smelt_threads.c: a model's threads. They share the iterations of one loop at a time.
 *
 * Each thread has a range of its own, the same one in the next loop of as many iterations, so what it left in
 * its cache it finds. It takes chunks from the front, a quarter of what is left; when nothing is, it takes
 * from the back of others' ranges. Which thread does an iteration changes no number, and whether all threads
 * come does not matter: the caller's thread takes part, does what nobody has taken, and waits only for chunks
 * that others are in. */
#include "smelt_internal.h"

#include <stdlib.h>

enum { SPIN_NANOSECONDS = 50000 };

/* The worker that the calling thread is; NULL outside of runs. */
static __thread smelt_worker* current;

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");
#endif
}

/* Waits while *word is `value`, for a short time. Whether it has changed. */
static int changed(const uint32_t* word, uint32_t value, int64_t nanoseconds) {
  int64_t until = 0;
  do {
    int i;
    for (i = 0; i < 32; ++i) {
      if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) return 1;
      if (nanoseconds == 0) return 0;
      relax();
    }
    if (until == 0) until = smelt_os_nanoseconds() + nanoseconds;
  } while (smelt_os_nanoseconds() < until);
  return 0;
}

/* How floating-point numbers are rounded, and whether tiny ones count: the caller's settings hold for all
 * threads. */
static uint64_t rounding(void) {
#if defined(__x86_64__)
  return __builtin_ia32_stmxcsr() & ~0x3fu; /* without what has happened so far */
#elif defined(__aarch64__)
  uint64_t control;
  __asm__ volatile("mrs %0, fpcr" : "=r"(control));
  return control;
#else
  return 0;
#endif
}

static void set_rounding(uint64_t control) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr((unsigned)control);
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(control));
#else
  (void)control;
#endif
}

/* ---------------------------------------- a loop's chunks */
static int take(smelt_record* record, int32_t worker, int32_t* victim, int64_t* begin, int64_t* end) {
  for (; *victim < record->threads; ++*victim) {
    uint64_t* range = &record->ranges[(worker + *victim) % record->threads].ends;
    uint64_t ends = __atomic_load_n(range, __ATOMIC_RELAXED), left;
    while ((left = (ends >> 32) - (ends & 0xffffffff)) > 0) {
      const uint64_t size = (left + 3) / 4, rest = *victim ? ends - (size << 32) : ends + size;
      const uint64_t first = *victim ? rest >> 32 : ends & 0xffffffff;
      if (!__atomic_compare_exchange_n(range, &ends, rest, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
      *begin = (int64_t)first * record->loop.unit;
      *end = record->loop.count - *begin < (int64_t)size * record->loop.unit
                 ? record->loop.count
                 : *begin + (int64_t)size * record->loop.unit;
      return 1;
    }
  }
  return 0;
}

static void divide(smelt_record* record) {
  const uint64_t count = (uint64_t)record->loop.count, unit = (uint64_t)record->loop.unit,
                 threads = (uint64_t)record->threads;
  const uint64_t units = (count + unit - 1) / unit;
  uint64_t thread, begin = 0;
  for (thread = 0; thread < threads; ++thread) {
    const uint64_t end = begin + units / threads + (thread < units % threads);
    __atomic_store_n(&record->ranges[thread].ends, begin | end << 32, __ATOMIC_RELAXED);
    begin = end;
  }
}

/* Takes part in the loop as this worker. */
static void work(void* context, int32_t number) {
  smelt_record* record = (smelt_record*)context;
  smelt_worker* worker = (smelt_worker*)(void*)(record->parts + (size_t)number * record->part_bytes);
  smelt_worker* const before = current;
  const uint64_t own_rounding = rounding();
  int32_t victim = 0;
  int64_t begin, end;
  current = worker;
  worker->in_loop = 1;
  if (own_rounding != record->rounding) set_rounding(record->rounding);
  while (take(record, number, &victim, &begin, &end)) record->loop.run(record->loop.body, begin, end);
  if (own_rounding != record->rounding) set_rounding(own_rounding);
  worker->in_loop = 0;
  current = before;
}

/* ---------------------------------------- the threads */
/* The gate: whether a loop is open, whether the caller sleeps until all have left, how many are inside. */
#define OPEN ((uint32_t)1 << 31)
#define WAITED ((uint32_t)1 << 30)
#define INSIDE (WAITED - 1)

typedef struct {
  smelt_pool* pool;
  smelt_thread* thread;
  int32_t number;
} seat;

struct smelt_pool {
  smelt_event loops; /* how many there were: threads wait for it to change */
  uint32_t sleepers, stop;
  int64_t spin;
  int32_t threads; /* without the caller's */
  seat* seats;
  char apart[SMELT_ALIGNMENT];
  smelt_event gate;
  uint32_t busy;        /* with a run's loop */
  smelt_record* record; /* of the run; written while the gate is closed */
};

static void serve(void* argument) {
  const seat* own = (const seat*)argument;
  smelt_pool* pool = own->pool;
  uint32_t seen = 0;
  for (;;) {
    uint32_t gate;
    if (!changed(&pool->loops.word, seen, pool->spin)) {
      __atomic_fetch_add(&pool->sleepers, 1, __ATOMIC_SEQ_CST);
      while (__atomic_load_n(&pool->loops.word, __ATOMIC_SEQ_CST) == seen) smelt_os_wait(&pool->loops, seen);
      __atomic_fetch_sub(&pool->sleepers, 1, __ATOMIC_SEQ_CST);
    }
    seen = __atomic_load_n(&pool->loops.word, __ATOMIC_ACQUIRE);
    if (__atomic_load_n(&pool->stop, __ATOMIC_ACQUIRE)) return;
    gate = __atomic_load_n(&pool->gate.word, __ATOMIC_RELAXED);
    while (gate & OPEN) {
      if (!__atomic_compare_exchange_n(
              &pool->gate.word, &gate, gate + 1, 1, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        continue;
      work(pool->record, own->number);
      if (__atomic_fetch_sub(&pool->gate.word, 1, __ATOMIC_ACQ_REL) == (WAITED | 1))
        smelt_os_wake(&pool->gate, 1);
      break;
    }
  }
}

/* Those that wait for a loop without sleep come as well. */
static void wake(smelt_pool* pool, int32_t threads) {
  __atomic_fetch_add(&pool->loops.word, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&pool->sleepers, __ATOMIC_SEQ_CST) > 0) smelt_os_wake(&pool->loops, threads);
}

smelt_pool* smelt_pool_create(int32_t threads) {
  smelt_pool* pool = (smelt_pool*)calloc(1, sizeof *pool);
  if (!pool) return NULL;
  pool->seats = (seat*)calloc((size_t)threads - 1, sizeof *pool->seats);
  if (pool->seats && smelt_os_event(&pool->loops)) {
    if (smelt_os_event(&pool->gate)) {
      pool->spin = threads <= smelt_os_processors() ? SPIN_NANOSECONDS : 0;
      for (; pool->threads < threads - 1; ++pool->threads) {
        seat* own = pool->seats + pool->threads;
        own->pool = pool, own->number = pool->threads + 1;
        own->thread = smelt_os_start(serve, own);
        if (!own->thread) break;
      }
      if (pool->threads == threads - 1) return pool;
      smelt_pool_destroy(pool);
      return NULL;
    }
    smelt_os_event_end(&pool->loops);
  }
  free(pool->seats);
  free(pool);
  return NULL;
}

void smelt_pool_destroy(smelt_pool* pool) {
  int32_t i;
  if (!pool) return;
  __atomic_store_n(&pool->stop, 1, __ATOMIC_SEQ_CST);
  wake(pool, pool->threads);
  for (i = 0; i < pool->threads; ++i) smelt_os_join(pool->seats[i].thread);
  smelt_os_event_end(&pool->gate);
  smelt_os_event_end(&pool->loops);
  free(pool->seats);
  free(pool);
}

static void share_in_pool(smelt_pool* pool, smelt_record* record) {
  uint32_t gate;
  pool->record = record;
  __atomic_store_n(&pool->gate.word, OPEN, __ATOMIC_RELEASE);
  wake(pool, record->loop.count <= pool->threads ? (int32_t)record->loop.count - 1 : pool->threads);
  work(record, 0);
  gate = __atomic_and_fetch(&pool->gate.word, ~OPEN, __ATOMIC_ACQ_REL);
  while (gate & INSIDE) {
    if (!changed(&pool->gate.word, gate, pool->spin)) {
      gate = __atomic_or_fetch(&pool->gate.word, WAITED, __ATOMIC_ACQ_REL);
      if (gate & INSIDE) smelt_os_wait(&pool->gate, gate);
    }
    gate = __atomic_load_n(&pool->gate.word, __ATOMIC_ACQUIRE);
  }
}

void smelt_runtime_share(
    int64_t count, void (*run)(const void* body, int64_t begin, int64_t end), const void* body) {
  smelt_worker* worker = current;
  smelt_record* record = worker ? worker->record : NULL;
  smelt_pool* pool;
  if (count <= 0) return;
  if (!record || record->threads == 1 || worker->in_loop || count == 1) {
    run(body, 0, count);
    return;
  }
  pool = record->model->pool;
  if (pool && __atomic_exchange_n(&pool->busy, 1, __ATOMIC_ACQUIRE)) {
    run(body, 0, count);
    return;
  }
  record->loop.count = count, record->loop.unit = (count >> 31) + 1;
  record->loop.run = run, record->loop.body = body;
  record->rounding = rounding();
  divide(record);
  if (pool) {
    share_in_pool(pool, record);
    __atomic_store_n(&pool->busy, 0, __ATOMIC_RELEASE);
  } else {
    record->model->parallel(record->model->user, record->threads, work, record);
  }
}

/* ---------------------------------------- scratch memory */
smelt_worker* smelt_enter(smelt_record* record) {
  smelt_worker* const before = current;
  const size_t head = SMELT_ROUND_UP(sizeof(smelt_worker));
  int32_t i;
  for (i = 0; i < record->threads; ++i) {
    char* part = record->parts + (size_t)i * record->part_bytes;
    smelt_worker* worker = (smelt_worker*)(void*)part;
    worker->record = record;
    worker->top = part + head, worker->end = part + record->part_bytes;
    worker->in_loop = 0;
  }
  current = (smelt_worker*)(void*)record->parts;
  return before;
}

void smelt_leave(smelt_worker* before) { current = before; }

void* smelt_runtime_scratch(int64_t bytes) {
  smelt_worker* worker = current;
  const uint64_t size = bytes > 0 ? SMELT_ROUND_UP((uint64_t)bytes) : 0;
  char* memory;
  if (worker && size <= (uint64_t)(worker->end - worker->top)) {
    memory = worker->top;
    worker->top += size;
    return memory;
  }
#ifdef SMELT_STRICT_SCRATCH
  abort(); /* scratch_bytes of the program said less */
#endif
  /* Its first 64 bytes have what malloc gave. */
  memory = size < SIZE_MAX - 2 * SMELT_ALIGNMENT ? (char*)malloc((size_t)size + 2 * SMELT_ALIGNMENT) : NULL;
  if (!memory) abort();
  {
    char* aligned =
        memory + SMELT_ALIGNMENT + (SMELT_ALIGNMENT - (uintptr_t)memory % SMELT_ALIGNMENT) % SMELT_ALIGNMENT;
    *(char**)(void*)(aligned - SMELT_ALIGNMENT) = memory;
    return aligned;
  }
}

void smelt_runtime_scratch_back(void* memory) {
  smelt_worker* worker = current;
  const uintptr_t place = (uintptr_t)memory;
  if (worker && place >= (uintptr_t)worker && place <= (uintptr_t)worker->end)
    worker->top = (char*)memory;
  else
    free(*(char**)(void*)((char*)memory - SMELT_ALIGNMENT));
}
