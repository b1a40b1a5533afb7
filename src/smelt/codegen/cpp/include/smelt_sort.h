// smelt_sort.h: rows in order. Keys become unsigned integers of the same order (NaN largest, -0 equal to 0), so one
// routine sorts every type; equal keys keep the order of their positions, descending as well.

namespace smelt {

SMELT_INLINE u32 sort_key(f32 x) {
  u32 bits = same_bits<u32>(x);
  if (x != x) return 0xffffffffu;
  if (x == 0.0f) return 0x80000000u;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
SMELT_INLINE u64 sort_key(f64 x) {
  u64 bits = same_bits<u64>(x);
  if (x != x) return ~u64(0);
  if (x == 0.0) return u64(1) << 63;
  return bits >> 63 ? ~bits : bits | u64(1) << 63;
}
// 16-bit floats: the bits above `infinity` are NaN
SMELT_INLINE u16 sort_half(u16 bits, u16 infinity) {
  u16 size = bits & 0x7fff;
  if (size > infinity) return 0xffff;
  if (size == 0) return 0x8000;
  return bits >> 15 ? u16(~bits) : u16(bits | 0x8000);
}
SMELT_INLINE u16 sort_key(bf16 x) { return sort_half(x.bits, 0x7f80); }
SMELT_INLINE u16 sort_key(f16 x) { return sort_half(x.bits, 0x7c00); }
SMELT_INLINE u8 sort_key(i8 x) { return u8(x) ^ 0x80; }
SMELT_INLINE u16 sort_key(i16 x) { return u16(x) ^ 0x8000; }
SMELT_INLINE u32 sort_key(i32 x) { return u32(x) ^ 0x80000000u; }
SMELT_INLINE u64 sort_key(i64 x) { return u64(x) ^ u64(1) << 63; }
SMELT_INLINE u8 sort_key(u8 x) { return x; }
SMELT_INLINE u8 sort_key(boolean x) { return x.byte; }

template <typename K, typename P>
struct sort_entry {
  K key;
  P at;
  // by key, equal ones by position: a total order, so that sorting is stable
  inline __attribute__((always_inline)) bool before(const sort_entry& other) const {
    return key < other.key || (key == other.key && at < other.at);
  }
};

// Insertion in runs, then merging from one array to the other; `entries` has the result.
template <typename E>
static void sort_by_merging(E* entries, E* room, i64 count) {
  const i64 run = 16;
  for (i64 begin = 0; begin < count; begin += run) {
    i64 end = min_of(begin + run, count);
    for (i64 i = begin + 1; i < end; ++i) {
      E moving = entries[i];
      i64 j = i;
      for (; j > begin && moving.before(entries[j - 1]); --j) entries[j] = entries[j - 1];
      entries[j] = moving;
    }
  }
  E *from = entries, *to = room;
  for (i64 width = run; width < count; width *= 2) {
    for (i64 begin = 0; begin < count; begin += 2 * width) {
      i64 left = begin, middle = min_of(begin + width, count), right = middle, end = min_of(begin + 2 * width, count);
      for (i64 k = begin; k < end; ++k) {
        bool second = left >= middle || (right < end && from[right].before(from[left]));
        to[k] = second ? from[right++] : from[left++];
      }
    }
    E* other = from;
    from = to;
    to = other;
  }
  if (from != entries) __builtin_memcpy(entries, from, count * sizeof(E));
}

// Byte by byte from the lowest, each pass stable; bytes that are equal in all keys are skipped.
template <typename K, typename P>
static void sort_by_bytes(sort_entry<K, P>* entries, sort_entry<K, P>* room, i64 count) {
  const int bytes = sizeof(K);
  i64 counts[sizeof(K)][256];
  __builtin_memset(counts, 0, sizeof(counts));
  for (i64 i = 0; i < count; ++i)
    for (int byte = 0; byte < bytes; ++byte) ++counts[byte][(entries[i].key >> (8 * byte)) & 255];
  sort_entry<K, P>*from = entries, *to = room;
  for (int byte = 0; byte < bytes; ++byte) {
    i64* starts = counts[byte];
    if (starts[(from[0].key >> (8 * byte)) & 255] == count) continue;
    i64 sum = 0;
    for (int value = 0; value < 256; ++value) {
      i64 here = starts[value];
      starts[value] = sum;
      sum += here;
    }
    for (i64 i = 0; i < count; ++i) to[starts[(from[i].key >> (8 * byte)) & 255]++] = from[i];
    sort_entry<K, P>* other = from;
    from = to;
    to = other;
  }
  if (from != entries) __builtin_memcpy(entries, from, count * sizeof(*entries));
}

// Puts the last entry of a heap of `count`, whose largest comes first, or the new one at its top, in its place.
template <typename E>
static void sink(E* heap, i64 count, E moving) {
  i64 hole = 0;
  for (i64 child = 1; child < count; child = 2 * hole + 1) {
    if (child + 1 < count && heap[child].before(heap[child + 1])) ++child;
    if (!moving.before(heap[child])) break;
    heap[hole] = heap[child];
    hole = child;
  }
  heap[hole] = moving;
}

template <typename P, typename T>
static void sort_positions(const T* source, i64 length, i64 limit, bool descending, T* values, i64* positions) {
  typedef decltype(sort_key(source[0])) K;
  typedef sort_entry<K, P> E;
  const K flip = descending ? K(~K(0)) : K(0);
  const bool part = limit < length / 8;
  const i64 kept = part ? limit : length;
  scratch memory(2 * kept * i64(sizeof(E)));
  E *entries = (E*)memory.p, *room = entries + kept;
  if (part) {
    for (i64 i = 0; i < length; ++i) {
      E entry = {K(sort_key(source[i]) ^ flip), P(i)};
      if (i >= limit) {
        if (entry.before(entries[0])) sink(entries, limit, entry);
        continue;
      }
      i64 hole = i;
      for (; hole > 0 && entries[(hole - 1) / 2].before(entry); hole = (hole - 1) / 2)
        entries[hole] = entries[(hole - 1) / 2];
      entries[hole] = entry;
    }
  } else {
    for (i64 i = 0; i < length; ++i) entries[i] = {K(sort_key(source[i]) ^ flip), P(i)};
  }
  if (kept < 200 * i64(sizeof(K)) || part)
    sort_by_merging(entries, room, kept);
  else
    sort_by_bytes(entries, room, kept);
  for (i64 i = 0; i < limit; ++i) {
    if (values) values[i] = source[entries[i].at];
    if (positions) positions[i] = i64(entries[i].at);
  }
}

// The first `limit` of `length` elements in order, and where each stood. Either result may be null.
template <typename T, typename V>
static void sort_row(const T* source, i64 length, i64 limit, bool descending, V* values, i64_buffer* positions) {
  if (limit <= 0) return;
  if (length <= i64(0x7fffffff))
    sort_positions<u32>(source, length, limit, descending, (T*)values, (i64*)positions);
  else
    sort_positions<u64>(source, length, limit, descending, (T*)values, (i64*)positions);
}

}  // namespace smelt
