// Text that reads the same in every process. A plain string or file stream takes the locale of the
// host program (std::locale::global), which may group digits or have another decimal point: such
// numbers would travel to other ranks and fail there. tests/install/text.py finds plain streams
// elsewhere.
#pragma once

#include <charconv>
#include <fstream>
#include <locale>
#include <sstream>
#include <string>
#include <utility>

namespace libddp {

// A standard stream, with the same constructors, in the classic locale.
template <class Stream>
class Classic : public Stream {
public:
    template <class... Arguments>
    explicit Classic(Arguments&&... arguments) : Stream(std::forward<Arguments>(arguments)...) {
        this->imbue(std::locale::classic());
    }
};

using TextOut = Classic<std::ostringstream>;
using TextIn = Classic<std::istringstream>;
using FileIn = Classic<std::ifstream>;

// Concatenates anything that can be streamed. Messages are built with it so that the call sites
// read as sentences.
template <class... Parts>
std::string str(const Parts&... parts) {
    TextOut out;
    (out << ... << parts);
    return std::move(out).str();
}

// The shortest text that is read back as the same number.
inline std::string exact(double value) {
    char text[32];
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace libddp
