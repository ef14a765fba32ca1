// Engram rows on disk: the row file, and the store that reads it.
//
// FILE FORMAT, version 1. Little-endian. One file holds the rows that one tensor-parallel rank owns of one
// Engram layer. Its size is exactly 4096 * (1 + page_count).
//
//   Header page                                        Data page p (p = 0 .. page_count - 1), at 4096 * (1 + p)
//      0  char[8]  magic "DSV41ROW"                       0  u8[15][256]  FP8 E4M3 weights of rows 15p .. 15p + 14
//      8  u32      version = 1                         3840  u8[15][8]    UE8M0 scales, one per 32 weights
//     12  u32      header bytes = 4096                 3960  u32[15]      CRC32C of each row, over
//     16  u32      layer                                                  u32 layer, u64 global row id,
//     20  u32      rank                                                   256 weight bytes, 8 scale bytes
//     24  u32      tp                                  4020  u64          page number p
//     28  u32      rows per page = 15                  4028  u32          CRC32C of the page without these 4 bytes
//     32  u32      row bytes = 264                     4032  zero to 4096
//     36  u32      weight bytes = 256                  Slots past the last row are zero, their CRC32C too.
//     40  u32      scale bytes = 8
//     44  u32      page bytes = 4096
//     48  u64      total rows of the layer's table
//     56  u64      local rows                          local row i lies in page i / 15, slot i % 15
//     64  u64      page count = ceil(local rows / 15)
//     72  u32      flags: bit 0 = complete
//     76  u32      range count, 0 .. 24 (0 = this rank owns no row)
//     80  char[32] partition name, zero-padded
//    112  char[32] packer name and version, zero-padded
//    144  char[64] checkpoint revision, zero-padded, may be empty
//    208  u8[32]   SHA-256 of the source safetensors header (its 8 length bytes and its JSON)
//    240  u64      size of the source file; 0 = imported without its checkpoint, then all hashes and offsets are 0
//    248  u64      offset in it of the weight tensor      (file offset, not relative to the data section)
//    256  u64      offset in it of the scale tensor
//    264  u8[32]   SHA-256 of a sample of the source: 64 rows i * (total - 1) / 63, 256 + 8 bytes each
//    296  u8[32]   SHA-256 over the page CRCs (u32 each) in page order; zero while the file is unfinished
//    328  char[64] name of the source file, zero-padded
//    512  { u64 lo, u64 hi, u64 base }[24]: global rows lo .. hi - 1 are the local rows base ..; ascending,
//         disjoint, base = sum of the lengths before
//   4092  u32      CRC32C of bytes 0 .. 4091. All other bytes are zero.
//
// A row's CRC covers its global id, so a row that was swapped with another or read from a wrong place is caught
// like a flipped bit. No time, host name or path is in the file: the same checkpoint gives the same bytes.
//
// THREADING. A RowStore may be used from any number of threads at once, also from one it has never seen (a CUDA
// driver thread). submit() copies nothing of the output: the two output arrays belong to the store until wait()
// has returned or thrown, the ids may be reused once submit() has returned. Each Ticket is waited for by one thread.
// close() waits for what is in flight. After fork() the child may destroy the store; submit, lookup and wait throw.
// No function holds a lock while it reads from the disk.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace dsv41 {

constexpr std::uint32_t kFormatVersion = 1;
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kRowsPerPage = 15;
constexpr std::size_t kWeightBytes = 256;
constexpr std::size_t kScaleBytes = 8;
constexpr std::size_t kRowBytes = kWeightBytes + kScaleBytes;
constexpr std::size_t kMaxRanges = 24;
constexpr const char* kPackerName = "dsv41-rows 0.1.0";

using Digest = std::array<std::uint8_t, 32>;

enum class Kind {
  argument,     // the caller passed something that cannot be
  mismatch,     // the file is a good one, but not the one asked for
  malformed,    // not a row file, or not a safetensors file of the expected tensors
  truncated,    // shorter than its own header says
  unfinished,   // the packer did not end
  corrupt,      // a CRC or a digest does not hold
  io,           // the operating system refused a read or a write
  range,        // a row id beyond the table
  unsupported,  // the engine asked for cannot work here
  space,        // the disk is full
  busy,         // another packer holds the lock
  closed,       // the store was closed
  forked,       // used in a child of the process that opened it
  timeout,      // wait() gave up
};
const char* kind_name(Kind kind);

class RowError : public std::runtime_error {
 public:
  RowError(Kind kind, const std::string& says) : std::runtime_error(says), kind_(kind) {}
  Kind kind() const { return kind_; }

 private:
  Kind kind_;
};

struct Range {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;
  std::uint64_t base = 0;
};

// Which table of which checkpoint the rows came from.
struct Source {
  std::string file;  // name without folders
  std::string revision;
  std::uint64_t rows = 0;
  std::uint64_t file_bytes = 0;
  std::uint64_t weight_offset = 0;
  std::uint64_t scale_offset = 0;
  Digest header_sha256{};
  Digest sample_sha256{};

  // One digest over header hash, sample hash, size and offsets. Name and revision are not in it: the same bytes
  // under another revision are the same rows.
  Digest identity() const;
  // False for rows that were imported without their checkpoint: all numbers but `rows` are zero.
  bool bound() const { return file_bytes != 0; }
};

