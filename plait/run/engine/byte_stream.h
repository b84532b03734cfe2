#pragma once

#include "plait/base/check.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace plait {

/// Values in a row as bytes, for processes of one build and one kind of machine: no format that outlives a run.
///
///     ByteWriter out;
///     out.put(step).put_bytes(name);
///     ByteReader in(out.bytes());
///     const auto step = in.get<std::int64_t>();
class ByteWriter {
 public:
  ByteWriter() = default;
  /// \param expected  bytes: room for them from the start
  explicit ByteWriter(std::size_t expected) { bytes_.reserve(expected); }
  template <class T>
  ByteWriter& put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    append(&value, sizeof(T));
    return *this;
  }
  /// With their number in front.
  ByteWriter& put_bytes(std::string_view bytes) {
    put(static_cast<std::uint64_t>(bytes.size()));
    append(bytes.data(), bytes.size());
    return *this;
  }
  template <class T>
  ByteWriter& put_list(const std::vector<T>& values) {
    return put_list(std::span<const T>(values));
  }
  template <class T>
  ByteWriter& put_list(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    put(static_cast<std::uint64_t>(values.size()));
    append(values.data(), values.size() * sizeof(T));
    return *this;
  }
  void append(const void* data, std::size_t size) { bytes_.append(static_cast<const char*>(data), size); }

  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads in the order of writing. Bytes that end too early are our own mistake.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : left_(bytes) {}

  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const std::string_view from = next(sizeof(T));
    std::memcpy(&value, from.data(), sizeof(T));
    return value;
  }
  std::string_view get_bytes() { return next(get<std::uint64_t>()); }
  template <class T>
  std::vector<T> get_list() {
    std::vector<T> values(get<std::uint64_t>());
    const std::string_view from = next(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), from.data(), from.size());
    return values;
  }
  std::string_view next(std::size_t size) {
    PLAIT_CHECK(size <= left_.size(), "{} bytes wanted, {} left", size, left_.size());
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
  }
  [[nodiscard]] bool done() const { return left_.empty(); }

 private:
  std::string_view left_;
};

}  // namespace plait
