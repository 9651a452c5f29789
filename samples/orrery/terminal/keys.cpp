// See keys.h. The sequences are those of xterm and its many kin: CSI (ESC [), SS3 (ESC O), and Alt as a leading ESC.
#include "terminal/keys.h"

#include <algorithm>

#include "terminal/characters.h"

namespace orrery::tool {
namespace {

constexpr std::string_view kPasteBegin = "\x1b[200~", kPasteEnd = "\x1b[201~";
constexpr size_t kLongestSequence = 64;  // a longer one is noise

struct Control {
  char byte;
  Key::Kind kind;
};
constexpr Control kControls[] = {{'\x01', Key::line_start},      {'\x02', Key::left},         {'\x03', Key::interrupt},
                                 {'\x04', Key::end_or_erase},    {'\x05', Key::line_end},     {'\x06', Key::right},
                                 {'\x08', Key::backspace},       {'\x09', Key::tab},          {'\x0a', Key::enter},
                                 {'\x0b', Key::erase_to_end},    {'\x0c', Key::clear_screen}, {'\x0d', Key::enter},
                                 {'\x0e', Key::history_forward}, {'\x10', Key::history_back}, {'\x15', Key::erase_to_start},
                                 {'\x17', Key::erase_word},      {'\x1a', Key::suspend},      {'\x7f', Key::backspace}};

// The final byte of a CSI or SS3 sequence, and the number before a "~".
Key::Kind final_key(char final, bool word) {
  switch (final) {
    case 'A': return Key::up;
    case 'B': return Key::down;
    case 'C': return word ? Key::word_right : Key::right;
    case 'D': return word ? Key::word_left : Key::left;
    case 'H': return Key::line_start;
    case 'F': return Key::line_end;
    case 'M': return Key::enter;  // of the keypad
    default: return Key::unknown;
  }
}

Key::Kind numbered_key(std::string_view parameters) {
  const std::string_view number = parameters.substr(0, parameters.find(';'));
  if (number == "1" || number == "7") return Key::line_start;
  if (number == "4" || number == "8") return Key::line_end;
  if (number == "3") return Key::erase;
  return Key::unknown;
}

}  // namespace

size_t KeyDecoder::escape(std::string_view bytes, std::vector<Key>* keys) {
  if (bytes.size() < 2) return 0;
  const char second = bytes[1];
  if (second == '[' || second == 'O') {
    size_t end = 2;
    if (second == '[') {
      while (end < bytes.size() && end <= kLongestSequence && bytes[end] >= 0x20 && bytes[end] < 0x40) ++end;
    }
    if (end > kLongestSequence) {
      keys->push_back({Key::unknown, ""});
      return end;
    }
    if (end >= bytes.size()) return 0;
    const std::string_view sequence = bytes.substr(0, end + 1), parameters = bytes.substr(2, end - 2);
    if (sequence == kPasteBegin) {
      pasting_ = true, rested_ = false, carriage_ = false, pasted_bytes_ = 0;
      return sequence.size();
    }
    if (bytes[end] < 0x40 || bytes[end] == 0x7f) {  // broken off by another key
      keys->push_back({Key::unknown, ""});
      return end;
    }
    const bool modified = parameters.find(';') != std::string_view::npos;  // with Ctrl or Alt: by words
    keys->push_back({bytes[end] == '~' ? numbered_key(parameters) : final_key(bytes[end], modified), ""});
    return sequence.size();
  }
  Key::Kind kind = Key::unknown;
  if (second == '\r' || second == '\n') kind = Key::newline;
  if (second == 'b') kind = Key::word_left;
  if (second == 'f') kind = Key::word_right;
  if (second == 'd') kind = Key::erase_next_word;
  if (second == '\x7f' || second == '\x08') kind = Key::erase_word;
  keys->push_back({kind, ""});
  // A control character behind ESC keeps its own meaning: ESC, then Ctrl-C.
  return kind == Key::unknown && static_cast<unsigned char>(second) < 0x20 ? 1 : 2;
}

size_t KeyDecoder::one_key(std::string_view bytes, std::vector<Key>* keys) {
  const auto lead = static_cast<unsigned char>(bytes[0]);
  if (lead == 0x1b) return escape(bytes, keys);
  for (const Control& control : kControls) {
    if (bytes[0] != control.byte) continue;
    keys->push_back({control.kind, ""});
    return 1;
  }
  if (lead < 0x20) {
    keys->push_back({Key::unknown, ""});
    return 1;
  }
  const size_t n = character_bytes(bytes);
  if (n == 0 && bytes.size() < 4 && character_may_follow(bytes)) return 0;
  const std::string character = n == 0 ? "\xEF\xBF\xBD" : std::string(bytes.substr(0, n));
  if (!keys->empty() && keys->back().kind == Key::text) {
    keys->back().content += character;
  } else {
    keys->push_back({Key::text, character});
  }
  return n == 0 ? 1 : n;
}

void KeyDecoder::end_paste_piece(std::vector<Key>* keys) {
  if (!piece_.empty()) keys->push_back({Key::paste, well_formed(piece_)});
  piece_.clear();
}

// Moves pending bytes into the paste, up to its end or to a prefix of its end.
void KeyDecoder::paste_bytes(std::vector<Key>* keys) {
  const size_t end = pending_.find(kPasteEnd);
  size_t n = end;
  if (end == std::string::npos) {
    size_t prefix = std::min(pending_.size(), kPasteEnd.size() - 1);
    while (prefix > 0 && pending_.compare(pending_.size() - prefix, prefix, kPasteEnd.substr(0, prefix)) != 0) --prefix;
    n = pending_.size() - prefix;
  }
  for (size_t i = 0; i < n; ++i) {
    char c = pending_[i];
    const bool second_half = c == '\n' && carriage_;  // of "\r\n"
    carriage_ = c == '\r';
    if (second_half || ++pasted_bytes_ > kLargestPaste) continue;
    if (c == '\r') c = '\n';
    if (c == '\0') {
      piece_ += "\xEF\xBF\xBD";
    } else {
      piece_ += c;
    }
  }
  pending_.erase(0, n);
  if (end == std::string::npos) return;
  pending_.erase(0, kPasteEnd.size());
  end_paste_piece(keys);
  pasting_ = false;
}

void KeyDecoder::feed(std::string_view bytes, std::vector<Key>* keys) {
  if (pasting_ && rested_ && bytes == "\x03") {
    pasting_ = false;
    pending_.clear();
    keys->push_back({Key::interrupt, ""});
    return;
  }
  rested_ = false;
  pending_ += bytes;
  size_t used = 0;
  while (used < pending_.size()) {
    if (pasting_) {
      pending_.erase(0, used);
      used = 0;
      paste_bytes(keys);
      if (pasting_) return;
      continue;
    }
    const size_t n = one_key(std::string_view(pending_).substr(used), keys);
    if (n == 0) break;
    used += n;
  }
  pending_.erase(0, used);
}

void KeyDecoder::rest(std::vector<Key>* keys) {
  rested_ = true;
  if (pasting_) {
    // A character that is not whole yet waits for its end.
    size_t whole = piece_.size();
    for (size_t back = 1; back <= 3 && back <= piece_.size(); ++back) {
      const std::string_view tail = std::string_view(piece_).substr(piece_.size() - back);
      if (character_bytes(tail) == 0 && character_may_follow(tail)) whole = piece_.size() - back;
    }
    const std::string tail = piece_.substr(whole);
    piece_.resize(whole);
    end_paste_piece(keys);
    piece_ = tail;
    return;
  }
  if (pending_.empty()) return;
  pending_.clear();  // a lone ESC, or the beginning of a sequence or a character whose end never came
  keys->push_back({Key::unknown, ""});
}

}  // namespace orrery::tool
