// Kernel AIO (io_setup, io_submit, io_getevents) by raw system calls: one thread keeps many reads in flight. Container
// runtimes whose default seccomp profile blocks io_uring still allow these calls. Only O_DIRECT reads are asynchronous.
#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "engine.hpp"

namespace dsv41 {
namespace {

constexpr unsigned kDefaultDepth = 128;
constexpr unsigned kLeastDepth = 8;

long setup(unsigned depth, aio_context_t* context) {
  *context = 0;
  return ::syscall(SYS_io_setup, depth, context) == 0 ? 0 : -errno;
}
long submit(aio_context_t context, long count, iocb** requests) {
  const long done = ::syscall(SYS_io_submit, context, count, requests);
  return done >= 0 ? done : -errno;
}
long events(aio_context_t context, long least, long most, io_event* found) {
  const long done = ::syscall(SYS_io_getevents, context, least, most, found, nullptr);
  return done >= 0 ? done : -errno;
}

[[noreturn]] void refuse(const char* what, long error) {
  throw RowError(Kind::unsupported, std::string(what) + " refused: errno " + std::to_string(-error) + ", " +
                                        std::strerror(static_cast<int>(-error)));
}

class AioEngine final : public Engine {
 public:
  AioEngine(const File& file, unsigned depth, const std::uint8_t* header_page) : file_(file) {
    if (!file.direct()) throw RowError(Kind::unsupported, file.refusal());
    open_context(depth == 0 ? kDefaultDepth : depth);
    slots_.resize(depth_);
    events_.resize(depth_);
    free_.reserve(depth_);
    pages_ = allocate_pages(depth_ * kPageBytes);
    for (std::size_t i = 0; i < depth_; ++i) free_.push_back(i);
    try {
      test_read(header_page);
      thread_ = std::thread([this] { work(); });
    } catch (const std::system_error& error) {
      close_context();
      throw RowError(Kind::unsupported, std::string("cannot start its thread: ") + error.what());
    } catch (...) {
      close_context();
      throw;
    }
  }

  ~AioEngine() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    work_.notify_one();
    thread_.join();
    close_context();
  }

  const char* name() const override { return "aio"; }

  void start(Batch& batch) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back({&batch, 0, batch.size()});
    work_.notify_one();
  }

 private:
  struct Item {
    Batch* batch;
    std::size_t next;
    std::size_t size;
  };
  struct Slot {
    iocb request;
    Batch* batch;
    std::size_t index;
  };

  void open_context(unsigned depth) {
    // fs.aio-max-nr is shared by the whole machine: less depth is better than none.
    long failed = 0;
    for (depth_ = depth; depth_ >= std::min(depth, kLeastDepth); depth_ /= 2) {
      failed = setup(static_cast<unsigned>(depth_), &context_);
      if (failed == 0) return;
      if (failed != -EAGAIN || depth_ == 1) break;
    }
    refuse("io_setup", failed);
  }

  void close_context() { ::syscall(SYS_io_destroy, context_); }

  std::uint8_t* page(std::size_t slot) { return pages_.get() + slot * kPageBytes; }

  void prepare(std::size_t slot, std::uint64_t offset) {
    iocb& request = slots_[slot].request;
    std::memset(&request, 0, sizeof request);
    request.aio_data = slot;
    request.aio_lio_opcode = IOCB_CMD_PREAD;
    request.aio_fildes = static_cast<std::uint32_t>(file_.fd());
    request.aio_buf = reinterpret_cast<std::uint64_t>(page(slot));
    request.aio_nbytes = kPageBytes;
    request.aio_offset = static_cast<std::int64_t>(offset);
  }

  void test_read(const std::uint8_t* header_page) {
    prepare(0, 0);
    iocb* request = &slots_[0].request;
    const long sent = submit(context_, 1, &request);
    if (sent != 1) refuse("io_submit", sent);
    long got = 0;
    do {
      got = events(context_, 1, 1, events_.data());
    } while (got == -EINTR);
    if (got != 1) refuse("io_getevents", got);
    if (events_[0].res != static_cast<std::int64_t>(kPageBytes)) refuse("the test read", events_[0].res);
    if (std::memcmp(page(0), header_page, kPageBytes) != 0) {
      throw RowError(Kind::unsupported, "the test read gave other bytes than pread");
    }
  }

  void work() {
    std::vector<iocb*> requests;
    requests.reserve(depth_);
    last_cpu_ = thread_cpu();
    while (true) {
      requests.clear();
      if (!gather(requests)) return;
      send(requests);
      if (free_.size() < depth_) reap();
    }
  }

  // Fill free slots from the queue; with nothing in flight and nothing to do, sleep.
  bool gather(std::vector<iocb*>& requests) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (free_.size() == depth_) work_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty() && free_.size() == depth_) return false;
    while (!queue_.empty() && !free_.empty()) {
      Item& item = queue_.front();
      const std::size_t slot = free_.back();
      free_.pop_back();
      slots_[slot].batch = item.batch;
      slots_[slot].index = item.next;
      prepare(slot, item.batch->offset(item.next));
      requests.push_back(&slots_[slot].request);
      if (++item.next == item.size) queue_.pop_front();
    }
    return true;
  }

  void send(std::vector<iocb*>& requests) {
    std::size_t sent = 0;
    while (sent < requests.size()) {
      const long done = submit(context_, static_cast<long>(requests.size() - sent), requests.data() + sent);
      if (done > 0) {
        sent += static_cast<std::size_t>(done);
      } else if (done != -EINTR) {
        // The kernel takes no more now: this one is read by pread, which complete() does after an error.
        finish(static_cast<std::size_t>(requests[sent]->aio_data), done == 0 ? -EAGAIN : done, 0);
        ++sent;
      }
    }
  }

  void reap() {
    const long got = events(context_, 1, static_cast<long>(depth_), events_.data());
    if (got <= 0) return;  // interrupted: the loop comes back
    const std::uint64_t now = thread_cpu();
    const std::uint64_t share = (now - last_cpu_) / static_cast<std::uint64_t>(got);
    last_cpu_ = now;
    for (long i = 0; i < got; ++i) {
      finish(static_cast<std::size_t>(events_[static_cast<std::size_t>(i)].data),
             static_cast<long>(events_[static_cast<std::size_t>(i)].res), share);
    }
  }

  void finish(std::size_t slot, long result, std::uint64_t cpu) {
    Slot& done = slots_[slot];
    done.batch->charge(cpu);
    if (done.batch->failed()) {
      done.batch->skip();
    } else {
      done.batch->complete(done.index, result, page(slot));
    }
    free_.push_back(slot);
  }

  const File& file_;
  aio_context_t context_ = 0;
  std::size_t depth_ = 0;
  Pages pages_;
  // Only the thread touches these:
  std::vector<Slot> slots_;
  std::vector<io_event> events_;
  std::vector<std::size_t> free_;
  std::uint64_t last_cpu_ = 0;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Item> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Engine> make_aio_engine(const File& file, const EngineOptions& options,
                                        const std::uint8_t* header_page) {
  return std::make_unique<AioEngine>(file, options.depth, header_page);
}

}  // namespace dsv41
