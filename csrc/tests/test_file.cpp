// Every single bit of header and pages: flipped on the disk, it must be found.
//   test_file FOLDER
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "check.hpp"
#include "row_file.hpp"
#include "synthetic.hpp"

using namespace dsv41;

namespace {

constexpr std::uint64_t kRows = 8 * 20;  // rank 1 owns 80: five full pages and one with 5 rows

class Flipper {
 public:
  explicit Flipper(const std::string& path) : fd_(::open(path.c_str(), O_RDWR)) { CHECK(fd_ >= 0); }
  ~Flipper() { ::close(fd_); }
  void flip(std::uint64_t bit) const {
    std::uint8_t byte = 0;
    CHECK(::pread(fd_, &byte, 1, static_cast<off_t>(bit / 8)) == 1);
    byte ^= static_cast<std::uint8_t>(1u << bit % 8);
    CHECK(::pwrite(fd_, &byte, 1, static_cast<off_t>(bit / 8)) == 1);
  }

 private:
  int fd_;
};

void test_flips(const std::string& path) {
  const Flipper flipper(path);
  CHECK(verify(path, nullptr).ok);
  const std::uint64_t pages[] = {0, 1, 6};  // header, a full page, the last one
  for (const std::uint64_t page : pages) {
    for (std::uint64_t bit = page * kPageBytes * 8; bit < (page + 1) * kPageBytes * 8; ++bit) {
      flipper.flip(bit);
      CHECK(!verify(path, nullptr).ok);
      flipper.flip(bit);
    }
  }
  CHECK(verify(path, nullptr).ok);
}

void test_header() {
  Header header;
  header.rank = 1;
  header.tp = 2;
  header.total_rows = 100;
  header.ranges = {{10, 20, 0}, {50, 51, 10}};
  header.local_rows = 11;
  header.page_count = 1;
  header.partition = "pieces";
  const Pages page = allocate_pages(kPageBytes);
  encode_header(header, page.get());
  const Header found = decode_header(page.get(), "here");
  CHECK(found.ranges.size() == 2 && found.global_row(9) == 19 && found.global_row(10) == 50);
  CHECK_THROWS(Kind::argument, found.global_row(11));
  for (const Range& bad : {Range{15, 25, 10}, Range{50, 50, 10}, Range{50, 51, 9}, Range{99, 101, 10}}) {
    Header broken = header;
    broken.ranges[1] = bad;
    CHECK_THROWS(Kind::argument, encode_header(broken, page.get()));
  }
  header.partition = std::string(32, 'x');
  CHECK_THROWS(Kind::argument, encode_header(header, page.get()));
}

}  // namespace

int main(int, char** words) {
  const std::string folder = words[1];
  const std::string source = folder + "/small.safetensors", target = folder + "/small.rows";
  write_table(source, 14, kRows);
  CHECK(pack(pack_half(source, target, kRows)));
  CHECK(!pack(pack_half(source, target, kRows)));
  test_header();
  test_flips(target);
  std::printf("file: ok, every bit of 3 pages flipped\n");
}
