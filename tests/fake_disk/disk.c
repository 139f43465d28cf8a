/* A disk that is full when a test says so: for LD_PRELOAD.
 *
 * It sees what a process does with the files of the folder $FAKE_DISK, and lets everything else alone.
 *
 *     $FAKE_DISK_CONTROL   a file of two 64-bit numbers, which a test may change at any time: how many calls needed room
 *                          so far (writes, and files that were made), and from which of them on there is none (0: never).
 *                          The first write without room still gets half of its bytes in, as on a real disk.
 *
 * Build: gcc -shared -fPIC -o disk.so disk.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FILES 1024
#define NAME 128

struct control { int64_t calls; int64_t full_from; };

static struct control nothing, *control = &nothing;
static const char *folder;
static size_t folder_length;
static char names[FILES][NAME]; /* by descriptor; empty where it is none of ours */

static int open_plainly(const char *path, int flags)
{
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0600);
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("FAKE_DISK_CONTROL");
    int file;
    folder = getenv("FAKE_DISK");
    folder_length = folder ? strlen(folder) : 0;
    if (path && (file = open_plainly(path, O_RDWR)) >= 0) {
        void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped == MAP_FAILED)
            abort();
        control = mapped;
        syscall(SYS_close, file);
    }
}

/* The name of a path in the folder, `.` for the folder itself; NULL for any other. */
static const char *name_of(const char *path)
{
    if (!folder || strncmp(path, folder, folder_length))
        return NULL;
    if (!path[folder_length])
        return ".";
    return path[folder_length] == '/' ? path + folder_length + 1 : NULL;
}

static const char *name_at(int file)
{
    return file >= 0 && file < FILES && names[file][0] ? names[file] : NULL;
}

/* Whether a call that needs room gets it: 1, 0 for no, -1 for the first one that does not. */
static int has_room(void)
{
    int64_t call = __atomic_add_fetch(&control->calls, 1, __ATOMIC_SEQ_CST), from = control->full_from;
    return !from || call < from ? 1 : call == from ? -1 : 0;
}

static int full(void)
{
    errno = ENOSPC;
    return -1;
}

static int opened(int file, const char *name)
{
    if (file >= 0 && file < FILES)
        snprintf(names[file], NAME, "%s", name ? name : "");
    return file;
}

static int open_it(int from, const char *path, int flags, mode_t mode)
{
    const char *name = name_of(path);
    if (name && flags & O_CREAT && access(path, F_OK) && has_room() != 1)
        return full();
    return opened((int)syscall(SYS_openat, from, path, flags, mode), name);
}

#define MODE(flags, mode)                          \
    mode_t mode = 0;                               \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {       \
        va_list rest;                              \
        va_start(rest, flags);                     \
        mode = va_arg(rest, mode_t);               \
        va_end(rest);                              \
    }

int open(const char *path, int flags, ...) { MODE(flags, mode) return open_it(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags, mode) return open_it(AT_FDCWD, path, flags, mode); }
int openat(int from, const char *path, int flags, ...) { MODE(flags, mode) return open_it(from, path, flags, mode); }
int openat64(int from, const char *path, int flags, ...) { MODE(flags, mode) return open_it(from, path, flags, mode); }

int close(int file)
{
    opened(file, NULL);
    return (int)syscall(SYS_close, file);
}

/* How many of `length` bytes have room: -1 for none. */
static ssize_t taken(size_t length)
{
    int room = has_room();
    if (room < 0)
        length /= 2;
    if (!room || !length)
        return full();
    return (ssize_t)length;
}

ssize_t pwrite64(int file, const void *data, size_t length, off64_t offset)
{
    ssize_t most = name_at(file) ? taken(length) : (ssize_t)length;
    return most < 0 ? -1 : (ssize_t)syscall(SYS_pwrite64, file, data, most, offset);
}

ssize_t pwrite(int file, const void *data, size_t length, off_t offset) { return pwrite64(file, data, length, offset); }

ssize_t write(int file, const void *data, size_t length)
{
    ssize_t most = name_at(file) ? taken(length) : (ssize_t)length;
    return most < 0 ? -1 : (ssize_t)syscall(SYS_write, file, data, most);
}
