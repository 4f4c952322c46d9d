#include "model/safetensors.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "expect_error.hpp"
#include "tiny_checkpoint.hpp"

namespace wisp::model {
namespace {

using test::expect_error;
using test::raw_safetensors;

Result<SafetensorsHeader> parse(const std::string& bytes) {
  return parse_safetensors(bytes, bytes.size(), "x.safetensors");
}

TEST(Safetensors, ReadsNamesShapesAndRanges) {
  const auto h = parse(raw_safetensors(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[],"data_offsets":[6,10]},)"
      R"("a":{"shape":[3],"data_offsets":[0,6],"dtype":"BF16"},)"
      R"("empty":{"dtype":"I64","shape":[0,7],"data_offsets":[10,10]}}   )",
      10));
  ASSERT_TRUE(h.ok()) << h.error().text;
  ASSERT_EQ(h->tensors.size(), 3u);
  EXPECT_EQ(h->tensors[0].name, "a");
  EXPECT_EQ(h->tensors[0].dtype, Dtype::kBf16);
  EXPECT_EQ(h->tensors[0].bytes, 6u);
  EXPECT_EQ(h->tensors[1].name, "b");
  EXPECT_EQ(h->tensors[1].offset, 6u);
  EXPECT_EQ(h->tensors[2].bytes, 0u);
}

struct Hostile {
  const char* title;
  std::string header;
  std::size_t data;
  std::string says;  ///< must be in the error
};

class HostileHeader : public testing::TestWithParam<Hostile> {};

TEST_P(HostileHeader, IsRefusedByName) {
  const auto& c = GetParam();
  expect_error(parse(raw_safetensors(c.header, c.data)), {"x.safetensors", c.says});
}

std::string entry(const std::string& shape, const std::string& offsets, const std::string& dtype = "U8") {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

INSTANTIATE_TEST_SUITE_P(
    Table, HostileHeader,
    testing::Values(
        Hostile{"NotJson", "{\"a\":", 0, "not valid JSON"}, Hostile{"Empty", "", 0, "not valid JSON"},
        Hostile{"Garbage", "\xff\xfe{}", 0, "not valid JSON"}, Hostile{"List", "[1]", 0, "not an object"},
        Hostile{"Trailing", "{}{}", 0, "not valid JSON"}, Hostile{"Number", R"({"a":3})", 0, "tensor a"},
        Hostile{"Deep", R"({"a":{"dtype":{"x":{}}}})", 0, "tensor a"},
        Hostile{"Brackets", "{\"a\":" + std::string(100000, '['), 0, "tensor a"},
        Hostile{"ShapeInShape", R"({"a":{"dtype":"U8","shape":[[1]],"data_offsets":[0,1]}})", 1, "tensor a"},
        Hostile{"Metadata", R"({"__metadata__":{"a":{"b":1}}})", 0, "__metadata__"},
        Hostile{"UnknownDtype", "{\"a\":" + entry("[1]", "[0,1]", "F7") + "}", 1, "unknown dtype F7"},
        Hostile{"UnknownKey", R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}})", 1,
                "unknown key x"},
        Hostile{"LacksShape", R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "tensor a lacks"},
        Hostile{"SameKeyTwice", R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1,
                "twice"},
        Hostile{"SameNameTwice", "{\"a\":" + entry("[1]", "[0,1]") + ",\"a\":" + entry("[1]", "[1,2]") + "}",
                2, "tensor a appears twice"},
        Hostile{"NegativeShape", "{\"a\":" + entry("[-1]", "[0,1]") + "}", 1, "negative"},
        Hostile{"FractionShape", "{\"a\":" + entry("[1.5]", "[0,1]") + "}", 1, "fraction"},
        Hostile{"HugeNumber", "{\"a\":" + entry("[99999999999999999999999]", "[0,1]") + "}", 1, "fraction"},
        Hostile{"ThreeOffsets", "{\"a\":" + entry("[1]", "[0,1,2]") + "}", 1, "two data_offsets"},
        Hostile{"OneOffset", "{\"a\":" + entry("[1]", "[0]") + "}", 1, "two data_offsets"},
        Hostile{"Backwards", "{\"a\":" + entry("[1]", "[2,1]") + "}", 2, "ends before"},
        Hostile{"Rank", "{\"a\":" + entry("[1,1,1,1,1,1,1,1,1]", "[0,1]") + "}", 1, "dimensions"},
        Hostile{"ShapeOverflow", "{\"a\":" + entry("[4294967296,4294967296,2]", "[0,0]") + "}", 0,
                "overflows"},
        Hostile{"ShapeDisagrees", "{\"a\":" + entry("[3]", "[0,4]") + "}", 4, "needs 3 bytes"},
        Hostile{"Overlap", "{\"a\":" + entry("[2]", "[0,2]") + ",\"b\":" + entry("[2]", "[1,3]") + "}", 3,
                "tensor b: overlaps tensor a"},
        Hostile{"Gap", "{\"a\":" + entry("[1]", "[0,1]") + ",\"b\":" + entry("[1]", "[2,3]") + "}", 3,
                "tensor b: begins at 2"},
        Hostile{"BeyondTheEnd", "{\"a\":" + entry("[9]", "[0,9]") + "}", 8, "truncated: tensor a"},
        Hostile{"FarBeyond", "{\"a\":" + entry("[18446744073709551615]", "[0,18446744073709551615]") + "}", 8,
                "tensor a"},
        Hostile{"LongerFile", "{\"a\":" + entry("[1]", "[0,1]") + "}", 5, "4 bytes after"},
        Hostile{"LongName", "{\"" + std::string(1000, 'n') + "\":" + entry("[1]", "[0,1]") + "}", 1,
                "1000 bytes"}),
    [](const auto& i) { return i.param.title; });

TEST(Safetensors, RefusesImpossibleLengths) {
  expect_error(parse(""), {"too few"});
  expect_error(parse("1234567"), {"too few"});
  std::string huge = raw_safetensors("{}", 0);
  std::memset(huge.data(), 0xff, 8);
  expect_error(parse(huge), {"claims a header of 18446744073709551615 bytes"});
  std::string cut = raw_safetensors("{}", 0);
  cut.pop_back();
  expect_error(parse(cut), {"truncated"});
}

TEST(Safetensors, ControlBytesOfNamesDoNotReachTheTerminal) {
  const auto r = parse(raw_safetensors("{\"a\\u001b[2J\":" + entry("[3]", "[0,4]") + "}", 4));
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.error().text.find('\x1b'), std::string::npos);
}

TEST(Safetensors, FileReadsRanges) {
  test::TempFolder folder;
  test::TinyCheckpoint tiny;
  test::write_file(folder.path("a b.safetensors"), test::safetensors_bytes(tiny.tensors));
  const auto f = SafetensorsFile::open(folder.path("a b.safetensors"));
  ASSERT_TRUE(f.ok()) << f.error().text;
  for (const auto& t : f->header().tensors) {
    const auto& want = tiny.at(t.name).data;
    std::vector<std::uint8_t> got(want.size() / 2);
    ASSERT_TRUE(f->read(t, want.size() / 2, got).ok());
    EXPECT_TRUE(
        std::equal(got.begin(), got.end(), want.begin() + static_cast<std::ptrdiff_t>(want.size() / 2)));
  }
  EXPECT_EQ(SafetensorsFile::open(folder.path("none")).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace wisp::model
