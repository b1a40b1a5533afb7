/* threads WEIGHTS: eight threads call one model, each with a workspace of its own. */
#include "calls.h"

#include <pthread.h>

static MODEL* model;

static void* calls(void* number) {
  const int64_t n = (int64_t)(intptr_t)number;
  call c;
  int i;
  prepare(model, &c, 50 + 37 * n);
  for (i = 1; i <= 60; ++i) {
    CHECK(call_it(model, &c) == SMELT_OK);
    check_results(&c, i);
    CHECK(model_sizes(NULL, NULL) == SMELT_E_ARGUMENT &&
          strstr(model_last_error(), "sizes")); /* a message of this thread */
  }
  finish(&c);
  return NULL;
}

/* Threads of the caller's. */
typedef struct {
  void (*run)(void*, int32_t);
  void* context;
  int32_t worker;
} part;

static void* begin(void* argument) {
  const part* p = (const part*)argument;
  p->run(p->context, p->worker);
  return NULL;
}

static void own_threads(void* user, int32_t count, void (*run)(void*, int32_t), void* context) {
  pthread_t threads[8];
  part parts[8];
  int32_t i;
  (void)user;
  for (i = 0; i < count; ++i) {
    parts[i].run = run, parts[i].context = context, parts[i].worker = i;
    CHECK(pthread_create(threads + i, NULL, begin, parts + i) == 0);
  }
  for (i = 0; i < count; ++i) pthread_join(threads[i], NULL);
}

int main(int count, char** arguments) {
  smelt_options options = {sizeof options, 4, 0, NULL, NULL, NULL};
  pthread_t threads[8];
  intptr_t i;
  int round;
  if (count != 2) return 2;
  for (round = 0; round < 3; ++round) {
    options.threads = round == 0 ? 4 : 3;
    options.parallel = round == 2 ? own_threads : NULL;
    CHECK(model_create(arguments[1], &options, &model) == SMELT_OK);
    for (i = 0; i < (round == 2 ? 2 : 8); ++i) CHECK(pthread_create(threads + i, NULL, calls, (void*)i) == 0);
    for (i = 0; i < (round == 2 ? 2 : 8); ++i) pthread_join(threads[i], NULL);
    model_destroy(model);
  }
  return 0;
}
