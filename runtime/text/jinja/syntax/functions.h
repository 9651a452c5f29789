// Filters and tests by name, so that the parser can tell which exist and the interpreter can call them by
// number.
#pragma once

#include <cstdint>
#include <string_view>

namespace orrery::text::jinja {

constexpr uint16_t kNoFunction = 0xFFFF;

uint16_t find_filter(std::string_view name);
uint16_t find_test(std::string_view name);

}  // namespace orrery::text::jinja
