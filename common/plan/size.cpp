#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "plan/run_plan.hpp"

namespace wisp::plan {

namespace {

Error bad_size(const std::string& text) {
  return invalid(
      "\"" + text +
      "\" is no size: write bytes, or a number with K, M, G or T (powers of 1024), as in 512M or 1.5G");
}

/// log2 of the unit: "", "B", "K", "KB", "KiB", ..., in either case; -1 if it is none.
int unit_shift(std::string unit) {
  for (char& c : unit) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (unit.empty() || unit == "B") return 0;
  const std::string letters = "KMGT";
  const auto at = letters.find(unit[0]);
  const std::string rest = unit.substr(1);
  if (at == std::string::npos || !(rest.empty() || rest == "B" || rest == "IB")) return -1;
  return 10 * (static_cast<int>(at) + 1);
}

}  // namespace

Result<std::uint64_t> parse_size(const std::string& text) {
  std::size_t digits = 0;
  std::size_t dots = 0;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) != 0 || text[digits] == '.'))
    dots += text[digits++] == '.' ? 1 : 0;
  std::size_t begin = digits;
  while (begin < text.size() && text[begin] == ' ') ++begin;
  const int shift = unit_shift(text.substr(begin));
  if (digits == 0 || dots > 1 || shift < 0 || text[0] == '.' || text[digits - 1] == '.')
    return bad_size(text);

  const char* const first = text.data();
  if (dots == 0) {
    std::uint64_t n = 0;
    const auto parsed = std::from_chars(first, first + digits, n);
    if (parsed.ec != std::errc{} || n > (~std::uint64_t{0} >> shift)) return bad_size(text);
    return n << shift;
  }
  double n = 0;
  const auto parsed = std::from_chars(first, first + digits, n);
  // 2^63 and above: no memory is that large, and the conversion below would be undefined at 2^64.
  if (parsed.ec != std::errc{} || shift == 0 || std::ldexp(n, shift) >= 9.2e18) return bad_size(text);
  return static_cast<std::uint64_t>(std::ceil(std::ldexp(n, shift)));
}

std::string format_size(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  double n = static_cast<double>(bytes);
  while (n >= 1024.0 && unit + 1 < units.size()) {
    n /= 1024.0;
    ++unit;
  }
  char text[32];
  const bool whole = unit == 0 || n == std::floor(n);
  std::snprintf(text, sizeof text, whole ? "%.0f %s" : "%.1f %s", n, units[unit]);
  return text;
}

}  // namespace wisp::plan
