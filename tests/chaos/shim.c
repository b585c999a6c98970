/* LD_PRELOAD: a full disk below one folder and another time of day, without root and for any
 * process, a JVM too. CHAOS_CONTROL names a file of three 64-bit numbers that the harness writes
 * while we run: seconds to add to the time of day, whether the disk is full, and how many writes
 * were refused (counted here). CHAOS_DISK is the folder. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

struct control {
    volatile int64_t clock_s, full, refused;
};
static struct control nothing, *control = &nothing;
static char disk[4096];

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CONTROL"), *folder = getenv("CHAOS_DISK");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *found = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found == MAP_FAILED)
        return;
    if (folder)
        snprintf(disk, sizeof disk, "%s/", folder);
    control = found;
}

#define REAL(type, name) \
    static __typeof__(type) real; \
    if (!real) \
        real = (type)dlsym(RTLD_NEXT, name)

/* Whether a write to this file has to fail. */
static int is_full(int fd) {
    char link[64], path[4096];
    if (!control->full || !disk[0])
        return 0;
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length < 0)
        return 0;
    path[length] = 0;
    if (strncmp(path, disk, strlen(disk)) != 0)
        return 0;
    __atomic_add_fetch(&control->refused, 1, __ATOMIC_RELAXED);
    return 1;
}

/* A disk that fills up takes a part first: every other refusal is half a write. */
static size_t part(size_t count) {
    return control->refused % 2 ? count / 2 : 0;
}

#define REFUSE_OR(half, whole) \
    if (is_full(fd)) { \
        size_t taken = part(count); \
        if (taken) \
            return half; \
        errno = ENOSPC; \
        return -1; \
    } \
    return whole

ssize_t write(int fd, const void *from, size_t count) {
    REAL(ssize_t (*)(int, const void *, size_t), "write");
    REFUSE_OR(real(fd, from, taken), real(fd, from, count));
}

ssize_t pwrite(int fd, const void *from, size_t count, off_t at) {
    REAL(ssize_t (*)(int, const void *, size_t, off_t), "pwrite");
    REFUSE_OR(real(fd, from, taken, at), real(fd, from, count, at));
}

ssize_t pwrite64(int fd, const void *from, size_t count, off64_t at) {
    REAL(ssize_t (*)(int, const void *, size_t, off64_t), "pwrite64");
    REFUSE_OR(real(fd, from, taken, at), real(fd, from, count, at));
}

#define REFUSE(result, code) \
    if (is_full(fd)) { \
        errno = ENOSPC; \
        return result; \
    } \
    return code

ssize_t writev(int fd, const struct iovec *from, int count) {
    REAL(ssize_t (*)(int, const struct iovec *, int), "writev");
    REFUSE(-1, real(fd, from, count));
}

ssize_t pwritev(int fd, const struct iovec *from, int count, off_t at) {
    REAL(ssize_t (*)(int, const struct iovec *, int, off_t), "pwritev");
    REFUSE(-1, real(fd, from, count, at));
}

ssize_t pwritev64(int fd, const struct iovec *from, int count, off64_t at) {
    REAL(ssize_t (*)(int, const struct iovec *, int, off64_t), "pwritev64");
    REFUSE(-1, real(fd, from, count, at));
}

int fallocate(int fd, int mode, off_t at, off_t count) {
    REAL(int (*)(int, int, off_t, off_t), "fallocate");
    REFUSE(-1, real(fd, mode, at, count));
}

int fallocate64(int fd, int mode, off64_t at, off64_t count) {
    REAL(int (*)(int, int, off64_t, off64_t), "fallocate64");
    REFUSE(-1, real(fd, mode, at, count));
}

int posix_fallocate(int fd, off_t at, off_t count) {
    REAL(int (*)(int, off_t, off_t), "posix_fallocate");
    REFUSE(ENOSPC, real(fd, at, count));
}

int posix_fallocate64(int fd, off64_t at, off64_t count) {
    REAL(int (*)(int, off64_t, off64_t), "posix_fallocate64");
    REFUSE(ENOSPC, real(fd, at, count));
}

int clock_gettime(clockid_t id, struct timespec *now) {
    REAL(int (*)(clockid_t, struct timespec *), "clock_gettime");
    int code = real(id, now);
    if (code == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        now->tv_sec += control->clock_s;
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    REAL(int (*)(struct timeval *, void *), "gettimeofday");
    int code = real(now, zone);
    if (code == 0)
        now->tv_sec += control->clock_s;
    return code;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into)
        *into = now.tv_sec;
    return now.tv_sec;
}

/* The kernel's clock stays, so a wait until a time of day is one until our time of day; the
 * monotonic clock doesn't reach a thousand million seconds. */
static struct timespec kernels(const struct timespec *until) {
    struct timespec moved = *until;
    if (moved.tv_sec > 1000000000)
        moved.tv_sec -= control->clock_s;
    return moved;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) /* x86-64 has an older one of the same name, for other structures */
        real = (void *)dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!real)
        real = (void *)dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec moved = kernels(until);
    return real(condition, mutex, &moved);
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex,
                  const struct timespec *restrict until) {
    REAL(int (*)(cnd_t *, mtx_t *, const struct timespec *), "cnd_timedwait");
    struct timespec moved = kernels(until);
    return real(condition, mutex, &moved);
}
