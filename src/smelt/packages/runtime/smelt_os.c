/* smelt_os.c: what operating systems do differently: files in memory, threads, waiting. Windows; Linux, macOS
 * and other Unixes; and systems of which no more is known than C99 (WASI): files are read, and there are no
 * threads. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* CPU_COUNT, syscall */
#endif
#include "smelt_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

int smelt_os_map(const char* path, smelt_file* file) {
  HANDLE opened = INVALID_HANDLE_VALUE, mapping = NULL;
  LARGE_INTEGER size;
  WCHAR* wide;
  const int length = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, NULL, 0);
  DWORD error = 0;
  file->data = NULL, file->bytes = 0;
  if (length <= 0) return smelt_fail(SMELT_E_WEIGHTS, "the path of the weights is no UTF-8");
  wide = (WCHAR*)malloc((size_t)length * sizeof *wide);
  if (!wide) return smelt_fail(SMELT_E_MEMORY, "no memory");
  MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, length);
  opened = CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ, NULL, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
  free(wide);
  if (opened == INVALID_HANDLE_VALUE || !GetFileSizeEx(opened, &size)) {
    error = GetLastError();
  } else if (size.QuadPart < 8 || (uint64_t)size.QuadPart > (uint64_t)(SIZE_MAX / 2)) {
    CloseHandle(opened);
    return smelt_fail(SMELT_E_WEIGHTS, "%.300s: %lld bytes are no weights", path, (long long)size.QuadPart);
  } else {
    mapping = CreateFileMappingW(opened, NULL, PAGE_READONLY, 0, 0, NULL);
    if (mapping) file->data = MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, 0);
    if (!file->data) error = GetLastError();
    file->bytes = (size_t)size.QuadPart;
  }
  if (mapping) CloseHandle(mapping); /* the view keeps the mapping, and this the file */
  if (opened != INVALID_HANDLE_VALUE) CloseHandle(opened);
  if (!file->data)
    return smelt_fail(SMELT_E_WEIGHTS, "%.300s: Windows' error %lu", path, (unsigned long)error);
  return SMELT_OK;
}

void smelt_os_unmap(smelt_file* file) {
  if (file->data) UnmapViewOfFile(file->data);
}

int32_t smelt_os_processors(void) { return (int32_t)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS); }
int64_t smelt_os_process(void) { return 0; /* there is no fork */ }
int smelt_os_allow_amx(void) { return 0; }

int64_t smelt_os_nanoseconds(void) {
  LARGE_INTEGER count, second;
  QueryPerformanceCounter(&count);
  QueryPerformanceFrequency(&second);
  return (int64_t)((double)count.QuadPart * 1e9 / (double)second.QuadPart);
}

struct smelt_thread {
  void (*run)(void*);
  void* argument;
  HANDLE handle;
};

static DWORD WINAPI begin(LPVOID thread) {
  ((smelt_thread*)thread)->run(((smelt_thread*)thread)->argument);
  return 0;
}

smelt_thread* smelt_os_start(void (*run)(void*), void* argument) {
  smelt_thread* thread = (smelt_thread*)malloc(sizeof *thread);
  if (!thread) return NULL;
  thread->run = run, thread->argument = argument;
  thread->handle = CreateThread(NULL, 4 << 20, begin, thread, STACK_SIZE_PARAM_IS_A_RESERVATION, NULL);
  if (thread->handle) return thread;
  free(thread);
  return NULL;
}

void smelt_os_join(smelt_thread* thread) {
  WaitForSingleObject(thread->handle, INFINITE);
  CloseHandle(thread->handle);
  free(thread);
}

int smelt_os_event(smelt_event* event) {
  memset(event, 0, sizeof *event);
  return 1;
}
void smelt_os_event_end(smelt_event* event) { (void)event; }

void smelt_os_wait(smelt_event* event, uint32_t value) {
  AcquireSRWLockExclusive((PSRWLOCK)&event->lock);
  while (__atomic_load_n(&event->word, __ATOMIC_SEQ_CST) == value)
    SleepConditionVariableSRW((PCONDITION_VARIABLE)&event->changed, (PSRWLOCK)&event->lock, INFINITE, 0);
  ReleaseSRWLockExclusive((PSRWLOCK)&event->lock);
}

