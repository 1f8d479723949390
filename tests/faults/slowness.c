// LD_PRELOAD library of the fault tests: storage that is slow.
//
//   SLOW_FOLDER   below it open, read, fsync and rename take SLOW_MS milliseconds more
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

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
