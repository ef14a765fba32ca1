// Rows -> row file: several chunks at a time are read, built and written past the page cache; what is done without a gap
// is noted.
//
// What is on the disk at any moment is the old file, or the old file and a TARGET.partial that a journal describes:
// the target's name is only ever given by rename, to a file that is whole and flushed.
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "bytes.hpp"
#include "dsv41_rows/row_store.hpp"
#include "file.hpp"
#include "journal.hpp"
#include "page_builder.hpp"
#include "row_file.hpp"

namespace dsv41 {
namespace {

Header plan_header(const PackOptions& options) {
  Header header;
  header.layer = options.layer;
  header.rank = options.rank;
  header.tp = options.tp;
  header.partition = options.partition;
  header.ranges = options.ranges;
  if (options.source.empty()) {
    header.source.file = options.made ? "made" : name_of(options.records.path);
    header.source.rows = options.total_rows;
  } else {
    header.source = read_source(options.source, options.layer);
  }
  header.source.revision = options.revision;
  header.total_rows = header.source.rows;
  if (header.total_rows != options.total_rows) {
    throw RowError(Kind::mismatch, options.source + ": layer " + std::to_string(options.layer) + ": expected " +
                                       std::to_string(options.total_rows) + " rows, found " +
                                       std::to_string(header.total_rows));
  }
  for (const Range& range : header.ranges) header.local_rows += range.hi - range.lo;
  header.page_count = pages_for(header.local_rows);
  return header;
}

bool same_header(Header found, Header wanted) {
  found.complete = wanted.complete = true;
  found.data_digest = wanted.data_digest = {};
  const Pages a = allocate_pages(kPageBytes), b = allocate_pages(kPageBytes);
  encode_header(found, a.get());
  encode_header(wanted, b.get());
  return std::memcmp(a.get(), b.get(), kPageBytes) == 0;
}

// Another identity, an older packer or a damaged header: pack again; the old file stays until the rename.
bool already_packed(const std::string& target, const Header& wanted) {
  if (!exists(target)) return false;
  try {
    const Header found = inspect(target);
    return found.complete && same_header(found, wanted);
  } catch (const RowError& error) {
    if (error.kind() == Kind::io) throw;
    return false;
  }
}

std::unique_ptr<RowSource> rows_of(const PackOptions& options, const Header& header) {
  if (options.made) return made_source();
  if (options.records.path.empty()) return tensor_source(options.source, header.source);
  if (options.source.empty()) return record_source(options.records);
  return compared_source(record_source(options.records), tensor_source(options.source, header.source),
                         options.records.path);
}

// A disk that is full to the last byte harms the whole node: one part in 64 stays free beside the file.
void check_space(const std::string& folder, std::uint64_t needed) {
  struct statvfs found {};
  if (::statvfs(folder.c_str(), &found) != 0) return;  // fallocate will tell
  const std::uint64_t free = static_cast<std::uint64_t>(found.f_bavail) * found.f_frsize;
  if (free >= needed + needed / 64) return;
  throw RowError(Kind::space, folder + ": expected " + std::to_string(needed + needed / 64) +
                                  " free bytes, found " + std::to_string(free));
}

constexpr const char* kTraces[] = {".partial", ".journal", ".journal.new"};

bool has_traces(const std::string& target) {
  return exists(target + ".lock") ||
         std::any_of(std::begin(kTraces), std::end(kTraces), [&](const char* end) { return exists(target + end); });
}

void remove_traces(const std::string& target) {
  for (const char* suffix : kTraces) ::unlink((target + suffix).c_str());
}

// One chunk under way. Its future is destroyed first, and that waits for the work.
struct Slot {
  Slot(const Header& header, std::unique_ptr<RowSource> rows) : builder(header, std::move(rows)) {}
  PageBuilder builder;
  Chunk chunk;
  std::future<void> work;
};

// So many chunks keep reads and writes in flight together, with 16 MB of memory each. They end in order, so there are more
// than the disk needs at a time: a slow one holds up nobody.
constexpr std::size_t kSlots = 8;

class Packing {
 public:
  Packing(const PackOptions& options, Header header)
      : options_(options),
        header_(std::move(header)),
        partial_(options.target + ".partial"),
        journal_(options.target + ".journal"),
        page_(allocate_pages(kPageBytes)) {}

  void run() {
    File file = resume();
    write_data(file);
    file.sync_data();
    Header whole = header_;
    whole.data_digest = done_.digest.finish();
    whole.complete = true;
    write_header(file, whole);
    file.sync();
    file.forget(0, header_.file_bytes());
    rename_durably(partial_, options_.target);
    remove_traces(options_.target);
  }

