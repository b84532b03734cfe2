#include "plait/run/hf/safetensors.h"

#include "plait/base/check.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

namespace plait {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;               // the header's length, little endian
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // limit of the reference implementation

struct Dtype {
  std::string_view name;
  std::uint64_t bytes;
};
/// The format's types of whole bytes.
constexpr std::array kDtypes = {Dtype{"BOOL", 1},    Dtype{"U8", 1},  Dtype{"I8", 1},  Dtype{"F8_E5M2", 1},
                                Dtype{"F8_E4M3", 1}, Dtype{"I16", 2}, Dtype{"U16", 2}, Dtype{"F16", 2},
                                Dtype{"BF16", 2},    Dtype{"I32", 4}, Dtype{"U32", 4}, Dtype{"F32", 4},
                                Dtype{"I64", 8},     Dtype{"U64", 8}, Dtype{"F64", 8}};

std::optional<std::uint64_t> dtype_bytes(std::string_view name) {
  const auto* found = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const Dtype& d) { return d.name == name; });
  if (found == kDtypes.end()) return std::nullopt;
  return found->bytes;
}

std::optional<at::ScalarType> scalar_type_of(std::string_view dtype) {
  if (dtype == "F64") return at::kDouble;
  if (dtype == "F32") return at::kFloat;
  if (dtype == "F16") return at::kHalf;
  if (dtype == "BF16") return at::kBFloat16;
  return std::nullopt;
}

std::string_view dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble: return "F64";
    case at::kFloat: return "F32";
    case at::kHalf: return "F16";
    case at::kBFloat16: return "BF16";
    default: PLAIT_CHECK(false, "no safetensors name for scalar type {}", static_cast<int>(type));
  }
}

/// Closes on the way out.
class Descriptor {
 public:
  explicit Descriptor(const fs::path& path) : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  [[nodiscard]] int get() const { return value_; }

 private:
  int value_;
};

Error read_error(const fs::path& path) {
  return make_error(ErrorCode::kIo, "io.read", "{}: cannot be read: {}", path.string(),
                    std::generic_category().message(errno));
}

template <class... Args>
Error damaged(const fs::path& path, std::string_view rule, fmt::format_string<Args...> format, Args&&... args) {
  return make_error(ErrorCode::kIo, rule, "{}: {}", path.string(), fmt::format(format, std::forward<Args>(args)...));
}

Result<> read_exactly(const fs::path& path, int descriptor, char* to, std::uint64_t count, std::uint64_t offset) {
  while (count > 0) {
    const ssize_t got = ::pread(descriptor, to, count, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return read_error(path);
    if (got == 0) return damaged(path, "safetensors.truncated", "ends {} bytes early", count);
    to += got;
    offset += static_cast<std::uint64_t>(got);
    count -= static_cast<std::uint64_t>(got);
  }
  return {};
}

std::uint64_t little_endian(const std::array<char, kLengthBytes>& bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) value = value << 8U | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// The parsed header, or the name that an object of it gives twice.
struct ParsedHeader {
  Json json;
  std::optional<std::string> twice;
};

ParsedHeader parse_header(const std::string& text) {
  ParsedHeader parsed;
  std::vector<std::set<std::string>> names;  // of the objects around
  const auto watch = [&](int /*depth*/, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end) names.pop_back();
    if (event == Json::parse_event_t::key && !names.back().insert(value.get<std::string>()).second)
      parsed.twice = value.get<std::string>();
    return true;
  };
  parsed.json = Json::parse(text, watch, /*allow_exceptions=*/false);
  return parsed;
}

/// Elements times bytes of an element, or nothing if that does not fit.
std::optional<std::uint64_t> size_of(const SafetensorsEntry& entry, std::uint64_t element_bytes) {
  std::uint64_t size = element_bytes;
  for (const std::int64_t extent : entry.shape) {
    std::uint64_t product = 0;
    if (__builtin_mul_overflow(size, static_cast<std::uint64_t>(extent), &product)) return std::nullopt;
    size = product;
  }
  return size;
}

