// How long the index of a large model takes to read: the manifest of 92 layers of 896 experts (82,432, as many as
// Kimi K3 has), made up in memory from the shape of a small folder. Prints the CPU time of parse_manifest().
//
//   index_bench MODEL [LAYERS EXPERTS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "model/dense_plan.hpp"
#include "model/folder_writer.hpp"
#include "model/manifest.hpp"

namespace {

using namespace wisp;

double cpu_ms() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

std::string made_up(model::Manifest m, std::uint32_t layers, std::uint32_t experts) {
  m.spec.layers.assign(layers, m.spec.layers.front());
  m.spec.router.experts = experts;
  std::vector<model::DenseItem> items;
  for (const auto& d : model::dense_shapes(m.spec)) {
    model::DenseItem item;
    item.name = d.name;
    item.rows = d.rows;
    item.cols = d.cols;
    item.matrix = d.matrix;
    items.push_back(item);
  }
  model::lay_out_folder(m, items);
  std::uint64_t sum = 1;
  for (auto& layer : m.experts)
    for (auto& x : layer.extents) x.checksum = sum *= 6364136223846793005u;
  m.model_hash = model::hash_of_weights(m);
  return model::write_manifest(m);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 4) {
    std::fputs("index_bench MODEL [LAYERS EXPERTS]\n", stderr);
    return 2;
  }
  const auto small = model::load_manifest(argv[1]);
  if (!small.ok()) {
    std::fprintf(stderr, "%s\n", small.error().text.c_str());
    return 1;
  }
  const auto layers = static_cast<std::uint32_t>(argc == 4 ? std::atoi(argv[2]) : 92);
  const auto experts = static_cast<std::uint32_t>(argc == 4 ? std::atoi(argv[3]) : 896);
  const std::string text = made_up(*small, layers, experts);
  std::vector<double> ms;
  for (int i = 0; i < 15; ++i) {
    const double start = cpu_ms();
    const auto m = model::parse_manifest(text);
    ms.push_back(cpu_ms() - start);
    if (!m.ok()) {
      std::fprintf(stderr, "%s\n", m.error().text.c_str());
      return 1;
    }
  }
  std::sort(ms.begin(), ms.end());
  std::printf("%u experts, %zu bytes: %.2f ms of CPU (%.2f to %.2f, 15 times)\n", layers * experts, text.size(),
              ms[ms.size() / 2], ms.front(), ms.back());
  return 0;
}
