// A table whose every byte follows from its row number, as a safetensors file of any size.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "check.hpp"
#include "dsv41_rows/row_store.hpp"

namespace dsv41 {

inline std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

inline void make_row(std::uint64_t row, std::uint8_t* weights, std::uint8_t* scales) {
  for (std::uint64_t i = 0; i < 32; ++i) {
    const std::uint64_t word = mix(row * 64 + i);
    std::memcpy(weights + 8 * i, &word, 8);
  }
  const std::uint64_t word = mix(row * 64 + 32);
  std::memcpy(scales, &word, 8);
}

inline void write_table(const std::string& path, std::uint32_t layer, std::uint64_t rows) {
  const std::string stem = "\"layers." + std::to_string(layer) + ".engram.embed.";
  const auto tensor = [&](const char* name, const char* dtype, std::uint64_t width, std::uint64_t begin) {
    return stem + name + "\": {\"dtype\": \"" + dtype + "\", \"shape\": [" + std::to_string(rows) + ", " +
           std::to_string(width) + "], \"data_offsets\": [" + std::to_string(begin) + ", " +
           std::to_string(begin + rows * width) + "]}";
  };
  const std::string header = "{" + tensor("weight", "F8_E4M3", 256, 0) + ", " +
                             tensor("scale", "F8_E8M0", 8, 256 * rows) + "}";
  std::FILE* file = std::fopen(path.c_str(), "wb");
  CHECK(file != nullptr);
  const std::uint64_t length = header.size();
  CHECK(std::fwrite(&length, 8, 1, file) == 1);
  CHECK(std::fwrite(header.data(), length, 1, file) == 1);
  std::uint8_t weights[256], scales[8];
  std::vector<std::uint8_t> all_scales;
  for (std::uint64_t row = 0; row < rows; ++row) {
    make_row(row, weights, scales);
    CHECK(std::fwrite(weights, 256, 1, file) == 1);
    all_scales.insert(all_scales.end(), scales, scales + 8);
  }
  CHECK(std::fwrite(all_scales.data(), all_scales.size(), 1, file) == 1);
  CHECK(std::fclose(file) == 0);
}

// Rank 1 of 2 owns every second of eight equal pieces.
inline PackOptions pack_half(const std::string& source, const std::string& target, std::uint64_t rows) {
  PackOptions options;
  options.source = source;
  options.target = target;
  options.layer = 14;
  options.rank = 1;
  options.tp = 2;
  options.partition = "pieces";
  options.total_rows = rows;
  std::uint64_t base = 0;
  for (std::uint64_t piece = 1; piece < 8; piece += 2) {
    const std::uint64_t lo = rows * piece / 8, hi = rows * (piece + 1) / 8;
    options.ranges.push_back({lo, hi, base});
    base += hi - lo;
  }
  return options;
}

inline bool is_ours(const PackOptions& options, std::int64_t row) {
  for (const Range& range : options.ranges) {
    if (row >= static_cast<std::int64_t>(range.lo) && row < static_cast<std::int64_t>(range.hi)) return true;
  }
  return false;
}

inline OpenOptions open_half(const std::string& engine, std::uint64_t cache_bytes) {
  OpenOptions options;
  options.expected = {14, 1, 2, "pieces", "", ""};
  options.engine = engine;
  options.cache_bytes = cache_bytes;
  return options;
}

}  // namespace dsv41
