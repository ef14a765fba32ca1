#include "uring.hpp"

#ifdef DSV41_HAVE_URING

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace dsv41::uring {
namespace {

// The numbers are the same on every architecture; a C library from before 5.1 does not name them.
constexpr long kSetup = 425, kEnter = 426, kRegister = 427;

struct Setup {
  unsigned flags;
  const char* name;
};
// From the best that is known to the plain ring; headers may be older than the kernel.
constexpr Setup kSetups[] = {
#if defined(IORING_SETUP_SINGLE_ISSUER) && defined(IORING_SETUP_DEFER_TASKRUN)
    {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, "single_issuer, defer_taskrun"},  // Linux 6.1
#endif
#if defined(IORING_SETUP_SINGLE_ISSUER) && defined(IORING_SETUP_COOP_TASKRUN)
    {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN, "single_issuer, coop_taskrun"},  // 6.0
#endif
#if defined(IORING_SETUP_COOP_TASKRUN)
    {IORING_SETUP_COOP_TASKRUN, "coop_taskrun"},  // 5.19
#endif
    {0, ""},
};

std::string reason(int error) { return "errno " + std::to_string(error) + ", " + std::strerror(error); }

[[noreturn]] void refuse_ring(const char* what, int error) {
  throw RowError(Kind::unsupported, std::string(what) + " refused: " + reason(error));
}

template <typename T>
T* at(void* base, unsigned offset) {
  return reinterpret_cast<T*>(static_cast<std::uint8_t*>(base) + offset);
}

}  // namespace

Ring::Ring(const File& file, unsigned depth, std::uint8_t* pages) : pages_(pages), file_fd_(file.fd()) {
  try {
    set_up(depth);
    map();
  } catch (...) {
    close();
    throw;
  }
  set_pointers();
  const int fd = file_fd_;
  const iovec memory{pages_, depth * kPageBytes};
  fixed_file_ = try_register(IORING_REGISTER_FILES, &fd, "fixed_file");
  fixed_buffers_ = try_register(IORING_REGISTER_BUFFERS, &memory, "fixed_buffers");
}

void Ring::set_up(unsigned depth) {
  for (const Setup& setup : kSetups) {
    params_ = {};
    params_.flags = setup.flags;
    ring_fd_ = static_cast<int>(::syscall(kSetup, depth, &params_));
    if (ring_fd_ >= 0) {
      if (*setup.name != 0) features_.taken.emplace_back(setup.name);
      return;
    }
    const int error = errno;
    if (error != EINVAL || setup.flags == 0) refuse_ring("io_uring_setup", error);
    features_.refused.push_back(std::string(setup.name) + ": " + reason(error));
  }
}

void Ring::map() {
  if ((params_.features & IORING_FEAT_SINGLE_MMAP) == 0) {
    throw RowError(Kind::unsupported, "the rings of this kernel are older than Linux 5.4");
  }
  rings_bytes_ = std::max<std::size_t>(params_.sq_off.array + params_.sq_entries * sizeof(unsigned),
                                       params_.cq_off.cqes + params_.cq_entries * sizeof(io_uring_cqe));
  entries_bytes_ = params_.sq_entries * sizeof(io_uring_sqe);
  constexpr int kProtection = PROT_READ | PROT_WRITE, kFlags = MAP_SHARED | MAP_POPULATE;
  void* const rings = ::mmap(nullptr, rings_bytes_, kProtection, kFlags, ring_fd_, IORING_OFF_SQ_RING);
  if (rings == MAP_FAILED) refuse_ring("mmap of the ring", errno);
  rings_ = rings;
  void* const entries = ::mmap(nullptr, entries_bytes_, kProtection, kFlags, ring_fd_, IORING_OFF_SQES);
  if (entries == MAP_FAILED) refuse_ring("mmap of the ring", errno);
  entries_ = entries;
}

void Ring::set_pointers() {
  sq_head_ = at<unsigned>(rings_, params_.sq_off.head);
  sq_tail_ = at<unsigned>(rings_, params_.sq_off.tail);
  cq_head_ = at<unsigned>(rings_, params_.cq_off.head);
  cq_tail_ = at<unsigned>(rings_, params_.cq_off.tail);
  sq_mask_ = *at<unsigned>(rings_, params_.sq_off.ring_mask);
  cq_mask_ = *at<unsigned>(rings_, params_.cq_off.ring_mask);
  sqes_ = static_cast<io_uring_sqe*>(entries_);
  cqes_ = at<io_uring_cqe>(rings_, params_.cq_off.cqes);
  auto* const order = at<unsigned>(rings_, params_.sq_off.array);
  for (unsigned i = 0; i < params_.sq_entries; ++i) order[i] = i;
}

// Every registration here is of one item.
bool Ring::try_register(unsigned what, const void* with, const char* name) {
  if (::syscall(kRegister, ring_fd_, what, with, 1) == 0) {
    features_.taken.emplace_back(name);
    return true;
  }
  features_.refused.push_back(std::string(name) + ": " + reason(errno));
  return false;
}

void Ring::read(std::uint32_t slot, std::uint64_t offset) {
  io_uring_sqe& entry = sqes_[tail_ & sq_mask_];
  std::memset(&entry, 0, sizeof entry);
  entry.opcode = fixed_buffers_ ? IORING_OP_READ_FIXED : IORING_OP_READ;
  entry.flags = fixed_file_ ? IOSQE_FIXED_FILE : 0;
  entry.fd = fixed_file_ ? 0 : file_fd_;
  entry.off = offset;
  entry.addr = reinterpret_cast<std::uint64_t>(pages_ + slot * kPageBytes);
  entry.len = kPageBytes;
  entry.user_data = slot;
  store(sq_tail_, ++tail_);
}

long Ring::enter(unsigned least) {
  const long done = ::syscall(kEnter, ring_fd_, unsent(), least, IORING_ENTER_GETEVENTS, nullptr, 0);
  return done >= 0 ? 0 : -errno;
}

void Ring::close() {
  if (entries_ != nullptr) ::munmap(entries_, entries_bytes_);
  if (rings_ != nullptr) ::munmap(rings_, rings_bytes_);
  if (ring_fd_ >= 0) ::close(ring_fd_);
}

}  // namespace dsv41::uring

#endif
