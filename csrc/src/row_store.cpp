#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "crc32c.hpp"
#include "json.hpp"
#include "row_file.hpp"
#include "store_state.hpp"

namespace dsv41 {
namespace {

// Below this many reads handing them to other threads costs more than it saves.
constexpr std::size_t kInlineReads = 4;

template <typename T>
void expect(const std::string& path, const char* what, const T& expected, const T& found) {
  if (expected == found) return;
  const auto text = [](const auto& value) {
    if constexpr (std::is_same_v<T, std::string>) return value;
    else return std::to_string(value);
  };
  throw RowError(Kind::mismatch, path + ": expected " + what + " " + text(expected) + ", found " + text(found));
}

Header open_header(const File& file, const Expected& expected) {
  Header header = read_header(file);
  const std::string& path = file.path();
  if (!header.complete) throw RowError(Kind::unfinished, path + ": expected a complete file, found an unfinished one");
  expect(path, "layer", expected.layer, header.layer);
  expect(path, "tp", expected.tp, header.tp);
  expect(path, "rank", expected.rank, header.rank);
  expect(path, "partition", expected.partition, header.partition);
  if (!expected.source_digest.empty()) {
    if (!header.source.bound()) {
      throw RowError(Kind::mismatch, path + ": expected checkpoint identity " + expected.source_digest +
                                         ", found rows that were imported without their checkpoint");
    }
    expect(path, "checkpoint identity", expected.source_digest, hex(header.source.identity()));
  }
  if (!expected.revision.empty()) expect(path, "checkpoint revision", expected.revision, header.source.revision);
  return header;
}

const std::vector<std::uint64_t>& check_bounds(const std::vector<std::uint64_t>& bounds) {
  if (bounds.size() < kMaxOrders && std::is_sorted(bounds.begin(), bounds.end())) return bounds;
  throw RowError(Kind::argument, "expected at most 7 ascending order bounds");
}

std::int64_t change_time(const struct stat& found) {
  return found.st_ctim.tv_sec * 1'000'000'000 + found.st_ctim.tv_nsec;
}

std::string quote_list(const std::vector<std::string>& texts) {
  std::string list = "[";
  for (const std::string& text : texts) list += (list.size() == 1 ? "" : ", ") + quote_json(text);
  return list + "]";
}

std::int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

}  // namespace

StoreState::StoreState(const std::string& path, const OpenOptions& options)
    : file_(File::open_read(path)),
      header_(open_header(file_, options.expected)),
      owner_(::getpid()),
      order_bounds_(check_bounds(options.order_bounds)),
      cache_(options.cache_bytes == 0 ? nullptr : std::make_unique<RowCache>(options.cache_bytes)),
      context_{file_, header_, order_bounds_, cache_.get(), stats_},
      chosen_(choose_engine(options.engine, file_, {options.threads, options.depth})),
      engine_name_(chosen_.engine->name()),
      engine_features_(chosen_.engine->features()),
      engine_refused_(chosen_.engine->refused()) {
  struct stat found {};
  if (::fstat(file_.fd(), &found) != 0) throw_errno("cannot stat " + path, errno);
  watch_.change_time = change_time(found);
}

StoreState::~StoreState() {
  // The threads of the engine do not exist in a forked child; joining them would never end.
  if (forked()) chosen_.engine.release();
}

bool StoreState::forked() const { return ::getpid() != owner_; }

void StoreState::check_owner() const {
  if (!forked()) return;
  throw RowError(Kind::forked, file_.path() + ": opened by process " + std::to_string(owner_) +
                                   ", used in its child " + std::to_string(::getpid()) + "; open it again there");
}

// Once a second: was the file cut, changed or unlinked under us? Our descriptor keeps the old file alive.
void StoreState::watch() {
  const std::int64_t now = now_ns();
  if (now < watch_.next_check.load(std::memory_order_relaxed)) return;
  struct stat found {};
  if (::fstat(file_.fd(), &found) != 0) throw_errno("cannot stat " + file_.path(), errno);
  if (static_cast<std::uint64_t>(found.st_size) < header_.file_bytes()) {
    throw RowError(Kind::truncated, file_.path() + ": expected " + std::to_string(header_.file_bytes()) +
                                        " bytes, found " + std::to_string(found.st_size) + ", cut while open");
  }
  watch_.next_check.store(now + 1'000'000'000, std::memory_order_relaxed);  // not before: a cut file stays refused
  if (found.st_nlink == 0) watch_.unlinked = true;
  if (change_time(found) != watch_.change_time) watch_.changed = true;
}

Batch* StoreState::take() {
  check_owner();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) throw RowError(Kind::closed, file_.path() + ": the store was closed");
  if (free_.empty()) {
    batches_.push_back(std::make_unique<Batch>(context_));
    free_.reserve(batches_.size());
    free_.push_back(batches_.back().get());
  }
  Batch* batch = free_.back();
  free_.pop_back();
  ++in_flight_;
  return batch;
}

Batch* StoreState::begin(const std::int64_t* ids, std::size_t count, Output output) {
  if (count >= kChainEnd) throw RowError(Kind::argument, "at most 2^32 - 2 ids in one call");
  Batch* batch = take();
  try {
    watch();
    batch->plan(ids, count, output);
  } catch (...) {
    release(batch);
    throw;
  }
  return batch;
}

void StoreState::start(Batch* batch) {
  try {
    chosen_.engine->start(*batch);
  } catch (...) {
    batch->abandon();
    throw;
  }
}

void StoreState::release(Batch* batch) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(batch);
  if (--in_flight_ == 0 && closed_) tear_down();
}

