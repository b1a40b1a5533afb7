/* smelt_weights.c: a strict reader of safetensors files. Nothing in a file is believed: each size and offset
 * is checked before it is used, and reading takes memory of a small multiple of the header's bytes. */
#include "smelt_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_HEADER_BYTES = 100000000 }; /* as other readers have it */

typedef struct {
  const char* name; /* decoded, no 0 at its end */
  size_t name_bytes;
  const char* shape; /* the text after [ */
  int64_t begin, end;
  char dtype[16];
} entry;

/* JSON text. After an error `wrong` says what was wrong, and nothing is read any more. */
typedef struct {
  char *at, *end;
  const char* wrong;
} reader;

typedef struct {
  char* text;
  size_t bytes;
} string;

static int refuse(reader* r, const char* wrong) {
  if (!r->wrong) r->wrong = wrong;
  return 0;
}

static void skip_spaces(reader* r) {
  while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r')) ++r->at;
}

/* Whether the next character is c, which is then read. */
static int next_is(reader* r, char c) {
  if (r->wrong) return 0;
  skip_spaces(r);
  if (r->at == r->end || *r->at != c) return 0;
  ++r->at;
  return 1;
}

static int expect(reader* r, char c, const char* wrong) { return next_is(r, c) || refuse(r, wrong); }

static int read_number(reader* r, int64_t* number) {
  const char* begin;
  *number = 0;
  if (r->wrong) return 0;
  skip_spaces(r);
  begin = r->at;
  for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; ++r->at)
    if (__builtin_mul_overflow(*number, 10, number) || __builtin_add_overflow(*number, *r->at - '0', number))
      return refuse(r, "a number is too large");
  if (r->at == begin || (*begin == '0' && r->at - begin > 1))
    return refuse(r, "there is no whole number where one should be");
  return 1;
}

static int read_hex(reader* r, unsigned* code) {
  int i;
  *code = 0;
  if (r->end - r->at < 4) return refuse(r, "a string has a wrong escape");
  for (i = 0; i < 4; ++i) {
    const char c = *r->at++;
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return refuse(r, "a string has a wrong escape");
    *code = *code << 4 | (unsigned)digit;
  }
  return 1;
}

