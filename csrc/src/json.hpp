// Just enough JSON: a reader for safetensors headers and manifests, and quoting for what we write.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dsv41 {

struct Json {
  enum class Type { null, boolean, number, text, array, object };
  Type type = Type::null;
  double number = 0;         // also the boolean
  std::uint64_t whole = 0;   // the number, when it is a whole one below 2^63
  bool is_whole = false;
  std::string text;
  std::vector<Json> items;
  std::map<std::string, Json> members;

  // The member, or nullptr when this is no object or has none of that name.
  const Json* find(const std::string& name) const;
};

// Throws std::invalid_argument with the byte position. Strict, but for numbers such as 01.
Json parse_json(const std::string& text);

std::string quote_json(const std::string& text);

}  // namespace dsv41
