/* Preloaded into a build: counts what it does to files and sockets in memory that the campaign shares, and sends
   one signal at one chosen event. The build's own code is untouched; only its C library calls pass through here.

   TRACER_SHARED   file of struct shared
   TRACER_PLAN     "role op count phase signal target", or absent; see tracer.py
   TRACER_CLOCK    "offset jump period" in seconds: CLOCK_REALTIME is offset, and by jump more in every other period
   TRACER_FAIL     "path-part op errno": such a call fails */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PARENT, WORKER, OTHER, ROLES };
enum { WRITE, RECV, RENAME, LINK, UNLINK, SYNC, OPS };
enum { BEFORE, INSIDE, AFTER };

struct shared {
    atomic_long root, fired;
    atomic_long begun[ROLES][OPS], ended[ROLES][OPS];
    long flying[ROLES][OPS]; /* calls under way when the planned signal was sent */
};

static struct shared *shared;
static int role = OTHER;
static int plan_role = -1, plan_op, plan_phase, plan_signal;
static long plan_count;
static char plan_target[16];
static double clock_offset, clock_jump, clock_period;
static char fail_part[64];
static int fail_op = -1, fail_errno;

static void forked(void) {
    if (role == PARENT) role = WORKER;
}

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("TRACER_SHARED"), *text;
    char line[4096] = "";
    if (!path) return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *map = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return;
    fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t got = read(fd, line, sizeof line - 1);
    close(fd);
    for (ssize_t i = 0; i < got; i++)
        if (!line[i]) line[i] = ' ';
    if (strstr(line, "multiprocessing.spawn") || strstr(line, "multiprocessing.forkserver")) role = WORKER;
    else if (strstr(line, "build.py")) role = PARENT;
    if ((text = getenv("TRACER_PLAN")))
        sscanf(text, "%d %d %ld %d %d %15s", &plan_role, &plan_op, &plan_count, &plan_phase, &plan_signal, plan_target);
    if ((text = getenv("TRACER_CLOCK"))) sscanf(text, "%lf %lf %lf", &clock_offset, &clock_jump, &clock_period);
    if ((text = getenv("TRACER_FAIL"))) sscanf(text, "%63s %d %d", fail_part, &fail_op, &fail_errno);
    pthread_atfork(NULL, NULL, forked);
    shared = map;
    if (role == PARENT) shared->root = getpid();
}

static void fire(void) {
    long no = 0;
    if (!atomic_compare_exchange_strong(&shared->fired, &no, 1)) return;
    for (int r = 0; r < ROLES; r++)
        for (int o = 0; o < OPS; o++) shared->flying[r][o] = shared->begun[r][o] - shared->ended[r][o];
    if (!strcmp(plan_target, "group")) kill(-getpgid((pid_t)shared->root), plan_signal);
    else kill(!strcmp(plan_target, "self") ? getpid() : (pid_t)shared->root, plan_signal);
    if (plan_signal == SIGKILL) pause(); /* the sender stops here if the signal went to another process */
}

/* The number of this event if it is the planned one, else 0. */
static int begin(int op) {
    if (!shared) return 0;
    long count = atomic_fetch_add(&shared->begun[role][op], 1) + 1;
    return role == plan_role && op == plan_op && count == plan_count;
}

static void end(int op) {
    if (shared) atomic_fetch_add(&shared->ended[role][op], 1);
}

#define REAL(type, name, ...)                                                                                          \
    static type (*real)(__VA_ARGS__);                                                                                  \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define TRACED(op, call)                                                                                               \
    int planned = begin(op);                                                                                           \
    if (planned && plan_phase != AFTER) fire();                                                                        \
    long result = call;                                                                                                \
    int kept = errno;                                                                                                  \
    if (planned && plan_phase == AFTER) fire();                                                                        \
    end(op);                                                                                                           \
    errno = kept;                                                                                                      \
    return result

static int is_file(int fd) {
    struct stat st;
    return shared && !fstat(fd, &st) && S_ISREG(st.st_mode);
}

static int fails(int op, int fd, const char *path) {
    char name[4096] = "", link[64];
    const char *below = "";
    if (fail_op != op) return 0;
    /* A path below an open folder has the folder's number: /proc/self/fd/7/small.whl. */
    if (path && sscanf(path, "/proc/self/fd/%d", &fd) == 1) below = path + strcspn(path + 14, "/") + 14;
    if (!path || *below) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (readlink(link, name, sizeof name - 1) < 0) return 0;
        strncat(name, below, sizeof name - strlen(name) - 1);
        path = name;
    }
    if (!strstr(path, fail_part)) return 0;
    errno = fail_errno;
    return 1;
}

ssize_t write(int fd, const void *data, size_t count) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (!is_file(fd)) return real(fd, data, count);
    if (fails(WRITE, fd, NULL)) return -1;
    int planned = begin(WRITE);
    size_t half = 0;
    if (planned && plan_phase == INSIDE && count > 1) {
        ssize_t done = real(fd, data, count / 2);
        half = done > 0 ? (size_t)done : 0;
    }
    if (planned && plan_phase != AFTER) fire();
    ssize_t rest = real(fd, (const char *)data + half, count - half);
    int kept = errno;
    if (planned && plan_phase == AFTER) fire();
    end(WRITE);
    errno = kept;
    return rest < 0 ? (half ? (ssize_t)half : rest) : rest + (ssize_t)half;
}

ssize_t recv(int fd, void *data, size_t count, int flags) {
    REAL(ssize_t, recv, int, void *, size_t, int);
    TRACED(RECV, real(fd, data, count, flags));
}

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    if (fails(RENAME, -1, to)) return -1;
    TRACED(RENAME, real(from, to));
}

int link(const char *from, const char *to) {
    REAL(int, link, const char *, const char *);
    if (fails(LINK, -1, to)) return -1;
    TRACED(LINK, real(from, to));
}

int linkat(int a, const char *from, int b, const char *to, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int);
    if (fails(LINK, -1, to)) return -1;
    TRACED(LINK, real(a, from, b, to, flags));
}

int unlink(const char *path) {
    REAL(int, unlink, const char *);
    TRACED(UNLINK, real(path));
}

int fsync(int fd) {
    REAL(int, fsync, int);
    if (fails(SYNC, fd, NULL)) return -1;
    TRACED(SYNC, real(fd));
}

int fdatasync(int fd) {
    REAL(int, fdatasync, int);
    if (fails(SYNC, fd, NULL)) return -1;
    TRACED(SYNC, real(fd));
}

int clock_gettime(clockid_t which, struct timespec *now) {
    REAL(int, clock_gettime, clockid_t, struct timespec *);
    int result = real(which, now);
    if (which == CLOCK_REALTIME && (clock_offset != 0 || clock_period > 0)) {
        struct timespec steady;
        real(CLOCK_MONOTONIC, &steady);
        double shift = clock_offset;
        if (clock_period > 0 && (long)((steady.tv_sec + steady.tv_nsec / 1e9) / clock_period) % 2) shift += clock_jump;
        now->tv_sec += (time_t)shift;
    }
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