/* Reads \uXXXX, after the u, and writes it as UTF-8, which is never longer. */
static int read_unicode(reader* r, char** to) {
  unsigned code, low;
  if (!read_hex(r, &code)) return 0;
  if (code >= 0xd800 && code < 0xdc00) {
    if (r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u')
      return refuse(r, "a string has half a surrogate pair");
    r->at += 2;
    if (!read_hex(r, &low)) return 0;
    if (low < 0xdc00 || low >= 0xe000) return refuse(r, "a string has half a surrogate pair");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  } else if (code >= 0xdc00 && code < 0xe000) {
    return refuse(r, "a string has half a surrogate pair");
  }
  if (code < 0x80) {
    *(*to)++ = (char)code;
  } else {
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned first[] = {0, 0xc0, 0xe0, 0xf0};
    int i;
    *(*to)++ = (char)(first[more] | code >> 6 * more);
    for (i = more - 1; i >= 0; --i) *(*to)++ = (char)(0x80 | (code >> 6 * i & 0x3f));
  }
  return 1;
}

/* Decodes a string in place. */
static int read_string(reader* r, string* s) {
  char* to;
  if (!expect(r, '"', "there is no string where one should be")) return 0;
  s->text = to = r->at;
  while (r->at < r->end) {
    const char c = *r->at++;
    if (c == '"') {
      s->bytes = (size_t)(to - s->text);
      return 1;
    }
    if ((unsigned char)c < 0x20) return refuse(r, "a string has a control character");
    if (c != '\\') {
      *to++ = c;
      continue;
    }
    if (r->at == r->end) break;
    switch (*r->at++) {
      case '"': *to++ = '"'; break;
      case '\\': *to++ = '\\'; break;
      case '/': *to++ = '/'; break;
      case 'b': *to++ = '\b'; break;
      case 'f': *to++ = '\f'; break;
      case 'n': *to++ = '\n'; break;
      case 'r': *to++ = '\r'; break;
      case 't': *to++ = '\t'; break;
      case 'u':
        if (!read_unicode(r, &to)) return 0;
        break;
      default: return refuse(r, "a string has a wrong escape");
    }
  }
  return refuse(r, "a string has no end");
}

static int is(const string* s, const char* word) {
  return s->bytes == strlen(word) && memcmp(s->text, word, s->bytes) == 0;
}

/* The bits of a dtype's values; 0 for an unknown one. */
static int64_t bits_of(const char* dtype) {
  static const struct {
    const char* dtype;
    int bits;
  } known[] = {{"BOOL", 8}, {"U8", 8}, {"I8", 8}, {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"I16", 16}, {"U16", 16},
      {"F16", 16}, {"BF16", 16}, {"I32", 32}, {"U32", 32}, {"F32", 32}, {"C64", 64}, {"F64", 64}, {"I64", 64},
      {"U64", 64}, {"C128", 128}};
  size_t i;
  for (i = 0; i < sizeof known / sizeof *known; ++i)
    if (strcmp(dtype, known[i].dtype) == 0) return known[i].bits;
  return 0;
}

/* Reads the dimensions after [ and gives their product. */
static int read_shape(reader* r, int64_t* product) {
  int64_t number;
  int none = 0;
  *product = 1;
  if (next_is(r, ']')) return 1;
  do {
    if (!read_number(r, &number)) return 0;
    none |= number == 0;
    if (number > 0 && __builtin_mul_overflow(*product, number, product))
      return refuse(r, "a shape is too large");
  } while (next_is(r, ','));
  if (none) *product = 0;
  return expect(r, ']', "a shape has no end");
}

/* Whether the dimensions that begin at `text` are these. They were read before. */
static int has_shape(const entry* found, char* end, int32_t rank, const int64_t* shape) {
  reader r = {NULL, NULL, NULL};
  int64_t number;
  int32_t i = 0;
  r.at = (char*)(uintptr_t)found->shape, r.end = end;
  if (next_is(&r, ']')) return rank == 0;
  do {
    if (!read_number(&r, &number) || i == rank || shape[i] != number) return 0;
    ++i;
  } while (next_is(&r, ','));
  return i == rank;
}

/* Reads {"dtype": …, "shape": […], "data_offsets": [begin, end]}; the keys in any order. */
static int read_entry(reader* r, entry* e) {
  enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4, ALL = 7 };
  int seen = 0;
  int64_t count = 0, bits, needed;
  string key, value;
  if (!expect(r, '{', "a tensor is no object")) return 0;
  do {
    int what;
    if (!read_string(r, &key) || !expect(r, ':', "a key has no value")) return 0;
    what = is(&key, "dtype") ? DTYPE : is(&key, "shape") ? SHAPE : is(&key, "data_offsets") ? OFFSETS : 0;
    if (!what || seen & what) return refuse(r, "a tensor has an unknown key, or one twice");
    seen |= what;
    if (what == DTYPE) {
      if (!read_string(r, &value)) return 0;
      if (value.bytes >= sizeof e->dtype) return refuse(r, "a dtype is unknown");
      memcpy(e->dtype, value.text, value.bytes);
      e->dtype[value.bytes] = 0;
    } else if (!expect(r, '[', "a shape or a pair of offsets is no array")) {
      return 0;
    } else if (what == SHAPE) {
      e->shape = r->at;
      if (!read_shape(r, &count)) return 0;
    } else if (!read_number(r, &e->begin) || !expect(r, ',', "there are not two offsets") ||
               !read_number(r, &e->end) || !expect(r, ']', "there are not two offsets")) {
      return 0;
    }
  } while (next_is(r, ','));
  if (!expect(r, '}', "a tensor has no end")) return 0;
  if (seen != ALL) return refuse(r, "a tensor lacks its dtype, shape or offsets");
  bits = bits_of(e->dtype);
  if (bits == 0) return refuse(r, "a dtype is unknown");
  if (e->begin > e->end || __builtin_mul_overflow(count, bits / 8, &needed) || e->end - e->begin != needed)
    return refuse(r, "a tensor's offsets do not fit its shape and dtype");
  return 1;
}