Result<SafetensorsEntry> parse_entry(const fs::path& path, const std::string& name, const Json& json) {
  const auto bad = [&](std::string_view what) { return damaged(path, "safetensors.header", "{}: {}", name, what); };
  if (!json.is_object()) return bad("its description is not an object");
  const auto dtype = json.find("dtype");
  const auto shape = json.find("shape");
  const auto offsets = json.find("data_offsets");
  if (dtype == json.end() || !dtype->is_string()) return bad("dtype is missing or not a string");
  if (shape == json.end() || !shape->is_array()) return bad("shape is missing or not a list");
  if (offsets == json.end() || !offsets->is_array() || offsets->size() != 2 || !(*offsets)[0].is_number_unsigned() ||
      !(*offsets)[1].is_number_unsigned())
    return bad("data_offsets is missing or not a pair of non-negative integers");
  SafetensorsEntry entry{.dtype = dtype->get<std::string>(),
                         .shape = {},
                         .begin = (*offsets)[0].get<std::uint64_t>(),
                         .end = (*offsets)[1].get<std::uint64_t>()};
  for (const Json& extent : *shape) {
    if (!extent.is_number_unsigned() || extent.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
      return bad("shape holds something that is no size");
    entry.shape.push_back(extent.get<std::int64_t>());
  }
  const std::optional<std::uint64_t> element_bytes = dtype_bytes(entry.dtype);
  if (!element_bytes) return damaged(path, "safetensors.dtype", "{}: unknown dtype {}", name, entry.dtype);
  const std::optional<std::uint64_t> size = size_of(entry, *element_bytes);
  if (entry.begin > entry.end || !size || *size != entry.end - entry.begin)
    return damaged(path, "safetensors.size", "{}: bytes {} to {} are not what {} of shape [{}] takes", name,
                   entry.begin, entry.end, entry.dtype, fmt::join(entry.shape, ", "));
  return entry;
}

/// Tensors lie behind each other and end where the file ends.
Result<> check_layout(const fs::path& path, const std::map<std::string, SafetensorsEntry>& entries,
                      std::uint64_t data_bytes) {
  std::vector<const std::pair<const std::string, SafetensorsEntry>*> order;
  for (const auto& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  std::uint64_t expected = 0;
  for (const auto* item : order) {
    const auto& [name, entry] = *item;
    if (entry.end > data_bytes)
      return damaged(path, "safetensors.truncated", "{} ends at byte {} of the data, but the file holds only {}", name,
                     entry.end, data_bytes);
    if (entry.begin < expected)
      return damaged(path, "safetensors.overlap", "{} begins at byte {}, inside the tensor before it, which ends at {}",
                     name, entry.begin, expected);
    if (entry.begin > expected)
      return damaged(path, "safetensors.hole", "{} begins at byte {}, but the tensor before it ends at {}", name,
                     entry.begin, expected);
    expected = entry.end;
  }
  if (expected != data_bytes)
    return damaged(path, "safetensors.trailing", "the tensors end at byte {} of the data, the file at {}", expected,
                   data_bytes);
  return {};
}

/// Tensor bytes in row-major order, on the host.
at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.to(at::kCPU).contiguous();
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const fs::path& path) {
  const Descriptor descriptor(path);
  if (descriptor.get() < 0) return read_error(path);
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) return read_error(path);
  if (!S_ISREG(status.st_mode)) return damaged(path, "safetensors.truncated", "is not a regular file");
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  if (file_bytes < kLengthBytes)
    return damaged(path, "safetensors.truncated", "{} bytes are too few for a safetensors file", file_bytes);
  std::array<char, kLengthBytes> length_bytes{};
  PLAIT_TRY_VOID(read_exactly(path, descriptor.get(), length_bytes.data(), kLengthBytes, 0));
  const std::uint64_t header_bytes = little_endian(length_bytes);
  if (header_bytes > kMaxHeaderBytes)
    return damaged(path, "safetensors.header_length", "claims a header of {} bytes; at most {} are accepted",
                   header_bytes, kMaxHeaderBytes);
  if (header_bytes > file_bytes - kLengthBytes)
    return damaged(path, "safetensors.truncated", "claims a header of {} bytes, but the file has {}", header_bytes,
                   file_bytes);
  std::string text(header_bytes, '\0');
  PLAIT_TRY_VOID(read_exactly(path, descriptor.get(), text.data(), header_bytes, kLengthBytes));
  const ParsedHeader header = parse_header(text);
  if (!header.json.is_object()) return damaged(path, "safetensors.header", "the header is not a JSON object");
  if (header.twice) return damaged(path, "safetensors.duplicate", "the header gives {} twice", *header.twice);

  SafetensorsFile file;
  file.path_ = path;
  file.data_begin_ = kLengthBytes + header_bytes;
  for (const auto& [name, json] : header.json.items()) {
    if (name == "__metadata__") continue;
    PLAIT_TRY(SafetensorsEntry entry, parse_entry(path, name, json));
    file.entries_.emplace(name, std::move(entry));
  }
  PLAIT_TRY_VOID(check_layout(path, file.entries_, file_bytes - file.data_begin_));
  return file;
}

