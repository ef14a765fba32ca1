// Counters and latency histograms of one store; written from any thread, read at any time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

namespace dsv41 {

using Counter = std::atomic<std::uint64_t>;

inline void add(Counter& counter, std::uint64_t n) { counter.fetch_add(n, std::memory_order_relaxed); }
inline void raise(Counter& highest, std::uint64_t value) {
  std::uint64_t seen = highest.load(std::memory_order_relaxed);
  while (seen < value && !highest.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

// Four buckets per power of two: a percentile is at most 25 % too high.
class Histogram {
 public:
  void record(std::uint64_t value);
  std::uint64_t percentile(double share) const;
  std::uint64_t max() const { return max_.load(std::memory_order_relaxed); }
  std::uint64_t count() const;
  std::uint64_t sum() const { return sum_.load(std::memory_order_relaxed); }
  // {"count": .., "sum": .., "p50": .., "p99": .., "max": ..}, values multiplied by `scale`.
  std::string json(double scale) const;

 private:
  static std::size_t bucket(std::uint64_t value);
  static std::uint64_t upper(std::size_t bucket);

  std::array<Counter, 256> buckets_{};
  Counter max_{0};
  Counter sum_{0};
};

// Counts of one n-gram order.
struct OrderStats {
  Counter owned{0}, unique{0}, hits{0};
};

constexpr std::size_t kMaxOrders = 8;

struct Stats {
  Counter batches{0}, lookups{0}, owned{0}, foreign{0}, padding{0}, unique{0};
  Counter device_reads{0}, device_bytes{0};
  Counter cache_hits{0}, cache_misses{0}, cache_rejects{0};
  Counter crc_failures{0}, crc_retries{0}, io_errors{0}, io_retries{0}, short_reads{0}, failed_batches{0};
  Counter queue_depth_high{0};
  Histogram batch_size;  // ids per batch
  Histogram wall;        // ns from submit to the last row
  Histogram cpu;         // ns of processor time per batch, of all threads
  Histogram waited;      // ns spent in wait()
  std::array<OrderStats, kMaxOrders> orders;

  // ", \"batches\": 1, ...": every counter and histogram as members of a JSON object.
  std::string json(std::size_t order_count) const;
};

// Processor time of the calling thread, ns.
std::uint64_t thread_cpu();

}  // namespace dsv41
