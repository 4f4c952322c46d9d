#include "services/loader/dense_load.hpp"

#include <xxhash.h>

#include <algorithm>

namespace wisp::loader {

namespace {
constexpr std::uint64_t kPart = std::uint64_t{2} << 20;
}

void DenseLoad::FreeState::operator()(XXH3_state_s* s) const {
  XXH3_freeState(s);
}

DenseLoad::DenseLoad(const model::Manifest& manifest, ModelFile file, std::byte* dense)
    : manifest_(manifest),
      file_(std::move(file)),
      dense_(dense),
      tensors_(manifest.dense.begin(), manifest.dense.end()),
      arrived_((manifest.dense_bytes + kPart - 1) / kPart, false),
      state_(XXH3_createState()) {
  WISP_CHECK(state_ != nullptr);
  std::stable_sort(tensors_.begin(), tensors_.end(),
                   [](const auto& a, const auto& b) { return a.second.offset < b.second.offset; });
  XXH3_64bits_reset(state_.get());
}

bool DenseLoad::has_work(const ReadQueue& queue) const {
  return can_sum() || (requested_ < manifest_.dense_bytes && queue.has_room());
}

bool DenseLoad::can_sum() const {
  if (next_ == tensors_.size()) return false;
  const model::DenseTensor& t = tensors_[next_].second;
  // One that cannot arrive is refused at once.
  if (t.bytes > manifest_.dense_bytes || t.offset > manifest_.dense_bytes - t.bytes) return true;
  return front_ >= t.offset + std::min(t.bytes, summed_ + kPart);
}

Result<bool> DenseLoad::step(ReadQueue& queue) {
  bool worked = false;
  while (requested_ < manifest_.dense_bytes && queue.has_room()) {
    const std::uint64_t bytes = std::min(kPart, manifest_.dense_bytes - requested_);
    queue.add({&file_, manifest_.dense_file_offset + requested_, bytes, dense_ + requested_,
               kDenseTag | requested_ / kPart});
    requested_ += bytes;
    worked = true;
  }
  // Reads first: they are on their way while this one sums.
  if (worked || !can_sum()) return worked;
  WISP_TRY(sum());
  return true;
}

Status DenseLoad::on_done(ExtentDone done) {
  if (done.error) {
    done.error->text += "; check the folder with `wisp verify`";
    return std::move(*done.error).within("dense weights");
  }
  arrived_[done.tag & ~kDenseTag] = true;
  while (front_ < manifest_.dense_bytes && arrived_[front_ / kPart])
    front_ = std::min(manifest_.dense_bytes, front_ + kPart);
  return {};
}

/// The next part of a tensor; at its end the verdict.
Status DenseLoad::sum() {
  const model::DenseTensor& t = tensors_[next_].second;
  if (t.bytes > manifest_.dense_bytes || t.offset > manifest_.dense_bytes - t.bytes)
    return corrupt(where() + " lies outside of the data section; convert the model again");
  const std::uint64_t bytes = std::min(kPart, t.bytes - summed_);
  XXH3_64bits_update(state_.get(), dense_ + t.offset + summed_, bytes);
  summed_ += bytes;
  if (summed_ < t.bytes) return {};
  if (XXH3_64bits_digest(state_.get()) != t.checksum)
    return corrupt(where() + ": " + std::to_string(t.bytes) + " bytes at offset " +
                   std::to_string(manifest_.dense_file_offset + t.offset) +
                   " do not match their checksum; check with `wisp verify` and convert the model again");
  XXH3_64bits_reset(state_.get());
  summed_ = 0;
  ++next_;
  return {};
}

}  // namespace wisp::loader
