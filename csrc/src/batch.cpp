#include "batch.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

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
  const ssize_t got = ::pread(file.fd(), page, kPageBytes, static_cast<off_t>(offset));
  const long result = got < 0 ? -static_cast<long>(errno) : got;
  file.forget(offset, kPageBytes);
  return result;
}

void Batch::plan(const std::int64_t* ids, std::size_t count, Output output) {
  begun_ = Clock::now();
  check_ids(header_, ids, count);
  output_ = output;
  error_.reset();
  failed_ = false;
  signaled_ = false;
  classify(ids, count);
  dedupe_.run(owned_, unique_, next_);
  pending_ = unique_.size();
  add(stats_.batches, 1);
  add(stats_.lookups, count);
  add(stats_.unique, unique_.size());
  raise(stats_.queue_depth_high, unique_.size());
  stats_.batch_size.record(count);
  if (unique_.empty()) stats_.wall.record(0);
}

void Batch::classify(const std::int64_t* ids, std::size_t count) {
  owned_.clear();
  next_.resize(count);
  std::uint64_t padding = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t local = ids[i] < 0 ? kNotOurs : local_row(header_.ranges, static_cast<std::uint64_t>(ids[i]));
    padding += ids[i] < 0;
    if (local == kNotOurs) {
      zero(i);
    } else {
      owned_.push_back(local << 32 | i);
    }
  }
  add(stats_.owned, owned_.size());
  add(stats_.padding, padding);
  add(stats_.foreign, count - owned_.size() - padding);
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
  const std::uint32_t local = unique_[i].local;
  const std::size_t slot = local % kRowsPerPage;
  const std::uint32_t crc = row_crc(header_.layer, header_.global_row(local), page + slot * kWeightBytes,
                                    page + kScalesAt + slot * kScaleBytes);
  return crc == get<std::uint32_t>(page + kRowCrcsAt + slot * 4) ? Fault::none : Fault::crc;
}

bool Batch::may_retry(Fault fault, int& tries) {
  ++tries;
  switch (fault) {
    case Fault::again: return tries <= 1000;
    case Fault::io: add(stats_.io_errors, 1); break;
    case Fault::short_read: add(stats_.short_reads, 1); break;
    case Fault::crc: add(stats_.crc_failures, 1); break;
    case Fault::none: break;
  }
  // A drive may answer a second time; a page that is wrong twice is wrong.
  const bool again = tries <= (fault == Fault::io ? 2 : 1);
  if (again) add(fault == Fault::crc ? stats_.crc_retries : stats_.io_retries, 1);
  return again;
}

void Batch::complete(std::size_t i, long result, std::uint8_t* page) {
  int tries = 0;
  Fault fault = judge(i, result, page);
  while (fault != Fault::none && may_retry(fault, tries)) {
    result = read_page(file_, offset(i), page);
    fault = judge(i, result, page);
  }
  add(stats_.device_reads, 1 + static_cast<std::uint64_t>(tries));
  add(stats_.device_bytes, result > 0 ? static_cast<std::uint64_t>(result) : 0);
  if (fault == Fault::none) {
    scatter(i, page);
  } else {
    fail(i, fault, result);
  }
  finish_one();
}

void Batch::scatter(std::size_t i, const std::uint8_t* page) {
  const std::size_t slot = unique_[i].local % kRowsPerPage;
  for (std::uint32_t to = unique_[i].first; to != kChainEnd; to = next_[to]) {
    std::memcpy(output_.weights + to * kWeightBytes, page + slot * kWeightBytes, kWeightBytes);
    std::memcpy(output_.scales + to * kScaleBytes, page + kScalesAt + slot * kScaleBytes, kScaleBytes);
  }
}

void Batch::fail(std::size_t i, Fault fault, long result) {
  const std::uint32_t local = unique_[i].local;
  std::string says = file_.path() + ": layer " + std::to_string(header_.layer) + ", row " +
                     std::to_string(header_.global_row(local)) + ", page " + std::to_string(local / kRowsPerPage) +
                     ", offset " + std::to_string(offset(i)) + ": ";
  Kind kind = Kind::io;
  if (fault == Fault::crc) {
    kind = Kind::corrupt;
    says += "the row fails its CRC32C, twice";
  } else if (fault == Fault::short_read) {
    struct stat now {};
    if (::fstat(file_.fd(), &now) == 0 && static_cast<std::uint64_t>(now.st_size) < header_.file_bytes()) kind = Kind::truncated;
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
  const auto wall = std::chrono::nanoseconds(Clock::now() - begun_).count();
  stats_.wall.record(static_cast<std::uint64_t>(wall));
  if (failed_) add(stats_.failed_batches, 1);
  const std::lock_guard<std::mutex> lock(mutex_);
  signaled_ = true;
  finished_.notify_all();
}

void Batch::abandon() {
  pending_ = 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  signaled_ = true;
}

void Batch::run_inline() {
  alignas(kPageBytes) std::uint8_t page[kPageBytes];
  for (std::size_t i = 0, n = size(); i < n; ++i) {
    if (failed()) {
      skip();
    } else {
      complete(i, read_page(file_, offset(i), page), page);
    }
  }
}

bool Batch::wait_until(const Clock::time_point* deadline) {
  if (unique_.empty()) return true;
  std::unique_lock<std::mutex> lock(mutex_);
  const auto ready = [this] { return signaled_; };
  if (deadline != nullptr) return finished_.wait_until(lock, *deadline, ready);
  finished_.wait(lock, ready);
  return true;
}

}  // namespace dsv41
