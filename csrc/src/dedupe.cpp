#include "dedupe.hpp"

#include <algorithm>
#include <array>

namespace dsv41 {
namespace {

constexpr int kDigitBits = 11;
constexpr std::size_t kBuckets = 1u << kDigitBits;

// One pass of a least-significant-digit radix sort on bits shift .. shift + 10.
void sort_digit(const std::vector<std::uint64_t>& from, std::vector<std::uint64_t>& to, int shift) {
  std::array<std::uint32_t, kBuckets> begin{};
  for (const std::uint64_t key : from) ++begin[(key >> shift) % kBuckets];
  std::uint32_t sum = 0;
  for (std::uint32_t& count : begin) {
    const std::uint32_t here = count;
    count = sum;
    sum += here;
  }
  for (const std::uint64_t key : from) to[begin[(key >> shift) % kBuckets]++] = key;
}

std::uint32_t local_of(std::uint64_t key) { return static_cast<std::uint32_t>(key >> 32); }
std::uint32_t destination_of(std::uint64_t key) { return static_cast<std::uint32_t>(key); }

}  // namespace

void Dedupe::run(std::vector<std::uint64_t>& owned, std::vector<Unique>& unique, std::vector<std::uint32_t>& next) {
  unique.clear();
  if (owned.size() <= kHashLimit) {
    by_hash(owned, unique, next);
  } else {
    by_radix(owned, unique, next);
  }
}

void Dedupe::by_hash(const std::vector<std::uint64_t>& owned, std::vector<Unique>& unique,
                     std::vector<std::uint32_t>& next) {
  int bits = 1;
  while ((std::size_t{1} << bits) < 2 * owned.size()) ++bits;
  const std::size_t mask = (std::size_t{1} << bits) - 1;
  table_.assign(mask + 1, kChainEnd);
  for (const std::uint64_t key : owned) {
    // Fibonacci hashing: the upper bits of the product by 2^64 / golden ratio are well mixed.
    std::size_t slot = (local_of(key) * 0x9e3779b97f4a7c15ull) >> (64 - bits);
    while (table_[slot] != kChainEnd && unique[table_[slot]].local != local_of(key)) slot = (slot + 1) & mask;
    const std::uint32_t destination = destination_of(key);
    if (table_[slot] == kChainEnd) {
      table_[slot] = static_cast<std::uint32_t>(unique.size());
      unique.push_back({local_of(key), destination});
      next[destination] = kChainEnd;
    } else {
      Unique& row = unique[table_[slot]];
      next[destination] = row.first;
      row.first = destination;
    }
  }
}

void Dedupe::by_radix(std::vector<std::uint64_t>& owned, std::vector<Unique>& unique,
                      std::vector<std::uint32_t>& next) {
  std::uint64_t all = 0;
  for (const std::uint64_t key : owned) all |= key;
  scratch_.resize(owned.size());
  for (int shift = 32; shift < 64 && (all >> shift) != 0; shift += kDigitBits) {
    sort_digit(owned, scratch_, shift);
    owned.swap(scratch_);
  }
  for (const std::uint64_t key : owned) {
    const std::uint32_t destination = destination_of(key);
    if (unique.empty() || unique.back().local != local_of(key)) {
      unique.push_back({local_of(key), destination});
      next[destination] = kChainEnd;
    } else {
      next[destination] = unique.back().first;
      unique.back().first = destination;
    }
  }
}

}  // namespace dsv41
