// smelt_team.h: how threads share the iterations of smelt_parallel.h, which it follows. A program has it once.
//
// Each thread has a range of its own, as with a static schedule: the same one in the next loop of as many
// iterations, so what it left in its cache it finds. It takes chunks from the front, a quarter of what is left; when
// nothing is, it takes from the back of others' ranges ("work stealing"). Which thread does an iteration changes no
// number. Whether all threads of the team come does not matter either: others do what is theirs.

#ifndef SMELT_PACKAGE
namespace smelt {
#ifdef _OPENMP
extern "C" int omp_get_max_threads();
extern "C" int omp_get_thread_num();
#else
static inline int omp_get_max_threads() { return 1; }
static inline int omp_get_thread_num() { return 0; }
#endif

struct Iterations {
  static constexpr int most_ranges = 256;  // with more threads, the rest only steals
  // First and last + 1, of 32 bits each, so that one instruction changes both; in units of `unit` iterations.
  struct alignas(64) Range { u64 ends; } ranges[most_ranges];
  i64 count, unit;
  int threads;

  explicit Iterations(i64 iterations) : count(iterations), unit((iterations >> 31) + 1) {
    const int all = omp_get_max_threads();
    threads = all < most_ranges ? all : most_ranges;
    const u64 units = count > 0 ? u64(count + unit - 1) / u64(unit) : 0;
    u64 begin = 0;
    for (int thread = 0; thread < threads; ++thread) {
      const u64 end = begin + units / threads + (u64(thread) < units % threads);
      ranges[thread].ends = begin | end << 32;
      begin = end;
    }
  }
};

struct Chunk {
  Iterations& of;
  int thread, victim = 0;  // the range it takes from is victim places after its own
  i64 begin = 0, end = 0;

  explicit Chunk(Iterations& iterations) : of(iterations), thread(omp_get_thread_num()) {}

  // Whether there is another chunk.
  bool next() {
    for (; victim < of.threads; ++victim) {
      u64* range = &of.ranges[(thread + victim) % of.threads].ends;
      u64 ends = __atomic_load_n(range, __ATOMIC_RELAXED);
      while (u64 left = (ends >> 32) - (ends & 0xffffffff)) {
        const u64 size = of.threads == 1 ? left : (left + 3) / 4;
        const u64 rest = victim ? ends - (size << 32) : ends + size;
        if (!__atomic_compare_exchange_n(range, &ends, rest, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) continue;
        const u64 first = victim ? rest >> 32 : ends & 0xffffffff;
        begin = i64(first) * of.unit;
        end = i64(first + size) * of.unit;
        if (end > of.count) end = of.count;
        return true;
      }
    }
    return false;
  }
};

// Weak: a file that could not know that another one has it may have it too.
__attribute__((noinline, weak)) void share_out(i64 count, run_chunk* run, const void* body) {
  Iterations iterations(count);
#pragma omp parallel
  for (Chunk chunk(iterations); chunk.next();) run(body, chunk.begin, chunk.end);
}
}  // namespace smelt
#endif
