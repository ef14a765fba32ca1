#include "crc32c.hpp"

#include <array>

#include "bytes.hpp"

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace dsv41 {
namespace {

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0u);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

// CRCs are linear: following zeros change each bit of one on its own. [k][v] is what 256 zero bytes make of byte k = v.
using Shifts = std::array<std::array<std::uint32_t, 256>, 4>;

Shifts make_shifts() {
  const std::array<std::uint8_t, 256> zeros{};
  const std::uint32_t of_nothing = crc32c_table(0, zeros.data(), zeros.size());
  Shifts shifts{};
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::uint32_t value = 0; value < 256; ++value) {
      shifts[k][value] = crc32c_table(value << (8 * k), zeros.data(), zeros.size()) ^ of_nothing;
    }
  }
  return shifts;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_hardware(std::uint32_t crc, const void* data,
                                                                std::size_t size) {
  const auto* at = static_cast<const std::uint8_t*>(data);
  std::uint64_t state = ~crc;
  for (; size >= 8; size -= 8, at += 8) state = _mm_crc32_u64(state, get<std::uint64_t>(at));
  for (; size > 0; --size, ++at) state = _mm_crc32_u8(static_cast<std::uint32_t>(state), *at);
  return ~static_cast<std::uint32_t>(state);
}
bool have_hardware() { return __builtin_cpu_supports("sse4.2"); }
constexpr const char* kHardwareName = "sse4.2";
#elif defined(__aarch64__)
__attribute__((target("+crc"))) std::uint32_t crc32c_hardware(std::uint32_t crc, const void* data,
                                                              std::size_t size) {
  const auto* at = static_cast<const std::uint8_t*>(data);
  std::uint32_t state = ~crc;
  for (; size >= 8; size -= 8, at += 8) state = __crc32cd(state, get<std::uint64_t>(at));
  for (; size > 0; --size, ++at) state = __crc32cb(state, *at);
  return ~state;
}
bool have_hardware() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
constexpr const char* kHardwareName = "acle";
#else
std::uint32_t crc32c_hardware(std::uint32_t crc, const void* data, std::size_t size) {
  return crc32c_table(crc, data, size);
}
bool have_hardware() { return false; }
constexpr const char* kHardwareName = "table";
#endif

using Function = std::uint32_t (*)(std::uint32_t, const void*, std::size_t);
const Function chosen = have_hardware() ? crc32c_hardware : crc32c_table;

}  // namespace

std::uint32_t crc32c_table(std::uint32_t crc, const void* data, std::size_t size) {
  static const Tables tables = make_tables();
  const auto* at = static_cast<const std::uint8_t*>(data);
  std::uint32_t state = ~crc;
  for (; size >= 8; size -= 8, at += 8) {
    const std::uint64_t word = get<std::uint64_t>(at) ^ state;
    state = 0;
    for (std::size_t k = 0; k < 8; ++k) state ^= tables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; size > 0; --size, ++at) state = (state >> 8) ^ tables[0][(state ^ *at) & 0xff];
  return ~state;
}

std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t size) {
  return chosen(crc, data, size);
}

std::uint32_t crc32c_join256(std::uint32_t first, std::uint32_t second) {
  static const Shifts shifts = make_shifts();
  return shifts[0][first & 0xff] ^ shifts[1][(first >> 8) & 0xff] ^ shifts[2][(first >> 16) & 0xff] ^ shifts[3][first >> 24] ^
         second;
}

const char* crc32c_backend() { return chosen == crc32c_table ? "table" : kHardwareName; }

}  // namespace dsv41