void smelt_os_wake(smelt_event* event, int32_t threads) {
  (void)threads;
  AcquireSRWLockExclusive((PSRWLOCK)&event->lock);
  ReleaseSRWLockExclusive((PSRWLOCK)&event->lock);
  WakeAllConditionVariable((PCONDITION_VARIABLE)&event->changed);
}

#elif defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#include <sys/syscall.h>
#endif

int smelt_os_map(const char* path, smelt_file* file) {
  struct stat status;
  void* data;
  /* O_NONBLOCK: a path that is a pipe does not make it wait. */
  const int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  file->data = NULL, file->bytes = 0;
  if (opened < 0) return smelt_fail(SMELT_E_WEIGHTS, "%.300s: %s", path, strerror(errno));
  if (fstat(opened, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size < 8 ||
      (uint64_t)status.st_size > (uint64_t)(SIZE_MAX / 2)) {
    close(opened);
    return smelt_fail(SMELT_E_WEIGHTS, "%.300s is no file of weights", path);
  }
  data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, opened, 0);
  close(opened);
  if (data == MAP_FAILED) return smelt_fail(SMELT_E_WEIGHTS, "%.300s: %s", path, strerror(errno));
  file->data = data, file->bytes = (size_t)status.st_size;
  return SMELT_OK;
}

void smelt_os_unmap(smelt_file* file) {
  if (file->data) munmap((void*)(uintptr_t)file->data, file->bytes);
}

int32_t smelt_os_processors(void) {
  long count;
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
  count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? (int32_t)count : 1;
}

int64_t smelt_os_process(void) { return getpid(); }

int64_t smelt_os_nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Linux saves tiles only of processes that asked for it. */
int smelt_os_allow_amx(void) {
#if defined(__linux__) && defined(__x86_64__)
  const int ask = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, ask, tile_data) == 0;
#else
  return 0;
#endif
}

struct smelt_thread {
  void (*run)(void*);
  void* argument;
  pthread_t handle;
};

static void* begin(void* thread) {
  ((smelt_thread*)thread)->run(((smelt_thread*)thread)->argument);
  return NULL;
}

