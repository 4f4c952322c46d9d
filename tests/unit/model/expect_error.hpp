#pragma once
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "base/result.hpp"

namespace wisp::model::test {

/// The result is an Error whose text holds every one of `parts`.
template <class T>
void expect_error(const Result<T>& r, std::initializer_list<std::string> parts) {
  ASSERT_FALSE(r.ok()) << "an Error was expected, with: " << *parts.begin();
  for (const auto& part : parts) {
    EXPECT_NE(r.error().text.find(part), std::string::npos)
        << "'" << part << "' is not in: " << r.error().text;
  }
}

}  // namespace wisp::model::test
