// A 64-bit hash that is the same on every machine (FNV-1a): for comparing tables and plans between ranks, not for
// security.
#pragma once

#include <cstdint>
#include <cstring>
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
    // Eight bytes at a time, for data that is large. Not the same as add(bytes), nor where the order of bytes is another.
    Hash& add_words(std::string_view bytes) {
        add(bytes.size());
        for (; bytes.size() >= sizeof(std::uint64_t); bytes.remove_prefix(sizeof(std::uint64_t))) {
            std::uint64_t word = 0;
            std::memcpy(&word, bytes.data(), sizeof word);
            value_ = (value_ ^ word) * 0x9e3779b97f4a7c15ull;
            value_ ^= value_ >> 32;
        }
        for (unsigned char c : bytes) mix(c);
        return *this;
    }
    std::uint64_t value() const { return value_; }

private:
    void mix(unsigned char c) { value_ = (value_ ^ c) * 0x100000001b3ull; }
    std::uint64_t value_ = 0xcbf29ce484222325ull;
};

}  // namespace libddp
