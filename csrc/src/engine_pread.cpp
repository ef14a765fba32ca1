// Positional reads by a pool of threads: works everywhere, and costs the most processor time per row.
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "engine.hpp"

namespace dsv41 {
namespace {

// The knee of the measured disks lies at 32 to 64 reads in flight.
constexpr unsigned kDefaultThreads = 32;

class PreadEngine final : public Engine {
 public:
  PreadEngine(const File& file, unsigned threads)
      : file_(file), limit_(threads == 0 ? kDefaultThreads : threads) {}

  ~PreadEngine() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const char* name() const override { return "pread"; }

  void start(Batch& batch) override {
    const std::size_t reads = batch.size();
    const std::lock_guard<std::mutex> lock(mutex_);
    grow(reads);
    queue_.push_back({&batch, 0, reads});
    if (reads >= threads_.size()) {
      work_.notify_all();
    } else {
      for (std::size_t i = 0; i < reads; ++i) work_.notify_one();
    }
  }

  void assist(Batch& batch) override {
    alignas(kPageBytes) std::uint8_t page[kPageBytes];
    std::uint64_t cpu = thread_cpu();
    while (true) {
      std::unique_lock<std::mutex> lock(mutex_);
      auto item = queue_.begin();
      while (item != queue_.end() && item->batch != &batch) ++item;
      if (item == queue_.end()) return;
      const std::size_t index = take(item);
      lock.unlock();
      read(batch, index, page, cpu);
    }
  }

 private:
  struct Item {
    Batch* batch;
    std::size_t next;
    std::size_t size;
  };

  // Threads are started as batches need them: a small model never has more than it uses.
  void grow(std::size_t reads) {
    while (threads_.size() < limit_ && threads_.size() < reads) {
      try {
        threads_.emplace_back([this] { work(); });
      } catch (const std::system_error& error) {
        if (threads_.empty()) throw RowError(Kind::io, std::string("cannot start a reading thread: ") + error.what());
        return;
      }
    }
  }

  std::size_t take(std::deque<Item>::iterator item) {
    const std::size_t index = item->next++;
    if (item->next == item->size) queue_.erase(item);
    return index;
  }

  void work() {
    alignas(kPageBytes) std::uint8_t page[kPageBytes];
    std::uint64_t cpu = thread_cpu();
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      work_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Batch& batch = *queue_.front().batch;
      const std::size_t index = take(queue_.begin());
      lock.unlock();
      read(batch, index, page, cpu);
      lock.lock();
    }
  }

  // `cpu`: the thread's processor time up to which batches were charged.
  void read(Batch& batch, std::size_t index, std::uint8_t* page, std::uint64_t& cpu) {
    const bool failed = batch.failed();
    const long result = failed ? 0 : read_page(file_, batch.offset(index), page);
    const std::uint64_t now = thread_cpu();
    batch.charge(now - std::exchange(cpu, now));
    if (failed) return batch.skip();
    batch.complete(index, result, page);
  }

  const File& file_;
  const std::size_t limit_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Item> queue_;
  std::vector<std::thread> threads_;
  bool stop_ = false;
};

}  // namespace

std::unique_ptr<Engine> make_pread_engine(const File& file, const EngineOptions& options, const std::uint8_t*) {
  return std::make_unique<PreadEngine>(file, options.threads);  // the header page came by pread
}

}  // namespace dsv41
