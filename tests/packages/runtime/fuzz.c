/* fuzz WEIGHTS COUNT: mutations of a file of weights. None may be read out of bounds (run it under ASan), and
 * what is accepted without a digest has the tensors where they can be read. */
#include "calls.h"

static uint64_t state = 88172645463325252u;
static uint64_t number(uint64_t below) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state % below;
}

static unsigned char *original, *changed;
static size_t bytes, header;

/* A place: in the header mostly. */
static size_t place(size_t length) {
  return number(8) ? 8 + number(header) % (length - 8 ? length - 8 : 1) : number(length);
}

static void splice(size_t* length, size_t at, size_t old, const char* text, size_t new_bytes) {
  if (at + old > *length) old = *length - at;
  memmove(changed + at + new_bytes, changed + at + old, *length - at - old);
  memcpy(changed + at, text, new_bytes);
  *length += new_bytes - old;
}

static size_t mutate(void) {
  static const char* const pieces[] = {"\"", "{", "}", "[", "]", ",", ":", "0", "-1", "18446744073709551616",
      "9223372036854775807", "4611686018427387904", "1e3", "\\u0000", "\\ud800", "\\", "\"dtype\":\"F32\",",
      "\"shape\":[]", "null", "01", " ", "\n",
      "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},", "[[[[[[[[", "\"F4\"", "\xff",
      "\"__metadata__\":{},"};
  size_t length = bytes, times = 1 + number(3);
  memcpy(changed, original, bytes);
  while (times--) {
    const char* piece = pieces[number(sizeof pieces / sizeof *pieces)];
    size_t at;
    if (length < 16) break;
    at = place(length);
    switch (number(9)) {
      case 0: changed[at] ^= (unsigned char)(1u << number(8)); break;
      case 1: changed[at] = (unsigned char)number(256); break;
      case 2: length = number(2) ? at : length - number(4); break;
      case 3: splice(&length, at, 0, piece, strlen(piece)); break;
      case 4: splice(&length, at, strlen(piece), piece, strlen(piece)); break;
      case 5: splice(&length, at, 1 + number(20), "", 0); break;
      case 6: changed[number(8)] = (unsigned char)number(256); break;
      case 7: { /* another digit for a digit */
        size_t i = at;
        while (i < length && (changed[i] < '0' || changed[i] > '9')) ++i;
        if (i < length) changed[i] = (unsigned char)('0' + number(10));
        break;
      }
      default: { /* a piece of the header again, elsewhere; the header's length follows */
        char copy[200];
        const size_t from = place(length), size = number(sizeof copy),
                     most = from + size > length ? length - from : size;
        memcpy(copy, changed + from, most);
        splice(&length, at, 0, copy, most);
        if (number(2)) {
          const uint64_t now = header + most;
          memcpy(changed, &now, 8);
        }
      }
    }
  }
  return length;
}

int main(int count, char** arguments) {
  const smelt_options trusting = {sizeof trusting, 1, SMELT_TRUST_WEIGHTS, "generic", NULL, NULL};
  const smelt_options strict = {sizeof strict, 1, 0, "generic", NULL, NULL};
  long i, accepted = 0, times;
  FILE* file;
  if (count != 3 || !(file = fopen(arguments[1], "rb"))) return 2;
  times = atol(arguments[2]);
  original = (unsigned char*)malloc(100000), changed = (unsigned char*)malloc(200000);
  bytes = fread(original, 1, 100000, file);
  fclose(file);
  memcpy(&header, original, 8);
  for (i = 0; i < times; ++i) {
    const size_t length = i ? mutate() : (memcpy(changed, original, bytes), bytes);
    unsigned char* exact = (unsigned char*)aligned(length); /* so that ASan sees what is read after its end */
    MODEL* model = NULL;
    int code;
    memcpy(exact, changed, length);
    code = model_create_from_memory(exact, length, &trusting, &model);
    CHECK(code == SMELT_OK ? model != NULL : code == SMELT_E_WEIGHTS && !model && model_last_error()[0]);
    if (code == SMELT_OK) {
      call c;
      ++accepted;
      prepare(model, &c, 3);
      CHECK(call_it(model, &c) == SMELT_OK);
      finish(&c);
      model_destroy(model);
      code = model_create_from_memory(exact, length, &strict, &model);
      CHECK((code == SMELT_OK) == (length == bytes && memcmp(exact, original, bytes) == 0));
      model_destroy(model);
    }
    free(exact);
  }
  printf("%ld of %ld accepted\n", accepted, times);
  return 0;
}
