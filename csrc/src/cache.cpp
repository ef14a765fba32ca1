#include "cache.hpp"

#include <algorithm>
#include <cstring>

#include "row_file.hpp"

namespace dsv41 {

RowCache::RowCache(std::uint64_t bytes)
    : sets_(std::max<std::uint64_t>(1, bytes / (kWays * sizeof(Slot)))), slots_(sets_ * kWays), victims_(sets_) {}

std::size_t RowCache::set_of(std::uint32_t local) const {
  const std::uint64_t mixed = (local * 0x9e3779b97f4a7c15ull) >> 32;
  return static_cast<std::size_t>((mixed * sets_) >> 32);
}

bool RowCache::get(std::uint32_t layer, std::uint32_t local, std::uint64_t global, std::uint8_t* weights,
                   std::uint8_t* scales, bool& rejected) {
  const std::size_t set = set_of(local);
  const std::lock_guard<std::mutex> lock(locks_[set % kLocks]);
  for (std::size_t way = 0; way < kWays; ++way) {
    Slot& slot = slots_[set * kWays + way];
    if (slot.key != std::uint64_t{local} + 1) continue;
    if (row_crc(layer, global, slot.weights, slot.scales) != slot.crc) {
      slot.key = 0;
      rejected = true;
      return false;
    }
    std::memcpy(weights, slot.weights, kWeightBytes);
    std::memcpy(scales, slot.scales, kScaleBytes);
    return true;
  }
  return false;
}

void RowCache::put(std::uint32_t local, const std::uint8_t* weights, const std::uint8_t* scales, std::uint32_t crc) {
  const std::size_t set = set_of(local);
  const std::lock_guard<std::mutex> lock(locks_[set % kLocks]);
  Slot* const begin = &slots_[set * kWays];
  const std::uint64_t key = std::uint64_t{local} + 1;
  Slot* slot = std::find_if(begin, begin + kWays, [key](const Slot& s) { return s.key == key; });
  if (slot == begin + kWays) slot = std::find_if(begin, begin + kWays, [](const Slot& s) { return s.key == 0; });
  if (slot == begin + kWays) slot = begin + victims_[set]++ % kWays;
  slot->key = key;
  slot->crc = crc;
  std::memcpy(slot->weights, weights, kWeightBytes);
  std::memcpy(slot->scales, scales, kScaleBytes);
}

}  // namespace dsv41
