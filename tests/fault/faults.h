// A system that refuses: this program's memory, threads and files, with the nth request made to fail.
//
// The operators new and the wrapped system calls (see CMakeLists.txt: --wrap) count every request that the
// calling thread makes while faults are armed.  Counters are the thread's own; what is live is counted for
// the process.
#pragma once

#include <cstdint>
#include <functional>

namespace orrery::testing {

// directory: flushing one, which saving does last and does without.
enum class Fault { memory, thread, read, write, directory };

// The nth request of the kind (from 0) fails, once; negative: none. With `and_after`, all later ones fail,
// too.
void arm(Fault kind, int64_t n, bool and_after = false, int error_number = 0);
// Ends it; whether a request was refused.
bool disarm(Fault kind);

// Reads give at most this many bytes at once; 0: as many as asked for.
void limit_reads(uint64_t bytes);

// Calls `f` before read n (from 0) of the calling thread; n < 0: never.
void on_read(int64_t n, std::function<void()> f);

// Blocks of operator new and anonymous mappings not yet given back, by all threads.
int64_t live_blocks();

}  // namespace orrery::testing
