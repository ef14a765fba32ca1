// The C interface: no exception leaves it.
#include "dsv41_rows.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "dsv41_rows/row_store.hpp"
#include "json.hpp"

using namespace dsv41;

namespace {

struct Shared {
  RowStore store;
  const bool production;
};

// A lookup keeps its store alive, so that its end may come after dsv41_rows_close.
struct Pending {
  Ticket ticket;
  std::shared_ptr<Shared> shared;
};

}  // namespace

struct dsv41_rows_store {
  std::shared_ptr<Shared> shared;
};

namespace {

thread_local std::string last_error;

struct Interrupted {};

int status_of(Kind kind) { return static_cast<int>(kind) + 1; }
static_assert(static_cast<int>(Kind::argument) + 1 == DSV41_ROWS_ARGUMENT);
static_assert(static_cast<int>(Kind::timeout) + 1 == DSV41_ROWS_TIMEOUT);

// Run `body`; what it throws becomes the status and the text of dsv41_rows_error().
template <typename Body>
int guarded(Body body) noexcept {
  try {
    body();
    return DSV41_ROWS_OK;
  } catch (const RowError& error) {
    last_error = error.what();
    return status_of(error.kind());
  } catch (const Interrupted&) {
    last_error = "interrupted";
    return DSV41_ROWS_INTERRUPTED;
  } catch (const std::exception& error) {
    last_error = error.what();
    return DSV41_ROWS_IO;
  }
}

std::string text_or(const char* text, const char* fallback) { return text == nullptr ? fallback : text; }

void give(char** out, const std::string& text) {
  *out = ::strdup(text.c_str());
  if (*out == nullptr) throw std::bad_alloc();
}

template <typename Struct>
void check_size(const Struct* given, const char* what) {
  if (given == nullptr || given->size != sizeof(Struct)) {
    throw RowError(Kind::argument, std::string(what) + ": expected size " + std::to_string(sizeof(Struct)) +
                                       ", found " + std::to_string(given == nullptr ? 0 : given->size));
  }
}

Progress report(dsv41_rows_progress progress, void* user) {
  if (progress == nullptr) return nullptr;
  return [progress, user](std::uint64_t done, std::uint64_t total) {
    if (progress(user, done, total) != 0) throw Interrupted();
  };
}

// One line by one write(2): it must not mix with the lines of other threads.
[[noreturn]] void die(const RowStore& store, int status) {
  const Header& header = store.header();
  const std::string line = "{\"event\": \"dsv41_rows_fatal\", \"kind\": " + quote_json(dsv41_rows_kind(status)) +
                           ", \"layer\": " + std::to_string(header.layer) + ", \"rank\": " +
                           std::to_string(header.rank) + ", \"says\": " + quote_json(last_error) + "}\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  std::abort();
}

void settle(dsv41_rows_work& work, int status, const Shared* shared) {
  work.status = status;
  if (status > DSV41_ROWS_OK && shared != nullptr && shared->production) die(shared->store, status);
}

// The store reads int64; narrower ids are widened on the way.
const std::int64_t* wide_ids(const dsv41_rows_work& work, std::vector<std::int64_t>& space) {
  if (work.id_bytes == 8) return static_cast<const std::int64_t*>(work.ids);
  const auto* ids = static_cast<const std::int32_t*>(work.ids);
  space.assign(ids, ids + work.count);
  return space.data();
}

void check_work(const dsv41_rows_work* work) {
  check_size(work, "work");
  const bool whole = work->count == 0 || (work->ids != nullptr && work->weights != nullptr && work->scales != nullptr);
  if (work->store == nullptr || !whole || (work->id_bytes != 4 && work->id_bytes != 8)) {
    throw RowError(Kind::argument, "work: expected a store, ids of 4 or 8 bytes, and memory for ids and rows");
  }
}

void submit(dsv41_rows_work& work) {
  check_work(&work);
  if (work.ticket != nullptr) throw RowError(Kind::argument, "work: submitted again before it was waited for");
  static thread_local std::vector<std::int64_t> space;
  const std::shared_ptr<Shared>& shared = work.store->shared;
  work.ticket = new Pending{shared->store.submit(wide_ids(work, space), work.count, work.weights, work.scales), shared};
}

void wait(dsv41_rows_work& work, Pending* pending, double seconds) {
  if (pending == nullptr) throw RowError(Kind::argument, "work: waited for without having been submitted");
  pending->ticket.wait(seconds);
  ++work.generation;
  if (work.flag != nullptr) __atomic_store_n(work.flag, static_cast<std::uint32_t>(work.generation), __ATOMIC_RELEASE);
}

int finish(dsv41_rows_work& work, double seconds) {
  std::unique_ptr<Pending> pending(static_cast<Pending*>(work.ticket));
  const int status = guarded([&] { wait(work, pending.get(), seconds); });
  if (status == DSV41_ROWS_TIMEOUT) {
    pending.release();
    return status;
  }
  work.ticket = nullptr;
  settle(work, status, pending ? pending->shared.get() : nullptr);
  return status;
}

dsv41_rows_work& as_work(void* work) { return *static_cast<dsv41_rows_work*>(work); }

PackOptions pack_options(const dsv41_rows_pack_options& given) {
  PackOptions options;
  options.source = text_or(given.source, "");
  options.records = {text_or(given.records_path, ""), given.records_data_begin, given.records_first_row,
                     given.records_end_row};
  options.made = given.made != 0;
  options.target = text_or(given.target, "");
  options.layer = given.layer;
  options.rank = given.rank;
  options.tp = given.tp;
  options.partition = text_or(given.partition, "");
  options.total_rows = given.total_rows;
  options.revision = text_or(given.revision, "");
  options.progress = report(given.progress, given.user);
  for (const std::uint64_t* r = given.ranges; r != given.ranges + 3 * given.range_count; r += 3) {
    options.ranges.push_back({r[0], r[1], r[2]});
  }
  if (given.chunk_pages != 0) options.chunk_pages = given.chunk_pages;
  if (given.journal_chunks != 0) options.journal_chunks = given.journal_chunks;
  return options;
}

OpenOptions open_options(const dsv41_rows_options& given) {
  OpenOptions options;
  options.expected = {given.layer, given.rank, given.tp, text_or(given.partition, ""),
                      text_or(given.source_digest, ""), text_or(given.revision, "")};
  options.engine = text_or(given.engine, "auto");
  options.threads = given.threads;
  options.depth = given.depth;
  options.cache_bytes = given.cache_bytes;
  options.order_bounds.assign(given.order_bounds, given.order_bounds + given.order_bound_count);
  return options;
}

}  // namespace

