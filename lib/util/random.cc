#include "util/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "util/error.h"

namespace libddp {

std::string random_text(std::size_t bytes) {
    std::vector<unsigned char> random(bytes);
    for (std::size_t got = 0; got < bytes;) {
        const ssize_t count = getrandom(random.data() + got, bytes - got, 0);
        if (count < 0 && errno != EINTR)
            fail(DDP_ERROR_INTERNAL,
                 "the system gives no random numbers (getrandom): ", std::strerror(errno));
        if (count > 0) got += static_cast<std::size_t>(count);
    }
    std::string text;
    text.reserve(2 * bytes);
    for (const unsigned char byte : random) {
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
    }
    explicit_bzero(random.data(), random.size());
    return text;
}

bool same_secret(std::string_view one, std::string_view other) {
    if (one.size() != other.size()) return false;
    volatile unsigned char difference = 0;
    for (std::size_t i = 0; i < one.size(); ++i)
        difference =
            static_cast<unsigned char>(difference | static_cast<unsigned char>(one[i] ^ other[i]));
    return difference == 0;
}

}  // namespace libddp
