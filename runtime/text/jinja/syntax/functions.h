// Filters and tests by name. The parser looks up which names exist; the interpreter calls the functions by number.
#pragma once

#include <cstdint>
#include <string_view>

namespace orrery::text::jinja {

constexpr uint16_t kNoFunction = 0xFFFF;

uint16_t find_filter(std::string_view name);
uint16_t find_test(std::string_view name);

}  // namespace orrery::text::jinja
