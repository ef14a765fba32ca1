// libFuzzer: a journal of any bytes is taken only when it is whole and of this header; never more pages than there are.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bytes.hpp"
#include "crc32c.hpp"
#include "journal.hpp"
#include "row_file.hpp"

using namespace dsv41;

namespace {

Header known_header() {
  Header header;
  header.layer = 14;
  header.rank = 1;
  header.tp = 2;
  header.partition = "pieces";
  header.total_rows = 100;
  header.ranges = {{50, 100, 0}};
  header.local_rows = 50;
  header.page_count = 4;
  return header;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::string path = "/dev/shm/dsv41-fuzz-journal-" + std::to_string(::getpid());
  static const Header header = known_header();
  std::vector<std::uint8_t> bytes(data, data + size);
  // Odd inputs have the right header and checksum: then what stands between them is read.
  if (size > 0 && (data[0] & 1) != 0) {
    bytes.resize(kJournalBytes);
    const Pages page = allocate_pages(kPageBytes);
    encode_header(header, page.get());
    const std::size_t tail = size < kJournalBytes - kPageBytes ? size : kJournalBytes - kPageBytes;
    std::memcpy(bytes.data(), page.get(), kPageBytes);
    std::memcpy(bytes.data() + kPageBytes, data, tail);
    put(bytes.data() + kJournalBytes - 4, crc32c(0, bytes.data(), kJournalBytes - 4));
  }
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || ::write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
  ::close(fd);
  Done done;
  if (load_journal(path, header, done)) {
    if (done.pages > header.page_count) std::abort();
    done.digest.update("x", 1);
    done.digest.finish();
  }
  ::unlink(path.c_str());
  return 0;
}
