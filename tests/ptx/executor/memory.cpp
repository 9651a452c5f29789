// See memory.h.
#include "tests/ptx/executor/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace orrery::ptx {

Pages::Pages(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  at_ = static_cast<std::byte*>(at);
}
Pages::~Pages() {
  if (at_) munmap(at_, bytes_);
}
Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(at_, other.at_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void Memory::add(const void* at, size_t bytes, bool tracked, bool host) {
  Region r;
  r.begin = reinterpret_cast<uint64_t>(at);
  r.end = r.begin + bytes;
  r.tracked = tracked, r.host = host;
  if (tracked) r.written = Pages(bytes);
  r.cells = Pages(bytes * sizeof(Cell));
  const uint64_t begin = r.begin;
  regions_.erase(begin);
  regions_.emplace(begin, std::move(r));
}

void Memory::remove(const void* at) { regions_.erase(reinterpret_cast<uint64_t>(at)); }

Region* Memory::find(uint64_t address) {
  auto next = regions_.upper_bound(address);
  if (next == regions_.begin()) return nullptr;
  Region& r = (--next)->second;
  return address < r.end ? &r : nullptr;
}

const Region* Memory::below(uint64_t address) const {
  const auto next = regions_.upper_bound(address);
  return next == regions_.begin() ? nullptr : &std::prev(next)->second;
}

void Memory::mark_written(const void* at, size_t bytes) {
  const uint64_t a = reinterpret_cast<uint64_t>(at);
  Region* r = find(a);
  if (r && r->tracked) std::memset(r->written_at(a), 1, std::min(bytes, static_cast<size_t>(r->end - a)));
}

void Memory::copied(void* to, const void* from, size_t bytes) {
  const uint64_t a = reinterpret_cast<uint64_t>(to), b = reinterpret_cast<uint64_t>(from);
  Region *r = find(a), *source = find(b);
  if (!r || !r->tracked) return;
  bytes = std::min(bytes, static_cast<size_t>(r->end - a));
  if (source && source->tracked)
    std::memmove(r->written_at(a), source->written_at(b), std::min(bytes, static_cast<size_t>(source->end - b)));
  else std::memset(r->written_at(a), 1, bytes);
}

}  // namespace orrery::ptx
