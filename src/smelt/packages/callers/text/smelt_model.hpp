// smelt_model.hpp: what the C++ headers of all packages of smelt have in common. C++17, no other library.
#ifndef SMELT_MODEL_HPP
#define SMELT_MODEL_HPP

#include "smelt_model.h"

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace smelt {
inline namespace abi1 {

// A call that the model refuses. `code` is SMELT_E_…, what() the library's message.
class error : public std::runtime_error {
 public:
  error(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int code() const noexcept { return code_; }

 private:
  int code_;
};

// Numbers that C++ lacks, as their bits.
struct float16 { std::uint16_t bits; };
struct bfloat16 { std::uint16_t bits; };
struct float8_e4m3fn { std::uint8_t bits; };
struct float8_e5m2 { std::uint8_t bits; };

template <class T>
constexpr DLDataType dtype_of() {
  using U = std::remove_const_t<T>;
  constexpr auto bits = static_cast<std::uint8_t>(8 * sizeof(U));
  if constexpr (std::is_same_v<U, bool>) return {6, 8, 1};
  else if constexpr (std::is_integral_v<U>) return {std::is_signed_v<U> ? std::uint8_t{0} : std::uint8_t{1}, bits, 1};
  else if constexpr (std::is_floating_point_v<U> || std::is_same_v<U, float16>) return {2, bits, 1};
  else if constexpr (std::is_same_v<U, bfloat16>) return {4, bits, 1};
  else if constexpr (std::is_same_v<U, float8_e4m3fn>) return {10, bits, 1};
  else if constexpr (std::is_same_v<U, float8_e5m2>) return {12, bits, 1};
  else return {5, bits, 1};  // std::complex
}

template <std::size_t Rank>
using extents = std::array<std::int64_t, Rank>;

// The strides of C order.
template <std::size_t Rank>
constexpr extents<Rank> strides_of(const extents<Rank>& shape) {
  extents<Rank> strides{};
  std::int64_t step = 1;
  for (std::size_t dimension = Rank; dimension-- > 0;) {
    strides[dimension] = step;
    step *= shape[dimension];
  }
  return strides;
}

template <std::size_t Rank>
std::size_t elements_of(const extents<Rank>& shape) {
  std::size_t count = 1;
  for (const auto extent : shape) {
    if (extent < 0) throw error(SMELT_E_SHAPE, "a shape with a negative extent");
    if (extent && count > std::size_t(PTRDIFF_MAX) / 16 / std::size_t(extent)) throw std::bad_alloc();
    count *= std::size_t(extent);
  }
  return count;
}

// Memory of someone else with a shape and strides (in elements), like std::mdspan: x(i, j), x.extent(0), x.data_handle().
template <class T, std::size_t Rank>
class tensor_view {
 public:
  using element_type = T;
  constexpr tensor_view() = default;
  constexpr tensor_view(T* data, const extents<Rank>& shape) : tensor_view(data, shape, strides_of(shape)) {}
  constexpr tensor_view(T* data, const extents<Rank>& shape, const extents<Rank>& strides)
      : data_(data), shape_(shape), strides_(strides) {}
  // A std::vector, std::array or std::span, in C order; its size is checked.
  template <class Range, class = decltype(std::declval<Range&>().data() + std::declval<Range&>().size())>
  tensor_view(Range&& range, const extents<Rank>& shape) : tensor_view(range.data(), shape) {
    if (range.size() != size())
      throw error(SMELT_E_SHAPE, "a shape of " + std::to_string(size()) + " elements for memory of " +
                                     std::to_string(range.size()));
  }
  // Another view of this rank: std::mdspan, Kokkos' mdspan, a view of elements that are not const.
  template <class View, class = std::enable_if_t<std::is_convertible_v<decltype(std::declval<const View&>().data_handle()), T*>>,
            class = decltype(std::declval<const View&>().stride(0))>
  constexpr tensor_view(const View& other) : data_(other.data_handle()) {
    static_assert(View::rank() == Rank, "a view of another rank");
    for (std::size_t d = 0; d < Rank; ++d) {
      shape_[d] = static_cast<std::int64_t>(other.extent(d));
      strides_[d] = static_cast<std::int64_t>(other.stride(d));
    }
  }

  static constexpr std::size_t rank() noexcept { return Rank; }
  constexpr T* data_handle() const noexcept { return data_; }
  constexpr const extents<Rank>& shape() const noexcept { return shape_; }
  constexpr std::int64_t extent(std::size_t dimension) const { return shape_[dimension]; }
  constexpr std::int64_t stride(std::size_t dimension) const { return strides_[dimension]; }
  std::size_t size() const { return elements_of(shape_); }
  template <class... Indices>
  constexpr T& operator()(Indices... indices) const {
    static_assert(sizeof...(Indices) == Rank, "one index for each dimension");
    std::int64_t at = 0;
    std::size_t dimension = 0;
    ((at += static_cast<std::int64_t>(indices) * strides_[dimension++]), ...);
    return data_[at];
  }
  // For C; it points into this view.
  DLTensor dlpack() const {
    DLTensor tensor{};
    tensor.data = const_cast<std::remove_const_t<T>*>(data_);
    tensor.device.device_type = kDLCPU;
    tensor.ndim = Rank;
    tensor.dtype = dtype_of<T>();
    tensor.shape = const_cast<std::int64_t*>(shape_.data());
    tensor.strides = const_cast<std::int64_t*>(strides_.data());
    return tensor;
  }

 private:
  T* data_ = nullptr;
  extents<Rank> shape_{}, strides_{};
};

// A tensor with memory of its own, zeros at first. Move only.
template <class T, std::size_t Rank>
class tensor {
 public:
  tensor() : tensor(extents<Rank>{}) {}
  explicit tensor(const extents<Rank>& shape)
      : memory_(new T[elements_of(shape) + 1]()), view_(memory_.get(), shape) {}
  operator tensor_view<T, Rank>() const noexcept { return view_; }
  operator tensor_view<const T, Rank>() const noexcept { return view_; }
  tensor_view<T, Rank> view() const noexcept { return view_; }
  T* data() const noexcept { return memory_.get(); }
  std::size_t size() const { return view_.size(); }
  const extents<Rank>& shape() const noexcept { return view_.shape(); }
  std::int64_t extent(std::size_t dimension) const { return view_.extent(dimension); }
  T* begin() const noexcept { return data(); }
  T* end() const { return data() + size(); }
  template <class... Indices>
  T& operator()(Indices... indices) const { return view_(indices...); }

 private:
  std::unique_ptr<T[]> memory_;
  tensor_view<T, Rank> view_;
};

// Memory for one run at a time; it grows as needed. Without one of the caller's, each thread has one for all models.
class workspace {
 public:
  void* reserve(std::size_t bytes) {
    if (bytes + SMELT_ALIGNMENT > bytes_ || !memory_) {
      memory_.reset();
      memory_.reset(new unsigned char[bytes + SMELT_ALIGNMENT]);
      bytes_ = bytes + SMELT_ALIGNMENT;
    }
    void* start = memory_.get();
    std::size_t room = bytes_;
    return std::align(SMELT_ALIGNMENT, bytes, start, room);
  }
  static workspace& of_thread() {
    static thread_local workspace mine;
    return mine;
  }

 private:
  std::unique_ptr<unsigned char[]> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace abi1
}  // namespace smelt

#endif  // SMELT_MODEL_HPP
