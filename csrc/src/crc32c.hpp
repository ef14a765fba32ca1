// CRC32C (Castagnoli, reflected polynomial 0x82f63b78, as in iSCSI, RFC 3720).
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv41 {

// The CRC of `data` appended to what `crc` was computed over; start with 0.
std::uint32_t crc32c(std::uint32_t crc, const void* data, std::size_t size);

// The CRC of A followed by 256 bytes B, from the CRC of A and the CRC of B, each started with 0.
std::uint32_t crc32c_join256(std::uint32_t first, std::uint32_t second);

// The same by table, for processors without the instruction and as the oracle of the tests.
std::uint32_t crc32c_table(std::uint32_t crc, const void* data, std::size_t size);

// "sse4.2", "acle" or "table": what crc32c() uses on this machine.
const char* crc32c_backend();

}  // namespace dsv41
