#include "model/inspect.hpp"

#include <filesystem>

#include "model/convert.hpp"
#include "model/convert_plan.hpp"

namespace wisp::model {

Result<Inspection> inspect(const std::string& folder) {
  Inspection out;
  if (is_wisp_folder(folder)) {
    WISP_ASSIGN(out.manifest, load_manifest(folder));
    out.converted = true;
    std::error_code ec;
    for (std::filesystem::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
      std::error_code not_a_file;
      const auto size = it->file_size(not_a_file);
      if (!not_a_file) out.bytes += size;
    }
    return out;
  }
  if (!is_hf_folder(folder))
    return not_found(folder +
                     ": neither a Hugging Face checkpoint (config.json and safetensors) nor a model folder");
  auto plan = plan_conversion(folder);
  if (plan.ok()) {
    out.manifest = std::move(plan->manifest);
    out.bytes = plan->bytes;
    out.notes = std::move(plan->notes);
    return out;
  }
  WISP_ASSIGN(const Config config, load_config(folder));
  auto spec = config.family->describe(config);
  if (!spec.ok()) return std::move(plan).error();
  out.manifest.spec = *std::move(spec);
  out.manifest.name = folder_name(folder);
  out.refusal = std::move(plan).error().text;
  return out;
}

}  // namespace wisp::model
