// The parts below the store, each against published vectors or a plain second way to compute it.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "cache.hpp"
#include "check.hpp"
#include "crc32c.hpp"
#include "dedupe.hpp"
#include "json.hpp"
#include "sha256.hpp"
#include "stats.hpp"

using namespace dsv41;

namespace {

std::mt19937_64 draw(1);

std::vector<std::uint8_t> random_bytes(std::size_t size) {
  std::vector<std::uint8_t> bytes(size);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(draw());
  return bytes;
}

// RFC 3720, appendix B.4, and the check value of the CRC catalogs.
void test_crc() {
  CHECK(crc32c(0, "123456789", 9) == 0xe3069283);
  std::vector<std::uint8_t> bytes(32, 0);
  CHECK(crc32c(0, bytes.data(), 32) == 0x8a9136aa);
  std::fill(bytes.begin(), bytes.end(), 0xff);
  CHECK(crc32c(0, bytes.data(), 32) == 0x62a8ab43);
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::uint8_t>(i);
  CHECK(crc32c(0, bytes.data(), 32) == 0x46dd794e);
  const auto many = random_bytes(5000);
  for (std::size_t size = 0; size < 300; ++size) {
    const std::size_t at = draw() % 4000;
    const std::uint32_t whole = crc32c(0, many.data() + at, size);
    CHECK(whole == crc32c_table(0, many.data() + at, size));
    const std::size_t cut = size == 0 ? 0 : draw() % size;
    CHECK(whole == crc32c(crc32c(0, many.data() + at, cut), many.data() + at + cut, size - cut));
    CHECK(crc32c_join256(whole, crc32c(0, many.data() + at + size, 256)) == crc32c(0, many.data() + at, size + 256));
  }
}

// FIPS 180-4 examples.
void test_sha() {
  CHECK(hex(sha256("abc", 3)) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(sha256("", 0)) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const std::string a(1'000'000, 'a');
  CHECK(hex(sha256(a.data(), a.size())) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  for (std::size_t size = 0; size < 200; ++size) {
    const auto bytes = random_bytes(size);
    Sha256 first, second;
    const std::size_t cut = size == 0 ? 0 : draw() % size;
    first.update(bytes.data(), cut);
    std::uint8_t saved[Sha256::kSavedBytes];
    first.save(saved);
    second.restore(saved);
    second.update(bytes.data() + cut, size - cut);
    CHECK(second.finish() == sha256(bytes.data(), size));
  }
}

bool refuses(const std::string& text) {
  try {
    parse_json(text);
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

void test_json() {
  const Json value = parse_json(" {\"a\": [1, -2.5e3, true, null], \"b\\n\\u00e9\\ud83d\\ude00\": {\"c\": \"x\"}} ");
  CHECK(value.find("a")->items[0].whole == 1 && value.find("a")->items[0].is_whole);
  CHECK(value.find("a")->items[1].number == -2500 && !value.find("a")->items[1].is_whole);
  CHECK(value.find("b\n\xc3\xa9\xf0\x9f\x98\x80")->find("c")->text == "x");
  CHECK(value.find("absent") == nullptr && value.find("a")->find("a") == nullptr);
  for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "\"", "\"\\x\"", "\"\\u12g4\"", "tru", "1 2", "-", "\"\n\""}) {
    CHECK(refuses(text));
  }
  CHECK(refuses(std::string(100'000, '[')));
  const std::string odd = "quote \" slash \\ newline \n";
  CHECK(parse_json(quote_json(odd)).text == odd);
}

// Every size around the change from hashing to sorting, few and many distinct rows.
void test_dedupe() {
  Dedupe dedupe;
  std::vector<Unique> unique;
  for (const std::size_t count : {0u, 1u, 2u, 100u, 2047u, 2048u, 2049u, 30'000u}) {
    for (const std::uint64_t range : {1ull, 50ull, 1ull << 32}) {
      std::vector<std::uint64_t> owned;
      std::map<std::uint32_t, std::set<std::uint32_t>> wanted;
      for (std::uint32_t i = 0; i < count; ++i) {
        const auto local = static_cast<std::uint32_t>(draw() % range);
        owned.push_back(std::uint64_t{local} << 32 | i);
        wanted[local].insert(i);
      }
      std::vector<std::uint32_t> next(count, 7);
      dedupe.run(owned, unique, next);
      CHECK(unique.size() == wanted.size());
      for (const Unique& row : unique) {
        std::set<std::uint32_t> chain;
        for (std::uint32_t to = row.first; to != kChainEnd; to = next[to]) CHECK(chain.insert(to).second);
        CHECK(chain == wanted[row.local]);
      }
    }
  }
}

void test_histogram() {
  Histogram histogram;
  CHECK(histogram.count() == 0 && histogram.percentile(0.5) == 0);
  std::vector<std::uint64_t> values;
  for (int i = 0; i < 5000; ++i) values.push_back(draw() >> (draw() % 64));
  for (const std::uint64_t value : values) histogram.record(value);
  std::sort(values.begin(), values.end());
  CHECK(histogram.count() == values.size() && histogram.max() == values.back());
  for (const double share : {0.01, 0.5, 0.99}) {
    const auto right = values[static_cast<std::size_t>(share * 5000)];
    const std::uint64_t found = histogram.percentile(share);
    CHECK(found >= right && static_cast<double>(found) <= 1.25 * static_cast<double>(right) + 1);
  }
}

void test_cache() {
  RowCache cache(100'000);
  CHECK(cache.rows() > 300 && cache.rows() * kRowBytes <= 100'000);
  const auto weights = random_bytes(kWeightBytes), scales = random_bytes(kScaleBytes);
  std::uint8_t found_weights[kWeightBytes], found_scales[kScaleBytes];
  bool rejected = false;
  const auto get = [&](std::uint32_t local, std::uint64_t global) {
    rejected = false;
    return cache.get(1, local, global, found_weights, found_scales, rejected);
  };
  std::uint8_t key[12] = {1, 0, 0, 0, 50, 0, 0, 0, 0, 0, 0, 0};  // layer 1, global row 50
  std::uint32_t crc = crc32c(0, key, 12);
  crc = crc32c(crc32c(crc, weights.data(), kWeightBytes), scales.data(), kScaleBytes);
  CHECK(!get(7, 50) && !rejected);
  cache.put(7, weights.data(), scales.data(), crc);
  CHECK(get(7, 50) && std::equal(weights.begin(), weights.end(), found_weights));
  CHECK(!get(7, 51) && rejected);  // the row is another one: dropped
  CHECK(!get(7, 50) && !rejected);
  cache.put(7, weights.data(), scales.data(), crc ^ 1);  // as if memory had changed
  CHECK(!get(7, 50) && rejected);
  cache.put(7, weights.data(), scales.data(), crc);
  for (std::uint32_t local = 8; local < 100'000; ++local) cache.put(local, weights.data(), scales.data(), crc);
  CHECK(!get(7, 50));
}

}  // namespace

int main() {
  test_crc();
  test_sha();
  test_json();
  test_dedupe();
  test_histogram();
  test_cache();
  std::printf("core: ok, crc32c by %s\n", crc32c_backend());
}
