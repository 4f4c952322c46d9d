#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/safetensors.hpp"

/// Any bytes are either refused or describe tensors that cover exactly the data of the file.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto header = wisp::model::parse_safetensors(bytes, size, "fuzz");
  if (!header.ok()) return 0;
  std::uint64_t end = 0;
  for (const auto& t : header->tensors) {
    if (t.offset != end || t.bytes > size) std::abort();
    end += t.bytes;
  }
  if (header->data_offset + end != size) std::abort();
  return 0;
}
