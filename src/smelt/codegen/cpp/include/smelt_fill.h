// smelt_fill.h: fills of rows with one number, such as the zero halo of a convolution. After smelt_parallel.h.

namespace smelt {

// A function: loops take longer to compile, and kernels often differ only in their fills.
template <class B, class T>
__attribute__((noinline)) static void fill_rows(B* p, i64 rows, i64 step, i64 length, T value) {
  constexpr int lanes = SMELT_VECTOR_BYTES / sizeof(T);
  const auto values = splat<lanes>(value);
  for (i64 row = 0; row < rows; row++, p += step) {
    i64 k = 0;
    for (; k + lanes <= length; k += lanes) store(p + k, values);
    for (; k < length; k++) p[k] = value;
  }
}
// The same without a parallel loop around it: threads share large fills, in pieces if it is a single row.
template <class B, class T>
__attribute__((noinline)) static void fill_all_rows(B* p, i64 rows, i64 step, i64 length, T value) {
  constexpr i64 piece = 8192;
  if (rows * length < 2 * piece) return fill_rows(p, rows, step, length, value);
  if (rows > 1) {
    in_parallel(rows, SMELT_CHUNK(begin, end) { fill_rows(p + begin * step, end - begin, step, length, value); });
  } else {
    in_parallel((length + piece - 1) / piece, SMELT_CHUNK(begin, end) {
      fill_rows(p + begin * piece, 1, 0, min_of(length, end * piece) - begin * piece, value);
    });
  }
}

}  // namespace smelt
