// A vector whose copies reserve the same capacity. Code that never allocates on a vector with reserved capacity does not allocate
// on its copies either.
#pragma once

#include <vector>

namespace orrery {

template <class T>
class ReservedVector : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  ReservedVector() = default;
  ReservedVector(const ReservedVector& other) : std::vector<T>() { *this = other; }
  ReservedVector(ReservedVector&&) noexcept = default;
  ReservedVector& operator=(const ReservedVector& other) {
    this->reserve(other.capacity());
    std::vector<T>::operator=(other);
    return *this;
  }
  ReservedVector& operator=(ReservedVector&&) noexcept = default;
};

}  // namespace orrery
