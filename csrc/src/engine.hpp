// How pages come from the disk. One engine serves one store.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "batch.hpp"
#include "file.hpp"

namespace dsv41 {

class Engine {
 public:
  virtual ~Engine() = default;
  virtual const char* name() const = 0;
  // Begin every read of the batch (at least one). Returns at once; the engine calls batch.complete() or skip()
  // for each read. The batch lives until all of them were called.
  virtual void start(Batch& batch) = 0;
  // The caller is going to wait for this batch: an engine may let it do part of the reading.
  virtual void assist(Batch&) {}
  // What the kernel took of an engine that can do with less, and what it refused, each with the reason.
  virtual std::vector<std::string> features() const { return {}; }
  virtual std::vector<std::string> refused() const { return {}; }
};

struct EngineOptions {
  unsigned threads = 0;  // of the pread engine; 0 = 32
  unsigned depth = 0;    // reads in flight of the uring and aio engines; 0 = 128
};

// Each throws Kind::unsupported with the reason when it cannot work here. The engine has then read the header page in
// its own way and found it equal to `header_page`.
std::unique_ptr<Engine> make_uring_engine(const File& file, const EngineOptions& options,
                                          const std::uint8_t* header_page);
std::unique_ptr<Engine> make_aio_engine(const File& file, const EngineOptions& options,
                                        const std::uint8_t* header_page);
std::unique_ptr<Engine> make_pread_engine(const File& file, const EngineOptions& options,
                                          const std::uint8_t* header_page);

struct ChosenEngine {
  std::unique_ptr<Engine> engine;
  std::vector<std::string> refusals;  // "NAME: reason", for every engine that auto tried and could not have
};
// "auto" takes the first engine that works; any other name is that engine or Kind::unsupported.
ChosenEngine choose_engine(const std::string& name, const File& file, const EngineOptions& options);

}  // namespace dsv41
