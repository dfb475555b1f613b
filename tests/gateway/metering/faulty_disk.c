/* Stands before the C library's writes and syncs of a process (LD_PRELOAD) and fails those of one folder when it is
   told to. The process tells it by calling `fault_set`. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { WORKS, SYNC_FAILS, FULL };

static volatile int fault = WORKS;
static volatile int syncs_left = 0;
static char folder[512];

/* From now on: syncs fail after `after` more of them, or every write of new data fails. */
void fault_set(int kind, int after, const char *path) {
    snprintf(folder, sizeof folder, "%s", path);
    syncs_left = after;
    fault = kind;
}

static int is_concerned(int fd) {
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

static int sync_fails(int fd) {
    if (fault != SYNC_FAILS || !is_concerned(fd)) return 0;
    if (syncs_left > 0) { syncs_left--; return 0; }
    errno = EIO;
    return 1;
}

static int write_fails(int fd) {
    if (fault != FULL || !is_concerned(fd)) return 0;
    errno = ENOSPC;
    return 1;
}

#define NEXT(name, type) ((type)dlsym(RTLD_NEXT, name))

int fsync(int fd) { return sync_fails(fd) ? -1 : NEXT("fsync", int (*)(int))(fd); }

int fdatasync(int fd) { return sync_fails(fd) ? -1 : NEXT("fdatasync", int (*)(int))(fd); }

ssize_t write(int fd, const void *data, size_t count) {
    return write_fails(fd) ? -1 : NEXT("write", ssize_t (*)(int, const void *, size_t))(fd, data, count);
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t offset) {
    return write_fails(fd) ? -1
                           : NEXT("pwrite", ssize_t (*)(int, const void *, size_t, off_t))(fd, data, count, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t count, off64_t offset) {
    return write_fails(fd) ? -1
                           : NEXT("pwrite64", ssize_t (*)(int, const void *, size_t, off64_t))(fd, data, count, offset);
}
