// A shared library that is opened at run time: the driver's, and cuBLAS. It is never closed: another part of the process may use it, too,
// and opening it takes longer than anything else here.
#pragma once

#include <initializer_list>

namespace orrery::cuda {

class Library {
 public:
  Library() = default;
  // The first of these names that the system finds; opened() is false where it finds none.
  explicit Library(std::initializer_list<const char*> names);
  bool opened() const { return handle_ != nullptr; }
  // Sets *function to the library's function of this name. False, and null, where it has none.
  template <class F>
  bool find(F** function, const char* name) const {
    *function = reinterpret_cast<F*>(symbol(name));
    return *function != nullptr;
  }

 private:
  void* symbol(const char* name) const;
  void* handle_ = nullptr;
};

}  // namespace orrery::cuda
