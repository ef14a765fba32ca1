// Text forms: the JSON that the command line prints and the bindings hand on.
#include "dsv41_rows/row_store.hpp"
#include "json.hpp"
#include "row_file.hpp"

namespace dsv41 {
namespace {

std::string field(const char* name, const std::string& text) {
  return quote_json(name) + ": " + quote_json(text);
}
std::string field(const char* name, std::uint64_t number) {
  return quote_json(name) + ": " + std::to_string(number);
}
std::string flag(const char* name, bool value) {
  return quote_json(name) + (value ? ": true" : ": false");
}

template <typename List, typename Render>
std::string list(const char* name, const List& items, Render render) {
  std::string text = quote_json(name) + ": [";
  for (const auto& item : items) text += (text.back() == '[' ? "" : ", ") + render(item);
  return text + "]";
}

std::string problem_json(const Problem& problem) {
  return "{\"page\": " + std::to_string(problem.page) + ", \"row\": " + std::to_string(problem.row) + ", " +
         field("says", problem.says) + "}";
}

std::string range_json(const Range& range) {
  return "[" + std::to_string(range.lo) + ", " + std::to_string(range.hi) + ", " + std::to_string(range.base) + "]";
}

}  // namespace

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::argument: return "argument";
    case Kind::mismatch: return "mismatch";
    case Kind::malformed: return "malformed";
    case Kind::truncated: return "truncated";
    case Kind::unfinished: return "unfinished";
    case Kind::corrupt: return "corrupt";
    case Kind::io: return "io";
    case Kind::range: return "range";
    case Kind::unsupported: return "unsupported";
    case Kind::space: return "space";
    case Kind::busy: return "busy";
    case Kind::closed: return "closed";
    case Kind::forked: return "forked";
    case Kind::timeout: return "timeout";
  }
  return "unknown";
}

std::string hex(const Digest& digest) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : digest) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

std::string source_json(const Source& source) {
  return "{" + field("file", source.file) + ", " + field("revision", source.revision) + ", " +
         field("rows", source.rows) + ", " + field("file_bytes", source.file_bytes) + ", " +
         field("weight_offset", source.weight_offset) + ", " + field("scale_offset", source.scale_offset) + ", " +
         field("header_sha256", hex(source.header_sha256)) + ", " +
         field("sample_sha256", hex(source.sample_sha256)) + ", " + field("digest", hex(source.identity())) + "}";
}

std::string header_json(const Header& header) {
  return "{" + field("version", kFormatVersion) + ", " + field("layer", header.layer) + ", " +
         field("rank", header.rank) + ", " + field("tp", header.tp) + ", " + field("partition", header.partition) +
         ", " + field("total_rows", header.total_rows) + ", " + field("local_rows", header.local_rows) + ", " +
         field("page_count", header.page_count) + ", " + field("file_bytes", header.file_bytes()) + ", " +
         flag("complete", header.complete) + ", " + field("packer", header.packer) + ", " +
         list("ranges", header.ranges, range_json) + ", \"source\": " + source_json(header.source) + ", " +
         field("data_digest", hex(header.data_digest)) + "}";
}

std::string verification_json(const Verification& verification) {
  return "{" + flag("ok", verification.ok) + ", " + field("pages", verification.pages) + ", " +
         field("rows", verification.rows) + ", " + field("problem_count", verification.problem_count) + ", " +
         list("problems", verification.problems, problem_json) + "}";
}

}  // namespace dsv41
