// A sick disk: stands between a program (LD_PRELOAD) and the files below one directory, and fails, fills, slows or
// stops it as a control file says. It also stops the program at its n-th write, sync or send, as a power failure would.
//
// The control file is an array of u64, mapped and shared with the test that started the program; see tests/crash/disk.rs.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { FAIL_SYNC, FAIL_READ, FULL, ROOM, RATE, KILL_AT, KILL_COUNT, KILL_WHEN, POWER, WRITES, SYNCS, READS, SENDS, FAILED, FIELDS };
enum { AT_NOTHING, AT_WRITE, AT_SYNC, AT_SEND };
enum { BEFORE, AFTER, TORN };
#define MAX_FDS 65536
#define MAX_FILES 8192

// A file that was written: what a power failure would leave of it.
struct file {
    char path[512];
    off_t synced;
    int log, table;
};

static volatile uint64_t *ctl;
static char dir[512];
static struct file files[MAX_FILES];
static int file_count;
static struct file *fds[MAX_FDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, platter = PTHREAD_MUTEX_INITIALIZER;
static volatile int dead;

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

__attribute__((constructor)) static void start(void) {
    const char *control = getenv("SICK_DISK_CONTROL"), *below = getenv("SICK_DISK_DIR");
    if (!control || !below || strlen(below) >= sizeof dir) return;
    int fd = REAL(open)(control, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *map = mmap(NULL, FIELDS * 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) ctl = map;
    strcpy(dir, below);
}

static int ends(const char *text, const char *with) {
    size_t a = strlen(text), b = strlen(with);
    return a >= b && !strcmp(text + a - b, with);
}

static void halt_if_dead(void) {
    while (dead) pause();
}

static uint64_t count(int field) { return __atomic_add_fetch(&ctl[field], 1, __ATOMIC_SEQ_CST); }

static void opened(int fd, const char *path, int flags) {
    if (!ctl || fd < 0 || fd >= MAX_FDS) return;
    fds[fd] = NULL;
    if (strncmp(path, dir, strlen(dir)) || ends(path, ".key") || ends(path, "LOCK")) return;
    pthread_mutex_lock(&lock);
    struct file *found = NULL;
    for (int i = 0; i < file_count && !found; i++)
        if (!strcmp(files[i].path, path)) found = &files[i];
    if (!found && file_count < MAX_FILES && strlen(path) < sizeof files[0].path) {
        found = &files[file_count++];
        struct stat st;
        strcpy(found->path, path);
        found->synced = fstat(fd, &st) ? 0 : st.st_size;
        found->log = ends(path, ".log");
        found->table = ends(path, ".sst") || ends(path, ".blob");
    } else if (found && (flags & (O_TRUNC | O_CREAT)) && (flags & O_TRUNC)) {
        found->synced = 0;
    }
    fds[fd] = found;
    pthread_mutex_unlock(&lock);
}

static struct file *of(int fd) { return ctl && fd >= 0 && fd < MAX_FDS ? fds[fd] : NULL; }

// The end: nothing goes out any more, and what was never synced may be gone.
static void die(void) {
    if (__atomic_exchange_n(&dead, 1, __ATOMIC_SEQ_CST)) for (;;) pause();
    if (ctl[POWER]) {
        for (int i = 0; i < file_count; i++) {
            struct stat st;
            off_t synced = files[i].synced;
            if (stat(files[i].path, &st) || st.st_size <= synced) continue;
            // 1: all of it is lost; 2: the half of it got to the disk.
            if (ctl[POWER] == 2) synced += (st.st_size - synced) / 2;
            if (truncate(files[i].path, synced)) continue;
        }
    }
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

// Whether this is the call at which the program ends.
static int fatal(int at) { return ctl[KILL_AT] == (uint64_t)at && __atomic_sub_fetch(&ctl[KILL_COUNT], 1, __ATOMIC_SEQ_CST) == 0; }

static void spend(size_t bytes) {
    uint64_t rate = ctl[RATE];
    if (!rate || !bytes) return;
    uint64_t ns = (uint64_t)bytes * 1000000000ull / rate;
    struct timespec time = { ns / 1000000000ull, ns % 1000000000ull };
    pthread_mutex_lock(&platter);
    nanosleep(&time, NULL);
    pthread_mutex_unlock(&platter);
}

// How much of a write fits; -1 when nothing does.
static ssize_t room(size_t wanted) {
    if (!ctl[FULL]) return wanted;
    pthread_mutex_lock(&lock);
    uint64_t left = ctl[ROOM];
    size_t granted = wanted < left ? wanted : left;
    ctl[ROOM] = left - granted;
    pthread_mutex_unlock(&lock);
    if (granted || !wanted) return granted;
    count(FAILED);
    errno = ENOSPC;
    return -1;
}

static int open_any(__typeof__(&open) call, const char *path, int flags, mode_t mode) {
    int fd = call(path, flags, mode);
    opened(fd, path, flags);
    return fd;
}

int open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    mode_t mode = va_arg(list, int);
    va_end(list);
    return open_any(REAL(open), path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    mode_t mode = va_arg(list, int);
    va_end(list);
    return open_any(REAL(open64), path, flags, mode);
}

int close(int fd) {
    if (fd >= 0 && fd < MAX_FDS) fds[fd] = NULL;
    return REAL(close)(fd);
}

static int is_socket(int fd) {
    struct stat st;
    return !fstat(fd, &st) && S_ISSOCK(st.st_mode);
}

static ssize_t sent(int fd, ssize_t (*call)(int, const void *, size_t), const void *bytes, size_t len) {
    count(SENDS);
    int last = fatal(AT_SEND);
    if (last && ctl[KILL_WHEN] == BEFORE) die();
    ssize_t done = call(fd, bytes, last && ctl[KILL_WHEN] == TORN ? len / 2 : len);
    if (last) die();
    return done;
}

ssize_t write(int fd, const void *bytes, size_t len) {
    struct file *file = of(fd);
    if (!ctl) return REAL(write)(fd, bytes, len);
    halt_if_dead();
    if (!file) return ctl[KILL_AT] == AT_SEND && is_socket(fd) ? sent(fd, REAL(write), bytes, len) : REAL(write)(fd, bytes, len);
    count(WRITES);
    ssize_t granted = room(len);
    if (granted < 0) return -1;
    int last = fatal(AT_WRITE);
    if (last && ctl[KILL_WHEN] == BEFORE) die();
    spend(granted);
    ssize_t done = REAL(write)(fd, bytes, last && ctl[KILL_WHEN] == TORN ? len / 2 : (size_t)granted);
    if (last) die();
    return done;
}

ssize_t pwrite(int fd, const void *bytes, size_t len, off_t at) {
    if (!of(fd)) return REAL(pwrite)(fd, bytes, len, at);
    halt_if_dead();
    count(WRITES);
    ssize_t granted = room(len);
    if (granted < 0) return -1;
    int last = fatal(AT_WRITE);
    if (last && ctl[KILL_WHEN] == BEFORE) die();
    spend(granted);
    ssize_t done = REAL(pwrite)(fd, bytes, granted, at);
    if (last) die();
    return done;
}

ssize_t pread(int fd, void *bytes, size_t len, off_t at) {
    struct file *file = of(fd);
    if (!file) return REAL(pread)(fd, bytes, len, at);
    count(READS);
    if (file->table && ctl[FAIL_READ]) {
        count(FAILED);
        errno = EIO;
        return -1;
    }
    spend(len);
    return REAL(pread)(fd, bytes, len, at);
}

static int synced(int fd, int (*call)(int)) {
    struct file *file = of(fd);
    if (!file) return call(fd);
    halt_if_dead();
    count(SYNCS);
    if (file->log && ctl[FAIL_SYNC]) {
        ctl[FAIL_SYNC]--;
        count(FAILED);
        errno = EIO;
        return -1;
    }
    int last = fatal(AT_SYNC);
    if (last && ctl[KILL_WHEN] == BEFORE) die();
    struct stat st;
    // What is written meanwhile need not be covered.
    off_t size = fstat(fd, &st) ? 0 : st.st_size;
    int done = call(fd);
    if (!done && size > file->synced) file->synced = size;
    if (last) die();
    // What comes after a sync, such as the removal of old files, does not come after the end.
    halt_if_dead();
    return done;
}

int unlink(const char *path) {
    halt_if_dead();
    return REAL(unlink)(path);
}

int rename(const char *from, const char *to) {
    halt_if_dead();
    return REAL(rename)(from, to);
}

int fsync(int fd) { return synced(fd, REAL(fsync)); }
int fdatasync(int fd) { return synced(fd, REAL(fdatasync)); }

int fallocate(int fd, int mode, off_t at, off_t len) {
    // RocksDB allocates ahead and counts on nothing; here it only would hide where a file ends.
    if (of(fd)) { errno = EOPNOTSUPP; return -1; }
    return REAL(fallocate)(fd, mode, at, len);
}

ssize_t send(int fd, const void *bytes, size_t len, int flags) {
    if (!ctl) return REAL(send)(fd, bytes, len, flags);
    halt_if_dead();
    count(SENDS);
    int last = fatal(AT_SEND);
    if (last && ctl[KILL_WHEN] == BEFORE) die();
    ssize_t done = REAL(send)(fd, bytes, last && ctl[KILL_WHEN] == TORN ? len / 2 : len, flags);
    if (last) die();
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int n) {
    if (!ctl) return REAL(writev)(fd, parts, n);
    halt_if_dead();
    if (!of(fd) && ctl[KILL_AT] == AT_SEND && is_socket(fd)) {
        count(SENDS);
        int last = fatal(AT_SEND);
        if (last && ctl[KILL_WHEN] == BEFORE) die();
        ssize_t done = REAL(writev)(fd, parts, n);
        if (last) die();
        return done;
    }
    return REAL(writev)(fd, parts, n);
}
