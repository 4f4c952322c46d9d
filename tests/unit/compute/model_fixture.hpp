#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "model/convert.hpp"
#include "model/manifest.hpp"
#include "model/safetensors.hpp"
#include "services/compute/forward.hpp"
#include "services/eval/file_experts.hpp"

namespace wisp::compute::testing {

/// A temporary folder, removed at the end.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "wisp-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The experts of the files, backwards, since the order of arrival must not matter; one at a time if asked.
class FileExperts final : public ExpertSource {
 public:
  FileExperts(const std::string& folder, const model::Manifest& m, bool one_by_one)
      : one_by_one_(one_by_one), files_(eval::FileExperts::open(folder, m).value()) {}

  bool visit(std::uint32_t layer, std::span<const ring::TouchMember> set, bool decode, Use use, Fail fail,
             Cancelled cancelled) override {
    const auto last = static_cast<std::uint32_t>(set.size()) - 1;
    const std::vector<ring::TouchMember> backwards(set.rbegin(), set.rend());
    const auto turned = [&](std::span<const ReadyExpert> ready) {
      std::vector<ReadyExpert> members(ready.begin(), ready.end());
      for (ReadyExpert& r : members) r.member = last - r.member;
      if (!one_by_one_) return use(members);
      for (const ReadyExpert& r : members) use({&r, 1});
    };
    const auto turned_fail = [&](std::uint32_t member, const std::string& why) { fail(last - member, why); };
    return files_.visit(layer, backwards, decode, turned, turned_fail, cancelled);
  }

 private:
  bool one_by_one_;
  eval::FileExperts files_;
};

/// A checkpoint, converted and in memory.
struct LoadedModel {
  TempFolder folder;
  std::string path;
  model::Manifest manifest;
  std::vector<std::byte> dense;
  Weights weights;

  /// Converts the checkpoint at `source`, leaving out expected.* (the oracle's answers lie beside it).
  static std::unique_ptr<LoadedModel> convert(const std::string& source,
                                              const model::TargetFormats& target = {}) {
    auto m = std::make_unique<LoadedModel>();
    const auto copy = m->folder.path() / "source";
    std::filesystem::create_directory(copy);
    for (const auto& f : std::filesystem::directory_iterator(source))
      if (!f.path().filename().string().starts_with("expected"))
        std::filesystem::copy(f.path(), copy / f.path().filename());
    m->path = (m->folder.path() / "model").string();
    model::ConvertOptions options;
    options.source = copy.string();
    options.destination = m->path;
    options.target = target;
    auto report = model::convert(options, {});
    if (!report.ok()) throw std::runtime_error(report.error().text);
    auto manifest = model::load_manifest(m->path);
    if (!manifest.ok()) throw std::runtime_error(manifest.error().text);
    m->manifest = std::move(manifest).value();
    m->dense.resize(m->manifest.dense_bytes + 64);
    std::ifstream in(m->path + "/" + m->manifest.dense_file, std::ios::binary);
    in.seekg(static_cast<std::streamoff>(m->manifest.dense_file_offset));
    in.read(reinterpret_cast<char*>(m->dense.data()), static_cast<std::streamsize>(m->manifest.dense_bytes));
    auto weights = Weights::bind(m->manifest, m->dense.data(), m->manifest.dense_bytes);
    if (!weights.ok()) throw std::runtime_error(weights.error().text);
    m->weights = std::move(weights).value();
    return m;
  }

  std::uint64_t page_bytes(kernels::KvFormat kv = kernels::KvFormat::kF32) const {
    return manifest.spec.kv_page_bytes(kv);
  }
};

/// One engine over a loaded model, with a KV pool of `ctx` positions whose pages are handed out backwards.
class Engine {
 public:
  Engine(LoadedModel& m, const kernels::Kernels& k, std::uint32_t threads, std::uint32_t max_rows,
         std::uint32_t ctx, bool one_by_one = false, kernels::KvFormat kv = kernels::KvFormat::kF32,
         bool fast = false)
      : pool_(threads),
        kv_((ctx / 16 + 1) * m.page_bytes(kv)),
        forward_(m.manifest.spec, m.weights, {kv_.data(), m.page_bytes(kv), kv}, k, pool_, max_rows, ctx,
                 fast),
        experts_(m.path, m.manifest, one_by_one) {
    pool_.share_everything();  // the models are small
    for (std::uint32_t p = ctx / 16 + 1; p-- > 0;) pages_.push_back(p);
  }

  /// Computes ids[start, start + count) in one call; logits of the last row.
  std::vector<float> rows(const std::vector<std::uint32_t>& ids, std::uint32_t start, std::uint32_t count) {
    std::vector<Sequence> s{
        {std::span(ids).subspan(start, count), pages_, start, Logits::kLastRow, {}, naive_until_}};
    if (!forward_.run(s, experts_, [] { return false; })) throw std::runtime_error("cancelled");
    const auto l = forward_.logits(0);
    return {l.begin(), l.end()};
  }
  /// The whole prompt in chunks; logits of its last position.
  std::vector<float> prompt(const std::vector<std::uint32_t>& ids, std::uint32_t chunk) {
    std::vector<float> out;
    for (std::uint32_t at = 0; at < ids.size(); at += chunk)
      out = rows(ids, at, std::min(chunk, static_cast<std::uint32_t>(ids.size()) - at));
    return out;
  }
  /// Rows at positions below `n` are naive from now on (latent attention).
  Engine& naive_until(std::uint32_t n) {
    naive_until_ = n;
    return *this;
  }
  /// The pages' memory.
  std::span<const std::byte> kv() const { return kv_; }

 private:
  ThreadPool pool_;
  std::vector<std::byte> kv_;
  Forward forward_;
  FileExperts experts_;
  std::vector<std::uint32_t> pages_;
  std::uint32_t naive_until_ = 0;
};

}  // namespace wisp::compute::testing
