// Copies. Between host and device, bytes pass through pinned memory, in stretches of a bounce buffer's half: in the steps' order, or in
// parallel with the steps (copy_in). Also copies on the device, and host memory that the device reaches by itself.
#include <algorithm>
#include <cstring>

#include "cuda/backend.h"
#include "cuda/stretches.h"
#include "runtime/os/os.h"

namespace orrery::cuda {

namespace {

constexpr uint64_t kLeastDirect = uint64_t{64} << 10;  // smaller pieces of shared memory are gathered, too: a copy takes some microseconds

}  // namespace

void CudaBackend::upload(Ptr<std::byte> to, const void* from, uint64_t bytes) {
  const Upload one{to, from, bytes};
  upload_all({&one, 1});
}

void CudaBackend::upload_all(Span<const Upload> uploads) {
  const OnDevice here(*gpu_, queue_);
  uint64_t left = 0;
  for (const Upload& u : uploads) left += u.bytes;
  for (Cursor sent; left > 0 && !queue_.failed();) {
    const uint64_t room = std::min(left, kBounceBytes);
    const uint64_t base = bounce_.take(queue_, room);
    Pinned& bounce = bounce_.now();
    std::byte* half = bounce.data() + base;
    left -= room;
    std::byte* to = nullptr;  // one copy takes the pieces whose targets lie side by side: its bytes follow `first`
    uint64_t first = 0, bytes = 0;
    const auto flush = [&] {
      if (bytes > 0) queue_.copy(to, half + first, bytes, "copying to the device");
    };
    for_each_stretch(uploads, room, &sent, [&](const Upload& u, uint64_t at, uint64_t in_bounce, uint64_t n) {
      std::memcpy(half + in_bounce, static_cast<const std::byte*>(u.from) + at, n);
      if (bytes > 0 && device(u.to) + at == to + bytes) {
        bytes += n;
        return;
      }
      flush();
      to = device(u.to) + at, first = in_bounce, bytes = n;
    });
    flush();
    bounce.mark(queue_);
  }
}

void CudaBackend::download(void* to, Ptr<const std::byte> from, uint64_t bytes) {
  const Download one{to, from, bytes};
  download_all({&one, 1});
}

// The host empties one half of the pinned memory while the device copies to the other half.
void CudaBackend::download_all(Span<const Download> downloads) {
  const OnDevice here(*gpu_, queue_);
  send();
  send_told();
  Cursor sent, fetched;
  for (Pinned* under_way = nullptr;;) {
    Pinned* next = nullptr;
    if (sent.i < downloads.size()) {
      next = &bounce_.next(queue_);
      for_each_stretch(downloads, kBounceBytes, &sent, [&](const Download& d, uint64_t at, uint64_t in_bounce, uint64_t n) {
        if (!queue_.failed()) queue_.copy(next->data() + in_bounce, device(d.from) + at, n, "copying from the device");
      });
      if (!queue_.failed()) next->mark(queue_);
    }
    if (under_way) {
      if (!queue_.failed()) under_way->wait(queue_);
      for_each_stretch(downloads, kBounceBytes, &fetched, [&](const Download& d, uint64_t at, uint64_t in_bounce, uint64_t n) {
        std::byte* target = static_cast<std::byte*>(d.to) + at;
        if (queue_.failed()) std::memset(target, 0, n);  // a lost device gives zeros, not memory that nobody wrote
        else std::memcpy(target, under_way->data() + in_bounce, n);
      });
    }
    if (!next) return;
    under_way = next;
  }
}

void CudaBackend::collect(Span<const Download> downloads) {
  uint64_t bytes = 0;
  for (const Download& d : downloads) bytes += d.bytes;
  if (bytes > kResultsBytes - collected_bytes_) finish_collecting();
  if (bytes > kResultsBytes) return download_all(downloads);
  for (size_t i = 0, end = 0; i < downloads.size(); i = end) {  // one copy takes what lies side by side
    uint64_t n = 0;
    for (end = i; end < downloads.size() && downloads[end].from.address == downloads[i].from.address + n; ++end) {
      collected_.push_back({downloads[end].to, collected_bytes_ + n, downloads[end].bytes});
      n += downloads[end].bytes;
    }
    if (!queue_.failed()) queue_.copy(results_.data() + collected_bytes_, device(downloads[i].from), n, "copying from the device");
    collected_bytes_ += n;
  }
  if (!queue_.failed()) results_.mark(queue_);
}

void CudaBackend::finish_collecting() {
  if (!collected_.empty() && !queue_.failed()) results_.wait(queue_);
  for (const Collected& c : collected_) {
    if (queue_.failed()) std::memset(c.to, 0, c.bytes);  // as download_all() does
    else std::memcpy(c.to, results_.data() + c.at, c.bytes);
  }
  collected_.clear();
  collected_bytes_ = 0;
}

void CudaBackend::copy(Ptr<std::byte> to, Ptr<const std::byte> from, uint64_t bytes) {
  const OnDevice here(*gpu_, queue_);
  if (bytes == 0 || queue_.failed()) return;
  queue_.copy(device(to), device(from), bytes, "copying on the device");
}

template <class Upload>
void CudaBackend::send_moves(Queue& queue, std::byte* list, Span<const KvMove> moves, KvType to_type, KvType from_type,
                             uint64_t token_values, const Upload& upload) {
  for (size_t at = 0; at < moves.size() && !queue.failed(); at += kMostMoves) {
    const size_t n = std::min(kMostMoves, moves.size() - at);
    upload(list, moves.data() + at, n * sizeof(KvMove));
    uint32_t longest = 0;
    for (size_t i = at; i < at + n; ++i) longest = std::max(longest, moves[i].n_tokens);
    cuda::move_kv(queue, reinterpret_cast<const KvMove*>(list), static_cast<int32_t>(n), longest, to_type, from_type,
                  static_cast<int32_t>(token_values));
  }
}

void CudaBackend::move_kv(Span<const KvMove> moves, KvType to_type, KvType from_type, uint64_t token_values) {
  const OnDevice here(*gpu_, queue_);
  send_moves(queue_, scratch_ + plan_.moves, moves, to_type, from_type, token_values,
             [this](std::byte* to, const KvMove* from, uint64_t bytes) { upload({address(to)}, from, bytes); });
}

void CudaBackend::upload_ahead(std::byte* to, const void* from, uint64_t bytes) {
  const uint64_t at = ahead_bounce_.take(ahead_queue_, bytes);  // changes now()
  std::byte* half = ahead_bounce_.now().data() + at;
  std::memcpy(half, from, bytes);
  ahead_queue_.copy(to, half, bytes, "copying to the device");
  ahead_bounce_.now().mark(ahead_queue_);
}

uint64_t CudaBackend::move_kv_ahead(Span<const KvMove> moves, KvType to_type, KvType from_type, uint64_t token_values) {
  const OnDevice here(*gpu_, queue_);
  if (moves.empty() || queue_.failed()) return n_ahead_;
  send();
  before_ahead_.mark(queue_);
  before_ahead_.order(ahead_queue_);
  send_moves(ahead_queue_, scratch_ + plan_.moves_ahead, moves, to_type, from_type, token_values,
             [this](std::byte* to, const KvMove* from, uint64_t bytes) { upload_ahead(to, from, bytes); });
  behind_ahead_[++n_ahead_ % kAheadEvents].mark(ahead_queue_);
  return n_ahead_;
}

void CudaBackend::join_moves(uint64_t n) {
  const OnDevice here(*gpu_, queue_);
  if (n <= n_joined_) return;
  behind_ahead_[n % kAheadEvents].order(queue_);
  n_joined_ = n;
}

void CudaBackend::wait_for_all() {
  send();
  fill_ahead();
  join_moves(n_ahead_);
  if (!queue_.failed()) queue_.wait("running kernels");
}

Status CudaBackend::synchronize() {
  const OnDevice here(*gpu_, queue_);
  wait_for_all();
  return report();
}

void CudaBackend::end_turn() {
  const OnDevice here(*gpu_, queue_);
  wait_for_all();
  if (queue_.failed()) gpu_->latch().keep();
}

Status CudaBackend::report() {
  Status s = gpu_->status();
  if (s.ok()) return s;
  if (loses_device(static_cast<DriverError>(s.detail().native_code))) return s;
  const OnDevice here(*gpu_);  // the caller's own may be what failed
  // What was sent before the failure may run still. What was to come behind it is given up.
  for (Queue* queue : {&queue_, &ahead_queue_}) queue->drain();
  staging_.drain();
  operations_.clear(), step_waits_ = false;
  ahead_parts_.clear(), collected_.clear(), collected_bytes_ = 0;
  told_ = {}, told_sent_ = false;
  n_joined_ = n_ahead_;
  gpu_->latch().recover();
  return queue_.failed() ? gpu_->status() : std::move(s);
}

// The caller's thread gathers pieces in one half of the pinned memory while the device copies the other half.
Status CudaBackend::copy_in(Ptr<std::byte> to, Span<const HostPiece> pieces) {
  const std::lock_guard<std::mutex> lock(io_mutex_);
  const OnDevice here(*gpu_, io_queue_);
  const uint64_t n_failures = gpu_->latch().n_failures();
  ORRERY_TRY(gpu_->status());
  Pinned* half = &io_bounce_.next(io_queue_);
  uint64_t filled = 0;
  const auto flush = [&] {
    if (filled == 0) return;
    io_queue_.copy(device(to), half->data(), filled, "moving KV to the device");
    half->mark(io_queue_);
    to = to + filled;
    filled = 0;
    half = &io_bounce_.next(io_queue_);
  };
  for (HostPiece piece : pieces) {
    if (piece.shared && piece.bytes >= kLeastDirect) {  // the device reads it by itself
      flush();
      io_queue_.copy(device(to), piece.data, piece.bytes, "moving weights to the device");
      to = to + piece.bytes;
      continue;
    }
    while (piece.bytes > 0 && !io_queue_.failed()) {
      const uint64_t n = std::min(piece.bytes, kBounceBytes - filled);
      std::memcpy(half->data() + filled, piece.data, n);
      filled += n, piece.data += n, piece.bytes -= n;
      if (filled == kBounceBytes) flush();
    }
  }
  flush();
  if (!io_queue_.failed()) io_queue_.wait("moving KV to the device");
  // The steps' thread may have recovered meanwhile from a failure that made this one leave out copies.
  Status status = gpu_->latch().status_since(n_failures, gpu_->driver());
  if (!status.ok()) io_queue_.drain();  // the copies before write to the caller's memory
  return status;
}

Status CudaBackend::refused_memory(uint64_t bytes, DriverError e) const {
  const os::MemoryLimits limits = os::memory_limits();
  Status s = memory_error(loses_device(e) ? Code::device_lost : Code::out_of_pinned_memory, bytes, limits.available_bytes,
                          "%llu bytes of host memory could not be shared with the CUDA device: %s; %llu are available (by %s)%s",
                          static_cast<unsigned long long>(bytes), gpu_->driver().text(e).c_str(),
                          static_cast<unsigned long long>(limits.available_bytes), limits.bound_by,
                          shares_by_allocating() ? ", of which WSL2 and Windows lock half at most" : "");
  s.detail().native_code = static_cast<int64_t>(e);
  return s;
}

// With unified addressing, which every 64-bit system has, the device reaches registered memory by the host's addresses where its attribute
// says so.
Status CudaBackend::share_host(std::byte* at, uint64_t bytes) {
  const OnDevice here(*gpu_);
  DriverError e = here.error();
  if (e == DriverError::none) e = shares_by_allocating() ? DriverError::not_supported : gpu_->driver().register_host(at, bytes, 0);
  return e == DriverError::none ? ok_status() : refused_memory(bytes, e);
}

// Does not wait for the device: its work no longer needs the memory, and another thread may be capturing the stream.
void CudaBackend::unshare_host(std::byte* at) {
  if (const OnDevice here(*gpu_); here.in_its_process()) gpu_->driver().unregister_host(at);
}

// Memory of cuMemHostAlloc has one address for host and device in every 64-bit process, unless it is write-combined (CUDA driver API,
// "Unified Addressing"). Other memory has not everywhere, so the driver is asked.
Result<std::byte*> CudaBackend::allocate_shared(uint64_t bytes) {
  const OnDevice here(*gpu_);
  void* at = nullptr;
  DeviceAddress on_device = 0;
  DriverError e = here.error();
  if (e == DriverError::none) e = gpu_->driver().allocate_host(&at, bytes, kHostAllocDeviceMap);
  if (e != DriverError::none) return refused_memory(bytes, e);
  e = gpu_->driver().get_device_address(&on_device, at, 0);
  if (e == DriverError::none && on_device == device_address(at)) return static_cast<std::byte*>(at);
  gpu_->driver().free_host(at);
  return error(Code::unsupported, "host memory has another address for the CUDA device%s%s", e == DriverError::none ? "" : ": ",
               e == DriverError::none ? "" : gpu_->driver().text(e).c_str());
}

void CudaBackend::free_shared(std::byte* at) {
  if (const OnDevice here(*gpu_); here.in_its_process()) gpu_->driver().free_host(at);
}

}  // namespace orrery::cuda
