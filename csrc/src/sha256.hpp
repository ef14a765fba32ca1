// SHA-256 (FIPS 180-4), incremental, with a state that can be saved: the packer's journal keeps it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "dsv41_rows/row_store.hpp"

namespace dsv41 {

class Sha256 {
 public:
  void update(const void* data, std::size_t size);
  Digest finish();  // the object may not be used after it

  // Hash state, length and unprocessed bytes: a plain value, little-endian, for a file.
  static constexpr std::size_t kSavedBytes = 32 + 8 + 64;
  void save(std::uint8_t* at) const;
  void restore(const std::uint8_t* at);

 private:
  void block(const std::uint8_t* at);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::uint64_t length_ = 0;
  std::array<std::uint8_t, 64> rest_{};
};

Digest sha256(const void* data, std::size_t size);

}  // namespace dsv41
