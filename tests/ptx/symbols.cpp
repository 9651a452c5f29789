// See symbols.h.
#include "tests/ptx/symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <vector>

namespace orrery::ptx {

namespace {

template <class T>
std::vector<T> read_at(std::ifstream* in, uint64_t offset, size_t n) {
  std::vector<T> out(n);
  in->seekg(static_cast<std::streamoff>(offset));
  in->read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(n * sizeof(T)));
  if (!*in) throw std::runtime_error("the program's file ends early");
  return out;
}

// Where the program was loaded: the first object in the list is the program itself.
uint64_t program_base() {
  uint64_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        *static_cast<uint64_t*>(out) = info->dlpi_addr;
        return 1;
      },
      &base);
  return base;
}

}  // namespace

std::string demangled(const std::string& symbol) {
  int status = 0;
  char* text = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  const std::string out = status == 0 && text ? text : symbol;
  std::free(text);
  return out;
}

std::map<const void*, std::string> functions_with(const std::string& part) {
  std::ifstream in("/proc/self/exe", std::ios::binary);
  const Elf64_Ehdr header = read_at<Elf64_Ehdr>(&in, 0, 1)[0];
  const std::vector<Elf64_Shdr> sections = read_at<Elf64_Shdr>(&in, header.e_shoff, header.e_shnum);
  std::map<const void*, std::string> out;
  const uint64_t base = program_base();
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB) continue;
    const std::vector<Elf64_Sym> symbols = read_at<Elf64_Sym>(&in, section.sh_offset, section.sh_size / sizeof(Elf64_Sym));
    std::vector<char> names = read_at<char>(&in, sections.at(section.sh_link).sh_offset, sections.at(section.sh_link).sh_size);
    names.push_back('\0');
    for (const Elf64_Sym& s : symbols) {
      if (ELF64_ST_TYPE(s.st_info) != STT_FUNC || s.st_value == 0) continue;
      const char* name = names.data() + s.st_name;
      if (std::strstr(name, part.c_str()) && !std::strchr(name, '.')) out[reinterpret_cast<const void*>(base + s.st_value)] = demangled(name);
    }
  }
  if (out.empty()) throw std::runtime_error("the program's file has no symbols");
  return out;
}

}  // namespace orrery::ptx
