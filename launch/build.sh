# Shared by launch/demo and tests/run (sourced; both stand in the repository's root).

step() {
  printf '\n== %s\n' "$1"
}

# Compile jobs: one a core, but no more than memory carries (a large translation unit takes about 1 GiB).
build_jobs() {
  cores=$(nproc)
  gib=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
  [ "${gib:-0}" -ge 1 ] || gib=1
  [ "$gib" -lt "$cores" ] && echo "$gib" || echo "$cores"
}

# Configures preset release and builds the named targets (none = all). Quiet unless it fails.
build_release() {
  mkdir -p build
  if ! cmake --preset release > build/configure.log 2>&1; then
    cat build/configure.log >&2
    return 1
  fi
  if [ $# -gt 0 ]; then set -- --target "$@"; fi
  cmake --build --preset release -j "$(build_jobs)" "$@"
}

# Whether a converted folder is there and of the layout that this source streams.
model_is_current() {
  [ -f "$1/manifest.json" ] || return 1
  wanted=$(sed -n 's/.*kLayoutVersion = \([0-9]*\);.*/\1/p' common/model/manifest.hpp)
  python3 - "$1/manifest.json" "$wanted" << 'END'
import json, sys
with open(sys.argv[1]) as f:
    manifest = json.load(f)
sys.exit(0 if str(manifest.get("layout_version")) == sys.argv[2] else 1)
END
}
