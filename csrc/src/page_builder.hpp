// Pages of the row file from rows.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "dsv41_rows/row_store.hpp"
#include "file.hpp"
#include "row_source.hpp"

namespace dsv41 {

struct Chunk {
  std::uint64_t first_page = 0;
  std::uint64_t page_count = 0;
  Pages pages;
};

class PageBuilder {
 public:
  PageBuilder(const Header& header, std::unique_ptr<RowSource> rows) : header_(header), rows_(std::move(rows)) {}

  // Pages first_page .. of the chunk; its memory is allocated once, for `capacity` pages.
  void fill(Chunk& chunk, std::uint64_t capacity);

 private:
  void fill_piece(Chunk& chunk, const Range& piece);

  const Header& header_;
  std::unique_ptr<RowSource> rows_;
  std::vector<std::uint32_t> weights_crcs_;  // of every slot of the chunk
};

}  // namespace dsv41
