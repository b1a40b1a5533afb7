// smelt_clock.h: how often and how long a piece of a unit runs (`smelt bench --profile`).

extern "C" int clock_gettime(int, long*);

namespace smelt {

struct clock_reading {
  i64* calls_and_nanoseconds;
  i64 begin;

  static i64 now() {
    long time[2];
#ifdef __APPLE__
    clock_gettime(6, time);  // CLOCK_MONOTONIC
#else
    clock_gettime(1, time);
#endif
    return i64(time[0]) * 1000000000 + time[1];
  }

  explicit clock_reading(i64* place) : calls_and_nanoseconds(place), begin(now()) {}

  void stop() {
    i64 taken = now() - begin;
    calls_and_nanoseconds[0] += 1;
    calls_and_nanoseconds[1] += taken;
  }
};

}  // namespace smelt
