#include "journal.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "bytes.hpp"
#include "crc32c.hpp"
#include "file.hpp"
#include "row_file.hpp"

namespace dsv41 {
namespace {

using Bytes = std::array<std::uint8_t, kJournalBytes>;

// The file that another packer may have removed between our open and our lock is not the lock any more.
bool still_there(int fd, const std::string& path) {
  struct stat held {}, found {};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &found) == 0 && held.st_ino == found.st_ino &&
         held.st_dev == found.st_dev;
}

bool read_bytes(const std::string& path, Bytes& bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), 0);
  ::close(fd);
  return got == static_cast<ssize_t>(bytes.size());
}

void write_bytes(const std::string& path, const Bytes& bytes) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) throw_errno("cannot write " + path, errno);
  const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), 0);
  const int failed = put < 0 ? errno : put != static_cast<ssize_t>(bytes.size()) ? ENOSPC : ::fsync(fd) != 0 ? errno : 0;
  ::close(fd);
  if (failed != 0) throw_errno("cannot write " + path, failed);
}

}  // namespace

bool load_journal(const std::string& path, const Header& header, Done& done) {
  Bytes bytes{};
  if (!read_bytes(path, bytes)) return false;
  if (crc32c(0, bytes.data(), kJournalBytes - 4) != get<std::uint32_t>(bytes.data() + kJournalBytes - 4)) return false;
  const Pages page = allocate_pages(kPageBytes);
  encode_header(header, page.get());
  if (std::memcmp(page.get(), bytes.data(), kPageBytes) != 0) return false;
  done.pages = get<std::uint64_t>(bytes.data() + kPageBytes);
  done.digest.restore(bytes.data() + kPageBytes + 8);
  return done.pages <= header.page_count;
}

void store_journal(const std::string& path, const Header& header, const Done& done) {
  Bytes bytes{};
  encode_header(header, bytes.data());
  put(bytes.data() + kPageBytes, done.pages);
  done.digest.save(bytes.data() + kPageBytes + 8);
  put(bytes.data() + kJournalBytes - 4, crc32c(0, bytes.data(), kJournalBytes - 4));
  write_bytes(path + ".new", bytes);
  rename_durably(path + ".new", path);
}

PackLock::PackLock(const std::string& path) : path_(path) {
  while (true) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) throw_errno("cannot write " + path, errno);
    if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) {
      if (still_there(fd_, path)) return;
    } else if (errno != EINTR) {
      const int error = errno;
      ::close(fd_);
      if (error != EWOULDBLOCK) throw_errno("cannot lock " + path, error);
      throw RowError(Kind::busy, path + " is held by another packer");
    }
    ::close(fd_);
  }
}

PackLock::~PackLock() {
  ::unlink(path_.c_str());
  ::close(fd_);
}

}  // namespace dsv41
