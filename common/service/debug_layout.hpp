#pragma once
#include <cstdint>

namespace wisp::service {

/// Offsets and sizes of the shared structs by name, for launch/gdb/wisp.py: a release build has no type
/// information, and a script of its own numbers would go stale. Ends with a null name.
struct LayoutEntry {
  const char* name;
  std::uint64_t value;
};

}  // namespace wisp::service

/// Looked up by its plain name in every stage program.
extern "C" const wisp::service::LayoutEntry wisp_debug_layout[];