smelt_thread* smelt_os_start(void (*run)(void*), void* argument) {
  smelt_thread* thread = (smelt_thread*)malloc(sizeof *thread);
  pthread_attr_t attributes;
  sigset_t all, before;
  int error = 1;
  if (!thread) return NULL;
  thread->run = run, thread->argument = argument;
  if (pthread_attr_init(&attributes) == 0) {
    pthread_attr_setstacksize(&attributes, 4 << 20); /* musl's default is 128 KiB */
    sigfillset(&all);                                /* signals are for the program's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&thread->handle, &attributes, begin, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
  }
  if (!error) return thread;
  free(thread);
  return NULL;
}

void smelt_os_join(smelt_thread* thread) {
  pthread_join(thread->handle, NULL);
  free(thread);
}

#ifdef __linux__
int smelt_os_event(smelt_event* event) {
  event->word = 0;
  return 1;
}
void smelt_os_event_end(smelt_event* event) { (void)event; }
#ifndef SYS_futex
#define SYS_futex SYS_futex_time64
#endif
void smelt_os_wait(smelt_event* event, uint32_t value) {
  const int wait_private = 128;
  syscall(SYS_futex, &event->word, wait_private, value, NULL, NULL, 0);
}
void smelt_os_wake(smelt_event* event, int32_t threads) {
  const int wake_private = 129;
  syscall(SYS_futex, &event->word, wake_private, threads, NULL, NULL, 0);
}
#else
int smelt_os_event(smelt_event* event) {
  event->word = 0;
  if (pthread_mutex_init(&event->lock, NULL) != 0) return 0;
  if (pthread_cond_init(&event->changed, NULL) == 0) return 1;
  pthread_mutex_destroy(&event->lock);
  return 0;
}
void smelt_os_event_end(smelt_event* event) {
  pthread_cond_destroy(&event->changed);
  pthread_mutex_destroy(&event->lock);
}
void smelt_os_wait(smelt_event* event, uint32_t value) {
  pthread_mutex_lock(&event->lock);
  while (__atomic_load_n(&event->word, __ATOMIC_SEQ_CST) == value)
    pthread_cond_wait(&event->changed, &event->lock);
  pthread_mutex_unlock(&event->lock);
}
void smelt_os_wake(smelt_event* event, int32_t threads) {
  (void)threads;
  pthread_mutex_lock(&event->lock);
  pthread_cond_broadcast(&event->changed);
  pthread_mutex_unlock(&event->lock);
}
#endif

#else
#include <stdio.h>

int smelt_os_map(const char* path, smelt_file* file) {
  FILE* opened = fopen(path, "rb");
  char *memory = NULL, *data = NULL;
  long bytes = -1;
  file->data = NULL, file->bytes = 0;
  if (!opened) return smelt_fail(SMELT_E_WEIGHTS, "%.300s: %s", path, strerror(errno));
  if (fseek(opened, 0, SEEK_END) == 0) bytes = ftell(opened);
  if (bytes >= 8 && fseek(opened, 0, SEEK_SET) == 0)
    memory = (char*)malloc((size_t)bytes + 2 * SMELT_ALIGNMENT);
  if (memory) {
    data = memory + 2 * SMELT_ALIGNMENT - (uintptr_t)memory % SMELT_ALIGNMENT;
    *(char**)(void*)(data - SMELT_ALIGNMENT) = memory;
    if (fread(data, 1, (size_t)bytes, opened) != (size_t)bytes) {
      free(memory);
      data = NULL;
    }
  }
  fclose(opened);
  if (!data) return smelt_fail(SMELT_E_WEIGHTS, "%.300s is no file of weights, or too large", path);
  file->data = data, file->bytes = (size_t)bytes;
  return SMELT_OK;
}

void smelt_os_unmap(smelt_file* file) {
  if (file->data) free(*(char**)(uintptr_t)((const char*)file->data - SMELT_ALIGNMENT));
}

int32_t smelt_os_processors(void) { return 1; }
int64_t smelt_os_process(void) { return 0; }
int64_t smelt_os_nanoseconds(void) { return 0; }
int smelt_os_allow_amx(void) { return 0; }
smelt_thread* smelt_os_start(void (*run)(void*), void* argument) {
  (void)run, (void)argument;
  return NULL;
}
void smelt_os_join(smelt_thread* thread) { (void)thread; }
int smelt_os_event(smelt_event* event) {
  event->word = 0;
  return 1;
}
void smelt_os_event_end(smelt_event* event) { (void)event; }
void smelt_os_wait(smelt_event* event, uint32_t value) { (void)event, (void)value; }
void smelt_os_wake(smelt_event* event, int32_t threads) { (void)event, (void)threads; }
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
int smelt_os_arm(void) {
  const unsigned long one = getauxval(AT_HWCAP), two = getauxval(26 /* AT_HWCAP2 */);
  return (one & 1ul << 6 ? SMELT_ARM_SHA2 : 0) | (one & 1ul << 20 ? SMELT_ARM_DOTPROD : 0) |
         (one & 1ul << 22 ? SMELT_ARM_SVE : 0) | (two & 1ul << 13 ? SMELT_ARM_I8MM : 0) |
         (two & 1ul << 14 ? SMELT_ARM_BF16 : 0);
}
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
static int says(const char* name, int feature) {
  int value = 0;
  size_t bytes = sizeof value;
  return sysctlbyname(name, &value, &bytes, NULL, 0) == 0 && value ? feature : 0;
}
int smelt_os_arm(void) {
  return says("hw.optional.arm.FEAT_SHA256", SMELT_ARM_SHA2) |
         says("hw.optional.arm.FEAT_DotProd", SMELT_ARM_DOTPROD) |
         says("hw.optional.arm.FEAT_I8MM", SMELT_ARM_I8MM) |
         says("hw.optional.arm.FEAT_BF16", SMELT_ARM_BF16);
}
#else
int smelt_os_arm(void) { return 0; }
#endif
