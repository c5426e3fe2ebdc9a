#include "util/printable.h"

#include <algorithm>
#include <cstring>

namespace libddp {
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
    // Characters in a form that is too long, surrogates, what is beyond Unicode, and the control
    // characters of ISO 8859.
    const unsigned char second = at(1);
    const bool wrong = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                       (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f) ||
                       (first == 0xc2 && second < 0xa0);
    return wrong ? 0 : length;
}

// Calls put(piece) for the pieces of the printable text, until that returns false.
template <class Put>
void each_piece(std::string_view text, std::string_view kept, Put put) {
    while (!text.empty()) {
        const std::size_t length = kept.find(text[0]) != kept.npos ? 1 : character_length(text);
        const auto byte = static_cast<unsigned char>(text[0]);
        const char escaped[] = {'\\', 'x', "0123456789abcdef"[byte >> 4],
                                "0123456789abcdef"[byte & 15]};
        if (!put(length == 0 ? std::string_view(escaped, sizeof escaped) : text.substr(0, length)))
            return;
        text.remove_prefix(std::max<std::size_t>(length, 1));
    }
}

}  // namespace

std::string printable(std::string_view text, std::string_view kept) {
    std::string result;
    result.reserve(text.size());
    each_piece(text, kept, [&](std::string_view piece) {
        result += piece;
        return true;
    });
    return result;
}

std::size_t printable(std::string_view text, char* to, std::size_t room) {
    std::size_t size = 0;
    each_piece(text, "", [&](std::string_view piece) {
        if (piece.size() > room - size) return false;
        std::memcpy(to + size, piece.data(), piece.size());
        size += piece.size();
        return true;
    });
    return size;
}

std::string in_quotes(std::string_view text) {
    constexpr std::size_t kShown = 96;
    std::string result = "'";
    result += printable(text.substr(0, kShown));
    result += text.size() > kShown ? "...'" : "'";
    return result;
}

}  // namespace libddp