static int read_metadata(reader* r) {
  string ignored;
  if (!expect(r, '{', "__metadata__ is no object")) return 0;
  if (next_is(r, '}')) return 1;
  do {
    if (!read_string(r, &ignored) || !expect(r, ':', "a key has no value") || !read_string(r, &ignored))
      return 0;
  } while (next_is(r, ','));
  return expect(r, '}', "__metadata__ has no end");
}

/* A name for messages: short, and nothing that a terminal acts on. */
static const char* shown(const entry* e, char text[64]) {
  size_t i, bytes = e->name_bytes < 60 ? e->name_bytes : 60;
  for (i = 0; i < bytes; ++i)
    text[i] = (unsigned char)e->name[i] < 0x20 || e->name[i] == 0x7f ? '?' : e->name[i];
  if (bytes < e->name_bytes) memcpy(text + bytes, "...", 3), bytes += 3;
  text[bytes] = 0;
  return text;
}

/* Reads all tensors of a header; *entries is the caller's to free. A message if anything is wrong. */
static int read_header(reader* r, entry** entries, size_t* count) {
  const char* begin = r->at;
  size_t room = 0;
  int metadata = 0;
  char name[64];
  entry* last = NULL;
  if (r->at == r->end || *r->at != '{')
    return smelt_fail(SMELT_E_WEIGHTS, "weights: the header does not begin with {");
  ++r->at;
  if (!next_is(r, '}')) {
    do {
      string key;
      last = NULL;
      if (!read_string(r, &key) || !expect(r, ':', "a key has no value")) break;
      if (is(&key, "__metadata__")) {
        if (metadata++) refuse(r, "there are two __metadata__");
        if (!read_metadata(r)) break;
        continue;
      }
      if (*count == room) {
        entry* more = (entry*)realloc(*entries, (room = 2 * room + 64) * sizeof **entries);
        if (!more) return smelt_fail(SMELT_E_MEMORY, "weights: no memory for the header");
        *entries = more;
      }
      last = *entries + *count;
      memset(last, 0, sizeof *last);
      last->name = key.text, last->name_bytes = key.bytes;
      if (!read_entry(r, last)) break;
      ++*count;
    } while (next_is(r, ','));
    last = r->wrong ? last : NULL;
    expect(r, '}', "the header has no end");
  }
  skip_spaces(r);
  if (r->at < r->end) refuse(r, "something follows the header's end");
  if (!r->wrong) return SMELT_OK;
  return smelt_fail(SMELT_E_WEIGHTS, "weights: %s%s%s%s at byte %lld of the header", last ? "tensor '" : "",
      last ? shown(last, name) : "", last ? "': " : "", r->wrong, (long long)(r->at - begin));
}

static int by_name(const void* a, const void* b) {
  const entry *x = (const entry*)a, *y = (const entry*)b;
  const size_t bytes = x->name_bytes < y->name_bytes ? x->name_bytes : y->name_bytes;
  const int order = bytes ? memcmp(x->name, y->name, bytes) : 0;
  return order ? order : (x->name_bytes > y->name_bytes) - (x->name_bytes < y->name_bytes);
}

static int by_place(const void* a, const void* b) {
  const entry *x = (const entry*)a, *y = (const entry*)b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return (x->end > y->end) - (x->end < y->end);
}

