// io_uring: one thread owns a ring and keeps many reads in flight. It costs the least processor time per row, and one
// burst after another keeps the disk busy. Large batches are shared with a second thread and ring.
#include "engine.hpp"
#include "uring.hpp"

#ifdef DSV41_HAVE_URING

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <future>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace dsv41 {
namespace uring {
namespace {

#ifdef DSV41_TUNED  // scripts/bench_rings.py measures other values
unsigned tuned(const char* name, unsigned usual) {
  const char* const text = std::getenv(name);
  return text == nullptr ? usual : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}
#else
constexpr unsigned tuned(const char*, unsigned usual) { return usual; }
#endif

constexpr unsigned kDefaultDepth = 128;
// From here on two threads are better than one: CRC and copies of one ring's rows pass while the other's are sent.
constexpr unsigned kSharedRows = 4096;

// Batches of which some reads are not begun yet. Callers push, the threads take; the mutex is held for some ten ns.
class Queue {
 public:
  struct Piece {
    Batch* batch;
    std::size_t next, end;
  };

  void push(Batch& batch, bool shared) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      items_.push_back({&batch, 0, batch.size(), shared});
    }
    work_.notify_one();
    if (shared) shared_work_.notify_one();
  }

  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    work_.notify_one();
    shared_work_.notify_one();
  }

  // Up to `most` reads, in the order of their batches. With `idle`, waits until there are some; none then means the end.
  // `helper`: only of batches that are shared.
  void take(std::vector<Piece>& pieces, std::size_t most, bool idle, bool helper) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (idle) (helper ? shared_work_ : work_).wait(lock, [&] { return stop_ || first(helper) != items_.end(); });
    for (auto item = first(helper); most > 0 && item != items_.end(); item = first(helper)) {
      const std::size_t count = std::min(most, item->end - item->next);
      pieces.push_back({item->batch, item->next, item->next + count});
      item->next += count;
      most -= count;
      if (item->next == item->end) items_.erase(item);
    }
  }

 private:
  struct Item {
    Batch* batch;
    std::size_t next, end;
    bool shared;
  };

  std::deque<Item>::iterator first(bool helper) {
    return std::find_if(items_.begin(), items_.end(), [helper](const Item& item) { return item.shared || !helper; });
  }

  std::mutex mutex_;
  std::condition_variable work_, shared_work_;
  std::deque<Item> items_;
  bool stop_ = false;
};

// A thread with its ring. The constructor returns when the ring has read the header page, or throws what it met.
class Reader {
 public:
  Reader(const File& file, unsigned depth, Queue& queue, bool helper, const std::uint8_t* header_page)
      : file_(file), depth_(depth), queue_(queue), helper_(helper), pages_(allocate_pages(depth * kPageBytes)), slots_(depth) {
    free_.reserve(depth);
    for (std::uint32_t slot = 0; slot < depth; ++slot) free_.push_back(slot);
    std::promise<Features> ready;
    std::future<Features> made = ready.get_future();
    try {
      thread_ = std::thread([this, header_page, &ready] { run(header_page, ready); });
    } catch (const std::system_error& error) {
      throw RowError(Kind::unsupported, std::string("cannot start its thread: ") + error.what());
    }
    try {
      features_ = made.get();
    } catch (...) {
      thread_.join();
      throw;
    }
  }

  ~Reader() { thread_.join(); }  // after Queue::stop()

  const Features& features() const { return features_; }

 private:
  struct Slot {
    Batch* batch = nullptr;
    std::size_t index = 0;
  };

  void run(const std::uint8_t* header_page, std::promise<Features>& ready) {
    std::unique_ptr<Ring> ring;
    try {
      ring = std::make_unique<Ring>(file_, depth_, pages_.get());
      test_read(*ring, header_page);
    } catch (...) {
      ring.reset();
      ready.set_exception(std::current_exception());
      return;
    }
    ready.set_value(ring->features());  // `ready` and `header_page` are gone from here on
    last_cpu_ = thread_cpu();
    while (gather(*ring)) {
      send(*ring);
      reap(*ring);
    }
  }

  void test_read(Ring& ring, const std::uint8_t* header_page) {
    ring.read(0, 0);
    while (ring.ready() == 0) {
      const long failed = ring.enter(1);
      if (failed != 0 && failed != -EINTR) refuse("io_uring_enter", failed);
    }
    long result = 0;
    ring.reap([&result](std::uint32_t, long found) { result = found; });
    if (result != static_cast<long>(kPageBytes)) refuse("the test read", result);
    if (std::memcmp(pages_.get(), header_page, kPageBytes) != 0) {
      throw RowError(Kind::unsupported, "the test read gave other bytes than pread");
    }
  }

  [[noreturn]] static void refuse(const char* what, long result) {
    const int error = static_cast<int>(-result);
    throw RowError(Kind::unsupported, std::string(what) + " refused: " +
                                          (result < 0 ? "errno " + std::to_string(error) + ", " + std::strerror(error)
                                                      : std::to_string(result) + " bytes"));
  }

