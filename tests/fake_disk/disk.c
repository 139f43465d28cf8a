/* Simulates a full disk, and records the calls to the disk; for LD_PRELOAD.
 *
 * Only calls for files of the folder $FAKE_DISK are affected.
 *
 *     $FAKE_DISK_CONTROL   Two 64-bit numbers, which a test may change at any time: the number of calls that
 *                          needed space so far (writes and new files), and the first call without space (0: never).
 *                          The first write without space still writes half of its bytes, as on a real disk.
 *     $FAKE_DISK_RECORD    Each call is appended to this file before it is executed: a head, the file's name, the data.
 *                          tests/tools/disk.py computes from the record what a power failure would leave.
 *
 * Build: gcc -shared -fPIC -o disk.so disk.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 1024
#define NAME 128

struct head { int32_t call, name; int64_t offset, length; };
struct control { int64_t calls; int64_t full_from; };

static struct control nothing, *control = &nothing;
static const char *folder;
static size_t folder_length;
static int record = -1;
static char names[FILES][NAME]; /* by descriptor; empty for files outside of the folder */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

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
    if ((path = getenv("FAKE_DISK_RECORD")) && (record = open_plainly(path, O_WRONLY | O_CREAT | O_APPEND)) < 0)
        abort();
}

/* Return the name of a path in the folder, `.` for the folder itself, NULL for any other path. */
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

static void note(char call, const char *name, int64_t offset, int64_t length, const void *data)
{
    struct head head = {.call = call, .name = (int32_t)strlen(name), .offset = offset, .length = length};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)name, strlen(name)}, {(void *)data, data ? length : 0}};
    if (record < 0)
        return;
    pthread_mutex_lock(&lock); /* a single call, so that a killed process leaves complete records */
    if (syscall(SYS_writev, record, parts, 3) < 0)
        abort();
    pthread_mutex_unlock(&lock);
}

/* Return 1 if a call that needs space gets it, -1 for the first call that does not, and 0 for later ones. */
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
    if (name && flags & O_CREAT && access(path, F_OK)) {
        if (has_room() != 1)
            return full();
        note('C', name, 0, 0, NULL);
    }
    if (name && flags & O_TRUNC)
        note('T', name, 0, 0, NULL);
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

/* Return how many of `length` bytes may be written, and record these bytes; -1 for none. */
static ssize_t taken(int file, const void *data, size_t length, off64_t offset)
{
    int room = has_room();
    if (room < 0)
        length /= 2;
    if (!room || !length)
        return full();
    note('W', names[file], offset, (int64_t)length, data);
    return (ssize_t)length;
}

ssize_t pwrite64(int file, const void *data, size_t length, off64_t offset)
{
    ssize_t most = name_at(file) ? taken(file, data, length, offset) : (ssize_t)length;
    return most < 0 ? -1 : (ssize_t)syscall(SYS_pwrite64, file, data, most, offset);
}

ssize_t pwrite(int file, const void *data, size_t length, off_t offset) { return pwrite64(file, data, length, offset); }

ssize_t write(int file, const void *data, size_t length)
{
    ssize_t most = (ssize_t)length;
    if (name_at(file)) {
        struct stat found;
        off64_t offset = lseek(file, 0, SEEK_CUR);
        if (fcntl(file, F_GETFL) & O_APPEND && !fstat(file, &found))
            offset = found.st_size;
        most = taken(file, data, length, offset);
    }
    return most < 0 ? -1 : (ssize_t)syscall(SYS_write, file, data, most);
}

int ftruncate64(int file, off64_t length)
{
    if (name_at(file))
        note('T', names[file], length, 0, NULL);
    return (int)syscall(SYS_ftruncate, file, length);
}

int ftruncate(int file, off_t length) { return ftruncate64(file, length); }

int fsync(int file)
{
    if (name_at(file))
        note('S', names[file], 0, 0, NULL);
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file) { return fsync(file); }

int unlink(const char *path)
{
    if (name_of(path))
        note('U', name_of(path), 0, 0, NULL);
    return (int)syscall(SYS_unlink, path);
}

int rename(const char *from, const char *to)
{
    if (name_of(from) && name_of(to))
        note('R', name_of(from), 0, (int64_t)strlen(name_of(to)), name_of(to));
    return (int)syscall(SYS_rename, from, to);
}
