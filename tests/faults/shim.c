// LD_PRELOAD library of the fault tests: the n-th file-system call below a folder crashes, writes a
// part, or fails; every call is traced, so that a power loss can be replayed from the trace.
//
//   FAULT_FOLDER    calls with a path below it count, and calls on files opened there
//   FAULT_AT        number of the call that is hit, from 1; 0: none
//   FAULT_MODE      crash, crash-after (the call), half (write half, then crash), short (write half),
//                   once (fail), forever (fail, and all that follow)
//   FAULT_ERRNO     of the failing calls
//   FAULT_COUNTER   file of 8 bytes: the number of calls so far, of all processes that name it
//   FAULT_TRACE     file that gets every call that succeeded
//
// A process may set these for itself by faults_arm(). Reading and looking (stat, readdir) do not count.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MAX_FD = 65536, TRACE_FD = 900 };

static char folder[PATH_MAX];
static size_t folder_length;
static long fault_at;
static char mode[16];
static int fault_errno;
static int trace_fd = -1;
static atomic_long own_counter;
static atomic_long* counter = &own_counter;
static unsigned char watched[MAX_FD];

void faults_arm(const char* below, long at, const char* how, int error, const char* trace) {
  snprintf(folder, sizeof folder, "%s", below);
  snprintf(mode, sizeof mode, "%s", how);
  fault_at = at;
  fault_errno = error;
  atomic_store(&own_counter, 0);
  if (trace && *trace) {
    long fd = syscall(SYS_openat, AT_FDCWD, trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    trace_fd = fcntl((int)fd, F_DUPFD_CLOEXEC, TRACE_FD);
    syscall(SYS_close, fd);
  }
  folder_length = strlen(folder);  // last: from here on calls count
}

long faults_count(void) { return atomic_load(counter); }

void faults_disarm(void) {
  folder_length = 0;
  if (trace_fd >= 0) syscall(SYS_close, trace_fd);
  trace_fd = -1;
}

__attribute__((constructor)) static void start(void) {
  const char *below = getenv("FAULT_FOLDER"), *at = getenv("FAULT_AT");
  const char *how = getenv("FAULT_MODE"), *error = getenv("FAULT_ERRNO");
  const char* shared = getenv("FAULT_COUNTER");
  if (!below) return;
  if (shared) {
    long fd = syscall(SYS_openat, AT_FDCWD, shared, O_RDWR | O_CLOEXEC, 0);
    if (fd >= 0) {
      void* memory = mmap(NULL, sizeof *counter, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
      if (memory != MAP_FAILED) counter = memory;
      syscall(SYS_close, fd);
    }
  }
  faults_arm(below, at ? atol(at) : 0, how ? how : "", error ? atoi(error) : 0,
             getenv("FAULT_TRACE"));
}

static void die(void) {
  syscall(SYS_kill, getpid(), SIGKILL);
  for (;;) pause();
}

static const char* absolute(int at, const char* path, char* buffer) {
  if (!path || path[0] == '/') return path;
  char base[PATH_MAX];
  if (at == AT_FDCWD) {
    if (!getcwd(base, sizeof base)) return path;
  } else {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t length = readlink(link, base, sizeof base - 1);
    if (length < 0) return path;
    base[length] = 0;
  }
  if ((size_t)snprintf(buffer, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return path;
  return buffer;
}

static int below(const char* path) {
  return folder_length && path && strncmp(path, folder, folder_length) == 0 &&
         (path[folder_length] == '/' || path[folder_length] == 0);
}

static int is_watched(int fd) { return folder_length && fd >= 0 && fd < MAX_FD && watched[fd]; }

static void watch(long fd) {
  if (fd >= 0 && fd < MAX_FD) watched[fd] = 1;
}

// Counts a call. Returns its number, or -1 with errno set when it must fail.
static long begin(void) {
  long number = atomic_fetch_add(counter, 1) + 1;
  if (!fault_at || number < fault_at) return number;
  int fails = strcmp(mode, "forever") == 0 || (strcmp(mode, "once") == 0 && number == fault_at);
  if (fails) {
    errno = fault_errno;
    return -1;
  }
  if (number == fault_at && strcmp(mode, "crash") == 0) die();
  return number;
}

static void trace(const char* op, long fd, long at, const char* path, const char* to,
                  const void* data, size_t size) {
  if (trace_fd < 0) return;
  char head[2 * PATH_MAX + 128];
  int length = snprintf(head, sizeof head, "%s\t%ld\t%ld\t%zu\t%s\t%s\n", op, fd, at, size,
                        path ? path : "", to ? to : "");
  struct iovec parts[2] = {{head, (size_t)length}, {(void*)data, size}};
  syscall(SYS_writev, trace_fd, parts, size ? 2 : 1);
}

static long end(long number, long result) {
  if (number == fault_at && strcmp(mode, "crash-after") == 0) die();
  return result;
}

// The bytes of a write that is to be done, which are half of them when the fault hits it.
static size_t bytes(long number, size_t size) {
  int cut = number == fault_at && (strcmp(mode, "half") == 0 || strcmp(mode, "short") == 0);
  return cut ? size / 2 : size;
}

static long wrote(long number, long result, int fd, long at, const void* data) {
  if (result >= 0) trace("write", fd, at, NULL, NULL, data, (size_t)result);
  if (number == fault_at && strcmp(mode, "half") == 0) die();
  return end(number, result);
}

static int open_at(int at, const char* path, int flags, mode_t permissions) {
  char buffer[PATH_MAX];
  const char* whole = absolute(at, path, buffer);
  if (!below(whole)) return (int)syscall(SYS_openat, at, path, flags, permissions);
  long number = begin();
  if (number < 0) return -1;
  long fd = syscall(SYS_openat, at, path, flags, permissions);
  if (fd >= 0) {
    watch(fd);
    trace(flags & O_TRUNC ? "truncate" : flags & O_CREAT ? "create" : "open", fd, 0, whole, NULL,
          NULL, 0);
  }
  return (int)end(number, fd);
}

#define OPEN(name)                                                          \
  int name(const char* path, int flags, ...) {                              \
    va_list rest;                                                           \
    va_start(rest, flags);                                                  \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                                           \
    return open_at(AT_FDCWD, path, flags, mode);                            \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                        \
  int name(int at, const char* path, int flags, ...) {                      \
    va_list rest;                                                           \
    va_start(rest, flags);                                                  \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                                           \
    return open_at(at, path, flags, mode);                                  \
  }
OPENAT(openat)
OPENAT(openat64)

int creat(const char* path, mode_t mode) {
  return open_at(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

ssize_t write(int fd, const void* data, size_t size) {
  if (!is_watched(fd)) return syscall(SYS_write, fd, data, size);
  long number = begin();
  if (number < 0) return -1;
  return wrote(number, syscall(SYS_write, fd, data, bytes(number, size)), fd, -1, data);
}

ssize_t writev(int fd, const struct iovec* parts, int count) {
  if (!is_watched(fd)) return syscall(SYS_writev, fd, parts, count);
  ssize_t total = 0;  // one after the other, so that each is traced
  for (int i = 0; i < count; ++i) {
    ssize_t done = write(fd, parts[i].iov_base, parts[i].iov_len);
    if (done < 0) return total ? total : done;
    total += done;
    if ((size_t)done < parts[i].iov_len) break;
  }
  return total;
}

#define PWRITE(name)                                                                            \
  ssize_t name(int fd, const void* data, size_t size, off_t at) {                               \
    if (!is_watched(fd)) return syscall(SYS_pwrite64, fd, data, size, at);                      \
    long number = begin();                                                                      \
    if (number < 0) return -1;                                                                  \
    return wrote(number, syscall(SYS_pwrite64, fd, data, bytes(number, size), at), fd, at, data); \
  }
PWRITE(pwrite)
PWRITE(pwrite64)

#define ON_FILE(name, signature, system, op, at)           \
  int name signature {                                     \
    if (!is_watched(fd)) return (int)system;               \
    long number = begin();                                 \
    if (number < 0) return -1;                             \
    long result = system;                                  \
    if (result >= 0) trace(op, fd, at, NULL, NULL, "", 0); \
    return (int)end(number, result);                       \
  }
ON_FILE(fsync, (int fd), syscall(SYS_fsync, fd), "fsync", 0)
ON_FILE(fdatasync, (int fd), syscall(SYS_fdatasync, fd), "fsync", 0)
ON_FILE(ftruncate, (int fd, off_t size), syscall(SYS_ftruncate, fd, size), "cut", size)
ON_FILE(ftruncate64, (int fd, off_t size), syscall(SYS_ftruncate, fd, size), "cut", size)

int close(int fd) {
  if (!is_watched(fd)) return (int)syscall(SYS_close, fd);
  long number = begin();
  watched[fd] = 0;
  int error = errno;
  long result = syscall(SYS_close, fd);  // Linux closes a file also where that fails
  trace("close", fd, 0, NULL, NULL, NULL, 0);
  errno = error;
  return number < 0 ? -1 : (int)end(number, result);
}

static long on_paths(const char* op, int from_at, const char* from, int to_at, const char* to,
                     long system, long a, long b, long c, long d, long e) {
  char first[PATH_MAX], second[PATH_MAX];
  const char *path = absolute(from_at, from, first), *other = to ? absolute(to_at, to, second) : "";
  if (!below(path) && !below(other)) return syscall(system, a, b, c, d, e);
  long number = begin();
  if (number < 0) return -1;
  long result = syscall(system, a, b, c, d, e);
  if (result >= 0) trace(op, -1, 0, path, other, NULL, 0);
  return end(number, result);
}

int renameat2(int a, const char* from, int b, const char* to, unsigned flags) {
  return (int)on_paths("rename", a, from, b, to, SYS_renameat2, a, (long)from, b, (long)to, flags);
}
int renameat(int a, const char* from, int b, const char* to) { return renameat2(a, from, b, to, 0); }
int rename(const char* from, const char* to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int linkat(int a, const char* from, int b, const char* to, int flags) {
  return (int)on_paths("link", a, from, b, to, SYS_linkat, a, (long)from, b, (long)to, flags);
}
int link(const char* from, const char* to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int at, const char* path, int flags) {
  return (int)on_paths(flags & AT_REMOVEDIR ? "rmdir" : "unlink", at, path, 0, NULL, SYS_unlinkat,
                       at, (long)path, flags, 0, 0);
}
int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int at, const char* path, mode_t permissions) {
  return (int)on_paths("mkdir", at, path, 0, NULL, SYS_mkdirat, at, (long)path, permissions, 0, 0);
}
int mkdir(const char* path, mode_t permissions) { return mkdirat(AT_FDCWD, path, permissions); }