 private:
  File resume() {
    if (exists(partial_) && load_journal(journal_, header_, done_)) {
      File file = File::open_write(partial_);
      if (last_chunk_holds(file)) return file;
    }
    return start();
  }

  // The pages that the journal counted last are the ones that a lying disk would have lost.
  bool last_chunk_holds(const File& file) {
    if (file.size() != header_.file_bytes()) return false;
    const std::uint64_t first = done_.pages - std::min(done_.pages, options_.chunk_pages);
    const Pages memory = allocate_pages((done_.pages - first) * kPageBytes + kPageBytes);
    file.read(memory.get(), (done_.pages - first) * kPageBytes, page_offset(first));
    for (std::uint64_t p = first; p < done_.pages; ++p) {
      const std::uint8_t* page = memory.get() + (p - first) * kPageBytes;
      if (get<std::uint64_t>(page + kPageNumberAt) != p || get<std::uint32_t>(page + kPageCrcAt) != page_crc(page)) return false;
    }
    return true;
  }

  File start() {
    done_ = Done{};
    remove_traces(options_.target);
    check_space(folder_of(partial_), header_.file_bytes());
    File file = File::open_write(partial_);
    try {
      file.reserve(header_.file_bytes());
      write_header(file, header_);
    } catch (const RowError&) {
      ::unlink(partial_.c_str());  // give back what was reserved
      throw;
    }
    return file;
  }

  void write_header(const File& file, const Header& header) {
    encode_header(header, page_.get());
    file.write(page_.get(), kPageBytes, 0);
  }

  void write_data(const File& file) {
    std::vector<Slot> slots;
    for (std::size_t i = 0; i < kSlots; ++i) slots.emplace_back(header_, rows_of(options_, header_));
    std::uint64_t next = done_.pages;
    for (Slot& slot : slots) next = start(slot, file, next);
    std::future<void> commit;
    for (std::uint64_t k = 0; slots[k % kSlots].chunk.page_count > 0; ++k) {
      Slot& slot = slots[k % kSlots];
      slot.work.get();
      take_digest(slot.chunk);
      next = start(slot, file, next);
      if ((k + 1) % options_.journal_chunks == 0) {
        if (commit.valid()) commit.get();
        commit = std::async(std::launch::async, [this, &file, done = done_] { this->commit(file, done); });
      }
      if (options_.progress) options_.progress(page_offset(done_.pages), header_.file_bytes());
    }
    if (commit.valid()) commit.get();
  }

  std::uint64_t start(Slot& slot, const File& file, std::uint64_t first) {
    slot.chunk.first_page = first;
    slot.chunk.page_count = std::min(options_.chunk_pages, header_.page_count - first);
    slot.work = std::async(std::launch::async, [this, &slot, &file] {
      if (slot.chunk.page_count == 0) return;
      slot.builder.fill(slot.chunk, options_.chunk_pages);
      write_chunk(file, slot.chunk);
    });
    return first + slot.chunk.page_count;
  }

  static void write_chunk(const File& file, const Chunk& chunk) {
    const std::uint64_t offset = page_offset(chunk.first_page), size = chunk.page_count * kPageBytes;
    file.write(chunk.pages.get(), size, offset);
    if (file.direct()) return;
    file.sync_data();
    file.forget(offset, size);
  }

  void take_digest(const Chunk& chunk) {
    const std::uint8_t* page = chunk.pages.get();
    for (std::uint64_t i = 0; i < chunk.page_count; ++i, page += kPageBytes) done_.digest.update(page + kPageCrcAt, 4);
    done_.pages = chunk.first_page + chunk.page_count;
  }

  // Beside the work on further chunks: a flush takes as long as several of them. What `done` counts was written before.
  void commit(const File& file, const Done& done) const {
    file.sync_data();
    store_journal(journal_, header_, done);
  }

  const PackOptions& options_;
  const Header header_;
  const std::string partial_;
  const std::string journal_;
  Pages page_;
  Done done_;
};

}  // namespace

bool pack(const PackOptions& options) {
  if (options.chunk_pages == 0 || options.journal_chunks == 0) throw RowError(Kind::argument, "a chunk has at least one page");
  Header header = plan_header(options);
  check_ranges(header);
  // Without a trace of work there is nothing to write, not even a lock: the folder may be read-only.
  if (!has_traces(options.target) && already_packed(options.target, header)) return false;
  const PackLock lock(options.target + ".lock");
  if (already_packed(options.target, header)) {
    remove_traces(options.target);  // of a packer that was killed right after the rename
    return false;
  }
  Packing(options, std::move(header)).run();
  return true;
}

}  // namespace dsv41
