// An io_uring by raw system calls, for reads of single pages by one thread. No liburing, at build time or at run time.
#pragma once

#if defined(__has_include)
#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif
#endif

// Headers older than Linux 5.6 know no IORING_OP_READ (an enumerator; IORING_FEAT_CUR_PERSONALITY came with it).
#if defined(IORING_FEAT_CUR_PERSONALITY)
#define DSV41_HAVE_URING 1

#include <cstdint>
#include <string>
#include <vector>

#include "file.hpp"

namespace dsv41::uring {

// What the kernel took, by name, and what it refused: "fixed_buffers: errno 12, Cannot allocate memory".
struct Features {
  std::vector<std::string> taken;
  std::vector<std::string> refused;
};

// Made, used and destroyed by one thread: the kernel holds a ring with SINGLE_ISSUER to that.
class Ring {
 public:
  // For `depth` reads in flight of `file` into `pages`, depth pages that outlive the ring. Kind::unsupported with the
  // reason when there can be none; a single feature that is refused is left out.
  Ring(const File& file, unsigned depth, std::uint8_t* pages);
  ~Ring() { close(); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Put a read of the page at `offset` into page `slot` of the memory; sent by the next enter().
  void read(std::uint32_t slot, std::uint64_t offset);
  // Send what was put and wait for at least `least` answers. 0, or -errno; then unsent() reads were not begun.
  long enter(unsigned least);
  // Forget the reads that the kernel did not take; calls `each(slot)`.
  template <typename Each>
  void take_back(Each each) {
    while (tail_ != load(sq_head_)) each(static_cast<std::uint32_t>(sqes_[--tail_ & sq_mask_].user_data));
    store(sq_tail_, tail_);
  }
  unsigned unsent() const { return tail_ - load(sq_head_); }
  // Calls `each(slot, result)` for every answer that is there; result as of read(2), or -errno.
  template <typename Each>
  void reap(Each each) {
    unsigned head = *cq_head_;
    for (const unsigned end = load(cq_tail_); head != end;) {
      const io_uring_cqe answer = cqes_[head & cq_mask_];
      store(cq_head_, ++head);
      each(static_cast<std::uint32_t>(answer.user_data), static_cast<long>(answer.res));
    }
  }
  unsigned ready() const { return load(cq_tail_) - *cq_head_; }

  const Features& features() const { return features_; }

 private:
  static unsigned load(const unsigned* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
  static void store(unsigned* at, unsigned value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }

  void set_up(unsigned depth);
  void map();
  void set_pointers();
  bool try_register(unsigned what, const void* with, const char* name);
  void close();

  std::uint8_t* const pages_;
  int file_fd_;
  int ring_fd_ = -1;
  unsigned flags_ = 0;
  bool fixed_file_ = false, fixed_buffers_ = false;
  Features features_;
  io_uring_params params_{};
  void* rings_ = nullptr;
  void* entries_ = nullptr;
  std::size_t rings_bytes_ = 0, entries_bytes_ = 0;
  unsigned *sq_head_ = nullptr, *sq_tail_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
  unsigned sq_mask_ = 0, cq_mask_ = 0;
  unsigned tail_ = 0;
  io_uring_sqe* sqes_ = nullptr;
  io_uring_cqe* cqes_ = nullptr;
};

}  // namespace dsv41::uring

#endif