extern "C" {

uint32_t dsv41_rows_abi(void) { return DSV41_ROWS_ABI; }

const char* dsv41_rows_error(void) { return last_error.c_str(); }

int dsv41_rows_engines(char** text) {
  return guarded([&] {
    std::string list;
    for (const std::string& name : engine_names()) list += (list.empty() ? "[" : ", ") + quote_json(name);
    give(text, list + "]");
  });
}

const char* dsv41_rows_kind(int status) {
  if (status == DSV41_ROWS_OK) return "ok";
  if (status == DSV41_ROWS_PENDING) return "pending";
  if (status == DSV41_ROWS_INTERRUPTED) return "interrupted";
  return kind_name(static_cast<Kind>(status - 1));
}

int dsv41_rows_open(const char* path, const dsv41_rows_options* options, dsv41_rows_store** store) {
  return guarded([&] {
    check_size(options, "options");
    *store = new dsv41_rows_store{
        std::shared_ptr<Shared>(new Shared{{path, open_options(*options)}, options->production != 0})};
  });
}

void dsv41_rows_submit(void* work) {
  dsv41_rows_work& given = as_work(work);
  const int status = guarded([&] { submit(given); });
  settle(given, status == DSV41_ROWS_OK ? DSV41_ROWS_PENDING : status,
         given.store == nullptr ? nullptr : given.store->shared.get());
}

void dsv41_rows_wait(void* work) {
  // A submit that failed has said so already; waiting for it must not hide why.
  const int32_t before = as_work(work).status;
  if (as_work(work).ticket == nullptr && before > DSV41_ROWS_OK) return;
  finish(as_work(work), -1);
}

void dsv41_rows_lookup(void* work) {
  dsv41_rows_submit(work);
  dsv41_rows_wait(work);
}

int dsv41_rows_wait_for(dsv41_rows_work* work, double seconds) {
  return finish(*work, seconds < 0 ? 0 : seconds);
}

void dsv41_rows_close(dsv41_rows_store* store) {
  if (store == nullptr) return;
  guarded([&] { store->shared->store.close(); });
  delete store;
}

int dsv41_rows_stats(const dsv41_rows_store* store, char** text) {
  return guarded([&] { give(text, store->shared->store.stats_json()); });
}

int dsv41_rows_header(const dsv41_rows_store* store, char** text) {
  return guarded([&] { give(text, header_json(store->shared->store.header())); });
}

int dsv41_rows_inspect(const char* path, char** text) {
  return guarded([&] { give(text, header_json(inspect(path))); });
}

int dsv41_rows_source(const char* safetensors, uint32_t layer, char** text) {
  return guarded([&] { give(text, source_json(read_source(safetensors, layer))); });
}

int dsv41_rows_verify(const char* path, dsv41_rows_progress progress, void* user, char** text) {
  return guarded([&] { give(text, verification_json(verify(path, report(progress, user)))); });
}

void dsv41_rows_free(char* text) { std::free(text); }

int dsv41_rows_pack(const dsv41_rows_pack_options* options, int* packed) {
  return guarded([&] {
    check_size(options, "options");
    *packed = pack(pack_options(*options)) ? 1 : 0;
  });
}

}  // extern "C"
