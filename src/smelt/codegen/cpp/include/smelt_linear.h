// smelt_linear.h: linear algebra in float64, of many small or medium matrices; each matrix is one thread's. Matrices
// are row-major and contiguous, and inner loops go along rows. Included after smelt_parallel.h.

namespace smelt {
typedef f64 wide_ __attribute__((vector_size(SMELT_VECTOR_BYTES), aligned(8), may_alias));
constexpr i64 wide_lanes = SMELT_VECTOR_BYTES / 8;
typedef f64_buffer* Row;
constexpr f64 unit_roundoff = 1.1102230246251565e-16;

// y += a * x
static void add_scaled(i64 n, f64 a, const f64_buffer* x, Row y) {
  i64 i = 0;
  for (; i + wide_lanes <= n; i += wide_lanes) *(wide_*)(y + i) += a * *(const wide_*)(x + i);
  for (; i < n; ++i) y[i] += a * x[i];
}
static f64 inner_product(i64 n, const f64_buffer* x, const f64_buffer* y) {
  wide_ sums = {}, others = {};
  i64 i = 0;
  for (; i + 2 * wide_lanes <= n; i += 2 * wide_lanes) {
    sums += *(const wide_*)(x + i) * *(const wide_*)(y + i);
    others += *(const wide_*)(x + i + wide_lanes) * *(const wide_*)(y + i + wide_lanes);
  }
  sums += others;
  f64 total = 0;
  for (i64 k = 0; k < wide_lanes; ++k) total += sums[k];
  for (; i < n; ++i) total += x[i] * y[i];
  return total;
}
// x, y = c * x - s * y, s * x + c * y
static void rotate_rows(i64 n, f64 c, f64 s, Row x, Row y) {
  i64 i = 0;
  for (; i + wide_lanes <= n; i += wide_lanes) {
    const wide_ a = *(wide_*)(x + i), b = *(wide_*)(y + i);
    *(wide_*)(x + i) = c * a - s * b;
    *(wide_*)(y + i) = s * a + c * b;
  }
  for (; i < n; ++i) {
    const f64 a = x[i], b = y[i];
    x[i] = c * a - s * b;
    y[i] = s * a + c * b;
  }
}
static void scale_row(i64 n, f64 a, Row x) {
  for (i64 i = 0; i < n; ++i) x[i] *= a;
}
static void swap_rows(i64 n, Row x, Row y) {
  for (i64 i = 0; i < n; ++i) {
    const f64 other = x[i];
    x[i] = y[i];
    y[i] = other;
  }
}
static void copy_row(i64 n, const f64_buffer* x, Row y) { __builtin_memcpy(y, x, n * sizeof(f64)); }
static void set_identity(i64 rows, i64 columns, Row x) {
  for (i64 i = 0; i < rows; ++i)
    for (i64 j = 0; j < columns; ++j) x[i * columns + j] = i == j;
}
static bool all_finite(i64 n, const f64_buffer* x) {
  for (i64 i = 0; i < n; ++i)
    if (!(x[i] - x[i] == 0)) return false;
  return true;
}
// Euclidean length, without overflow or underflow of squares.
static f64 length_of(i64 n, const f64_buffer* x, i64 step) {
  f64 most = 0, total = 0;
  for (i64 i = 0; i < n; ++i) most = __builtin_fabs(x[i * step]) > most ? __builtin_fabs(x[i * step]) : most;
  if (!(most > 0) || most > 1.7e308) return most;
  for (i64 i = 0; i < n; ++i) total += (x[i * step] / most) * (x[i * step] / most);
  return most * __builtin_sqrt(total);
}
#define SMELT_EACH_MATRIX(count, number, ...)                                        \
  in_parallel(count, SMELT_CHUNK(begin, end) {                                       \
    for (i64 number = begin; number < end; ++number) __VA_ARGS__                      \
  });

// u^T u = a, of which the upper triangle is read; info: the order of the first minor that is not positive, or 0.
static void cholesky_(i64 n, const f64_buffer* a, Row u, i32_buffer* info) {
  *info = 0;
  copy_row(n * n, a, u);
  for (i64 k = 0; k < n; ++k) {
    const Row row = u + k * n;
    for (i64 j = 0; j < k; ++j) row[j] = 0;
    if (*info) continue;
    if (!(row[k] > 0)) {
      *info = i32(k + 1);
      continue;
    }
    row[k] = __builtin_sqrt(row[k]);
    for (i64 i = k + 1; i < n; ++i) row[i] /= row[k];
    for (i64 i = k + 1; i < n; ++i) add_scaled(n - i, -row[i], row + i, u + i * n + i);
  }
}
static void linear_cholesky(i64 count, i64 n, const f64_buffer* a, Row u, i32_buffer* info) {
  SMELT_EACH_MATRIX(count, b, { cholesky_(n, a + b * n * n, u + b * n * n, info + b); })
}

// Elimination with row pivoting; pivots count from 1; order[i]: the row of `a` that has become row i. info: the first
// pivot that is 0, from 1, or 0.
static void lu_(i64 m, i64 n, const f64_buffer* a, Row lu, i32_buffer* pivots, i64_buffer* order, i32_buffer* info) {
  *info = 0;
  copy_row(m * n, a, lu);
  for (i64 i = 0; i < m; ++i) order[i] = i;
  for (i64 k = 0; k < m && k < n; ++k) {
    i64 pivot = k;
    for (i64 i = k + 1; i < m; ++i)
      if (__builtin_fabs(lu[i * n + k]) > __builtin_fabs(lu[pivot * n + k])) pivot = i;
    pivots[k] = i32(pivot + 1);
    if (pivot != k) {
      swap_rows(n, lu + pivot * n, lu + k * n);
      const i64 other = order[k];
      order[k] = order[pivot];
      order[pivot] = other;
    }
    const f64 diagonal = lu[k * n + k];
    if (diagonal == 0) {
      if (!*info) *info = i32(k + 1);
      continue;
    }
    for (i64 i = k + 1; i < m; ++i) {
      const f64 factor = lu[i * n + k] /= diagonal;
      if (factor != 0) add_scaled(n - k - 1, -factor, lu + k * n + k + 1, lu + i * n + k + 1);
    }
  }
}
static void linear_lu(i64 count, i64 m, i64 n, const f64_buffer* a, Row lu, i32_buffer* pivots, i64_buffer* order,
                      i32_buffer* info) {
  const i64 few = m < n ? m : n;
  SMELT_EACH_MATRIX(count, b, {
    lu_(m, n, a + b * m * n, lu + b * m * n, pivots + b * few, order + b * m, info + b);
  })
}
// The order of rows after `few` exchanges.
static void linear_order(i64 count, i64 m, i64 few, const i32_buffer* pivots, i64_buffer* order) {
  for (i64 b = 0; b < count; ++b) {
    i64_buffer* own = order + b * m;
    for (i64 i = 0; i < m; ++i) own[i] = i;
    for (i64 k = 0; k < few; ++k) {
      const i64 pivot = pivots[b * few + k] - 1, other = own[k];
      if (pivot < 0 || pivot >= m) continue;
      own[k] = own[pivot];
      own[pivot] = other;
    }
  }
}

// x = a^-1 b, or of a^T, for a triangular matrix of which the other triangle is not read, nor the diagonal if `unit`.
static void triangular_(i64 n, i64 k, const f64_buffer* a, Row x, bool upper, bool unit, bool transposed) {
  const bool down = upper == transposed;
  for (i64 step = 0; step < n; ++step) {
    const i64 i = down ? step : n - 1 - step;
    if (!unit)
      for (i64 c = 0; c < k; ++c) x[i * k + c] /= a[i * n + i];
    for (i64 j = down ? i + 1 : 0; j < (down ? n : i); ++j)
      add_scaled(k, -(transposed ? a[i * n + j] : a[j * n + i]), x + i * k, x + j * k);
  }
}
static void linear_triangular(i64 count, i64 n, i64 k, i64 upper, i64 unit, const f64_buffer* a, const f64_buffer* b,
                              Row x) {
  SMELT_EACH_MATRIX(count, c, {
    copy_row(n * k, b + c * n * k, x + c * n * k);
    triangular_(n, k, a + c * n * n, x + c * n * k, upper, unit, false);
  })
}
static void linear_lu_solve(i64 count, i64 n, i64 k, i64 transposed, const f64_buffer* lu, const i64_buffer* order,
                            const f64_buffer* b, Row x, Row work) {
  SMELT_EACH_MATRIX(count, c, {
    const Row own = x + c * n * k, rows = work + c * n * k;
    const i64_buffer* places = order + c * n;
    const f64_buffer* factors = lu + c * n * n;
    for (i64 i = 0; i < n; ++i) copy_row(k, b + (c * n + (transposed ? i : places[i])) * k, (transposed ? rows : own) + i * k);
    triangular_(n, k, factors, transposed ? rows : own, transposed, !transposed, transposed);
    triangular_(n, k, factors, transposed ? rows : own, !transposed, transposed, transposed);
    if (transposed)
      for (i64 i = 0; i < n; ++i) copy_row(k, rows + i * k, own + places[i] * k);
  })
}

// A reflector 1 - tau v v^T with v[0] = 1 that maps x to (beta, 0, …); v[1…] and beta replace x. Returns tau.
static f64 reflector(i64 n, Row x, i64 step) {
  const f64 rest = n > 1 ? length_of(n - 1, x + step, step) : 0;
  if (rest == 0) return 0;
  const f64 alpha = x[0], beta = -__builtin_copysign(__builtin_hypot(alpha, rest), alpha);
  for (i64 i = 1; i < n; ++i) x[i * step] /= alpha - beta;
  x[0] = beta;
  return (beta - alpha) / beta;
}
// rows -= tau v (v^T rows), for v with v[0] = 1 and the others `step` apart; `work` has room for a row.
static void reflect_rows(i64 m, i64 n, f64 tau, const f64_buffer* v, i64 step, Row rows, i64 stride, Row work) {
  if (tau == 0 || n <= 0) return;
  copy_row(n, rows, work);
  for (i64 i = 1; i < m; ++i) add_scaled(n, v[i * step], rows + i * stride, work);
  add_scaled(n, -tau, work, rows);
  for (i64 i = 1; i < m; ++i) add_scaled(n, -tau * v[i * step], work, rows + i * stride);
}
// r above the diagonal, reflectors below it, and their tau.
static void linear_householder(i64 count, i64 m, i64 n, const f64_buffer* a, Row packed, Row taus, Row work) {
  const i64 few = m < n ? m : n;
  SMELT_EACH_MATRIX(count, b, {
    const Row x = packed + b * m * n;
    copy_row(m * n, a + b * m * n, x);
    for (i64 k = 0; k < few; ++k) {
      const f64 tau = taus[b * few + k] = reflector(m - k, x + k * n + k, n);
      reflect_rows(m - k, n - k - 1, tau, x + k * n + k, n, x + k * n + k + 1, n, work + b * n);
    }
  })
}
// The first `columns` columns of the product of `few` reflectors.
static void linear_orthogonal(i64 count, i64 m, i64 n, i64 few, i64 columns, const f64_buffer* packed,
                              const f64_buffer* taus, Row q, Row work) {
  SMELT_EACH_MATRIX(count, b, {
    const Row own = q + b * m * columns;
    set_identity(m, columns, own);
    for (i64 k = few - 1; k >= 0; --k) {
      const f64_buffer* v = packed + b * m * n + k * n + k;
      reflect_rows(m - k, columns, taus[b * few + k], v, n, own + k * columns, columns, work + b * columns);
    }
  })
}

// Eigenvalues in ascending order and eigenvectors as rows, of a symmetric matrix, which is overwritten: reflectors make
// it tridiagonal, then QL iterations with implicit shifts. info: 0, or the number of eigenvalues that did not converge.
static void eigh_(i64 n, Row a, Row values, Row vectors, i32_buffer* info, Row off, Row work) {
  *info = !all_finite(n * n, a);
  set_identity(n, n, vectors);
  if (n == 0 || *info) return;
  for (i64 k = 0; k + 2 < n; ++k) {
    const i64 rest = n - k - 1;
    const Row v = a + k * n + k + 1;
    const f64 tau = reflector(rest, v, 1);
    off[k] = v[0];
    v[0] = 1;
    values[k] = tau;
    if (tau == 0) continue;
    for (i64 i = 0; i < rest; ++i) work[i] = tau * inner_product(rest, a + (k + 1 + i) * n + k + 1, v);
    add_scaled(rest, -0.5 * tau * inner_product(rest, work, v), v, work);
    for (i64 i = 0; i < rest; ++i) {
      const Row row = a + (k + 1 + i) * n + k + 1;
      add_scaled(rest, -v[i], work, row);
      add_scaled(rest, -work[i], v, row);
    }
  }
  if (n > 1) off[n - 2] = a[(n - 2) * n + n - 1];
  off[n - 1] = 0;
  for (i64 k = n - 3; k >= 0; --k)
    for (i64 i = k + 1; i < n; ++i) {
      const Row row = vectors + i * n + k + 1;
      add_scaled(n - k - 1, -values[k] * inner_product(n - k - 1, row, a + k * n + k + 1), a + k * n + k + 1, row);
    }
  for (i64 k = 0; k < n; ++k) values[k] = a[k * n + k];
  for (i64 l = 0; l < n; ++l) {
    for (i64 turn = 0;; ++turn) {
      i64 m = l;
      while (m < n - 1 && __builtin_fabs(off[m]) > unit_roundoff * (__builtin_fabs(values[m]) + __builtin_fabs(values[m + 1]))) ++m;
      if (m == l) break;
      if (turn == 60) {
        *info = i32(n - l);
        return;
      }
      const f64 half = (values[l + 1] - values[l]) / (2 * off[l]);
      f64 g = values[m] - values[l] + off[l] / (half + __builtin_copysign(__builtin_hypot(half, 1.0), half));
      f64 s = 1, c = 1, moved = 0;
      i64 i = m - 1;
      for (; i >= l; --i) {
        const f64 f = s * off[i], b = c * off[i], r = __builtin_hypot(f, g);
        off[i + 1] = r;
        if (r == 0) {
          values[i + 1] -= moved;
          off[m] = 0;
          break;
        }
        s = f / r;
        c = g / r;
        g = values[i + 1] - moved;
        const f64 slope = (values[i] - g) * s + 2 * c * b;
        moved = s * slope;
        values[i + 1] = g + moved;
        g = c * slope - b;
        rotate_rows(n, c, s, vectors + i * n, vectors + (i + 1) * n);
      }
      if (i >= l) continue;
      values[l] -= moved;
      off[l] = g;
      off[m] = 0;
    }
  }
  for (i64 i = 0; i < n; ++i) {
    i64 least = i;
    for (i64 j = i + 1; j < n; ++j)
      if (values[j] < values[least]) least = j;
    if (least == i) continue;
    const f64 other = values[i];
    values[i] = values[least];
    values[least] = other;
    swap_rows(n, vectors + i * n, vectors + least * n);
  }
}
static void linear_eigh(i64 count, i64 n, const f64_buffer* a, Row values, Row vectors, i32_buffer* info, Row work) {
  const i64 room = n * n + 2 * n;
  SMELT_EACH_MATRIX(count, b, {
    const Row own = work + b * room;
    copy_row(n * n, a + b * n * n, own);
    eigh_(n, own, values + b * n, vectors + b * n * n, info + b, own + n * n, own + n * n + n);
  })
}

// Rows `from` … `rows` become orthonormal to each other and to those before.
static void complete_rows(i64 from, i64 rows, i64 n, Row x) {
  i64 unit = 0;
  for (i64 k = from; k < rows; ++k) {
    const Row own = x + k * n;
    for (f64 size = 0; size * size * (2 * n) < 1; ++unit) {
      for (i64 i = 0; i < n; ++i) own[i] = i == unit % n;
      for (i64 turn = 0; turn < 2; ++turn)
        for (i64 j = 0; j < k; ++j) add_scaled(n, -inner_product(n, own, x + j * n), x + j * n, own);
      size = length_of(n, own, 1);
      if (size > 0) scale_row(n, 1 / size, own);
    }
  }
}
// a = the sum of values[k] * left[k]^T right[k], where a^T is the n rows of m >= n numbers in `left`: rotations make
// these orthogonal (Jacobi). `rows` of left are made orthonormal.
static void svd_(i64 m, i64 n, i64 rows, Row left, Row values, Row right, i32_buffer* info) {
  *info = !all_finite(m * n, left);
  set_identity(n, n, right);
  if (*info) return;
  f64 most = 0;
  for (i64 i = 0; i < m * n; ++i) most = __builtin_fabs(left[i]) > most ? __builtin_fabs(left[i]) : most;
  const f64 factor = most > 0 ? most : 1;
  for (i64 i = 0; i < m * n; ++i) left[i] /= factor;
  const f64 total = length_of(m * n, left, 1), least = unit_roundoff * total * unit_roundoff * total;
  bool turned = true;
  for (i64 sweep = 0; turned && sweep < 60; ++sweep) {
    turned = false;
    for (i64 k = 0; k < n; ++k) values[k] = inner_product(m, left + k * m, left + k * m);
    for (i64 p = 0; p + 1 < n; ++p)
      for (i64 q = p + 1; q < n; ++q) {
        const Row x = left + p * m, y = left + q * m;
        const f64 a = values[p], b = values[q];
        if (a <= least || b <= least) continue;
        const f64 shared = inner_product(m, x, y);
        if (__builtin_fabs(shared) <= 4 * unit_roundoff * __builtin_sqrt(a) * __builtin_sqrt(b)) continue;
        turned = true;
        const f64 ratio = (b - a) / (2 * shared);
        const f64 t = __builtin_copysign(1.0, ratio) / (__builtin_fabs(ratio) + __builtin_hypot(ratio, 1.0));
        const f64 c = 1 / __builtin_hypot(t, 1.0), s = c * t;
        rotate_rows(m, c, s, x, y);
        rotate_rows(n, c, s, right + p * n, right + q * n);
        values[p] = a - t * shared;
        values[q] = b + t * shared;
      }
  }
  if (turned) *info = i32(n);
  for (i64 k = 0; k < n; ++k) values[k] = length_of(m, left + k * m, 1);
  i64 rank = 0;
  for (i64 i = 0; i < n; ++i) {
    i64 largest = i;
    for (i64 j = i + 1; j < n; ++j)
      if (values[j] > values[largest]) largest = j;
    if (largest != i) {
      const f64 other = values[i];
      values[i] = values[largest];
      values[largest] = other;
      swap_rows(m, left + i * m, left + largest * m);
      swap_rows(n, right + i * n, right + largest * n);
    }
    if (values[i] * values[i] <= least) continue;
    scale_row(m, 1 / values[i], left + i * m);
    rank = i + 1;
  }
  complete_rows(rank, rows, m, left);
  for (i64 k = 0; k < n; ++k) values[k] *= factor;
}
static void linear_svd(i64 count, i64 m, i64 n, i64 rows, const f64_buffer* a, Row left, Row values, Row right,
                       i32_buffer* info) {
  SMELT_EACH_MATRIX(count, b, {
    copy_row(n * m, a + b * n * m, left + b * rows * m);
    svd_(m, n, rows, left + b * rows * m, values + b * n, right + b * n * n, info + b);
  })
}

static void multiply_(i64 n, const f64_buffer* a, const f64_buffer* b, Row c) {
  __builtin_memset(c, 0, n * n * sizeof(f64));
  for (i64 i = 0; i < n; ++i)
    for (i64 k = 0; k < n; ++k) add_scaled(n, a[i * n + k], b + k * n, c + i * n);
}
// exp(a) by the approximation of degree 13 by 13, of a / 2^s with a norm below 5.37, squared s times (Higham 2005).
static void exponential_(i64 n, const f64_buffer* a, Row x, Row work, i64_buffer* order, i32_buffer* pivots) {
  static const f64 b[] = {64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0,
                          129060195264000.0, 10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0,
                          40840800.0, 960960.0, 16380.0, 182.0, 1.0};
  const i64 size = n * n;
  const Row scaled = work, two = work + size, four = two + size, six = four + size, u = six + size, v = u + size;
  f64 norm = 0;
  for (i64 j = 0; j < n; ++j) {
    f64 sum = 0;
    for (i64 i = 0; i < n; ++i) sum += __builtin_fabs(a[i * n + j]);
    norm = sum > norm || sum != sum ? sum : norm;
  }
  i64 squarings = 0;
  for (; norm > 5.371920351148152 && squarings < 1100; ++squarings) norm /= 2;
  copy_row(size, a, scaled);
  for (i64 k = 0; k < squarings; ++k) scale_row(size, 0.5, scaled);
  multiply_(n, scaled, scaled, two);
  multiply_(n, two, two, four);
  multiply_(n, four, two, six);
  for (i64 i = 0; i < size; ++i) x[i] = b[13] * six[i] + b[11] * four[i] + b[9] * two[i];
  multiply_(n, six, x, v);
  for (i64 i = 0; i < size; ++i) v[i] += b[7] * six[i] + b[5] * four[i] + b[3] * two[i] + b[1] * (i % (n + 1) == 0);
  multiply_(n, scaled, v, u);
  for (i64 i = 0; i < size; ++i) x[i] = b[12] * six[i] + b[10] * four[i] + b[8] * two[i];
  multiply_(n, six, x, v);
  for (i64 i = 0; i < size; ++i) v[i] += b[6] * six[i] + b[4] * four[i] + b[2] * two[i] + b[0] * (i % (n + 1) == 0);
  i32 info;
  for (i64 i = 0; i < size; ++i) scaled[i] = v[i] - u[i];
  lu_(n, n, scaled, two, pivots, order, &info);
  for (i64 i = 0; i < n; ++i)
    for (i64 j = 0; j < n; ++j) x[i * n + j] = v[order[i] * n + j] + u[order[i] * n + j];
  triangular_(n, n, two, x, false, true, false);
  triangular_(n, n, two, x, true, false, false);
  for (i64 k = 0; k < squarings; ++k) {
    multiply_(n, x, x, four);
    copy_row(size, four, x);
  }
}
static void linear_exponential(i64 count, i64 n, const f64_buffer* a, Row x, Row work, i64_buffer* order,
                               i32_buffer* pivots) {
  SMELT_EACH_MATRIX(count, b, {
    exponential_(n, a + b * n * n, x + b * n * n, work + b * 6 * n * n, order + b * n, pivots + b * n);
  })
}
}  // namespace smelt
