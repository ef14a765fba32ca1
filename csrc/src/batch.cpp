#include "batch.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "bytes.hpp"
#include "row_file.hpp"

namespace dsv41 {
namespace {

constexpr std::uint64_t kNotOurs = ~0ull;

std::uint64_t local_row(const std::vector<Range>& ranges, std::uint64_t row) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), row,
                                      [](std::uint64_t value, const Range& range) { return value < range.lo; });
  if (after == ranges.begin()) return kNotOurs;
  const Range& range = *(after - 1);
  return row < range.hi ? range.base + (row - range.lo) : kNotOurs;
}

void check_ids(const Header& header, const std::int64_t* ids, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || static_cast<std::uint64_t>(ids[i]) < header.total_rows) continue;
    throw RowError(Kind::range, "layer " + std::to_string(header.layer) + ": id " + std::to_string(ids[i]) +
                                    " at position " + std::to_string(i) + ", expected less than " +
                                    std::to_string(header.total_rows));
  }
}

}  // namespace

long read_page(const File& file, std::uint64_t offset, std::uint8_t* page) {
  std::size_t have = 0;
  while (have < kPageBytes) {
    const ssize_t got = ::pread(file.fd(), page + have, kPageBytes - have, static_cast<off_t>(offset + have));
    if (got < 0) return -static_cast<long>(errno);
    have += static_cast<std::size_t>(got);
    // A buffered read may stop early and go on; a direct one inside the file may not.
    if (got == 0 || file.direct()) break;
  }
  file.forget(offset, kPageBytes);
  return static_cast<long>(have);
}

void Batch::plan(const std::int64_t* ids, std::size_t count, Output output) {
  begun_ = Clock::now();
  const std::uint64_t cpu = thread_cpu();
  check_ids(context_.header, ids, count);
  output_ = output;
  error_.reset();
  failed_ = false;
  classify(ids, count);
  dedupe_.run(owned_, unique_, next_);
  pending_ = unique_.size();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    signaled_ = unique_.empty();
  }
  if (!context_.order_bounds.empty()) count_orders(ids);
  Stats& stats = context_.stats;
  add(stats.batches, 1);
  add(stats.lookups, count);
  add(stats.unique, unique_.size());
  raise(stats.queue_depth_high, unique_.size());
  stats.batch_size.record(count);
  cpu_ = thread_cpu() - cpu;
  if (unique_.empty()) record();
}

void Batch::classify(const std::int64_t* ids, std::size_t count) {
  owned_.clear();
  next_.resize(count);
  hits_ = 0;
  std::uint64_t padding = 0, foreign = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto row = static_cast<std::uint64_t>(ids[i]);
    const std::uint64_t local = ids[i] < 0 ? kNotOurs : local_row(context_.header.ranges, row);
    if (local == kNotOurs) {
      zero(i);
      ++(ids[i] < 0 ? padding : foreign);
    } else if (!cached(static_cast<std::uint32_t>(local), row, i)) {
      owned_.push_back(local << 32 | i);
    }
  }
  Stats& stats = context_.stats;
  add(stats.owned, owned_.size() + hits_);
  add(stats.padding, padding);
  add(stats.foreign, foreign);
  if (context_.cache == nullptr) return;
  add(stats.cache_hits, hits_);
  add(stats.cache_misses, owned_.size());
}

bool Batch::cached(std::uint32_t local, std::uint64_t row, std::size_t destination) {
  if (context_.cache == nullptr) return false;
  bool rejected = false;
  const bool hit = context_.cache->get(context_.header.layer, local, row, output_.weights + destination * kWeightBytes,
                                       output_.scales + destination * kScaleBytes, rejected);
  if (rejected) add(context_.stats.cache_rejects, 1);
  if (!hit) return false;
  ++hits_;
  if (!context_.order_bounds.empty()) {
    OrderStats& order = context_.stats.orders[order_of(row)];
    add(order.hits, 1);
    add(order.owned, 1);
  }
  return true;
}

std::size_t Batch::order_of(std::uint64_t row) const {
  const auto& bounds = context_.order_bounds;
  return static_cast<std::size_t>(std::upper_bound(bounds.begin(), bounds.end(), row) - bounds.begin());
}

// Rows that are going to be read; hits were counted when they were found.
void Batch::count_orders(const std::int64_t* ids) {
  std::array<std::uint64_t, kMaxOrders> owned{}, unique{};
  for (const std::uint64_t key : owned_) {
    ++owned[order_of(static_cast<std::uint64_t>(ids[static_cast<std::uint32_t>(key)]))];
  }
  for (const Unique& row : unique_) ++unique[order_of(static_cast<std::uint64_t>(ids[row.first]))];
  for (std::size_t i = 0; i <= context_.order_bounds.size(); ++i) {
    add(context_.stats.orders[i].owned, owned[i]);
    add(context_.stats.orders[i].unique, unique[i]);
  }
}

void Batch::zero(std::size_t destination) {
  std::memset(output_.weights + destination * kWeightBytes, 0, kWeightBytes);
  std::memset(output_.scales + destination * kScaleBytes, 0, kScaleBytes);
}

std::uint64_t Batch::offset(std::size_t i) const { return page_offset(unique_[i].local / kRowsPerPage); }

