// How fast one core turns rows in memory into pages, all checksums included.
//   transform [MIB]: the best of five passes, in bytes of rows per second of processor time
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "page_builder.hpp"

using namespace dsv41;

namespace {

// A table that lies in memory, weights and scales apart as in a checkpoint.
class MemorySource final : public RowSource {
 public:
  explicit MemorySource(std::uint64_t rows) : weights_(rows * kWeightBytes), scales_(rows * kScaleBytes) {
    std::uint32_t state = 1;
    for (auto* bytes : {&weights_, &scales_}) {
      for (std::uint8_t& byte : *bytes) byte = static_cast<std::uint8_t>((state = state * 1664525 + 1013904223) >> 24);
    }
  }

  RowView read(std::uint64_t row, std::uint64_t) override {
    return {weights_.data() + row * kWeightBytes, kWeightBytes, scales_.data() + row * kScaleBytes, kScaleBytes};
  }

 private:
  std::vector<std::uint8_t> weights_, scales_;
};

// Of this thread alone: neighbors on the machine do not count.
double now() {
  struct timespec found {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &found);
  return static_cast<double>(found.tv_sec) + 1e-9 * static_cast<double>(found.tv_nsec);
}

double seconds_of(PageBuilder& builder, const Header& header) {
  constexpr std::uint64_t kChunk = 2048;  // pages, as the packer has it
  static Chunk chunk;
  const double began = now();
  for (std::uint64_t first = 0; first < header.page_count; first += kChunk) {
    chunk.first_page = first;
    chunk.page_count = std::min(kChunk, header.page_count - first);
    builder.fill(chunk, kChunk);
  }
  return now() - began;
}

}  // namespace

int main(int argc, char** argv) {
  Header header;
  header.layer = 1;
  header.local_rows = header.total_rows = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 512) * (1u << 20) / kRowBytes;
  header.page_count = (header.local_rows + kRowsPerPage - 1) / kRowsPerPage;
  header.ranges = {{0, header.local_rows, 0}};
  PageBuilder builder(header, std::make_unique<MemorySource>(header.local_rows));
  double best = seconds_of(builder, header);
  for (int pass = 1; pass < 5; ++pass) best = std::min(best, seconds_of(builder, header));
  std::printf("%.0f\n", static_cast<double>(header.local_rows * kRowBytes) / best);
  return 0;
}
