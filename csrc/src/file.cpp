#include "file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

namespace dsv41 {

void throw_errno(const std::string& says, int error) {
  const bool space = error == ENOSPC || error == EDQUOT || error == EFBIG;
  throw RowError(space ? Kind::space : Kind::io,
                 says + " (errno " + std::to_string(error) + ", " + std::strerror(error) + ")");
}

Pages allocate_pages(std::size_t size) {
  const std::size_t rounded = (size + kPageBytes - 1) / kPageBytes * kPageBytes;
  auto* memory = static_cast<std::uint8_t*>(std::aligned_alloc(kPageBytes, rounded));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, rounded);
  return Pages(memory);
}

void File::swap(File& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(direct_, other.direct_);
  std::swap(refusal_, other.refusal_);
  std::swap(path_, other.path_);
}

void File::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void File::refuse_direct(int error) {
  refusal_ = std::string("O_DIRECT refused: ") + std::strerror(error);
  direct_ = false;
}

File File::open_read(const std::string& path) {
  File file;
  file.path_ = path;
  file.direct_ = true;
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (file.fd_ >= 0) {
    // Some file systems take the flag and refuse the read; one page shows it.
    const Pages page = allocate_pages(kPageBytes);
    if (::pread(file.fd_, page.get(), kPageBytes, 0) >= 0 || errno != EINVAL) return file;
    file.close();
    errno = EINVAL;
  }
  if (errno != EINVAL) throw_errno("cannot open " + path, errno);
  file.refuse_direct(errno);
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file.fd_ < 0) throw_errno("cannot open " + path, errno);
  ::posix_fadvise(file.fd_, 0, 0, POSIX_FADV_RANDOM);
  return file;
}

File File::open_write(const std::string& path) {
  File file;
  file.path_ = path;
  file.direct_ = true;
  file.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0644);
  if (file.fd_ < 0 && errno == EINVAL) {
    file.refuse_direct(errno);
    file.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  }
  if (file.fd_ < 0) throw_errno("cannot write " + path, errno);
  return file;
}

std::uint64_t File::size() const {
  struct stat found {};
  if (::fstat(fd_, &found) != 0) throw_errno("cannot stat " + path_, errno);
  if (!S_ISREG(found.st_mode)) throw RowError(Kind::malformed, path_ + " is not a regular file");
  return static_cast<std::uint64_t>(found.st_size);
}

void File::read(std::uint8_t* at, std::size_t size, std::uint64_t offset) const {
  while (size > 0) {
    const ssize_t got = ::pread(fd_, at, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("cannot read " + path_ + " at " + std::to_string(offset), errno);
    if (got == 0) {
      throw RowError(Kind::truncated, path_ + " ends at " + std::to_string(offset) + ", " +
                                          std::to_string(size) + " more bytes were expected");
    }
    at += got, offset += static_cast<std::uint64_t>(got), size -= static_cast<std::size_t>(got);
  }
}

void File::write(const std::uint8_t* at, std::size_t size, std::uint64_t offset) const {
  while (size > 0) {
    const ssize_t put = ::pwrite(fd_, at, size, static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw_errno("cannot write " + path_ + " at " + std::to_string(offset), errno);
    at += put, offset += static_cast<std::uint64_t>(put), size -= static_cast<std::size_t>(put);
  }
}

void File::forget(std::uint64_t offset, std::uint64_t size) const {
  if (direct_) return;
  ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(size), POSIX_FADV_DONTNEED);
}

void File::reserve(std::uint64_t size) const {
  int failed = 0;
  do {
    failed = ::fallocate(fd_, 0, 0, static_cast<off_t>(size)) == 0 ? 0 : errno;
  } while (failed == EINTR);
  if (failed == EOPNOTSUPP) failed = ::posix_fallocate(fd_, 0, static_cast<off_t>(size));
  if (failed != 0) {
    throw_errno("cannot reserve " + std::to_string(size) + " bytes for " + path_, failed);
  }
}

void File::sync_data() const {
  if (::fdatasync(fd_) != 0) throw_errno("cannot flush " + path_, errno);
}

void File::sync() const {
  if (::fsync(fd_) != 0) throw_errno("cannot flush " + path_, errno);
}

const std::uint8_t* UnalignedReader::read(std::uint64_t offset, std::size_t size) {
  if (offset + size > file_bytes_) {
    throw RowError(Kind::truncated, file_.path() + " has " + std::to_string(file_bytes_) +
                                        " bytes, a read up to " + std::to_string(offset + size) +
                                        " was expected");
  }
  const std::uint64_t begin = offset / kPageBytes * kPageBytes;
  const std::uint64_t end = (offset + size + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (end - begin > capacity_) memory_ = allocate_pages(capacity_ = end - begin);
  // The last page of a file may be short: ask for whole pages, need only what the file has.
  std::uint64_t at = begin;
  while (at < offset + size) {
    const ssize_t got = ::pread(file_.fd(), memory_.get() + (at - begin), end - at, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("cannot read " + file_.path() + " at " + std::to_string(at), errno);
    if (got == 0) throw RowError(Kind::truncated, file_.path() + " ends at " + std::to_string(at));
    at += static_cast<std::uint64_t>(got);
  }
  file_.forget(begin, end - begin);
  return memory_.get() + (offset - begin);
}

std::string drive_model(int fd) {
  struct stat found {};
  if (::fstat(fd, &found) != 0) return "";
  const std::string device =
      "/sys/dev/block/" + std::to_string(major(found.st_dev)) + ":" + std::to_string(minor(found.st_dev));
  for (const char* below : {"/device/model", "/../device/model"}) {  // a disk, a partition of one
    std::ifstream file(device + below);
    std::string model;
    if (std::getline(file, model)) return model.substr(0, model.find_last_not_of(" \n") + 1);
  }
  return "";
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

void sync_folder(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_errno("cannot open folder " + folder, errno);
  const int failed = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (failed != 0) throw_errno("cannot flush folder " + folder, failed);
}

void rename_durably(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw_errno("cannot rename " + from + " to " + to, errno);
  sync_folder(folder_of(to));
}

}  // namespace dsv41
