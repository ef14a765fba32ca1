// Header and data pages as bytes; the format is described in dsv41_rows/row_store.hpp.
#pragma once

#include <cstdint>
#include <string>

#include "dsv41_rows/row_store.hpp"
#include "file.hpp"

namespace dsv41 {

constexpr std::size_t kScalesAt = kRowsPerPage * kWeightBytes;                 // 3840
constexpr std::size_t kRowCrcsAt = kScalesAt + kRowsPerPage * kScaleBytes;     // 3960
constexpr std::size_t kPageNumberAt = kRowCrcsAt + kRowsPerPage * 4;           // 4020
constexpr std::size_t kPageCrcAt = kPageNumberAt + 8;                          // 4028
constexpr std::uint32_t kFlagComplete = 1;

inline std::uint64_t page_offset(std::uint64_t page) { return kPageBytes * (1 + page); }
inline std::uint64_t pages_for(std::uint64_t rows) { return (rows + kRowsPerPage - 1) / kRowsPerPage; }

std::uint32_t row_crc(std::uint32_t layer, std::uint64_t row, const std::uint8_t* weights,
                      const std::uint8_t* scales);
std::uint32_t page_crc(const std::uint8_t* page);
// The same from CRCs of the rows' 256 weight bytes, which are then read once for both: one row, the 15 of a page.
std::uint32_t row_crc(std::uint32_t layer, std::uint64_t row, std::uint32_t weights_crc, const std::uint8_t* scales);
std::uint32_t page_crc(const std::uint8_t* page, const std::uint32_t* weights_crcs);

// Checks texts and ranges (Kind::argument), then writes all 4096 bytes.
void encode_header(const Header& header, std::uint8_t* page);
// Throws malformed or corrupt. `path` only for the message.
Header decode_header(const std::uint8_t* page, const std::string& path);
// Throws truncated when the file is not as long as its header says.
Header read_header(const File& file);

// Ascending, disjoint, inside the table, bases adding up to local_rows; else Kind::argument.
void check_ranges(const Header& header);

}  // namespace dsv41