/* The format's rule: tensors fill the data, without holes and overlaps. */
static int check_places(entry* entries, size_t count, int64_t data_bytes) {
  int64_t end = 0;
  size_t i;
  char name[64];
  qsort(entries, count, sizeof *entries, by_place);
  for (i = 0; i < count; end = entries[i++].end) {
    const char* wrong = entries[i].end > data_bytes ? "ends after the file"
                        : entries[i].begin < end    ? "overlaps another"
                                                    : NULL;
    if (!wrong && entries[i].begin > end) wrong = "follows a hole";
    if (wrong)
      return smelt_fail(SMELT_E_WEIGHTS, "weights: tensor '%s' (bytes %lld to %lld of %lld) %s",
          shown(entries + i, name), (long long)entries[i].begin, (long long)entries[i].end,
          (long long)data_bytes, wrong);
  }
  if (end < data_bytes)
    return smelt_fail(
        SMELT_E_WEIGHTS, "weights: %lld bytes follow the last tensor", (long long)(data_bytes - end));
  return SMELT_OK;
}

static int find(entry* entries, size_t count, char* header_end, const char* data, const smelt_weight* weight,
    const void** where) {
  entry key;
  const entry* found;
  memset(&key, 0, sizeof key);
  key.name = weight->name, key.name_bytes = strlen(weight->name);
  found = count ? (const entry*)bsearch(&key, entries, count, sizeof key, by_name) : NULL;
  if (!found) return smelt_fail(SMELT_E_WEIGHTS, "weights: tensor '%.200s' is missing", weight->name);
  if (strcmp(found->dtype, weight->dtype) != 0)
    return smelt_fail(SMELT_E_WEIGHTS, "weights: tensor '%.200s' has dtype %s, not %s", weight->name,
        found->dtype, weight->dtype);
  if (!has_shape(found, header_end, weight->rank, weight->shape))
    return smelt_fail(
        SMELT_E_WEIGHTS, "weights: tensor '%.200s' has another shape than the model's", weight->name);
  if (found->begin < found->end && (uintptr_t)(data + found->begin) % SMELT_ALIGNMENT != 0)
    return smelt_fail(SMELT_E_WEIGHTS, "weights: tensor '%.200s' is not aligned to %d bytes", weight->name,
        SMELT_ALIGNMENT);
  *where = data + found->begin;
  return SMELT_OK;
}

int smelt_find_weights(
    const smelt_description* description, const void* file, size_t bytes, const void** where) {
  const unsigned char* first = (const unsigned char*)file;
  uint64_t header_bytes = 0;
  entry* entries = NULL;
  size_t count = 0, i;
  char name[64];
  reader r = {NULL, NULL, NULL};
  char* header;
  int code;
  if (bytes < 8)
    return smelt_fail(SMELT_E_WEIGHTS, "weights: %lld bytes are no safetensors file", (long long)bytes);
  for (i = 0; i < 8; ++i) header_bytes |= (uint64_t)first[i] << 8 * i;
  if (header_bytes > bytes - 8 || header_bytes > MOST_HEADER_BYTES)
    return smelt_fail(SMELT_E_WEIGHTS, "weights: a header of %llu bytes in a file of %llu",
        (unsigned long long)header_bytes, (unsigned long long)bytes);
  header = (char*)malloc((size_t)header_bytes + 1);
  if (!header) return smelt_fail(SMELT_E_MEMORY, "weights: no memory for the header");
  memcpy(header, first + 8, (size_t)header_bytes);
  r.at = header, r.end = header + header_bytes;
  code = read_header(&r, &entries, &count);
  if (code == SMELT_OK) code = check_places(entries, count, (int64_t)(bytes - 8 - (size_t)header_bytes));
  if (code == SMELT_OK && count) {
    qsort(entries, count, sizeof *entries, by_name);
    for (i = 1; i < count && code == SMELT_OK; ++i)
      if (by_name(entries + i - 1, entries + i) == 0)
        code = smelt_fail(SMELT_E_WEIGHTS, "weights: tensor '%s' is there twice", shown(entries + i, name));
  }
  for (i = 0; i < (size_t)description->weight_count && code == SMELT_OK; ++i)
    code = find(
        entries, count, r.end, (const char*)file + 8 + header_bytes, description->weights + i, where + i);
  free(entries);
  free(header);
  return code;
}