  // Fill free slots from the queue; with nothing in flight and nothing to do, sleep. False: the end.
  bool gather(Ring& ring) {
    const bool idle = free_.size() == depth_;
    pieces_.clear();
    if (free_.size() >= submit_) queue_.take(pieces_, free_.size(), idle, helper_);
    for (const Queue::Piece& piece : pieces_) {
      for (std::size_t i = piece.next; i < piece.end; ++i) {
        const std::uint32_t slot = free_.back();
        free_.pop_back();
        slots_[slot] = {piece.batch, i};
        ring.read(slot, piece.batch->offset(i));
      }
    }
    return !idle || !pieces_.empty();
  }

  void send(Ring& ring) {
    const auto flying = static_cast<unsigned>(depth_ - free_.size());
    const long failed = ring.enter(std::min(free_.empty() ? wait_full_ : wait_tail_, flying));
    if (failed == 0 || failed == -EINTR) return;
    if (ring.unsent() == 0) return std::this_thread::sleep_for(std::chrono::milliseconds(1));  // it cannot wait: poll
    // The kernel takes no more now: these are read by pread, which complete() does after an error.
    ring.take_back([&](std::uint32_t slot) { finish(slot, failed, 0); });
  }

  void reap(Ring& ring) {
    const unsigned ready = ring.ready();
    if (ready == 0) return;
    const std::uint64_t now = thread_cpu();
    const std::uint64_t share = (now - std::exchange(last_cpu_, now)) / ready;
    ring.reap([&](std::uint32_t slot, long result) { finish(slot, result, share); });
  }

  void finish(std::uint32_t slot, long result, std::uint64_t cpu) {
    Batch& batch = *slots_[slot].batch;
    batch.charge(cpu);
    free_.push_back(slot);
    if (batch.failed()) return batch.skip();
    batch.complete(slots_[slot].index, result, pages_.get() + slot * kPageBytes);
  }

  const File& file_;
  const unsigned depth_;
  Queue& queue_;
  const bool helper_;
  // Answers to wait for. From Linux 6.13 a call of a DEFER_TASKRUN ring ends after 20 answers, or as many as it waits
  // for (IO_LOCAL_TW_DEFAULT_MAX), so a full ring waits for half of its own: a third of the calls, a tenth less
  // processor time. One that is not full waits for the next answer only, since new rows may have come meanwhile.
  const unsigned wait_full_ = tuned("WAIT_FULL", std::max(1u, depth_ / 2)), wait_tail_ = tuned("WAIT_TAIL", 1);
  const unsigned submit_ = std::min(tuned("SUBMIT", 1), depth_);  // free slots from which on it is filled again
  Pages pages_;
  Features features_;
  // Only the thread touches these:
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::vector<Queue::Piece> pieces_;
  std::uint64_t last_cpu_ = 0;
  std::thread thread_;
};

class UringEngine final : public Engine {
 public:
  UringEngine(const File& file, unsigned depth, const std::uint8_t* header_page)
      : file_(file), depth_(depth == 0 ? kDefaultDepth : depth), header_page_(allocate_pages(kPageBytes)) {
    if (!file.direct()) throw RowError(Kind::unsupported, file.refusal());
    std::memcpy(header_page_.get(), header_page, kPageBytes);
    reader_ = std::make_unique<Reader>(file_, depth_, queue_, false, header_page);
  }

  ~UringEngine() override { queue_.stop(); }

  const char* name() const override { return "uring"; }
  std::vector<std::string> features() const override { return reader_->features().taken; }
  std::vector<std::string> refused() const override { return reader_->features().refused; }

  void start(Batch& batch) override {
    const bool shared = batch.size() > shared_rows_;
    if (shared) std::call_once(helped_, [this] { add_helper(); });
    queue_.push(batch, shared);
  }

 private:
  // Made by the first large batch: most processes of tests, and ranks that only decode, never need it.
  void add_helper() {
    try {
      helper_ = std::make_unique<Reader>(file_, depth_, queue_, true, header_page_.get());
    } catch (const RowError&) {
      // One ring reads all of it, more slowly.
    }
  }

  const File& file_;
  const unsigned depth_, shared_rows_ = tuned("SHARED_ROWS", kSharedRows);
  Pages header_page_;
  Queue queue_;
  std::once_flag helped_;
  std::unique_ptr<Reader> reader_, helper_;
};

}  // namespace
}  // namespace uring

std::unique_ptr<Engine> make_uring_engine(const File& file, const EngineOptions& options,
                                          const std::uint8_t* header_page) {
  return std::make_unique<uring::UringEngine>(file, options.depth, header_page);
}

}  // namespace dsv41

#else

namespace dsv41 {

std::unique_ptr<Engine> make_uring_engine(const File&, const EngineOptions&, const std::uint8_t*) {
  throw RowError(Kind::unsupported, "built without linux/io_uring.h of Linux 5.6 or later");
}

}  // namespace dsv41

#endif
