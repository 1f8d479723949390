// LD_PRELOAD library of the fault tests: storage that is slow.
//
//   SLOW_FOLDER   below it open, pread, fsync and rename take SLOW_MS milliseconds more
//
// System calls and not the next library's functions: Ray's allocator calls some of these before
// they can be looked up.
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char* slow;
static long slow_ms;

__attribute__((constructor)) static void start(void) {
  const char* ms = getenv("SLOW_MS");
  slow = getenv("SLOW_FOLDER");
  slow_ms = ms ? atol(ms) : 0;
}

static void wait_for_path(const char* path) {
  if (slow && path && strncmp(path, slow, strlen(slow)) == 0) usleep((useconds_t)slow_ms * 1000);
}

static void wait_for_file(int fd) {
  if (!slow) return;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return;
  path[length] = 0;
  wait_for_path(path);
}

#define OPEN(name)                                                          \
  int name(const char* path, int flags, ...) {                              \
    va_list rest;                                                           \
    va_start(rest, flags);                                                  \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                                           \
    wait_for_path(path);                                                    \
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);           \
  }
OPEN(open)
OPEN(open64)

#define PREAD(name)                                         \
  ssize_t name(int fd, void* data, size_t size, off_t at) { \
    wait_for_file(fd);                                      \
    return syscall(SYS_pread64, fd, data, size, at);        \
  }
PREAD(pread)
PREAD(pread64)

int fsync(int fd) {
  wait_for_file(fd);
  return (int)syscall(SYS_fsync, fd);
}

int rename(const char* from, const char* to) {
  wait_for_path(from);
  return (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
}
