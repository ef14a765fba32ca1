// A preloaded library that makes the disk fail: LD_PRELOAD=libfaults.so FAULT=... FAULT_DIR=/folder program
//
// It touches only files below FAULT_DIR. FAULT is one or more, separated by commas, of
//   eio, short, flip, again, intr, nodata   reads of page FAULT_PAGE (default: any) fail, FAULT_TIMES times (default: always);
//                                     FAULT_FIRST of them (default: none) with EAGAIN, before those
//   nodirect                          open() refuses O_DIRECT, as NFS does
//   noaio                             io_setup is refused, as by a seccomp profile; nosubmit: io_submit is
//   nouring, noenter, noregister      io_uring_setup, _enter or _register is refused
//   noflags                           io_uring_setup knows no flag, as in Linux 5.6
//   nospace, nofallocate              pwrite, or fallocate, finds the disk full from call FAULT_AT on
//   kill, killafter                   SIGKILL before, or after, call number FAULT_AT that changes the folder
// FAULT_COUNT=FILE writes the number of changing calls there at exit.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char* fault = "";
static const char* folder = "";
static long page = -1, at = 0;
static atomic_long first, times, changes, writes;

static long number(const char* name, long fallback) {
  const char* text = getenv(name);
  return text == NULL ? fallback : atol(text);
}

__attribute__((constructor)) static void begin(void) {
  if (getenv("FAULT") != NULL) fault = getenv("FAULT");
  if (getenv("FAULT_DIR") != NULL) folder = getenv("FAULT_DIR");
  page = number("FAULT_PAGE", -1);
  at = number("FAULT_AT", 0);
  first = number("FAULT_FIRST", 0);
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
  if (first-- > 0) return -EAGAIN;
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

// A ring, seen through a mapping of our own. Only its thread enters it.
#define RINGS 1024  // by descriptor
#define SLOTS 4096  // by user_data
struct ring {
  struct io_uring_params params;
  char *rings, *entries;
  unsigned sent, answered;  // up to where the queues were looked at
  struct io_uring_sqe reads[SLOTS];
};
static struct ring* rings[RINGS];

static unsigned at_offset(const char* base, unsigned offset) {
  return __atomic_load_n((const unsigned*)(base + offset), __ATOMIC_ACQUIRE);
}

static void see_ring(long fd, const struct io_uring_params* params) {
  if (fd < 0 || fd >= RINGS) return;
  struct ring* ring = calloc(1, sizeof *ring);
  const size_t size = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe) + 4 * params->sq_entries;
  ring->params = *params;
  ring->rings = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, IORING_OFF_SQ_RING);
  ring->entries = mmap(NULL, params->sq_entries * sizeof(struct io_uring_sqe), PROT_READ, MAP_SHARED, (int)fd, IORING_OFF_SQES);
  rings[fd] = ring;  // never freed: the process is short
}

static void note_reads(struct ring* ring) {
  const unsigned tail = at_offset(ring->rings, ring->params.sq_off.tail);
  for (; ring->sent != tail; ++ring->sent) {
    const struct io_uring_sqe* entry = (const struct io_uring_sqe*)ring->entries + (ring->sent & (ring->params.sq_entries - 1));
    ring->reads[entry->user_data % SLOTS] = *entry;
  }
}

static void spoil_answers(struct ring* ring) {
  const unsigned tail = at_offset(ring->rings, ring->params.cq_off.tail);
  for (; ring->answered != tail; ++ring->answered) {
    struct io_uring_cqe* answer =
        (struct io_uring_cqe*)(ring->rings + ring->params.cq_off.cqes) + (ring->answered & (ring->params.cq_entries - 1));
    const struct io_uring_sqe* read = &ring->reads[answer->user_data % SLOTS];
    answer->res = (int)spoil(answer->res, (unsigned char*)(unsigned long)read->addr, (long)read->len, (long)read->off);
  }
}

static int refused(long call, const long* a) {
  if (call == SYS_io_setup) return is("noaio") ? EPERM : 0;
  if (call == SYS_io_submit) return is("nosubmit") ? EPERM : 0;
  if (call == SYS_io_uring_enter) return is("noenter") ? EPERM : 0;
  if (call == SYS_io_uring_register) return is("noregister") ? EPERM : 0;
  if (call != SYS_io_uring_setup) return 0;
  return is("nouring") ? EPERM : is("noflags") && ((const struct io_uring_params*)a[1])->flags != 0 ? EINVAL : 0;
}

long syscall(long call, ...) {
  long a[6];
  va_list arguments;
  va_start(arguments, call);
  for (int i = 0; i < 6; ++i) a[i] = va_arg(arguments, long);
  va_end(arguments);
  const int error = refused(call, a);
  if (error != 0) {
    errno = error;
    return -1;
  }
  struct ring* const ring = call == SYS_io_uring_enter && a[0] < RINGS ? rings[a[0]] : NULL;
  if (ring != NULL) note_reads(ring);
  const long done = NEXT(syscall)(call, a[0], a[1], a[2], a[3], a[4], a[5]);
  const int error_after = errno;
  if (call == SYS_io_uring_setup) see_ring(done, (const struct io_uring_params*)a[1]);
  if (ring != NULL) spoil_answers(ring);
  errno = error_after;
  if (call == SYS_io_getevents && done > 0) spoil_events((struct io_event*)a[3], done);
  return done;
}
