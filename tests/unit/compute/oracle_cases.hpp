#pragma once
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/safetensors.hpp"

namespace wisp::compute::testing {

inline const std::string kData = WISP_TEST_DATA;

/// A tensor of an oracle's expected.safetensors.
inline std::vector<std::uint8_t> expected_tensor(const std::string& folder, const std::string& name) {
  auto file = model::SafetensorsFile::open(folder + "/expected.safetensors");
  if (!file.ok()) throw std::runtime_error(file.error().text);
  for (const model::TensorInfo& t : file->header().tensors) {
    if (t.name != name) continue;
    std::vector<std::uint8_t> out(t.bytes);
    if (!file->read(t, 0, out).ok()) throw std::runtime_error("unreadable " + name);
    return out;
  }
  throw std::runtime_error("no tensor " + name);
}

/// Every folder with an oracle's answers, so that a new case is a folder and nothing else.
inline std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& f : std::filesystem::directory_iterator(kData + "/oracle"))
    if (std::filesystem::exists(f.path() / "expected.safetensors")) names.push_back(f.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

/// Those with experts whose weights are plain numbers.
inline std::vector<std::string> plain_cases() {
  std::vector<std::string> names = cases();
  std::erase_if(names, [](const std::string& name) {
    for (const char* form : {"int4", "fp8", "awq", "gptq", "mxfp4"})
      if (name.find(form) != name.npos) return true;
    for (const char* family : {"llama_", "mistral_", "qwen3_"})  // those without
      if (name.starts_with(family)) return true;
    return false;
  });
  return names;
}

inline std::vector<std::uint32_t> ids_of(const std::string& folder) {
  const auto bytes = expected_tensor(folder, "input_ids");
  std::vector<std::uint32_t> ids;
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    std::int64_t id;
    std::memcpy(&id, bytes.data() + i, 8);
    ids.push_back(static_cast<std::uint32_t>(id));
  }
  return ids;
}

/// [positions, vocab] logits of the oracle.
inline std::vector<float> expected_logits(const std::string& folder) {
  const auto bytes = expected_tensor(folder, "logits");
  std::vector<float> logits(bytes.size() / 4);
  std::memcpy(logits.data(), bytes.data(), bytes.size());
  return logits;
}

}  // namespace wisp::compute::testing
