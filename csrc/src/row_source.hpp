// Where a packer takes rows from: the tensors of a checkpoint, records of another packed form, or both, compared.
#pragma once

#include <cstdint>
#include <memory>

#include "dsv41_rows/row_store.hpp"

namespace dsv41 {

// Consecutive rows in memory: row i has its weights at weights + i * weight_stride, likewise the scales.
struct RowView {
  const std::uint8_t* weights;
  std::size_t weight_stride;
  const std::uint8_t* scales;
  std::size_t scale_stride;
};

class RowSource {
 public:
  virtual ~RowSource() = default;
  // Global rows row .. row + count - 1; the memory is good until the next call.
  virtual RowView read(std::uint64_t row, std::uint64_t count) = 0;
};

std::unique_ptr<RowSource> tensor_source(const std::string& safetensors, const Source& source);
std::unique_ptr<RowSource> record_source(const Records& records);
// Rows whose bytes follow from their numbers: the 33 words of a row are mix(33 * row + k), see made_source in the cpp.
std::unique_ptr<RowSource> made_source();
// Rows of `tested`; any that differs from `reference` is Kind::mismatch, naming the row.
std::unique_ptr<RowSource> compared_source(std::unique_ptr<RowSource> tested, std::unique_ptr<RowSource> reference,
                                           const std::string& name);

}  // namespace dsv41
