// A vector whose copies have room for as much as it has itself: what was reserved once is there in a copy, too, which allocates
// nothing on its way where the first one did not.
#pragma once

#include <vector>

namespace orrery {

template <class T>
class Roomy : public std::vector<T> {
 public:
  using std::vector<T>::vector;
  Roomy() = default;
  Roomy(const Roomy& other) : std::vector<T>() { *this = other; }
  Roomy(Roomy&&) noexcept = default;
  Roomy& operator=(const Roomy& other) {
    this->reserve(other.capacity());
    std::vector<T>::operator=(other);
    return *this;
  }
  Roomy& operator=(Roomy&&) noexcept = default;
};

}  // namespace orrery
