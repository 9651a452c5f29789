// Parts of the Windows console that windows_process.cpp and tests use.
#pragma once

#include <string>

#include "system/windows_text.h"

namespace orrery::tool {

// Lets consoles on standard output and error obey escape sequences. The end of the process restores them.
void prepare_consoles();

// A key of the console as xterm's bytes (keys.h reads them); "" for a key that sends nothing. *high keeps the first half of a surrogate
// pair until its second half comes. A console that translates keys itself (ENABLE_VIRTUAL_TERMINAL_INPUT) sends the bytes one by one, and
// they pass.
std::string bytes_of_key(const KEY_EVENT_RECORD& key, wchar_t* high);

}  // namespace orrery::tool
