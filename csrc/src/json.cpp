#include "json.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace dsv41 {
namespace {

constexpr int kMaxDepth = 64;

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  Json document() {
    Json value = this->value(0);
    skip_space();
    if (at_ != text_.size()) fail("end of text");
    return value;
  }

 private:
  [[noreturn]] void fail(const char* expected) const {
    throw std::invalid_argument("JSON: expected " + std::string(expected) + " at byte " + std::to_string(at_));
  }

  void skip_space() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) != nullptr && text_[at_] != '\0') ++at_;
  }

  char peek() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted, const char* what) {
    if (!take(wanted)) fail(what);
  }

  Json word(const char* word, Json::Type type, double number) {
    if (text_.compare(at_, std::strlen(word), word) != 0) fail("a value");
    at_ += std::strlen(word);
    Json value;
    value.type = type;
    value.number = number;
    return value;
  }

  Json value(int depth) {
    if (depth > kMaxDepth) fail("less nesting");
    switch (peek()) {
      case '{': return object(depth);
      case '[': return array(depth);
      case '"': return string_value();
      case 't': return word("true", Json::Type::boolean, 1);
      case 'f': return word("false", Json::Type::boolean, 0);
      case 'n': return word("null", Json::Type::null, 0);
      default: return number();
    }
  }

  Json object(int depth) {
    Json value;
    value.type = Json::Type::object;
    expect('{', "{");
    if (take('}')) return value;
    do {
      if (peek() != '"') fail("a name");
      std::string name = string();
      expect(':', ":");
      value.members[std::move(name)] = this->value(depth + 1);
    } while (take(','));
    expect('}', "}");
    return value;
  }

  Json array(int depth) {
    Json value;
    value.type = Json::Type::array;
    expect('[', "[");
    if (take(']')) return value;
    do {
      value.items.push_back(this->value(depth + 1));
    } while (take(','));
    expect(']', "]");
    return value;
  }

  Json string_value() {
    Json value;
    value.type = Json::Type::text;
    value.text = string();
    return value;
  }

  std::string string() {
    std::string out;
    ++at_;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (static_cast<unsigned char>(text_[at_]) < 0x20) fail("no control character");
      if (text_[at_] == '\\') escape(out);
      else out += text_[at_++];
    }
    if (at_ == text_.size()) fail("\"");
    ++at_;
    return out;
  }

  void escape(std::string& out) {
    const char kind = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    static constexpr char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    at_ += 2;
    if (kind == 'u') return code_point(out);
    const char* found = kind == '\0' ? nullptr : std::strchr(from, kind);
    if (found == nullptr) fail("an escape");
    out += to[found - from];
  }

  unsigned hex4() {
    unsigned code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      const char* digits = "0123456789abcdef";
      const char* found = c == '\0' ? nullptr : std::strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c);
      if (found == nullptr) fail("four hex digits");
      code = code * 16 + static_cast<unsigned>(found - digits);
    }
    return code;
  }

  void code_point(std::string& out) {
    unsigned code = hex4();
    if (code >= 0xd800 && code < 0xdc00 && text_.compare(at_, 2, "\\u") == 0) {
      at_ += 2;
      code = 0x10000 + ((code - 0xd800) << 10) + (hex4() - 0xdc00);
    }
    const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((code >> shift) & 0x3f)); };
    if (code < 0x80) out += static_cast<char>(code);
    else if (code < 0x800) out += static_cast<char>(0xc0 | (code >> 6)), tail(0);
    else if (code < 0x10000) out += static_cast<char>(0xe0 | (code >> 12)), tail(6), tail(0);
    else out += static_cast<char>(0xf0 | ((code >> 18) & 7)), tail(12), tail(6), tail(0);
  }

  Json number() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::strchr("+-0123456789.eE", text_[at_]) != nullptr && text_[at_] != '\0') ++at_;
    const std::string digits = text_.substr(begin, at_ - begin);
    char* end = nullptr;
    Json value;
    value.type = Json::Type::number;
    value.number = std::strtod(digits.c_str(), &end);
    if (digits.empty() || *end != '\0') fail("a value");
    value.is_whole = digits.size() <= 18 && digits.find_first_not_of("0123456789") == std::string::npos;
    if (value.is_whole) value.whole = std::strtoull(digits.c_str(), nullptr, 10);
    return value;
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

}  // namespace

const Json* Json::find(const std::string& name) const {
  const auto found = members.find(name);
  return found == members.end() ? nullptr : &found->second;
}

Json parse_json(const std::string& text) { return Parser(text).document(); }

std::string quote_json(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    char escaped[8];
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace dsv41
