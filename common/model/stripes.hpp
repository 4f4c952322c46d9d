#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "model/folder_writer.hpp"
#include "model/manifest.hpp"

namespace wisp::model {

/// A part of every expert of a model, in a folder of its own on another drive: bytes [begin, end) of each
/// extent, one behind the other. The model folder stays whole, so that it can be read alone, checked and
/// copied; of it only what comes before the first stripe is read while stripes are in use.
struct Stripe {
  std::string folder;
  std::uint64_t model_hash = 0;
  std::uint64_t set = 0;    ///< names the division: stripes of one set fit together
  std::uint32_t part = 0;   ///< 1 to parts - 1; part 0 is the model folder's
  std::uint32_t parts = 0;  ///< drives, the model folder's included
  std::uint64_t begin = 0;  ///< bytes from the start of an extent, multiples of 4096
  std::uint64_t end = 0;
  std::vector<std::string> files;                     ///< [layers], in `folder`; empty for dense layers
  std::vector<std::vector<std::uint64_t>> checksums;  ///< [layers][experts], xxh3-64 of each part

  std::uint64_t bytes() const { return end - begin; }
  std::uint64_t offset_of(std::uint32_t expert) const { return expert * bytes(); }
};

/// Largest number of drives a model is divided over.
inline constexpr std::uint32_t kMaxStripes = 16;

/// The stripes that `folder` (the model `m`) is read with, in ascending order; none where it is read alone.
/// Errors: kNotFound, kInvalid, kCorrupt name the stripe's folder, what is wrong with it, and the way out: a
/// stripe that is not there, is of another model or of another division, is there twice, or is too short.
Result<std::vector<Stripe>> load_stripes(const std::string& folder, const Manifest& m);

/// The folders of the stripes as the model folder names them, whatever is there; empty where it is read
/// alone. Errors: kInvalid, kIo of the file that names them.
Result<std::vector<std::string>> stripe_folders(const std::string& folder);

/// Divides the experts of `folder` over its own drive and one folder each at `destinations`, and has the
/// model read so from now on. `shares`: of each drive, the model folder's first; empty = equal. Every
/// expert's checksum is checked on the way. Earlier stripes stay where they are, unread. Errors: kInvalid
/// (shares; destinations, which must not be there, nor inside the model folder), kExhausted, kIo,
/// kCorrupt; then the model is read as before.
Status make_stripes(const std::string& folder, const Manifest& m,
                    const std::vector<std::string>& destinations, const std::vector<double>& shares,
                    const ProgressFn& progress);
/// The stripes lie in these folders now, in any order. Errors: those of load_stripes.
Status move_stripes(const std::string& folder, const Manifest& m,
                    const std::vector<std::string>& destinations);
/// The model is read alone from now on. The stripes' folders stay where they are.
Status drop_stripes(const std::string& folder);

/// Where the parts of an extent begin, and where the last ends: [parts + 1], multiples of 4096, from 0 to
/// `stride`; each part has at least a block. Errors: kInvalid (a share that is not positive, more parts than
/// blocks).
Result<std::vector<std::uint64_t>> cut_extent(std::uint64_t stride, const std::vector<double>& shares);

/// The parser of a stripe's own file: text only, no file access.
Result<Stripe> parse_stripe(std::string_view json, const std::string& folder);
std::string write_stripe(const Stripe& s);

}  // namespace wisp::model
