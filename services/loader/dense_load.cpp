#include "services/loader/dense_load.hpp"

#include <xxhash.h>

#include <algorithm>

namespace wisp::loader {

namespace {
constexpr std::uint64_t kPart = std::uint64_t{2} << 20;
}

bool DenseLoad::has_work(const ReadQueue& queue) const {
  if (requested_ < manifest_.dense_bytes) return queue.has_room();
  return arrived();
}

Result<bool> DenseLoad::step(ReadQueue& queue) {
  bool worked = false;
  while (requested_ < manifest_.dense_bytes && queue.has_room()) {
    const std::uint64_t bytes = std::min(kPart, manifest_.dense_bytes - requested_);
    queue.add({&file_, manifest_.dense_file_offset + requested_, bytes, dense_ + requested_, kDenseTag});
    requested_ += bytes;
    worked = true;
  }
  if (!arrived() || next_tensor_ == manifest_.dense.end()) return worked;
  WISP_TRY(check(next_tensor_->first, next_tensor_->second));
  ++next_tensor_;
  return true;
}

Status DenseLoad::on_done(ExtentDone done) {
  if (done.error) {
    done.error->text += "; check the folder with `wisp verify`";
    return std::move(*done.error).within("dense weights");
  }
  arrived_ += done.bytes;
  return {};
}

Status DenseLoad::check(const std::string& name, const model::DenseTensor& t) const {
  const std::string where = file_.path + ": tensor " + name;
  if (t.bytes > manifest_.dense_bytes || t.offset > manifest_.dense_bytes - t.bytes)
    return corrupt(where + " lies outside of the data section; convert the model again");
  if (XXH3_64bits(dense_ + t.offset, t.bytes) == t.checksum) return {};
  return corrupt(where + ": " + std::to_string(t.bytes) + " bytes at offset " +
                 std::to_string(manifest_.dense_file_offset + t.offset) +
                 " do not match their checksum; check with `wisp verify` and convert the model again");
}

}  // namespace wisp::loader
