// Every byte of a row file against its own checks.
#include <algorithm>
#include <cstring>

#include "bytes.hpp"
#include "dsv41_rows/row_store.hpp"
#include "file.hpp"
#include "row_file.hpp"
#include "sha256.hpp"

namespace dsv41 {
namespace {

constexpr std::size_t kListed = 20;
constexpr std::uint64_t kChunkPages = 1024;

class Verifier {
 public:
  explicit Verifier(const Header& header) : header_(header) {}

  void page(std::uint64_t number, const std::uint8_t* page) {
    digest_.update(page + kPageCrcAt, 4);
    ++result_.pages;
    if (get<std::uint64_t>(page + kPageNumberAt) != number) {
      add(number, -1, "page number " + std::to_string(get<std::uint64_t>(page + kPageNumberAt)));
    }
    if (page_crc(page) != get<std::uint32_t>(page + kPageCrcAt)) add(number, -1, "the page fails its CRC32C");
    for (std::size_t slot = 0; slot < kRowsPerPage; ++slot) this->slot(number, slot, page);
    if (!zero(page + kPageCrcAt + 4, kPageBytes - kPageCrcAt - 4)) add(number, -1, "bytes after the page CRC are not zero");
  }

  void add(std::int64_t page, std::int64_t row, const std::string& says) {
    ++result_.problem_count;
    if (result_.problems.size() < kListed) result_.problems.push_back({page, row, says});
  }

  Verification finish() {
    if (digest_.finish() != header_.data_digest) add(-1, -1, "the page CRCs do not give the data digest of the header");
    result_.ok = result_.problem_count == 0;
    return std::move(result_);
  }

 private:
  static bool zero(const std::uint8_t* at, std::size_t size) {
    return std::all_of(at, at + size, [](std::uint8_t byte) { return byte == 0; });
  }

  void slot(std::uint64_t page_number, std::size_t slot, const std::uint8_t* page) {
    const std::uint8_t* weights = page + slot * kWeightBytes;
    const std::uint8_t* scales = page + kScalesAt + slot * kScaleBytes;
    const auto crc = get<std::uint32_t>(page + kRowCrcsAt + slot * 4);
    const std::uint64_t local = page_number * kRowsPerPage + slot;
    if (local >= header_.local_rows) {
      if (crc != 0 || !zero(weights, kWeightBytes) || !zero(scales, kScaleBytes)) {
        add(page_number, -1, "slot " + std::to_string(slot) + " past the last row is not zero");
      }
      return;
    }
    ++result_.rows;
    const std::uint64_t row = header_.global_row(local);
    if (crc != row_crc(header_.layer, row, weights, scales)) {
      add(page_number, static_cast<std::int64_t>(row), "the row fails its CRC32C");
    }
  }

  const Header& header_;
  Sha256 digest_;
  Verification result_;
};

void verify_pages(const File& file, const Header& header, Verifier& verifier, const Progress& progress) {
  const Pages memory = allocate_pages(std::min(kChunkPages, header.page_count + 1) * kPageBytes);
  for (std::uint64_t first = 0; first < header.page_count; first += kChunkPages) {
    const std::uint64_t count = std::min(kChunkPages, header.page_count - first);
    file.read(memory.get(), count * kPageBytes, page_offset(first));
    file.forget(page_offset(first), count * kPageBytes);
    for (std::uint64_t i = 0; i < count; ++i) verifier.page(first + i, memory.get() + i * kPageBytes);
    if (progress) progress(page_offset(first + count), header.file_bytes());
  }
}

Verification only_problem(const std::string& says) {
  Verification result;
  result.problem_count = 1;
  result.problems.push_back({-1, -1, says});
  return result;
}

// The header must be the one that its own fields encode to: no byte of it is outside the check.
bool canonical(const File& file, const Header& header) {
  const Pages found = allocate_pages(kPageBytes), expected = allocate_pages(kPageBytes);
  file.read(found.get(), kPageBytes, 0);
  encode_header(header, expected.get());
  return std::memcmp(found.get(), expected.get(), kPageBytes) == 0;
}

}  // namespace

Verification verify(const std::string& path, const Progress& progress) {
  const File file = File::open_read(path);
  Header header;
  try {
    header = read_header(file);
  } catch (const RowError& error) {
    if (error.kind() == Kind::io) throw;
    return only_problem(error.what());
  }
  if (!header.complete) return only_problem(path + ": the packer did not finish this file");
  Verifier verifier(header);
  if (!canonical(file, header)) verifier.add(-1, -1, "the header has bytes that its fields do not explain");
  verify_pages(file, header, verifier, progress);
  return verifier.finish();
}

}  // namespace dsv41
