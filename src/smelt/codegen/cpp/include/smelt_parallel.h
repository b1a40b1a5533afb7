// smelt_parallel.h: the iterations of a parallel loop, for threads that are not equally fast. Included after smelt.h.
//
//   in_parallel(count, SMELT_CHUNK(begin, end) {
//     for (i64 iteration = begin; iteration < end; iteration += 1) …
//   });

namespace smelt {
// All iterations of a loop, by all threads. One function has the parallel region of all kernels, and is compiled once,
// not in each file (smelt_team.h): compilers take twice as long for a kernel with its own.
typedef void run_chunk(const void* body, i64 begin, i64 end);
#ifdef SMELT_PACKAGE
SMELT_INLINE void share_out(i64 count, run_chunk* run, const void* body) { smelt_runtime_share(count, run, body); }
#else
void share_out(i64 count, run_chunk* run, const void* body);
#endif

// A body has copies of its outer values, and each chunk a copy of the body: in registers, once all is inline.
#define SMELT_CHUNK(begin, end) [=](i64 begin, i64 end) __attribute__((always_inline))
template <class F> static void run_copy(const void* body, i64 begin, i64 end) {
  const F own = *(const F*)body;
  own(begin, end);
}
template <class F> SMELT_INLINE void in_parallel(i64 count, const F& body) { share_out(count, run_copy<F>, &body); }

// The same for a body that only calls functions: optimizing it costs time and gains nothing.
#define SMELT_CALLS(begin, end) [=](i64 begin, i64 end) SMELT_PLAIN
template <class F> SMELT_PLAIN static void run_plain(const void* body, i64 begin, i64 end) {
  (*(const F*)body)(begin, end);
}
template <class F> SMELT_INLINE void calls_in_parallel(i64 count, const F& body) {
  share_out(count, run_plain<F>, &body);
}
}  // namespace smelt
