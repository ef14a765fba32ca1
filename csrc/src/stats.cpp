#include "stats.hpp"

#include <time.h>

#include <cstdio>
#include <utility>

namespace dsv41 {

std::size_t Histogram::bucket(std::uint64_t value) {
  if (value < 4) return value;
  const int power = 63 - __builtin_clzll(value);
  return static_cast<std::size_t>(4 * (power - 1)) + ((value >> (power - 2)) & 3);
}

std::uint64_t Histogram::upper(std::size_t bucket) {
  if (bucket < 4) return bucket;
  const std::size_t power = bucket / 4 + 1;
  return ((4 + bucket % 4 + 1) << (power - 2)) - 1;
}

void Histogram::record(std::uint64_t value) {
  add(buckets_[bucket(value)], 1);
  add(sum_, value);
  raise(max_, value);
}

std::uint64_t Histogram::count() const {
  std::uint64_t total = 0;
  for (const Counter& counter : buckets_) total += counter.load(std::memory_order_relaxed);
  return total;
}

std::uint64_t Histogram::percentile(double share) const {
  const auto wanted = static_cast<std::uint64_t>(share * static_cast<double>(count()));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i].load(std::memory_order_relaxed);
    if (seen > wanted) return upper(i) < max() ? upper(i) : max();
  }
  return max();
}

std::string Histogram::json(double scale) const {
  char text[200];
  const auto scaled = [scale](std::uint64_t value) { return static_cast<double>(value) * scale; };
  std::snprintf(text, sizeof text, "{\"count\": %llu, \"sum\": %.9g, \"p50\": %.9g, \"p99\": %.9g, \"max\": %.9g}",
                static_cast<unsigned long long>(count()), scaled(sum()), scaled(percentile(0.5)),
                scaled(percentile(0.99)), scaled(max()));
  return text;
}

std::string Stats::json(std::size_t order_count) const {
  const std::pair<const char*, const Counter&> counters[] = {
      {"batches", batches},           {"lookups", lookups},           {"owned", owned},
      {"foreign", foreign},           {"padding", padding},           {"unique", unique},
      {"device_reads", device_reads}, {"device_bytes", device_bytes}, {"cache_hits", cache_hits},
      {"cache_misses", cache_misses}, {"cache_rejects", cache_rejects}, {"crc_failures", crc_failures},
      {"crc_retries", crc_retries},   {"io_errors", io_errors},       {"io_retries", io_retries},
      {"short_reads", short_reads},   {"failed_batches", failed_batches},
      {"queue_depth_high", queue_depth_high}};
  std::string text;
  for (const auto& [name, counter] : counters) text += ", \"" + std::string(name) + "\": " + std::to_string(counter.load());
  text += ", \"zero_filled\": " + std::to_string(foreign.load() + padding.load());
  text += ", \"batch_size\": " + batch_size.json(1) + ", \"wall_seconds\": " + wall.json(1e-9);
  text += ", \"cpu_seconds\": " + cpu.json(1e-9) + ", \"wait_seconds\": " + waited.json(1e-9) + ", \"orders\": [";
  for (std::size_t i = 0; i < order_count; ++i) {
    text += std::string(i == 0 ? "" : ", ") + "{\"owned\": " + std::to_string(orders[i].owned.load()) + ", \"unique\": " +
            std::to_string(orders[i].unique.load()) + ", \"hits\": " + std::to_string(orders[i].hits.load()) + "}";
  }
  return text + "]";
}

std::uint64_t thread_cpu() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace dsv41
