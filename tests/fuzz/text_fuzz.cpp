#include "tests/fuzz/properties.h"

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  plait::fuzz::check_text({reinterpret_cast<const char*>(data), size});
  return 0;
}
