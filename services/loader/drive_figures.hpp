#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"

namespace wisp::loader {

/// How a drive is best read, for extents of one size.
struct DriveFigure {
  std::uint64_t depth = 0;  ///< bytes in flight
  bool pinned = false;      ///< through registered buffers
  double bytes_per_s = 0;   ///< what it gave so
};

/// A name of the drive behind `device` (st_dev) that it keeps over restarts and other places in the machine:
/// model, serial number, world-wide name and size of the whole disk, as sysfs has them; of a device mapper
/// its uuid, of a loop device its file. Empty where the kernel names no disk (overlay, btrfs, network).
/// `sys`: where sysfs is; tests put a made-up tree there.
std::string drive_identity(std::uint64_t device, const std::string& sys = "/sys");
/// The same of several drives that one expert is read from.
std::string drive_identity(const std::vector<std::uint64_t>& devices, const std::string& sys = "/sys");

/// drives.json in the state folder, empty where there is none: for each drive and expert size its figure.
std::string drive_figures_path();

/// Errors: kNotFound where the file or its entry is missing; else what is wrong with it.
Result<DriveFigure> load_drive_figure(const std::string& path, const std::string& identity,
                                      std::uint64_t stride);
/// Adds or replaces one entry; others stay, of a file that cannot be read none. Errors: as
/// StateFile::replace().
Status save_drive_figure(const std::string& path, const std::string& identity, std::uint64_t stride,
                         const DriveFigure& figure);

}  // namespace wisp::loader