// Tickets that nobody waited for yet keep the engine until they are; their reads end here.
void StoreState::close() {
  if (forked()) return;
  std::unique_lock<std::mutex> lock(mutex_);
  closed_ = true;
  for (const auto& batch : batches_) batch->wait_until(nullptr);
  if (in_flight_ == 0) tear_down();
}

void StoreState::tear_down() {
  chosen_.engine.reset();
  file_.close();
}

std::string StoreState::stats_json() const {
  std::string text = "{\"engine\": " + quote_json(engine_name_) + ", \"refusals\": " + quote_list(chosen_.refusals);
  text += ", \"engine_features\": " + quote_list(engine_features_) + ", \"engine_refused\": " + quote_list(engine_refused_);
  text += std::string(", \"direct\": ") + (file_.direct() ? "true" : "false");
  text += ", \"direct_refusal\": " + quote_json(file_.refusal()) + ", \"crc32c\": " + quote_json(crc32c_backend());
  text += stats_.json(order_bounds_.empty() ? 0 : order_bounds_.size() + 1);
  text += std::string(", \"file_changed\": ") + (watch_.changed ? "true" : "false");
  text += std::string(", \"file_unlinked\": ") + (watch_.unlinked ? "true" : "false");
  text += ", \"cache_rows\": " + std::to_string(cache_ == nullptr ? 0 : cache_->rows());
  text += ", \"drive\": " + quote_json(drive_model(file_.fd()));
  return text + ", \"path\": " + quote_json(file_.path()) + ", \"source_digest\": " +
         quote_json(hex(header_.source.identity())) + "}";
}

Ticket::Ticket(std::shared_ptr<StoreState> state, Batch* batch) : state_(std::move(state)), batch_(batch) {}

Ticket::~Ticket() {
  if (state_ == nullptr || batch_ == nullptr || state_->forked()) return;
  batch_->wait_until(nullptr);
  state_->release(batch_);
}

bool Ticket::done() const { return batch_ == nullptr || batch_->done(); }

void Ticket::wait(double timeout_seconds) {
  state_->check_owner();
  if (batch_ != nullptr) {
    const auto begun = Clock::now();
    const bool forever = timeout_seconds < 0;
    const double seconds = std::min(std::max(timeout_seconds, 0.0), 1e9);
    const auto deadline = begun + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    if (forever) state_->engine().assist(*batch_);
    const bool finished = batch_->wait_until(forever ? nullptr : &deadline);
    const auto waited = std::chrono::nanoseconds(Clock::now() - begun).count();
    state_->stats().waited.record(static_cast<std::uint64_t>(waited));
    if (!finished) throw RowError(Kind::timeout, "the rows were not there after " + std::to_string(timeout_seconds) + " s");
    if (batch_->error() != nullptr) error_ = std::make_unique<RowError>(*batch_->error());
    state_->release(std::exchange(batch_, nullptr));
  }
  if (error_ != nullptr) throw RowError(*error_);
}

RowStore::RowStore(const std::string& path, const OpenOptions& options)
    : state_(std::make_shared<StoreState>(path, options)) {}

RowStore::~RowStore() = default;

Ticket RowStore::submit(const std::int64_t* ids, std::size_t count, std::uint8_t* weights, std::uint8_t* scales) {
  Batch* batch = state_->begin(ids, count, {weights, scales});
  Ticket ticket(state_, batch);
  if (batch->size() > 0) state_->start(batch);
  return ticket;
}

void RowStore::lookup(const std::int64_t* ids, std::size_t count, std::uint8_t* weights, std::uint8_t* scales) {
  Batch* batch = state_->begin(ids, count, {weights, scales});
  Ticket ticket(state_, batch);
  if (batch->size() > kInlineReads) {
    state_->start(batch);
  } else {
    batch->run_inline();
  }
  ticket.wait();
}

const Header& RowStore::header() const { return state_->header(); }
std::string RowStore::stats_json() const { return state_->stats_json(); }
void RowStore::close() { state_->close(); }

}  // namespace dsv41
