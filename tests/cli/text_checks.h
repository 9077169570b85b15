// Checks of texts that say on failure what the text was.
#pragma once

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <string_view>

namespace voodoo::cli {

inline testing::AssertionResult verdict(bool good, std::string_view text, std::string_view relation,
                                        std::string_view part) {
    return (good ? testing::AssertionSuccess() : testing::AssertionFailure()) << "the text\n"
                                                                              << text << "\n"
                                                                              << relation << "\n"
                                                                              << part;
}

inline testing::AssertionResult contains(std::string_view text, std::string_view part) {
    const bool found = text.find(part) != std::string_view::npos;
    return verdict(found, text, found ? "contains" : "lacks", part);
}

inline testing::AssertionResult begins_with(std::string_view text, std::string_view part) {
    const bool good = text.starts_with(part);
    return verdict(good, text, good ? "begins with" : "does not begin with", part);
}

inline testing::AssertionResult ends_with(std::string_view text, std::string_view part) {
    const bool good = text.ends_with(part);
    return verdict(good, text, good ? "ends with" : "does not end with", part);
}

/// Some part of the text matches the expression.
inline testing::AssertionResult matches(const std::string& text, const std::string& expression) {
    const bool good = std::regex_search(text, std::regex(expression));
    return verdict(good, text, good ? "matches" : "does not match", expression);
}

}  // namespace voodoo::cli
