// The Engram tensors of a layer in a safetensors file: u64 header length, JSON header, data
// (https://github.com/huggingface/safetensors, section Format).
#include <algorithm>
#include <stdexcept>

#include "bytes.hpp"
#include "dsv41_rows/row_store.hpp"
#include "file.hpp"
#include "json.hpp"
#include "sha256.hpp"

namespace dsv41 {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::uint64_t kSampleRows = 64;

struct Tensor {
  std::uint64_t rows;
  std::uint64_t offset;  // in the file
};

std::string shape_text(const Json* shape) {
  if (shape == nullptr) return "none";
  std::string text = "[";
  for (const Json& item : shape->items) {
    text += (text.size() > 1 ? ", " : "") + (item.is_whole ? std::to_string(item.whole) : "?");
  }
  return text + "]";
}

struct Wanted {
  std::string name;
  std::string dtype;
  std::uint64_t width;
};

bool pair_of_whole(const Json* list) {
  return list != nullptr && list->items.size() == 2 && list->items[0].is_whole && list->items[1].is_whole;
}

Tensor find_tensor(const Json& header, const Wanted& wanted, const std::string& path,
                   std::uint64_t data_begin, std::uint64_t file_bytes) {
  const Json* entry = header.find(wanted.name);
  if (entry == nullptr) throw RowError(Kind::malformed, path + " has no tensor " + wanted.name);
  const Json* dtype = entry->find("dtype");
  const Json* shape = entry->find("shape");
  const Json* offsets = entry->find("data_offsets");
  const std::string found = dtype == nullptr ? "none" : dtype->text;
  if (found != wanted.dtype || !pair_of_whole(shape) || shape->items[1].whole != wanted.width) {
    throw RowError(Kind::malformed, path + ": " + wanted.name + ": expected " + wanted.dtype + " [rows, " +
                                        std::to_string(wanted.width) + "], found " + found + " " +
                                        shape_text(shape));
  }
  const std::uint64_t rows = shape->items[0].whole;
  if (rows > file_bytes || !pair_of_whole(offsets) || offsets->items[0].whole > offsets->items[1].whole ||
      offsets->items[1].whole - offsets->items[0].whole != rows * wanted.width) {
    throw RowError(Kind::malformed, path + ": " + wanted.name + ": expected data offsets " +
                                        std::to_string(rows * wanted.width) + " bytes apart, found " +
                                        shape_text(offsets));
  }
  if (data_begin + offsets->items[1].whole > file_bytes) {
    throw RowError(Kind::truncated, path + ": " + wanted.name + " ends at " +
                                        std::to_string(data_begin + offsets->items[1].whole) +
                                        ", the file has " + std::to_string(file_bytes) + " bytes");
  }
  return {rows, data_begin + offsets->items[0].whole};
}

std::uint64_t header_length(UnalignedReader& reader, const std::string& path, std::uint64_t file_bytes) {
  if (file_bytes < 8) throw RowError(Kind::truncated, path + " is shorter than a safetensors header");
  const auto length = get<std::uint64_t>(reader.read(0, 8));
  if (length > kMaxHeaderBytes || 8 + length > file_bytes) {
    throw RowError(Kind::malformed, path + ": a safetensors header of " + std::to_string(length) +
                                        " bytes does not fit into " + std::to_string(file_bytes));
  }
  return length;
}

Json parse_header(const std::string& text, const std::string& path) {
  try {
    return parse_json(text);
  } catch (const std::invalid_argument& error) {
    throw RowError(Kind::malformed, path + ": " + error.what());
  }
}

// Tables of one shape have equal headers; a few real bytes tell them apart.
Digest sample(UnalignedReader& reader, const Source& source) {
  Sha256 hash;
  for (std::uint64_t i = 0; i < kSampleRows; ++i) {
    const std::uint64_t row = i * (source.rows - 1) / (kSampleRows - 1);
    hash.update(reader.read(source.weight_offset + row * kWeightBytes, kWeightBytes), kWeightBytes);
    hash.update(reader.read(source.scale_offset + row * kScaleBytes, kScaleBytes), kScaleBytes);
  }
  return hash.finish();
}

}  // namespace

Source read_source(const std::string& safetensors, std::uint32_t layer) {
  const File file = File::open_read(safetensors);
  Source source;
  source.file = name_of(safetensors);
  source.file_bytes = file.size();
  UnalignedReader reader(file);
  const std::uint64_t length = header_length(reader, safetensors, source.file_bytes);
  const std::uint8_t* bytes = reader.read(0, 8 + length);
  source.header_sha256 = sha256(bytes, 8 + length);
  const Json header = parse_header(std::string(reinterpret_cast<const char*>(bytes) + 8, length), safetensors);

  const std::string stem = "layers." + std::to_string(layer) + ".engram.embed.";
  const auto find = [&](const Wanted& wanted) {
    return find_tensor(header, wanted, safetensors, 8 + length, source.file_bytes);
  };
  const Tensor weight = find({stem + "weight", "F8_E4M3", kWeightBytes});
  const Tensor scale = find({stem + "scale", "F8_E8M0", kScaleBytes});
  if (weight.rows != scale.rows || weight.rows == 0) {
    throw RowError(Kind::malformed, safetensors + ": " + stem + "weight has " + std::to_string(weight.rows) +
                                        " rows, the scale has " + std::to_string(scale.rows));
  }
  source.rows = weight.rows;
  source.weight_offset = weight.offset;
  source.scale_offset = scale.offset;
  source.sample_sha256 = sample(reader, source);
  return source;
}

}  // namespace dsv41
