#include "row_file.hpp"

#include <algorithm>
#include <cstring>

#include "bytes.hpp"
#include "crc32c.hpp"
#include "sha256.hpp"

namespace dsv41 {
namespace {

constexpr char kMagic[9] = "DSV41ROW";
constexpr std::size_t kPartitionAt = 80, kPackerAt = 112, kRevisionAt = 144, kHeaderHashAt = 208;
constexpr std::size_t kSourceAt = 240, kSampleAt = 264, kDigestAt = 296, kFileNameAt = 328;
constexpr std::size_t kRangesAt = 512, kHeaderCrcAt = 4092;
constexpr std::uint32_t kGeometry[6] = {kPageBytes,  kRowsPerPage, kRowBytes,
                                        kWeightBytes, kScaleBytes, kPageBytes};

void put_text(std::uint8_t* at, std::size_t size, const std::string& text, const char* what) {
  if (text.size() >= size || text.find('\0') != std::string::npos) {
    throw RowError(Kind::argument, std::string(what) + " must have at most " + std::to_string(size - 1) +
                                       " bytes, found " + std::to_string(text.size()));
  }
  std::memcpy(at, text.data(), text.size());
}

// Fields 12 and 28 .. 44: the numbers that are fixed in version 1.
void put_geometry(std::uint8_t* page) {
  put(page + 12, kGeometry[0]);
  for (std::size_t i = 1; i < 6; ++i) put(page + 24 + 4 * i, kGeometry[i]);
}

void check_geometry(const std::uint8_t* page, const std::string& path) {
  std::uint8_t expected[48] = {};
  put_geometry(expected);
  if (std::memcmp(page + 12, expected + 12, 4) != 0 || std::memcmp(page + 28, expected + 28, 20) != 0) {
    throw RowError(Kind::malformed, path + ": page or row sizes differ from 15 rows of 256 + 8 bytes in 4096");
  }
}

void check_identity(const std::uint8_t* page, const std::string& path) {
  if (std::memcmp(page, kMagic, 8) != 0) {
    throw RowError(Kind::malformed, path + " is not a row file: expected it to begin with DSV41ROW");
  }
  const auto version = get<std::uint32_t>(page + 8);
  if (version != kFormatVersion) {
    throw RowError(Kind::malformed, path + ": expected format version 1, found " + std::to_string(version));
  }
  if (crc32c(0, page, kHeaderCrcAt) != get<std::uint32_t>(page + kHeaderCrcAt)) {
    throw RowError(Kind::corrupt, path + ": the header page fails its CRC32C");
  }
}

// A text field always ends with a zero byte.
std::string get_text(const std::uint8_t* at, std::size_t size, const std::string& path) {
  const auto* text = reinterpret_cast<const char*>(at);
  const std::size_t length = ::strnlen(text, size);
  if (length == size) throw RowError(Kind::malformed, path + ": a text field of the header does not end");
  return std::string(text, length);
}

Digest get_digest(const std::uint8_t* at) {
  Digest digest;
  std::copy(at, at + digest.size(), digest.begin());
  return digest;
}

Source decode_source(const std::uint8_t* page, std::uint64_t rows, const std::string& path) {
  Source source;
  source.file = get_text(page + kFileNameAt, 64, path);
  source.revision = get_text(page + kRevisionAt, 64, path);
  source.rows = rows;
  source.file_bytes = get<std::uint64_t>(page + kSourceAt);
  source.weight_offset = get<std::uint64_t>(page + kSourceAt + 8);
  source.scale_offset = get<std::uint64_t>(page + kSourceAt + 16);
  source.header_sha256 = get_digest(page + kHeaderHashAt);
  source.sample_sha256 = get_digest(page + kSampleAt);
  return source;
}

void encode_source(const Source& source, std::uint8_t* page) {
  put_text(page + kFileNameAt, 64, source.file, "the name of the source file");
  put_text(page + kRevisionAt, 64, source.revision, "the checkpoint revision");
  put(page + kSourceAt, source.file_bytes);
  put(page + kSourceAt + 8, source.weight_offset);
  put(page + kSourceAt + 16, source.scale_offset);
  std::copy(source.header_sha256.begin(), source.header_sha256.end(), page + kHeaderHashAt);
  std::copy(source.sample_sha256.begin(), source.sample_sha256.end(), page + kSampleAt);
}

}  // namespace

std::uint32_t row_crc(std::uint32_t layer, std::uint64_t row, const std::uint8_t* weights,
                      const std::uint8_t* scales) {
  std::uint8_t key[12];
  put(key, layer);
  put(key + 4, row);
  const std::uint32_t crc = crc32c(crc32c(0, key, sizeof key), weights, kWeightBytes);
  return crc32c(crc, scales, kScaleBytes);
}

std::uint32_t page_crc(const std::uint8_t* page) {
  const std::uint32_t crc = crc32c(0, page, kPageCrcAt);
  return crc32c(crc, page + kPageCrcAt + 4, kPageBytes - kPageCrcAt - 4);
}

std::uint32_t row_crc(std::uint32_t layer, std::uint64_t row, std::uint32_t weights_crc, const std::uint8_t* scales) {
  std::uint8_t key[12];
  put(key, layer);
  put(key + 4, row);
  return crc32c(crc32c_join256(crc32c(0, key, sizeof key), weights_crc), scales, kScaleBytes);
}

std::uint32_t page_crc(const std::uint8_t* page, const std::uint32_t* weights_crcs) {
  static_assert(kWeightBytes == 256);
  std::uint32_t crc = weights_crcs[0];
  for (std::size_t slot = 1; slot < kRowsPerPage; ++slot) crc = crc32c_join256(crc, weights_crcs[slot]);
  crc = crc32c(crc, page + kScalesAt, kPageCrcAt - kScalesAt);
  return crc32c(crc, page + kPageCrcAt + 4, kPageBytes - kPageCrcAt - 4);
}

std::uint64_t Header::global_row(std::uint64_t local) const {
  for (const Range& range : ranges) {
    if (local < range.base + (range.hi - range.lo)) return range.lo + (local - range.base);
  }
  throw RowError(Kind::argument, "local row " + std::to_string(local) + " of " + std::to_string(local_rows));
}

Digest Source::identity() const {
  Sha256 hash;
  hash.update(header_sha256.data(), header_sha256.size());
  hash.update(sample_sha256.data(), sample_sha256.size());
  for (const std::uint64_t number : {file_bytes, weight_offset, scale_offset, rows}) hash.update(&number, 8);
  return hash.finish();
}

void check_ranges(const Header& header) {
  std::uint64_t end = 0, base = 0;
  bool good = header.ranges.size() <= kMaxRanges && header.rank < header.tp;
  for (const Range& range : header.ranges) {
    good = good && range.lo >= end && range.lo < range.hi && range.base == base;
    end = range.hi;
    base += range.hi - range.lo;
  }
  // The store sorts local rows as 32-bit numbers; the real tables have 384 million rows.
  good = good && end <= header.total_rows && base == header.local_rows && base < (1ull << 32);
  if (!good || header.page_count != pages_for(header.local_rows)) {
    throw RowError(Kind::argument,
                   "expected at most 24 ascending, disjoint row ranges inside the table whose bases add up, and rank < tp");
  }
}

void encode_header(const Header& header, std::uint8_t* page) {
  check_ranges(header);
  std::memset(page, 0, kPageBytes);
  std::memcpy(page, kMagic, 8);
  put(page + 8, kFormatVersion);
  put_geometry(page);
  put(page + 16, header.layer);
  put(page + 20, header.rank);
  put(page + 24, header.tp);
  put(page + 48, header.total_rows);
  put(page + 56, header.local_rows);
  put(page + 64, header.page_count);
  put(page + 72, header.complete ? kFlagComplete : 0u);
  put(page + 76, static_cast<std::uint32_t>(header.ranges.size()));
  put_text(page + kPartitionAt, 32, header.partition, "the partition name");
  put_text(page + kPackerAt, 32, header.packer, "the packer name");
  encode_source(header.source, page);
  std::copy(header.data_digest.begin(), header.data_digest.end(), page + kDigestAt);
  for (std::size_t i = 0; i < header.ranges.size(); ++i) {
    std::memcpy(page + kRangesAt + 24 * i, &header.ranges[i], 24);
  }
  put(page + kHeaderCrcAt, crc32c(0, page, kHeaderCrcAt));
}

Header decode_header(const std::uint8_t* page, const std::string& path) {
  check_identity(page, path);
  check_geometry(page, path);
  Header header;
  header.layer = get<std::uint32_t>(page + 16);
  header.rank = get<std::uint32_t>(page + 20);
  header.tp = get<std::uint32_t>(page + 24);
  header.total_rows = get<std::uint64_t>(page + 48);
  header.local_rows = get<std::uint64_t>(page + 56);
  header.page_count = get<std::uint64_t>(page + 64);
  header.complete = (get<std::uint32_t>(page + 72) & kFlagComplete) != 0;
  header.partition = get_text(page + kPartitionAt, 32, path);
  header.packer = get_text(page + kPackerAt, 32, path);
  header.source = decode_source(page, header.total_rows, path);
  header.data_digest = get_digest(page + kDigestAt);
  header.ranges.resize(std::min<std::size_t>(get<std::uint32_t>(page + 76), kMaxRanges + 1));
  for (std::size_t i = 0; i < header.ranges.size(); ++i) {
    std::memcpy(&header.ranges[i], page + kRangesAt + 24 * i, 24);
  }
  try {
    check_ranges(header);
  } catch (const RowError& error) {
    throw RowError(Kind::malformed, path + ": " + error.what());
  }
  return header;
}

Header read_header(const File& file) {
  const std::uint64_t found = file.size();
  if (found < kPageBytes) {
    throw RowError(Kind::truncated, file.path() + ": expected at least a header of 4096 bytes, found " +
                                        std::to_string(found));
  }
  const Pages page = allocate_pages(kPageBytes);
  file.read(page.get(), kPageBytes, 0);
  Header header = decode_header(page.get(), file.path());
  if (found != header.file_bytes()) {
    const Kind kind = found < header.file_bytes() ? Kind::truncated : Kind::malformed;
    throw RowError(kind, file.path() + ": expected " + std::to_string(header.file_bytes()) +
                             " bytes by its header, found " + std::to_string(found));
  }
  return header;
}

Header inspect(const std::string& path) { return read_header(File::open_read(path)); }

}  // namespace dsv41
