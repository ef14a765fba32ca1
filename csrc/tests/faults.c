// A preloaded library that makes the disk fail: LD_PRELOAD=libfaults.so FAULT=... FAULT_DIR=/folder program
//
// It touches only files below FAULT_DIR. FAULT is one or more, separated by commas, of
//   eio, short, flip, again, intr, nodata   reads of page FAULT_PAGE (default: any) fail, FAULT_TIMES times (default: always)
//   nodirect                          open() refuses O_DIRECT, as NFS does
//   noaio                             io_setup is refused, as by a seccomp profile; nosubmit: io_submit is
//   nospace, nofallocate              pwrite, or fallocate, finds the disk full from call FAULT_AT on
//   kill, killafter                   SIGKILL before, or after, call number FAULT_AT that changes the folder
// FAULT_COUNT=FILE writes the number of changing calls there at exit.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char* fault = "";
static const char* folder = "";
static long page = -1, at = 0;
static atomic_long times, changes, writes;

static long number(const char* name, long fallback) {
  const char* text = getenv(name);
  return text == NULL ? fallback : atol(text);
}

__attribute__((constructor)) static void begin(void) {
  if (getenv("FAULT") != NULL) fault = getenv("FAULT");
  if (getenv("FAULT_DIR") != NULL) folder = getenv("FAULT_DIR");
  page = number("FAULT_PAGE", -1);
  at = number("FAULT_AT", 0);
  times = number("FAULT_TIMES", 1L << 40);
}

__attribute__((destructor)) static void end(void) {
  const char* path = getenv("FAULT_COUNT");
  FILE* file = path == NULL ? NULL : fopen(path, "w");
  if (file == NULL) return;
  fprintf(file, "%ld\n", (long)changes);
  fclose(file);
}

static int is(const char* name) {
  const size_t length = strlen(name);
  for (const char* word = fault; word != NULL; word = strchr(word, ',')) {
    word += *word == ',';
    if (strncmp(word, name, length) == 0 && (word[length] == 0 || word[length] == ',')) return 1;
  }
  return 0;
}
static int ours(const char* path) { return *folder != 0 && strncmp(path, folder, strlen(folder)) == 0; }

static int ours_fd(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return ours(path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

// Around a call that changes the folder: its place in the order of all.
static long before_change(void) {
  const long number = ++changes;
  if (is("kill") && number == at) raise(SIGKILL);
  return number;
}
static void after_change(long number) {
  if (is("killafter") && number == at) raise(SIGKILL);
}
#define CHANGING(ours_too, call)         \
  do {                                   \
    if (!(ours_too)) return call;        \
    const long number_ = before_change();\
    const __typeof__(call) done_ = call; \
    after_change(number_);               \
    return done_;                        \
  } while (0)

// What a read of `size` bytes at `offset` that gave `result` is turned into.
static long spoil(long result, unsigned char* bytes, long size, long offset) {
  if (size != 4096 || offset < 4096 || (page >= 0 && offset != 4096 * (1 + page))) return result;
  if (!is("eio") && !is("short") && !is("flip") && !is("again") && !is("intr") && !is("nodata")) return result;
  if (times-- <= 0) return result;
  if (is("eio")) return -EIO;
  if (is("nodata")) return -ENODATA;
  if (is("again")) return -EAGAIN;
  if (is("intr")) return -EINTR;
  if (is("short")) return 512;
  for (long i = 0; i < 4096; i += 256) bytes[i] ^= 0x10;  // one bit of every row
  return result;
}

static ssize_t faulty_pread(int fd, void* bytes, size_t size, off_t offset, ssize_t done) {
  if (!ours_fd(fd)) return done;
  const long result = spoil(done < 0 ? -errno : done, bytes, (long)size, offset);
  if (result >= 0) return result;
  errno = (int)-result;
  return -1;
}
ssize_t pread(int fd, void* bytes, size_t size, off_t offset) {
  return faulty_pread(fd, bytes, size, offset, NEXT(pread)(fd, bytes, size, offset));
}
ssize_t pread64(int fd, void* bytes, size_t size, off64_t offset) {
  return faulty_pread(fd, bytes, size, offset, NEXT(pread64)(fd, bytes, size, offset));
}

static ssize_t faulty_pwrite(int fd, const void* bytes, size_t size, off_t offset) {
  if (is("nospace") && ours_fd(fd) && ++writes >= at) {
    errno = ENOSPC;
    return -1;
  }
  CHANGING(ours_fd(fd), NEXT(pwrite)(fd, bytes, size, offset));
}
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t offset) { return faulty_pwrite(fd, bytes, size, offset); }
ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t offset) { return faulty_pwrite(fd, bytes, size, offset); }

int fallocate(int fd, int mode, off_t offset, off_t size) {
  if (is("nofallocate") && ours_fd(fd)) {
    errno = ENOSPC;
    return -1;
  }
  CHANGING(ours_fd(fd), NEXT(fallocate)(fd, mode, offset, size));
}
int fsync(int fd) { CHANGING(ours_fd(fd), NEXT(fsync)(fd)); }
int fdatasync(int fd) { CHANGING(ours_fd(fd), NEXT(fdatasync)(fd)); }
int unlink(const char* path) { CHANGING(ours(path), NEXT(unlink)(path)); }
int rename(const char* from, const char* to) { CHANGING(ours(to), NEXT(rename)(from, to)); }

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (is("nodirect") && (flags & O_DIRECT) != 0 && ours(path)) {
    errno = EINVAL;
    return -1;
  }
  CHANGING(ours(path) && (flags & O_CREAT) != 0, NEXT(open)(path, flags, mode));
}

static void spoil_events(struct io_event* events, long count) {
  for (long i = 0; i < count; ++i) {
    const struct iocb* request = (const struct iocb*)(unsigned long)events[i].obj;
    unsigned char* bytes = (unsigned char*)(unsigned long)request->aio_buf;
    events[i].res = spoil((long)events[i].res, bytes, (long)request->aio_nbytes, (long)request->aio_offset);
  }
}

long syscall(long call, ...) {
  long a[6];
  va_list arguments;
  va_start(arguments, call);
  for (int i = 0; i < 6; ++i) a[i] = va_arg(arguments, long);
  va_end(arguments);
  if ((call == SYS_io_setup && is("noaio")) || (call == SYS_io_submit && is("nosubmit"))) {
    errno = EPERM;
    return -1;
  }
  const long done = NEXT(syscall)(call, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (call == SYS_io_getevents && done > 0) spoil_events((struct io_event*)a[3], done);
  return done;
}
