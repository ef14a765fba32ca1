// Files by descriptor: positional reads and writes past the page cache, and the durable rename.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "dsv41_rows/row_store.hpp"

namespace dsv41 {

// "text (errno 5, Input/output error)" as a RowError; ENOSPC, EDQUOT and EFBIG become Kind::space.
[[noreturn]] void throw_errno(const std::string& says, int error);

struct FreeDeleter {
  void operator()(std::uint8_t* at) const { std::free(at); }
};
using Pages = std::unique_ptr<std::uint8_t[], FreeDeleter>;
// Zeroed memory that O_DIRECT accepts: aligned to a page, `size` rounded up to pages.
Pages allocate_pages(std::size_t size);

class File {
 public:
  File() = default;
  File(File&& other) noexcept { swap(other); }
  File& operator=(File&& other) noexcept {
    swap(other);
    return *this;
  }
  ~File() { close(); }

  // O_DIRECT where the file system takes it, else buffered; direct() says which, refusal() why not.
  static File open_read(const std::string& path);
  // Read and write, made when absent.
  static File open_write(const std::string& path);

  int fd() const { return fd_; }
  bool direct() const { return direct_; }
  const std::string& refusal() const { return refusal_; }
  const std::string& path() const { return path_; }
  std::uint64_t size() const;

  // All or an error: io with errno, truncated when the file ends before. Offset, size and memory as O_DIRECT
  // wants them: multiples of kPageBytes; at the end of the file the last page may be short.
  void read(std::uint8_t* at, std::size_t size, std::uint64_t offset) const;
  void write(const std::uint8_t* at, std::size_t size, std::uint64_t offset) const;
  // Forget what a buffered read or write left in the page cache.
  void forget(std::uint64_t offset, std::uint64_t size) const;
  void reserve(std::uint64_t size) const;  // fallocate: a full disk shows before the work
  void sync_data() const;
  void sync() const;
  void close();

 private:
  void swap(File& other) noexcept;
  void refuse_direct(int error);

  int fd_ = -1;
  bool direct_ = false;
  std::string refusal_;
  std::string path_;
};

// Read any byte range of a file, aligned underneath. The memory is reused by the next call.
class UnalignedReader {
 public:
  explicit UnalignedReader(const File& file) : file_(file), file_bytes_(file.size()) {}
  const std::uint8_t* read(std::uint64_t offset, std::size_t size);

 private:
  const File& file_;
  std::uint64_t file_bytes_;
  std::size_t capacity_ = 0;
  Pages memory_;
};

// Model of the drive below an open file as sysfs names it, empty where there is none.
std::string drive_model(int fd);

std::string folder_of(const std::string& path);
std::string name_of(const std::string& path);
bool exists(const std::string& path);
void sync_folder(const std::string& folder);
// rename(2), then fsync of the folder: after it the new name survives a power cut.
void rename_durably(const std::string& from, const std::string& to);

}  // namespace dsv41
