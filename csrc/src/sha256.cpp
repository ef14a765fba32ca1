#include "sha256.hpp"

#include <algorithm>
#include <cstring>

#include "bytes.hpp"

namespace dsv41 {
namespace {

constexpr std::array<std::uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t rotate(std::uint32_t x, int n) { return (x >> n) | (x << (32 - n)); }

std::uint32_t big_endian(const std::uint8_t* at) { return __builtin_bswap32(get<std::uint32_t>(at)); }

}  // namespace

void Sha256::block(const std::uint8_t* at) {
  std::array<std::uint32_t, 64> w{};
  for (std::size_t i = 0; i < 16; ++i) w[i] = big_endian(at + 4 * i);
  for (std::size_t i = 16; i < 64; ++i) {
    const std::uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const std::uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (std::size_t i = 0; i < 64; ++i) {
    const std::uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
    const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const std::uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
    const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<std::uint32_t, 8> add{a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < 8; ++i) state_[i] += add[i];
}

void Sha256::update(const void* data, std::size_t size) {
  const auto* at = static_cast<const std::uint8_t*>(data);
  while (size > 0) {
    const std::size_t used = length_ % 64;
    const std::size_t take = std::min<std::size_t>(64 - used, size);
    std::memcpy(rest_.data() + used, at, take);
    length_ += take, at += take, size -= take;
    if (length_ % 64 == 0) block(rest_.data());
  }
}

Digest Sha256::finish() {
  const std::uint64_t bits = __builtin_bswap64(length_ * 8);
  const std::uint8_t one = 0x80, zero = 0;
  update(&one, 1);
  while (length_ % 64 != 56) update(&zero, 1);
  update(&bits, 8);
  Digest digest;
  for (std::size_t i = 0; i < 8; ++i) put(digest.data() + 4 * i, __builtin_bswap32(state_[i]));
  return digest;
}

void Sha256::save(std::uint8_t* at) const {
  std::memcpy(at, state_.data(), 32);
  put(at + 32, length_);
  std::memcpy(at + 40, rest_.data(), 64);
}

void Sha256::restore(const std::uint8_t* at) {
  std::memcpy(state_.data(), at, 32);
  length_ = get<std::uint64_t>(at + 32);
  std::memcpy(rest_.data(), at + 40, 64);
}

Digest sha256(const void* data, std::size_t size) {
  Sha256 hash;
  hash.update(data, size);
  return hash.finish();
}

}  // namespace dsv41
