#include "why/text.h"

#include <algorithm>

namespace why {
namespace {

bool continues(unsigned char c) {
    return (c & 0xc0) == 0x80;
}

}  // namespace

std::size_t width(std::string_view text) {
    return text.size() -
           static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
               return continues(static_cast<unsigned char>(c));
           }));
}

std::string_view cut(std::string_view text, std::size_t most) {
    std::size_t end = 0;
    for (; end < text.size(); ++end) {
        if (continues(static_cast<unsigned char>(text[end]))) continue;
        if (most-- == 0) break;
    }
    return text.substr(0, end);
}

}  // namespace why
