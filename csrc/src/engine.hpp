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
};

std::unique_ptr<Engine> make_pread_engine(const File& file, unsigned threads);

struct ChosenEngine {
  std::unique_ptr<Engine> engine;
  std::vector<std::string> refusals;  // "NAME: reason", for every engine that was tried and could not be had
};
// "auto" takes the first engine that works; any other name is that engine or Kind::unsupported.
ChosenEngine choose_engine(const std::string& name, const File& file, unsigned threads);

}  // namespace dsv41
