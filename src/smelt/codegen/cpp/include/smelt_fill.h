// smelt_fill.h: rows that hold one number, as the zeros around what a convolution reads. After smelt_parallel.h.

namespace smelt {

// A function: compilers take longer for loops, and kernels differ in little more than what is filled behind them.
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
// The same where no parallel loop is around it: the threads share what is much, pieces of it if it is a single row.
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
