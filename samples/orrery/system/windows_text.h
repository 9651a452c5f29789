// Text of Windows: UTF-16 inside, UTF-8 outside; full paths; error numbers as errno.
#pragma once

#ifndef NOMINMAX
#define NOMINMAX
#endif
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <string>
#include <string_view>

namespace orrery::tool {

// Bytes that are no UTF-8, and halves of surrogate pairs, become U+FFFD.
std::wstring wide(std::string_view text);
std::string utf8(std::wstring_view text);

// The full path behind "\\?\", which admits 32,767 characters. A name of a device ("NUL", "CON") becomes "\\.\NAME". "" for "".
std::wstring wide_path(const std::string& path);
bool is_device(const std::wstring& full);

// Sets errno by GetLastError().
void set_errno();

// The system's handle of a descriptor; INVALID_HANDLE_VALUE: none.
HANDLE handle_of(int fd);
bool is_console(HANDLE handle);

}  // namespace orrery::tool
