// Rows in memory, set-associative, off by default.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "dsv41_rows/row_store.hpp"

namespace dsv41 {

class RowCache {
 public:
  // As many rows as fit into `bytes`, at least one set; 4 ways.
  explicit RowCache(std::uint64_t bytes);

  // A row keeps its CRC, and `global` is checked against it again: memory is not trusted more than the disk. A row that
  // fails is dropped and `rejected` is set.
  bool get(std::uint32_t layer, std::uint32_t local, std::uint64_t global, std::uint8_t* weights,
           std::uint8_t* scales, bool& rejected);
  void put(std::uint32_t local, const std::uint8_t* weights, const std::uint8_t* scales, std::uint32_t crc);

  std::uint64_t rows() const { return slots_.size(); }

 private:
  static constexpr std::size_t kWays = 4;
  static constexpr std::size_t kLocks = 256;

  struct Slot {
    std::uint64_t key = 0;  // local row + 1, 0 = empty
    std::uint32_t crc = 0;
    std::uint8_t weights[kWeightBytes];
    std::uint8_t scales[kScaleBytes];
  };

  std::size_t set_of(std::uint32_t local) const;

  std::size_t sets_;
  std::vector<Slot> slots_;
  std::vector<std::uint8_t> victims_;  // next way to replace, per set
  std::array<std::mutex, kLocks> locks_;
};

}  // namespace dsv41
