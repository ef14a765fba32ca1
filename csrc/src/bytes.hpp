// Little-endian fields in a page. Both targets, x86-64 and aarch64, are little-endian; others do not compile.
#pragma once

#include <cstdint>
#include <cstring>

namespace dsv41 {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the row file is read and written in place");

template <typename T>
T get(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
void put(std::uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

}  // namespace dsv41
