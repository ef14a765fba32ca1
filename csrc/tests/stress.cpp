// Random lookups from many threads through every engine, each row compared byte for byte.
//   stress FOLDER ROWS LOOKUPS ENGINE ...
#include <atomic>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "synthetic.hpp"

using namespace dsv41;

namespace {

struct Request {
  std::vector<std::int64_t> ids;
  std::vector<std::uint8_t> weights, scales;
};

std::atomic<std::uint64_t> verified{0};

Request make_request(std::mt19937_64& draw, std::uint64_t rows) {
  // Sizes from one row over decode bursts to a prefill chunk, which two rings share; some batches repeat few rows often.
  static constexpr std::size_t sizes[] = {1, 3, 12, 48, 192, 576, 3000, 20000};
  const std::size_t count = sizes[draw() % 8];
  const std::uint64_t span = draw() % 3 == 0 ? 1 + draw() % 50 : rows;
  const std::uint64_t begin = draw() % rows;
  Request request;
  for (std::size_t i = 0; i < count; ++i) {
    const bool padding = draw() % 64 == 0;
    request.ids.push_back(padding ? -1 : static_cast<std::int64_t>((begin + draw() % span) % rows));
  }
  request.weights.assign(count * kWeightBytes, 0xaa);
  request.scales.assign(count * kScaleBytes, 0xaa);
  return request;
}

void check(const Request& request, const PackOptions& packed) {
  std::uint64_t owned = 0;
  for (std::size_t i = 0; i < request.ids.size(); ++i) {
    std::uint8_t weights[kWeightBytes] = {}, scales[kScaleBytes] = {};
    if (is_ours(packed, request.ids[i])) {
      make_row(static_cast<std::uint64_t>(request.ids[i]), weights, scales);
      ++owned;
    }
    CHECK(std::memcmp(weights, &request.weights[i * kWeightBytes], kWeightBytes) == 0);
    CHECK(std::memcmp(scales, &request.scales[i * kScaleBytes], kScaleBytes) == 0);
  }
  verified += owned;
}

// Half of the batches by lookup(), half by tickets with several under way.
void work(RowStore& store, const PackOptions& packed, std::uint64_t seed, std::uint64_t until) {
  std::mt19937_64 draw(seed);
  std::deque<std::pair<Request, Ticket>> under_way;
  while (verified < until) {
    Request request = make_request(draw, packed.total_rows);
    if (draw() % 2 == 0) {
      store.lookup(request.ids.data(), request.ids.size(), request.weights.data(), request.scales.data());
      check(request, packed);
      continue;
    }
    // The memory of a moved vector stays where it is.
    Ticket ticket = store.submit(request.ids.data(), request.ids.size(), request.weights.data(), request.scales.data());
    under_way.emplace_back(std::move(request), std::move(ticket));
    if (under_way.size() < 4) continue;
    under_way.front().second.wait(draw() % 2 == 0 ? -1 : 60);
    check(under_way.front().first, packed);
    under_way.pop_front();
  }
}

void run(const PackOptions& packed, const char* engine, std::uint64_t cache_bytes, std::uint64_t until) {
  RowStore store(packed.target, open_half(engine, cache_bytes));
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i) threads.emplace_back([&, i] { work(store, packed, until + i, until); });
  for (std::thread& thread : threads) thread.join();
  const std::string stats = store.stats_json();
  CHECK(stats.find("\"crc_failures\": 0") != std::string::npos);
  CHECK(stats.find("\"io_errors\": 0") != std::string::npos);
  std::printf("%s, cache %llu: %s\n", engine, static_cast<unsigned long long>(cache_bytes), stats.c_str());
}

}  // namespace

int main(int count, char** words) {
  const std::string folder = words[1];
  const std::uint64_t rows = std::stoull(words[2]), lookups = std::stoull(words[3]);
  const std::string source = folder + "/stress.safetensors", target = folder + "/stress.rows";
  write_table(source, 14, rows);
  const PackOptions packed = pack_half(source, target, rows);
  CHECK(pack(packed));
  const Verification found = verify(target, nullptr);
  CHECK(found.ok && found.rows == rows / 2);
  const auto runs = static_cast<std::uint64_t>(count - 3);  // each engine, then one of them with a cache
  for (int i = 4; i < count; ++i) run(packed, words[i], 0, lookups * static_cast<std::uint64_t>(i - 3) / runs);
  run(packed, "auto", 1 << 20, lookups);
  std::printf("stress: ok, %llu rows verified\n", static_cast<unsigned long long>(verified));
}
