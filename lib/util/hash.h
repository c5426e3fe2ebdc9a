// A 64-bit hash that is the same on every machine (FNV-1a): for comparing tables and plans between ranks, not for
// security.
#pragma once

#include <cstdint>
#include <string_view>

namespace libddp {

class Hash {
public:
    Hash& add(std::string_view bytes) {
        add(bytes.size());
        for (unsigned char c : bytes) mix(c);
        return *this;
    }
    Hash& add(std::uint64_t number) {
        for (int i = 0; i < 8; ++i) mix(static_cast<unsigned char>(number >> (8 * i)));
        return *this;
    }
    std::uint64_t value() const { return value_; }

private:
    void mix(unsigned char c) { value_ = (value_ ^ c) * 0x100000001b3ull; }
    std::uint64_t value_ = 0xcbf29ce484222325ull;
};

}  // namespace libddp
