// libFuzzer: JSON of any bytes, which is what a safetensors header is, is parsed or refused.
#include <stdexcept>
#include <string>

#include "json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    dsv41::parse_json(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const std::invalid_argument&) {
  }
  return 0;
}