Batch::Fault Batch::judge(std::size_t i, long result, const std::uint8_t* page) const {
  if (result == -EINTR || result == -EAGAIN) return Fault::again;
  if (result < 0) return Fault::io;
  if (result != static_cast<long>(kPageBytes)) return Fault::short_read;
#ifdef DSV41_ROWS_WITHOUT_CRC  // never in use: what the check costs is measured against such a build
  return Fault::none;
#endif
  const std::uint32_t local = unique_[i].local;
  const std::size_t slot = local % kRowsPerPage;
  const std::uint32_t crc = row_crc(context_.header.layer, context_.header.global_row(local), page + slot * kWeightBytes,
                                    page + kScalesAt + slot * kScaleBytes);
  return crc == get<std::uint32_t>(page + kRowCrcsAt + slot * 4) ? Fault::none : Fault::crc;
}

bool Batch::may_retry(Fault fault, int& tries) {
  ++tries;
  switch (fault) {
    case Fault::again: return tries <= 1000;
    case Fault::io: add(context_.stats.io_errors, 1); break;
    case Fault::short_read: add(context_.stats.short_reads, 1); break;
    case Fault::crc: add(context_.stats.crc_failures, 1); break;
    case Fault::none: break;
  }
  // A drive may answer a second time; a page that is wrong twice is wrong.
  const bool again = tries <= (fault == Fault::io ? 2 : 1);
  if (again) add(fault == Fault::crc ? context_.stats.crc_retries : context_.stats.io_retries, 1);
  return again;
}

void Batch::complete(std::size_t i, long result, std::uint8_t* page) {
  std::array<int, kFaults> tries{};  // by fault: an interrupted read takes no try from a bad page
  std::uint64_t reads = 1;
  Fault fault = judge(i, result, page);
  while (fault != Fault::none && may_retry(fault, tries[static_cast<std::size_t>(fault)])) {
    result = read_page(context_.file, offset(i), page);
    fault = judge(i, result, page);
    ++reads;
  }
  add(context_.stats.device_reads, reads);
  add(context_.stats.device_bytes, result > 0 ? static_cast<std::uint64_t>(result) : 0);
  if (fault == Fault::none) {
    scatter(i, page);
  } else {
    fail(i, fault, result);
  }
  finish_one();
}

void Batch::scatter(std::size_t i, const std::uint8_t* page) {
  const std::size_t slot = unique_[i].local % kRowsPerPage;
  if (context_.cache != nullptr) {
    context_.cache->put(unique_[i].local, page + slot * kWeightBytes, page + kScalesAt + slot * kScaleBytes,
                        get<std::uint32_t>(page + kRowCrcsAt + slot * 4));
  }
  for (std::uint32_t to = unique_[i].first; to != kChainEnd; to = next_[to]) {
    std::memcpy(output_.weights + to * kWeightBytes, page + slot * kWeightBytes, kWeightBytes);
    std::memcpy(output_.scales + to * kScaleBytes, page + kScalesAt + slot * kScaleBytes, kScaleBytes);
  }
}

void Batch::fail(std::size_t i, Fault fault, long result) {
  const std::uint32_t local = unique_[i].local;
  std::string says = context_.file.path() + ": layer " + std::to_string(context_.header.layer) + ", row " +
                     std::to_string(context_.header.global_row(local)) + ", page " + std::to_string(local / kRowsPerPage) +
                     ", offset " + std::to_string(offset(i)) + ": ";
  Kind kind = Kind::io;
  if (fault == Fault::crc) {
    kind = Kind::corrupt;
    says += "the row fails its CRC32C, twice";
  } else if (fault == Fault::short_read) {
    struct stat now {};
    if (::fstat(context_.file.fd(), &now) == 0 && static_cast<std::uint64_t>(now.st_size) < context_.header.file_bytes()) kind = Kind::truncated;
    says += "expected 4096 bytes, found " + std::to_string(result);
  } else {
    says += "errno " + std::to_string(-result) + ", " + std::strerror(static_cast<int>(-result));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error_ == nullptr) error_ = std::make_unique<RowError>(kind, says);
  failed_ = true;
}

void Batch::finish_one() {
  if (pending_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  record();
  const std::lock_guard<std::mutex> lock(mutex_);
  signaled_ = true;
  finished_.notify_all();
}

void Batch::record() {
  const auto wall = std::chrono::nanoseconds(Clock::now() - begun_).count();
  context_.stats.wall.record(static_cast<std::uint64_t>(wall));
  context_.stats.cpu.record(cpu_);
  if (failed_) add(context_.stats.failed_batches, 1);
}

void Batch::abandon() {
  pending_ = 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  signaled_ = true;
}

void Batch::run_inline() {
  alignas(kPageBytes) std::uint8_t page[kPageBytes];
  std::uint64_t before = thread_cpu();
  for (std::size_t i = 0, n = size(); i < n; ++i) {
    const long result = failed() ? 0 : read_page(context_.file, offset(i), page);
    const std::uint64_t now = thread_cpu();
    charge(now - std::exchange(before, now));
    if (failed()) {
      skip();
    } else {
      complete(i, result, page);
    }
  }
}

bool Batch::wait_until(const Clock::time_point* deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto ready = [this] { return signaled_; };
  if (deadline != nullptr) return finished_.wait_until(lock, *deadline, ready);
  finished_.wait(lock, ready);
  return true;
}

}  // namespace dsv41
