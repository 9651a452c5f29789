// See progress.h.
#include "terminal/progress.h"

#include <algorithm>
#include <string>

#include "terminal/output.h"

namespace orrery::tool {

constexpr auto kQuiet = std::chrono::milliseconds(200);   // shorter work shows nothing
constexpr auto kBetween = std::chrono::milliseconds(50);  // a terminal is slow
constexpr int kLargestBar = 40;

ProgressBar::ProgressBar(const char* verb, Unit unit) : verb_(verb), unit_(unit), terminal_(is_terminal(kStderr)) {}

void ProgressBar::update(uint64_t done, uint64_t total) {
  if (!terminal_ || total == 0) return;
  const auto now = Clock::now();
  if (!started_) {
    started_ = true;
    first_done_ = done;  // work done earlier says nothing about speed
  }
  if (now - start_ < kQuiet || (drawn_ && now - last_ < kBetween && done < total)) return;
  last_ = now;
  done = std::min(done, total);
  const double share = static_cast<double>(done) / static_cast<double>(total);
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(done - std::min(done, first_done_)) / seconds;
  std::string words = format(" %3.0f%% of ", share * 100);
  if (unit_ == Unit::tokens) {
    words += grouped(total) + " tokens" + (rate >= 1 ? format(", %.0f/s", rate) : "");
  } else {
    words += human_bytes(total) + ", " + human_bytes(static_cast<uint64_t>(rate)) + "/s";
  }
  const int columns = terminal_columns(kStderr);
  const int room = columns - static_cast<int>(words.size()) - static_cast<int>(std::string(verb_).size()) - 5;
  std::string bar;
  if (room >= 8) {
    const int width = std::min(room, kLargestBar);
    const int filled = static_cast<int>(share * width);
    bar = " [" + std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(width - filled), '.') + "]";
  }
  aside("\r" + std::string(verb_) + bar + words + "\033[K");
  drawn_ = true;
}

void ProgressBar::erase() {
  if (drawn_) aside("\r\033[K");
  drawn_ = false;
}

}  // namespace orrery::tool
