// How far a packer came: beside TARGET.partial stands TARGET.journal, beside both TARGET.lock while one is at work.
//
// Journal, 4212 bytes: the header page as the unfinished file has it (identity and geometry), u64 pages that are safely
// on the disk, the saved SHA-256 over their CRCs (104 bytes), u32 CRC32C of all before. It is replaced by rename, after
// the pages it counts were flushed.
#pragma once

#include <cstdint>
#include <string>

#include "dsv41_rows/row_store.hpp"
#include "sha256.hpp"

namespace dsv41 {

constexpr std::size_t kJournalBytes = kPageBytes + 8 + Sha256::kSavedBytes + 4;

struct Done {
  std::uint64_t pages = 0;
  Sha256 digest;
};

// False when there is none, when it is damaged, or when it belongs to another table, rank or packer.
bool load_journal(const std::string& path, const Header& header, Done& done);
void store_journal(const std::string& path, const Header& header, const Done& done);

// Holds TARGET.lock, and removes it at the end. Kind::busy when another process has it.
class PackLock {
 public:
  explicit PackLock(const std::string& path);
  ~PackLock();
  PackLock(const PackLock&) = delete;
  PackLock& operator=(const PackLock&) = delete;

 private:
  const std::string path_;
  int fd_ = -1;
};

}  // namespace dsv41
