#include "page_builder.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "bytes.hpp"
#include "crc32c.hpp"
#include "row_file.hpp"

namespace dsv41 {

void PageBuilder::fill(Chunk& chunk, std::uint64_t capacity) {
  if (!chunk.pages) chunk.pages = allocate_pages(capacity * kPageBytes);
  static const std::uint32_t free_slot = crc32c(0, std::array<std::uint8_t, kWeightBytes>{}.data(), kWeightBytes);
  weights_crcs_.assign(chunk.page_count * kRowsPerPage, free_slot);
  // Rows overwrite all of a page but its zero tail; only the last page of the file has free slots.
  std::memset(chunk.pages.get() + (chunk.page_count - 1) * kPageBytes, 0, kPageBytes);
  const std::uint64_t begin = chunk.first_page * kRowsPerPage;
  const std::uint64_t end = std::min(header_.local_rows, begin + chunk.page_count * kRowsPerPage);
  for (const Range& range : header_.ranges) {
    const std::uint64_t lo = std::max(begin, range.base);
    const std::uint64_t hi = std::min(end, range.base + (range.hi - range.lo));
    if (lo < hi) fill_piece(chunk, {range.lo + (lo - range.base), range.lo + (hi - range.base), lo});
  }
  for (std::uint64_t i = 0; i < chunk.page_count; ++i) {
    std::uint8_t* page = chunk.pages.get() + i * kPageBytes;
    put(page + kPageNumberAt, chunk.first_page + i);
    put(page + kPageCrcAt, page_crc(page, &weights_crcs_[i * kRowsPerPage]));
  }
}

// Global rows piece.lo .. piece.hi - 1 are the local rows piece.base ..
void PageBuilder::fill_piece(Chunk& chunk, const Range& piece) {
  const std::uint64_t count = piece.hi - piece.lo;
  RowView from = rows_->read(piece.lo, count);
  for (std::uint64_t i = 0; i < count; ++i, from.weights += from.weight_stride, from.scales += from.scale_stride) {
    const std::uint64_t index = piece.base + i - chunk.first_page * kRowsPerPage;
    std::uint8_t* page = chunk.pages.get() + index / kRowsPerPage * kPageBytes;
    const std::size_t slot = index % kRowsPerPage;
    std::memcpy(page + slot * kWeightBytes, from.weights, kWeightBytes);
    std::memcpy(page + kScalesAt + slot * kScaleBytes, from.scales, kScaleBytes);
    weights_crcs_[index] = crc32c(0, from.weights, kWeightBytes);
    put(page + kRowCrcsAt + slot * 4, row_crc(header_.layer, piece.lo + i, weights_crcs_[index], from.scales));
  }
}

}  // namespace dsv41
