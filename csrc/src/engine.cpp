#include "engine.hpp"

#include <utility>

namespace dsv41 {
namespace {

using Make = std::unique_ptr<Engine> (*)(const File&, const EngineOptions&, const std::uint8_t*);

constexpr std::pair<const char*, Make> kEngines[] = {
    {"uring", make_uring_engine}, {"aio", make_aio_engine}, {"pread", make_pread_engine}};

std::string known_names() {
  std::string text = "auto";
  for (const auto& [name, make] : kEngines) text += std::string(", ") + name;
  return text;
}

}  // namespace

std::vector<std::string> engine_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : kEngines) names.emplace_back(name);
  return names;
}

ChosenEngine choose_engine(const std::string& wanted, const File& file, const EngineOptions& options) {
  const Pages header_page = allocate_pages(kPageBytes);
  file.read(header_page.get(), kPageBytes, 0);
  ChosenEngine chosen;
  for (const auto& [name, make] : kEngines) {
    if (wanted != "auto" && wanted != name) continue;
    try {
      chosen.engine = make(file, options, header_page.get());
      return chosen;
    } catch (const RowError& error) {
      const std::string refusal = std::string(name) + ": " + error.what();
      if (wanted == name) throw RowError(Kind::unsupported, "engine " + refusal);
      chosen.refusals.push_back(refusal);
    }
  }
  if (wanted != "auto" && chosen.refusals.empty()) {
    throw RowError(Kind::unsupported, "expected an engine of " + known_names() + "; found " + wanted);
  }
  throw RowError(Kind::unsupported, file.path() + ": no engine can read it: " + chosen.refusals.back());
}

}  // namespace dsv41