Result<at::Tensor> SafetensorsFile::read(const std::string& name) const {
  const auto found = entries_.find(name);
  PLAIT_CHECK(found != entries_.end(), "{} is not in {}", name, path_.string());
  const SafetensorsEntry& entry = found->second;
  const std::optional<at::ScalarType> type = scalar_type_of(entry.dtype);
  if (!type)
    return make_error(ErrorCode::kUnsupported, "safetensors.dtype",
                      "{}: {} has dtype {}; F64, F32, F16 and BF16 can be read", path_.string(), name, entry.dtype);
  const Descriptor descriptor(path_);
  if (descriptor.get() < 0) return read_error(path_);
  at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(*type));
  PLAIT_TRY_VOID(read_exactly(path_, descriptor.get(), static_cast<char*>(tensor.mutable_data_ptr()),
                              entry.end - entry.begin, data_begin_ + entry.begin));
  return tensor;
}

Result<std::map<std::string, at::Tensor>> read_safetensors(const fs::path& path) {
  PLAIT_TRY(const SafetensorsFile file, SafetensorsFile::open(path));
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, entry] : file.entries()) {
    PLAIT_TRY(at::Tensor tensor, file.read(name));
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

SafetensorsPlan plan_safetensors(const std::map<std::string, SafetensorsShape>& tensors) {
  std::vector<std::pair<std::string, SafetensorsShape>> order(tensors.begin(), tensors.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return c10::elementSize(a.second.type) > c10::elementSize(b.second.type);
  });
  SafetensorsPlan plan;
  std::string header = R"({"__metadata__":{"format":"pt"})";
  for (const auto& [name, tensor] : order) {
    std::uint64_t bytes = c10::elementSize(tensor.type);
    for (const std::int64_t extent : tensor.shape) bytes *= static_cast<std::uint64_t>(extent);
    const std::uint64_t begin = std::exchange(plan.bytes, plan.bytes + bytes);
    plan.offsets[name] = begin;
    header += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", Json(name).dump(),
                          dtype_of(tensor.type), fmt::join(tensor.shape, ","), begin, plan.bytes);
  }
  header += '}';
  header.resize((header.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  for (std::size_t i = 0; i < kLengthBytes; ++i) plan.head += static_cast<char>(header.size() >> (8 * i) & 0xffU);
  plan.head += header;
  for (auto& [name, offset] : plan.offsets) offset += plan.head.size();
  plan.bytes += plan.head.size();
  return plan;
}

Result<AtomicFile> stage_safetensors(const fs::path& path, const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, SafetensorsShape> shapes;
  for (const auto& [name, tensor] : tensors)
    shapes[name] = {.type = tensor.scalar_type(), .shape = tensor.sizes().vec()};
  const SafetensorsPlan plan = plan_safetensors(shapes);
  std::map<std::uint64_t, at::Tensor> order;
  for (const auto& [name, offset] : plan.offsets)
    if (tensors.at(name).numel() > 0) order[offset] = tensors.at(name);
  PLAIT_TRY(AtomicFile file, AtomicFile::create(path.string()));
  PLAIT_TRY_VOID(file.write(plan.head));
  for (const auto& [offset, tensor] : order) {
    const at::Tensor host = on_host(tensor);
    PLAIT_TRY_VOID(file.write({static_cast<const char*>(host.const_data_ptr()), host.nbytes()}));
  }
  return file;
}

Result<> write_safetensors(const fs::path& path, const std::map<std::string, at::Tensor>& tensors) {
  PLAIT_TRY(AtomicFile file, stage_safetensors(path, tensors));
  return file.commit();
}

}  // namespace plait
