// The functions of this program by name, from the symbol table of its own file: so a kernel that is launched by its address is found among the
// kernels of the PTX, which have names.
#pragma once

#include <map>
#include <string>

namespace orrery::ptx {

// Address -> demangled name, of all functions in the program's symbol table whose name holds `part`. Throws std::runtime_error.
std::map<const void*, std::string> functions_with(const std::string& part);

// A C++ symbol as c++filt writes it; the symbol itself if it is none.
std::string demangled(const std::string& symbol);

}  // namespace orrery::ptx
