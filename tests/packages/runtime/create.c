/* create [trust] WEIGHTS…: the code and the message of each file, a line each. */
#include "calls.h"

int main(int count, char** arguments) {
  smelt_options options = {sizeof options, 1, 0, NULL, NULL, NULL};
  int i, first = 1;
  if (count > 1 && strcmp(arguments[1], "trust") == 0) options.flags = SMELT_TRUST_WEIGHTS, first = 2;
  for (i = first; i < count; ++i) {
    MODEL* model;
    const int code = model_create(arguments[i], &options, &model);
    printf("%d %s\n", code, code ? model_last_error() : "");
    model_destroy(model);
  }
  return 0;
}
