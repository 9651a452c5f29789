// Numbers as people write them, each read by one strict parser: the whole text must be a number in the range. An error is a
// UsageError that names the option, the text found and the values allowed. A unit belongs to two kinds of number:
//   bytes   B, K = KiB, M = MiB, G = GiB, T = TiB (1024 to a step), KB, MB, GB, TB (1000 to a step), as GNU tools read them
//   tokens  k (1,024) and M (1,048,576), so 32k is the context that a model card calls 32K
// Case does not matter, a fraction may precede a unit (1.5GB), and nothing may stand between number and unit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace orrery::tool {

// Errors use `what` as the number's name: an option, or a /set name.
uint64_t parse_integer(std::string_view text, const std::string& what, uint64_t least, uint64_t most);
double parse_real(std::string_view text, const std::string& what, double least, double most);
uint64_t parse_bytes(std::string_view text, const std::string& what);  // 1 byte to 8 PiB; a fraction of a byte is dropped
double parse_share(std::string_view text, const std::string& what);    // "30%" is 0.3; 0.0001% to 100%
bool is_share(std::string_view text);                                  // ends with %
uint64_t parse_tokens(std::string_view text, const std::string& what, uint64_t least, uint64_t most);

}  // namespace orrery::tool
