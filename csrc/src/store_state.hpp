// What a RowStore and its Tickets share.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "batch.hpp"
#include "dsv41_rows/row_store.hpp"
#include "engine.hpp"
#include "file.hpp"
#include "stats.hpp"

namespace dsv41 {

class StoreState {
 public:
  StoreState(const std::string& path, const OpenOptions& options);
  ~StoreState();

  // A planned batch, counted as in flight until release().
  Batch* begin(const std::int64_t* ids, std::size_t count, Output output);
  void start(Batch* batch);
  void release(Batch* batch);
  void close();
  bool forked() const;
  void check_owner() const;  // Kind::forked in a child: nothing there would end a wait or open a lock

  Engine& engine() { return *chosen_.engine; }
  const Header& header() const { return header_; }
  Stats& stats() { return stats_; }
  std::string stats_json() const;

 private:
  void watch();
  void tear_down();
  Batch* take();

  File file_;
  const Header header_;
  const pid_t owner_;
  const std::vector<std::uint64_t> order_bounds_;
  const std::unique_ptr<RowCache> cache_;
  Stats stats_;
  const BatchContext context_;
  ChosenEngine chosen_;
  const std::string engine_name_;
  const std::vector<std::string> engine_features_, engine_refused_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Batch>> batches_;
  std::vector<Batch*> free_;
  std::size_t in_flight_ = 0;
  bool closed_ = false;
  struct Watch {
    std::int64_t change_time = 0;  // st_ctim in ns when the file was opened
    std::atomic<std::int64_t> next_check{0};
    std::atomic<bool> changed{false};
    std::atomic<bool> unlinked{false};
  } watch_;
};

}  // namespace dsv41
