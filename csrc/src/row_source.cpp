#include "row_source.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "file.hpp"

namespace dsv41 {
namespace {

// Two positional reads per call: weights and scales of the real checkpoint lie 98 GB apart.
class TensorSource final : public RowSource {
 public:
  TensorSource(const std::string& path, const Source& source)
      : source_(source), file_(File::open_read(path)), weights_(file_), scales_(file_) {}

  RowView read(std::uint64_t row, std::uint64_t count) override {
    return {weights_.read(source_.weight_offset + row * kWeightBytes, count * kWeightBytes), kWeightBytes,
            scales_.read(source_.scale_offset + row * kScaleBytes, count * kScaleBytes), kScaleBytes};
  }

 private:
  const Source source_;
  const File file_;
  UnalignedReader weights_;
  UnalignedReader scales_;
};

// Records of 256 + 8 bytes one after another.
class RecordSource final : public RowSource {
 public:
  explicit RecordSource(const Records& records)
      : records_(records), file_(File::open_read(records.path)), reader_(file_) {}

  RowView read(std::uint64_t row, std::uint64_t count) override {
    if (row < records_.first_row || row + count > records_.end_row) {
      throw RowError(Kind::mismatch, records_.path + ": expected rows " + std::to_string(row) + " to " +
                                         std::to_string(row + count) + ", found " +
                                         std::to_string(records_.first_row) + " to " +
                                         std::to_string(records_.end_row));
    }
    const std::uint64_t offset = records_.data_begin + (row - records_.first_row) * kRowBytes;
    refuse_hole(offset, count * kRowBytes);
    const std::uint8_t* bytes = reader_.read(offset, count * kRowBytes);
    return {bytes, kRowBytes, bytes + kWeightBytes, kRowBytes};
  }

 private:
  // A hole of a sparse file reads as rows of zeros, which look valid.
  void refuse_hole(std::uint64_t offset, std::uint64_t size) const {
    const off_t hole = ::lseek(file_.fd(), static_cast<off_t>(offset), SEEK_HOLE);
    if (hole < 0 && errno != ENXIO) return;  // the file system cannot tell
    if (hole >= 0 && static_cast<std::uint64_t>(hole) >= offset + size) return;
    throw RowError(Kind::unfinished, records_.path + ": expected written rows from offset " +
                                         std::to_string(offset) + ", found a hole at " + std::to_string(hole));
  }

  const Records records_;
  const File file_;
  UnalignedReader reader_;
};

// Random enough that no disk or file system makes them smaller, and known to a reader that checks them.
class MadeSource final : public RowSource {
 public:
  RowView read(std::uint64_t row, std::uint64_t count) override {
    constexpr std::uint64_t kWords = kRowBytes / 8;
    words_.resize(count * kWords);
    for (std::uint64_t i = 0; i < words_.size(); ++i) words_[i] = mix(row * kWords + i);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(words_.data());
    return {bytes, kRowBytes, bytes + kWeightBytes, kRowBytes};
  }

 private:
  static std::uint64_t mix(std::uint64_t x) {  // splitmix64: public domain, S. Vigna
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }

  std::vector<std::uint64_t> words_;
};

class ComparedSource final : public RowSource {
 public:
  ComparedSource(std::unique_ptr<RowSource> tested, std::unique_ptr<RowSource> reference, std::string name)
      : tested_(std::move(tested)), reference_(std::move(reference)), name_(std::move(name)) {}

  RowView read(std::uint64_t row, std::uint64_t count) override {
    const RowView a = tested_->read(row, count);
    const RowView b = reference_->read(row, count);
    for (std::uint64_t i = 0; i < count; ++i) {
      if (std::memcmp(a.weights + i * a.weight_stride, b.weights + i * b.weight_stride, kWeightBytes) != 0 ||
          std::memcmp(a.scales + i * a.scale_stride, b.scales + i * b.scale_stride, kScaleBytes) != 0) {
        throw RowError(Kind::mismatch, name_ + ": expected row " + std::to_string(row + i) +
                                           " as in the checkpoint, found other bytes");
      }
    }
    return a;
  }

 private:
  std::unique_ptr<RowSource> tested_;
  std::unique_ptr<RowSource> reference_;
  const std::string name_;
};

}  // namespace

std::unique_ptr<RowSource> tensor_source(const std::string& safetensors, const Source& source) {
  return std::make_unique<TensorSource>(safetensors, source);
}

std::unique_ptr<RowSource> made_source() { return std::make_unique<MadeSource>(); }

std::unique_ptr<RowSource> record_source(const Records& records) { return std::make_unique<RecordSource>(records); }

std::unique_ptr<RowSource> compared_source(std::unique_ptr<RowSource> tested, std::unique_ptr<RowSource> reference,
                                           const std::string& name) {
  return std::make_unique<ComparedSource>(std::move(tested), std::move(reference), name);
}

}  // namespace dsv41
