// A vector whose copies have room for as much as it has itself: what was reserved once is there in a copy, too, which allocates
// nothing on its way where the first one did not.
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
