#include "text.h"

#include <algorithm>

namespace why {
namespace {

bool continues(unsigned char c) {
    return (c & 0xc0) == 0x80;
}

// Bytes of the character that the text begins with; 0: it is not one, or a control character.
std::size_t character_length(std::string_view text) {
    const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = at(0);
    if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
    const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
    for (std::size_t i = 1; i < length; ++i)
        if (!continues(at(i))) return 0;
    // Characters in a form that is too long, surrogates, what is beyond Unicode, and the control characters of ISO 8859.
    const unsigned char second = at(1);
    const bool wrong = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                       (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f) ||
                       (first == 0xc2 && second < 0xa0);
    return wrong ? 0 : length;
}

}  // namespace

std::string printable(std::string_view text) {
    std::string result;
    while (!text.empty()) {
        const std::size_t length = character_length(text);
        result += length == 0 ? std::string_view("?") : text.substr(0, length);
        text.remove_prefix(std::max<std::size_t>(length, 1));
    }
    return result;
}

std::size_t width(std::string_view text) {
    return text.size() - static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
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
