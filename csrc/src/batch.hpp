// One lookup under way: which rows to read, where each goes, and what went wrong.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cache.hpp"
#include "dedupe.hpp"
#include "dsv41_rows/row_store.hpp"
#include "file.hpp"
#include "stats.hpp"

namespace dsv41 {

using Clock = std::chrono::steady_clock;

struct Output {
  std::uint8_t* weights;
  std::uint8_t* scales;
};

// What all batches of one store share.
struct BatchContext {
  const File& file;
  const Header& header;
  const std::vector<std::uint64_t>& order_bounds;
  RowCache* cache;  // or nullptr
  Stats& stats;
};

// Objects are reused by their store, so that a lookup in the steady state allocates nothing.
class Batch {
 public:
  explicit Batch(const BatchContext& context) : context_(context) {}

  // validate -> own or foreign -> cache -> dedupe. Checks every id first (Kind::range), zeroes rows that are not
  // ours, copies cached ones, leaves the reads to be done.
  void plan(const std::int64_t* ids, std::size_t count, Output output);

  std::size_t size() const { return unique_.size(); }
  std::uint64_t offset(std::size_t i) const;
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

  // Called once per read by the engine, from any thread. `result` is bytes read or -errno, as the kernel gives it;
  // `page` is the engine's buffer, read again here when the first answer is bad. Never throws.
  void complete(std::size_t i, long result, std::uint8_t* page);
  // In place of complete(), once the batch has failed.
  void skip() { finish_one(); }
  // Processor time, ns, that a thread spent on this batch; before its complete() or skip().
  void charge(std::uint64_t cpu) { cpu_.fetch_add(cpu, std::memory_order_relaxed); }
  // No read was begun and none will be.
  void abandon();
  // Read everything here and now.
  void run_inline();

  bool done() const { return pending_.load(std::memory_order_acquire) == 0; }
  // False when the deadline passed first.
  bool wait_until(const Clock::time_point* deadline);
  const std::unique_ptr<RowError>& error() const { return error_; }

 private:
  enum class Fault { none, again, io, short_read, crc };
  static constexpr std::size_t kFaults = 5;

  void classify(const std::int64_t* ids, std::size_t count);
  bool cached(std::uint32_t local, std::uint64_t row, std::size_t destination);
  void count_orders(const std::int64_t* ids);
  std::size_t order_of(std::uint64_t row) const;
  Fault judge(std::size_t i, long result, const std::uint8_t* page) const;
  bool may_retry(Fault fault, int& tries);
  void scatter(std::size_t i, const std::uint8_t* page);
  void zero(std::size_t destination);
  void fail(std::size_t i, Fault fault, long result);
  void finish_one();
  void record();

  const BatchContext& context_;
  Output output_{};
  Dedupe dedupe_;
  std::vector<std::uint64_t> owned_;  // local row << 32 | destination, without cache hits
  std::vector<Unique> unique_;
  std::vector<std::uint32_t> next_;
  std::uint64_t hits_ = 0;
  Clock::time_point begun_;
  std::atomic<std::uint64_t> cpu_{0};
  std::atomic<std::size_t> pending_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::condition_variable finished_;
  bool signaled_ = true;  // the last read is through, nothing touches this object any more
  std::unique_ptr<RowError> error_;
};

// One page by pread: bytes or -errno.
long read_page(const File& file, std::uint64_t offset, std::uint8_t* page);

}  // namespace dsv41
