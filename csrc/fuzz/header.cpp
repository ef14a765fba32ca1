// libFuzzer: a header page of any bytes is refused by a RowError or decodes to what encodes to a valid page again.
#include <cstdlib>
#include <cstring>

#include "bytes.hpp"
#include "crc32c.hpp"
#include "row_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsv41;
  if (size == 0) return 0;
  const Pages page = allocate_pages(kPageBytes);
  std::memcpy(page.get(), data, size < kPageBytes ? size : kPageBytes);
  // Odd inputs pass the checksum, or nothing behind it would ever be reached.
  if ((data[0] & 1) != 0 || size < kPageBytes) {
    std::memcpy(page.get(), "DSV41ROW", 8);
    put(page.get() + kPageBytes - 4, crc32c(0, page.get(), kPageBytes - 4));
  }
  try {
    const Header header = decode_header(page.get(), "fuzzed");
    const Pages again = allocate_pages(kPageBytes);
    encode_header(header, again.get());
    if (header.local_rows > 0) header.global_row(header.local_rows - 1);
    decode_header(again.get(), "encoded");
  } catch (const RowError&) {
  }
  return 0;
}