struct Header {
  std::uint32_t layer = 0;
  std::uint32_t rank = 0;
  std::uint32_t tp = 1;
  std::uint64_t total_rows = 0;
  std::uint64_t local_rows = 0;
  std::uint64_t page_count = 0;
  std::string partition;
  std::string packer = kPackerName;
  std::vector<Range> ranges;
  Source source;
  Digest data_digest{};
  bool complete = false;

  std::uint64_t file_bytes() const { return kPageBytes * (1 + page_count); }
  std::uint64_t global_row(std::uint64_t local) const;
};

using Progress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

// Find the Engram tensors of a layer in a safetensors file and check dtype and shape.
Source read_source(const std::string& safetensors, std::uint32_t layer);

// Rows of another packed form: records of 256 + 8 bytes, row r at data_begin + (r - first_row) * 264.
struct Records {
  std::string path;
  std::uint64_t data_begin = 0;
  std::uint64_t first_row = 0;
  std::uint64_t end_row = 0;
};

struct PackOptions {
  // The safetensors file, or empty: then the rows come from `records` and the file stays bound to no checkpoint.
  // With both, the records are compared with the checkpoint row by row.
  std::string source;
  Records records;
  bool made = false;  // instead of both: rows made from their numbers, for measurements
  std::string target;
  std::uint32_t layer = 0;
  std::uint32_t rank = 0;
  std::uint32_t tp = 1;
  std::string partition;
  std::uint64_t total_rows = 0;  // what the model's configuration says; the tensor must agree
  std::vector<Range> ranges;
  std::string revision;
  Progress progress;
  std::uint64_t chunk_pages = 2048;    // 8 MiB; eight chunks are under way at a time
  std::uint64_t journal_chunks = 128;  // how much is done again at most after a crash: 1 GiB
};
// Write a row file, going on where an interrupted packer stopped. False when a complete one of the same identity and
// geometry is there already. Kind::busy when another process packs it.
bool pack(const PackOptions& options);

// Read and check the header page; the file may be unfinished. Throws malformed, corrupt or truncated.
Header inspect(const std::string& path);

struct Problem {
  std::int64_t page;  // -1 = the header or the file as a whole
  std::int64_t row;   // global row id, -1 = not one row
  std::string says;
};
struct Verification {
  bool ok = false;
  std::uint64_t pages = 0;
  std::uint64_t rows = 0;
  std::uint64_t problem_count = 0;
  std::vector<Problem> problems;  // the first 20
};
// Read every byte of a row file and check it against header, CRCs and digest.
Verification verify(const std::string& path, const Progress& progress);

// What the opener expects; a difference is refused, naming expected and found.
struct Expected {
  std::uint32_t layer = 0;
  std::uint32_t rank = 0;
  std::uint32_t tp = 1;
  std::string partition;
  std::string source_digest;  // hex of Source::identity(), empty = not checked
  std::string revision;       // empty = not checked
};

struct OpenOptions {
  Expected expected;
  // auto | uring | aio | pread. auto takes the first that passes a test read; stats() then says why others were refused. An
  // engine asked for by name is that engine or Kind::unsupported.
  std::string engine = "auto";
  unsigned threads = 0;           // of the pread engine; 0 = 32
  unsigned depth = 0;             // reads in flight of the uring and aio engines; 0 = 128
  std::uint64_t cache_bytes = 0;  // rows kept in memory; 0 = none
  // Global rows at which the next n-gram order begins, for counters by order; may be empty.
  std::vector<std::uint64_t> order_bounds;
};

class Batch;
class StoreState;

// One submitted lookup. Destroying it waits for the reads, because they write to the caller's arrays.
class Ticket {
 public:
  Ticket(std::shared_ptr<StoreState> state, Batch* batch);
  Ticket(Ticket&&) noexcept = default;
  Ticket& operator=(Ticket&&) = delete;
  ~Ticket();

  bool done() const;
  // Blocks until the rows are there; throws what went wrong. A negative timeout waits forever.
  void wait(double timeout_seconds = -1);

 private:
  std::shared_ptr<StoreState> state_;
  Batch* batch_;
  std::unique_ptr<RowError> error_;
};

class RowStore {
 public:
  RowStore(const std::string& path, const OpenOptions& options);
  ~RowStore();
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  // Rows of `count` global ids: weights[i][256], scales[i][8]. Ids of other ranks and negative ids give zero rows.
  // An id at or past the end of the table is an error, and then nothing is read.
  void lookup(const std::int64_t* ids, std::size_t count, std::uint8_t* weights, std::uint8_t* scales);
  Ticket submit(const std::int64_t* ids, std::size_t count, std::uint8_t* weights, std::uint8_t* scales);

  const Header& header() const;
  std::string stats_json() const;
  void close();

 private:
  std::shared_ptr<StoreState> state_;
};

// Names of the engines in this build, in the order that auto tries them.
std::vector<std::string> engine_names();

std::string hex(const Digest& digest);
std::string header_json(const Header& header);
std::string source_json(const Source& source);
std::string verification_json(const Verification& verification);

}  // namespace dsv41
