/* two WEIGHTS: two packages in one program. Compiled with a name, it is what calls that package. */
#ifdef SMELT_NAME
#include "calls.h"

void NAMED(works)(const char* path) {
  smelt_options options = {sizeof options, 2, 0, NULL, NULL, NULL};
  MODEL* model;
  call c;
  CHECK(model_create(path, &options, &model) == SMELT_OK);
  prepare(model, &c, 301);
  CHECK(call_it(model, &c) == SMELT_OK);
  check_results(&c, 1);
  CHECK(model_create("/nonexistent", NULL, &model) == SMELT_E_WEIGHTS && model_last_error()[0]);
  finish(&c);
}
#else
#include <string.h>
void one_works(const char* path);
void two_works(const char* path);
const char* one_last_error(void);
const char* two_last_error(void);

int main(int count, char** arguments) {
  if (count != 2) return 2;
  one_works(arguments[1]);
  if (strcmp(one_last_error(), "") == 0 || strcmp(two_last_error(), "") != 0) return 1;
  two_works(arguments[1]);
  return 0;
}
#endif
