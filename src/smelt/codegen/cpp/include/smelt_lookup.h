// smelt_lookup.h: tables of 16 values of 32 bits, one in each lane.

namespace smelt {

// The values of the table in the lanes that the lowest 4 bits of the numbers say.
template <class T, bool W> SMELT_INLINE vec<T, 16, W> lookup(vec<T, 16, W> table, vec<i32, 16, W> numbers) {
#if defined(SMELT_AVX512) && !defined(__clang__)
  return {__builtin_shuffle(table.v, numbers.v)};
#elif defined(SMELT_AVX512)
  if constexpr (same<T, f32>) return {__builtin_ia32_permvarsf512(table.v, numbers.v)};
  else return {(raw<T, 16>)__builtin_ia32_permvarsi512((raw<i32, 16>)table.v, numbers.v)};
#else
  T values[16], found[16];
  store(values, table);
  for (int k = 0; k < 16; ++k) found[k] = values[lane(numbers, k) & 15];
  return load<16>(found);
#endif
}

}  // namespace smelt
