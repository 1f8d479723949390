// LD_PRELOAD library of the fault tests: a clock that is set, storage that is slow.
//
//   SHIM_CLOCK   file that holds seconds to add to the time of day: int64, read anew at each call
//   SHIM_SLOW    folder below which open, read, fsync and rename take SHIM_SLOW_MS milliseconds more
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static const volatile int64_t* offset;  // null: the clock is right
static const char* slow;
static long slow_ms;

__attribute__((constructor)) static void start(void) {
    const char* path = getenv("SHIM_CLOCK");
    int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        void* page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
        offset = page == MAP_FAILED ? NULL : page;
        close(fd);
    }
    slow = getenv("SHIM_SLOW");
    const char* ms = getenv("SHIM_SLOW_MS");
    slow_ms = ms ? atol(ms) : 0;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
    int status = (int)syscall(SYS_clock_gettime, clock, now);
    if (status == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *offset;
    return status;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
    (void)zone;
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t* result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
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

static mode_t mode_of(int flags, va_list rest) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

#define OPEN(name)                                    \
    int name(const char* path, int flags, ...) {      \
        va_list rest;                                 \
        va_start(rest, flags);                        \
        mode_t mode = mode_of(flags, rest);           \
        va_end(rest);                                 \
        wait_for_path(path);                          \
        return NEXT(name)(path, flags, mode);         \
    }
OPEN(open)
OPEN(open64)

ssize_t read(int fd, void* data, size_t size) {
    wait_for_file(fd);
    return NEXT(read)(fd, data, size);
}

ssize_t pread(int fd, void* data, size_t size, off_t at) {
    wait_for_file(fd);
    return NEXT(pread)(fd, data, size, at);
}

ssize_t pread64(int fd, void* data, size_t size, off64_t at) {
    wait_for_file(fd);
    return NEXT(pread64)(fd, data, size, at);
}

int fsync(int fd) {
    wait_for_file(fd);
    return NEXT(fsync)(fd);
}

int rename(const char* from, const char* to) {
    wait_for_path(from);
    return NEXT(rename)(from, to);
}
