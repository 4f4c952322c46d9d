#include "model/convert.hpp"

#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <set>

#include "model/convert_plan.hpp"
#include "model/dense_reader.hpp"
#include "model/expert_reader.hpp"

namespace wisp::model {
namespace {

/// Names a conversion: what would be written, and which state of which files it comes from.
std::uint64_t key_of(const ConvertPlan& plan) {
  std::string all = write_manifest(plan.manifest);  // checksums are not in it yet
  std::set<std::string> files;
  for (const auto& e : plan.checkpoint->entries()) files.insert(plan.checkpoint->file_of(e));
  for (const std::string& file : files) {
    struct stat st {};
    ::stat(file.c_str(), &st);
    all += file + " " + std::to_string(st.st_size) + " " + std::to_string(st.st_mtim.tv_sec) + "." +
           std::to_string(st.st_mtim.tv_nsec) + " " + std::to_string(st.st_ino) + "\n";
  }
  return XXH3_64bits(all.data(), all.size());
}

/// "layer 3: experts: rounding to int4 moved the weights by 4.12 % (rms)"
void note_cost(const std::string& what, std::optional<kernels::WeightFormat> target,
               const RoundingError& cost, std::vector<std::string>& notes) {
  if (!target || cost.squared_error == 0.0) return;
  char share[32];
  std::snprintf(share, sizeof share, "%.2f", 100.0 * cost.share());
  notes.push_back(what + ": rounding to " + std::string(name_of(*target)) + " moved the weights by " + share +
                  " % (rms)");
}

/// Writes the dense part and the experts of `plan`, and their checksums and hash into `m`.
Status write_weights(FolderWriter& writer, const ConvertPlan& plan, Manifest& m,
                     std::vector<std::string>& notes) {
  const bool head = m.spec.draft_head;
  DenseReader dense(plan);
  WISP_TRY(writer.write_dense(plan.layout, plan.items, m, dense));
  note_cost(head ? "draft head: dense tensors" : "dense tensors", plan.target.dense, dense.cost(), notes);

  ExpertReader reader(plan);
  for (std::uint32_t layer = 0; layer < plan.experts.size(); ++layer) {
    const auto& experts = plan.experts[layer];
    if (experts.empty()) continue;
    const auto fill = [&](std::uint32_t e, std::span<std::uint8_t> out) {
      if (e + 1 < experts.size()) reader.will_fill(experts[e + 1]);
      return reader.fill(experts[e], out);
    };
    WISP_TRY(writer.write_experts(plan.layout, layer, m, fill));
    note_cost((head ? "draft head" : "layer " + std::to_string(layer)) + ": experts",
              head ? std::optional(m.spec.expert.gate.format) : plan.target.experts, reader.take_cost(),
              notes);
  }
  m.model_hash = hash_of_weights(m);
  return {};
}

}  // namespace

Result<ConvertReport> convert(const ConvertOptions& options, const ProgressFn& progress) {
  const auto start = std::chrono::steady_clock::now();
  if (is_wisp_folder(options.source)) {
    return invalid(options.source + ": is converted already; give the original Hugging Face folder");
  }
  WISP_ASSIGN(ConvertPlan plan, plan_conversion(options.source, options.target, options.draft_head));
  WISP_ASSIGN(FolderWriter writer, FolderWriter::begin(options.destination, options.force, plan.bytes,
                                                       progress, options.free_bytes, key_of(plan)));
  writer.stop_when(options.stop);
  for (const auto& [name, text] : plan.texts) WISP_TRY(writer.write_text(name, text));

  WISP_TRY(write_weights(writer, plan, plan.manifest, plan.notes));
  if (plan.draft_head)
    WISP_TRY(write_weights(writer, *plan.draft_head, plan.manifest.draft_head.front(), plan.notes));
  WISP_TRY(writer.finish(plan.manifest));

  ConvertReport report;
  report.name = plan.manifest.name;
  report.experts = plan.manifest.spec.expert_count();
  report.dense_tensors = plan.items.size();
  report.bytes = plan.bytes;
  if (plan.draft_head) {
    report.experts += plan.draft_head->manifest.spec.expert_count();
    report.dense_tensors += plan.draft_head->items.size();
    report.draft_head_bytes = plan.draft_head->layout.weight_bytes;
  }
  report.notes = std::move(plan.notes);
  if (writer.resumed_bytes() != 0)
    report.notes.push_back("went on where an earlier run ended: " + std::to_string(writer.resumed_bytes()) +
                           " bytes were there");
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

Result<ConvertEstimate> estimate(const std::string& folder, const TargetFormats& target) {
  WISP_ASSIGN(const ConvertPlan plan, plan_conversion(folder, target));
  return ConvertEstimate{plan.bytes, plan.manifest.spec.expert_count(), plan.manifest.spec.vocab,
                         plan.manifest.name, key_of(plan)};
}

std::string folder_name(const std::string& folder) {
  std::error_code ec;
  std::filesystem::path path = std::filesystem::absolute(folder, ec).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

bool is_wisp_folder(const std::string& folder) {
  std::error_code ec;
  return std::filesystem::is_regular_file(folder + "/manifest.json", ec);
}

bool is_hf_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (is_wisp_folder(folder) || !fs::is_regular_file(folder + "/config.json", ec)) return false;
  for (auto it = fs::directory_iterator(folder, ec); !ec && it != fs::directory_iterator();
       it.increment(ec)) {
    if (it->path().extension() == ".safetensors") return true;
  }
  return false;
}

}  // namespace wisp::model
