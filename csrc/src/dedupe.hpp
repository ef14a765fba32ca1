// Equal rows of one batch are read once. The result is a list of unique rows, each with a chain of destinations.
#pragma once

#include <cstdint>
#include <vector>

namespace dsv41 {

constexpr std::uint32_t kChainEnd = 0xffffffff;

struct Unique {
  std::uint32_t local;  // row in the file
  std::uint32_t first;  // first destination; further ones follow by next[]
};

class Dedupe {
 public:
  // `owned` holds local row << 32 | destination; it is used as scratch. next[d] is written for every destination.
  // Above kHashLimit the unique rows come out in file order.
  void run(std::vector<std::uint64_t>& owned, std::vector<Unique>& unique, std::vector<std::uint32_t>& next);

  // A table of 2 x 2048 x 4 bytes stays in the first-level cache; larger batches are sorted.
  static constexpr std::size_t kHashLimit = 2048;

 private:
  void by_hash(const std::vector<std::uint64_t>& owned, std::vector<Unique>& unique, std::vector<std::uint32_t>& next);
  void by_radix(std::vector<std::uint64_t>& owned, std::vector<Unique>& unique, std::vector<std::uint32_t>& next);

  std::vector<std::uint32_t> table_;
  std::vector<std::uint64_t> scratch_;
};

}  // namespace dsv41
